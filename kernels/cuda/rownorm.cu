/* The ops that normalize rows, forward and backward. Half a warp, which is 16 threads, computes one row. Sums
 * are added in the same order as in kernels/cpu/ops_norm.c. Only the enqueueing thread runs this code. */
#include <math.h>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/kernel.cuh"

/* ---- forward ---- */

/* The arguments of the forward kernel. */
struct norm_fwd {
    const float *x, *w, *b;
    float *y, *stats;
    uint32_t rows, n;
    float eps;
    bool rms;
};

static __device__ float row_mean(const float *x, uint32_t n)
{
    float sum = 0;

#pragma unroll 4
    for (uint32_t i = threadIdx.x % LANES; i < n; i += LANES)
        sum = sum + x[i];
    return fold_lanes_float(sum) / (float)n;
}

/* Returns the variance of a row of `n` elements, which is the mean of (x - mean)^2. */
static __device__ float row_spread(const float *x, uint32_t n, float mean)
{
    float sum = 0;

#pragma unroll 4
    for (uint32_t i = threadIdx.x % LANES; i < n; i += LANES) {
        const float d = x[i] - mean;
        sum = sum + d * d;
    }
    return fold_lanes_float(sum) / (float)n;
}

static __global__ void norm_fwd(const struct norm_fwd o)
{
    const uint32_t r = my_row(), lane = threadIdx.x % LANES;

    if (r >= o.rows)
        return;
    const float *x = o.x + (uint64_t)r * o.n;
    const float mean = o.rms ? 0.0f : row_mean(x, o.n);
    const float rstd = 1.0f / sqrtf(row_spread(x, o.n, mean) + o.eps);
    if (o.stats && lane == 0) {
        o.stats[2 * (uint64_t)r] = mean;
        o.stats[2 * (uint64_t)r + 1] = rstd;
    }
    if (!o.y)
        return;
    float *y = o.y + (uint64_t)r * o.n;
#pragma unroll 4
    for (uint32_t i = lane; i < o.n; i += LANES) {
        const float scaled = (x[i] - mean) * rstd * o.w[i];
        y[i] = o.b ? scaled + o.b[i] : scaled;
    }
}

int cuda_op_rownorm_fwd(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_rownorm_fwd *o = &call->rownorm_fwd;
    const struct norm_fwd args = {(const float *)o->x,
                                  (const float *)o->w,
                                  (const float *)o->b,
                                  (float *)o->y,
                                  o->stats,
                                  o->rows,
                                  o->n,
                                  o->eps,
                                  o->rms};

    norm_fwd<<<row_grid(o->rows), THREADS, 0, at->stream>>>(args);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

/* ---- backward ---- */

/* The arguments of the backward kernels. */
struct norm_bwd {
    const float *x, *w, *stats, *dy;
    float *dx, *dw, *db;
    uint32_t rows, n;
    bool rms, accumulate;
};

/* Computes dx = (g - mean(g) - xhat * mean(g * xhat)) * rstd, where g is dy * w and xhat is the normalized x.
 * RMS norm omits mean(g). Each thread reads and writes only its own elements, so `dx` may be equal to
 * `dy`. */
static __global__ void norm_bwd_rows(const struct norm_bwd o)
{
    const uint32_t r = my_row(), lane = threadIdx.x % LANES;
    float g_sum = 0, hat_sum = 0;

    if (r >= o.rows)
        return;
    const float *x = o.x + (uint64_t)r * o.n, *dy = o.dy + (uint64_t)r * o.n;
    const float mean = o.stats[2 * (uint64_t)r], rstd = o.stats[2 * (uint64_t)r + 1];
#pragma unroll 4
    for (uint32_t i = lane; i < o.n; i += LANES) {
        const float g = dy[i] * o.w[i];
        g_sum = g_sum + g;
        hat_sum = hat_sum + g * ((x[i] - mean) * rstd);
    }
    const float g_mean = o.rms ? 0.0f : fold_lanes_float(g_sum) / (float)o.n;
    const float hat_mean = fold_lanes_float(hat_sum) / (float)o.n;
    float *dx = o.dx + (uint64_t)r * o.n;
#pragma unroll 4
    for (uint32_t i = lane; i < o.n; i += LANES)
        dx[i] = ((dy[i] * o.w[i] - g_mean) - (x[i] - mean) * rstd * hat_mean) * rstd;
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

static __device__ __forceinline__ struct column_sums sum_norm_chunk(const struct norm_bwd *o, uint64_t first,
                                                                    uint32_t column)
{
    const uint64_t end = first + CHUNK_ROWS < o->rows ? first + CHUNK_ROWS : o->rows;
    struct column_sums sum = {0, 0};

    for (uint64_t r = first; r < end; r++) {
        const float dy = o->dy[r * o->n + column];
        const float hat = (o->x[r * o->n + column] - o->stats[2 * r]) * o->stats[2 * r + 1];
        sum.w = sum.w + dy * hat;
        sum.b = sum.b + dy;
    }
    return sum;
}

static __global__ void norm_bwd_columns(const struct norm_bwd o)
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
int cuda_op_rownorm_bwd(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_rownorm_bwd *o = &call->rownorm_bwd;
    const struct norm_bwd args = {(const float *)o->x,
                                  (const float *)o->w,
                                  o->stats,
                                  (const float *)o->dy,
                                  (float *)o->dx,
                                  (float *)o->dw,
                                  (float *)o->db,
                                  o->rows,
                                  o->n,
                                  o->rms,
                                  o->accumulate};

    norm_bwd_columns<<<o->n / COLUMNS + (o->n % COLUMNS != 0), THREADS, 0, at->stream>>>(args);
    if (o->dx)
        norm_bwd_rows<<<row_grid(o->rows), THREADS, 0, at->stream>>>(args);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

int cuda_warm_rownorm(const struct cuda_compute *at)
{
    const struct norm_fwd fwd = {0};
    const struct norm_bwd bwd = {0};

    norm_fwd<<<1, THREADS, 0, at->stream>>>(fwd);
    norm_bwd_rows<<<1, THREADS, 0, at->stream>>>(bwd);
    norm_bwd_columns<<<1, THREADS, 0, at->stream>>>(bwd);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}
