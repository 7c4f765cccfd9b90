/* Tests every op of the cuda backend on the cases of tests/unit/op_cases.h. Each result is compared with a
 * reference in double precision and with the result of the cpu backend: bit for bit where the backend's ops.h
 * promises equal bits.
 *
 * All arrays of a call lie in one region of host memory. The whole region is copied to the device and back,
 * so the guards behind the arrays reveal a write outside an array.
 *
 *     test_cuda_ops [--small] [PATTERN]      PATTERN selects tests by name, for example test_rope_*
 *
 * --small leaves out cases of more than a few thousand elements, for runs with the race detector.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "tests/cuda/rig.h"
#include "tests/unit/op_cases.h"

#define REGION_BYTES (UINT64_C(48) << 20)
#define SMALL_BYTES  (UINT64_C(1) << 16)

static struct devset *ds;
static struct pool *pool;
static unsigned char *before, *after; /* regions of host memory */
static uint64_t most_bytes = REGION_BYTES;

/* Whose bits are not the cpu backend's. */
static bool has_own_bits(enum op op)
{
    return op == OP_linear_fwd || op == OP_linear_bwd_data || op == OP_linear_bwd_weight ||
           op == OP_attention_fwd || op == OP_attention_bwd || op == OP_rope || op == OP_softmax_xent;
}

/* The call as it is built and as it comes back, both in host memory. */
struct run {
    struct tape built, returned;
    struct op_call in, out;
};

static void run_on_device(enum op op, uint32_t variant, struct run *r)
{
    struct event *e = rig_event(ds);
    void *device = devset_address(ds, 0, 0);

    op_build_in(op, variant, before, REGION_BYTES, &r->built, &r->in);
    const uint64_t bytes = r->built.region_used;
    const struct op_call call = op_move(&r->in, before, bytes, device);
    rig_copy(ds, STREAM(0, LANE_IN), device, before, bytes);
    rig_order(ds, STREAM(0, LANE_IN), STREAM(0, LANE_COMPUTE), e);
    rig_launch(ds, STREAM(0, LANE_COMPUTE), &call);
    rig_order(ds, STREAM(0, LANE_COMPUTE), STREAM(0, LANE_OUT), e);
    rig_copy(ds, STREAM(0, LANE_OUT), after, device, bytes);
    rig_record(ds, STREAM(0, LANE_OUT), e);
    assert_int_equal(event_sync(ds, e), 0);
    r->returned = op_move_tape(&r->built, before, after);
    r->out = op_move(&r->in, before, bytes, after);
    rig_drain(ds);
    event_destroy(ds, e);
}

/* Returns whether a case is too large for --small. Scratch memory does not count, because its size does not
 * tell how much work an op does. */
static bool is_too_large(enum op op, uint32_t variant)
{
    struct tape t;
    struct op_call call;
    uint64_t bytes;

    if (most_bytes == REGION_BYTES)
        return false;
    op_build_in(op, variant, before, REGION_BYTES, &t, &call);
    bytes = t.region_used;
    for (uint32_t i = 0; i < t.n_out; i++)
        bytes -= t.out[i].scratch ? t.out[i].bytes : 0;
    return bytes > most_bytes;
}

static void test_op_matches_reference(void **state)
{
    enum op op = (enum op)(uintptr_t)*state;

    for (uint32_t v = 0; v < op_case_count(op); v++) {
        struct run r;
        if (is_too_large(op, v))
            continue;
        run_on_device(op, v, &r);
        tape_check_guards(&r.returned);
        op_tests[op]->check(&r.in, &r.out);
    }
}

/* The gradient has the same bits; the loss goes through a logarithm. */
static void assert_same_but_log(const struct op_softmax_xent *a, const struct op_softmax_xent *b)
{
    if (a->dx)
        assert_memory_equal(a->dx, b->dx, (uint64_t)a->rows * a->n * dtype_size(a->dx_dtype));
    if (!a->result)
        return;
    const double got = a->result->loss, want = b->result->loss;
    assert_true(fabs(got - want) <= 4e-16 * fabs(want) + 1e-300 || got == want);
    assert_true(a->result->correct == b->result->correct);
}

static void test_op_has_bits_of_cpu(void **state)
{
    enum op op = (enum op)(uintptr_t)*state;

    for (uint32_t v = 0; v < op_case_count(op); v++) {
        struct run r;
        struct tape cpu;
        struct op_call call;
        if (is_too_large(op, v))
            continue;
        run_on_device(op, v, &r);
        op_build(op, v, 0, &cpu, &call);
        cpu_ops[op](&call, pool);
        if (op == OP_softmax_xent)
            assert_same_but_log(&r.out.softmax_xent, &call.softmax_xent);
        else if (!has_own_bits(op))
            assert_same_outputs(&cpu, &r.returned);
        tape_finish(&cpu);
    }
}

/* Runs the op a second time. The simulator draws another order of blocks and threads, and the bits must be
 * the same. */
static void test_op_has_same_bits_again(void **state)
{
    enum op op = (enum op)(uintptr_t)*state;

    for (uint32_t v = 0; v < op_case_count(op); v++) {
        struct run r;
        if (is_too_large(op, v))
            continue;
        run_on_device(op, v, &r);
        const uint64_t bytes = r.built.region_used;
        void *first = malloc(bytes);
        assert_non_null(first);
        memcpy(first, after, bytes);
        run_on_device(op, v, &r);
        assert_memory_equal(first, after, bytes);
        free(first);
    }
}

/* Copies the host's `bytes` to the device, launches, copies them back. */
static void launch_around(const struct op_call *calls, uint32_t n, void *host, uint64_t bytes)
{
    struct event *e = rig_event(ds);

    rig_copy(ds, STREAM(0, LANE_IN), devset_address(ds, 0, 0), host, bytes);
    rig_order(ds, STREAM(0, LANE_IN), STREAM(0, LANE_COMPUTE), e);
    for (uint32_t i = 0; i < n; i++)
        rig_launch(ds, STREAM(0, LANE_COMPUTE), &calls[i]);
    rig_order(ds, STREAM(0, LANE_COMPUTE), STREAM(0, LANE_OUT), e);
    rig_copy(ds, STREAM(0, LANE_OUT), host, devset_address(ds, 0, 0), bytes);
    rig_drain(ds);
    event_destroy(ds, e);
}

/* More rows than the scratch of a device holds at once, and the last batch not full. */
static void test_losses_of_very_many_rows(void **state)
{
    enum { ROWS = 70000 };
    float *x = (float *)(void *)before, *target = x + ROWS, *dev = devset_address(ds, 0, 0);
    struct step_result *result = (struct step_result *)(void *)after, want;
    const struct step_args step = {.valid_rows = ROWS - 3};
    struct event *e = rig_event(ds);
    void *at = devset_address(ds, 0, 2 * ROWS * sizeof *x + 256 - 2 * ROWS * sizeof *x % 256);

    (void)state;
    for (uint32_t i = 0; i < ROWS; i++) {
        x[i] = (float)(i % 1013) * 0.37f;
        target[i] = (float)(i % 7);
    }
    struct op_call call = {.op = OP_mse_fwd, .step = &step, .mse_fwd = {x, target, &want, ROWS, 1, 0}};
    cpu_ops[OP_mse_fwd](&call, pool);
    call.mse_fwd = (struct op_mse_fwd){dev, dev + ROWS, at, ROWS, 1, 0};
    rig_copy(ds, STREAM(0, LANE_IN), dev, before, 2 * ROWS * sizeof *x);
    rig_order(ds, STREAM(0, LANE_IN), STREAM(0, LANE_COMPUTE), e);
    rig_launch(ds, STREAM(0, LANE_COMPUTE), &call);
    rig_order(ds, STREAM(0, LANE_COMPUTE), STREAM(0, LANE_OUT), e);
    rig_copy(ds, STREAM(0, LANE_OUT), result, at, sizeof *result);
    rig_drain(ds);
    assert_memory_equal(result, &want, sizeof want);
    event_destroy(ds, e);
}

/* Likewise, in place, some of them without a target, added to what was there; the last sample is padding. */
static void test_cross_entropies_of_very_many_rows(void **state)
{
    enum { ROWS = 70000, CLASSES = 3, SEQ = 7 };
    struct {
        struct step_result result;
        float x[ROWS * CLASSES];
        int32_t target[ROWS];
    } *host = (void *)before, *want = (void *)after, *dev = devset_address(ds, 0, 0);
    const struct step_args step = {.valid_rows = 2 + ROWS / SEQ - 1, .grad_scale = 0.5f, .training = 1};
    struct op_call call = {.op = OP_softmax_xent,
                           .step = &step,
                           .softmax_xent = {.x = want->x,
                                            .target = want->target,
                                            .result = &want->result,
                                            .dx = want->x,
                                            .rows = ROWS,
                                            .n = CLASSES,
                                            .first_row = 2 * SEQ,
                                            .seq = SEQ,
                                            .smoothing = 0.1f,
                                            .accumulate = true}};

    (void)state;
    host->result = (struct step_result){1000, 10};
    for (uint32_t i = 0; i < ROWS * CLASSES; i++)
        host->x[i] = (float)(i % 1013) * 0.01f;
    for (uint32_t i = 0; i < ROWS; i++)
        host->target[i] = (int32_t)(i % 5) - 2;
    memcpy(want, host, sizeof *host);
    cpu_ops[OP_softmax_xent](&call, pool);
    call.softmax_xent.x = call.softmax_xent.dx = dev->x;
    call.softmax_xent.target = dev->target;
    call.softmax_xent.result = &dev->result;
    launch_around(&call, 1, host, sizeof *host);
    assert_memory_equal(host->x, want->x, sizeof want->x);
    assert_true(fabs(host->result.loss - want->result.loss) <= 1e-13 * want->result.loss);
    assert_true(host->result.correct == want->result.correct && want->result.correct > 10);
}

/* The step's values are the op's from the launch on. */
static void test_step_is_copied_when_enqueued(void **state)
{
    enum { N = 64 };
    float *w = (float *)(void *)before, *dev = devset_address(ds, 0, 0);
    struct step_args step = {.lr = 0.5f};
    struct event *e = rig_event(ds);

    (void)state;
    for (int i = 0; i < 2 * N; i++)
        w[i] = 1;
    struct op_call call = {
        .op = OP_sgd, .step = &step, .sgd = {.w = dev, .g = {.dw = {dev + N}, .n = 1}, .n = N}};
    rig_copy(ds, STREAM(0, LANE_IN), dev, w, 2 * N * sizeof *w);
    rig_order(ds, STREAM(0, LANE_IN), STREAM(0, LANE_COMPUTE), e);
    rig_launch(ds, STREAM(0, LANE_COMPUTE), &call);
    call.sgd.w = w + 2 * N;
    call.sgd.g.dw[0] = w + 3 * N;
    for (int i = 2 * N; i < 4 * N; i++)
        w[i] = 1;
    rig_launch(ds, STREAM(1, 0), &call); /* the host's stream */
    step.lr = 100;
    rig_order(ds, STREAM(0, LANE_COMPUTE), STREAM(0, LANE_OUT), e);
    rig_copy(ds, STREAM(0, LANE_OUT), after, dev, N * sizeof *w);
    rig_drain(ds);
    for (int i = 0; i < N; i++)
        assert_true(((float *)(void *)after)[i] == 0.5f && w[2 * N + i] == 0.5f);
    event_destroy(ds, e);
}

static void assert_same_or_nan(const float *got, const float *want, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!(isnan(got[i]) && isnan(want[i])))
            assert_bits(got[i], want[i]);
}

static void test_extreme_values_as_on_cpu(void **state)
{
    static const float x[] = {NAN, INFINITY, -INFINITY, 1e30f,  -1e30f,  3e38f,  -3e38f, -100,
                              100, -0.0f,    0.0f,      1e-40f, -1e-40f, 1e-45f, 12,     -12};
    enum { COUNT_X = COUNT(x) };
    float y[COUNT_X], dx[COUNT_X];
    float *host = (float *)(void *)before, *dev = devset_address(ds, 0, 0);

    (void)state;
    for (int act = 0; act < ACT_COUNT; act++) {
        for (uint32_t i = 0; i < COUNT_X; i++) {
            host[i] = x[i];
            host[COUNT_X + i] = 2; /* dy */
        }
        struct op_call calls[] = {
            {.op = OP_act_fwd, .act_fwd = {x, y, COUNT_X, (enum act)act}},
            {.op = OP_act_bwd, .act_bwd = {x, host + COUNT_X, dx, COUNT_X, (enum act)act}}};
        for (int i = 0; i < 2; i++)
            cpu_ops[calls[i].op](&calls[i], pool);
        calls[0].act_fwd = (struct op_act_fwd){dev, dev + 2 * COUNT_X, COUNT_X, (enum act)act};
        calls[1].act_bwd = (struct op_act_bwd){dev, dev + COUNT_X, dev + 3 * COUNT_X, COUNT_X, (enum act)act};
        launch_around(calls, 2, host, 4 * COUNT_X * sizeof *host);
        assert_same_or_nan(host + 2 * COUNT_X, y, COUNT_X);
        assert_same_or_nan(host + 3 * COUNT_X, dx, COUNT_X);
    }
}

/* Every pair of these, at addresses that no vector of elements is aligned to. */
static void test_add_of_odd_numbers_at_odd_addresses_as_on_cpu(void **state)
{
    static const float odd[] = {NAN,       INFINITY,  -INFINITY,  3e38f,  -3e38f, 0.0f, -0.0f,
                                0x1p-126f, 0x1p-149f, -0x1p-149f, 1e-40f, 1,      -1,   0x1p24f};
    enum { ODD = COUNT(odd), PAIRS = ODD * ODD, FLOATS = 2 * PAIRS + 8 };
    float *host = (float *)(void *)before, *dev = devset_address(ds, 0, 0), want[PAIRS];

    (void)state;
    for (uint32_t shift = 0; shift < 16; shift++) {
        const uint32_t y = shift % 4, x = PAIRS + 4 + shift / 4;
        memset(host, 0, FLOATS * sizeof *host);
        for (uint32_t i = 0; i < PAIRS; i++) {
            want[i] = host[y + i] = odd[i % ODD];
            host[x + i] = odd[i / ODD];
        }
        const struct op_call on_cpu = {.op = OP_add, .add = {want, host + x, PAIRS}};
        const struct op_call on_device = {.op = OP_add, .add = {dev + y, dev + x, PAIRS}};
        cpu_ops[OP_add](&on_cpu, pool);
        launch_around(&on_device, 1, host, FLOATS * sizeof *host);
        assert_same_or_nan(host + y, want, PAIRS);
        for (uint32_t i = 0; i < FLOATS; i++)
            assert_true((i >= y && i < y + PAIRS) || (i >= x && i < x + PAIRS) || host[i] == 0);
    }
}

/* A NaN or infinity among the logits gives a NaN loss, and the sample counts as wrong. A target that is not a
 * class does the same. A negative target is ignored. */
static void test_bad_logits_and_targets_give_nan_loss(void **state)
{
    enum { CLASSES = 20 };
    const struct step_args step = {.grad_scale = 1, .valid_rows = 1};
    struct {
        struct step_result result;
        float x[CLASSES], dx[CLASSES];
        int32_t target;
    } *host = (void *)before, *dev = devset_address(ds, 0, 0);
    const struct op_call call = {.op = OP_softmax_xent,
                                 .step = &step,
                                 .softmax_xent = {.x = dev->x,
                                                  .target = &dev->target,
                                                  .result = &dev->result,
                                                  .dx = dev->dx,
                                                  .rows = 1,
                                                  .n = CLASSES,
                                                  .seq = 1}};

    (void)state;
    for (int32_t i = 0; i < 3 * CLASSES; i++) {
        memset(host, 0, sizeof *host);
        if (i < 2 * CLASSES)
            host->x[i % CLASSES] = i < CLASSES ? NAN : INFINITY;
        host->target = i < 2 * CLASSES ? CLASSES / 2 : CLASSES + i % 2 * 1000000;
        launch_around(&call, 1, host, sizeof *host);
        assert_true(isnan(host->result.loss) && host->result.correct == 0);
        host->x[0] = NAN;
        host->target = -1 - i;
        host->result.loss = host->dx[CLASSES - 1] = 1;
        launch_around(&call, 1, host, sizeof *host);
        assert_true(host->result.loss == 0 && host->result.correct == 0);
        for (int c = 0; c < CLASSES; c++)
            assert_true(host->dx[c] == 0);
    }
}

static void test_nan_gradient_leaves_weights(void **state)
{
    const struct step_args step = {.lr = 1};
    struct {
        struct step_decision decision;
        struct group_state group;
        double sum;
        float w[3], dw[3], m[3], v[3];
    } *host = (void *)before, *dev = devset_address(ds, 0, 0);
    const struct op_call calls[] = {
        {.op = OP_sumsq, .sumsq = {.g = {.dw = {dev->dw}, .n = 1}, .sum = &dev->sum, .n = 3}},
        {.op = OP_norm_add, .norm_add = {&dev->sum, &dev->decision, true}},
        {.op = OP_decide, .decide = {&dev->decision, &dev->group, 1, 0.9f, 0.999f}},
        {.op = OP_adamw,
         .step = &step,
         .adamw = {.w = dev->w,
                   .g = {.dw = {dev->dw}, .n = 1},
                   .m = dev->m,
                   .v = dev->v,
                   .group = &dev->group,
                   .n = 3,
                   .beta1 = 0.9f,
                   .beta2 = 0.999f,
                   .eps = 1e-8f,
                   .weight_decay = 0.1f}},
    };

    (void)state;
    memset(host, 0, sizeof *host);
    host->w[0] = host->w[1] = host->w[2] = 7;
    host->dw[1] = NAN;
    launch_around(calls, COUNT(calls), host, sizeof *host);
    assert_int_equal(host->decision.apply, 0);
    assert_int_equal(host->group.t, 0);
    assert_true(host->w[0] == 7 && host->w[1] == 7 && host->w[2] == 7 && host->m[0] == 0 && host->v[1] == 0);
}

static void assert_close(const float *got, const float *want, uint64_t n, float tolerance)
{
    for (uint64_t i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= tolerance))
            fail_msg("element %llu: got %.9g, want %.9g", (unsigned long long)i, (double)got[i],
                     (double)want[i]);
}

/* Arrays of attention, one after another. */
struct attention_arrays {
    float *qkv, *y, *lse, *dy, *dqkv, *scratch, *end;
};

static struct attention_arrays attention_at(float *at, uint32_t seq, uint32_t heads, uint32_t kv_heads,
                                            uint32_t head)
{
    struct attention_arrays a = {.qkv = at};

    a.y = a.qkv + (size_t)seq * (heads + 2 * kv_heads) * head;
    a.lse = a.y + (size_t)seq * heads * head;
    a.dy = a.lse + (size_t)heads * seq;
    a.dqkv = a.dy + (size_t)seq * heads * head;
    a.scratch = a.dqkv + (a.y - a.qkv);
    a.end = a.scratch + (size_t)heads * seq;
    return a;
}

/* Compares the forward and backward pass of attention with the cpu backend, for wide heads that several
 * blocks share and for more tokens than one tile holds. */
static void test_attention_of_wide_heads_close_to_cpu(void **state)
{
    static const uint32_t widths[] = {65, 96, 128, 129, 200, 256, 300};
    enum { SEQ = 70, HEADS = 2, KV_HEADS = 1 };
    const struct step_args step = {.step = 5, .seed = 9, .training = 1};

    (void)state;
    for (uint32_t w = 0; w < COUNT(widths); w++) {
        const uint32_t head = widths[w];
        struct attention_arrays places[] = {
            attention_at((float *)(void *)after, SEQ, HEADS, KV_HEADS, head),
            attention_at(devset_address(ds, 0, 0), SEQ, HEADS, KV_HEADS, head),
        };
        struct attention_arrays got = attention_at((float *)(void *)before, SEQ, HEADS, KV_HEADS, head);
        struct op_call calls[2][2];
        for (int i = 0; i < 2; i++) {
            const struct attention_arrays *a = &places[i];
            calls[i][0] = (struct op_call){.op = OP_attention_fwd,
                                           .step = &step,
                                           .attention_fwd = {.qkv = a->qkv,
                                                             .y = a->y,
                                                             .lse = a->lse,
                                                             .rows = 1,
                                                             .seq = SEQ,
                                                             .heads = HEADS,
                                                             .kv_heads = KV_HEADS,
                                                             .head = head,
                                                             .layer = 3,
                                                             .first_row = 4,
                                                             .p = 0.25f}};
            calls[i][1] = (struct op_call){.op = OP_attention_bwd,
                                           .step = &step,
                                           .attention_bwd = {.qkv = a->qkv,
                                                             .y = a->y,
                                                             .lse = a->lse,
                                                             .dy = a->dy,
                                                             .dqkv = a->dqkv,
                                                             .scratch = a->scratch,
                                                             .rows = 1,
                                                             .seq = SEQ,
                                                             .heads = HEADS,
                                                             .kv_heads = KV_HEADS,
                                                             .head = head,
                                                             .layer = 3,
                                                             .first_row = 4,
                                                             .p = 0.25f}};
        }
        const uint64_t bytes = (uint64_t)(got.end - got.qkv) * sizeof *got.qkv;
        for (uint64_t i = 0; i < bytes / sizeof *got.qkv; i++)
            got.qkv[i] = sinf((float)(i % 10007)); /* of no meaning but in qkv and dy */
        memcpy(places[0].qkv, got.qkv, bytes);
        for (int i = 0; i < 2; i++)
            cpu_ops[calls[0][i].op](&calls[0][i], pool);
        launch_around(calls[1], 2, got.qkv, bytes);
        assert_close(got.y, places[0].y, (uint64_t)(got.dy - got.y), 1e-5f);
        assert_close(got.dqkv, places[0].dqkv, (uint64_t)(got.scratch - got.dqkv), 1e-4f);
    }
}

/* Angles of thousands of radians. */
static void test_rope_far_along_as_defined(void **state)
{
    enum { SEQ = 5000, HEAD = 6, HALF = HEAD / 2 };
    float *x = (float *)(void *)before;
    const struct op_call call = {.op = OP_rope,
                                 .rope = {.x = devset_address(ds, 0, 0),
                                          .rows = 1,
                                          .seq = SEQ,
                                          .n = HEAD,
                                          .heads = 1,
                                          .head = HEAD,
                                          .theta = 10000}};

    (void)state;
    for (uint32_t i = 0; i < SEQ * HEAD; i++)
        x[i] = i % HEAD < HALF ? 1 : 0;
    launch_around(&call, 1, x, SEQ * HEAD * sizeof *x);
    for (uint32_t t = 0; t < SEQ; t++)
        for (uint32_t i = 0; i < HALF; i++) {
            const double angle = t * pow(10000, -2.0 * i / HEAD);
            assert_near(x[t * HEAD + i], cos(angle), 1e-7);
            assert_near(x[t * HEAD + HALF + i], sin(angle), 1e-7);
        }
}

/* An id that is no entry: NaN forward, nothing backward. */
static void test_bad_ids_touch_nothing(void **state)
{
    enum { ROWS = 5, N = 3, VOCAB = 2 };
    static const int32_t ids[ROWS] = {1, -1, VOCAB, 1, INT32_MAX};
    struct {
        int32_t ids[ROWS];
        float before[8], table[VOCAB * N], after[8], y[ROWS * N];
    } *host = (void *)before, *dev = devset_address(ds, 0, 0);
    const struct op_call calls[] = {
        {.op = OP_embedding_fwd, .embedding_fwd = {dev->ids, dev->table, dev->y, ROWS, N, VOCAB}},
        {.op = OP_embedding_bwd, .embedding_bwd = {dev->ids, dev->y, dev->table, ROWS, N, VOCAB}},
    };

    (void)state;
    memset(host, 0, sizeof *host);
    memcpy(host->ids, ids, sizeof ids);
    for (uint32_t i = 0; i < VOCAB * N; i++)
        host->table[i] = (float)(i + 1);
    launch_around(calls, COUNT(calls), host, sizeof *host);
    for (uint32_t i = 0; i < ROWS * N; i++)
        assert_true(ids[i / N] == 1 ? host->y[i] == (float)(N + i % N + 1) : isnan(host->y[i]));
    for (uint32_t i = 0; i < VOCAB * N; i++)
        assert_true(host->table[i] == (float)((i + 1) * (i < N ? 1 : 3)));
    for (uint32_t i = 0; i < COUNT(host->before); i++)
        assert_true(host->before[i] == 0 && host->after[i] == 0);
}

/* Memory that is not pinned would be read when the copy is enqueued. */
static void test_other_host_memory_refused(void **state)
{
    float own[8] = {0};

    (void)state;
    assert_int_equal(devset_copy(ds, STREAM(0, LANE_IN), devset_address(ds, 0, 0), own, sizeof own), -EFAULT);
    assert_int_equal(devset_copy(ds, STREAM(0, LANE_OUT), own, devset_address(ds, 0, 0), sizeof own),
                     -EFAULT);
    assert_int_equal(
        devset_copy(ds, STREAM(0, LANE_IN), devset_address(ds, 0, 0), before + 2 * REGION_BYTES - 4, 8),
        -EFAULT);
    rig_drain(ds);
}

static int set_up(void **state)
{
    struct devset_config c = rig_config("cuda", 1);
    void *p = NULL;

    (void)state;
    c.capacity_bytes[0] = REGION_BYTES;
    ds = rig_open(&c);
    printf("# %s\n", devset_numerics(ds));
    cpu_thread_init();
    if (devset_host_alloc(ds, 2 * REGION_BYTES, &p, NULL) < 0 || pool_create(2, &pool) < 0)
        return -1;
    before = p;
    after = before + REGION_BYTES;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    pool_destroy(pool);
    devset_host_free(ds, before, 2 * REGION_BYTES);
    devset_close(ds);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
#define OP(name)                                                                                             \
    {"test_" #name "_matches_reference", test_op_matches_reference, NULL, NULL,                              \
     (void *)(uintptr_t)OP_##name},                                                                          \
        {"test_" #name "_has_bits_of_cpu", test_op_has_bits_of_cpu, NULL, NULL,                              \
         (void *)(uintptr_t)OP_##name},                                                                      \
        {"test_" #name "_has_same_bits_again", test_op_has_same_bits_again, NULL, NULL,                      \
         (void *)(uintptr_t)OP_##name},
#include "kernels/ops.def"
#undef OP
        cmocka_unit_test(test_add_of_odd_numbers_at_odd_addresses_as_on_cpu),
        cmocka_unit_test(test_attention_of_wide_heads_close_to_cpu),
        cmocka_unit_test(test_bad_ids_touch_nothing),
        cmocka_unit_test(test_bad_logits_and_targets_give_nan_loss),
        cmocka_unit_test(test_cross_entropies_of_very_many_rows),
        cmocka_unit_test(test_extreme_values_as_on_cpu),
        cmocka_unit_test(test_losses_of_very_many_rows),
        cmocka_unit_test(test_nan_gradient_leaves_weights),
        cmocka_unit_test(test_other_host_memory_refused),
        cmocka_unit_test(test_rope_far_along_as_defined),
        cmocka_unit_test(test_step_is_copied_when_enqueued),
    };

    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--small") == 0)
            most_bytes = SMALL_BYTES;
        else
            cmocka_set_test_filter(argv[i]);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
