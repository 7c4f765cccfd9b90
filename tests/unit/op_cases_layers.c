/* Test cases of the linear ops, the bias, the activations and dropout, in the form that op_cases.h
 * describes. */
#include "tests/unit/op_cases.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/vmath.h"
#include "tests/unit/reference.h"

/* Against the product in double: |error| <= (k + 2) eps * sum of |a b|, for any order of summation. `a` and
 * `b` have the type `dtype`. */
static void check_product(enum dtype dtype, const void *a, const void *b, const float *before, const float *c,
                          struct ref_matmul p)
{
    size_t n = (size_t)p.m * p.n;
    double *want = malloc(n * sizeof *want), *size = malloc(n * sizeof *size);
    double *da = to_doubles(dtype, a, (uint64_t)p.m * p.k), *db = to_doubles(dtype, b, (uint64_t)p.k * p.n);

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

/* Forms: the product; with bias; with bias and activation; with the value before it. */
#define LINEAR_FORMS 4

static void build_linear_fwd(struct tape *t, uint32_t v, struct op_call *call)
{
    const struct op_types *types = &t->types;
    uint32_t form = v % LINEAR_FORMS;
    uint32_t rows = products[v / LINEAR_FORMS][0], in = products[v / LINEAR_FORMS][1],
             out = products[v / LINEAR_FORMS][2];
    call->linear_fwd =
        (struct op_linear_fwd){.x = tape_in(t, types->dtype, (uint64_t)rows * in, 1),
                               .w = tape_in(t, types->w, (uint64_t)out * in, 1),
                               .b = form > 0 ? tape_in(t, types->w, out, 1) : NULL,
                               .z = form == 3 ? tape_out(t, types->out, (uint64_t)rows * out) : NULL,
                               .y = tape_out(t, types->out, (uint64_t)rows * out),
                               .rows = rows,
                               .in = in,
                               .out = out,
                               .act = form > 1 ? ACT_TANH : ACT_NONE,
                               .dtype = types->dtype,
                               .w_dtype = types->w,
                               .y_dtype = types->out};
}

/* The product and the bias in double, each with an error that any order of summation may have. The input of
 * the activation is rounded to the type of y. */
static void check_linear_fwd(const struct op_call *in, const struct op_call *out)
{
    const struct op_linear_fwd *o = &in->linear_fwd, *got = &out->linear_fwd;
    size_t n = (size_t)o->rows * o->out;
    double *want = malloc(n * sizeof *want), *size = malloc(n * sizeof *size);
    double *x = to_doubles(o->dtype, o->x, (uint64_t)o->rows * o->in),
           *w = to_doubles(o->w_dtype, o->w, (uint64_t)o->out * o->in);

    ref_matmul(&(struct ref_matmul){.a = x, .b = w, .m = o->rows, .n = o->out, .k = o->in, .b_trans = true},
               want, size);
    for (size_t i = 0; i < n; i++) {
        double bias = o->b ? (double)get(o->w_dtype, o->b, i % o->out) : 0, z = want[i] + bias;
        double off = (o->in + 3.0) * (double)EPS * (size[i] + fabs(bias));
        if (o->z)
            assert_near_in(o->y_dtype, got->z, i, z, off);
        if (o->act == ACT_NONE)
            assert_near_in(o->y_dtype, got->y, i, z, off);
        else
            assert_near_in(o->y_dtype, got->y, i, ref_act(o->act, z),
                           off + rounding_error(o->y_dtype, fabs(z) + off) + 8 * (double)EPS);
    }
    free(want);
    free(size);
    free(x);
    free(w);
}

const struct op_test linear_fwd_test = {LINEAR_FORMS * N_PRODUCTS, build_linear_fwd, check_linear_fwd};

static void build_linear_bwd_data(struct tape *t, uint32_t v, struct op_call *call)
{
    uint32_t rows = products[v / 2][0], in = products[v / 2][1], out = products[v / 2][2];
    call->linear_bwd_data =
        (struct op_linear_bwd_data){.dy = tape_in(t, t->types.dtype, (uint64_t)rows * out, 1),
                                    .w = tape_in(t, t->types.w, (uint64_t)out * in, 1),
                                    .z = v % 2 ? tape_in(t, t->types.dtype, (uint64_t)rows * in, 2) : NULL,
                                    .dx = tape_out(t, t->types.dtype, (uint64_t)rows * in),
                                    .rows = rows,
                                    .in = in,
                                    .out = out,
                                    .act = v % 2 ? ACT_TANH : ACT_NONE,
                                    .dtype = t->types.dtype,
                                    .w_dtype = t->types.w};
}

static void check_linear_bwd_data(const struct op_call *in, const struct op_call *out)
{
    const struct op_linear_bwd_data *o = &in->linear_bwd_data;
    size_t n = (size_t)o->rows * o->in;
    double *want = malloc(n * sizeof *want), *size = malloc(n * sizeof *size);
    double *dy = to_doubles(o->dtype, o->dy, (uint64_t)o->rows * o->out),
           *w = to_doubles(o->w_dtype, o->w, (uint64_t)o->out * o->in);

    ref_matmul(&(struct ref_matmul){.a = dy, .b = w, .m = o->rows, .n = o->in, .k = o->out}, want, size);
    for (size_t i = 0; i < n; i++) {
        double slope = o->z ? ref_act_slope(o->act, (double)get(o->dtype, o->z, i)) : 1;
        assert_near_in(o->dtype, out->linear_bwd_data.dx, i, want[i] * slope,
                       (o->out + 2.0) * (double)EPS * size[i] * fabs(slope) +
                           8 * (double)EPS * fabs(want[i]));
    }
    free(want);
    free(size);
    free(dy);
    free(w);
}

const struct op_test linear_bwd_data_test = {2 * N_PRODUCTS, build_linear_bwd_data, check_linear_bwd_data};

static void build_linear_bwd_weight(struct tape *t, uint32_t v, struct op_call *call)
{
    uint32_t rows = products[v / 2][0], in = products[v / 2][1], out = products[v / 2][2];
    bool accumulate = v % 2;
    uint64_t n = (uint64_t)out * in;
    call->linear_bwd_weight =
        (struct op_linear_bwd_weight){.dy = tape_in(t, t->types.dtype, (uint64_t)rows * out, 1),
                                      .x = tape_in(t, t->types.dtype, (uint64_t)rows * in, 1),
                                      .dw = accumulate ? tape_state(t, n, 1) : tape_result(t, n),
                                      .rows = rows,
                                      .in = in,
                                      .out = out,
                                      .accumulate = accumulate,
                                      .dtype = t->types.dtype};
}

static void check_linear_bwd_weight(const struct op_call *in, const struct op_call *out)
{
    const struct op_linear_bwd_weight *o = &in->linear_bwd_weight;
    check_product(o->dtype, o->dy, o->x, o->accumulate ? o->dw : NULL, out->linear_bwd_weight.dw,
                  (struct ref_matmul){.m = o->out, .n = o->in, .k = o->rows, .a_trans = true});
}

const struct op_test linear_bwd_weight_test = {2 * N_PRODUCTS, build_linear_bwd_weight,
                                               check_linear_bwd_weight};

static void build_bias_fwd(struct tape *t, uint32_t v, struct op_call *call)
{
    uint32_t rows = matrices[v / 2][0], n = matrices[v / 2][1];
    enum dtype dtype = t->types.dtype;
    void *y = v % 2 ? tape_out(t, dtype, (uint64_t)rows * n) : tape_inout(t, dtype, (uint64_t)rows * n, 1);
    call->bias_fwd = (struct op_bias_fwd){.x = v % 2 ? tape_in(t, dtype, (uint64_t)rows * n, 1) : y,
                                          .b = tape_in(t, t->types.w, n, 1),
                                          .y = y,
                                          .rows = rows,
                                          .n = n,
                                          .dtype = dtype,
                                          .w_dtype = t->types.w};
}

static void check_bias_fwd(const struct op_call *in, const struct op_call *out)
{
    const struct op_bias_fwd *o = &in->bias_fwd;
    for (size_t i = 0; i < (size_t)o->rows * o->n; i++)
        assert_rounded(o->dtype, out->bias_fwd.y, i,
                       get(o->dtype, o->x, i) + get(o->w_dtype, o->b, i % o->n));
}

const struct op_test bias_fwd_test = {2 * N_MATRICES, build_bias_fwd, check_bias_fwd};

static void build_bias_bwd(struct tape *t, uint32_t v, struct op_call *call)
{
    uint32_t rows = matrices[v / 2][0], n = matrices[v / 2][1];
    bool accumulate = v % 2;
    call->bias_bwd = (struct op_bias_bwd){.dy = tape_in(t, t->types.dtype, (uint64_t)rows * n, 1),
                                          .db = accumulate ? tape_state(t, n, 1) : tape_result(t, n),
                                          .rows = rows,
                                          .n = n,
                                          .accumulate = accumulate,
                                          .dtype = t->types.dtype};
}

static void check_bias_bwd(const struct op_call *in, const struct op_call *out)
{
    const struct op_bias_bwd *o = &in->bias_bwd;
    for (uint32_t c = 0; c < o->n; c++) {
        double sum = o->accumulate ? (double)o->db[c] : 0, size = fabs(sum);
        for (uint32_t r = 0; r < o->rows; r++) {
            double dy = (double)get(o->dtype, o->dy, (size_t)r * o->n + c);
            sum += dy;
            size += fabs(dy);
        }
        /* chunks of 32: the error grows with rows / 32, not with rows */
        assert_near(out->bias_bwd.db[c], sum, (34 + o->rows / 32) * (double)EPS * size);
    }
}

const struct op_test bias_bwd_test = {2 * N_MATRICES, build_bias_bwd, check_bias_bwd,
                                      UINT64_C(0x69e411ed03c9ff50), UINT64_C(0x04bf757e71d48c05)};

/* Variants: every length x every activation x in place or not. */
static uint64_t act_length(uint32_t v)
{
    return lengths[v / ACT_COUNT % N_LENGTHS];
}

static bool act_in_place(uint32_t v)
{
    return v / ACT_COUNT / N_LENGTHS == 1;
}

static void build_act_fwd(struct tape *t, uint32_t v, struct op_call *call)
{
    uint64_t n = act_length(v);
    struct op_act_fwd *o = &call->act_fwd;
    *o = (struct op_act_fwd){.n = n, .act = v % ACT_COUNT, .dtype = t->types.dtype};
    if (act_in_place(v))
        o->x = o->y = tape_inout(t, o->dtype, n, 10);
    else {
        o->x = tape_in(t, o->dtype, n, 10);
        o->y = tape_out(t, o->dtype, n);
    }
}

/* Computes the activation with the same arithmetic as the op, but compiled without vectors or clones. */
static float plain_act(enum act act, float x)
{
    switch (act) {
    case ACT_RELU:
        return vmath_relu(x);
    case ACT_GELU:
        return vmath_gelu(x);
    case ACT_TANH:
        return vmath_tanh(x);
    case ACT_GELU_ERF:
        return vmath_gelu_erf(x);
    case ACT_SILU:
        return vmath_silu(x);
    default:
        return x;
    }
}

static void check_act_fwd(const struct op_call *in, const struct op_call *out)
{
    const struct op_act_fwd *o = &in->act_fwd;
    for (uint64_t i = 0; i < o->n; i++) {
        float x = get(o->dtype, o->x, i);
        double want = ref_act(o->act, (double)x);
        assert_near_in(o->dtype, out->act_fwd.y, i, want, 1e-6 * fabs(want) + 1e-9);
        assert_rounded(o->dtype, out->act_fwd.y, i, plain_act(o->act, x));
    }
}

const struct op_test act_fwd_test = {2 * ACT_COUNT * N_LENGTHS, build_act_fwd, check_act_fwd,
                                     UINT64_C(0x634b24f685efc3df), UINT64_C(0x986de934f3bafc3e)};

static void build_act_bwd(struct tape *t, uint32_t v, struct op_call *call)
{
    uint64_t n = act_length(v);
    struct op_act_bwd *o = &call->act_bwd;
    *o = (struct op_act_bwd){
        .x = tape_in(t, t->types.dtype, n, 8), .n = n, .act = v % ACT_COUNT, .dtype = t->types.dtype};
    if (act_in_place(v))
        o->dy = o->dx = tape_inout(t, o->dtype, n, 1);
    else {
        o->dy = tape_in(t, o->dtype, n, 1);
        o->dx = tape_out(t, o->dtype, n);
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
    case ACT_GELU_ERF:
        return dy * vmath_gelu_erf_slope(x);
    case ACT_SILU:
        return dy * vmath_silu_slope(x);
    default:
        return dy;
    }
}

static void check_act_bwd(const struct op_call *in, const struct op_call *out)
{
    const struct op_act_bwd *o = &in->act_bwd;
    for (uint64_t i = 0; i < o->n; i++) {
        float x = get(o->dtype, o->x, i), dy = get(o->dtype, o->dy, i);
        double slope = ref_act_slope(o->act, (double)x);
        assert_near_in(o->dtype, out->act_bwd.dx, i, (double)dy * slope,
                       5e-7 * (1 + fabs(slope)) * fabs((double)dy));
        assert_rounded(o->dtype, out->act_bwd.dx, i, plain_act_bwd(o->act, x, dy));
    }
}

const struct op_test act_bwd_test = {2 * ACT_COUNT * N_LENGTHS, build_act_bwd, check_act_bwd,
                                     UINT64_C(0x8d42c15b88ada982), UINT64_C(0x3c797fcc7cb7e342)};

/* Variants: shapes x {training, in place, not training}. */
static void build_dropout(struct tape *t, uint32_t v, struct op_call *call)
{
    uint32_t rows = matrices[v / 3][0], n = matrices[v / 3][1];
    uint64_t count = (uint64_t)rows * n;
    struct op_dropout *o = &call->dropout;

    t->step.training = v % 3 != 2;
    *o = (struct op_dropout){
        .rows = rows, .n = n, .layer = 5, .first_row = 1000, .p = 0.3f, .dtype = t->types.dtype};
    if (v % 3 == 1)
        o->x = o->y = tape_inout(t, o->dtype, count, 1);
    else {
        o->x = tape_in(t, o->dtype, count, 1);
        o->y = tape_out(t, o->dtype, count);
    }
}

static void check_dropout(const struct op_call *in, const struct op_call *out)
{
    const struct op_dropout *o = &in->dropout;
    for (uint32_t r = 0; r < o->rows; r++)
        for (uint32_t e = 0; e < o->n; e++) {
            float x = get(o->dtype, o->x, (size_t)r * o->n + e), want = x;
            if (in->step->training)
                want = ref_dropout_keeps(in->step, RNG_DROPOUT, o->layer, o->first_row + r, e, o->p)
                           ? x / (1.0f - o->p)
                           : 0.0f;
            assert_rounded(o->dtype, out->dropout.y, (size_t)r * o->n + e, want);
        }
}

const struct op_test dropout_test = {3 * N_MATRICES, build_dropout, check_dropout,
                                     UINT64_C(0xb5aaa15c0f8f7c9a), UINT64_C(0x17a82ff6aece229a)};
