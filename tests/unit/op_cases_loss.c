/* Test cases of the losses, in the form that op_cases.h describes. */
#include "tests/unit/op_cases.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/reference.h"

/* In the tests of losses, rows beyond valid_rows hold NaN and impossible targets. Odd variants have such
 * rows. */
#define LOSS_FIRST_ROW 7

static uint32_t loss_valid(uint32_t v, uint32_t rows)
{
    return v % 2 ? rows / 2 : rows;
}

static void *loss_inputs(struct tape *t, enum dtype dtype, uint32_t v, uint32_t rows, uint32_t n, float scale)
{
    void *x = tape_in(t, dtype, (uint64_t)rows * n, scale);
    uint32_t valid = loss_valid(v, rows);

    t->step.valid_rows = LOSS_FIRST_ROW + valid;
    for (size_t i = (size_t)valid * n; i < (size_t)rows * n; i++)
        put(dtype, x, i, NAN);
    return x;
}

/* A group state with a loss scale, for cases in which the gradient has the type F16. The other fields mean
 * nothing to a loss. */
static const struct group_state *loss_group(struct tape *t)
{
    if (t->types.out != DTYPE_F16)
        return NULL;
    struct group_state *g = tape_bytes(t, sizeof *g, _Alignof(struct group_state));
    memset(g, 0xff, sizeof *g);
    g->loss_scale = 100.1f;
    return g;
}

/* Returns the exact factor by which an op multiplies the gradient of a loss. */
static double gradient_factor(const struct step_args *step, const struct group_state *group)
{
    return (double)(group ? step->grad_scale * group->loss_scale : step->grad_scale);
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

static bool is_first_max(const float *x, uint32_t n, uint32_t at)
{
    for (uint32_t i = 0; i < n; i++)
        if (i < at ? x[i] >= x[at] : x[i] > x[at])
            return false;
    return true;
}

/* The five forms of a call: 0 computes the loss. 1 computes the gradient. 2 computes both and writes the
 * gradient over the logits, if both have the same type. 3 adds label smoothing and several targets per
 * sample. 4 also adds to an existing result. Odd variants have padding. */
#define XENT_FORMS 5

static void build_softmax_xent(struct tape *t, uint32_t v, struct op_call *call)
{
    uint32_t form = v / 2 % XENT_FORMS, rows = matrices[v / 2 / XENT_FORMS][0],
             n = matrices[v / 2 / XENT_FORMS][1];
    const uint64_t count = (uint64_t)rows * n;
    struct op_softmax_xent o = {.x = loss_inputs(t, t->types.dtype, v, rows, n, 20),
                                .target = loss_classes(t, v, rows, n),
                                .rows = rows,
                                .n = n,
                                .first_row = LOSS_FIRST_ROW,
                                .seq = 1,
                                .group = loss_group(t),
                                .dtype = t->types.dtype,
                                .dx_dtype = t->types.out};

    if (form != 1)
        o.result = loss_result(t);
    if (form == 1 || (form == 2 && o.dtype != o.dx_dtype))
        o.dx = tape_out(t, o.dx_dtype, count);
    else if (form == 2) {
        o.dx = (void *)(uintptr_t)o.x;
        tape_output(t, o.dx, count * dtype_size(o.dx_dtype));
    }
    if (form >= 3) { /* valid_rows counts samples of seq targets; some targets are ignored */
        int32_t *target = (int32_t *)(uintptr_t)o.target;
        o.dx = tape_out(t, o.dx_dtype, count);
        o.smoothing = 0.1f;
        o.seq = 3;
        o.first_row = 3 * LOSS_FIRST_ROW;
        t->step.valid_rows = LOSS_FIRST_ROW + loss_valid(v, rows) / 3 + (v % 2 == 0);
        for (uint32_t r = 0; r < rows; r += 4)
            target[r] = -1;
    }
    if (form == 4) {
        o.accumulate = true;
        *o.result = (struct step_result){3.5, 2};
        t->step.training = 0;
    }
    call->softmax_xent = o;
}

static bool xent_counts(const struct op_call *call, uint32_t r)
{
    const struct op_softmax_xent *o = &call->softmax_xent;
    return (o->first_row + r) / o->seq < call->step->valid_rows && o->target[r] >= 0;
}

/* -log of the smoothed target distribution's expectation, by its definition. */
static double smooth_loss(const double *x, uint32_t n, uint32_t target, double smoothing)
{
    double loss = (1 - smoothing) * ref_xent(x, n, target);
    for (uint32_t c = 0; smoothing > 0 && c < n; c++)
        loss += smoothing / n * ref_xent(x, n, c);
    return loss;
}

static void check_xent_gradient(const struct op_call *in, uint32_t r, const double *x, const void *dx,
                                double smoothing)
{
    const struct op_softmax_xent *o = &in->softmax_xent;
    const size_t at = (size_t)r * o->n;
    double scale = gradient_factor(in->step, o->group),
           log_sum = xent_counts(in, r) ? ref_xent(x, o->n, 0) + x[0] : 0;

    for (uint32_t i = 0; i < o->n; i++) {
        if (!xent_counts(in, r)) {
            assert_rounded(o->dx_dtype, dx, at + i, 0.0f);
            continue;
        }
        double p = exp(x[i] - log_sum), hot = i == (uint32_t)o->target[r];
        double want = p - smoothing / o->n - (1 - smoothing) * hot;
        /* logits within +-20: rounding x - max alone gives 40 eps */
        assert_near_in(o->dx_dtype, dx, at + i, want * scale,
                       (4e-6 * p + 2 * (double)EPS * (hot + smoothing)) * scale + 1e-34);
    }
}

static void check_softmax_xent(const struct op_call *in, const struct op_call *out)
{
    const struct op_softmax_xent *o = &in->softmax_xent, *got = &out->softmax_xent;
    double smoothing = in->step->training ? (double)o->smoothing : 0, loss = 0, correct = 0;

    if (o->accumulate) {
        loss = o->result->loss;
        correct = o->result->correct;
    }
    for (uint32_t r = 0; r < o->rows; r++) {
        const size_t row_bytes = o->n * dtype_size(o->dtype);
        float *x = to_floats(o->dtype, (const unsigned char *)o->x + r * row_bytes, o->n);
        double *d = ref_to_double(x, o->n);
        if (xent_counts(in, r)) {
            loss += smooth_loss(d, o->n, (uint32_t)o->target[r], smoothing);
            correct += is_first_max(x, o->n, (uint32_t)o->target[r]);
        }
        if (o->dx)
            check_xent_gradient(in, r, d, got->dx, smoothing);
        free(d);
        free(x);
    }
    if (!o->result)
        return;
    if (!(fabs(got->result->loss - loss) <= 1e-6 * o->rows + 1e-6 * fabs(loss)))
        fail_msg("loss %.12g, want %.12g", got->result->loss, loss);
    assert_true(got->result->correct == correct);
}

const struct op_test softmax_xent_test = {2 * XENT_FORMS * N_MATRICES, build_softmax_xent,
                                          check_softmax_xent};

/* The second half of the variants keeps result->correct. */
static void build_mse_fwd(struct tape *t, uint32_t v, struct op_call *call)
{
    bool keep = v >= 2 * N_MATRICES;
    uint32_t rows = matrices[v / 2 % N_MATRICES][0], n = matrices[v / 2 % N_MATRICES][1];
    call->mse_fwd = (struct op_mse_fwd){.x = loss_inputs(t, t->types.dtype, v, rows, n, 1),
                                        .target = loss_inputs(t, DTYPE_F32, v, rows, n, 1),
                                        .result = loss_result(t),
                                        .rows = rows,
                                        .n = n,
                                        .first_row = LOSS_FIRST_ROW,
                                        .keep_correct = keep,
                                        .dtype = t->types.dtype};
    if (keep)
        call->mse_fwd.result->correct = 2.5;
}

static void check_mse_fwd(const struct op_call *in, const struct op_call *out)
{
    const struct op_mse_fwd *o = &in->mse_fwd;
    uint32_t valid = in->step->valid_rows - o->first_row;
    double *x = to_doubles(o->dtype, o->x, (uint64_t)valid * o->n),
           *t = ref_to_double(o->target, (uint64_t)valid * o->n);
    double loss = 0;

    for (uint32_t r = 0; r < valid; r++)
        loss += ref_mse(x + (size_t)r * o->n, t + (size_t)r * o->n, o->n);
    assert_true(fabs(out->mse_fwd.result->loss - loss) <= 1e-13 * loss);
    assert_true(out->mse_fwd.result->correct == (o->keep_correct ? 2.5 : 0));
    free(x);
    free(t);
}

const struct op_test mse_fwd_test = {4 * N_MATRICES, build_mse_fwd, check_mse_fwd,
                                     UINT64_C(0x920c3093a8533597), UINT64_C(0x3413517821ee0dfa)};

static void build_mse_bwd(struct tape *t, uint32_t v, struct op_call *call)
{
    uint32_t rows = matrices[v / 2][0], n = matrices[v / 2][1];
    call->mse_bwd = (struct op_mse_bwd){.x = loss_inputs(t, t->types.dtype, v, rows, n, 1),
                                        .target = loss_inputs(t, DTYPE_F32, v, rows, n, 1),
                                        .dx = tape_out(t, t->types.dtype, (uint64_t)rows * n),
                                        .rows = rows,
                                        .n = n,
                                        .first_row = LOSS_FIRST_ROW,
                                        .group = loss_group(t),
                                        .dtype = t->types.dtype};
}

static void check_mse_bwd(const struct op_call *in, const struct op_call *out)
{
    const struct op_mse_bwd *o = &in->mse_bwd;
    size_t valid = (size_t)(in->step->valid_rows - o->first_row) * o->n;

    for (size_t i = 0; i < (size_t)o->rows * o->n; i++) {
        if (i >= valid) {
            assert_rounded(o->dtype, out->mse_bwd.dx, i, 0.0f);
            continue;
        }
        double want = 2 * ((double)get(o->dtype, o->x, i) - (double)o->target[i]) / o->n *
                      gradient_factor(in->step, o->group);
        assert_near_in(o->dtype, out->mse_bwd.dx, i, want, 5 * (double)EPS * fabs(want));
    }
}

const struct op_test mse_bwd_test = {2 * N_MATRICES, build_mse_bwd, check_mse_bwd,
                                     UINT64_C(0x24ceb84044b3bcdd), UINT64_C(0x76e8574d4739dd9b)};
