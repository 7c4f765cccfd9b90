/* The ops that normalize rows, forward and backward. Half a warp, which is 16 threads, computes one row. Sums
 * are added in the same order as in kernels/cpu/ops_norm.c. Only the enqueueing thread runs this code. */
#include <math.h>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/kernel.cuh"

/* ---- forward ---- */

/* The arguments of the forward kernel. T is the type of the rows, and W of the weights. */
template <class T, class W> struct norm_fwd {
    const T *x;
    const W *w, *b;
    T *y;
    float *stats;
    uint32_t rows, n;
    float eps;
    bool rms;
};

template <class T> static __device__ float row_mean(const T *x, uint32_t n)
{
    float sum = 0;

#pragma unroll 4
    for (uint64_t i = threadIdx.x % LANES; i < n; i += LANES)
        sum = sum + load(x + i);
    return fold_lanes_float(sum) / (float)n;
}

/* Returns the variance of a row of `n` elements, which is the mean of (x - mean)^2. */
template <class T> static __device__ float row_spread(const T *x, uint32_t n, float mean)
{
    float sum = 0;

#pragma unroll 4
    for (uint64_t i = threadIdx.x % LANES; i < n; i += LANES) {
        const float d = load(x + i) - mean;
        sum = sum + d * d;
    }
    return fold_lanes_float(sum) / (float)n;
}

template <class T, class W> static __global__ void norm_rows(const norm_fwd<T, W> o)
{
    const uint32_t r = my_row(), lane = threadIdx.x % LANES;

    if (r >= o.rows)
        return;
    const T *x = o.x + (uint64_t)r * o.n;
    const float mean = o.rms ? 0.0f : row_mean(x, o.n);
    const float rstd = 1.0f / sqrtf(row_spread(x, o.n, mean) + o.eps);
    if (o.stats && lane == 0) {
        o.stats[2 * (uint64_t)r] = mean;
        o.stats[2 * (uint64_t)r + 1] = rstd;
    }
    if (!o.y)
        return;
    T *y = o.y + (uint64_t)r * o.n;
#pragma unroll 4
    for (uint64_t i = lane; i < o.n; i += LANES) {
        const float scaled = (load(x + i) - mean) * rstd * load(o.w + i);
        store(y + i, o.b ? scaled + load(o.b + i) : scaled);
    }
}

template <class T, class W>
static void launch_fwd(const struct cuda_compute *at, const struct op_rownorm_fwd *o)
{
    const norm_fwd<T, W> args = {
        (const T *)o->x, (const W *)o->w, (const W *)o->b, (T *)o->y, o->stats, o->rows, o->n,
        o->eps,          o->rms};

    norm_rows<<<row_grid(o->rows), THREADS, 0, at->stream>>>(args);
}

int cuda_op_rownorm_fwd(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_rownorm_fwd *o = &call->rownorm_fwd;

    WITH_TYPES(T, W, o->dtype, o->w_dtype, launch_fwd<T, W>(at, o));
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

/* ---- backward ---- */

/* The arguments of the backward kernels. T is the type of the rows, and W of the weights. */
template <class T, class W> struct norm_bwd {
    const T *x, *dy;
    const W *w;
    const float *stats;
    T *dx;
    float *dw, *db;
    uint32_t rows, n;
    bool rms, accumulate;
};

/* Computes dx = (g - mean(g) - xhat * mean(g * xhat)) * rstd, where g is dy * w and xhat is the normalized x.
 * RMS norm omits mean(g). Each thread reads and writes only its own elements, so `dx` may be equal to
 * `dy`. */
template <class T, class W> static __global__ void norm_bwd_rows(const norm_bwd<T, W> o)
{
    const uint32_t r = my_row(), lane = threadIdx.x % LANES;
    float g_sum = 0, hat_sum = 0;

    if (r >= o.rows)
        return;
    const T *x = o.x + (uint64_t)r * o.n, *dy = o.dy + (uint64_t)r * o.n;
    const float mean = o.stats[2 * (uint64_t)r], rstd = o.stats[2 * (uint64_t)r + 1];
#pragma unroll 4
    for (uint64_t i = lane; i < o.n; i += LANES) {
        const float g = load(dy + i) * load(o.w + i);
        g_sum = g_sum + g;
        hat_sum = hat_sum + g * ((load(x + i) - mean) * rstd);
    }
    const float g_mean = o.rms ? 0.0f : fold_lanes_float(g_sum) / (float)o.n;
    const float hat_mean = fold_lanes_float(hat_sum) / (float)o.n;
    T *dx = o.dx + (uint64_t)r * o.n;
#pragma unroll 4
    for (uint64_t i = lane; i < o.n; i += LANES)
        store(dx + i,
              ((load(dy + i) * load(o.w + i) - g_mean) - (load(x + i) - mean) * rstd * hat_mean) * rstd);
}

/* How norm_bwd_columns divides its work. A thread block computes the sums of COLUMNS columns. Its threads
 * form CHUNKS rows of COLUMNS threads, and each row of threads adds up CHUNK_ROWS rows of the matrix at a
 * time. The first row of threads then adds these sums in ascending order. */
#define COLUMNS    32u
#define CHUNKS     (THREADS / COLUMNS)
#define CHUNK_ROWS 32u

/* Two sums over one column. `w` is the sum of dy * xhat and goes to dw. `b` is the sum of dy and goes to
 * db. */
struct column_sums {
    float w, b;
};

template <class T, class W>
static __device__ __forceinline__ struct column_sums sum_norm_chunk(const norm_bwd<T, W> *o, uint64_t first,
                                                                    uint32_t column)
{
    const uint64_t end = first + CHUNK_ROWS < o->rows ? first + CHUNK_ROWS : o->rows;
    struct column_sums sum = {0, 0};

    for (uint64_t r = first; r < end; r++) {
        const float dy = load(o->dy + r * o->n + column);
        const float hat = (load(o->x + r * o->n + column) - o->stats[2 * r]) * o->stats[2 * r + 1];
        sum.w = sum.w + dy * hat;
        sum.b = sum.b + dy;
    }
    return sum;
}

template <class T, class W> static __global__ void norm_bwd_columns(const norm_bwd<T, W> o)
{
    __shared__ struct column_sums chunk[CHUNKS][COLUMNS];
    const uint32_t lane = threadIdx.x % COLUMNS, mine = threadIdx.x / COLUMNS;
    const uint64_t column = (uint64_t)blockIdx.x * COLUMNS + lane;
    struct column_sums total = {0, 0};

    for (uint64_t first = 0; first < o.rows; first += CHUNKS * CHUNK_ROWS) {
        const uint64_t begin = first + mine * CHUNK_ROWS;
        if (column < o.n && begin < o.rows)
            chunk[mine][lane] = sum_norm_chunk(&o, begin, (uint32_t)column);
        __syncthreads();
        if (mine == 0 && column < o.n)
            for (uint32_t c = 0; c < CHUNKS && first + c * CHUNK_ROWS < o.rows; c++) {
                total.w = total.w + chunk[c][lane].w;
                total.b = total.b + chunk[c][lane].b;
            }
        __syncthreads();
    }
    if (mine != 0 || column >= o.n)
        return;
    o.dw[column] = o.accumulate ? o.dw[column] + total.w : total.w;
    if (o.db)
        o.db[column] = o.accumulate ? o.db[column] + total.b : total.b;
}

/* The kernel for columns must be launched first, because it reads dy, which the kernel for rows may
 * overwrite. */
template <class T, class W>
static void launch_bwd(const struct cuda_compute *at, const struct op_rownorm_bwd *o)
{
    const norm_bwd<T, W> args = {
        (const T *)o->x, (const T *)o->dy, (const W *)o->w, o->stats, (T *)o->dx, o->dw, o->db, o->rows, o->n,
        o->rms,          o->accumulate};

    norm_bwd_columns<<<o->n / COLUMNS + (o->n % COLUMNS != 0), THREADS, 0, at->stream>>>(args);
    if (o->dx)
        norm_bwd_rows<<<row_grid(o->rows), THREADS, 0, at->stream>>>(args);
}

int cuda_op_rownorm_bwd(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_rownorm_bwd *o = &call->rownorm_bwd;

    WITH_TYPES(T, W, o->dtype, o->w_dtype, launch_bwd<T, W>(at, o));
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

template <class T, class W> static void warm(const struct cuda_compute *at)
{
    const norm_fwd<T, W> fwd = {0};
    const norm_bwd<T, W> bwd = {0};

    norm_rows<<<1, THREADS, 0, at->stream>>>(fwd);
    norm_bwd_rows<<<1, THREADS, 0, at->stream>>>(bwd);
    norm_bwd_columns<<<1, THREADS, 0, at->stream>>>(bwd);
}

int cuda_warm_rownorm(const struct cuda_compute *at)
{
    warm<float, float>(at);
    warm<bf16, bf16>(at);
    warm<bf16, float>(at);
    warm<f16, f16>(at);
    warm<f16, float>(at);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}
