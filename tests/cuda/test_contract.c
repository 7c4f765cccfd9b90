/* Tests the contract of device.h on every backend that can be opened on this machine: order, events, marks,
 * discards, capacity, counters, host memory, release. The tests use nothing but device.h.
 * tests/unit/test_device.c tests the cpu backend in more detail, because there a test can control the clock
 * and read the memory of a device.
 *
 * Under the simulator, a seed decides the order in which independent streams run, so each run tests another
 * interleaving. The cpu backend gets a delay_seed for the same purpose. Everything happens in the main
 * thread.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/rig.h"

#define N 64

static uint64_t seed; /* of the cpu backend's delays, and of copies */

static struct devset *open_two(const char *backend)
{
    struct devset_config c = rig_config(backend, 2);

    c.delay_seed = seed;
    return rig_open(&c);
}

static void assert_all(const float *p, uint32_t n, float value)
{
    for (uint32_t i = 0; i < n; i++)
        if (p[i] != value)
            fail_msg("element %u is %g, want %g", i, (double)p[i], (double)value);
}

static void set_all(float *p, uint32_t n, float value)
{
    for (uint32_t i = 0; i < n; i++)
        p[i] = value;
}

/* ---- names ---- */

static void test_names(const char *backend)
{
    struct devset *ds = open_two(backend);

    assert_string_equal(devset_backend(ds), backend);
    assert_int_equal(strncmp(devset_numerics(ds), backend, strlen(backend)), 0);
    assert_true((uintptr_t)devset_address(ds, 1, 0) % DEVICE_ALIGN == 0);
    assert_ptr_equal(devset_address(ds, 1, 512), (char *)devset_address(ds, 1, 0) + 512);
    event_destroy(ds, NULL);
    devset_host_free(ds, NULL, 0);
    devset_close(ds);
}

/* ---- order ---- */

/* Repeats y = relu(y + b[i]). Any other order of the launches gives other numbers. */
static void test_stream_runs_in_order(const char *backend)
{
    enum { STEPS = 100 };
    struct devset *ds = open_two(backend);
    struct event *e = rig_event(ds);
    float *host = rig_floats(ds, N * (STEPS + 1)), *dev = devset_address(ds, 0, 0), expect = 0;

    for (int i = 0; i < STEPS; i++)
        set_all(host + N * (i + 1), N, (float)(i * 7919 % 101 - 50));
    rig_copy(ds, STREAM(0, LANE_IN), dev, host, N * (STEPS + 1) * sizeof *dev);
    rig_order(ds, STREAM(0, LANE_IN), STREAM(0, LANE_COMPUTE), e);
    for (int i = 0; i < STEPS; i++) {
        struct op_call add = rig_add(dev, dev + N * (i + 1), N), relu = rig_relu(dev, N);
        rig_launch(ds, STREAM(0, LANE_COMPUTE), &add);
        rig_launch(ds, STREAM(0, LANE_COMPUTE), &relu);
        expect += host[N * (i + 1)];
        expect = expect > 0 ? expect : 0;
    }
    rig_order(ds, STREAM(0, LANE_COMPUTE), STREAM(0, LANE_OUT), e);
    rig_copy(ds, STREAM(0, LANE_OUT), host, dev, N * sizeof *dev);
    rig_drain(ds);
    assert_all(host, N, expect);
    rig_free(ds, host, N * (STEPS + 1));
    event_destroy(ds, e);
    devset_close(ds);
}

/* Host stream -> device 0 -> peer -> device 1 -> host stream, round after round, by events alone; each round
 * adds 1 three times. One event for everything: recorded again and again, on streams of both devices. */
static void test_events_order_all_streams(const char *backend)
{
    enum { ROUNDS = 12 };
    struct devset *ds = open_two(backend);
    struct event *e = rig_event(ds);
    float *y = rig_floats(ds, N), *one = rig_floats(ds, N);
    float *d0 = devset_address(ds, 0, 0), *one0 = devset_address(ds, 0, 4096);
    float *d1 = devset_address(ds, 1, 8192), *one1 = devset_address(ds, 1, 0);
    const uint32_t host = STREAM(2, 0);
    struct op_call on_host = rig_add(y, one, N), on0 = rig_add(d0, one0, N), on1 = rig_add(d1, one1, N);

    set_all(one, N, 1);
    rig_copy(ds, STREAM(0, LANE_IN), one0, one, N * sizeof *one);
    rig_copy(ds, STREAM(1, LANE_IN), one1, one, N * sizeof *one);
    rig_order(ds, STREAM(1, LANE_IN), STREAM(1, LANE_COMPUTE), e);
    for (int i = 0; i < ROUNDS; i++) {
        rig_launch(ds, host, &on_host);
        rig_order(ds, host, STREAM(0, LANE_IN), e);
        rig_copy(ds, STREAM(0, LANE_IN), d0, y, N * sizeof *y);
        rig_order(ds, STREAM(0, LANE_IN), STREAM(0, LANE_COMPUTE), e);
        rig_launch(ds, STREAM(0, LANE_COMPUTE), &on0);
        rig_order(ds, STREAM(0, LANE_COMPUTE), STREAM(0, LANE_PEER), e);
        rig_copy(ds, STREAM(0, LANE_PEER), d1, d0, N * sizeof *y);
        rig_order(ds, STREAM(0, LANE_PEER), STREAM(1, LANE_COMPUTE), e);
        rig_launch(ds, STREAM(1, LANE_COMPUTE), &on1);
        rig_order(ds, STREAM(1, LANE_COMPUTE), STREAM(1, LANE_OUT), e);
        rig_copy(ds, STREAM(1, LANE_OUT), y, d1, N * sizeof *y);
        rig_order(ds, STREAM(1, LANE_OUT), host, e);
    }
    assert_int_equal(event_sync(ds, e), 0);
    assert_all(y, N, 3 * ROUNDS);
    rig_drain(ds);
    rig_free(ds, y, N);
    rig_free(ds, one, N);
    event_destroy(ds, e);
    devset_close(ds);
}

static void test_wait_takes_the_record_before_it(const char *backend)
{
    struct devset *ds = open_two(backend);
    struct event *e = rig_event(ds), *never = rig_event(ds);
    float *host = rig_floats(ds, 2 * N), *a = devset_address(ds, 0, 0), *b = devset_address(ds, 1, 0);

    set_all(host, N, 5);
    rig_wait(ds, STREAM(1, LANE_OUT), never); /* never recorded: passes */
    assert_int_equal(event_sync(ds, never), 0);
    rig_copy(ds, STREAM(0, LANE_IN), a, host, N * sizeof *a);
    rig_record(ds, STREAM(0, LANE_IN), e);
    rig_wait(ds, STREAM(0, LANE_PEER), e);
    rig_record(ds, STREAM(1, LANE_COMPUTE), e); /* after the wait: must not take its place */
    rig_copy(ds, STREAM(0, LANE_PEER), b, a, N * sizeof *a);
    rig_order(ds, STREAM(0, LANE_PEER), STREAM(1, LANE_OUT), e);
    rig_copy(ds, STREAM(1, LANE_OUT), host + N, b, N * sizeof *b);
    rig_drain(ds);
    assert_all(host + N, N, 5);
    rig_free(ds, host, 2 * N);
    event_destroy(ds, e);
    event_destroy(ds, never);
    devset_close(ds);
}

/* Enqueues more calls than any queue holds. No two calls are the same, and at every third call one stream
 * waits for another. */
static void test_full_queues_go_on(const char *backend)
{
    enum { TURNS = 700 };
    struct devset *ds = open_two(backend);
    struct event *e = rig_event(ds);
    const uint32_t host = STREAM(2, 0), out = STREAM(0, LANE_OUT);
    float *y = rig_floats(ds, N), *b = rig_floats(ds, N * TURNS), *dev = devset_address(ds, 0, 0), sum = 0;

    for (int i = 0; i < TURNS; i++) {
        set_all(b + N * i, N, (float)i);
        sum += (float)i;
    }
    for (int i = 0; i < TURNS; i++) {
        const struct op_call add = rig_add(y, b + N * i, N);
        rig_launch(ds, host, &add);
        if (i % 3)
            continue;
        rig_order(ds, host, STREAM(0, LANE_IN), e);
        rig_copy(ds, STREAM(0, LANE_IN), dev, y, N * sizeof *y);
        rig_order(ds, STREAM(0, LANE_IN), out, e);
        rig_copy(ds, out, y, dev, N * sizeof *y);
        rig_order(ds, out, host, e);
    }
    rig_drain(ds);
    assert_all(y, N, sum);
    rig_free(ds, y, N);
    rig_free(ds, b, N * TURNS);
    event_destroy(ds, e);
    devset_close(ds);
}

static void test_close_drains(const char *backend)
{
    enum { COPIES = 50 };
    struct devset *ds = open_two(backend);
    float *host = rig_floats(ds, N), *dev = devset_address(ds, 0, 0);
    uint64_t at[COPIES] = {0};

    for (int i = 0; i < COPIES; i++) {
        rig_copy(ds, STREAM(0, LANE_IN), dev, host, N * sizeof *dev);
        assert_int_equal(devset_mark(ds, STREAM(0, LANE_IN), &at[i]), 0);
    }
    devset_drain(ds);
    rig_free(ds, host, N);
    devset_close(ds);
    for (int i = 0; i < COPIES; i++)
        assert_true(at[i] > 0 && (i == 0 || at[i] >= at[i - 1]));
}

/* ---- marks ---- */

static void test_marks_are_ordered_as_streams_and_events_are(const char *backend)
{
    enum { STREAMS = 9, ROUNDS = 20 };
    struct devset *ds = open_two(backend);
    struct event *e = rig_event(ds);
    uint64_t at[STREAMS * ROUNDS] = {0}, inside = 0;

    for (uint32_t i = 0; i < STREAMS * ROUNDS; i++) {
        rig_wait(ds, i % STREAMS, e);
        assert_int_equal(devset_mark(ds, i % STREAMS, &at[i]), 0);
        rig_record(ds, i % STREAMS, e);
    }
    assert_int_equal(event_sync(ds, e), 0);
    assert_true(at[0] > 0);
    for (uint32_t i = 1; i < STREAMS * ROUNDS; i++)
        assert_true(at[i - 1] <= at[i]);
    assert_int_equal(devset_mark(ds, STREAM(2, 1), &inside), -EINVAL);
    assert_int_equal(devset_mark(ds, 0, NULL), -EINVAL);
    assert_int_equal(devset_mark(ds, 0, devset_address(ds, 0, 0)), -EFAULT);
    rig_drain(ds);
    event_destroy(ds, e);
    devset_close(ds);
}

/* ---- discards ---- */

/* A discard must not change the bytes before and behind its range. Bytes that another stream writes after the
 * discard must stay. */
static void test_discard_ends_what_was_there_before(const char *backend)
{
    struct devset *ds = open_two(backend);
    struct event *e = rig_event(ds);
    float *host = rig_floats(ds, 4 * N), *dev = devset_address(ds, 0, 0);

    set_all(host, 4 * N, 5);
    rig_copy(ds, STREAM(0, LANE_IN), dev, host, 4 * N * sizeof *dev);
    for (uint32_t lane = 0; lane < LANE_COUNT; lane++) {
        const struct op_call relu = rig_relu(dev + 2 * N, N);
        rig_order(ds, STREAM(0, LANE_IN), STREAM(0, lane), e);
        assert_int_equal(devset_discard(ds, STREAM(0, lane), dev + N, 2 * N * sizeof *dev), 0);
        rig_order(ds, STREAM(0, lane), STREAM(0, LANE_IN), e);
        rig_copy(ds, STREAM(0, LANE_IN), dev + 2 * N, host, N * sizeof *dev);
        rig_order(ds, STREAM(0, LANE_IN), STREAM(0, LANE_COMPUTE), e);
        rig_launch(ds, STREAM(0, LANE_COMPUTE), &relu);
        rig_order(ds, STREAM(0, LANE_COMPUTE), STREAM(0, LANE_IN), e);
    }
    rig_order(ds, STREAM(0, LANE_IN), STREAM(0, LANE_OUT), e);
    rig_copy(ds, STREAM(0, LANE_OUT), host, dev, 4 * N * sizeof *dev);
    rig_drain(ds);
    assert_all(host, N, 5);
    assert_all(host + 2 * N, 2 * N, 5);
    for (uint32_t i = N; i < 2 * N; i++)
        assert_true(host[i] == 5 || isnan(host[i]));
    rig_free(ds, host, 4 * N);
    event_destroy(ds, e);
    devset_close(ds);
}

static void test_discard_in_the_wrong_place_refused(const char *backend)
{
    struct devset *ds = open_two(backend);
    uint8_t *d0 = devset_address(ds, 0, 0);
    float *host = rig_floats(ds, N);

    assert_int_equal(devset_discard(ds, STREAM(2, 0), d0, 4), -EINVAL); /* the host's stream */
    assert_int_equal(devset_discard(ds, UINT32_MAX, d0, 4), -EINVAL);
    assert_int_equal(devset_discard(ds, STREAM(1, LANE_IN), d0, 4), -EFAULT);
    assert_int_equal(devset_discard(ds, 0, host, 4), -EFAULT);
    assert_int_equal(devset_discard(ds, 0, d0 + RIG_CAPACITY - 4, 8), -EFAULT);
    assert_int_equal(devset_discard(ds, 0, d0 + RIG_CAPACITY, 0), 0);
    rig_drain(ds);
    rig_free(ds, host, N);
    devset_close(ds);
}

/* ---- what is refused ---- */

/* An op with a type that no backend implements is refused when it is launched, on devices and on the host:
 * every op, in each of its types. The refused calls have no arrays, so an op that ran would crash. The
 * next launch works. */
static void test_other_types_refused(const char *backend)
{
    struct devset *ds = open_two(backend);
    const struct step_args step = {.training = 1};
    const struct op_call relu = rig_relu(devset_address(ds, 0, 0), 8);

    for (int op = 0; op < OP_COUNT; op++)
        for (uint32_t i = 0; i < op_dtypes[op].n; i++)
            for (int d = 0; d <= DTYPE_COUNT; d++) {
                const enum dtype dtype = (enum dtype)d;
                struct op_call call = {.op = (enum op)op, .step = &step};
                memcpy((char *)&call + op_dtypes[op].at[i], &dtype, sizeof dtype);
                if (dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16)
                    continue;
                assert_int_equal(devset_launch(ds, STREAM(0, LANE_COMPUTE), &call), -EINVAL);
                assert_int_equal(devset_launch(ds, STREAM(2, 0), &call), -EINVAL);
            }
    assert_int_equal(devset_launch(ds, STREAM(0, LANE_COMPUTE), &relu), 0);
    rig_drain(ds);
    devset_close(ds);
}

static void test_wrong_numbers_refused(const char *backend)
{
    struct devset *ds = open_two(backend);
    struct event *e = rig_event(ds);
    float *y = devset_address(ds, 0, 0), *host = rig_floats(ds, N);
    struct op_call call = rig_relu(y, 8);
    const uint32_t unknown[] = {STREAM(2, 1), STREAM(3, 0), UINT32_MAX};

    for (int i = 0; i < 3; i++) {
        assert_int_equal(devset_launch(ds, unknown[i], &call), -EINVAL);
        assert_int_equal(devset_copy(ds, unknown[i], y, host, 4), -EINVAL);
        assert_int_equal(event_record(ds, unknown[i], e), -EINVAL);
        assert_int_equal(event_wait(ds, unknown[i], e), -EINVAL);
    }
    for (uint32_t lane = LANE_IN; lane < LANE_COUNT; lane++)
        assert_int_equal(devset_launch(ds, STREAM(0, lane), &call), -EINVAL);
    assert_int_equal(devset_copy(ds, STREAM(0, LANE_COMPUTE), y, host, 4), -EINVAL);
    assert_int_equal(devset_copy(ds, STREAM(2, 0), y, host, 4), -EINVAL);
    call.op = OP_COUNT;
    assert_int_equal(devset_launch(ds, 0, &call), -EINVAL);
    rig_drain(ds);
    rig_free(ds, host, N);
    event_destroy(ds, e);
    devset_close(ds);
}

static void test_copy_out_of_range_refused(const char *backend)
{
    struct devset *ds = open_two(backend);
    uint8_t *d0 = devset_address(ds, 0, 0), *d1 = devset_address(ds, 1, 0);
    uint8_t *host = (uint8_t *)rig_floats(ds, RIG_CAPACITY / 4 + N);
    const uint32_t in = STREAM(0, LANE_IN), out = STREAM(0, LANE_OUT), peer = STREAM(0, LANE_PEER);
    struct device_counters n;

    assert_int_equal(devset_copy(ds, in, d0 + RIG_CAPACITY - 256, host, 257), -EFAULT);
    assert_int_equal(devset_copy(ds, in, d0 - 1, host, 2), -EFAULT);
    assert_int_equal(devset_copy(ds, in, d1, host, 256), -EFAULT);
    assert_int_equal(devset_copy(ds, in, host, d0, 256), -EFAULT);
    assert_int_equal(devset_copy(ds, out, host, d0 + RIG_CAPACITY - 256, 257), -EFAULT);
    assert_int_equal(devset_copy(ds, peer, host, d0, 256), -EFAULT);
    assert_int_equal(devset_copy(ds, peer, d0, d1, 256), -EFAULT);
    assert_int_equal(devset_copy(ds, peer, d0 + 128, d0, 256), -EINVAL);
    rig_drain(ds);
    devset_counters(ds, 0, &n);
    assert_true(n.in_bytes == 0 && n.out_bytes == 0 && n.peer_bytes == 0);
    rig_copy(ds, in, d0, host, RIG_CAPACITY);
    rig_copy(ds, in, d0 + RIG_CAPACITY, host, 0);
    rig_drain(ds);
    rig_free(ds, (float *)(void *)host, RIG_CAPACITY / 4 + N);
    devset_close(ds);
}

static void test_open_refuses(const char *backend)
{
    struct devset_config c = rig_config(backend, 2);

    c.capacity_bytes[1] = 100;
    rig_refused(&c, -EINVAL, "device 1");
    c.capacity_bytes[1] = UINT64_C(1) << 62;
    rig_refused(&c, -ENOMEM, "device 1");
    rig_refused(&c, -ENOMEM, "4611686018427387904 bytes");
    c = rig_config(backend, 1);
    c.threads = 0;
    rig_refused(&c, -EINVAL, "thread");
}

/* ---- memory ---- */

static void test_host_memory_zeroed_or_refused(const char *backend)
{
    struct devset *ds = open_two(backend);
    const uint64_t bytes = (1u << 20) + 4;
    void *p = NULL;

    assert_int_equal(devset_host_alloc(ds, bytes, &p, NULL), 0);
    for (uint64_t i = 0; i < bytes; i++)
        assert_int_equal(((uint8_t *)p)[i], 0);
    memset(p, 1, bytes);
    devset_host_free(ds, p, bytes);
    p = &ds;
    for (uint64_t many = UINT64_C(1) << 62; many > 0; many = many == UINT64_MAX ? 0 : UINT64_MAX) {
        struct err err = {0};
        assert_int_equal(devset_host_alloc(ds, many, &p, &err), -ENOMEM);
        assert_non_null(strstr(err.msg, "bytes of host memory"));
    }
    assert_ptr_equal(p, &ds);
    rig_drain(ds); /* it was a refusal, not a failure */
    devset_close(ds);
}

/* Sizes around the pieces of copies that go through the host; contents and counters. */
static void test_copies_arrive_and_are_counted(const char *backend)
{
    const uint64_t most = (UINT64_C(13) << 20) + 256;
    const uint64_t sizes[] = {1,   255, (4u << 20) - 1, 4u << 20, (4u << 20) + 1, 8u << 20, (8u << 20) + 4,
                              most};
    struct devset_config c = rig_config(backend, 2);
    uint64_t total = 0;
    struct device_counters n;

    c.capacity_bytes[0] = c.capacity_bytes[1] = most;
    c.delay_seed = seed;
    struct devset *ds = rig_open(&c);
    struct event *e = rig_event(ds);
    uint8_t *src = (uint8_t *)rig_floats(ds, most / 4), *dst = (uint8_t *)rig_floats(ds, most / 4);
    for (uint64_t i = 0; i < most; i++)
        src[i] = (uint8_t)(i * 2654435761u >> 13);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        memset(dst, 0, most);
        rig_copy(ds, STREAM(0, LANE_IN), devset_address(ds, 0, most - sizes[i]), src, sizes[i]);
        rig_order(ds, STREAM(0, LANE_IN), STREAM(0, LANE_PEER), e);
        rig_copy(ds, STREAM(0, LANE_PEER), devset_address(ds, 1, 0), devset_address(ds, 0, most - sizes[i]),
                 sizes[i]);
        rig_order(ds, STREAM(0, LANE_PEER), STREAM(1, LANE_OUT), e);
        rig_copy(ds, STREAM(1, LANE_OUT), dst, devset_address(ds, 1, 0), sizes[i]);
        rig_order(ds, STREAM(1, LANE_OUT), STREAM(0, LANE_IN), e); /* the next round writes over it */
        rig_drain(ds);
        assert_memory_equal(dst, src, sizes[i]);
        assert_true(sizes[i] == most || dst[sizes[i]] == 0);
        total += sizes[i];
    }
    devset_counters(ds, 0, &n);
    assert_true(n.in_bytes == total && n.peer_bytes == total && n.out_bytes == 0);
    devset_counters(ds, 1, &n);
    assert_true(n.in_bytes == 0 && n.peer_bytes == 0 && n.out_bytes == total);
    rig_free(ds, (float *)(void *)src, most / 4);
    rig_free(ds, (float *)(void *)dst, most / 4);
    event_destroy(ds, e);
    devset_close(ds);
}

/* A copy inside a device runs on the device's peer lane, here between a copy from the other device and a copy
 * to the other device. The three copies run in order. The counters include the copies between devices or with
 * the host, but not the copy inside a device. */
static void test_copies_inside_a_device_go_over_no_link(const char *backend)
{
    enum { ROUNDS = 20 };
    struct devset *ds = open_two(backend);
    struct event *e = rig_event(ds);
    const uint32_t in = STREAM(0, LANE_IN), peer0 = STREAM(0, LANE_PEER), peer1 = STREAM(1, LANE_PEER);
    float *host = rig_floats(ds, N), *d0 = devset_address(ds, 0, 0), *d1 = devset_address(ds, 1, 256);
    const struct op_call relu = rig_relu(d1 + N, N);
    const uint64_t bytes = N * sizeof *host;
    struct device_counters n;

    for (int i = 1; i <= ROUNDS; i++) {
        set_all(host, N, (float)i);
        rig_copy(ds, in, d0, host, bytes);
        rig_order(ds, in, peer0, e);
        rig_copy(ds, peer0, d0 + N, d0, bytes);
        rig_copy(ds, peer0, d1, d0 + N, bytes);
        rig_order(ds, peer0, peer1, e);
        rig_copy(ds, peer1, d1 + N, d1, bytes);
        rig_order(ds, peer1, STREAM(1, LANE_COMPUTE), e);
        rig_launch(ds, STREAM(1, LANE_COMPUTE), &relu);
        rig_order(ds, STREAM(1, LANE_COMPUTE), STREAM(1, LANE_OUT), e);
        rig_copy(ds, STREAM(1, LANE_OUT), host, d1 + N, bytes);
        rig_drain(ds);
        assert_all(host, N, (float)i);
    }
    devset_counters(ds, 0, &n);
    assert_true(n.in_bytes == ROUNDS * bytes && n.out_bytes == 0 && n.peer_bytes == ROUNDS * bytes);
    devset_counters(ds, 1, &n);
    assert_true(n.in_bytes == 0 && n.out_bytes == ROUNDS * bytes && n.peer_bytes == 0);
    rig_free(ds, host, N);
    event_destroy(ds, e);
    devset_close(ds);
}

/* Host memory is allocated in many chunks of one page. Copies begin and end anywhere in that memory, and some
 * cross several chunk borders. Each byte must arrive once and be counted once. */
static void test_copies_across_pieces_of_host_memory(const char *backend)
{
    const uint64_t page = 4096, host_bytes = 7 * page + 100;
    const uint64_t spans[][2] = {{0, 1},          {page - 1, 1},       {page - 1, 2},        {page, page},
                                 {100, page},     {1, 3 * page},       {2 * page - 3, 5000}, {0, host_bytes},
                                 {7 * page, 100}, {6 * page + 5, 4000}};
    struct devset_config c = rig_config(backend, 2);
    struct device_counters n;
    uint64_t total = 0;

    c.host_chunk_bytes = page;
    c.delay_seed = seed;
    struct devset *ds = rig_open(&c);
    struct event *e = rig_event(ds);
    uint8_t *src = (uint8_t *)rig_floats(ds, host_bytes / 4),
            *dst = (uint8_t *)rig_floats(ds, host_bytes / 4);
    assert_int_equal((uintptr_t)src % page, 0);
    for (uint64_t i = 0; i < host_bytes; i++)
        src[i] = (uint8_t)(i * 2654435761u >> 13 | 1);
    for (size_t i = 0; i < sizeof spans / sizeof spans[0]; i++) {
        const uint64_t at = spans[i][0], bytes = spans[i][1];
        memset(dst, 0, host_bytes);
        rig_copy(ds, STREAM(0, LANE_IN), devset_address(ds, 0, 0), src + at, bytes);
        rig_order(ds, STREAM(0, LANE_IN), STREAM(0, LANE_OUT), e);
        rig_copy(ds, STREAM(0, LANE_OUT), dst + at, devset_address(ds, 0, 0), bytes);
        rig_drain(ds);
        for (uint64_t k = 0; k < host_bytes; k++)
            assert_int_equal(dst[k], k >= at && k < at + bytes ? src[k] : 0);
        total += bytes;
    }
    devset_counters(ds, 0, &n);
    assert_true(n.in_bytes == total && n.out_bytes == total);
    if (strcmp(backend, "cpu") != 0) { /* beyond what was allocated, though its page is pinned */
        assert_int_equal(
            devset_copy(ds, STREAM(0, LANE_IN), devset_address(ds, 0, 0), src + host_bytes - 1, 2), -EFAULT);
        assert_int_equal(devset_copy(ds, STREAM(0, LANE_IN), devset_address(ds, 0, 0), src - 1, 2), -EFAULT);
        rig_drain(ds);
    }
    rig_free(ds, (float *)(void *)src, host_bytes / 4);
    rig_free(ds, (float *)(void *)dst, host_bytes / 4);
    event_destroy(ds, e);
    devset_close(ds);
}

static void test_release_and_acquire(const char *backend)
{
    struct devset *ds = open_two(backend);
    struct event *e = rig_event(ds);
    float *host = rig_floats(ds, 2 * N);
    uint64_t capacity[2] = {2 * RIG_CAPACITY, RIG_CAPACITY};
    struct err err = {0};

    set_all(host, N, 3);
    assert_int_equal(devset_acquire(ds, capacity, &err), -EPROTO);
    void *old = devset_address(ds, 0, 0);
    rig_copy(ds, STREAM(0, LANE_IN), old, host, N * sizeof *host);
    assert_int_equal(devset_release(ds), 0);
    assert_int_equal(devset_release(ds), 0);
    struct op_call call = rig_relu(old, 1);
    assert_int_equal(devset_copy(ds, STREAM(0, LANE_IN), old, host, 4), -EPROTO);
    assert_int_equal(devset_launch(ds, 0, &call), -EPROTO);
    assert_int_equal(devset_discard(ds, 0, old, 4), -EPROTO);
    rig_record(ds, 0, e); /* streams and events stay */
    assert_int_equal(event_sync(ds, e), 0);
    assert_all(host, N, 3); /* and host memory */

    capacity[1] = UINT64_C(1) << 62;
    assert_int_equal(devset_acquire(ds, capacity, &err), -ENOMEM);
    assert_non_null(strstr(err.msg, "device 1"));
    assert_int_equal(devset_launch(ds, 0, &call), -EPROTO);
    capacity[1] = RIG_CAPACITY;
    assert_int_equal(devset_acquire(ds, capacity, &err), 0);
    float *dev = devset_address(ds, 0, 2 * RIG_CAPACITY - N * sizeof *dev);
    rig_copy(ds, STREAM(0, LANE_IN), dev, host, N * sizeof *dev);
    rig_order(ds, STREAM(0, LANE_IN), STREAM(0, LANE_OUT), e);
    rig_copy(ds, STREAM(0, LANE_OUT), host + N, dev, N * sizeof *dev);
    rig_drain(ds);
    assert_all(host + N, N, 3);
    assert_int_equal(devset_release(ds), 0);
    rig_free(ds, host, 2 * N);
    event_destroy(ds, e);
    devset_close(ds); /* of a released one */
}

/* ---- registry ---- */

static const struct {
    const char *name;
    void (*run)(const char *backend);
} cases[] = {
#define CASE(name)                                                                                           \
    {                                                                                                        \
#name, name                                                                                          \
    }
    CASE(test_close_drains),
    CASE(test_copies_across_pieces_of_host_memory),
    CASE(test_copies_arrive_and_are_counted),
    CASE(test_copies_inside_a_device_go_over_no_link),
    CASE(test_copy_out_of_range_refused),
    CASE(test_discard_ends_what_was_there_before),
    CASE(test_discard_in_the_wrong_place_refused),
    CASE(test_events_order_all_streams),
    CASE(test_full_queues_go_on),
    CASE(test_host_memory_zeroed_or_refused),
    CASE(test_marks_are_ordered_as_streams_and_events_are),
    CASE(test_names),
    CASE(test_open_refuses),
    CASE(test_release_and_acquire),
    CASE(test_stream_runs_in_order),
    CASE(test_wait_takes_the_record_before_it),
    CASE(test_other_types_refused),
    CASE(test_wrong_numbers_refused),
};
#define N_CASES (sizeof cases / sizeof cases[0])

static struct {
    size_t number;
    const char *backend;
    char name[96];
} bound[8 * N_CASES];

static void run_case(void **state)
{
    const size_t i = (size_t)(uintptr_t)*state;

    cases[bound[i].number].run(bound[i].backend);
}

int main(int argc, char **argv)
{
    static struct CMUnitTest tests[8 * N_CASES];
    const char *name;
    size_t n = 0;

    seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 0;
    for (uint32_t b = 0; (name = devset_backend_name(b)); b++) {
        if (!rig_has(name))
            continue;
        for (size_t i = 0; i < N_CASES && n < 8 * N_CASES; i++, n++) {
            bound[n].number = i;
            bound[n].backend = name;
            snprintf(bound[n].name, sizeof bound[n].name, "%s on %s", cases[i].name, name);
            tests[n] = (struct CMUnitTest){bound[n].name, run_case, NULL, NULL, (void *)(uintptr_t)n};
        }
    }
    return _cmocka_run_group_tests("contract", tests, n, NULL, NULL);
}
