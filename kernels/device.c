/* Implements the device interface of device.h: finds a backend by name, checks arguments, and passes each
 * call on.
 *
 * The checks are here and not in the backends, so that a wrong plan is refused in the same way on every
 * machine. Wrong numbers of streams and ops, and copies that overlap themselves, are refused with -EINVAL.
 * -EFAULT refuses a copy whose device address is outside of every arena, and a mark whose target is inside
 * an arena.
 *
 * Copies therefore cannot exceed the capacity of a device. The operands of a launch are known only to its
 * op, so each backend protects its arenas against launches by itself.
 *
 * device.h states the order of calls and the threads. This file has no state.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "kernels/backend.h"

const char *const lane_names[LANE_COUNT] = {
    [LANE_COMPUTE] = "compute",
    [LANE_IN] = "in",
    [LANE_OUT] = "out",
    [LANE_PEER] = "peer",
};

/* All backends, in alphabetical order. */
static const struct backend *const backends[] = {
    &backend_cpu,
    &backend_cuda,
};

#define N_BACKENDS (sizeof backends / sizeof backends[0])

static const struct backend *find_backend(const char *name)
{
    for (size_t i = 0; i < N_BACKENDS; i++)
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    return NULL;
}

static int unknown_backend(const char *name, struct err *err)
{
    char known[256] = "";
    size_t at = 0;

    for (size_t i = 0; i < N_BACKENDS && at < sizeof known; i++)
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", backends[i]->name);
    return err_set(err, -EINVAL, "unknown device backend \"%s\"; known: %s", name, known);
}

int devset_probe(const char *backend, uint64_t asked, struct device_info *ret, uint32_t max, uint32_t *ret_n,
                 struct err *err)
{
    const struct backend *b = find_backend(backend);

    *ret_n = 0;
    if (!b)
        return err_set(err, -ENODEV, "this build has no %s backend", backend);
    return b->probe(asked, ret, max, ret_n, err);
}

static int check_capacities(uint32_t n_devices, const uint64_t *capacity_bytes, struct err *err)
{
    for (uint32_t d = 0; d < n_devices; d++) {
        uint64_t bytes = capacity_bytes[d];
        if (bytes == 0 || bytes % DEVICE_ALIGN != 0)
            return err_set(err, -EINVAL,
                           "device %" PRIu32 ": a capacity of %" PRIu64
                           " bytes is not a positive multiple of %d",
                           d, bytes, DEVICE_ALIGN);
    }
    return 0;
}

static int check_config(const struct devset_config *config, struct err *err)
{
    if (config->n_devices < 1 || config->n_devices > DEVICE_MAX)
        return err_set(err, -EINVAL, "%" PRIu32 " devices: must be 1 to %d", config->n_devices, DEVICE_MAX);
    return check_capacities(config->n_devices, config->capacity_bytes, err);
}

const char *devset_backend_name(uint32_t i)
{
    return i < N_BACKENDS ? backends[i]->name : NULL;
}

int devset_open(const struct devset_config *config, struct devset **ret, struct err *err)
{
    const char *name = config->backend ? config->backend : "";
    const struct backend *b = find_backend(name);
    int r;

    if (config->blame)
        *config->blame = (struct device_blame){0};
    if (!b)
        return unknown_backend(name, err);
    r = check_config(config, err);
    if (r < 0)
        return r;
    if (config->tf32 && !b->has_tf32)
        return err_set(err, -EOPNOTSUPP, "the %s backend has no TF32; use a cuda device, or train in F32",
                       name);
    return b->open(config, ret, err);
}

void devset_close(struct devset *ds)
{
    if (ds)
        ds->backend->close(ds);
}

const char *devset_backend(const struct devset *ds)
{
    return ds->backend->name;
}

const char *devset_numerics(const struct devset *ds)
{
    return ds->backend->numerics(ds);
}

void *devset_address(const struct devset *ds, uint32_t device, uint64_t offset)
{
    assert(device < ds->n_devices && offset <= ds->capacity_bytes[device]);
    return ds->arena[device] + offset;
}

static bool known_stream(const struct devset *ds, uint32_t stream)
{
    return stream <= LANE_COUNT * ds->n_devices;
}

static bool in_arena(const struct devset *ds, uint32_t device, const void *p, uint64_t bytes)
{
    uint64_t capacity = ds->capacity_bytes[device];
    /* If `p` is before the start of the arena, this subtraction wraps around to a huge offset. The comparison
     * with the capacity below then returns false. */
    uint64_t offset = (uintptr_t)p - (uintptr_t)ds->arena[device];

    return offset <= capacity && bytes <= capacity - offset;
}

static bool in_any_arena(const struct devset *ds, const void *p, uint64_t bytes)
{
    for (uint32_t d = 0; d < ds->n_devices; d++)
        if (in_arena(ds, d, p, bytes))
            return true;
    return false;
}

static bool overlap(const void *a, const void *b, uint64_t bytes)
{
    return (uintptr_t)a - (uintptr_t)b < bytes || (uintptr_t)b - (uintptr_t)a < bytes;
}

static int check_copy(const struct devset *ds, uint32_t stream, const void *dst, const void *src,
                      uint64_t bytes)
{
    uint32_t device = stream / LANE_COUNT;
    bool ok = false;

    switch (backend_lane(ds, stream)) {
    case LANE_IN:
        ok = in_arena(ds, device, dst, bytes);
        break;
    case LANE_OUT:
        ok = in_arena(ds, device, src, bytes);
        break;
    case LANE_PEER:
        ok = in_arena(ds, device, src, bytes) && in_any_arena(ds, dst, bytes);
        if (ok && overlap(dst, src, bytes))
            return -EINVAL;
        break;
    case LANE_COMPUTE:
    case LANE_COUNT:
        return -EINVAL;
    }
    return ok ? 0 : -EFAULT;
}

int devset_launch(struct devset *ds, uint32_t stream, const struct op_call *call)
{
    if (!known_stream(ds, stream) || backend_lane(ds, stream) != LANE_COMPUTE ||
        (unsigned)call->op >= OP_COUNT)
        return -EINVAL;
    if (ds->released)
        return -EPROTO;
    return ds->backend->launch(ds, stream, call);
}

int devset_copy(struct devset *ds, uint32_t stream, void *dst, const void *src, uint64_t bytes)
{
    int r;

    if (!known_stream(ds, stream))
        return -EINVAL;
    if (ds->released)
        return -EPROTO;
    r = check_copy(ds, stream, dst, src, bytes);
    if (r < 0)
        return r;
    return ds->backend->copy(ds, stream, dst, src, bytes);
}

int devset_discard(struct devset *ds, uint32_t stream, void *at, uint64_t bytes)
{
    if (stream >= LANE_COUNT * ds->n_devices)
        return -EINVAL;
    if (ds->released)
        return -EPROTO;
    if (!in_arena(ds, stream / LANE_COUNT, at, bytes))
        return -EFAULT;
    return ds->backend->discard(ds, stream, at, bytes);
}

int devset_mark(struct devset *ds, uint32_t stream, uint64_t *at)
{
    if (!known_stream(ds, stream) || !at)
        return -EINVAL;
    if (in_any_arena(ds, at, sizeof *at))
        return -EFAULT;
    return ds->backend->mark(ds, stream, at);
}

int event_create(struct devset *ds, struct event **ret)
{
    return ds->backend->event_create(ds, ret);
}

void event_destroy(struct devset *ds, struct event *e)
{
    if (e)
        ds->backend->event_destroy(ds, e);
}

int event_record(struct devset *ds, uint32_t stream, struct event *e)
{
    return known_stream(ds, stream) ? ds->backend->event_record(ds, stream, e) : -EINVAL;
}

int event_wait(struct devset *ds, uint32_t stream, struct event *e)
{
    return known_stream(ds, stream) ? ds->backend->event_wait(ds, stream, e) : -EINVAL;
}

int event_sync(struct devset *ds, struct event *e)
{
    return ds->backend->event_sync(ds, e);
}

int devset_drain(struct devset *ds)
{
    return ds->backend->drain(ds);
}

void devset_blame(struct devset *ds, struct device_blame *ret)
{
    *ret = (struct device_blame){0};
    if (ds->backend->blame)
        ds->backend->blame(ds, ret);
}

static void forget_arenas(struct devset *ds)
{
    for (uint32_t d = 0; d < ds->n_devices; d++) {
        ds->arena[d] = NULL;
        ds->capacity_bytes[d] = 0;
    }
}

int devset_release(struct devset *ds)
{
    int r;

    if (ds->released)
        return 0;
    r = devset_drain(ds);
    ds->backend->release(ds);
    forget_arenas(ds);
    ds->released = true;
    return r;
}

int devset_acquire(struct devset *ds, const uint64_t *capacity_bytes, struct err *err)
{
    int r;

    if (!ds->released)
        return err_set(err, -EPROTO, "the devices' memory was not released");
    r = check_capacities(ds->n_devices, capacity_bytes, err);
    if (r < 0)
        return r;
    r = ds->backend->acquire(ds, capacity_bytes, err);
    ds->released = r < 0;
    if (r < 0)
        forget_arenas(ds);
    return r;
}

void devset_counters(const struct devset *ds, uint32_t device, struct device_counters *ret)
{
    assert(device < ds->n_devices);
    ds->backend->counters(ds, device, ret);
}

int devset_host_alloc(struct devset *ds, uint64_t bytes, void **ret, struct err *err)
{
    if (bytes == 0) {
        *ret = NULL;
        return 0;
    }
    return ds->backend->host_alloc(ds, bytes, ret, err);
}

void devset_host_free(struct devset *ds, void *p, uint64_t bytes)
{
    if (p)
        ds->backend->host_free(ds, p, bytes);
}
