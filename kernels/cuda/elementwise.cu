/* Activations, dropout, bias, the end of a linear op, swiglu and zero.
 *
 * Activations use the arithmetic of kernels/vmath.h, dropout uses the random numbers of base/rng.h, and
 * bias_bwd sums in the same order as kernels/cpu/ops_linear.c. So the bits are those of the cpu backend.
 * Input and output may be the same array if op.h says so, because one thread reads and writes each
 * element.
 *
 * Only the enqueueing thread runs this code.
 */
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/dropout.cuh"

#define VMATH_INLINE static inline __device__
#include "kernels/cuda/kernel.cuh"
#include "kernels/vmath.h"

/* ---- activations ---- */

static __device__ __forceinline__ float activate(enum act act, float x)
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

/* Returns dy * act'(x). */
static __device__ __forceinline__ float act_gradient(enum act act, float x, float dy)
{
    switch (act) {
    case ACT_RELU:
        return x <= 0.0f ? 0.0f : dy;
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

static __global__ void act_fwd(enum act act, const float *x, float *y, uint64_t n)
{
    FOR_EACH(i, n)
    y[i] = activate(act, x[i]);
}

static __global__ void act_bwd(enum act act, const float *x, const float *dy, float *dx, uint64_t n)
{
    FOR_EACH(i, n)
    dx[i] = act_gradient(act, x[i], dy[i]);
}

/* Copies `n` elements of type `dtype` from `x` to `y`. Does nothing if both are the same array. */
static int copy_elements(const struct cuda_compute *at, void *y, const void *x, enum dtype dtype, uint64_t n)
{
    if (x == y)
        return 0;
    return CUDA_CHECK(at->fault,
                      cudaMemcpyAsync(y, x, n * dtype_size(dtype), cudaMemcpyDeviceToDevice, at->stream));
}

int cuda_op_act_fwd(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_act_fwd *o = &call->act_fwd;

    if (o->act == ACT_NONE)
        return copy_elements(at, o->y, o->x, o->dtype, o->n);
    act_fwd<<<grid_for(o->n, THREADS), THREADS, 0, at->stream>>>(o->act, (const float *)o->x, (float *)o->y,
                                                                 o->n);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

int cuda_op_act_bwd(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_act_bwd *o = &call->act_bwd;

    if (o->act == ACT_NONE)
        return copy_elements(at, o->dx, o->dy, o->dtype, o->n);
    act_bwd<<<grid_for(o->n, THREADS), THREADS, 0, at->stream>>>(o->act, (const float *)o->x,
                                                                 (const float *)o->dy, (float *)o->dx, o->n);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

/* ---- bias and activation after a product ---- */

static __global__ void finish_linear(float *c, const float *b, float *y, uint32_t rows, uint32_t n,
                                     enum act act)
{
    FOR_EACH(i, (uint64_t)rows * n)
    {
        const float z = b ? c[i] + b[column_of(i, n)] : c[i];
        if (b && c != y)
            c[i] = z;
        y[i] = activate(act, z);
    }
}

int cuda_finish_linear(const struct cuda_compute *at, const struct op_linear_fwd *o)
{
    float *c = (float *)(o->z ? o->z : o->y);

    if (!o->b && o->act == ACT_NONE)
        return 0;
    finish_linear<<<grid_for((uint64_t)o->rows * o->out, THREADS), THREADS, 0, at->stream>>>(
        c, (const float *)o->b, (float *)o->y, o->rows, o->out, o->act);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

/* ---- swiglu, as in kernels/cpu/ops_tokens.c ---- */

static __global__ void swiglu_fwd(const float *x, float *y, uint32_t rows, uint32_t n)
{
    FOR_EACH(i, (uint64_t)rows * n)
    {
        const uint64_t gate = 2 * i - column_of(i, n);
        y[i] = vmath_silu(x[gate]) * x[gate + n];
    }
}

/* Computes the gradient of swiglu. `dx` may be equal to `x`, because one thread reads and writes both
 * elements of a pair. */
static __global__ void swiglu_bwd(const float *x, const float *dy, float *dx, uint32_t rows, uint32_t n)
{
    FOR_EACH(i, (uint64_t)rows * n)
    {
        const uint64_t gate = 2 * i - column_of(i, n);
        const float g = x[gate], up = x[gate + n];
        dx[gate] = (dy[i] * up) * vmath_silu_slope(g);
        dx[gate + n] = dy[i] * vmath_silu(g);
    }
}

int cuda_op_swiglu_fwd(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_swiglu_fwd *o = &call->swiglu_fwd;

    swiglu_fwd<<<grid_for((uint64_t)o->rows * o->n, THREADS), THREADS, 0, at->stream>>>(
        (const float *)o->x, (float *)o->y, o->rows, o->n);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

int cuda_op_swiglu_bwd(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_swiglu_bwd *o = &call->swiglu_bwd;

    swiglu_bwd<<<grid_for((uint64_t)o->rows * o->n, THREADS), THREADS, 0, at->stream>>>(
        (const float *)o->x, (const float *)o->dy, (float *)o->dx, o->rows, o->n);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

/* ---- zero ---- */

int cuda_op_zero(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_zero *o = &call->zero;

    return CUDA_CHECK(at->fault, cudaMemsetAsync(o->y, 0, o->bytes, at->stream));
}

/* ---- dropout ---- */

/* Applies dropout. Each thread handles four elements, because the random generator gives four numbers at a
 * time. */
static __global__ void dropout(const float *x, float *y, uint32_t rows, uint32_t n, struct dropout d)
{
    const uint32_t quads = n / 4 + (n % 4 != 0);
    const float keep = 1.0f - d.p;

    FOR_EACH(i, (uint64_t)rows * quads)
    {
        const uint32_t quad = column_of(i, quads), r = (uint32_t)((i - quad) / quads);
        const unsigned kept = dropout_kept(&d, r, quad);
        const uint64_t row = (uint64_t)r * n;
        for (uint32_t w = 0; w < 4 && 4 * (uint64_t)quad + w < n; w++) {
            const uint64_t e = row + 4 * (uint64_t)quad + w;
            y[e] = kept >> w & 1 ? x[e] / keep : 0.0f;
        }
    }
}

int cuda_op_dropout(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_dropout *o = &call->dropout;
    const uint64_t quads = (uint64_t)o->rows * (o->n / 4 + (o->n % 4 != 0));

    if (!call->step->training)
        return copy_elements(at, o->y, o->x, o->dtype, (uint64_t)o->rows * o->n);
    dropout<<<grid_for(quads, THREADS), THREADS, 0, at->stream>>>(
        (const float *)o->x, (float *)o->y, o->rows, o->n,
        dropout_of(call->step, RNG_DROPOUT, o->layer, o->first_row, o->p));
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

/* ---- bias ---- */

static __global__ void bias_fwd(const float *x, const float *b, float *y, uint32_t rows, uint32_t n)
{
    FOR_EACH(i, (uint64_t)rows * n)
    y[i] = x[i] + b[column_of(i, n)];
}

int cuda_op_bias_fwd(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_bias_fwd *o = &call->bias_fwd;

    bias_fwd<<<grid_for((uint64_t)o->rows * o->n, THREADS), THREADS, 0, at->stream>>>(
        (const float *)o->x, (const float *)o->b, (float *)o->y, o->rows, o->n);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

/* How bias_bwd divides its work. A thread block computes the sums of COLUMNS columns. Its threads form CHUNKS
 * rows of COLUMNS threads, and each row of threads adds up CHUNK_ROWS rows of the matrix at a time. The first
 * row of threads then adds these sums in ascending order. */
#define COLUMNS    32u
#define CHUNKS     (THREADS / COLUMNS)
#define CHUNK_ROWS 32u

/* Returns the sum of one column over the rows `first` to first + CHUNK_ROWS - 1. The last chunk of the matrix
 * may have fewer rows. */
static __device__ __forceinline__ float sum_bias_chunk(const float *dy, uint64_t first, uint32_t rows,
                                                       uint32_t n, uint32_t column)
{
    const uint64_t end = first + CHUNK_ROWS < rows ? first + CHUNK_ROWS : rows;
    float sum = 0;

    for (uint64_t r = first; r < end; r++)
        sum = sum + dy[r * n + column];
    return sum;
}

static __global__ void bias_bwd(const float *dy, float *db, uint32_t rows, uint32_t n, bool accumulate)
{
    __shared__ float chunk[CHUNKS][COLUMNS];
    const uint32_t lane = threadIdx.x % COLUMNS, mine = threadIdx.x / COLUMNS;
    const uint64_t column = (uint64_t)blockIdx.x * COLUMNS + lane;
    float total = 0;

    for (uint64_t first = 0; first < rows; first += CHUNKS * CHUNK_ROWS) {
        const uint64_t begin = first + mine * CHUNK_ROWS;
        if (column < n && begin < rows)
            chunk[mine][lane] = sum_bias_chunk(dy, begin, rows, n, (uint32_t)column);
        __syncthreads();
        if (mine == 0 && column < n)
            for (uint32_t c = 0; c < CHUNKS && first + c * CHUNK_ROWS < rows; c++)
                total = total + chunk[c][lane];
        __syncthreads();
    }
    if (mine == 0 && column < n)
        db[column] = accumulate ? db[column] + total : total;
}

int cuda_op_bias_bwd(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_bias_bwd *o = &call->bias_bwd;

    bias_bwd<<<o->n / COLUMNS + (o->n % COLUMNS != 0), THREADS, 0, at->stream>>>(
        (const float *)o->dy, (float *)o->db, o->rows, o->n, o->accumulate);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

int cuda_warm_elementwise(const struct cuda_compute *at)
{
    const struct dropout none = {0};

    act_fwd<<<1, THREADS, 0, at->stream>>>(ACT_NONE, NULL, NULL, 0);
    act_bwd<<<1, THREADS, 0, at->stream>>>(ACT_NONE, NULL, NULL, NULL, 0);
    finish_linear<<<1, THREADS, 0, at->stream>>>(NULL, NULL, NULL, 0, 0, ACT_NONE);
    swiglu_fwd<<<1, THREADS, 0, at->stream>>>(NULL, NULL, 0, 0);
    swiglu_bwd<<<1, THREADS, 0, at->stream>>>(NULL, NULL, NULL, 0, 0);
    dropout<<<1, THREADS, 0, at->stream>>>(NULL, NULL, 0, 0, none);
    bias_fwd<<<1, THREADS, 0, at->stream>>>(NULL, NULL, NULL, 0, 0);
    bias_bwd<<<1, THREADS, 0, at->stream>>>(NULL, NULL, 0, 0, false);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}
