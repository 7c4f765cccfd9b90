/* Inside the device interface: what a backend fills in.
 *
 * device.c checks every argument that a caller can get wrong (stream numbers, ops, address ranges) before it
 * calls a backend, so that all backends refuse the same things. A backend is one folder and one row in the
 * table of device.c. One that lives in a module of its own (cuda) puts a small row here whose `open` loads
 * the module.
 *
 * A backend's devset begins with `struct devset`; `struct event` is the backend's own, defined in its folder.
 */
#ifndef KERNELS_BACKEND_H
#define KERNELS_BACKEND_H

#include "kernels/device.h"

/* Filled by open, const until close. */
struct devset {
    const struct backend *backend;
    uint32_t n_devices;
    uint8_t *arena[DEVICE_MAX];
    uint64_t capacity_bytes[DEVICE_MAX];
};

/* Contracts as in device.h. device.c has checked streams, ops, addresses and the config of devices. */
struct backend {
    const char *name;
    int (*open)(const struct devset_config *config, struct devset **ret, struct err *err);
    void (*close)(struct devset *ds); /* drains first */
    const char *(*numerics)(const struct devset *ds);

    int (*launch)(struct devset *ds, uint32_t stream, const struct op_call *call);
    int (*copy)(struct devset *ds, uint32_t stream, void *dst, const void *src, uint64_t bytes);
    int (*mark)(struct devset *ds, uint32_t stream, uint64_t *at);
    int (*drain)(struct devset *ds);
    void (*counters)(const struct devset *ds, uint32_t device, struct device_counters *ret);

    int (*event_create)(struct devset *ds, struct event **ret);
    void (*event_destroy)(struct devset *ds, struct event *e); /* e is not NULL */
    int (*event_record)(struct devset *ds, uint32_t stream, struct event *e);
    int (*event_wait)(struct devset *ds, uint32_t stream, struct event *e);
    int (*event_sync)(struct devset *ds, struct event *e);

    int (*host_alloc)(struct devset *ds, uint64_t bytes, void **ret); /* bytes > 0 */
    void (*host_free)(struct devset *ds, void *p, uint64_t bytes);    /* p is not NULL */
};

extern const struct backend backend_cpu;

/* The lane of a stream; the host's stream is a compute stream. */
static inline enum lane backend_lane(const struct devset *ds, uint32_t stream)
{
    return stream == LANE_COUNT * ds->n_devices ? LANE_COMPUTE : (enum lane)(stream % LANE_COUNT);
}

#endif
