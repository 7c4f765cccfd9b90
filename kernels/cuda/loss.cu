/* The losses, forward and backward: kernels/cpu/ops_loss.c, whose rules about padding and NaN and whose order
 * of sums hold here too. Half a warp takes a row; the rows' losses go through the partials of the device to
 * one thread that adds them in row order.
 *
 * A target that is no class (the loader lets none pass) gives a NaN loss instead of a stray read.
 *
 * Enqueueing thread only.
 */
#include <math.h>

#include "kernels/cuda/ops.h"

#define VMATH_INLINE static inline __device__
#include "kernels/cpu/vmath.h"
#include "kernels/cuda/kernel.cuh"

#define ROWS_AT_ONCE (CUDA_PARTIALS / 2) /* a loss and whether it is correct, each */

/* The row of this half warp, in a grid of row_grid() blocks. */
static __device__ __forceinline__ uint32_t my_row(void)
{
    return blockIdx.x * SUMS + threadIdx.x / LANES;
}

static unsigned row_grid(uint32_t rows)
{
    return rows / SUMS + (rows % SUMS != 0);
}

/* How many of `rows` rows from first_row on count. */
static uint32_t valid_rows(const struct step_args *step, uint32_t first_row, uint32_t rows)
{
    const uint32_t left = step->valid_rows > first_row ? step->valid_rows - first_row : 0;

    return left < rows ? left : rows;
}

/* ---- rows of logits: in every lane the row's value ---- */

static __device__ float row_max(const float *x, uint32_t n)
{
    float most = -INFINITY;

    for (uint32_t i = threadIdx.x % LANES; i < n; i += LANES)
        most = x[i] > most ? x[i] : most;
    for (unsigned w = LANES / 2; w > 0; w /= 2) {
        const float other = __shfl_down_sync(lanes_mask(), most, w, LANES);
        most = other > most ? other : most;
    }
    return __shfl_sync(lanes_mask(), most, 0, LANES);
}

/* The last group of a row is filled up with -infinity, as on the cpu. */
static __device__ float row_exp_sum(const float *x, uint32_t n, float max)
{
    const uint32_t lane = threadIdx.x % LANES;
    float sum = 0;

    for (uint64_t group = 0; group < n; group += LANES)
        sum = sum + vmath_exp((group + lane < n ? x[group + lane] : -INFINITY) - max);
    return fold_lanes_float(sum);
}

/* The target's logit is the first maximum of the row. */
static __device__ bool is_argmax(const float *x, uint32_t target, float max)
{
    bool earlier = false;

    for (uint32_t i = threadIdx.x % LANES; i < target; i += LANES)
        earlier = earlier || x[i] == max;
    return !__any_sync(lanes_mask(), earlier) && x[target] == max;
}

/* ---- softmax and cross-entropy ---- */

static __global__ void xent_fwd(const float *x, const int32_t *target, uint32_t rows, uint32_t n,
                                double *loss, double *correct)
{
    const uint32_t r = my_row();

    if (r >= rows)
        return;
    const float *row = x + (uint64_t)r * n;
    const uint32_t t = (uint32_t)target[r];
    const bool known = t < n;
    const float max = row_max(row, n), sum = row_exp_sum(row, n, max);
    const bool first = is_argmax(row, known ? t : 0, max);
    if (threadIdx.x % LANES == 0) {
        loss[r] = known ? log((double)sum) - ((double)row[t] - (double)max) : (double)NAN;
        correct[r] = known && !isnan(sum) && first;
    }
}

static __global__ void xent_bwd(const float *x, const int32_t *target, float *dx, uint32_t valid,
                                uint32_t rows, uint32_t n, float scale)
{
    const uint32_t r = my_row(), lane = threadIdx.x % LANES;

    if (r >= rows)
        return;
    const float *row = x + (uint64_t)r * n;
    float *to = dx + (uint64_t)r * n;
    if (r >= valid) {
        for (uint32_t i = lane; i < n; i += LANES)
            to[i] = 0.0f;
        return;
    }
    const uint32_t t = (uint32_t)target[r];
    const float max = row_max(row, n), inverse = 1.0f / row_exp_sum(row, n, max);
    for (uint32_t i = lane; i < n; i += LANES) {
        const float p = vmath_exp(row[i] - max) * inverse;
        to[i] = (i == t ? p - 1.0f : p) * scale;
    }
}

int cuda_op_softmax_xent_bwd(const struct cuda_place *at, const struct op_call *call)
{
    const struct op_softmax_xent_bwd *o = &call->softmax_xent_bwd;

    xent_bwd<<<row_grid(o->rows), THREADS, 0, at->stream>>>(o->x, o->target, o->dx,
                                                            valid_rows(call->step, o->first_row, o->rows),
                                                            o->rows, o->n, call->step->grad_scale);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

/* ---- mean squared error ---- */

static __global__ void mse_fwd(const float *x, const float *target, uint32_t rows, uint32_t n, double *loss,
                               double *correct)
{
    const uint32_t r = my_row();
    double sum = 0;

    if (r >= rows)
        return;
    for (uint32_t i = threadIdx.x % LANES; i < n; i += LANES) {
        const double d = (double)x[(uint64_t)r * n + i] - (double)target[(uint64_t)r * n + i];
        sum = sum + d * d;
    }
    sum = fold_lanes(sum);
    if (threadIdx.x % LANES == 0) {
        loss[r] = sum / (double)n;
        correct[r] = 0;
    }
}

static __global__ void mse_bwd(const float *x, const float *target, float *dx, uint64_t valid, uint64_t n,
                               float factor)
{
    FOR_EACH(i, n)
    dx[i] = i < valid ? (x[i] - target[i]) * factor : 0.0f;
}

int cuda_op_mse_bwd(const struct cuda_place *at, const struct op_call *call)
{
    const struct op_mse_bwd *o = &call->mse_bwd;
    const uint64_t n = (uint64_t)o->rows * o->n;
    const uint64_t valid = (uint64_t)valid_rows(call->step, o->first_row, o->rows) * o->n;

    mse_bwd<<<grid_for(n, THREADS), THREADS, 0, at->stream>>>(o->x, o->target, o->dx, valid, n,
                                                              (2.0f / (float)o->n) * call->step->grad_scale);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

/* ---- from rows to the result ---- */

static __global__ void add_rows(const double *loss, const double *correct, uint32_t rows, bool first,
                                struct step_result *result)
{
    const double sum = add_in_order(first ? 0.0 : result->loss, loss, rows);
    const double hits = add_in_order(first ? 0.0 : result->correct, correct, rows);

    if (threadIdx.x == 0) {
        result->loss = sum;
        result->correct = hits;
    }
}

/* Rows go through the partials a batch at a time, so that their number is not bounded. There is always a first
 * batch, if an empty one: without rows the result is 0. */
static uint32_t batch_rows(uint32_t rows, uint64_t begin)
{
    const uint64_t left = rows - begin;

    return (uint32_t)(left < ROWS_AT_ONCE ? left : ROWS_AT_ONCE);
}

int cuda_op_softmax_xent_fwd(const struct cuda_place *at, const struct op_call *call)
{
    const struct op_softmax_xent_fwd *o = &call->softmax_xent_fwd;
    const uint32_t rows = valid_rows(call->step, o->first_row, o->rows);
    double *loss = at->partials, *correct = at->partials + ROWS_AT_ONCE;

    for (uint64_t begin = 0; begin == 0 || begin < rows; begin += ROWS_AT_ONCE) {
        const uint32_t count = batch_rows(rows, begin);
        if (count > 0)
            xent_fwd<<<row_grid(count), THREADS, 0, at->stream>>>(o->x + begin * o->n, o->target + begin,
                                                                  count, o->n, loss, correct);
        add_rows<<<1, THREADS, 0, at->stream>>>(loss, correct, count, begin == 0, o->result);
    }
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

int cuda_op_mse_fwd(const struct cuda_place *at, const struct op_call *call)
{
    const struct op_mse_fwd *o = &call->mse_fwd;
    const uint32_t rows = valid_rows(call->step, o->first_row, o->rows);
    double *loss = at->partials, *correct = at->partials + ROWS_AT_ONCE;

    for (uint64_t begin = 0; begin == 0 || begin < rows; begin += ROWS_AT_ONCE) {
        const uint32_t count = batch_rows(rows, begin);
        if (count > 0)
            mse_fwd<<<row_grid(count), THREADS, 0, at->stream>>>(
                o->x + begin * o->n, o->target + begin * o->n, count, o->n, loss, correct);
        add_rows<<<1, THREADS, 0, at->stream>>>(loss, correct, count, begin == 0, o->result);
    }
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

int cuda_warm_loss(const struct cuda_place *at)
{
    xent_fwd<<<1, THREADS, 0, at->stream>>>(NULL, NULL, 0, 0, NULL, NULL);
    xent_bwd<<<1, THREADS, 0, at->stream>>>(NULL, NULL, NULL, 0, 0, 0, 0);
    mse_fwd<<<1, THREADS, 0, at->stream>>>(NULL, NULL, 0, 0, NULL, NULL);
    mse_bwd<<<1, THREADS, 0, at->stream>>>(NULL, NULL, NULL, 0, 0, 0);
    add_rows<<<1, THREADS, 0, at->stream>>>(NULL, NULL, 0, true, (struct step_result *)at->partials);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}
