/* The losses, forward and backward.
 *
 * One thread computes a row. The row's maximum and sum go over LANES partial results that are folded in
 * one fixed way, on every machine. The caller then adds up the losses of the rows in double, in row order.
 * The losses are stored in an array of fixed size on the caller's stack, a batch of rows at a time.
 *
 * Rows at a position >= step->valid_rows are padding: they have no loss and gradient 0, and their targets
 * are not read. A NaN among the logits gives a NaN loss and gradient, and counts as a wrong answer.
 *
 * A row of a 16-bit type is widened into the thread's own memory first.
 *
 * Any thread may call these functions.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/as_floats.h"
#include "kernels/cpu/ops.h"
#include "kernels/vmath.h"

#define LANES 16
/* The number of rows in one batch. The losses of a batch are first stored in an array on the stack, and then
 * added up. */
#define BATCH_ROWS 512
#define LEAST_WORK 4096u

/* Returns the number of rows in one piece of work. Short rows share a piece of about LEAST_WORK elements. A
 * longer row is a piece of its own. */
static uint32_t rows_per_piece(uint32_t n)
{
    return n < LEAST_WORK ? LEAST_WORK / n : 1;
}

/* Returns how many of the `rows` rows that start at `first_row` are valid. A row is valid if it is not
 * padding. */
static uint32_t valid_rows(const struct step_args *step, uint32_t first_row, uint32_t rows)
{
    uint32_t left = step->valid_rows > first_row ? step->valid_rows - first_row : 0;
    return left < rows ? left : rows;
}

/* Returns the factor by which the gradient of every row is multiplied. `group` is NULL if losses are not
 * scaled. */
static float gradient_factor(const struct step_args *step, const struct group_state *group)
{
    return group ? step->grad_scale * group->loss_scale : step->grad_scale;
}

/* The arguments of one pool_run that computes the losses of some rows. The pool's threads call `row` for each
 * row. The arrays `loss` and `correct` receive the results of the rows. */
struct rows_ctx {
    const struct op_call *call;
    uint32_t begin, end; /* rows of this pool_run */
    uint32_t per_piece;
    double *loss; /* [end - begin], or NULL */
    uint8_t *correct;
    void (*row)(const struct rows_ctx *c, uint32_t r);
};

static void run_rows(void *ctx, uint32_t i)
{
    const struct rows_ctx *c = ctx;
    uint32_t r = c->begin + i * c->per_piece;
    uint32_t end = c->end - r < c->per_piece ? c->end : r + c->per_piece;

    for (; r < end; r++)
        c->row(c, r);
}

static void for_rows(struct rows_ctx *c, uint32_t begin, uint32_t end, struct pool *pool)
{
    c->begin = begin;
    c->end = end;
    uint32_t n = end - begin;
    pool_run(pool, run_rows, c, n / c->per_piece + (n % c->per_piece != 0));
}

/* Computes the losses of rows 0 to rows - 1, and adds them to *sum in the order of the rows. So the bits of
 * the sum are always the same. */
static void sum_rows(struct rows_ctx c, uint32_t rows, struct step_result *sum, struct pool *pool)
{
    double loss[BATCH_ROWS];
    uint8_t correct[BATCH_ROWS];

    c.loss = loss;
    c.correct = correct;
    for (uint32_t begin = 0; begin < rows; begin += BATCH_ROWS) {
        uint32_t n = rows - begin < BATCH_ROWS ? rows - begin : BATCH_ROWS;
        for_rows(&c, begin, begin + n, pool);
        for (uint32_t r = 0; r < n; r++) {
            sum->loss += loss[r];
            sum->correct += correct[r];
        }
        if (n < BATCH_ROWS)
            break; /* begin must not wrap around */
    }
}

/* Copies the last `n` elements of a row to `group` and fills the rest of `group` with -infinity. In a sum of
 * exponentials, each -infinity adds only e^-80. This does not change the sum, because the sum is at least
 * 1. */
CPU_INLINE void pad_group(const float *x, size_t n, float group[LANES])
{
    for (int l = 0; l < LANES; l++)
        group[l] = -INFINITY;
    memcpy(group, x, n * sizeof *x);
}

CPU_INLINE void max_group(const float *restrict x, float *restrict lane)
{
    for (int l = 0; l < LANES; l++)
        lane[l] = x[l] > lane[l] ? x[l] : lane[l];
}

CPU_INLINE void exp_sum_group(const float *restrict x, float max, float *restrict lane)
{
    for (int l = 0; l < LANES; l++)
        lane[l] = lane[l] + vmath_exp(x[l] - max);
}

/* Returns the largest logit, ignoring NaNs. A NaN still reaches the result of the softmax, because the sum of
 * exponentials becomes NaN. */
CPU_CLONES static float logits_max(const float *x, size_t n)
{
    float lane[LANES], group[LANES];
    size_t i = 0;

    for (int l = 0; l < LANES; l++)
        lane[l] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        max_group(x + i, lane);
    if (i < n) {
        pad_group(x + i, n - i, group);
        max_group(group, lane);
    }
    for (int w = LANES / 2; w > 0; w /= 2)
        for (int l = 0; l < w; l++)
            lane[l] = lane[l + w] > lane[l] ? lane[l + w] : lane[l];
    return lane[0];
}

CPU_CLONES static float logits_exp_sum(const float *x, size_t n, float max)
{
    float lane[LANES] = {0}, group[LANES];
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        exp_sum_group(x + i, max, lane);
    if (i < n) {
        pad_group(x + i, n - i, group);
        exp_sum_group(group, max, lane);
    }
    for (int w = LANES / 2; w > 0; w /= 2)
        for (int l = 0; l < w; l++)
            lane[l] = lane[l] + lane[l + w];
    return lane[0];
}

/* Returns true if the target's logit is the largest of the row. If several logits are equally large, only the
 * first of them counts as the largest. */
static bool is_argmax(const float *x, uint32_t target, float max)
{
    if (x[target] != max)
        return false;
    for (uint32_t i = 0; i < target; i++)
        if (x[i] == max)
            return false;
    return true;
}

CPU_CLONES static float logits_sum(const float *x, size_t n)
{
    float lane[LANES] = {0};
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] = lane[l] + x[i + l];
    for (size_t l = 0; i + l < n; l++)
        lane[l] = lane[l] + x[i + l];
    for (int w = LANES / 2; w > 0; w /= 2)
        for (int l = 0; l < w; l++)
            lane[l] = lane[l] + lane[l + w];
    return lane[0];
}

/* Computes dx = (softmax(x) - uniform) * scale, where `uniform` is the probability that label smoothing gives
 * to each class. The caller must then overwrite the element of the target, whose gradient is different. `dx`
 * may be equal to `x`. */
CPU_CLONES static void row_softmax_scaled(const float *x, float *dx, size_t n, float max, float inverse,
                                          float uniform, float scale)
{
    CPU_INDEPENDENT
    for (size_t i = 0; i < n; i++)
        dx[i] = (vmath_exp(x[i] - max) * inverse - uniform) * scale;
}

/* Returns true if row `r` contributes to the loss: the row is not padding, and its target is not negative. */
static bool xent_counts(const struct op_call *call, uint32_t r)
{
    const struct op_softmax_xent *o = &call->softmax_xent;
    return ((uint64_t)o->first_row + r) / o->seq < call->step->valid_rows && o->target[r] >= 0;
}

/* Computes the loss of row `r`, where `x` is the row's logits and `sum` is the sum of exp(x - max). Call this
 * function before the gradient overwrites the logits. */
static void xent_loss(const struct rows_ctx *c, uint32_t r, const float *x, float max, float sum,
                      float smoothing)
{
    const struct op_softmax_xent *o = &c->call->softmax_xent;
    uint32_t target = (uint32_t)o->target[r];
    double log_sum = log((double)sum), loss = log_sum - ((double)x[target] - (double)max);

    if (smoothing > 0.0f) {
        double mean = (double)logits_sum(x, o->n) / o->n - (double)max;
        loss = (1.0 - (double)smoothing) * loss + (double)smoothing * (log_sum - mean);
    }
    c->loss[r - c->begin] = loss;
    c->correct[r - c->begin] = !isnan(sum) && is_argmax(x, target, max);
}

/* Computes the gradient of row `r`. The arguments are those of xent_loss. */
static void xent_gradient(const struct rows_ctx *c, uint32_t r, const float *x, float max, float sum,
                          float smoothing)
{
    const struct op_softmax_xent *o = &c->call->softmax_xent;
    const float scale = gradient_factor(c->call->step, o->group);
    const size_t target = (size_t)o->target[r];
    float inverse = 1.0f / sum, uniform = smoothing / (float)o->n, buffer[FLOATS_BLOCK];
    float hot = (vmath_exp(x[target] - max) * inverse - uniform) - (1.0f - smoothing);

    for (size_t i = 0, n; i < o->n; i += n) {
        const uint64_t at = (uint64_t)r * o->n + i;
        n = floats_span(o->dx_dtype, o->n - i);
        float *dx = floats_out(o->dx_dtype, o->dx, at, buffer);
        row_softmax_scaled(x + i, dx, n, max, inverse, uniform, scale);
        if (target >= i && target - i < n)
            dx[target - i] = hot * scale;
        floats_store(o->dx_dtype, dx, o->dx, at, n);
    }
}

static void xent_row(const struct rows_ctx *c, uint32_t r)
{
    const struct op_softmax_xent *o = &c->call->softmax_xent;
    const uint64_t at = (uint64_t)r * o->n;

    if (!xent_counts(c->call, r)) {
        c->loss[r - c->begin] = 0;
        c->correct[r - c->begin] = 0;
        if (o->dx)
            memset(floats_at(o->dx_dtype, o->dx, at), 0, o->n * dtype_size(o->dx_dtype));
        return;
    }
    assert((uint32_t)o->target[r] < o->n);
    const float *x = floats_row(o->dtype, o->x, at, o->n);
    float smoothing = c->call->step->training ? o->smoothing : 0.0f;
    float max = logits_max(x, o->n), sum = logits_exp_sum(x, o->n, max);
    if (o->result)
        xent_loss(c, r, x, max, sum, smoothing);
    if (o->dx)
        xent_gradient(c, r, x, max, sum, smoothing);
}

void cpu_op_softmax_xent(const struct op_call *call, struct pool *pool)
{
    const struct op_softmax_xent *o = &call->softmax_xent;
    struct rows_ctx c = {.call = call, .per_piece = rows_per_piece(o->n), .row = xent_row};
    struct step_result sum = o->result && o->accumulate ? *o->result : (struct step_result){0};

    sum_rows(c, o->rows, &sum, pool);
    if (o->result)
        *o->result = sum;
}

CPU_CLONES static double row_square_error(const float *x, const float *target, size_t n)
{
    double lane[LANES] = {0};
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            double d = (double)x[i + l] - (double)target[i + l];
            lane[l] = lane[l] + d * d;
        }
    for (size_t l = 0; i + l < n; l++) {
        double d = (double)x[i + l] - (double)target[i + l];
        lane[l] = lane[l] + d * d;
    }
    for (int w = LANES / 2; w > 0; w /= 2)
        for (int l = 0; l < w; l++)
            lane[l] = lane[l] + lane[l + w];
    return lane[0];
}

static void mse_fwd_row(const struct rows_ctx *c, uint32_t r)
{
    const struct op_mse_fwd *o = &c->call->mse_fwd;
    size_t at = (size_t)r * o->n;
    const float *x = floats_row(o->dtype, o->x, at, o->n);
    c->loss[r - c->begin] = row_square_error(x, o->target + at, o->n) / (double)o->n;
    c->correct[r - c->begin] = 0;
}

void cpu_op_mse_fwd(const struct op_call *call, struct pool *pool)
{
    const struct op_mse_fwd *o = &call->mse_fwd;
    struct rows_ctx c = {.call = call, .per_piece = rows_per_piece(o->n), .row = mse_fwd_row};
    *o->result = (struct step_result){.correct = o->keep_correct ? o->result->correct : 0};
    sum_rows(c, valid_rows(call->step, o->first_row, o->rows), o->result, pool);
}

CPU_CLONES static void scaled_difference(const float *restrict x, const float *restrict target,
                                         float *restrict dx, size_t n, float factor)
{
    for (size_t i = 0; i < n; i++)
        dx[i] = (x[i] - target[i]) * factor;
}

static void mse_bwd_row(const struct rows_ctx *c, uint32_t r)
{
    const struct op_mse_bwd *o = &c->call->mse_bwd;
    const float factor = (2.0f / (float)o->n) * gradient_factor(c->call->step, o->group);
    size_t at = (size_t)r * o->n, end = at + o->n;
    float x_buffer[FLOATS_BLOCK], dx_buffer[FLOATS_BLOCK];

    for (size_t n; at < end; at += n) {
        n = floats_span(o->dtype, end - at);
        const float *x = floats_in(o->dtype, o->x, at, n, x_buffer);
        float *dx = floats_out(o->dtype, o->dx, at, dx_buffer);
        scaled_difference(x, o->target + at, dx, n, factor);
        floats_store(o->dtype, dx, o->dx, at, n);
    }
}

void cpu_op_mse_bwd(const struct op_call *call, struct pool *pool)
{
    const struct op_mse_bwd *o = &call->mse_bwd;
    struct rows_ctx c = {.call = call, .per_piece = rows_per_piece(o->n), .row = mse_bwd_row};
    uint32_t valid = valid_rows(call->step, o->first_row, o->rows);

    for_rows(&c, 0, valid, pool);
    memset(floats_at(o->dtype, o->dx, (uint64_t)valid * o->n), 0,
           (size_t)(o->rows - valid) * o->n * dtype_size(o->dtype));
}
