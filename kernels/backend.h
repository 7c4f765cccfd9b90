/* Inside the device interface: what a backend fills in.
 *
 * device.c checks every argument that a caller can get wrong (stream numbers, ops, address ranges) before it
 * calls a backend, so that all backends refuse the same things. A backend is one folder and one row in the
 * table of device.c. One that lives in a module of its own (cuda) puts a small row here whose `open` loads
 * the module and calls the `open` of the backend that it finds there (cuda_module.c).
 *
 * A backend's devset begins with `struct devset`; `struct event` is the backend's own, defined in its folder.
 */
#ifndef KERNELS_BACKEND_H
#define KERNELS_BACKEND_H

#include "base/log.h"
#include "kernels/device.h"

/* Filled by open; the arenas change in release and acquire, all else is const until close. */
struct devset {
    const struct backend *backend;
    uint32_t n_devices;
    bool released; /* device.c's: no arenas, the two below are NULL and 0 */
    uint8_t *arena[DEVICE_MAX];
    uint64_t capacity_bytes[DEVICE_MAX];
};

/* Contracts as in device.h. device.c has checked streams, ops, addresses and the config of devices. */
struct backend {
    const char *name;
    int (*probe)(uint64_t asked, struct device_info *ret, uint32_t max, uint32_t *ret_n, struct err *err);
    int (*open)(const struct devset_config *config, struct devset **ret, struct err *err);
    void (*close)(struct devset *ds); /* drains first */
    const char *(*numerics)(const struct devset *ds);

    int (*launch)(struct devset *ds, uint32_t stream, const struct op_call *call);
    int (*copy)(struct devset *ds, uint32_t stream, void *dst, const void *src, uint64_t bytes);
    int (*discard)(struct devset *ds, uint32_t stream, void *at, uint64_t bytes);
    int (*mark)(struct devset *ds, uint32_t stream, uint64_t *at);
    int (*drain)(struct devset *ds);
    void (*counters)(const struct devset *ds, uint32_t device, struct device_counters *ret);

    int (*event_create)(struct devset *ds, struct event **ret);
    void (*event_destroy)(struct devset *ds, struct event *e); /* e is not NULL */
    int (*event_record)(struct devset *ds, uint32_t stream, struct event *e);
    int (*event_wait)(struct devset *ds, uint32_t stream, struct event *e);
    int (*event_sync)(struct devset *ds, struct event *e);

    int (*host_alloc)(struct devset *ds, uint64_t bytes, void **ret, struct err *err); /* bytes > 0 */
    void (*host_free)(struct devset *ds, void *p, uint64_t bytes);                     /* p is not NULL */

    /* Of arenas; the streams are drained. acquire fills in arena and capacity_bytes of every device; when it
     * fails it has freed what it had taken. */
    void (*release)(struct devset *ds);
    int (*acquire)(struct devset *ds, const uint64_t *capacity_bytes, struct err *err);

    /* May be NULL: its devices never break. *ret is zero. */
    void (*blame)(struct devset *ds, struct device_blame *ret);
};

extern const struct backend backend_cpu;
extern const struct backend backend_cuda; /* `name` and `open` only: devsets have the module's */

/* ---- backends in modules ---- */

/* What the program lends a module, so that there is one clock, one log and one set of cpu ops in a process. Any
 * thread may call run_op. */
struct pool;
struct backend_host {
    uint64_t (*now_ns)(void);
    void (*log)(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
    int (*pool_create)(uint32_t threads, struct pool **ret); /* kernels/cpu/cpu.h */
    void (*pool_destroy)(struct pool *p);
    void (*run_op)(const struct op_call *call, struct pool *pool); /* on the cpu, in the calling thread */
};

/* A module and a program of different versions must not meet. Raise the number with every change of what
 * crosses the boundary; the rest catches most of the times that this is forgotten. */
#define BACKEND_ABI                                                                                          \
    (5u << 24 ^ (uint32_t)OP_COUNT << 16 ^ (uint32_t)sizeof(struct op_call) << 8 ^                           \
     (uint32_t)(sizeof(struct backend) + sizeof(struct backend_host) + sizeof(struct devset_config) +        \
                sizeof(struct device_info)))

/* The one symbol of a module. NULL when its ABI is another; `host` stays valid while the process lives. */
typedef const struct backend *backend_module_fn(uint32_t abi, const struct backend_host *host);
#define BACKEND_MODULE_SYMBOL "tutti_backend"

/* The lane of a stream; the host's stream is a compute stream. */
static inline enum lane backend_lane(const struct devset *ds, uint32_t stream)
{
    return stream == LANE_COUNT * ds->n_devices ? LANE_COMPUTE : (enum lane)(stream % LANE_COUNT);
}

/* Whether a copy to `dst` on this stream stays inside a device: it is neither counted nor paced. */
static inline bool backend_copy_stays(const struct devset *ds, uint32_t stream, const void *dst)
{
    uint32_t device = stream / LANE_COUNT;

    return backend_lane(ds, stream) == LANE_PEER &&
           (uintptr_t)dst - (uintptr_t)ds->arena[device] < ds->capacity_bytes[device];
}

#endif
