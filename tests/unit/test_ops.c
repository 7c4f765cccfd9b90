/* Every op of the cpu backend, driven by ops.def: an op without a row here does not compile.
 *
 * An op's row builds calls (shapes and values are a function of the variant's number alone) and checks
 * results against double precision. From the same row every op is run again with 1, 2 and 3 threads, with
 * every array shifted against its alignment, and on two threads at once: the bits must be the same. Arrays
 * are allocations of their own, with a guard behind, so that a sanitizer or the guard sees a write too far.
 *
 * Ops whose bits are defined by their source alone are pinned by a hash over all their variants: compilers,
 * instruction sets and sanitizers must agree on it. The rest (golden 0) depends on oneDNN or on the C
 * library's log.
 */
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/vmath.h"
#include "reference.h"
#include "tests/skip.h"

#define COUNT(array) ((uint32_t)(sizeof(array) / sizeof((array)[0])))
#define EPS          (FLT_EPSILON / 2) /* relative error of one rounding */

/* ---- tape: the arrays of one call ---- */

#define GUARD      64
#define GUARD_BYTE 0xa5
#define TAPE_MAX   12

struct tape {
    size_t shift; /* bytes; a multiple of 4 */
    uint32_t key; /* of the next random array */
    uint32_t n, n_out;
    struct {
        unsigned char *base;
        unsigned char *end;
    } mem[TAPE_MAX];
    struct {
        const void *at;
        size_t bytes;
    } out[TAPE_MAX];
    struct step_args step;
};

static void *tape_bytes(struct tape *t, size_t bytes, size_t align)
{
    size_t skip = (t->shift + align - 1) / align * align;
    unsigned char *base = malloc(skip + bytes + GUARD);

    assert_non_null(base);
    assert_true(t->n < TAPE_MAX);
    t->mem[t->n].base = base;
    t->mem[t->n].end = base + skip + bytes;
    memset(t->mem[t->n].end, GUARD_BYTE, GUARD);
    t->n++;
    return base + skip;
}

static void tape_output(struct tape *t, const void *at, size_t bytes)
{
    assert_true(t->n_out < TAPE_MAX);
    t->out[t->n_out].at = at;
    t->out[t->n_out++].bytes = bytes;
}

static float *tape_floats(struct tape *t, uint64_t n, float scale)
{
    float *x = tape_bytes(t, n * sizeof *x, sizeof *x);
    ref_fill(x, n, t->key++, scale);
    return x;
}

/* Read and written. */
static float *tape_state(struct tape *t, uint64_t n, float scale)
{
    float *x = tape_floats(t, n, scale);
    tape_output(t, x, n * sizeof *x);
    return x;
}

/* Only written: NaN before, so that an op that adds to it is found out. */
static float *tape_result(struct tape *t, uint64_t n)
{
    float *x = tape_state(t, n, 0);
    for (uint64_t i = 0; i < n; i++)
        x[i] = NAN;
    return x;
}

static void tape_check_guards(const struct tape *t)
{
    for (uint32_t i = 0; i < t->n; i++)
        for (int b = 0; b < GUARD; b++)
            assert_int_equal(t->mem[i].end[b], GUARD_BYTE);
}

static void tape_finish(struct tape *t)
{
    for (uint32_t i = 0; i < t->n; i++)
        free(t->mem[i].base);
}

static void assert_same_outputs(const struct tape *a, const struct tape *b)
{
    assert_int_equal(a->n_out, b->n_out);
    for (uint32_t i = 0; i < a->n_out; i++)
        assert_memory_equal(a->out[i].at, b->out[i].at, a->out[i].bytes);
}

/* ---- rows of the registry ---- */

struct op_test {
    uint32_t variants;
    void (*build)(struct tape *t, uint32_t variant, struct op_call *call);
    void (*check)(const struct op_call *in, const struct op_call *out); /* in: as built, before the run */
    uint64_t golden;
};

static const uint64_t lengths[] = {1, 2, 3, 15, 16, 17, 63, 65, 383, 384, 385, 769, 32768, 70001};
static const uint32_t matrices[][2] = {{1, 1},    {1, 65},   {2, 15},   {3, 16},  {17, 17},
                                       {63, 3},   {16, 10},  {33, 10},  {65, 63}, {600, 10},
                                       {513, 65}, {31, 769}, {97, 385}, {5, 8200}};
static const uint32_t products[][3] = {
    /* rows, in, out */
    {1, 1, 1},       {1, 384, 1},    {2, 3, 15},     {3, 15, 2},     {15, 16, 17},
    {16, 16, 16},    {17, 63, 16},   {63, 65, 10},   {65, 383, 10},  {10, 385, 65},
    {1, 769, 65},    {15, 769, 63},  {16, 384, 17},  {17, 385, 383}, {383, 17, 65},
    {384, 65, 16},   {385, 63, 63},  {769, 65, 17},  {65, 769, 63},  {17, 16, 769},
    {130, 383, 129}, {33, 769, 385}, {300, 10, 200}, {385, 8, 200},  {130, 512, 300}};

static void assert_near(float got, double want, double tolerance)
{
    if (!(fabs((double)got - want) <= tolerance))
        fail_msg("got %.9g, want %.9g +- %.3g", (double)got, want, tolerance);
}

static void assert_bits(float got, float want)
{
    if (memcmp(&got, &want, sizeof got) != 0)
        fail_msg("got %a, want %a exactly", (double)got, (double)want);
}

/* Against the product in double: |error| <= (k + 2) eps * sum of |a b|, for any order of summation. */
static void check_product(const float *a, const float *b, const float *before, const float *c,
                          struct ref_matmul p)
{
    size_t n = (size_t)p.m * p.n;
    double *want = malloc(n * sizeof *want), *size = malloc(n * sizeof *size);
    double *da = ref_to_double(a, (uint64_t)p.m * p.k), *db = ref_to_double(b, (uint64_t)p.k * p.n);

    p.a = da;
    p.b = db;
    ref_matmul(&p, want, size);
    for (size_t i = 0; i < n; i++) {
        double old = before ? (double)before[i] : 0;
        assert_near(c[i], old + want[i], (p.k + 2.0) * (double)EPS * (size[i] + fabs(old)));
    }
    free(want);
    free(size);
    free(da);
    free(db);
}

static void build_linear_fwd(struct tape *t, uint32_t v, struct op_call *call)
{
    uint32_t rows = products[v][0], in = products[v][1], out = products[v][2];
    call->linear_fwd = (struct op_linear_fwd){.x = tape_floats(t, (uint64_t)rows * in, 1),
                                              .w = tape_floats(t, (uint64_t)out * in, 1),
                                              .y = tape_result(t, (uint64_t)rows * out),
                                              .rows = rows,
                                              .in = in,
                                              .out = out};
}

static void check_linear_fwd(const struct op_call *in, const struct op_call *out)
{
    const struct op_linear_fwd *o = &in->linear_fwd;
    check_product(o->x, o->w, NULL, out->linear_fwd.y,
                  (struct ref_matmul){.m = o->rows, .n = o->out, .k = o->in, .b_trans = true});
}

static const struct op_test linear_fwd_test = {COUNT(products), build_linear_fwd, check_linear_fwd};

static void build_linear_bwd_data(struct tape *t, uint32_t v, struct op_call *call)
{
    uint32_t rows = products[v][0], in = products[v][1], out = products[v][2];
    call->linear_bwd_data = (struct op_linear_bwd_data){.dy = tape_floats(t, (uint64_t)rows * out, 1),
                                                        .w = tape_floats(t, (uint64_t)out * in, 1),
                                                        .dx = tape_result(t, (uint64_t)rows * in),
                                                        .rows = rows,
                                                        .in = in,
                                                        .out = out};
}

static void check_linear_bwd_data(const struct op_call *in, const struct op_call *out)
{
    const struct op_linear_bwd_data *o = &in->linear_bwd_data;
    check_product(o->dy, o->w, NULL, out->linear_bwd_data.dx,
                  (struct ref_matmul){.m = o->rows, .n = o->in, .k = o->out});
}

static const struct op_test linear_bwd_data_test = {COUNT(products), build_linear_bwd_data,
                                                    check_linear_bwd_data};

static void build_linear_bwd_weight(struct tape *t, uint32_t v, struct op_call *call)
{
    uint32_t rows = products[v / 2][0], in = products[v / 2][1], out = products[v / 2][2];
    bool accumulate = v % 2;
    uint64_t n = (uint64_t)out * in;
    call->linear_bwd_weight =
        (struct op_linear_bwd_weight){.dy = tape_floats(t, (uint64_t)rows * out, 1),
                                      .x = tape_floats(t, (uint64_t)rows * in, 1),
                                      .dw = accumulate ? tape_state(t, n, 1) : tape_result(t, n),
                                      .rows = rows,
                                      .in = in,
                                      .out = out,
                                      .accumulate = accumulate};
}

static void check_linear_bwd_weight(const struct op_call *in, const struct op_call *out)
{
    const struct op_linear_bwd_weight *o = &in->linear_bwd_weight;
    check_product(o->dy, o->x, o->accumulate ? o->dw : NULL, out->linear_bwd_weight.dw,
                  (struct ref_matmul){.m = o->out, .n = o->in, .k = o->rows, .a_trans = true});
}

static const struct op_test linear_bwd_weight_test = {2 * COUNT(products), build_linear_bwd_weight,
                                                      check_linear_bwd_weight};

static void build_bias_fwd(struct tape *t, uint32_t v, struct op_call *call)
{
    uint32_t rows = matrices[v][0], n = matrices[v][1];
    call->bias_fwd = (struct op_bias_fwd){
        .y = tape_state(t, (uint64_t)rows * n, 1), .b = tape_floats(t, n, 1), .rows = rows, .n = n};
}

static void check_bias_fwd(const struct op_call *in, const struct op_call *out)
{
    const struct op_bias_fwd *o = &in->bias_fwd;
    for (size_t i = 0; i < (size_t)o->rows * o->n; i++)
        assert_bits(out->bias_fwd.y[i], o->y[i] + o->b[i % o->n]);
}

static const struct op_test bias_fwd_test = {COUNT(matrices), build_bias_fwd, check_bias_fwd,
                                             UINT64_C(0x538df3d113f4972f)};

static void build_bias_bwd(struct tape *t, uint32_t v, struct op_call *call)
{
    uint32_t rows = matrices[v / 2][0], n = matrices[v / 2][1];
    bool accumulate = v % 2;
    call->bias_bwd = (struct op_bias_bwd){.dy = tape_floats(t, (uint64_t)rows * n, 1),
                                          .db = accumulate ? tape_state(t, n, 1) : tape_result(t, n),
                                          .rows = rows,
                                          .n = n,
                                          .accumulate = accumulate};
}

static void check_bias_bwd(const struct op_call *in, const struct op_call *out)
{
    const struct op_bias_bwd *o = &in->bias_bwd;
    for (uint32_t c = 0; c < o->n; c++) {
        double sum = o->accumulate ? (double)o->db[c] : 0, size = fabs(sum);
        for (uint32_t r = 0; r < o->rows; r++) {
            sum += (double)o->dy[(size_t)r * o->n + c];
            size += fabs((double)o->dy[(size_t)r * o->n + c]);
        }
        /* chunks of 32: the error grows with rows / 32, not with rows */
        assert_near(out->bias_bwd.db[c], sum, (34 + o->rows / 32) * (double)EPS * size);
    }
}

static const struct op_test bias_bwd_test = {2 * COUNT(matrices), build_bias_bwd, check_bias_bwd,
                                             UINT64_C(0x69e411ed03c9ff50)};

/* Variants: every length x every activation x in place or not. */
static uint64_t act_length(uint32_t v)
{
    return lengths[v / ACT_COUNT % COUNT(lengths)];
}

static bool act_in_place(uint32_t v)
{
    return v / ACT_COUNT / COUNT(lengths) == 1;
}

static void build_act_fwd(struct tape *t, uint32_t v, struct op_call *call)
{
    uint64_t n = act_length(v);
    struct op_act_fwd *o = &call->act_fwd;
    *o = (struct op_act_fwd){.n = n, .act = v % ACT_COUNT};
    if (act_in_place(v))
        o->x = o->y = tape_state(t, n, 10);
    else {
        o->x = tape_floats(t, n, 10);
        o->y = tape_result(t, n);
    }
}

/* The same arithmetic as the op, compiled here without vectors or clones. */
static float plain_act(enum act act, float x)
{
    switch (act) {
    case ACT_RELU:
        return vmath_relu(x);
    case ACT_GELU:
        return vmath_gelu(x);
    case ACT_TANH:
        return vmath_tanh(x);
    default:
        return x;
    }
}

static void check_act_fwd(const struct op_call *in, const struct op_call *out)
{
    const struct op_act_fwd *o = &in->act_fwd;
    for (uint64_t i = 0; i < o->n; i++) {
        double want = ref_act(o->act, (double)o->x[i]);
        assert_near(out->act_fwd.y[i], want, 1e-6 * fabs(want) + 1e-9);
        assert_bits(out->act_fwd.y[i], plain_act(o->act, o->x[i]));
    }
}

static const struct op_test act_fwd_test = {2 * ACT_COUNT * COUNT(lengths), build_act_fwd, check_act_fwd,
                                            UINT64_C(0xd1f40778f3292cb5)};

static void build_act_bwd(struct tape *t, uint32_t v, struct op_call *call)
{
    uint64_t n = act_length(v);
    struct op_act_bwd *o = &call->act_bwd;
    *o = (struct op_act_bwd){.x = tape_floats(t, n, 8), .n = n, .act = v % ACT_COUNT};
    if (act_in_place(v))
        o->dy = o->dx = tape_state(t, n, 1);
    else {
        o->dy = tape_floats(t, n, 1);
        o->dx = tape_result(t, n);
    }
}

static float plain_act_bwd(enum act act, float x, float dy)
{
    switch (act) {
    case ACT_RELU:
        return x <= 0 ? 0 : dy;
    case ACT_GELU:
        return dy * vmath_gelu_slope(x);
    case ACT_TANH:
        return dy * vmath_tanh_slope(x);
    default:
        return dy;
    }
}

static void check_act_bwd(const struct op_call *in, const struct op_call *out)
{
    const struct op_act_bwd *o = &in->act_bwd;
    for (uint64_t i = 0; i < o->n; i++) {
        double slope = ref_act_slope(o->act, (double)o->x[i]);
        assert_near(out->act_bwd.dx[i], (double)o->dy[i] * slope,
                    5e-7 * (1 + fabs(slope)) * fabs((double)o->dy[i]));
        assert_bits(out->act_bwd.dx[i], plain_act_bwd(o->act, o->x[i], o->dy[i]));
    }
}

static const struct op_test act_bwd_test = {2 * ACT_COUNT * COUNT(lengths), build_act_bwd, check_act_bwd,
                                            UINT64_C(0x615f7afc37606c43)};

/* Variants: shapes x {training, in place, not training}. */
static void build_dropout(struct tape *t, uint32_t v, struct op_call *call)
{
    uint32_t rows = matrices[v / 3][0], n = matrices[v / 3][1];
    uint64_t count = (uint64_t)rows * n;
    struct op_dropout *o = &call->dropout;

    t->step.training = v % 3 != 2;
    *o = (struct op_dropout){.rows = rows, .n = n, .layer = 5, .first_row = 1000, .p = 0.3f};
    if (v % 3 == 1)
        o->x = o->y = tape_state(t, count, 1);
    else {
        o->x = tape_floats(t, count, 1);
        o->y = tape_result(t, count);
    }
}

static void check_dropout(const struct op_call *in, const struct op_call *out)
{
    const struct op_dropout *o = &in->dropout;
    for (uint32_t r = 0; r < o->rows; r++)
        for (uint32_t e = 0; e < o->n; e++) {
            float x = o->x[(size_t)r * o->n + e], want = x;
            if (in->step->training)
                want = ref_dropout_keeps(in->step, o->layer, o->first_row + r, e, o->p) ? x / (1.0f - o->p)
                                                                                        : 0.0f;
            assert_bits(out->dropout.y[(size_t)r * o->n + e], want);
        }
}

static const struct op_test dropout_test = {3 * COUNT(matrices), build_dropout, check_dropout,
                                            UINT64_C(0xb5aaa15c0f8f7c9a)};

/* Losses: rows past valid_rows hold NaN and impossible targets; odd variants have such rows. */
#define LOSS_FIRST_ROW 7

static uint32_t loss_valid(uint32_t v, uint32_t rows)
{
    return v % 2 ? rows / 2 : rows;
}

static float *loss_inputs(struct tape *t, uint32_t v, uint32_t rows, uint32_t n, float scale)
{
    float *x = tape_floats(t, (uint64_t)rows * n, scale);
    uint32_t valid = loss_valid(v, rows);

    t->step.valid_rows = LOSS_FIRST_ROW + valid;
    for (size_t i = (size_t)valid * n; i < (size_t)rows * n; i++)
        x[i] = NAN;
    return x;
}

static int32_t *loss_classes(struct tape *t, uint32_t v, uint32_t rows, uint32_t n)
{
    int32_t *target = tape_bytes(t, rows * sizeof *target, sizeof *target);
    for (uint32_t r = 0; r < rows; r++)
        target[r] = r < loss_valid(v, rows) ? (int32_t)(r * 7919 % n) : INT32_MIN;
    return target;
}

static struct step_result *loss_result(struct tape *t)
{
    struct step_result *result = tape_bytes(t, sizeof *result, _Alignof(struct step_result));
    *result = (struct step_result){NAN, NAN};
    tape_output(t, result, sizeof *result);
    return result;
}

static void build_softmax_xent_fwd(struct tape *t, uint32_t v, struct op_call *call)
{
    uint32_t rows = matrices[v / 2][0], n = matrices[v / 2][1];
    call->softmax_xent_fwd = (struct op_softmax_xent_fwd){.x = loss_inputs(t, v, rows, n, 20),
                                                          .target = loss_classes(t, v, rows, n),
                                                          .result = loss_result(t),
                                                          .rows = rows,
                                                          .n = n,
                                                          .first_row = LOSS_FIRST_ROW};
}

static bool is_first_max(const float *x, uint32_t n, uint32_t at)
{
    for (uint32_t i = 0; i < n; i++)
        if (i < at ? x[i] >= x[at] : x[i] > x[at])
            return false;
    return true;
}

static void check_softmax_xent_fwd(const struct op_call *in, const struct op_call *out)
{
    const struct op_softmax_xent_fwd *o = &in->softmax_xent_fwd;
    uint32_t valid = in->step->valid_rows - o->first_row;
    double loss = 0, correct = 0;

    for (uint32_t r = 0; r < valid; r++) {
        const float *x = o->x + (size_t)r * o->n;
        double *d = ref_to_double(x, o->n);
        loss += ref_xent(d, o->n, (uint32_t)o->target[r]);
        correct += is_first_max(x, o->n, (uint32_t)o->target[r]);
        free(d);
    }
    if (!(fabs(out->softmax_xent_fwd.result->loss - loss) <= 1e-6 * valid))
        fail_msg("loss %.12g, want %.12g", out->softmax_xent_fwd.result->loss, loss);
    assert_true(out->softmax_xent_fwd.result->correct == correct);
}

static const struct op_test softmax_xent_fwd_test = {2 * COUNT(matrices), build_softmax_xent_fwd,
                                                     check_softmax_xent_fwd};

static void build_softmax_xent_bwd(struct tape *t, uint32_t v, struct op_call *call)
{
    uint32_t rows = matrices[v / 2][0], n = matrices[v / 2][1];
    call->softmax_xent_bwd = (struct op_softmax_xent_bwd){.x = loss_inputs(t, v, rows, n, 20),
                                                          .target = loss_classes(t, v, rows, n),
                                                          .dx = tape_result(t, (uint64_t)rows * n),
                                                          .rows = rows,
                                                          .n = n,
                                                          .first_row = LOSS_FIRST_ROW};
}

static void check_softmax_xent_bwd(const struct op_call *in, const struct op_call *out)
{
    const struct op_softmax_xent_bwd *o = &in->softmax_xent_bwd;
    uint32_t valid = in->step->valid_rows - o->first_row;
    double scale = (double)in->step->grad_scale;

    for (uint32_t r = 0; r < o->rows; r++) {
        const float *dx = out->softmax_xent_bwd.dx + (size_t)r * o->n;
        double *x = ref_to_double(o->x + (size_t)r * o->n, o->n);
        double log_sum = r < valid ? ref_xent(x, o->n, 0) + x[0] : 0;
        for (uint32_t i = 0; i < o->n; i++) {
            if (r >= valid) {
                assert_bits(dx[i], 0.0f);
                continue;
            }
            double p = exp(x[i] - log_sum), hot = i == (uint32_t)o->target[r];
            /* logits within +-20: rounding x - max alone gives 40 eps */
            assert_near(dx[i], (p - hot) * scale, 4e-6 * p * scale + 2 * (double)EPS * hot * scale + 1e-34);
        }
        free(x);
    }
}

static const struct op_test softmax_xent_bwd_test = {2 * COUNT(matrices), build_softmax_xent_bwd,
                                                     check_softmax_xent_bwd, UINT64_C(0x5dce848bc5e7259a)};

static void build_mse_fwd(struct tape *t, uint32_t v, struct op_call *call)
{
    uint32_t rows = matrices[v / 2][0], n = matrices[v / 2][1];
    call->mse_fwd = (struct op_mse_fwd){.x = loss_inputs(t, v, rows, n, 1),
                                        .target = loss_inputs(t, v, rows, n, 1),
                                        .result = loss_result(t),
                                        .rows = rows,
                                        .n = n,
                                        .first_row = LOSS_FIRST_ROW};
}

static void check_mse_fwd(const struct op_call *in, const struct op_call *out)
{
    const struct op_mse_fwd *o = &in->mse_fwd;
    uint32_t valid = in->step->valid_rows - o->first_row;
    double *x = ref_to_double(o->x, (uint64_t)valid * o->n),
           *t = ref_to_double(o->target, (uint64_t)valid * o->n);
    double loss = 0;

    for (uint32_t r = 0; r < valid; r++)
        loss += ref_mse(x + (size_t)r * o->n, t + (size_t)r * o->n, o->n);
    assert_true(fabs(out->mse_fwd.result->loss - loss) <= 1e-13 * loss);
    assert_true(out->mse_fwd.result->correct == 0);
    free(x);
    free(t);
}

static const struct op_test mse_fwd_test = {2 * COUNT(matrices), build_mse_fwd, check_mse_fwd,
                                            UINT64_C(0x0a283e4040d3cba4)};

static void build_mse_bwd(struct tape *t, uint32_t v, struct op_call *call)
{
    uint32_t rows = matrices[v / 2][0], n = matrices[v / 2][1];
    call->mse_bwd = (struct op_mse_bwd){.x = loss_inputs(t, v, rows, n, 1),
                                        .target = loss_inputs(t, v, rows, n, 1),
                                        .dx = tape_result(t, (uint64_t)rows * n),
                                        .rows = rows,
                                        .n = n,
                                        .first_row = LOSS_FIRST_ROW};
}

static void check_mse_bwd(const struct op_call *in, const struct op_call *out)
{
    const struct op_mse_bwd *o = &in->mse_bwd;
    size_t valid = (size_t)(in->step->valid_rows - o->first_row) * o->n;

    for (size_t i = 0; i < (size_t)o->rows * o->n; i++) {
        if (i >= valid) {
            assert_bits(out->mse_bwd.dx[i], 0.0f);
            continue;
        }
        double want = 2 * ((double)o->x[i] - (double)o->target[i]) / o->n * (double)in->step->grad_scale;
        assert_near(out->mse_bwd.dx[i], want, 5 * (double)EPS * fabs(want));
    }
}

static const struct op_test mse_bwd_test = {2 * COUNT(matrices), build_mse_bwd, check_mse_bwd,
                                            UINT64_C(0x24ceb84044b3bcdd)};

/* Updates: variants are lengths x {no decision, apply with a scale, do not apply}. */
static const struct step_decision *tape_decision(struct tape *t, uint32_t kind)
{
    struct step_decision *d = tape_bytes(t, sizeof *d, _Alignof(struct step_decision));
    *d = (struct step_decision){.sumsq = 4, .scale = 0.37f, .apply = kind == 1};
    return kind == 0 ? NULL : d;
}

static float used_scale(const struct step_decision *d)
{
    return d ? d->scale : 1.0f;
}

static void build_sgd(struct tape *t, uint32_t v, struct op_call *call)
{
    uint64_t n = lengths[v / 6];
    call->sgd = (struct op_sgd){.w = tape_state(t, n, 1),
                                .dw = tape_floats(t, n, 1),
                                .v = v % 2 ? tape_state(t, n, 1) : NULL,
                                .decision = tape_decision(t, v / 2 % 3),
                                .n = n,
                                .momentum = v % 2 ? 0.9f : 0,
                                .weight_decay = 0.01f};
}

static void check_sgd(const struct op_call *in, const struct op_call *out)
{
    const struct op_sgd *o = &in->sgd;
    float scale = used_scale(o->decision), lr = in->step->lr;

    for (uint64_t i = 0; i < o->n; i++) {
        float w = o->w[i], v = o->v ? o->v[i] : 0;
        double dv = 0, dw = 0;
        if (!o->decision || o->decision->apply) { /* once exactly as promised, once in double */
            dv = (double)o->momentum * (double)v +
                 ((double)o->dw[i] * (double)scale + (double)o->weight_decay * (double)w);
            dw = (double)w - (double)lr * dv;
            float d = o->dw[i] * scale + o->weight_decay * w;
            v = o->v ? o->momentum * v + d : d;
            w = w - lr * v;
            assert_near(w, dw, 4 * (double)EPS);
        }
        assert_bits(out->sgd.w[i], w);
        if (o->v)
            assert_bits(out->sgd.v[i], v);
    }
}

static const struct op_test sgd_test = {6 * COUNT(lengths), build_sgd, check_sgd,
                                        UINT64_C(0x7ed3446edc45d026)};

static void build_adamw(struct tape *t, uint32_t v, struct op_call *call)
{
    uint64_t n = lengths[v / 3];
    float *second = tape_state(t, n, 0.1f);
    for (uint64_t i = 0; i < n; i++)
        second[i] = second[i] * second[i];
    call->adamw = (struct op_adamw){.w = tape_state(t, n, 1),
                                    .dw = tape_floats(t, n, 1),
                                    .m = tape_state(t, n, 0.1f),
                                    .v = second,
                                    .decision = tape_decision(t, v % 3),
                                    .n = n,
                                    .beta1 = 0.9f,
                                    .beta2 = 0.999f,
                                    .eps = 1e-8f,
                                    .weight_decay = 0.01f};
}

static double adamw_in_double(const struct op_adamw *o, const struct step_args *s, uint64_t i)
{
    double g = (double)o->dw[i] * (double)used_scale(o->decision), b1 = (double)o->beta1,
           b2 = (double)o->beta2;
    double m = b1 * (double)o->m[i] + (1 - b1) * g, v = b2 * (double)o->v[i] + (1 - b2) * g * g;
    double w = (double)o->w[i] * (1 - (double)s->lr * (double)o->weight_decay);
    double denominator = sqrt(v * (double)s->bias_correct2) + (double)o->eps;
    return w - (double)s->lr * m * (double)s->bias_correct1 / denominator;
}

static void check_adamw(const struct op_call *in, const struct op_call *out)
{
    const struct op_adamw *o = &in->adamw;
    const struct step_args *s = in->step;
    float scale = used_scale(o->decision), c1 = 1.0f - o->beta1, c2 = 1.0f - o->beta2;
    float decay = s->lr * o->weight_decay;

    for (uint64_t i = 0; i < o->n; i++) {
        float w = o->w[i], m = o->m[i], v = o->v[i];
        if (!o->decision || o->decision->apply) {
            float g = o->dw[i] * scale;
            m = o->beta1 * m + c1 * g;
            v = o->beta2 * v + (c2 * g) * g;
            w = (w - decay * w) - (s->lr * (m * s->bias_correct1)) / (sqrtf(v * s->bias_correct2) + o->eps);
            assert_near(w, adamw_in_double(o, s, i), 1e-6);
        }
        assert_bits(out->adamw.w[i], w);
        assert_bits(out->adamw.m[i], m);
        assert_bits(out->adamw.v[i], v);
    }
}

static const struct op_test adamw_test = {3 * COUNT(lengths), build_adamw, check_adamw,
                                          UINT64_C(0xca847f575a60cb5b)};

static const uint64_t sumsq_lengths[] = {1, 2, 15, 16, 17, 4095, 4096, 4097, 70001, (8u << 20) + 5000};

static double *tape_double(struct tape *t, double value)
{
    double *d = tape_bytes(t, sizeof *d, _Alignof(double));
    *d = value;
    return d;
}

static void build_sumsq(struct tape *t, uint32_t v, struct op_call *call)
{
    uint64_t n = sumsq_lengths[v];
    double *sum = tape_double(t, NAN);
    tape_output(t, sum, sizeof *sum);
    call->sumsq = (struct op_sumsq){.x = tape_floats(t, n, 1), .sum = sum, .n = n};
}

/* The order that ops_update.c promises to every backend. */
static double promised_sumsq(const float *x, uint64_t n)
{
    double sum = 0;
    for (uint64_t at = 0; at < n; at += 4096) {
        double lane[16] = {0};
        for (uint64_t i = at; i < n && i < at + 4096; i++)
            lane[i % 16] += (double)x[i] * (double)x[i];
        for (int w = 8; w > 0; w /= 2)
            for (int l = 0; l < w; l++)
                lane[l] += lane[l + w];
        sum += lane[0];
    }
    return sum;
}

static void check_sumsq(const struct op_call *in, const struct op_call *out)
{
    const struct op_sumsq *o = &in->sumsq;
    long double want = 0;
    for (uint64_t i = 0; i < o->n; i++)
        want += (long double)o->x[i] * (long double)o->x[i];
    assert_true(fabsl(*out->sumsq.sum - want) <= 1e-12L * want);
    assert_true(*out->sumsq.sum == promised_sumsq(o->x, o->n));
}

static const struct op_test sumsq_test = {COUNT(sumsq_lengths), build_sumsq, check_sumsq,
                                          UINT64_C(0x3a3892265d9e0d9e)};

static struct step_decision *tape_new_decision(struct tape *t, double sumsq)
{
    struct step_decision *d = tape_bytes(t, sizeof *d, _Alignof(struct step_decision));
    *d = (struct step_decision){.sumsq = sumsq, .scale = -1, .apply = 77};
    tape_output(t, d, sizeof *d);
    return d;
}

static void build_norm_add(struct tape *t, uint32_t v, struct op_call *call)
{
    call->norm_add = (struct op_norm_add){
        .sum = tape_double(t, 0.1), .decision = tape_new_decision(t, v == 0 ? NAN : 0.7), .first = v == 0};
}

static void check_norm_add(const struct op_call *in, const struct op_call *out)
{
    double want = in->norm_add.first ? 0.1 : 0.7 + 0.1;
    assert_true(out->norm_add.decision->sumsq == want);
}

static const struct op_test norm_add_test = {2, build_norm_add, check_norm_add, UINT64_C(0x976881c6323cd82a)};

static const struct decide_case {
    double sumsq, clip;
    uint32_t apply;
    float scale;
} decide_cases[] = {
    {0, 0, 1, 1},
    {25, 0, 1, 1},
    {25, 6, 1, 1},
    {25, 5, 1, 1},
    {25, 2, 1, (float)(2 / (5 + 1e-6))},
    {1e300, 1, 1, (float)(1 / (1e150 + 1e-6))},
    {(double)INFINITY, 0, 0, 1},
    {(double)NAN, 1, 0, 1},
};

static void build_decide(struct tape *t, uint32_t v, struct op_call *call)
{
    call->decide = (struct op_decide){.decision = tape_new_decision(t, decide_cases[v].sumsq),
                                      .clip = decide_cases[v].clip};
}

static void check_decide(const struct op_call *in, const struct op_call *out)
{
    const struct decide_case *c = decide_cases;
    while (memcmp(&c->sumsq, &in->decide.decision->sumsq, sizeof c->sumsq) != 0 || c->clip != in->decide.clip)
        c++;
    assert_int_equal(out->decide.decision->apply, c->apply);
    assert_bits(out->decide.decision->scale, c->scale);
}

static const struct op_test decide_test = {COUNT(decide_cases), build_decide, check_decide,
                                           UINT64_C(0x27e780106d53752f)};

static const struct op_test *const op_tests[OP_COUNT] = {
#define OP(name) [OP_##name] = &name##_test,
#include "kernels/ops.def"
#undef OP
};

/* ---- running them ---- */

static struct pool *pools[4]; /* pools[n]: of n threads */

/* By name: a new op must not change the values, and so the hashes, of the others. */
static uint32_t key_of(enum op op, uint32_t variant)
{
    uint32_t key = 0;
    for (const char *c = op_names[op]; *c; c++)
        key = key * 31 + (unsigned char)*c;
    return key << 16 | variant << 6;
}

static void build(enum op op, uint32_t variant, size_t shift, struct tape *t, struct op_call *call)
{
    *t = (struct tape){
        .shift = shift,
        .key = key_of(op, variant),
        .step = {.step = (UINT64_C(3) << 32) + 12345,
                 .seed = UINT64_C(0x123456789abcdef),
                 .lr = 1e-2f,
                 .bias_correct1 = 1.25f,
                 .bias_correct2 = 17.5f,
                 .grad_scale = 0.125f,
                 .valid_rows = UINT32_MAX,
                 .training = 1},
    };
    *call = (struct op_call){.op = op, .step = &t->step};
    op_tests[op]->build(t, variant, call);
}

static void run(enum op op, uint32_t variant, size_t shift, struct pool *pool, struct tape *t,
                struct op_call *call)
{
    build(op, variant, shift, t, call);
    cpu_ops[op](call, pool);
}

static void test_op_matches_reference(void **state)
{
    enum op op = (enum op)(uintptr_t)*state;

    for (uint32_t v = 0; v < op_tests[op]->variants; v++) {
        struct tape before, after;
        struct op_call in, out;
        build(op, v, 0, &before, &in);
        run(op, v, 0, pools[2], &after, &out);
        tape_check_guards(&after);
        op_tests[op]->check(&in, &out);
        tape_finish(&before);
        tape_finish(&after);
    }
}

static uint64_t hash_outputs(const struct tape *t, uint64_t hash)
{
    for (uint32_t i = 0; i < t->n_out; i++)
        for (size_t b = 0; b < t->out[i].bytes; b++)
            hash = (hash ^ ((const unsigned char *)t->out[i].at)[b]) * UINT64_C(0x100000001b3); /* FNV-1a */
    return hash;
}

static void test_op_has_golden_bits(void **state)
{
    enum op op = (enum op)(uintptr_t)*state;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    if (op_tests[op]->golden == 0)
        SKIP_TEST("its bits depend on a library");
    for (uint32_t v = 0; v < op_tests[op]->variants; v++) {
        struct tape t;
        struct op_call call;
        run(op, v, 0, pools[2], &t, &call);
        hash = hash_outputs(&t, hash);
        tape_finish(&t);
    }
    if (hash != op_tests[op]->golden)
        fail_msg("%s: the hash of all variants is 0x%016llx", op_names[op], (unsigned long long)hash);
}

static void test_op_has_same_bits(void **state)
{
    static const struct {
        uint32_t threads;
        size_t shift;
    } ways[] = {{1, 4}, {2, 0}, {3, 12}, {3, 36}};
    enum op op = (enum op)(uintptr_t)*state;

    for (uint32_t v = 0; v < op_tests[op]->variants; v++) {
        struct tape first;
        struct op_call call;
        run(op, v, 0, pools[1], &first, &call);
        for (size_t i = 0; i < COUNT(ways); i++) {
            struct tape t;
            run(op, v, ways[i].shift, pools[ways[i].threads], &t, &call);
            assert_same_outputs(&first, &t);
            tape_finish(&t);
        }
        tape_finish(&first);
    }
}

/* Two threads walk through all the ops at once, on one pool, in opposite directions. */
struct walk {
    pthread_t thread;
    bool backwards;
    struct tape (*tapes)[4]; /* of each op, its last four variants: the large ones */
};

static uint32_t walk_variant(enum op op, uint32_t i)
{
    uint32_t n = op_tests[op]->variants;
    return n > 4 ? n - 1 - i : i % n;
}

static void *walk_main(void *arg)
{
    struct walk *w = arg;
    cpu_thread_init();
    for (int i = 0; i < OP_COUNT; i++) {
        enum op op = (enum op)(w->backwards ? OP_COUNT - 1 - i : i);
        for (uint32_t v = 0; v < 4; v++) {
            struct op_call call;
            run(op, walk_variant(op, v), w->backwards ? 4 : 0, pools[3], &w->tapes[op][v], &call);
        }
    }
    return NULL;
}

static void test_concurrent_ops_have_same_bits(void **state)
{
    struct walk walks[2] = {{.backwards = false}, {.backwards = true}};
    (void)state;

    for (int i = 0; i < 2; i++) {
        walks[i].tapes = calloc(OP_COUNT, sizeof *walks[i].tapes);
        assert_non_null(walks[i].tapes);
        assert_int_equal(pthread_create(&walks[i].thread, NULL, walk_main, &walks[i]), 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(walks[i].thread, NULL);
    for (int op = 0; op < OP_COUNT; op++)
        for (uint32_t v = 0; v < 4; v++) {
            struct tape alone;
            struct op_call call;
            run((enum op)op, walk_variant((enum op)op, v), 0, pools[1], &alone, &call);
            for (int i = 0; i < 2; i++) {
                tape_check_guards(&walks[i].tapes[op][v]);
                assert_same_outputs(&alone, &walks[i].tapes[op][v]);
                tape_finish(&walks[i].tapes[op][v]);
            }
            tape_finish(&alone);
        }
    for (int i = 0; i < 2; i++)
        free(walks[i].tapes);
}

/* ---- matrix products: the definition of gemm.h ---- */

static float chain_element(const struct gemm *g, uint32_t i, uint32_t j, float old)
{
    float sum = g->accumulate ? old : 0.0f;
    for (uint32_t k0 = 0; k0 < g->k; k0 += GEMM_K_BLOCK) {
        uint32_t k1 = g->k - k0 < GEMM_K_BLOCK ? g->k : k0 + GEMM_K_BLOCK;
        float block = 0;
        for (uint32_t k = k0; k < k1; k++)
            block = fmaf(g->a[g->a_trans ? (size_t)k * g->m + i : (size_t)i * g->k + k],
                         g->b[g->b_trans ? (size_t)j * g->k + k : (size_t)k * g->n + j], block);
        sum = k0 == 0 && !g->accumulate ? block : sum + block;
    }
    return sum;
}

static void run_best(const struct gemm *g)
{
    gemm_run(g, pools[2]);
}

static void run_small_plain(const struct gemm *g)
{
    gemm_small_run(g, GEMM_PLAIN, pools[2]);
}

static void run_small_avx2(const struct gemm *g)
{
    gemm_small_run(g, GEMM_AVX2, pools[2]);
}

/* c must hold the definition's bits. Of large products a sample: every row and column takes part. */
static void check_chain(void (*run_gemm)(const struct gemm *g), struct gemm g)
{
    size_t n = (size_t)g.m * g.n;
    float *a = malloc((size_t)g.m * g.k * sizeof *a), *b = malloc((size_t)g.k * g.n * sizeof *b);
    float *c = malloc(n * sizeof *c), *old = malloc(n * sizeof *old);

    ref_fill(a, (uint64_t)g.m * g.k, 1, 1);
    ref_fill(b, (uint64_t)g.k * g.n, 2, 1);
    ref_fill(old, n, 3, 1);
    memcpy(c, old, n * sizeof *c);
    g.a = a;
    g.b = b;
    g.c = c;
    run_gemm(&g);

    size_t samples = 64 + 150000 / g.k;
    for (size_t i = 0; i < n && i < samples; i++) {
        size_t at = samples >= n ? i : rng_philox(3, (uint32_t)i, 0, rng_word2(RNG_TEST, 2), 0).v[0] % n;
        float want = chain_element(&g, (uint32_t)(at / g.n), (uint32_t)(at % g.n), old[at]);
        if (memcmp(&c[at], &want, sizeof want) != 0)
            fail_msg("m %u n %u k %u a_trans %d b_trans %d: element %zu is not the chain", g.m, g.n, g.k,
                     g.a_trans, g.b_trans, at);
    }
    free(a);
    free(b);
    free(c);
    free(old);
}

static void check_chain_all_forms(void (*run_gemm)(const struct gemm *g), uint32_t m, uint32_t n, uint32_t k)
{
    check_chain(run_gemm, (struct gemm){.m = m, .n = n, .k = k, .b_trans = true});
    check_chain(run_gemm, (struct gemm){.m = m, .n = n, .k = k});
    check_chain(run_gemm, (struct gemm){.m = m, .n = n, .k = k, .a_trans = true});
    check_chain(run_gemm, (struct gemm){.m = m, .n = n, .k = k, .a_trans = true, .accumulate = true});
}

static void check_small_shapes(void (*run_gemm)(const struct gemm *g))
{
    for (uint32_t i = 0; i < COUNT(products); i++) {
        const uint32_t *p = products[i];
        if (p[0] < GEMM_SMALL || p[2] < GEMM_SMALL)
            check_chain_all_forms(run_gemm, p[0], p[2], p[1]);
    }
    for (uint32_t n = 1; n < GEMM_SMALL; n++) {
        check_chain_all_forms(run_gemm, 129 + n, n, 385);
        check_chain_all_forms(run_gemm, n, 129 + n, 3 * n);
    }
}

static void test_small_gemm_is_fma_chain_on_every_isa(void **state)
{
    (void)state;
    check_small_shapes(run_best);
    check_small_shapes(run_small_plain);
    if (gemm_small_best() >= GEMM_AVX2)
        check_small_shapes(run_small_avx2);
}

static void test_gemm_on_avx512_is_fma_chain(void **state)
{
    struct rng_block r;
    (void)state;

    if (strncmp(cpu_numerics(), "avx512", 6) != 0)
        SKIP_TEST("no AVX512 here: the library's order of summation is its own");
    for (uint32_t i = 0; i < COUNT(products); i++)
        check_chain_all_forms(run_best, products[i][0], products[i][2], products[i][1]);
    for (uint32_t i = 0; i < 60; i++) {
        r = rng_philox(7, i, 0, rng_word2(RNG_TEST, 1), 0);
        check_chain_all_forms(run_best, 16 + r.v[0] % 500, 16 + r.v[1] % 900,
                              1 + r.v[2] % (i % 2 ? 1200 : 64));
    }
}

/* ---- exp and tanh, and values that are not finite ---- */

static void test_exp_is_within_1_5_ulp(void **state)
{
    double worst = 0;
    (void)state;
    for (float x = -80; x <= 80; x += 2.3e-4f) {
        double e = ref_ulps(vmath_exp(x), exp((double)x));
        worst = e > worst ? e : worst;
    }
    print_message("# exp: %.2f ulp\n", worst);
    assert_true(worst <= 1.5);
    assert_true(vmath_exp(0) == 1);
    assert_true(vmath_exp(-1000) == vmath_exp(-80) && vmath_exp(-INFINITY) > FLT_MIN);
    assert_true(vmath_exp(1000) == vmath_exp(80));
    assert_true(isnan(vmath_exp(NAN)));
}

static void test_tanh_is_within_3_ulp(void **state)
{
    double worst = 0;
    (void)state;
    for (float x = 1e-30f; x < 100; x *= 1.00003f) {
        double e = ref_ulps(vmath_tanh(x), tanh((double)x));
        worst = e > worst ? e : worst;
        assert_true(vmath_tanh(-x) == -vmath_tanh(x));
    }
    print_message("# tanh: %.2f ulp\n", worst);
    assert_true(worst <= 3);
    assert_true(vmath_tanh(INFINITY) == 1 && vmath_tanh(-INFINITY) == -1);
    assert_true(isnan(vmath_tanh(NAN)));
}

static void test_activations_pass_extreme_values(void **state)
{
    (void)state;
    for (int act = 0; act < ACT_COUNT; act++) {
        float x[] = {NAN, INFINITY, 1e30f, -1e30f, 3e38f, -3e38f, -100, 100, -0.0f, 1e-40f};
        float y[COUNT(x)], dx[COUNT(x)], dy[COUNT(x)];
        for (uint32_t i = 0; i < COUNT(x); i++)
            dy[i] = 2;
        struct op_call fwd = {.op = OP_act_fwd, .act_fwd = {x, y, COUNT(x), (enum act)act}};
        struct op_call bwd = {.op = OP_act_bwd, .act_bwd = {x, dy, dx, COUNT(x), (enum act)act}};
        cpu_ops[OP_act_fwd](&fwd, pools[1]);
        cpu_ops[OP_act_bwd](&bwd, pools[1]);
        assert_true(isnan(y[0]));
        for (uint32_t i = 1; i < COUNT(x); i++) {
            assert_true(y[i] == (float)ref_act((enum act)act, (double)x[i]) ||
                        fabsf(y[i] - x[i] / 2) < 1e-40f);
            assert_true(fabs((double)dx[i] -
                             2 * ref_act_slope((enum act)act, fmax(-99, fmin(99, (double)x[i])))) < 1e-6);
        }
    }
}

static void run_xent(const float *x, uint32_t n, int32_t target, struct step_result *result, float *dx)
{
    struct step_args step = {.grad_scale = 1, .valid_rows = 1};
    struct op_call fwd = {
        .op = OP_softmax_xent_fwd, .step = &step, .softmax_xent_fwd = {x, &target, result, 1, n, 0}};
    struct op_call bwd = {
        .op = OP_softmax_xent_bwd, .step = &step, .softmax_xent_bwd = {x, &target, dx, 1, n, 0}};
    cpu_ops[OP_softmax_xent_fwd](&fwd, pools[1]);
    cpu_ops[OP_softmax_xent_bwd](&bwd, pools[1]);
}

static void test_nan_logits_give_nan_loss(void **state)
{
    static const float bad[] = {NAN, INFINITY};
    (void)state;
    for (uint32_t n = 1; n < 40; n++)
        for (uint32_t at = 0; at < n; at++)
            for (uint32_t b = 0; b < COUNT(bad); b++) {
                float x[40] = {0}, dx[40];
                struct step_result result;
                x[at] = bad[b];
                run_xent(x, n, (int32_t)(n / 2), &result, dx);
                assert_true(isnan(result.loss));
                assert_true(result.correct == 0);
                assert_true(isnan(dx[at]));
            }
}

static void test_extreme_logits_give_finite_loss(void **state)
{
    float x[3] = {3e38f, -3e38f, -INFINITY}, dx[3];
    struct step_result result;
    (void)state;

    run_xent(x, 3, 0, &result, dx);
    assert_true(result.loss == 0 && result.correct == 1);
    assert_true(dx[0] == 0);
    run_xent(x, 3, 1, &result, dx);
    assert_true(isfinite(result.loss) && result.loss > 1e38 && result.correct == 0);
}

static void test_equal_logits_count_the_first(void **state)
{
    float x[4] = {1, 2, 2, 0}, dx[4];
    struct step_result result;
    (void)state;

    run_xent(x, 4, 1, &result, dx);
    assert_true(result.correct == 1);
    run_xent(x, 4, 2, &result, dx);
    assert_true(result.correct == 0);
}

static void test_nan_gradient_leaves_weights(void **state)
{
    float w[3] = {1, 2, 3}, dw[3] = {0, NAN, 0}, m[3] = {0}, v[3] = {0};
    struct step_args step = {.lr = 1, .bias_correct1 = 1, .bias_correct2 = 1};
    struct step_decision decision;
    double sum;
    (void)state;

    struct op_call calls[] = {
        {.op = OP_sumsq, .sumsq = {dw, &sum, 3}},
        {.op = OP_norm_add, .norm_add = {&sum, &decision, true}},
        {.op = OP_decide, .decide = {&decision, 1}},
        {.op = OP_adamw, .step = &step, .adamw = {w, dw, m, v, &decision, 3, 0.9f, 0.999f, 1e-8f, 0.1f}},
    };
    for (uint32_t i = 0; i < COUNT(calls); i++)
        cpu_ops[calls[i].op](&calls[i], pools[2]);
    assert_int_equal(decision.apply, 0);
    assert_true(w[0] == 1 && w[1] == 2 && w[2] == 3);
    assert_true(m[0] == 0 && v[1] == 0);
}

static void test_dropout_keeps_number_equal_to_p(void **state)
{
    struct step_args step = {.step = 1, .seed = 2, .training = 1};
    struct rng_block b = rng_philox(2, 0, 3, rng_word2(RNG_DROPOUT, 4), 1);
    float x = 1, y = 0, p = rng_unit(b.v[0]);
    struct op_call call = {
        .op = OP_dropout,
        .step = &step,
        .dropout = {.x = &x, .y = &y, .rows = 1, .n = 1, .layer = 4, .first_row = 3, .p = p}};
    (void)state;

    cpu_ops[OP_dropout](&call, pools[1]);
    assert_bits(y, 1.0f / (1.0f - p));
}

static void test_numerics_names_isa_and_library(void **state)
{
    (void)state;
    print_message("# %s\n", cpu_numerics());
    assert_non_null(strstr(cpu_numerics(), " oneDNN "));
    assert_ptr_equal(cpu_numerics(), cpu_numerics());
}

static int open_pools(void **state)
{
    (void)state;
    cpu_thread_init();
    for (uint32_t n = 1; n <= 3; n++)
        if (pool_create(n, &pools[n]) < 0)
            return -1;
    return 0;
}

static int close_pools(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 3; n++)
        pool_destroy(pools[n]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define OP(name)                                                                                             \
    {"test_" #name "_matches_reference", test_op_matches_reference, NULL, NULL,                              \
     (void *)(uintptr_t)OP_##name},                                                                          \
        {"test_" #name "_has_same_bits", test_op_has_same_bits, NULL, NULL, (void *)(uintptr_t)OP_##name},   \
        {"test_" #name "_has_golden_bits", test_op_has_golden_bits, NULL, NULL,                              \
         (void *)(uintptr_t)OP_##name},
#include "kernels/ops.def"
#undef OP
        cmocka_unit_test(test_concurrent_ops_have_same_bits),
        cmocka_unit_test(test_small_gemm_is_fma_chain_on_every_isa),
        cmocka_unit_test(test_gemm_on_avx512_is_fma_chain),
        cmocka_unit_test(test_exp_is_within_1_5_ulp),
        cmocka_unit_test(test_tanh_is_within_3_ulp),
        cmocka_unit_test(test_activations_pass_extreme_values),
        cmocka_unit_test(test_nan_logits_give_nan_loss),
        cmocka_unit_test(test_extreme_logits_give_finite_loss),
        cmocka_unit_test(test_equal_logits_count_the_first),
        cmocka_unit_test(test_nan_gradient_leaves_weights),
        cmocka_unit_test(test_dropout_keeps_number_equal_to_p),
        cmocka_unit_test(test_numerics_names_isa_and_library),
    };
    return cmocka_run_group_tests(tests, open_pools, close_pools);
}
