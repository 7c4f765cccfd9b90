/* Activations, dropout and the bias.
 *
 * Activations use the arithmetic of kernels/cpu/vmath.h itself, dropout the random numbers of base/rng.h, and
 * bias_bwd sums as kernels/cpu/ops_linear.c does: the bits are the cpu backend's. Input and output may be the
 * same array where op.h says so: an element is read and written by one thread.
 *
 * Enqueueing thread only.
 */
#include "kernels/cuda/ops.h"

#define RNG_INLINE   static inline __host__ __device__
#define VMATH_INLINE static inline __device__
#include "base/rng.h"
#include "kernels/cpu/vmath.h"
#include "kernels/cuda/kernel.cuh"

/* ---- activations ---- */

#define FORWARD(name, function)                                                                              \
    static __global__ void name(const float *x, float *y, uint64_t n)                                        \
    {                                                                                                        \
        FOR_EACH(i, n)                                                                                       \
        y[i] = function(x[i]);                                                                               \
    }

FORWARD(relu_fwd, vmath_relu)
FORWARD(gelu_fwd, vmath_gelu)
FORWARD(tanh_fwd, vmath_tanh)

#define BACKWARD(name, expression)                                                                           \
    static __global__ void name(const float *x, const float *dy, float *dx, uint64_t n)                      \
    {                                                                                                        \
        FOR_EACH(i, n)                                                                                       \
        dx[i] = expression;                                                                                  \
    }

BACKWARD(relu_bwd, x[i] <= 0.0f ? 0.0f : dy[i])
BACKWARD(gelu_bwd, dy[i] * vmath_gelu_slope(x[i]))
BACKWARD(tanh_bwd, dy[i] * vmath_tanh_slope(x[i]))

static int copy_floats(const struct cuda_place *at, float *y, const float *x, uint64_t n)
{
    if (x == y)
        return 0;
    return CUDA_CHECK(at->fault, cudaMemcpyAsync(y, x, n * sizeof *y, cudaMemcpyDeviceToDevice, at->stream));
}

int cuda_op_act_fwd(const struct cuda_place *at, const struct op_call *call)
{
    const struct op_act_fwd *o = &call->act_fwd;
    const unsigned grid = grid_for(o->n, THREADS);

    switch (o->act) {
    case ACT_RELU:
        relu_fwd<<<grid, THREADS, 0, at->stream>>>(o->x, o->y, o->n);
        break;
    case ACT_GELU:
        gelu_fwd<<<grid, THREADS, 0, at->stream>>>(o->x, o->y, o->n);
        break;
    case ACT_TANH:
        tanh_fwd<<<grid, THREADS, 0, at->stream>>>(o->x, o->y, o->n);
        break;
    default:
        return copy_floats(at, o->y, o->x, o->n);
    }
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

int cuda_op_act_bwd(const struct cuda_place *at, const struct op_call *call)
{
    const struct op_act_bwd *o = &call->act_bwd;
    const unsigned grid = grid_for(o->n, THREADS);

    switch (o->act) {
    case ACT_RELU:
        relu_bwd<<<grid, THREADS, 0, at->stream>>>(o->x, o->dy, o->dx, o->n);
        break;
    case ACT_GELU:
        gelu_bwd<<<grid, THREADS, 0, at->stream>>>(o->x, o->dy, o->dx, o->n);
        break;
    case ACT_TANH:
        tanh_bwd<<<grid, THREADS, 0, at->stream>>>(o->x, o->dy, o->dx, o->n);
        break;
    default:
        return copy_floats(at, o->dx, o->dy, o->n);
    }
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

/* ---- dropout ---- */

struct dropout_key {
    uint64_t seed;
    uint32_t first_row, word2, step;
};

/* A thread takes the four elements that one block of random numbers decides. */
static __global__ void dropout(const float *x, float *y, uint32_t rows, uint32_t n, float p,
                               struct dropout_key key)
{
    const uint32_t quads = n / 4 + (n % 4 != 0);
    const float keep = 1.0f - p;

    FOR_EACH(i, (uint64_t)rows * quads)
    {
        const uint32_t quad = column_of(i, quads), r = (uint32_t)((i - quad) / quads);
        const struct rng_block random = rng_philox(key.seed, quad, key.first_row + r, key.word2, key.step);
        const uint64_t row = (uint64_t)r * n;
        for (uint32_t w = 0; w < 4 && 4 * (uint64_t)quad + w < n; w++) {
            const uint64_t e = row + 4 * (uint64_t)quad + w;
            y[e] = rng_unit(random.v[w]) >= p ? x[e] / keep : 0.0f;
        }
    }
}

int cuda_op_dropout(const struct cuda_place *at, const struct op_call *call)
{
    const struct op_dropout *o = &call->dropout;
    const uint64_t quads = (uint64_t)o->rows * (o->n / 4 + (o->n % 4 != 0));
    struct dropout_key key;

    if (!call->step->training)
        return copy_floats(at, o->y, o->x, (uint64_t)o->rows * o->n);
    key.seed = call->step->seed;
    key.first_row = o->first_row;
    key.word2 = rng_word2(RNG_DROPOUT, o->layer);
    key.step = (uint32_t)call->step->step;
    dropout<<<grid_for(quads, THREADS), THREADS, 0, at->stream>>>(o->x, o->y, o->rows, o->n, o->p, key);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

/* ---- bias ---- */

static __global__ void bias_fwd(float *y, const float *b, uint32_t rows, uint32_t n)
{
    FOR_EACH(i, (uint64_t)rows * n)
    y[i] = y[i] + b[column_of(i, n)];
}

int cuda_op_bias_fwd(const struct cuda_place *at, const struct op_call *call)
{
    const struct op_bias_fwd *o = &call->bias_fwd;

    bias_fwd<<<grid_for((uint64_t)o->rows * o->n, THREADS), THREADS, 0, at->stream>>>(o->y, o->b, o->rows,
                                                                                      o->n);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

/* A block owns COLUMNS columns. CHUNKS rows of threads sum CHUNKS chunks of CHUNK_ROWS rows at a time; the
 * first row of threads adds these to the totals in ascending order. */
#define COLUMNS    32u
#define CHUNKS     (THREADS / COLUMNS)
#define CHUNK_ROWS 32u

static __device__ __forceinline__ float sum_chunk(const float *dy, uint64_t first, uint32_t rows, uint32_t n,
                                                  uint32_t column)
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
            chunk[mine][lane] = sum_chunk(dy, begin, rows, n, (uint32_t)column);
        __syncthreads();
        if (mine == 0 && column < n)
            for (uint32_t c = 0; c < CHUNKS && first + c * CHUNK_ROWS < rows; c++)
                total = total + chunk[c][lane];
        __syncthreads();
    }
    if (mine == 0 && column < n)
        db[column] = accumulate ? db[column] + total : total;
}

int cuda_op_bias_bwd(const struct cuda_place *at, const struct op_call *call)
{
    const struct op_bias_bwd *o = &call->bias_bwd;

    bias_bwd<<<o->n / COLUMNS + (o->n % COLUMNS != 0), THREADS, 0, at->stream>>>(o->dy, o->db, o->rows, o->n,
                                                                                 o->accumulate);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

int cuda_warm_elementwise(const struct cuda_place *at)
{
    struct dropout_key key = {0, 0, 0, 0};

    relu_fwd<<<1, THREADS, 0, at->stream>>>(NULL, NULL, 0);
    gelu_fwd<<<1, THREADS, 0, at->stream>>>(NULL, NULL, 0);
    tanh_fwd<<<1, THREADS, 0, at->stream>>>(NULL, NULL, 0);
    relu_bwd<<<1, THREADS, 0, at->stream>>>(NULL, NULL, NULL, 0);
    gelu_bwd<<<1, THREADS, 0, at->stream>>>(NULL, NULL, NULL, 0);
    tanh_bwd<<<1, THREADS, 0, at->stream>>>(NULL, NULL, NULL, 0);
    dropout<<<1, THREADS, 0, at->stream>>>(NULL, NULL, 0, 0, 0, key);
    bias_fwd<<<1, THREADS, 0, at->stream>>>(NULL, NULL, 0, 0);
    bias_bwd<<<1, THREADS, 0, at->stream>>>(NULL, NULL, 0, 0, false);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}
