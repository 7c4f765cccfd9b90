/* Rows of the losses: see op_cases.h. */
#include "tests/unit/op_cases.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "tests/unit/reference.h"

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

const struct op_test softmax_xent_fwd_test = {2 * N_MATRICES, build_softmax_xent_fwd, check_softmax_xent_fwd};

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

const struct op_test softmax_xent_bwd_test = {2 * N_MATRICES, build_softmax_xent_bwd, check_softmax_xent_bwd,
                                              UINT64_C(0x5dce848bc5e7259a)};

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

const struct op_test mse_fwd_test = {2 * N_MATRICES, build_mse_fwd, check_mse_fwd,
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

const struct op_test mse_bwd_test = {2 * N_MATRICES, build_mse_bwd, check_mse_bwd,
                                     UINT64_C(0x24ceb84044b3bcdd)};
