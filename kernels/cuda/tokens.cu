/* Ops on tokens: the embedding and rotary positions.
 *
 * embedding_bwd adds all rows with the same id to one row of the table, in ascending order. The thread
 * block of the first such row does this. The blocks of the other rows find an earlier row with their id
 * and stop. Each row thus reads all ids once. That is little compared to the rows themselves, up to many
 * tens of thousands of rows, and it needs neither memory nor atomics.
 *
 * The data loader refuses invalid ids. With an invalid id, the result would be NaN, the gradient would be
 * ignored, and no memory outside the table would be accessed.
 *
 * Only the enqueueing thread runs this code.
 */
#include <math.h>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/kernel.cuh"

#define WARP  32u
#define WARPS (THREADS / WARP)

/* ---- embedding ---- */

template <class T, class W>
static __global__ void embedding_fwd(const int32_t *ids, const W *table, T *y, uint32_t rows, uint32_t n,
                                     uint32_t vocab)
{
    const uint32_t N = PACK_OF(T), packs = packs_in_row(n, N);

    FOR_EACH(i, (uint64_t)rows * packs)
    {
        const row_pack at = row_pack_at<N>(i, packs);
        const uint32_t id = (uint32_t)ids[at.row], left = n - at.column;
        pack<N> p;
#pragma unroll
        for (uint32_t k = 0; k < N; k++)
            p.v[k] = NAN;
        if (id < vocab)
            p = load_pack<N>(table + (uint64_t)id * n + at.column, left);
        store_pack(y + (uint64_t)at.row * n + at.column, p, left);
    }
}

/* Returns true if an earlier row has the same token id as this row. All threads of the block get the same
 * answer. */
static __device__ bool is_repeated(const int32_t *ids, uint32_t row)
{
    __shared__ bool found;

    if (threadIdx.x == 0)
        found = false;
    __syncthreads();
    for (uint32_t r = threadIdx.x; r < row; r += THREADS)
        if (ids[r] == ids[row]) {
            /* Several threads may write to `found` at the same time. This does no harm, because they all
             * write the same value. */
            found = true;
            break;
        }
    __syncthreads();
    return found;
}

/* Adds one row of dy to a row of the table. A thread handles the same columns in every call, so the threads
 * need not wait for each other. */
template <class T> static __device__ __forceinline__ void add_row(float *to, const T *from, uint32_t n)
{
    const uint32_t N = PACK_OF(T);

    for (uint64_t at = threadIdx.x * N; at < n; at += THREADS * N) {
        const pack<N> x = load_pack<N>(from + at, n - at);
        pack<N> sum = load_pack<N>(to + at, n - at);
#pragma unroll
        for (uint32_t k = 0; k < N; k++)
            sum.v[k] = sum.v[k] + x.v[k];
        store_pack(to + at, sum, n - at);
    }
}

template <class T>
static __global__ void embedding_bwd(const int32_t *ids, const T *dy, float *dtable, uint32_t rows,
                                     uint32_t n, uint32_t vocab)
{
    /* A bit mask of the rows that have the same token id as this thread block's row. Bit l of word w stands
     * for row begin + 32 * w + l. */
    __shared__ unsigned same[WARPS];
    const uint32_t row = blockIdx.x;

    if (row >= rows || (uint32_t)ids[row] >= vocab || is_repeated(ids, row))
        return;
    float *to = dtable + (uint64_t)ids[row] * n;
    for (uint64_t begin = row; begin < rows; begin += THREADS) {
        const uint64_t mine = begin + threadIdx.x;
        const unsigned found = __ballot_sync(~0u, mine < rows && ids[mine] == ids[row]);
        if (threadIdx.x % WARP == 0)
            same[threadIdx.x / WARP] = found;
        __syncthreads();
        for (uint32_t w = 0; w < WARPS; w++)
            for (unsigned left = same[w]; left != 0; left &= left - 1)
                add_row(to, dy + (begin + w * WARP + (unsigned)__ffs((int)left) - 1) * n, n);
        __syncthreads();
    }
}

int cuda_op_embedding_fwd(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_embedding_fwd *o = &call->embedding_fwd;

    WITH_TYPES(T, W, o->dtype, o->w_dtype,
               embedding_fwd<<<row_pack_grid(o->rows, o->n, PACK_OF(T)), THREADS, 0, at->stream>>>(
                   o->ids, (const W *)o->table, (T *)o->y, o->rows, o->n, o->vocab));
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

int cuda_op_embedding_bwd(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_embedding_bwd *o = &call->embedding_bwd;

    WITH_TYPE(T, o->dtype,
              embedding_bwd<<<o->rows, THREADS, 0, at->stream>>>(o->ids, (const T *)o->dy, o->dtable, o->rows,
                                                                 o->n, o->vocab));
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

/* ---- rotary positions ---- */

/* This number of thread blocks is enough to keep a device busy. More blocks would compute the same angles
 * more often. */
#define ROPE_BLOCKS 1024u

/* The arguments of the rope kernel. */
template <class T> struct rope_args {
    T *x;
    uint32_t rows, seq, n, heads, head;
    float theta;
    bool inverse;
};

/* Each thread computes the angle of one pair of elements at one position. This angle is the same in all heads
 * and all sequences, so the thread then rotates the pair in many of them. The angle is a double, because a
 * float is not precise enough at large positions. */
template <class T> static __global__ void rope(const rope_args<T> o)
{
    const uint32_t half = o.head / 2;

    FOR_EACH(i, (uint64_t)o.seq * half)
    {
        const uint32_t pair = column_of(i, half), t = (uint32_t)((i - pair) / half);
        const double angle = (double)t * pow((double)o.theta, -2.0 * (double)pair / (double)o.head);
        double sine, cosine;
        sincos(o.inverse ? -angle : angle, &sine, &cosine);
        const float s = (float)sine, c = (float)cosine;
        for (uint32_t r = blockIdx.y; r < o.rows; r += gridDim.y) {
            T *token = o.x + ((uint64_t)r * o.seq + t) * o.n + pair;
            for (uint32_t h = 0; h < o.heads; h++, token += o.head) {
                const float a = load(token), b = load(token + half);
                store(token, a * c - b * s);
                store(token + half, a * s + b * c);
            }
        }
    }
}

template <class T> static void launch_rope(const struct cuda_compute *at, const struct op_rope *o)
{
    const unsigned blocks = grid_for((uint64_t)o->seq * (o->head / 2), THREADS);
    const unsigned most = blocks < ROPE_BLOCKS ? ROPE_BLOCKS / blocks : 1;
    const rope_args<T> args = {(T *)o->x, o->rows, o->seq, o->n, o->heads, o->head, o->theta, o->inverse};

    rope<<<dim3(blocks, o->rows < most ? o->rows : most), THREADS, 0, at->stream>>>(args);
}

int cuda_op_rope(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_rope *o = &call->rope;

    WITH_TYPE(T, o->dtype, launch_rope<T>(at, o));
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

template <class T> static void warm(const struct cuda_compute *at)
{
    const rope_args<T> none = {0};
    T *const nowhere = NULL;

    embedding_fwd<<<1, THREADS, 0, at->stream>>>(NULL, (const T *)NULL, nowhere, 0, 0, 0);
    embedding_fwd<<<1, THREADS, 0, at->stream>>>(NULL, (const float *)NULL, nowhere, 0, 0, 0);
    embedding_bwd<<<1, THREADS, 0, at->stream>>>(NULL, nowhere, NULL, 0, 0, 0);
    rope<<<1, THREADS, 0, at->stream>>>(none);
}

int cuda_warm_tokens(const struct cuda_compute *at)
{
    warm<float>(at);
    warm<bf16>(at);
    warm<f16>(at);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}
