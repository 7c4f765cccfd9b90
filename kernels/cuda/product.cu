/* What surrounds the matrix products of the linear ops: the bias and the activation after a product, and
 * products whose factors have different types, which cuBLAS does not offer.
 *
 * A product is computed as floats. Where the result has 16 bits, the floats are in the device's buffer
 * `sums`, one tile of the result at a time, and a kernel of this file rounds each of them once into the
 * result.
 *
 * Only the enqueueing thread runs this code.
 */
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/kernel.cuh"

/* ---- after the product ---- */

/* Adds the bias to a tile of sums, rounds to the type of y, and applies the activation to the rounded
 * number. `z` and `y` point to the first element of the tile, and `b` to the bias of its first column. `z`
 * and `b` may be NULL. `z` or `y` may be the same array as `sums`, because one thread reads and writes
 * each element. */
template <class Y, class W>
static __global__ void finish_forward(struct cuda_tile t, const W *b, Y *z, Y *y, uint32_t pitch,
                                      enum act act)
{
    const uint32_t N = PACK_OF(Y), packs = packs_in_row(t.columns, N);

    FOR_EACH(i, (uint64_t)t.rows * packs)
    {
        const row_pack at = row_pack_at<N>(i, packs);
        const uint32_t left = t.columns - at.column;
        const uint64_t to = (uint64_t)at.row * pitch + at.column;
        pack<N> p = load_pack<N>(t.sums + (uint64_t)at.row * t.columns + at.column, left);
        if (b) {
            const pack<N> bias = load_pack<N>(b + at.column, left);
#pragma unroll
            for (uint32_t k = 0; k < N; k++)
                p.v[k] = p.v[k] + bias.v[k];
        }
        if (z)
            store_pack(z + to, p, left);
#pragma unroll
        for (uint32_t k = 0; k < N; k++)
            p.v[k] = widen(narrow<Y>(p.v[k]));
        store_pack(y + to, act == ACT_NONE ? p : activate_pack(act, p), left);
    }
}

int cuda_finish_forward(const struct cuda_compute *at, const struct op_linear_fwd *o,
                        const struct cuda_tile *t)
{
    const uint64_t first = (uint64_t)t->row * o->out + t->column;

    WITH_TYPES(Y, W, o->y_dtype, o->w_dtype,
               finish_forward<<<row_pack_grid(t->rows, t->columns, PACK_OF(Y)), THREADS, 0, at->stream>>>(
                   *t, o->b ? (const W *)o->b + t->column : NULL, o->z ? (Y *)o->z + first : NULL,
                   (Y *)o->y + first, o->out, o->act));
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

/* Multiplies a tile of sums by the slope of the activation at `z`, and rounds. `z` may be NULL. `dx` may
 * be the same array as `sums`. */
template <class T>
static __global__ void finish_backward(struct cuda_tile t, const T *z, T *dx, uint32_t pitch, enum act act)
{
    const uint32_t N = PACK_OF(T), packs = packs_in_row(t.columns, N);

    FOR_EACH(i, (uint64_t)t.rows * packs)
    {
        const row_pack at = row_pack_at<N>(i, packs);
        const uint32_t left = t.columns - at.column;
        const uint64_t to = (uint64_t)at.row * pitch + at.column;
        pack<N> p = load_pack<N>(t.sums + (uint64_t)at.row * t.columns + at.column, left);
        if (z)
            p = act_gradient_pack(act, load_pack<N>(z + to, left), p);
        store_pack(dx + to, p, left);
    }
}

int cuda_finish_backward(const struct cuda_compute *at, const struct op_linear_bwd_data *o,
                         const struct cuda_tile *t)
{
    const uint64_t first = (uint64_t)t->row * o->in + t->column;

    WITH_TYPE(T, o->dtype,
              finish_backward<<<row_pack_grid(t->rows, t->columns, PACK_OF(T)), THREADS, 0, at->stream>>>(
                  *t, o->z ? (const T *)o->z + first : NULL, (T *)o->dx + first, o->in, o->act));
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

/* ---- factors of different types ---- */

/* Computes a tile of a product of 16-bit numbers and floats: sum over k of a[row][k] * w, where w is
 * w[column][k] or, if `along` is true, w[k][column]. `a` points to the tile's first row, and `w` to the
 * weights of its first column. Each thread adds its own sums in ascending order of k. Only layers whose
 * weights stay float in a 16-bit model use this kernel, and their products are small. */
template <class T>
static __global__ void multiply_mixed(struct cuda_tile t, const T *a, const float *w, uint32_t k_count,
                                      uint32_t pitch, bool along)
{
    FOR_EACH(i, (uint64_t)t.rows * t.columns)
    {
        const uint32_t column = column_of(i, t.columns);
        const T *x = a + (i - column) / t.columns * k_count;
        const float *y = w + (along ? column : (uint64_t)column * pitch);
        const uint64_t step = along ? pitch : 1;
        float sum = 0;
        for (uint64_t k = 0; k < k_count; k++)
            sum = fmaf(load(x + k), y[k * step], sum);
        t.sums[i] = sum;
    }
}

int cuda_multiply_mixed(const struct cuda_compute *at, const struct cuda_tile *t, const void *a,
                        enum dtype dtype, const float *w, uint32_t k_count, uint32_t pitch, bool along)
{
    const float *first = w + (along ? t->column : (uint64_t)t->column * pitch);

    WITH_HALF(T, dtype,
              multiply_mixed<<<grid_for((uint64_t)t->rows * t->columns, THREADS), THREADS, 0, at->stream>>>(
                  *t, (const T *)a + (uint64_t)t->row * k_count, first, k_count, pitch, along));
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

/* ---- loading ---- */

template <class T> static void warm_finish(const struct cuda_compute *at)
{
    const struct cuda_tile none = {0};
    T *const nowhere = NULL;

    finish_forward<<<1, THREADS, 0, at->stream>>>(none, (const T *)NULL, nowhere, nowhere, 0, ACT_NONE);
    finish_backward<<<1, THREADS, 0, at->stream>>>(none, (const T *)NULL, nowhere, 0, ACT_NONE);
}

template <class T> static void warm_mixed(const struct cuda_compute *at)
{
    const struct cuda_tile none = {0};
    T *const nowhere = NULL;
    float *const no_float = NULL;

    finish_forward<<<1, THREADS, 0, at->stream>>>(none, no_float, nowhere, nowhere, 0, ACT_NONE);
    finish_forward<<<1, THREADS, 0, at->stream>>>(none, nowhere, no_float, no_float, 0, ACT_NONE);
    multiply_mixed<<<1, THREADS, 0, at->stream>>>(none, nowhere, no_float, 0, 0, false);
}

int cuda_warm_product(const struct cuda_compute *at)
{
    warm_finish<float>(at);
    warm_finish<bf16>(at);
    warm_finish<f16>(at);
    warm_mixed<bf16>(at);
    warm_mixed<f16>(at);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}
