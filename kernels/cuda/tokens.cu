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
#include "kernels/cuda/kernel.cuh"

#define WARP  32u
#define WARPS (THREADS / WARP)

/* ---- embedding ---- */

static __global__ void embedding_fwd(const int32_t *ids, const float *table, float *y, uint32_t rows,
                                     uint32_t n, uint32_t vocab)
{
    FOR_EACH(i, (uint64_t)rows * n)
    {
        const uint32_t column = column_of(i, n), id = (uint32_t)ids[(i - column) / n];
        y[i] = id < vocab ? table[(uint64_t)id * n + column] : NAN;
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
static __device__ __forceinline__ void add_row(float *to, const float *from, uint32_t n)
{
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        to[i] = to[i] + from[i];
}

static __global__ void embedding_bwd(const int32_t *ids, const float *dy, float *dtable, uint32_t rows,
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

    embedding_fwd<<<grid_for((uint64_t)o->rows * o->n, THREADS), THREADS, 0, at->stream>>>(
        o->ids, (const float *)o->table, (float *)o->y, o->rows, o->n, o->vocab);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

int cuda_op_embedding_bwd(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_embedding_bwd *o = &call->embedding_bwd;

    embedding_bwd<<<o->rows, THREADS, 0, at->stream>>>(o->ids, (const float *)o->dy, (float *)o->dtable,
                                                       o->rows, o->n, o->vocab);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

/* ---- rotary positions ---- */

/* This number of thread blocks is enough to keep a device busy. More blocks would compute the same angles
 * more often. */
#define ROPE_BLOCKS 1024u

/* The arguments of the rope kernel. */
struct rope {
    float *x;
    uint32_t rows, seq, n, heads, head;
    float theta;
    bool inverse;
};

/* Each thread computes the angle of one pair of elements at one position. This angle is the same in all heads
 * and all sequences, so the thread then rotates the pair in many of them. The angle is a double, because a
 * float is not precise enough at large positions. */
static __global__ void rope(const struct rope o)
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
            float *token = o.x + ((uint64_t)r * o.seq + t) * o.n + pair;
            for (uint32_t h = 0; h < o.heads; h++, token += o.head) {
                const float a = token[0], b = token[half];
                token[0] = a * c - b * s;
                token[half] = a * s + b * c;
            }
        }
    }
}

int cuda_op_rope(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_rope *o = &call->rope;
    const unsigned blocks = grid_for((uint64_t)o->seq * (o->head / 2), THREADS);
    const unsigned most = blocks < ROPE_BLOCKS ? ROPE_BLOCKS / blocks : 1;
    const struct rope args = {(float *)o->x, o->rows, o->seq, o->n, o->heads, o->head, o->theta, o->inverse};

    rope<<<dim3(blocks, o->rows < most ? o->rows : most), THREADS, 0, at->stream>>>(args);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

int cuda_warm_tokens(const struct cuda_compute *at)
{
    const struct rope none = {0};

    embedding_fwd<<<1, THREADS, 0, at->stream>>>(NULL, NULL, NULL, 0, 0, 0);
    embedding_bwd<<<1, THREADS, 0, at->stream>>>(NULL, NULL, NULL, 0, 0, 0);
    rope<<<1, THREADS, 0, at->stream>>>(none);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}
