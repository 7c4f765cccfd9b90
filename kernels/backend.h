/* The inner side of the device interface: the functions that a backend provides.
 *
 * device.c checks every argument that a caller can get wrong (stream numbers, ops, address ranges) before
 * it calls a backend, so all backends refuse the same mistakes. A backend is one folder and one row in the
 * table of device.c. The cuda backend is a separate module. Its row in the table has only `probe` and
 * `open`, which load the module and call the real `probe` and `open` inside it (cuda_module.c).
 *
 * A backend's own devset struct begins with `struct devset`. `struct event` is never defined. Each backend
 * casts it to its own type, struct cpu_event or struct cuda_event.
 */
#ifndef KERNELS_BACKEND_H
#define KERNELS_BACKEND_H

#include "base/log.h"
#include "kernels/device.h"

/* The fields that all backends have in their devsets (a devset is the open devices of one job). A backend's
 * `open` function fills these fields in. Later, only devset_release and devset_acquire change them, to free
 * the arenas and to allocate new arenas. */
struct devset {
    const struct backend *backend;
    uint32_t n_devices;
    /* True between devset_release and devset_acquire, when the devset has no arenas: arena[d] is NULL and
     * capacity_bytes[d] is 0. device.c sets this flag. */
    bool released;
    uint8_t *arena[DEVICE_MAX];
    uint64_t capacity_bytes[DEVICE_MAX];
};

/* The table of functions that a backend implements. Each function does what device.h promises for the public
 * function of the same name. device.c checks the arguments before it calls a backend. */
struct backend {
    const char *name;
    bool has_tf32; /* devset_config.tf32 is allowed */
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

    /* device.c calls `release` and `acquire` only while the streams are drained. `release` frees the arenas,
     * and `acquire` allocates new arenas. When `acquire` fails, it first frees all arenas that it has already
     * allocated. */
    void (*release)(struct devset *ds);
    int (*acquire)(struct devset *ds, const uint64_t *capacity_bytes, struct err *err);

    /* Finds the devices that no longer work and adds them to *ret. The caller has set *ret to zero. This
     * pointer is NULL if the devices of a backend never break. */
    void (*blame)(struct devset *ds, struct device_blame *ret);
};

extern const struct backend backend_cpu;
/* The cuda backend as the program sees it. Only `name`, `has_tf32`, `probe` and `open` are set. `probe` and
 * `open` load the cuda module. Devsets that `open` returns use the module's own table of functions. */
extern const struct backend backend_cuda;

/* ---- backends in modules ---- */

struct pool;

/* Functions of the program that a backend module calls. The module has no copies of these functions, so the
 * process has only one clock, one log and one set of cpu ops. Any thread may call `run_op`. */
struct backend_host {
    uint64_t (*now_ns)(void);
    void (*log)(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
    int (*pool_create)(uint32_t threads, struct pool **ret); /* as in kernels/cpu/cpu.h */
    void (*pool_destroy)(struct pool *p);
    /* Runs an op on the cpu, with the help of the pool's threads. The call returns when the op is done. */
    void (*run_op)(const struct op_call *call, struct pool *pool);
};

/* The version of the interface between the program and a module. The program refuses a module with another
 * version. The version contains the sizes of the shared structs, so it changes when their sizes change. Raise
 * the leading number after any other change of the interface. */
#define BACKEND_ABI                                                                                          \
    (6u << 24 ^ (uint32_t)OP_COUNT << 16 ^ (uint32_t)sizeof(struct op_call) << 8 ^                           \
     (uint32_t)(sizeof(struct backend) + sizeof(struct backend_host) + sizeof(struct devset_config) +        \
                sizeof(struct device_info)))

/* The type of the only function that a module exports. The function returns the module's backend table, or
 * NULL if the module was built with another BACKEND_ABI. `host` must stay valid until the process ends. */
typedef const struct backend *backend_module_fn(uint32_t abi, const struct backend_host *host);
#define BACKEND_MODULE_SYMBOL "tutti_backend"

/* Returns the lane of a stream, such as LANE_COMPUTE. The host has only one stream, which counts as a compute
 * stream. */
static inline enum lane backend_lane(const struct devset *ds, uint32_t stream)
{
    return stream == LANE_COUNT * ds->n_devices ? LANE_COMPUTE : (enum lane)(stream % LANE_COUNT);
}

/* Returns true if a copy to `dst` stays inside one device. This is the case if `stream` is a peer stream and
 * `dst` is on the stream's own device. Such a copy uses no link. Its bytes are not counted, and its speed is
 * not limited. */
static inline bool backend_copy_stays(const struct devset *ds, uint32_t stream, const void *dst)
{
    uint32_t device = stream / LANE_COUNT;

    return backend_lane(ds, stream) == LANE_PEER &&
           (uintptr_t)dst - (uintptr_t)ds->arena[device] < ds->capacity_bytes[device];
}

#endif
