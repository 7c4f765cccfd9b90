/* Activations, dropout, bias, swiglu and zero.
 *
 * Activations use the arithmetic of kernels/vmath.h, dropout uses the random numbers of base/rng.h, and
 * bias_bwd sums in the same order as kernels/cpu/ops_linear.c. So the bits are those of the cpu backend.
 * Input and output may be the same array if op.h says so, because one thread reads and writes each
 * element.
 *
 * Only the enqueueing thread runs this code.
 */
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/kernel.cuh"

/* ---- activations ---- */

template <class T> static __global__ void act_fwd(enum act act, const T *x, T *y, uint64_t n)
{
    const uint32_t N = PACK_OF(T);

    FOR_EACH_PACK(at, n, N)
    {
        store_pack(y + at, activate_pack(act, load_pack<N>(x + at, n - at)), n - at);
    }
}

template <class T> static __global__ void act_bwd(enum act act, const T *x, const T *dy, T *dx, uint64_t n)
{
    const uint32_t N = PACK_OF(T);

    FOR_EACH_PACK(at, n, N)
    {
        const pack<N> z = load_pack<N>(x + at, n - at), d = load_pack<N>(dy + at, n - at);
        store_pack(dx + at, act_gradient_pack(act, z, d), n - at);
    }
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
    WITH_TYPE(T, o->dtype,
              act_fwd<<<grid_for(o->n, THREADS * PACK_OF(T)), THREADS, 0, at->stream>>>(
                  o->act, (const T *)o->x, (T *)o->y, o->n));
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

int cuda_op_act_bwd(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_act_bwd *o = &call->act_bwd;

    if (o->act == ACT_NONE)
        return copy_elements(at, o->dx, o->dy, o->dtype, o->n);
    WITH_TYPE(T, o->dtype,
              act_bwd<<<grid_for(o->n, THREADS * PACK_OF(T)), THREADS, 0, at->stream>>>(
                  o->act, (const T *)o->x, (const T *)o->dy, (T *)o->dx, o->n));
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

/* ---- swiglu, as in kernels/cpu/ops_tokens.c ---- */

template <class T> static __global__ void swiglu_fwd(const T *x, T *y, uint32_t rows, uint32_t n)
{
    const uint32_t N = PACK_OF(T), packs = packs_in_row(n, N);

    FOR_EACH(i, (uint64_t)rows * packs)
    {
        const row_pack at = row_pack_at<N>(i, packs);
        const T *gate = x + 2 * (uint64_t)at.row * n + at.column;
        const pack<N> g = load_pack<N>(gate, n - at.column), up = load_pack<N>(gate + n, n - at.column);
        pack<N> p;
#pragma unroll
        for (uint32_t k = 0; k < N; k++)
            p.v[k] = vmath_silu(g.v[k]) * up.v[k];
        store_pack(y + (uint64_t)at.row * n + at.column, p, n - at.column);
    }
}

/* Computes the gradient of swiglu. `dx` may be equal to `x`, because one thread reads and writes both
 * elements of a pair. */
template <class T>
static __global__ void swiglu_bwd(const T *x, const T *dy, T *dx, uint32_t rows, uint32_t n)
{
    const uint32_t N = PACK_OF(T), packs = packs_in_row(n, N);

    FOR_EACH(i, (uint64_t)rows * packs)
    {
        const row_pack at = row_pack_at<N>(i, packs);
        const uint64_t gate = 2 * (uint64_t)at.row * n + at.column;
        const pack<N> g = load_pack<N>(x + gate, n - at.column),
                      up = load_pack<N>(x + gate + n, n - at.column);
        const pack<N> d = load_pack<N>(dy + (uint64_t)at.row * n + at.column, n - at.column);
        pack<N> dg, dup;
#pragma unroll
        for (uint32_t k = 0; k < N; k++) {
            dg.v[k] = (d.v[k] * up.v[k]) * vmath_silu_slope(g.v[k]);
            dup.v[k] = d.v[k] * vmath_silu(g.v[k]);
        }
        store_pack(dx + gate, dg, n - at.column);
        store_pack(dx + gate + n, dup, n - at.column);
    }
}

int cuda_op_swiglu_fwd(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_swiglu_fwd *o = &call->swiglu_fwd;

    WITH_TYPE(T, o->dtype,
              swiglu_fwd<<<row_pack_grid(o->rows, o->n, PACK_OF(T)), THREADS, 0, at->stream>>>(
                  (const T *)o->x, (T *)o->y, o->rows, o->n));
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

int cuda_op_swiglu_bwd(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_swiglu_bwd *o = &call->swiglu_bwd;

    WITH_TYPE(T, o->dtype,
              swiglu_bwd<<<row_pack_grid(o->rows, o->n, PACK_OF(T)), THREADS, 0, at->stream>>>(
                  (const T *)o->x, (const T *)o->dy, (T *)o->dx, o->rows, o->n));
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

/* ---- zero ---- */

int cuda_op_zero(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_zero *o = &call->zero;

    return CUDA_CHECK(at->fault, cudaMemsetAsync(o->y, 0, o->bytes, at->stream));
}

/* ---- dropout ---- */

/* Applies dropout. The random generator gives the numbers of four elements at a time, which are a quad. A
 * pack has one or two quads. The quads of a row are numbered from the row's first element on. */
template <class T>
static __global__ void dropout(const T *x, T *y, uint32_t rows, uint32_t n, struct dropout d)
{
    const uint32_t N = PACK_OF(T), packs = packs_in_row(n, N);
    const float keep = 1.0f - d.p;

    FOR_EACH(i, (uint64_t)rows * packs)
    {
        const row_pack at = row_pack_at<N>(i, packs);
        const uint64_t e = (uint64_t)at.row * n + at.column;
        pack<N> p = load_pack<N>(x + e, n - at.column);
#pragma unroll
        for (uint32_t quad = 0; quad < N / 4; quad++) {
            const unsigned kept = dropout_kept(&d, at.row, at.column / 4 + quad);
#pragma unroll
            for (uint32_t w = 0; w < 4; w++)
                p.v[4 * quad + w] = kept >> w & 1 ? p.v[4 * quad + w] / keep : 0.0f;
        }
        store_pack(y + e, p, n - at.column);
    }
}

int cuda_op_dropout(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_dropout *o = &call->dropout;

    if (!call->step->training)
        return copy_elements(at, o->y, o->x, o->dtype, (uint64_t)o->rows * o->n);
    WITH_TYPE(T, o->dtype,
              dropout<<<row_pack_grid(o->rows, o->n, PACK_OF(T)), THREADS, 0, at->stream>>>(
                  (const T *)o->x, (T *)o->y, o->rows, o->n,
                  dropout_of(call->step, RNG_DROPOUT, o->layer, o->first_row, o->p)));
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

/* ---- bias ---- */

template <class T, class W>
static __global__ void bias_fwd(const T *x, const W *b, T *y, uint32_t rows, uint32_t n)
{
    const uint32_t N = PACK_OF(T), packs = packs_in_row(n, N);

    FOR_EACH(i, (uint64_t)rows * packs)
    {
        const row_pack at = row_pack_at<N>(i, packs);
        const uint64_t e = (uint64_t)at.row * n + at.column;
        const pack<N> bias = load_pack<N>(b + at.column, n - at.column);
        pack<N> p = load_pack<N>(x + e, n - at.column);
#pragma unroll
        for (uint32_t k = 0; k < N; k++)
            p.v[k] = p.v[k] + bias.v[k];
        store_pack(y + e, p, n - at.column);
    }
}

int cuda_op_bias_fwd(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_bias_fwd *o = &call->bias_fwd;

    WITH_TYPES(T, W, o->dtype, o->w_dtype,
               bias_fwd<<<row_pack_grid(o->rows, o->n, PACK_OF(T)), THREADS, 0, at->stream>>>(
                   (const T *)o->x, (const W *)o->b, (T *)o->y, o->rows, o->n));
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
template <class T>
static __device__ __forceinline__ float sum_bias_chunk(const T *dy, uint64_t first, uint32_t rows, uint32_t n,
                                                       uint32_t column)
{
    const uint64_t end = first + CHUNK_ROWS < rows ? first + CHUNK_ROWS : rows;
    float sum = 0;

    for (uint64_t r = first; r < end; r++)
        sum = sum + load(dy + r * n + column);
    return sum;
}

template <class T>
static __global__ void bias_bwd(const T *dy, float *db, uint32_t rows, uint32_t n, bool accumulate)
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

    WITH_TYPE(T, o->dtype,
              bias_bwd<<<o->n / COLUMNS + (o->n % COLUMNS != 0), THREADS, 0, at->stream>>>(
                  (const T *)o->dy, o->db, o->rows, o->n, o->accumulate));
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

template <class T> static void warm(const struct cuda_compute *at)
{
    const struct dropout none = {0};
    T *const nowhere = NULL;

    act_fwd<<<1, THREADS, 0, at->stream>>>(ACT_NONE, nowhere, nowhere, 0);
    act_bwd<<<1, THREADS, 0, at->stream>>>(ACT_NONE, nowhere, nowhere, nowhere, 0);
    swiglu_fwd<<<1, THREADS, 0, at->stream>>>(nowhere, nowhere, 0, 0);
    swiglu_bwd<<<1, THREADS, 0, at->stream>>>(nowhere, nowhere, nowhere, 0, 0);
    dropout<<<1, THREADS, 0, at->stream>>>(nowhere, nowhere, 0, 0, none);
    bias_fwd<<<1, THREADS, 0, at->stream>>>(nowhere, nowhere, nowhere, 0, 0);
    bias_fwd<<<1, THREADS, 0, at->stream>>>(nowhere, (const float *)NULL, nowhere, 0, 0);
    bias_bwd<<<1, THREADS, 0, at->stream>>>(nowhere, (float *)NULL, 0, 0, false);
}

int cuda_warm_elementwise(const struct cuda_compute *at)
{
    warm<float>(at);
    warm<bf16>(at);
    warm<f16>(at);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}
