/* Attention, forward and backward, without ever holding all scores of a head.
 *
 * A thread block owns a tile of TILE queries of one head of one sequence. For the gradients of keys and
 * values, it owns a tile of TILE keys. The block goes through the tiles of the other side in ascending
 * order. It skips the tiles that the causal mask hides:
 *
 *     attend          scores = q k^T; running maximum and sum of each query's softmax; y += weights v
 *     attend_deltas   delta = sum of dy * y over a query's head, which equals the sum of weight * gradient
 *                     over its keys
 *     attend_queries  scores again, weights from lse, dscores = weight * (dy v^T - delta); dq += dscores k
 *     attend_keys     the same transposed, over the query heads that share the key head, in order;
 *                     dk += dscores^T q, dv += weights^T dy
 *
 * One thread writes each element, and every sum has one order, so there are no atomics. The bits differ
 * from those of the cpu backend.
 *
 * A block has 16 x 16 threads. Each thread computes 4 x 4 scores of a tile (the rows belong to the block's
 * own side) and 4 x 4 elements in every 64 columns of the result. The threads of a row are half a warp.
 * The factors of a product pass through shared memory, DEPTH at a time. They are laid out so that a thread
 * reads its four values of either factor with one access. A block's result has up to 64 or up to 128
 * columns. There are two kernels of each kind, which differ in their number of registers. Wider heads take
 * several blocks, and every one of these blocks computes the same scores.
 *
 * T is the type of qkv, y and their gradients. A load into shared memory widens it to float, all products and
 * the softmax are float, and each element of a result is rounded once, when it is stored.
 *
 * Products are fused multiply-adds. Because of -fmad=false they are written explicitly as fmaf.
 *
 * Only the enqueueing thread runs this code.
 */
#include <math.h>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/element.cuh"

#define VMATH_INLINE static inline __device__
#include "kernels/cuda/kernel.cuh"
#include "kernels/vmath.h"

#define TILE 64u /* queries, keys or columns of a tile */
/* Each thread computes a square of PART rows and PART columns of a tile. */
#define PART 4u
#define WIDE 2u /* most column tiles in a block's result */
/* The two factors of a product are loaded into shared memory in slices of DEPTH elements. */
#define DEPTH 16u

/* The distance between two rows in shared memory, in floats. The 4 extra floats keep the rows aligned to 16
 * bytes and let neighbouring rows start in different memory banks. */
#define PITCH      (TILE + 4u)
#define WIDE_PITCH (WIDE * TILE + 4u)

static_assert(TILE / PART == LANES && LANES * LANES == THREADS, "the threads of a row are half a warp");

/* The kernel arguments of one call of an attention op. All attention kernels of the call get the same
 * struct. */
struct cuda_attention {
    const void *qkv;    /* an array of T, as y, dy and out are */
    const void *y, *dy; /* backward only */
    float *lse;
    float *delta; /* [rows][heads][seq]; backward only */
    void *out;    /* y, or dqkv in the backward pass */
    uint32_t rows, seq, heads, kv_heads, head, first_head;
    uint32_t tiles; /* tiles in a sequence */
    float scale;
    float keep; /* 1/(1 - p), or 0 without dropout */
    struct dropout dropout;
};

/* The tokens of one head, in the array qkv, y or dy. Element `c` of token `t` is at[t * pitch + c]. */
template <class T> struct head_tokens {
    const T *at;
    uint64_t pitch;
};

/* The work of one thread block: it computes some columns of the result, for the tokens of one tile in one
 * head of one row. */
struct tile_block {
    uint32_t row, head, own; /* own: first token of the block's tile */
    uint32_t column;         /* first column of the block's result */
};

/* The shared memory of a thread block. `a` and `b` hold slices of the two factors of a matrix product. `tile`
 * holds a tile of softmax weights or of gradients of scores. */
struct shared_tiles {
    float a[DEPTH][PITCH];
    float b[DEPTH][WIDE_PITCH];
    float tile[TILE][PITCH]; /* [other][own] */
};

/* Each thread computes a PART x PART square of a tile, with the first row my_own() and the first column
 * my_other(). The rows of a tile are the tokens that the thread block works on. The columns are the tokens by
 * which these tokens are multiplied. */
static __device__ __forceinline__ uint32_t my_own(void)
{
    return threadIdx.x / LANES * PART;
}

static __device__ __forceinline__ uint32_t my_other(void)
{
    return threadIdx.x % LANES * PART;
}

/* ---- where things are ---- */

/* Returns the distance between two consecutive tokens in qkv, in elements. */
static __device__ __forceinline__ uint64_t qkv_pitch(const struct cuda_attention *a)
{
    return ((uint64_t)a->heads + 2 * (uint64_t)a->kv_heads) * a->head;
}

/* Returns the index in qkv of head number `index`, in the first token of a row. Each token has its query
 * heads first, then its key heads, then its value heads. */
static __device__ __forceinline__ uint64_t qkv_at(const struct cuda_attention *a, uint32_t row,
                                                  uint32_t index)
{
    return (uint64_t)row * a->seq * qkv_pitch(a) + (uint64_t)index * a->head;
}

template <class T>
static __device__ __forceinline__ head_tokens<T> qkv_of(const struct cuda_attention *a, uint32_t row,
                                                        uint32_t index)
{
    const head_tokens<T> t = {(const T *)a->qkv + qkv_at(a, row, index), qkv_pitch(a)};

    return t;
}

/* The same functions for the arrays y and dy: y_pitch, y_at and dy_of correspond to qkv_pitch, qkv_at and
 * qkv_of. */
static __device__ __forceinline__ uint64_t y_pitch(const struct cuda_attention *a)
{
    return (uint64_t)a->heads * a->head;
}

static __device__ __forceinline__ uint64_t y_at(const struct cuda_attention *a, uint32_t row, uint32_t h)
{
    return (uint64_t)row * a->seq * y_pitch(a) + (uint64_t)h * a->head;
}

template <class T>
static __device__ __forceinline__ head_tokens<T> dy_of(const struct cuda_attention *a, uint32_t row,
                                                       uint32_t h)
{
    const head_tokens<T> t = {(const T *)a->dy + y_at(a, row, h), y_pitch(a)};

    return t;
}

/* Returns the index in lse and delta of the first query of head `h` of a row. */
static __device__ __forceinline__ uint64_t query_at(const struct cuda_attention *a, uint32_t row, uint32_t h)
{
    return ((uint64_t)row * a->heads + h) * a->seq;
}

/* Returns the key head that query head `h` uses. Several query heads may share one key head. */
static __device__ __forceinline__ uint32_t key_head(const struct cuda_attention *a, uint32_t h)
{
    return h / (a->heads / a->kv_heads);
}

/* Returns the tile that this thread block works on. Thread blocks that work on the same head have
 * neighbouring numbers, because they read the same data. If `last` is true, the last tile of a head comes
 * first, because it takes longest. */
static __device__ __forceinline__ struct tile_block my_block(const struct cuda_attention *a, uint32_t heads,
                                                             uint32_t columns, bool last)
{
    const uint32_t tile = blockIdx.x % a->tiles, head = blockIdx.x / a->tiles;
    struct tile_block b;

    b.row = head / heads;
    b.head = head % heads;
    b.own = (last ? a->tiles - 1 - tile : tile) * TILE;
    b.column = blockIdx.y * columns;
    return b;
}

/* ---- products ---- */

/* Loads a tile with one column for each token: to[k][i] = element depth + k of token first + i. Elements
 * beyond the end of the head or of the sequence become 0. */
template <class T>
static __device__ __forceinline__ void load_across(float *to, uint32_t to_pitch, head_tokens<T> t,
                                                   uint32_t first, uint32_t depth,
                                                   const struct cuda_attention *a)
{
#pragma unroll
    for (uint32_t u = 0; u < TILE * DEPTH / THREADS; u++) {
        const uint32_t n = u * THREADS + threadIdx.x, i = n / 8 % TILE, k = n % 8 + n / (8 * TILE) * 8;
        const bool is_there = first + i < a->seq && depth + k < a->head;
        to[k * to_pitch + i] = is_there ? load(t.at + (first + i) * t.pitch + depth + k) : 0.0f;
    }
}

/* Loads a tile with one row for each token: to[k][j] = element column + j of token first + k. Elements beyond
 * the end of the head or of the sequence become 0. */
template <class T>
static __device__ __forceinline__ void load_along(float (*to)[WIDE_PITCH], head_tokens<T> t, uint32_t first,
                                                  uint32_t column, uint32_t columns,
                                                  const struct cuda_attention *a)
{
#pragma unroll
    for (uint32_t u = 0; u < DEPTH * columns / THREADS; u++) {
        const uint32_t n = u * THREADS + threadIdx.x, k = n / columns, j = n % columns;
        const bool is_there = first + k < a->seq && column + j < a->head;
        to[k][j] = is_there ? load(t.at + (first + k) * t.pitch + column + j) : 0.0f;
    }
}

/* Adds the outer product of two vectors of PART elements: c[i][j] += x[i] * y[j]. */
static __device__ __forceinline__ void add_outer(const float *x, const float *y, float (*c)[PART])
{
    const float4 p = *(const float4 *)x, q = *(const float4 *)y;
    const float own[PART] = {p.x, p.y, p.z, p.w}, other[PART] = {q.x, q.y, q.z, q.w};

#pragma unroll
    for (uint32_t i = 0; i < PART; i++)
#pragma unroll
        for (uint32_t j = 0; j < PART; j++)
            c[i][j] = fmaf(own[i], other[j], c[i][j]);
}

/* Sets c[i][j] to the dot product of token own + i of `x` and token other + j of `y`. All threads of the
 * block must call this function together, because they share the work and the shared memory *s. */
template <class T>
static __device__ __forceinline__ void multiply_heads(struct shared_tiles *s, head_tokens<T> x, uint32_t own,
                                                      head_tokens<T> y, uint32_t other,
                                                      const struct cuda_attention *a, float (*c)[PART])
{
#pragma unroll
    for (uint32_t i = 0; i < PART * PART; i++)
        c[i / PART][i % PART] = 0;
    for (uint32_t depth = 0; depth < a->head; depth += DEPTH) {
        load_across(s->a[0], PITCH, x, own, depth, a);
        load_across(s->b[0], WIDE_PITCH, y, other, depth, a);
        __syncthreads();
#pragma unroll 8
        for (uint32_t k = 0; k < DEPTH; k++)
            add_outer(&s->a[k][my_own()], &s->b[k][my_other()], c);
        __syncthreads();
    }
}

/* Multiplies a tile of weights or gradients by TILE tokens of `y`, starting at token `other`, and adds the
 * product to `sum`. `c` is this thread's part of the tile. All threads of the block must call this function
 * together, because they share the memory *s. */
template <class T>
static __device__ __forceinline__ void
multiply_tile(struct shared_tiles *s, float (*c)[PART], head_tokens<T> y, uint32_t other, uint32_t column,
              uint32_t wide, const struct cuda_attention *a, float (*sum)[PART][PART])
{
    const uint32_t count = a->seq - other < TILE ? a->seq - other : TILE;

#pragma unroll
    for (uint32_t j = 0; j < PART; j++)
        *(float4 *)&s->tile[my_other() + j][my_own()] = make_float4(c[0][j], c[1][j], c[2][j], c[3][j]);
    for (uint32_t first = 0; first < count; first += DEPTH) {
        load_along(s->b, y, other + first, column, wide * TILE, a);
        __syncthreads();
#pragma unroll 8
        for (uint32_t k = 0; k < DEPTH; k++)
#pragma unroll
            for (uint32_t w = 0; w < wide; w++)
                add_outer(&s->tile[first + k][my_own()], &s->b[k][w * TILE + my_other()], sum[w]);
        __syncthreads();
    }
}

/* Writes this thread's part of the block's result to memory. `to` is the address where the head begins in
 * token 0. */
template <class T>
static __device__ __forceinline__ void store_part(T *to, uint64_t pitch, const struct tile_block *b,
                                                  uint32_t wide, const struct cuda_attention *a,
                                                  float (*sum)[PART][PART])
{
#pragma unroll
    for (uint32_t i = 0; i < PART; i++)
#pragma unroll
        for (uint32_t w = 0; w < wide; w++)
#pragma unroll
            for (uint32_t j = 0; j < PART; j++) {
                const uint32_t t = b->own + my_own() + i, column = b->column + w * TILE + my_other() + j;
                if (t < a->seq && column < a->head)
                    store(to + t * pitch + column, sum[w][i][j]);
            }
}

static __device__ __forceinline__ void clear_part(float (*sum)[PART][PART])
{
#pragma unroll
    for (uint32_t i = 0; i < WIDE * PART * PART; i++)
        sum[i / (PART * PART)][i / PART % PART][i % PART] = 0;
}

/* ---- weights ---- */

/* Returns true if query `q` sees key `k`. Under the causal mask, a query sees only the keys up to its own
 * position. */
static __device__ __forceinline__ bool sees(const struct cuda_attention *a, uint32_t q, uint32_t k)
{
    return k <= q && q < a->seq;
}

/* Returns 16 bits, for the PART queries from `q` on and the PART keys from `k` on. Bit 4 * n + m is set if
 * dropout keeps the weight of query q + n and key k + m. The loop is not unrolled, because an unrolled loop
 * would need more registers. */
static __device__ __forceinline__ unsigned kept_part(const struct cuda_attention *a, uint32_t row, uint32_t h,
                                                     uint32_t q, uint32_t k)
{
    unsigned all = 0;

    if (a->keep == 0.0f)
        return 0xffffu;
#pragma unroll 1
    for (uint32_t n = 0; n < PART; n++) {
        const uint64_t e = (((uint64_t)a->first_head + h) * a->seq + q + n) * a->seq + k, quad = e / 4;
        unsigned kept = dropout_kept(&a->dropout, row, quad);
        if (e % 4 > 0)
            kept |= dropout_kept(&a->dropout, row, quad + 1) << 4;
        all |= (kept >> e % 4 & 0xfu) << 4 * n;
    }
    return all;
}

/* Applies dropout to `x`, which is a softmax weight or the gradient of a softmax weight. */
static __device__ __forceinline__ float drop(const struct cuda_attention *a, bool kept, float x)
{
    return a->keep == 0.0f ? x : kept ? x * a->keep : 0.0f;
}

/* ---- forward ---- */

/* The softmax of one query over the keys that have been processed so far. */
struct running {
    float max;
    float sum; /* sum over the keys of this lane */
};

/* Replaces this thread's scores of one query by exp(score - max), where `max` is the largest score so far.
 * `max` may grow in this call. The caller must therefore multiply the sums of earlier calls by the factor
 * that this function returns. */
static __device__ __forceinline__ float weigh(const struct cuda_attention *a, uint32_t q, uint32_t k,
                                              float *c, struct running *r)
{
    const float before = r->max;

#pragma unroll
    for (uint32_t j = 0; j < PART; j++) {
        c[j] = sees(a, q, k + j) ? c[j] * a->scale : -INFINITY;
        r->max = c[j] > r->max ? c[j] : r->max;
    }
    r->max = max_lanes(r->max);
    const float shrink = vmath_exp(before - r->max);
    r->sum = r->sum * shrink;
#pragma unroll
    for (uint32_t j = 0; j < PART; j++) {
        c[j] = sees(a, q, k + j) ? vmath_exp(c[j] - r->max) : 0.0f;
        r->sum = r->sum + c[j];
    }
    return shrink;
}

/* Replaces this thread's scores in one tile by softmax weights. `sum` contains the results of earlier tiles.
 * The function multiplies the results of each query by the factor that weigh() returns for this query. */
static __device__ __forceinline__ void weigh_tile(const struct cuda_attention *a, const struct tile_block *b,
                                                  uint32_t other, uint32_t wide, float (*c)[PART],
                                                  struct running *running, float (*sum)[PART][PART])
{
    const uint32_t q = b->own + my_own(), k = other + my_other();
    const unsigned kept = kept_part(a, b->row, b->head, q, k);

#pragma unroll
    for (uint32_t i = 0; i < PART; i++) {
        const float shrink = weigh(a, q + i, k, c[i], &running[i]);
#pragma unroll
        for (uint32_t j = 0; j < PART; j++) {
            c[i][j] = drop(a, kept >> (4 * i + j) & 1, c[i][j]);
#pragma unroll
            for (uint32_t w = 0; w < wide; w++)
                sum[w][i][j] = sum[w][i][j] * shrink;
        }
    }
}

/* The forward kernel. */
template <class T>
static __device__ __forceinline__ void attend(const struct cuda_attention *a, uint32_t wide)
{
    __shared__ __align__(16) struct shared_tiles s;
    const struct tile_block b = my_block(a, a->heads, wide * TILE, true);
    const uint32_t kv = key_head(a, b.head);
    const head_tokens<T> q = qkv_of<T>(a, b.row, b.head), k = qkv_of<T>(a, b.row, a->heads + kv);
    const head_tokens<T> v = qkv_of<T>(a, b.row, a->heads + a->kv_heads + kv);
    struct running running[PART];
    float c[PART][PART], sum[WIDE][PART][PART];

    clear_part(sum);
#pragma unroll
    for (uint32_t i = 0; i < PART; i++) {
        running[i].max = -INFINITY;
        running[i].sum = 0;
    }
    for (uint32_t other = 0; other <= b.own; other += TILE) {
        multiply_heads(&s, q, b.own, k, other, a, c);
        weigh_tile(a, &b, other, wide, c, running, sum);
        multiply_tile(&s, c, v, other, b.column, wide, a, sum);
    }
#pragma unroll
    for (uint32_t i = 0; i < PART; i++) {
        const uint32_t t = b.own + my_own() + i;
        const float all = fold_lanes_float(running[i].sum), inverse = 1.0f / all;
        if (my_other() == 0 && blockIdx.y == 0 && t < a->seq)
            a->lse[query_at(a, b.row, b.head) + t] = (float)((double)running[i].max + log((double)all));
#pragma unroll
        for (uint32_t n = 0; n < WIDE * PART; n++)
            sum[n / PART][i][n % PART] = sum[n / PART][i][n % PART] * inverse;
    }
    store_part((T *)a->out + y_at(a, b.row, b.head), y_pitch(a), &b, wide, a, sum);
}

/* ---- backward ---- */

template <class T> static __global__ void attend_deltas(const struct cuda_attention a)
{
    /* Half a warp computes one element of delta. Element n belongs to head h of token t, with n = t * heads +
     * h. */
    const uint32_t n = my_row(), lane = threadIdx.x % LANES;
    const uint64_t at = (uint64_t)n * a.head;
    float sum = 0;

    if (n >= a.rows * a.seq * a.heads)
        return;
    for (uint32_t i = lane; i < a.head; i += LANES)
        sum = fmaf(load((const T *)a.dy + at + i), load((const T *)a.y + at + i), sum);
    sum = fold_lanes_float(sum);
    const uint32_t h = n % a.heads, token = n / a.heads;
    if (lane == 0)
        a.delta[query_at(&a, token / a.seq, h) + token % a.seq] = sum;
}

/* Computes the weight and the score gradient of one query and one key. At the call, *c is q . k and *g is dy
 * . v (dot products). After the call, *c is the weight after dropout, and *g is the gradient of the score. */
static __device__ __forceinline__ void weigh_back(const struct cuda_attention *a, bool seen, bool kept,
                                                  float lse, float delta, float *c, float *g)
{
    const float weight = seen ? vmath_exp(*c * a->scale - lse) : 0.0f;

    *c = drop(a, kept, weight);
    *g = seen ? weight * (drop(a, kept, *g) - delta) * a->scale : 0.0f;
}

/* The backward kernel for queries. */
template <class T>
static __device__ __forceinline__ void attend_queries(const struct cuda_attention *a, uint32_t wide)
{
    __shared__ __align__(16) struct shared_tiles s;
    const struct tile_block b = my_block(a, a->heads, wide * TILE, true);
    const uint32_t kv = key_head(a, b.head);
    const head_tokens<T> q = qkv_of<T>(a, b.row, b.head), k = qkv_of<T>(a, b.row, a->heads + kv);
    const head_tokens<T> v = qkv_of<T>(a, b.row, a->heads + a->kv_heads + kv),
                         dy = dy_of<T>(a, b.row, b.head);
    const uint64_t stats = query_at(a, b.row, b.head);
    float c[PART][PART], g[PART][PART], sum[WIDE][PART][PART], lse[PART], delta[PART];

    clear_part(sum);
#pragma unroll
    for (uint32_t i = 0; i < PART; i++) {
        const uint32_t t = b.own + my_own() + i;
        lse[i] = t < a->seq ? a->lse[stats + t] : 0.0f;
        delta[i] = t < a->seq ? a->delta[stats + t] : 0.0f;
    }
    for (uint32_t other = 0; other <= b.own; other += TILE) {
        multiply_heads(&s, q, b.own, k, other, a, c);
        multiply_heads(&s, dy, b.own, v, other, a, g);
        const uint32_t t = b.own + my_own(), first = other + my_other();
        const unsigned kept = kept_part(a, b.row, b.head, t, first);
#pragma unroll
        for (uint32_t i = 0; i < PART; i++)
#pragma unroll
            for (uint32_t j = 0; j < PART; j++)
                weigh_back(a, sees(a, t + i, first + j), kept >> (4 * i + j) & 1, lse[i], delta[i], &c[i][j],
                           &g[i][j]);
        multiply_tile(&s, g, k, other, b.column, wide, a, sum);
    }
    store_part((T *)a->out + qkv_at(a, b.row, b.head), qkv_pitch(a), &b, wide, a, sum);
}

/* Adds the contribution of query head `h` to the gradients of a tile of keys and values. */
template <class T>
static __device__ __forceinline__ void attend_keys_of(struct shared_tiles *s, const struct cuda_attention *a,
                                                      const struct tile_block *b, uint32_t h, uint32_t wide,
                                                      float (*dk)[PART][PART], float (*dv)[PART][PART])
{
    const head_tokens<T> q = qkv_of<T>(a, b->row, h), dy = dy_of<T>(a, b->row, h);
    const head_tokens<T> k = qkv_of<T>(a, b->row, a->heads + b->head);
    const head_tokens<T> v = qkv_of<T>(a, b->row, a->heads + a->kv_heads + b->head);
    const uint64_t stats = query_at(a, b->row, h);
    float c[PART][PART], g[PART][PART];

    for (uint32_t other = b->own; other < a->seq; other += TILE) {
        multiply_heads(s, k, b->own, q, other, a, c);
        multiply_heads(s, v, b->own, dy, other, a, g);
        const uint32_t first = b->own + my_own();
        const unsigned kept = kept_part(a, b->row, h, other + my_other(), first);
#pragma unroll
        for (uint32_t j = 0; j < PART; j++) {
            const uint32_t t = other + my_other() + j;
            const float lse = t < a->seq ? a->lse[stats + t] : 0.0f,
                        delta = t < a->seq ? a->delta[stats + t] : 0.0f;
#pragma unroll
            for (uint32_t i = 0; i < PART; i++)
                weigh_back(a, sees(a, t, first + i), kept >> (4 * j + i) & 1, lse, delta, &c[i][j], &g[i][j]);
        }
        multiply_tile(s, c, dy, other, b->column, wide, a, dv);
        multiply_tile(s, g, q, other, b->column, wide, a, dk);
    }
}

/* The backward kernel for keys and values. */
template <class T>
static __device__ __forceinline__ void attend_keys(const struct cuda_attention *a, uint32_t wide)
{
    __shared__ __align__(16) struct shared_tiles s;
    const struct tile_block b = my_block(a, a->kv_heads, wide * TILE, false);
    const uint32_t group = a->heads / a->kv_heads;
    float dk[WIDE][PART][PART], dv[WIDE][PART][PART];

    clear_part(dk);
    clear_part(dv);
    for (uint32_t h = b.head * group; h < (b.head + 1) * group; h++)
        attend_keys_of<T>(&s, a, &b, h, wide, dk, dv);
    store_part((T *)a->out + qkv_at(a, b.row, a->heads + b.head), qkv_pitch(a), &b, wide, a, dk);
    store_part((T *)a->out + qkv_at(a, b.row, a->heads + a->kv_heads + b.head), qkv_pitch(a), &b, wide, a,
               dv);
}

/* ---- launches ---- */

#define KERNEL(name, body, wide)                                                                             \
    template <class T>                                                                                       \
    static __global__ void __launch_bounds__(THREADS, 2) name(const struct cuda_attention a)                 \
    {                                                                                                        \
        body<T>(&a, wide);                                                                                   \
    }

KERNEL(attend_64, attend, 1)
KERNEL(attend_128, attend, 2)
KERNEL(attend_queries_64, attend_queries, 1)
KERNEL(attend_queries_128, attend_queries, 2)
KERNEL(attend_keys_64, attend_keys, 1)
KERNEL(attend_keys_128, attend_keys, 2)

typedef void kernel(const struct cuda_attention a);

/* Launches the kernel `narrow` if a head has at most TILE columns, and the kernel `wide` otherwise. */
static void launch(const struct cuda_compute *at, const struct cuda_attention *a, uint32_t heads,
                   kernel *narrow, kernel *wide)
{
    const uint32_t columns = a->head <= TILE ? TILE : WIDE * TILE;
    const dim3 grid(a->rows * heads * a->tiles, a->head / columns + (a->head % columns != 0));

    (a->head <= TILE ? narrow : wide)<<<grid, THREADS, 0, at->stream>>>(*a);
}

/* Builds the kernel arguments from the op `o`, which is an op_attention_fwd or an op_attention_bwd. This is a
 * macro because the two structs have fields of the same names. */
#define ATTENTION_OF(o, step)                                                                                \
    attention_of((o)->qkv, (o)->rows, (o)->seq, (o)->heads, (o)->kv_heads, (o)->head, (o)->first_head,       \
                 dropout_of(step, RNG_SCORES, (o)->layer, (o)->first_row, (o)->p), (step)->training != 0)

static struct cuda_attention attention_of(const void *qkv, uint32_t rows, uint32_t seq, uint32_t heads,
                                          uint32_t kv_heads, uint32_t head, uint32_t first_head,
                                          struct dropout dropout, bool training)
{
    struct cuda_attention a = {0};

    a.qkv = qkv;
    a.rows = rows;
    a.seq = seq;
    a.heads = heads;
    a.kv_heads = kv_heads;
    a.head = head;
    a.first_head = first_head;
    a.tiles = seq / TILE + (seq % TILE != 0);
    a.scale = (float)(1.0 / sqrt((double)head));
    a.keep = training && dropout.p > 0.0f ? 1.0f / (1.0f - dropout.p) : 0.0f;
    a.dropout = dropout;
    return a;
}

int cuda_op_attention_fwd(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_attention_fwd *o = &call->attention_fwd;
    struct cuda_attention a = ATTENTION_OF(o, call->step);

    a.lse = o->lse;
    a.out = o->y;
    WITH_TYPE(T, o->dtype, launch(at, &a, o->heads, attend_64<T>, attend_128<T>));
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

int cuda_op_attention_bwd(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_attention_bwd *o = &call->attention_bwd;
    struct cuda_attention a = ATTENTION_OF(o, call->step);

    a.y = o->y;
    a.dy = o->dy;
    a.lse = (float *)o->lse;
    a.delta = o->scratch;
    a.out = o->dqkv;
    WITH_TYPE(T, o->dtype,
              attend_deltas<T><<<row_grid(o->rows * o->seq * o->heads), THREADS, 0, at->stream>>>(a);
              launch(at, &a, o->heads, attend_queries_64<T>, attend_queries_128<T>);
              launch(at, &a, o->kv_heads, attend_keys_64<T>, attend_keys_128<T>));
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

template <class T> static void warm(const struct cuda_compute *at, const struct cuda_attention *none)
{
    attend_deltas<T><<<1, THREADS, 0, at->stream>>>(*none);
    attend_64<T><<<1, THREADS, 0, at->stream>>>(*none);
    attend_128<T><<<1, THREADS, 0, at->stream>>>(*none);
    attend_queries_64<T><<<1, THREADS, 0, at->stream>>>(*none);
    attend_queries_128<T><<<1, THREADS, 0, at->stream>>>(*none);
    attend_keys_64<T><<<1, THREADS, 0, at->stream>>>(*none);
    attend_keys_128<T><<<1, THREADS, 0, at->stream>>>(*none);
}

/* Launches every attention kernel once, so that CUDA loads the kernels. There are no tokens, so these
 * launches read and write nothing. */
int cuda_warm_attention(const struct cuda_compute *at)
{
    struct cuda_attention none = {0};

    none.heads = none.kv_heads = none.tiles = 1;
    warm<float>(at, &none);
    warm<bf16>(at, &none);
    warm<f16>(at, &none);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}
