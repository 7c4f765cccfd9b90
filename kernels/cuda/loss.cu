/* The losses and their gradients. The rules about padding and NaN and the order of sums are those of
 * kernels/cpu/ops_loss.c. Half a warp computes a row. The losses of the rows go through the device's
 * partial sums to one thread, which adds them in row order.
 *
 * The data loader refuses invalid targets. With an invalid target, the loss would be NaN, and no memory
 * outside the row would be read.
 *
 * Only the enqueueing thread runs this code.
 */
#include <math.h>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/element.cuh"

#define VMATH_INLINE static inline __device__
#include "kernels/cuda/kernel.cuh"
#include "kernels/vmath.h"

/* The number of rows in one batch. Each row has two partial sums: its loss, and the number of correct
 * answers, which is 1 or 0. */
#define ROWS_AT_ONCE (CUDA_PARTIALS / 2)

/* Returns how many of the `rows` rows that start at `first_row` are valid. A row is valid if it is not
 * padding. */
static uint32_t valid_rows(const struct step_args *step, uint32_t first_row, uint32_t rows)
{
    const uint32_t left = step->valid_rows > first_row ? step->valid_rows - first_row : 0;

    return left < rows ? left : rows;
}

/* ---- functions over a row of logits ---- */

template <class T> static __device__ float row_max(const T *x, uint32_t n)
{
    float most = -INFINITY;

#pragma unroll 8
    for (uint64_t i = threadIdx.x % LANES; i < n; i += LANES) {
        const float v = load(x + i);
        most = v > most ? v : most;
    }
    return max_lanes(most);
}

template <class T> static __device__ float row_sum(const T *x, uint32_t n)
{
    float sum = 0;

#pragma unroll 8
    for (uint64_t i = threadIdx.x % LANES; i < n; i += LANES)
        sum = sum + load(x + i);
    return fold_lanes_float(sum);
}

/* Returns the sum of exp(x - max) over a row. The last group of 16 elements is filled up with -infinity if it
 * is incomplete. The cpu backend does the same, so both give the same bits. */
template <class T> static __device__ float row_exp_sum(const T *x, uint32_t n, float max)
{
    const uint32_t lane = threadIdx.x % LANES;
    float sum = 0;

#pragma unroll 4
    for (uint64_t group = 0; group < n; group += LANES)
        sum = sum + vmath_exp((group + lane < n ? load(x + group + lane) : -INFINITY) - max);
    return fold_lanes_float(sum);
}

/* Returns true if the target's logit is the largest of the row. If several logits are equally large, only the
 * first of them counts as the largest. */
template <class T> static __device__ bool is_argmax(const T *x, uint32_t target, float max)
{
    bool earlier = false;

    for (uint64_t i = threadIdx.x % LANES; i < target; i += LANES)
        earlier = earlier || load(x + i) == max;
    return !__any_sync(lanes_mask(), earlier) && load(x + target) == max;
}

/* ---- softmax and cross-entropy ---- */

/* The arguments of the softmax_xent kernel. T is the type of the logits, and D of their gradient. */
template <class T, class D> struct xent_args {
    const T *x;
    const int32_t *target;
    D *dx;                   /* NULL if no gradient is needed */
    double *loss, *correct;  /* [rows], or NULL */
    uint32_t rows, valid, n; /* valid: rows before the padding */
    float smoothing, scale;
    const struct group_state *group; /* its loss scale also multiplies the gradient; or NULL */
};

/* Returns the factor of all gradients: `scale`, multiplied by the loss scale if there is one. */
static __device__ __forceinline__ float loss_factor(float scale, const struct group_state *group)
{
    return group ? scale * group->loss_scale : scale;
}

/* Computes the loss of one valid row with the target class `target`. `sum` is the sum of exp(x - max) over
 * the row. */
template <class T, class D>
static __device__ void xent_loss(const xent_args<T, D> *o, uint32_t r, uint32_t target, float max, float sum)
{
    const T *x = o->x + (uint64_t)r * o->n;
    const bool known = target < o->n, first = is_argmax(x, known ? target : 0, max);
    const double log_sum = log((double)sum);
    double loss = known ? log_sum - ((double)load(x + target) - (double)max) : (double)NAN;

    if (o->smoothing > 0.0f) {
        const double mean = (double)row_sum(x, o->n) / o->n - (double)max;
        loss = (1.0 - (double)o->smoothing) * loss + (double)o->smoothing * (log_sum - mean);
    }
    if (threadIdx.x % LANES == 0) {
        o->loss[r] = loss;
        o->correct[r] = known && !isnan(sum) && first;
    }
}

template <class T, class D>
static __device__ void xent_gradient(const xent_args<T, D> *o, uint32_t r, uint32_t target, float max,
                                     float sum)
{
    const T *x = o->x + (uint64_t)r * o->n;
    D *dx = o->dx + (uint64_t)r * o->n;
    const float scale = loss_factor(o->scale, o->group);
    const float inverse = 1.0f / sum, uniform = o->smoothing / (float)o->n, rest = 1.0f - o->smoothing;

#pragma unroll 4
    for (uint64_t i = threadIdx.x % LANES; i < o->n; i += LANES) {
        const float p = vmath_exp(load(x + i) - max) * inverse - uniform;
        store(dx + i, (i == target ? p - rest : p) * scale);
    }
}

/* Sets the loss and the gradient of row `r` to 0. Used for padding rows and for rows with a negative target,
 * which do not contribute to the loss. */
template <class T, class D> static __device__ void xent_nothing(const xent_args<T, D> *o, uint32_t r)
{
    if (o->loss && threadIdx.x % LANES == 0) {
        o->loss[r] = 0;
        o->correct[r] = 0;
    }
    if (o->dx)
        for (uint64_t i = threadIdx.x % LANES; i < o->n; i += LANES)
            store(o->dx + (uint64_t)r * o->n + i, 0.0f);
}

template <class T, class D> static __global__ void xent(const xent_args<T, D> o)
{
    const uint32_t r = my_row();

    if (r >= o.rows)
        return;
    const int32_t target = o.target[r];
    if (r >= o.valid || target < 0) {
        xent_nothing(&o, r);
        return;
    }
    const T *x = o.x + (uint64_t)r * o.n;
    const float max = row_max(x, o.n), sum = row_exp_sum(x, o.n, max);
    if (o.loss)
        xent_loss(&o, r, (uint32_t)target, max, sum);
    /* `dx` may be the same array as `x`. So no thread may write its part of the gradient before all threads
     * of the row have read the logits. */
    __syncwarp(lanes_mask());
    if (o.dx)
        xent_gradient(&o, r, (uint32_t)target, max, sum);
}

/* ---- mean squared error ---- */

template <class T>
static __global__ void mse_fwd(const T *x, const float *target, uint32_t rows, uint32_t n, double *loss,
                               double *correct)
{
    const uint32_t r = my_row();
    double sum = 0;

    if (r >= rows)
        return;
    for (uint64_t i = threadIdx.x % LANES; i < n; i += LANES) {
        const double d = (double)load(x + (uint64_t)r * n + i) - (double)target[(uint64_t)r * n + i];
        sum = sum + d * d;
    }
    sum = fold_lanes(sum);
    if (threadIdx.x % LANES == 0) {
        loss[r] = sum / (double)n;
        correct[r] = 0;
    }
}

/* Elements from number `valid` on belong to padding rows. Each element of the gradient is (x - target) * (2 /
 * columns * grad_scale), where the loss scale is a part of grad_scale. */
template <class T>
static __global__ void mse_bwd(const T *x, const float *target, T *dx, uint64_t valid, uint64_t n,
                               uint32_t columns, float grad_scale, const struct group_state *group)
{
    const uint32_t N = PACK_OF(T);
    const float factor = (2.0f / (float)columns) * loss_factor(grad_scale, group);

    FOR_EACH_PACK(at, n, N)
    {
        const pack<N> t = load_pack<N>(target + at, n - at);
        pack<N> p = load_pack<N>(x + at, n - at);
#pragma unroll
        for (uint32_t k = 0; k < N; k++)
            p.v[k] = at + k < valid ? (p.v[k] - t.v[k]) * factor : 0.0f;
        store_pack(dx + at, p, n - at);
    }
}

int cuda_op_mse_bwd(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_mse_bwd *o = &call->mse_bwd;
    const uint64_t n = (uint64_t)o->rows * o->n;
    const uint64_t valid = (uint64_t)valid_rows(call->step, o->first_row, o->rows) * o->n;

    WITH_TYPE(T, o->dtype,
              mse_bwd<<<grid_for(n, THREADS * PACK_OF(T)), THREADS, 0, at->stream>>>(
                  (const T *)o->x, o->target, (T *)o->dx, valid, n, o->n, call->step->grad_scale, o->group));
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

/* ---- from rows to the result ---- */

/* Adds up the losses and the correct answers of all rows, and stores both sums in *result. If `first_loss` is
 * true, the sum of the losses starts at 0. Otherwise it starts at result->loss. `first_correct` does the same
 * for the correct answers. */
static __global__ void add_rows(const double *loss, const double *correct, uint32_t rows, bool first_loss,
                                bool first_correct, struct step_result *result)
{
    const double sum = add_in_order(first_loss ? 0.0 : result->loss, loss, rows);
    const double hits = add_in_order(first_correct ? 0.0 : result->correct, correct, rows);

    if (threadIdx.x == 0) {
        result->loss = sum;
        result->correct = hits;
    }
}

/* Returns the number of rows in the batch that starts at row `begin`, at most ROWS_AT_ONCE. If `rows` is 0,
 * the callers still run one batch of 0 rows, because this batch sets the sums to 0. */
static uint32_t batch_rows(uint32_t rows, uint64_t begin)
{
    const uint64_t left = rows > begin ? rows - begin : 0;

    return (uint32_t)(left < ROWS_AT_ONCE ? left : ROWS_AT_ONCE);
}

template <class T, class D>
static void launch_xent(const struct cuda_compute *at, const struct op_softmax_xent *o,
                        const struct step_args *step)
{
    const uint64_t targets = (uint64_t)step->valid_rows * o->seq;
    const uint64_t valid = targets > o->first_row ? targets - o->first_row : 0;
    const T *x = (const T *)o->x;
    D *dx = (D *)o->dx;
    xent_args<T, D> rows = {0};

    rows.loss = o->result ? at->partials : NULL;
    rows.correct = o->result ? at->partials + ROWS_AT_ONCE : NULL;
    rows.n = o->n;
    rows.smoothing = step->training ? o->smoothing : 0.0f;
    rows.scale = step->grad_scale;
    rows.group = o->group;
    for (uint64_t begin = 0; begin == 0 || begin < o->rows; begin += ROWS_AT_ONCE) {
        rows.x = x + begin * o->n;
        rows.dx = dx ? dx + begin * o->n : NULL;
        rows.target = o->target + begin;
        rows.rows = batch_rows(o->rows, begin);
        rows.valid = batch_rows(o->rows < valid ? o->rows : (uint32_t)valid, begin);
        if (rows.rows > 0)
            xent<<<row_grid(rows.rows), THREADS, 0, at->stream>>>(rows);
        if (o->result)
            add_rows<<<1, THREADS, 0, at->stream>>>(rows.loss, rows.correct, rows.rows,
                                                    begin == 0 && !o->accumulate,
                                                    begin == 0 && !o->accumulate, o->result);
    }
}

int cuda_op_softmax_xent(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_softmax_xent *o = &call->softmax_xent;

    WITH_TYPES(T, D, o->dtype, o->dx_dtype, launch_xent<T, D>(at, o, call->step));
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

template <class T>
static void launch_mse_fwd(const struct cuda_compute *at, const struct op_mse_fwd *o, uint32_t rows)
{
    const T *x = (const T *)o->x;
    double *loss = at->partials, *correct = at->partials + ROWS_AT_ONCE;

    for (uint64_t begin = 0; begin == 0 || begin < rows; begin += ROWS_AT_ONCE) {
        const uint32_t count = batch_rows(rows, begin);
        if (count > 0)
            mse_fwd<<<row_grid(count), THREADS, 0, at->stream>>>(x + begin * o->n, o->target + begin * o->n,
                                                                 count, o->n, loss, correct);
        add_rows<<<1, THREADS, 0, at->stream>>>(loss, correct, count, begin == 0,
                                                begin == 0 && !o->keep_correct, o->result);
    }
}

int cuda_op_mse_fwd(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_mse_fwd *o = &call->mse_fwd;

    WITH_TYPE(T, o->dtype, launch_mse_fwd<T>(at, o, valid_rows(call->step, o->first_row, o->rows)));
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

template <class T, class D> static void warm_xent(const struct cuda_compute *at)
{
    const xent_args<T, D> none = {0};

    xent<<<1, THREADS, 0, at->stream>>>(none);
}

template <class T> static void warm(const struct cuda_compute *at)
{
    T *const nowhere = NULL;

    warm_xent<T, T>(at);
    mse_fwd<<<1, THREADS, 0, at->stream>>>(nowhere, NULL, 0, 0, NULL, NULL);
    mse_bwd<<<1, THREADS, 0, at->stream>>>(nowhere, NULL, nowhere, 0, 0, 0, 0, NULL);
}

int cuda_warm_loss(const struct cuda_compute *at)
{
    warm<float>(at);
    warm<bf16>(at);
    warm<f16>(at);
    warm_xent<bf16, float>(at);
    warm_xent<f16, float>(at);
    warm_xent<float, bf16>(at);
    warm_xent<float, f16>(at);
    add_rows<<<1, THREADS, 0, at->stream>>>(NULL, NULL, 0, true, true, (struct step_result *)at->partials);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}
