/* Tests the device interface on the cpu backend: order, events, capacity, counters, pace.
 *
 * The tests control time. Hooks of the clock record every requested sleep, and can keep the sleeping threads
 * asleep until the test releases them. A paced copy is then a command that stays unfinished as long as a test
 * wants. In this way a test can show that one command waits for another without measuring time, and no test
 * fails because a machine is slow.
 *
 * The main thread makes all assertions. It also enqueues all commands, except where a test starts a thread
 * for that.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/rng.h"
#include "kernels/cpu/copy.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/stream.h"
#include "kernels/device.h"

#define STREAM(device, lane) ((uint32_t)(LANE_COUNT * (device) + (lane)))

#define CAPACITY (1u << 20)

/* ---- a clock that tests own ---- */

struct test_clock {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool held; /* guarded by lock, as all below: sleepers stay asleep */
    uint64_t now_ns;
    uint64_t tick_ns; /* by which each look at the clock moves it */
    uint64_t last_ns; /* of sleep asked for */
    uint64_t longest_ns;
    uint64_t total_ns;
    uint64_t n_sleeps; /* begun */
};

static struct test_clock test_clock = {.lock = PTHREAD_MUTEX_INITIALIZER,
                                       .changed = PTHREAD_COND_INITIALIZER};

static uint64_t test_now(void *ctx)
{
    struct test_clock *c = ctx;

    pthread_mutex_lock(&c->lock);
    uint64_t now = c->now_ns;
    c->now_ns += c->tick_ns;
    pthread_mutex_unlock(&c->lock);
    return now;
}

static void test_sleep(void *ctx, uint64_t ns)
{
    struct test_clock *c = ctx;

    pthread_mutex_lock(&c->lock);
    c->n_sleeps++;
    c->last_ns = ns;
    c->total_ns += ns;
    if (ns > c->longest_ns)
        c->longest_ns = ns;
    pthread_cond_broadcast(&c->changed);
    while (c->held)
        pthread_cond_wait(&c->changed, &c->lock);
    c->now_ns += ns;
    pthread_mutex_unlock(&c->lock);
}

static void clock_hold(bool held)
{
    pthread_mutex_lock(&test_clock.lock);
    test_clock.held = held;
    pthread_cond_broadcast(&test_clock.changed);
    pthread_mutex_unlock(&test_clock.lock);
}

static void clock_tick(uint64_t ns)
{
    pthread_mutex_lock(&test_clock.lock);
    test_clock.tick_ns = ns;
    pthread_mutex_unlock(&test_clock.lock);
}

/* Until `n` sleeps have begun. */
static void clock_await_sleeps(uint64_t n)
{
    pthread_mutex_lock(&test_clock.lock);
    while (test_clock.n_sleeps < n)
        pthread_cond_wait(&test_clock.changed, &test_clock.lock);
    pthread_mutex_unlock(&test_clock.lock);
}

static int setup_clock(void **state)
{
    const struct clock_hooks hooks = {.monotonic_ns = test_now, .sleep_ns = test_sleep, .ctx = &test_clock};

    (void)state;
    test_clock.held = false;
    test_clock.now_ns = test_clock.tick_ns = test_clock.last_ns = test_clock.longest_ns = 0;
    test_clock.total_ns = test_clock.n_sleeps = 0;
    clock_set_hooks(&hooks);
    return 0;
}

static int teardown_clock(void **state)
{
    (void)state;
    clock_set_hooks(NULL);
    return 0;
}

/* ---- helpers ---- */

static struct devset_config config(uint32_t n_devices)
{
    struct devset_config c = {.backend = "cpu", .n_devices = n_devices, .threads = 2};

    for (uint32_t d = 0; d < n_devices; d++)
        c.capacity_bytes[d] = CAPACITY;
    return c;
}

static struct devset *open_set(const struct devset_config *c)
{
    struct devset *ds = NULL;
    struct err err = {0};

    if (devset_open(c, &ds, &err) != 0)
        fail_msg("%s", err.msg);
    return ds;
}

/* Two devices whose peer copies stay unfinished while the clock is held. */
static struct devset *open_holdable(void)
{
    struct devset_config c = config(2);

    c.peer_bytes_per_s = 1000000;
    return open_set(&c);
}

static struct event *new_event(struct devset *ds)
{
    struct event *e = NULL;

    assert_int_equal(event_create(ds, &e), 0);
    return e;
}

static float *floats(struct devset *ds, uint32_t device, uint64_t offset)
{
    return devset_address(ds, device, offset);
}

static void fill(float *p, uint32_t n, float value)
{
    for (uint32_t i = 0; i < n; i++)
        p[i] = value;
}

static const struct step_args step;

static struct op_call bias_call(float *y, const float *b, uint32_t n)
{
    return (struct op_call){
        .op = OP_bias_fwd, .step = &step, .bias_fwd = {.x = y, .b = b, .y = y, .rows = 1, .n = n}};
}

static struct op_call relu_call(float *y, const float *x, uint64_t n)
{
    return (struct op_call){
        .op = OP_act_fwd, .step = &step, .act_fwd = {.x = x, .y = y, .n = n, .act = ACT_RELU}};
}

static void launch(struct devset *ds, uint32_t stream, struct op_call call)
{
    assert_int_equal(devset_launch(ds, stream, &call), 0);
}

static void copy(struct devset *ds, uint32_t stream, void *dst, const void *src, uint64_t bytes)
{
    assert_int_equal(devset_copy(ds, stream, dst, src, bytes), 0);
}

static void record(struct devset *ds, uint32_t stream, struct event *e)
{
    assert_int_equal(event_record(ds, stream, e), 0);
}

static void wait_for(struct devset *ds, uint32_t stream, struct event *e)
{
    assert_int_equal(event_wait(ds, stream, e), 0);
}

static void mark(struct devset *ds, uint32_t stream, uint64_t *at)
{
    assert_int_equal(devset_mark(ds, stream, at), 0);
}

/* Gives a stream that should be blocked every chance to go on. */
static void let_others_run(void)
{
    for (int i = 0; i < 200; i++)
        sched_yield();
}

/* A peer copy of device 0 that ends when the clock is let go. Needs open_holdable and a held clock. */
static void enqueue_held_copy(struct devset *ds)
{
    copy(ds, STREAM(0, LANE_PEER), devset_address(ds, 1, CAPACITY - 256),
         devset_address(ds, 0, CAPACITY - 256), 256);
}

/* ---- opening ---- */

static void assert_refused(const struct devset_config *c, int code, const char *says)
{
    struct devset *ds = NULL;
    struct err err = {0};

    assert_int_equal(devset_open(c, &ds, &err), code);
    assert_null(ds);
    assert_int_equal(err.code, code);
    if (!strstr(err.msg, says))
        fail_msg("\"%s\" does not say \"%s\"", err.msg, says);
    assert_int_equal(devset_open(c, &ds, NULL), code);
}

static void test_open_unknown_backend_lists_known(void **state)
{
    struct devset_config c = config(1);

    (void)state;
    c.backend = "abacus";
    assert_refused(&c, -EINVAL, "abacus");
    assert_refused(&c, -EINVAL, "known: cpu");
    c.backend = NULL;
    assert_refused(&c, -EINVAL, "known: cpu");
}

static void test_open_bad_config_refused(void **state)
{
    struct devset_config c = config(2);

    (void)state;
    c.n_devices = 0;
    assert_refused(&c, -EINVAL, "0 devices");
    c.n_devices = DEVICE_MAX + 1;
    assert_refused(&c, -EINVAL, "65 devices");
    c = config(2);
    c.capacity_bytes[1] = 0;
    assert_refused(&c, -EINVAL, "device 1");
    c.capacity_bytes[1] = CAPACITY + DEVICE_ALIGN / 2;
    assert_refused(&c, -EINVAL, "256");
    c = config(1);
    c.threads = 0;
    assert_refused(&c, -EINVAL, "thread");
}

static void test_open_without_memory_says_which_device(void **state)
{
    struct devset_config c = config(2);

    (void)state;
    c.capacity_bytes[1] = UINT64_C(1) << 62;
    assert_refused(&c, -ENOMEM, "device 1");
    assert_refused(&c, -ENOMEM, "4611686018427387904 bytes");
    c.capacity_bytes[1] = UINT64_MAX - DEVICE_ALIGN + 1;
    assert_refused(&c, -ENOMEM, "device 1");
}

static void test_open_most_devices(void **state)
{
    struct devset_config c = config(DEVICE_MAX);
    struct devset *ds = open_set(&c);

    (void)state;
    fill(floats(ds, DEVICE_MAX - 1, 0), 128, 1);
    launch(ds, STREAM(DEVICE_MAX - 1, LANE_COMPUTE),
           bias_call(floats(ds, DEVICE_MAX - 1, 0), floats(ds, DEVICE_MAX - 1, 256), 64));
    assert_int_equal(devset_drain(ds), 0);
    assert_true(floats(ds, DEVICE_MAX - 1, 0)[63] == 2);
    devset_close(ds);
}

static void test_names(void **state)
{
    struct devset_config c = config(1);
    struct devset *ds = open_set(&c);

    (void)state;
    assert_string_equal(devset_backend(ds), "cpu");
    assert_int_equal(strncmp(devset_numerics(ds), "cpu ", 4), 0);
    assert_true(strlen(devset_numerics(ds)) > 4);
    assert_string_equal(lane_names[LANE_COMPUTE], "compute");
    assert_string_equal(lane_names[LANE_PEER], "peer");
    devset_close(ds);
}

static void test_probe_finds_virtual_devices_or_says_why_not(void **state)
{
    struct device_info found[2];
    struct err err = {0};
    uint32_t n = 7;

    (void)state;
    assert_int_equal(devset_probe("cpu", DEVICES_ALL, found, 2, &n, &err), 0);
    assert_int_equal(n, 0);
    assert_int_equal(devset_probe("abacus", DEVICES_ALL, found, 2, &n, &err), -ENODEV);
    assert_string_equal(err.msg, "this build has no abacus backend");
}

static void test_null_is_taken(void **state)
{
    struct devset_config c = config(1);
    struct devset *ds = open_set(&c);

    (void)state;
    event_destroy(ds, NULL);
    devset_host_free(ds, NULL, 0);
    devset_close(ds);
    devset_close(NULL);
}

static void test_host_memory_zeroed_or_refused(void **state)
{
    struct devset_config c = config(1);
    struct devset *ds = open_set(&c);
    uint64_t bytes = (4u << 20) + 4;
    void *p = NULL;

    (void)state;
    assert_int_equal(devset_host_alloc(ds, bytes, &p, NULL), 0);
    for (uint64_t i = 0; i < bytes; i++)
        if (((uint8_t *)p)[i] != 0)
            fail_msg("byte %llu is not zero", (unsigned long long)i);
    memset(p, 1, bytes);
    devset_host_free(ds, p, bytes);
    p = &c;
    assert_int_equal(devset_host_alloc(ds, UINT64_C(1) << 62, &p, NULL), -ENOMEM);
    struct err err = {0};
    assert_int_equal(devset_host_alloc(ds, UINT64_C(1) << 62, &p, &err), -ENOMEM);
    assert_non_null(strstr(err.msg, "4611686018427387904 bytes"));
    assert_ptr_equal(p, &c);
    assert_int_equal(devset_host_alloc(ds, 0, &p, NULL), 0);
    devset_host_free(ds, p, 0);
    devset_close(ds);
}

/* ---- order ---- */

/* Repeats y = relu(y + b) with changing b. Any other order of the launches gives other numbers. */
static void test_stream_runs_in_order(void **state)
{
    enum { N = 16, STEPS = 1000 };
    struct devset_config c = config(1);
    struct devset *ds = open_set(&c);
    float *y = floats(ds, 0, 0), *b = floats(ds, 0, 4096), expect = 0;

    (void)state;
    fill(y, N, 0);
    for (int i = 0; i < STEPS; i++)
        fill(b + i * N, N, (float)(i * 7919 % 101 - 50));
    for (int i = 0; i < STEPS; i++) {
        launch(ds, 0, bias_call(y, b + i * N, N));
        launch(ds, 0, relu_call(y, y, N));
        expect += b[i * N];
        expect = expect > 0 ? expect : 0;
    }
    assert_int_equal(devset_drain(ds), 0);
    for (int i = 0; i < N; i++)
        assert_true(y[i] == expect);
    devset_close(ds);
}

/* Host memory -> device 0 -> compute -> device 1 -> compute -> host memory, by events alone. */
static void run_tour(const struct devset_config *c, float ret[64])
{
    struct devset *ds = open_set(c);
    struct event *e = new_event(ds);
    float in[64], one[64];
    const uint32_t chain[] = {STREAM(0, LANE_IN), STREAM(0, LANE_COMPUTE), STREAM(0, LANE_PEER),
                              STREAM(1, LANE_COMPUTE), STREAM(1, LANE_OUT)};
    float *d0 = floats(ds, 0, 256), *d1 = floats(ds, 1, 512), *one1 = floats(ds, 1, 0);

    for (int i = 0; i < 64; i++)
        in[i] = (float)i - 32;
    fill(one, 64, 1);
    copy(ds, STREAM(1, LANE_IN), one1, one, sizeof one);
    record(ds, STREAM(1, LANE_IN), e);
    wait_for(ds, STREAM(1, LANE_COMPUTE), e);

    copy(ds, chain[0], d0, in, sizeof in);
    for (int i = 0; i < 5; i++) {
        if (i > 0)
            wait_for(ds, chain[i], e);
        if (i == 1)
            launch(ds, chain[i], relu_call(d0, d0, 64));
        if (i == 2)
            copy(ds, chain[i], d1, d0, sizeof in);
        if (i == 3)
            launch(ds, chain[i], bias_call(d1, one1, 64));
        if (i == 4)
            copy(ds, chain[i], ret, d1, sizeof in);
        record(ds, chain[i], e);
    }
    assert_int_equal(event_sync(ds, e), 0);
    assert_int_equal(devset_drain(ds), 0);
    event_destroy(ds, e);
    devset_close(ds);
}

static void assert_tour(const float got[64])
{
    for (int i = 0; i < 64; i++)
        assert_true(got[i] == (i > 32 ? (float)i - 32 : 0) + 1);
}

static void test_events_order_streams_of_two_devices(void **state)
{
    struct devset_config c = config(2);
    float got[64];

    (void)state;
    run_tour(&c, got);
    assert_tour(got);
}

static void test_delay_seeds_same_bits(void **state)
{
    struct devset_config c = config(2);
    float got[64];

    (void)state;
    for (c.delay_seed = 1; c.delay_seed <= 40; c.delay_seed++) {
        memset(got, 0, sizeof got);
        run_tour(&c, got);
        assert_tour(got);
    }
}

static void test_delays_repeat_and_are_short(void **state)
{
    struct devset_config c = config(2);
    float got[64];
    uint64_t total[3], sleeps = 0;

    (void)state;
    for (int i = 0; i < 3; i++) {
        uint64_t before = test_clock.total_ns;
        c.delay_seed = i < 2 ? 77 : 78;
        for (int j = 0; j < 10; j++)
            run_tour(&c, got);
        total[i] = test_clock.total_ns - before;
        sleeps = test_clock.n_sleeps;
    }
    assert_true(total[0] == total[1]);
    assert_true(total[0] != total[2]);
    assert_true(sleeps > 0 && sleeps < 30 * 10); /* not before every command: 11 of them in a tour */
    assert_true(test_clock.longest_ns <= 200000);
}

/* In its turn, and only these bytes; nothing where no seed is given. */
static void test_delay_seed_fills_what_is_discarded(void **state)
{
    struct devset_config c = config(1);

    (void)state;
    for (c.delay_seed = 0; c.delay_seed < 4; c.delay_seed++) {
        struct devset *ds = open_set(&c);
        float *dev = devset_address(ds, 0, 0);
        struct op_call relu = {.op = OP_act_fwd, .act_fwd = {dev, dev + 4, 2, ACT_RELU}};
        for (int i = 0; i < 6; i++)
            dev[i] = 1;
        assert_int_equal(devset_launch(ds, 0, &relu), 0);
        assert_int_equal(devset_discard(ds, 0, dev + 1, 2 * sizeof *dev), 0);
        assert_int_equal(devset_drain(ds), 0);
        for (int i = 0; i < 6; i++)
            assert_int_equal(dev[i] != dev[i], c.delay_seed != 0 && (i == 1 || i == 2));
        devset_close(ds);
    }
}

static void test_delay_seed_fills_arena(void **state)
{
    struct devset_config c = config(1);

    (void)state;
    c.delay_seed = 3;
    struct devset *ds = open_set(&c);
    const float *p = floats(ds, 0, 0);
    for (uint32_t i = 0; i < CAPACITY / sizeof *p; i++)
        if (p[i] == p[i])
            fail_msg("element %u is not NaN", i);
    devset_close(ds);
}

static void test_host_stream_runs_launches(void **state)
{
    struct devset_config c = config(2);
    struct devset *ds = open_set(&c);
    float y[8], b[8];

    (void)state;
    fill(y, 8, 1);
    fill(b, 8, 2);
    launch(ds, STREAM(2, 0), bias_call(y, b, 8));
    assert_int_equal(devset_drain(ds), 0);
    assert_true(y[0] == 3 && y[7] == 3);
    devset_close(ds);
}

/* ---- events, with a copy held unfinished ---- */

static void test_wait_blocks_until_record_has_run(void **state)
{
    struct devset *ds = open_holdable();
    struct event *e = new_event(ds), *other = new_event(ds);
    float *y = floats(ds, 1, 0), *b = floats(ds, 1, 256), *z = floats(ds, 0, 0);

    (void)state;
    fill(y, 8, 1);
    fill(b, 8, 2);
    fill(z, 8, 0);
    clock_hold(true);
    enqueue_held_copy(ds);
    record(ds, STREAM(0, LANE_PEER), e);
    wait_for(ds, STREAM(1, LANE_COMPUTE), e);
    launch(ds, STREAM(1, LANE_COMPUTE), bias_call(y, b, 8));

    /* Other streams go on. */
    launch(ds, STREAM(0, LANE_COMPUTE), relu_call(z, z, 8));
    record(ds, STREAM(0, LANE_COMPUTE), other);
    assert_int_equal(event_sync(ds, other), 0);
    clock_await_sleeps(1);
    let_others_run();
    assert_true(y[0] == 1);

    clock_hold(false);
    assert_int_equal(devset_drain(ds), 0);
    assert_true(y[0] == 3);
    event_destroy(ds, e);
    event_destroy(ds, other);
    devset_close(ds);
}

static void test_wait_never_recorded_passes(void **state)
{
    struct devset_config c = config(1);
    struct devset *ds = open_set(&c);
    struct event *e = new_event(ds);
    float *y = floats(ds, 0, 0);

    (void)state;
    fill(y, 8, -1);
    wait_for(ds, 0, e);
    launch(ds, 0, relu_call(y, y, 8));
    assert_int_equal(event_sync(ds, e), 0);
    assert_int_equal(devset_drain(ds), 0);
    assert_true(y[0] == 0);
    event_destroy(ds, e);
    devset_close(ds);
}

static void test_wait_before_record_passes(void **state)
{
    struct devset *ds = open_holdable();
    struct event *e = new_event(ds), *end = new_event(ds);
    float *y = floats(ds, 1, 0);

    (void)state;
    fill(y, 8, -1);
    clock_hold(true);
    wait_for(ds, STREAM(1, LANE_COMPUTE), e);
    enqueue_held_copy(ds);
    record(ds, STREAM(0, LANE_PEER), e);
    launch(ds, STREAM(1, LANE_COMPUTE), relu_call(y, y, 8));
    record(ds, STREAM(1, LANE_COMPUTE), end);
    assert_int_equal(event_sync(ds, end), 0); /* would never return if the wait took the later record */
    assert_true(y[0] == 0);
    clock_hold(false);
    assert_int_equal(devset_drain(ds), 0);
    event_destroy(ds, e);
    event_destroy(ds, end);
    devset_close(ds);
}

static void test_wait_keeps_its_record_when_recorded_again(void **state)
{
    struct devset *ds = open_holdable();
    struct event *e = new_event(ds), *end = new_event(ds);
    float *y = floats(ds, 1, 0), *z = floats(ds, 0, 0);

    (void)state;
    fill(y, 8, -1);
    fill(z, 8, -1);
    clock_hold(true);
    launch(ds, STREAM(0, LANE_COMPUTE), relu_call(z, z, 8));
    record(ds, STREAM(0, LANE_COMPUTE), e);
    wait_for(ds, STREAM(1, LANE_COMPUTE), e);
    enqueue_held_copy(ds);
    record(ds, STREAM(0, LANE_PEER), e); /* after the wait: must not hold it */
    launch(ds, STREAM(1, LANE_COMPUTE), relu_call(y, y, 8));
    record(ds, STREAM(1, LANE_COMPUTE), end);
    assert_int_equal(event_sync(ds, end), 0);
    assert_true(y[0] == 0);
    clock_hold(false);
    assert_int_equal(devset_drain(ds), 0);
    event_destroy(ds, e);
    event_destroy(ds, end);
    devset_close(ds);
}

/* The second record runs long before the first: the wait took the first, and a count of records run would let
 * it through. */
static void test_wait_not_released_by_later_record(void **state)
{
    struct devset *ds = open_holdable();
    struct event *e = new_event(ds);
    float *y = floats(ds, 1, 0), *z = floats(ds, 0, 0);

    (void)state;
    fill(y, 8, -1);
    fill(z, 8, -1);
    clock_hold(true);
    enqueue_held_copy(ds);
    record(ds, STREAM(0, LANE_PEER), e);
    wait_for(ds, STREAM(1, LANE_COMPUTE), e);
    launch(ds, STREAM(1, LANE_COMPUTE), relu_call(y, y, 8));
    launch(ds, STREAM(0, LANE_COMPUTE), relu_call(z, z, 8));
    record(ds, STREAM(0, LANE_COMPUTE), e);
    assert_int_equal(event_sync(ds, e), 0); /* the last record */
    assert_true(z[0] == 0);
    let_others_run();
    assert_true(y[0] == -1);
    clock_hold(false);
    assert_int_equal(devset_drain(ds), 0);
    assert_true(y[0] == 0);
    event_destroy(ds, e);
    devset_close(ds);
}

static atomic_bool released;

static void *release_clock(void *arg)
{
    (void)arg;
    clock_await_sleeps(1);
    let_others_run();
    atomic_store(&released, true);
    clock_hold(false);
    return NULL;
}

static void check_blocks_until_released(int (*block)(struct devset *ds, struct event *e))
{
    struct devset *ds = open_holdable();
    struct event *e = new_event(ds);
    pthread_t thread;

    atomic_store(&released, false);
    clock_hold(true);
    enqueue_held_copy(ds);
    record(ds, STREAM(0, LANE_PEER), e);
    assert_int_equal(pthread_create(&thread, NULL, release_clock, NULL), 0);
    assert_int_equal(block(ds, e), 0);
    assert_true(atomic_load(&released));
    pthread_join(thread, NULL);
    event_destroy(ds, e);
    devset_close(ds);
}

static int block_in_sync(struct devset *ds, struct event *e)
{
    return event_sync(ds, e);
}

static int block_in_drain(struct devset *ds, struct event *e)
{
    (void)e;
    return devset_drain(ds);
}

static void test_sync_blocks_until_record_has_run(void **state)
{
    (void)state;
    check_blocks_until_released(block_in_sync);
}

static void test_drain_blocks_until_streams_empty(void **state)
{
    (void)state;
    check_blocks_until_released(block_in_drain);
}

static void test_close_drains(void **state)
{
    enum { N = 200, BYTES = 1024 };
    static uint8_t out[N][BYTES];
    struct devset_config c = config(1);

    (void)state;
    memset(out, 0, sizeof out);
    c.delay_seed = 5;
    struct devset *ds = open_set(&c);
    memset(devset_address(ds, 0, 0), 7, BYTES);
    for (int i = 0; i < N; i++)
        copy(ds, STREAM(0, LANE_OUT), out[i], devset_address(ds, 0, 0), BYTES);
    devset_close(ds);
    for (int i = 0; i < N; i++)
        assert_true(out[i][0] == 7 && out[i][BYTES - 1] == 7);
}

/* ---- marks ---- */

static void test_mark_is_the_time_when_the_stream_gets_there(void **state)
{
    enum { PACE_NS = 256000 }; /* of the held copy */
    struct devset *ds = open_holdable();
    struct event *copied = new_event(ds), *other = new_event(ds);
    uint64_t before = 0, after = 0, meanwhile = 0, behind = 0;

    (void)state;
    clock_tick(1); /* no two looks at the clock see the same */
    clock_hold(true);
    mark(ds, STREAM(0, LANE_PEER), &before);
    enqueue_held_copy(ds);
    mark(ds, STREAM(0, LANE_PEER), &after);
    record(ds, STREAM(0, LANE_PEER), copied);
    wait_for(ds, STREAM(1, LANE_COMPUTE), copied);
    mark(ds, STREAM(1, LANE_COMPUTE), &behind);

    clock_await_sleeps(1);
    mark(ds, STREAM(2, 0), &meanwhile); /* the host's stream */
    record(ds, STREAM(2, 0), other);
    assert_int_equal(event_sync(ds, other), 0);
    let_others_run();
    assert_true(before < meanwhile);
    assert_true(after == 0 && behind == 0);

    clock_hold(false);
    assert_int_equal(event_sync(ds, copied), 0);
    assert_true(after > meanwhile && after >= before + PACE_NS);
    assert_int_equal(devset_drain(ds), 0);
    assert_true(behind > after);
    event_destroy(ds, copied);
    event_destroy(ds, other);
    devset_close(ds);
}

/* Round and round through all streams, more marks than a queue has room for. */
static void test_marks_are_ordered_as_streams_and_events_are(void **state)
{
    enum { STREAMS = 9, ROUNDS = 100 };
    static uint64_t at[STREAMS * ROUNDS], alone[2 * STREAM_QUEUE];

    (void)state;
    clock_tick(1);
    for (uint64_t seed = 0; seed < 3; seed++) {
        struct devset_config c = config(2);
        c.delay_seed = seed;
        struct devset *ds = open_set(&c);
        struct event *e = new_event(ds);
        memset(at, 0, sizeof at);
        for (uint32_t i = 0; i < STREAMS * ROUNDS; i++) {
            wait_for(ds, i % STREAMS, e);
            mark(ds, i % STREAMS, &at[i]);
            record(ds, i % STREAMS, e);
        }
        assert_int_equal(event_sync(ds, e), 0);
        for (uint32_t i = 1; i < STREAMS * ROUNDS; i++)
            assert_true(at[i - 1] < at[i]);
        for (uint32_t i = 0; i < 2 * STREAM_QUEUE; i++)
            mark(ds, 0, &alone[i]);
        assert_int_equal(devset_drain(ds), 0);
        for (uint32_t i = 1; i < 2 * STREAM_QUEUE; i++)
            assert_true(alone[i - 1] < alone[i]);
        event_destroy(ds, e);
        devset_close(ds);
    }
}

static void test_mark_in_the_wrong_place_refused(void **state)
{
    struct devset_config c = config(2);
    struct devset *ds = open_set(&c);
    uint64_t at = 7, *inside = devset_address(ds, 1, CAPACITY - sizeof at);

    (void)state;
    *inside = 7;
    assert_int_equal(devset_mark(ds, STREAM(2, 1), &at), -EINVAL);
    assert_int_equal(devset_mark(ds, UINT32_MAX, &at), -EINVAL);
    assert_int_equal(devset_mark(ds, 0, NULL), -EINVAL);
    assert_int_equal(devset_mark(ds, 0, inside), -EFAULT);
    assert_int_equal(devset_mark(ds, 0, devset_address(ds, 0, 0)), -EFAULT);
    assert_int_equal(devset_drain(ds), 0);
    assert_true(at == 7 && *inside == 7);
    devset_close(ds);
}

/* ---- full queues ---- */

struct pusher {
    struct devset *ds;
    uint32_t n;
    atomic_uint pushed;
    int error;
};

static void *push_many(void *arg)
{
    struct pusher *p = arg;
    float *y = floats(p->ds, 1, 0), *b = floats(p->ds, 1, 256);
    struct op_call call = bias_call(y, b, 8);

    for (uint32_t i = 0; i < p->n && p->error == 0; i++) {
        p->error = devset_launch(p->ds, STREAM(1, LANE_COMPUTE), &call);
        atomic_fetch_add(&p->pushed, 1);
    }
    return NULL;
}

static void test_full_queue_blocks_then_goes_on(void **state)
{
    struct devset *ds = open_holdable();
    struct event *e = new_event(ds);
    struct pusher p = {.ds = ds, .n = 3 * STREAM_QUEUE};
    float *y = floats(ds, 1, 0);
    pthread_t thread;

    (void)state;
    fill(y, 8, 0);
    fill(floats(ds, 1, 256), 8, 1);
    clock_hold(true);
    enqueue_held_copy(ds);
    record(ds, STREAM(0, LANE_PEER), e);
    wait_for(ds, STREAM(1, LANE_COMPUTE), e); /* one slot: everything behind it stays in the queue */
    assert_int_equal(pthread_create(&thread, NULL, push_many, &p), 0); /* now the enqueueing thread */
    while (atomic_load(&p.pushed) < STREAM_QUEUE - 1)
        sched_yield();
    let_others_run();
    assert_int_equal(atomic_load(&p.pushed), STREAM_QUEUE - 1);
    clock_hold(false);
    pthread_join(thread, NULL);
    assert_int_equal(p.error, 0);
    assert_int_equal(devset_drain(ds), 0);
    assert_true(y[0] == (float)p.n && y[7] == (float)p.n);
    event_destroy(ds, e);
    devset_close(ds);
}

/* Enqueues far more commands than a queue holds, while each stream waits for another stream in every
 * round. */
static void test_full_queues_with_waits_do_not_deadlock(void **state)
{
    enum { TURNS = 3000, N = 8 };
    struct devset_config c = config(2);
    struct devset *ds = open_set(&c);
    const uint32_t streams[] = {STREAM(0, LANE_COMPUTE), STREAM(1, LANE_COMPUTE), STREAM(2, 0)};
    struct event *e = new_event(ds);
    float y[N], one[N];

    (void)state;
    fill(y, N, 0);
    fill(one, N, 1);
    for (int i = 0; i < TURNS; i++) {
        for (int s = 0; s < 3; s++) {
            wait_for(ds, streams[s], e);
            launch(ds, streams[s], bias_call(y, one, N));
            record(ds, streams[s], e);
        }
        if (i % 2) /* a run of launches that only one stream has */
            continue;
        for (int k = 0; k < 3; k++)
            launch(ds, streams[2], bias_call(y, one, N));
        record(ds, streams[2], e);
    }
    assert_int_equal(devset_drain(ds), 0);
    assert_true(y[0] == 3 * TURNS + 3 * TURNS / 2);
    event_destroy(ds, e);
    devset_close(ds);
}

/* ---- capacity ---- */

static void test_copy_out_of_range_refused(void **state)
{
    struct devset_config c = config(2);
    struct devset *ds = open_set(&c);
    uint8_t *d0 = devset_address(ds, 0, 0), *d1 = devset_address(ds, 1, 0);
    uint8_t *host = calloc(1, CAPACITY + 512);
    const uint32_t in = STREAM(0, LANE_IN), out = STREAM(0, LANE_OUT), peer = STREAM(0, LANE_PEER);
    struct device_counters n;

    (void)state;
    assert_non_null(host);
    assert_int_equal(devset_copy(ds, in, d0 + CAPACITY - 256, host, 257), -EFAULT);
    assert_int_equal(devset_copy(ds, in, d0 + CAPACITY, host, 1), -EFAULT);
    assert_int_equal(devset_copy(ds, in, d0 - 1, host, 2), -EFAULT);
    assert_int_equal(devset_copy(ds, in, d0, host, CAPACITY + 1), -EFAULT);
    assert_int_equal(devset_copy(ds, in, d0 + 256, host, UINT64_MAX - 128), -EFAULT);
    assert_int_equal(devset_copy(ds, in, d1, host, 256), -EFAULT); /* another device's */
    assert_int_equal(devset_copy(ds, in, host, d0, 256), -EFAULT); /* wrong way round */
    assert_int_equal(devset_copy(ds, out, host, d0 + CAPACITY - 256, 257), -EFAULT);
    assert_int_equal(devset_copy(ds, out, host, host + 256, 16), -EFAULT);
    assert_int_equal(devset_copy(ds, peer, host, d0, 256), -EFAULT);
    assert_int_equal(devset_copy(ds, peer, d1, host, 256), -EFAULT);
    assert_int_equal(devset_copy(ds, peer, d0, d1, 256), -EFAULT); /* the sender's stream copies */
    assert_int_equal(devset_copy(ds, peer, d1 + CAPACITY - 128, d0, 256), -EFAULT);
    assert_int_equal(devset_copy(ds, peer, d0 + CAPACITY - 128, d0, 256), -EFAULT);
    assert_int_equal(devset_copy(ds, peer, d0 + 255, d0, 256), -EINVAL); /* onto itself */
    assert_int_equal(devset_copy(ds, peer, d0, d0 + 255, 256), -EINVAL);
    assert_int_equal(devset_copy(ds, peer, d0, d0, 1), -EINVAL);
    assert_int_equal(devset_drain(ds), 0);
    devset_counters(ds, 0, &n);
    assert_true(n.in_bytes == 0 && n.out_bytes == 0 && n.peer_bytes == 0);

    copy(ds, in, d0, host, CAPACITY); /* all of it is in range */
    copy(ds, in, d0 + CAPACITY, host, 0);
    copy(ds, in, d0 + CAPACITY - 1, host, 1);
    assert_int_equal(devset_drain(ds), 0);
    devset_close(ds);
    free(host);
}

static void test_wrong_numbers_refused(void **state)
{
    struct devset_config c = config(2);
    struct devset *ds = open_set(&c);
    struct event *e = new_event(ds);
    float *y = floats(ds, 0, 0), host[8];
    struct op_call call = relu_call(y, y, 8);
    const uint32_t unknown[] = {STREAM(2, 1), STREAM(3, 0), UINT32_MAX};

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(devset_launch(ds, unknown[i], &call), -EINVAL);
        assert_int_equal(devset_copy(ds, unknown[i], y, host, sizeof host), -EINVAL);
        assert_int_equal(event_record(ds, unknown[i], e), -EINVAL);
        assert_int_equal(event_wait(ds, unknown[i], e), -EINVAL);
    }
    assert_int_equal(devset_copy(ds, STREAM(0, LANE_COMPUTE), y, host, sizeof host), -EINVAL);
    assert_int_equal(devset_copy(ds, STREAM(2, 0), y, host, sizeof host), -EINVAL);
    call.op = OP_COUNT;
    assert_int_equal(devset_launch(ds, 0, &call), -EINVAL);
    call.op = (enum op) - 1;
    assert_int_equal(devset_launch(ds, 0, &call), -EINVAL);
    event_destroy(ds, e);
    devset_close(ds);
}

/* The signal that ends a child running fn, or 0. */
static int signal_of(void (*fn)(void))
{
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        signal(SIGSEGV, SIG_DFL); /* the frameworks' handlers would turn it into something else */
        signal(SIGBUS, SIG_DFL);
        fn();
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

#define ODD_CAPACITY (CAPACITY + 3 * DEVICE_ALIGN) /* not whole pages: a slack in front */

static struct devset *open_odd(uint64_t capacity)
{
    struct devset_config c = config(1);

    c.capacity_bytes[0] = capacity;
    return open_set(&c);
}

static void write_past(uint64_t capacity)
{
    struct devset *ds = open_odd(capacity);
    volatile uint8_t *p = devset_address(ds, 0, capacity);

    *p = 1;
}

static void write_past_pages(void)
{
    write_past(CAPACITY);
}

static void write_past_odd(void)
{
    write_past(ODD_CAPACITY);
}

static void read_past_odd(void)
{
    struct devset *ds = open_odd(ODD_CAPACITY);
    volatile uint8_t *p = devset_address(ds, 0, ODD_CAPACITY);

    _exit(*p);
}

static void write_before_pages(void)
{
    struct devset *ds = open_odd(CAPACITY);
    volatile uint8_t *p = devset_address(ds, 0, 0);

    p[-1] = 1;
}

static void write_last_odd(void)
{
    struct devset *ds = open_odd(ODD_CAPACITY);
    volatile uint8_t *p = devset_address(ds, 0, ODD_CAPACITY);

    p[-1] = 1;
}

static void launch_past_odd(void)
{
    struct devset *ds = open_odd(ODD_CAPACITY);
    float *y = floats(ds, 0, ODD_CAPACITY - 64);

    launch(ds, 0, relu_call(y, y, 17));
    devset_drain(ds);
}

static void test_capacity_guarded_by_fault(void **state)
{
    (void)state;
    assert_int_equal(signal_of(write_past_pages), SIGSEGV);
    assert_int_equal(signal_of(write_past_odd), SIGSEGV);
    assert_int_equal(signal_of(read_past_odd), SIGSEGV);
    assert_int_equal(signal_of(launch_past_odd), SIGSEGV);
    assert_int_equal(signal_of(write_before_pages), SIGSEGV);
    assert_int_equal(signal_of(write_last_odd), 0);
}

static void test_arena_aligned(void **state)
{
    (void)state;
    for (uint64_t extra = 0; extra <= 4096; extra += DEVICE_ALIGN) {
        struct devset *ds = open_odd(CAPACITY + extra);
        assert_true((uintptr_t)devset_address(ds, 0, 0) % DEVICE_ALIGN == 0);
        assert_ptr_equal(devset_address(ds, 0, CAPACITY + extra),
                         (uint8_t *)devset_address(ds, 0, 0) + CAPACITY + extra);
        assert_int_equal(devset_drain(ds), 0);
        devset_close(ds);
    }
}

/* Closes the devset while stderr goes to a file, and returns in `said` what was printed. */
static void close_and_listen(struct devset *ds, char *said, size_t size)
{
    FILE *f = tmpfile();
    int saved = dup(STDERR_FILENO);

    assert_non_null(f);
    fflush(stderr);
    dup2(fileno(f), STDERR_FILENO);
    devset_close(ds);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(f);
    said[fread(said, 1, size - 1, f)] = '\0';
    fclose(f);
}

static void test_damage_in_front_of_arena_found(void **state)
{
    struct devset *ds = open_odd(ODD_CAPACITY);
    volatile uint8_t *p = devset_address(ds, 0, 0);
    char said[512];

    (void)state;
    p[-1] ^= 1;
    assert_int_equal(devset_drain(ds), -EFAULT);
    assert_int_equal(devset_drain(ds), -EFAULT);
    close_and_listen(ds, said, sizeof said);
    assert_non_null(strstr(said, "device 0"));

    ds = open_odd(ODD_CAPACITY);
    close_and_listen(ds, said, sizeof said);
    assert_string_equal(said, "");
}

/* ---- copies, counters, pace ---- */

static void test_copy_any_size_and_alignment(void **state)
{
    static const uint64_t sizes[] = {
        0, 1, 15, 64, 1000, 65536, 262143, 262144, 262145, 300001, 16384 * 20 + 63, 1 << 20};
    const uint64_t room = (1 << 20) + 256;
    uint8_t *src = malloc(room), *dst = malloc(room);
    struct pool *pool;

    (void)state;
    assert_true(src && dst);
    assert_int_equal(pool_create(2, &pool), 0);
    for (uint64_t i = 0; i < room; i++)
        src[i] = (uint8_t)(i * 2654435761u >> 13);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (unsigned at = 0; at < 130; at += 13) {
            unsigned from = at * 7 % 128;
            for (int pieces = 0; pieces < 2; pieces++) {
                memset(dst, 0xEE, room);
                if (pieces)
                    cpu_copy_pieces(dst + at, src + from, sizes[i], pool);
                else
                    cpu_copy(dst + at, src + from, sizes[i]);
                assert_memory_equal(dst + at, src + from, sizes[i]);
                for (unsigned k = 0; k < at; k++)
                    assert_int_equal(dst[k], 0xEE);
                assert_int_equal(dst[at + sizes[i]], 0xEE);
            }
        }
    }
    pool_destroy(pool);
    free(src);
    free(dst);
}

static void test_counters_exact(void **state)
{
    enum { COPIES = 3000, MOST = 300000 };
    struct devset_config c = config(2);
    struct devset *ds = open_set(&c);
    uint8_t *host = calloc(2, MOST);
    uint64_t expect[2][LANE_COUNT] = {{0}};
    struct rng rng = {.seed = 9};
    struct device_counters n;

    (void)state;
    assert_non_null(host);
    for (int i = 0; i < COPIES; i++) {
        uint32_t d = rng_below(&rng, 2), lane = 1 + rng_below(&rng, 3);
        uint64_t bytes = rng_below(&rng, i % 50 ? 3000 : MOST);
        /* Every stream has a region of its own to read and one to write: no waits are needed. */
        uint8_t *own = devset_address(ds, d, 0), *far = devset_address(ds, 1 - d, MOST + 256);
        if (lane == LANE_IN)
            copy(ds, STREAM(d, lane), devset_address(ds, d, 2 * (MOST + 256)), host, bytes);
        else if (lane == LANE_OUT)
            copy(ds, STREAM(d, lane), host + MOST, own, d ? 0 : bytes);
        else
            copy(ds, STREAM(d, lane), far, own, bytes);
        expect[d][lane] += lane == LANE_OUT && d ? 0 : bytes;
        if (i % 100 == 0)
            devset_counters(ds, d, &n); /* while streams run */
    }
    assert_int_equal(devset_drain(ds), 0);
    for (uint32_t d = 0; d < 2; d++) {
        devset_counters(ds, d, &n);
        assert_true(n.in_bytes == expect[d][LANE_IN]);
        assert_true(n.out_bytes == expect[d][LANE_OUT]);
        assert_true(n.peer_bytes == expect[d][LANE_PEER]);
        assert_true(n.compute_busy_ns == 0 && n.compute_wait_ns == 0);
    }
    devset_close(ds);
    free(host);
}

/* Copies inside a device arrive in the order of the peer lane. They do not count as traffic of any link, and
 * they do not wait for the pace of a link. */
static void test_copy_inside_a_device_goes_over_no_link(void **state)
{
    struct devset_config c = config(2);
    struct device_counters n;

    (void)state;
    c.peer_bytes_per_s = 1;
    struct devset *ds = open_set(&c);
    const uint32_t peer = STREAM(1, LANE_PEER);
    fill(floats(ds, 1, 0), 64, 7);
    fill(floats(ds, 1, 512), 64, 9);
    copy(ds, peer, floats(ds, 1, 256), floats(ds, 1, 0), 256); /* neighbours do not overlap */
    copy(ds, peer, floats(ds, 1, 0), floats(ds, 1, 512), 256);
    copy(ds, peer, floats(ds, 1, 512), floats(ds, 1, 256), 256);
    copy(ds, peer, floats(ds, 1, CAPACITY - 256), floats(ds, 1, 0), 256);
    copy(ds, peer, floats(ds, 1, 0), floats(ds, 1, 0), 0);
    assert_int_equal(devset_drain(ds), 0);
    assert_true(floats(ds, 1, 0)[63] == 9 && floats(ds, 1, 512)[63] == 7);
    assert_true(floats(ds, 1, CAPACITY - 256)[63] == 9);
    assert_int_equal(test_clock.n_sleeps, 0);
    for (uint32_t d = 0; d < 2; d++) {
        devset_counters(ds, d, &n);
        assert_true(n.in_bytes == 0 && n.out_bytes == 0 && n.peer_bytes == 0);
    }
    devset_close(ds);
}

/* Every read of the clock advances it by 1 ns. Only one stream at a time reads it, so each launch and wait
 * takes 1 ns. */
static void test_compute_time_counted(void **state)
{
    struct devset_config c = config(2);
    struct devset *ds = open_set(&c);
    struct event *e = new_event(ds);
    float *y = floats(ds, 0, 0);
    struct device_counters n;

    (void)state;
    fill(y, 8, 0);
    clock_tick(1);
    for (int i = 0; i < 10; i++)
        launch(ds, STREAM(0, LANE_COMPUTE), relu_call(y, y, 8));
    assert_int_equal(devset_drain(ds), 0);
    copy(ds, STREAM(0, LANE_IN), y, y, 0);
    record(ds, STREAM(0, LANE_IN), e);
    for (int i = 0; i < 7; i++)
        wait_for(ds, STREAM(0, LANE_COMPUTE), e);
    assert_int_equal(devset_drain(ds), 0);
    devset_counters(ds, 0, &n);
    assert_int_equal(n.compute_busy_ns, 10);
    assert_int_equal(n.compute_wait_ns, 7);
    devset_counters(ds, 1, &n);
    assert_true(n.compute_busy_ns == 0 && n.compute_wait_ns == 0);
    event_destroy(ds, e);
    devset_close(ds);
}

/* The sleep that one copy asks for. */
static uint64_t pause_of(struct devset *ds, enum lane lane, uint64_t bytes)
{
    static uint8_t host[8192];
    uint64_t before = test_clock.total_ns;
    void *near = devset_address(ds, 0, 0), *far = devset_address(ds, 1, 0);

    copy(ds, STREAM(0, lane),
         lane == LANE_IN    ? near
         : lane == LANE_OUT ? host
                            : far,
         lane == LANE_IN ? host : near, bytes);
    assert_int_equal(devset_drain(ds), 0);
    return test_clock.total_ns - before;
}

static void test_pace_asks_for_the_rest_of_the_time(void **state)
{
    struct devset_config c = config(2);

    (void)state;
    c.link_bytes_per_s = 1000000;
    c.peer_bytes_per_s = 3;
    struct devset *ds = open_set(&c);
    memset(devset_address(ds, 0, 0), 0, 8192);
    assert_true(pause_of(ds, LANE_IN, 2560) == 2560000);
    assert_true(pause_of(ds, LANE_OUT, 8000) == 8000000);
    assert_true(pause_of(ds, LANE_PEER, 1) == 333333334); /* rounded up */
    assert_true(pause_of(ds, LANE_IN, 0) == 0);

    clock_tick(1000000); /* now a copy takes 1 ms by itself */
    assert_true(pause_of(ds, LANE_IN, 2560) == 1560000);
    assert_true(pause_of(ds, LANE_IN, 1000) == 0);
    assert_true(pause_of(ds, LANE_IN, 10) == 0);
    devset_close(ds);
}

static void test_unpaced_copies_do_not_sleep(void **state)
{
    struct devset_config c = config(2);
    struct devset *ds = open_set(&c);

    (void)state;
    memset(devset_address(ds, 0, 0), 0, 8192);
    assert_true(pause_of(ds, LANE_IN, 8192) == 0);
    assert_true(pause_of(ds, LANE_OUT, 8192) == 0);
    assert_true(pause_of(ds, LANE_PEER, 8192) == 0);
    assert_int_equal(test_clock.n_sleeps, 0);
    devset_close(ds);
}

#define CLOCKED(test) cmocka_unit_test_setup_teardown(test, setup_clock, teardown_clock)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arena_aligned),
        cmocka_unit_test(test_capacity_guarded_by_fault),
        cmocka_unit_test(test_close_drains),
        CLOCKED(test_compute_time_counted),
        cmocka_unit_test(test_copy_any_size_and_alignment),
        CLOCKED(test_copy_inside_a_device_goes_over_no_link),
        cmocka_unit_test(test_copy_out_of_range_refused),
        cmocka_unit_test(test_counters_exact),
        cmocka_unit_test(test_damage_in_front_of_arena_found),
        cmocka_unit_test(test_delay_seed_fills_arena),
        cmocka_unit_test(test_delay_seed_fills_what_is_discarded),
        cmocka_unit_test(test_delay_seeds_same_bits),
        CLOCKED(test_delays_repeat_and_are_short),
        CLOCKED(test_drain_blocks_until_streams_empty),
        cmocka_unit_test(test_events_order_streams_of_two_devices),
        CLOCKED(test_full_queue_blocks_then_goes_on),
        cmocka_unit_test(test_full_queues_with_waits_do_not_deadlock),
        cmocka_unit_test(test_host_memory_zeroed_or_refused),
        cmocka_unit_test(test_host_stream_runs_launches),
        cmocka_unit_test(test_mark_in_the_wrong_place_refused),
        CLOCKED(test_mark_is_the_time_when_the_stream_gets_there),
        CLOCKED(test_marks_are_ordered_as_streams_and_events_are),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_probe_finds_virtual_devices_or_says_why_not),
        cmocka_unit_test(test_null_is_taken),
        cmocka_unit_test(test_open_bad_config_refused),
        cmocka_unit_test(test_open_most_devices),
        cmocka_unit_test(test_open_unknown_backend_lists_known),
        cmocka_unit_test(test_open_without_memory_says_which_device),
        CLOCKED(test_pace_asks_for_the_rest_of_the_time),
        cmocka_unit_test(test_stream_runs_in_order),
        CLOCKED(test_sync_blocks_until_record_has_run),
        CLOCKED(test_unpaced_copies_do_not_sleep),
        CLOCKED(test_wait_before_record_passes),
        CLOCKED(test_wait_blocks_until_record_has_run),
        CLOCKED(test_wait_keeps_its_record_when_recorded_again),
        cmocka_unit_test(test_wait_never_recorded_passes),
        CLOCKED(test_wait_not_released_by_later_record),
        cmocka_unit_test(test_wrong_numbers_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
