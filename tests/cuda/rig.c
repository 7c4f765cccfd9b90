/* See rig.h. */
#include "tests/cuda/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t all_on_one[DEVICE_MAX];

struct devset_config rig_config(const char *backend, uint32_t n_devices)
{
    struct devset_config c = {.backend = backend, .n_devices = n_devices, .threads = 2};

    for (uint32_t d = 0; d < n_devices; d++)
        c.capacity_bytes[d] = RIG_CAPACITY;
    if (getenv("TUTTI_CUDA_SHARED"))
        c.device_index = all_on_one;
    return c;
}

struct devset *rig_open(const struct devset_config *c)
{
    struct devset *ds = NULL;
    struct err err = {0};

    if (devset_open(c, &ds, &err) != 0)
        fail_msg("%s: %s", err.path, err.msg);
    return ds;
}

void rig_refused(const struct devset_config *c, int code, const char *says)
{
    struct devset *ds = NULL;
    struct err err = {0};
    const int r = devset_open(c, &ds, &err);

    if (r != code || !strstr(err.msg, says))
        fail_msg("want %d and \"%s\", got %d and \"%s: %s\"", code, says, r, err.path, err.msg);
    assert_null(ds);
    printf("# %s%s%s\n", err.path, *err.path ? ": " : "", err.msg);
}

struct event *rig_event(struct devset *ds)
{
    struct event *e = NULL;

    assert_int_equal(event_create(ds, &e), 0);
    return e;
}

float *rig_floats(struct devset *ds, uint64_t n)
{
    void *p = NULL;

    assert_int_equal(devset_host_alloc(ds, n * sizeof(float), &p, NULL), 0);
    return p;
}

void rig_free(struct devset *ds, float *p, uint64_t n)
{
    devset_host_free(ds, p, n * sizeof *p);
}

void rig_copy(struct devset *ds, uint32_t stream, void *dst, const void *src, uint64_t bytes)
{
    assert_int_equal(devset_copy(ds, stream, dst, src, bytes), 0);
}

void rig_launch(struct devset *ds, uint32_t stream, const struct op_call *call)
{
    assert_int_equal(devset_launch(ds, stream, call), 0);
}

void rig_record(struct devset *ds, uint32_t stream, struct event *e)
{
    assert_int_equal(event_record(ds, stream, e), 0);
}

void rig_wait(struct devset *ds, uint32_t stream, struct event *e)
{
    assert_int_equal(event_wait(ds, stream, e), 0);
}

void rig_drain(struct devset *ds)
{
    assert_int_equal(devset_drain(ds), 0);
}

void rig_order(struct devset *ds, uint32_t from, uint32_t to, struct event *e)
{
    rig_record(ds, from, e);
    rig_wait(ds, to, e);
}

static const struct step_args step;

struct op_call rig_add(float *y, const float *b, uint32_t n)
{
    return (struct op_call){
        .op = OP_bias_fwd, .step = &step, .bias_fwd = {.x = y, .b = b, .y = y, .rows = 1, .n = n}};
}

struct op_call rig_relu(float *y, uint64_t n)
{
    return (struct op_call){
        .op = OP_act_fwd, .step = &step, .act_fwd = {.x = y, .y = y, .n = n, .act = ACT_RELU}};
}

bool rig_has(const char *backend)
{
    struct devset_config c = rig_config(backend, 1);
    struct devset *ds = NULL;
    struct err err = {0};

    if (devset_open(&c, &ds, &err) < 0) {
        printf("# skipped: %s: %s\n", backend, err.msg);
        return false;
    }
    devset_close(ds);
    return true;
}
