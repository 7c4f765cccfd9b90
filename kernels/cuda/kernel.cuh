/* Helpers that the kernels share: the sizes of grids, sums over sixteen lanes, and sums in order.
 *
 * The cpu backend sums over 16 lanes: lane l takes the elements l, l + 16, ..., and the lanes are folded
 * in halves. Here a lane is a thread, and the sixteen lanes of a sum are half a warp. The additions and
 * their order are the same, and neighbouring threads read neighbouring elements.
 */
#ifndef KERNELS_CUDA_KERNEL_CUH
#define KERNELS_CUDA_KERNEL_CUH

#include <stdint.h>

#define THREADS 256u /* threads in every block */
#define LANES   16u
#define SUMS    (THREADS / LANES) /* sums in a block, LANES threads each */

/* Returns the number of thread blocks for `n` pieces of work if each block handles `per` pieces at a time.
 * The number is at most 2^20, so a kernel must loop until all pieces are done. */
static inline unsigned grid_for(uint64_t n, uint64_t per)
{
    const uint64_t blocks = (n + per - 1) / per, most = 1u << 20;

    return (unsigned)(blocks < most ? blocks : most);
}

/* Loops over i = 0 to n - 1. The threads of the grid share the iterations. */
#define FOR_EACH(i, n)                                                                                       \
    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < (n);                                 \
         i += (uint64_t)gridDim.x * THREADS)

/* Returns i % n. If `i` fits into 32 bits, the function uses a 32-bit division, which is several times as
 * fast as a 64-bit division. */
static __device__ __forceinline__ uint32_t column_of(uint64_t i, uint32_t n)
{
    return i >> 32 ? (uint32_t)(i % n) : (uint32_t)i % n;
}

/* Returns a mask of the 16 threads of the warp that work on the same sum as this thread. */
static __device__ __forceinline__ unsigned lanes_mask(void)
{
    return 0xffffu << (threadIdx.x & 16u);
}

/* Adds up the 16 lanes of a sum: lane[l] = lane[l] + lane[l + w] for w = 8, 4, 2, 1. All 16 threads get the
 * result. */
static __device__ __forceinline__ float fold_lanes_float(float v)
{
    for (unsigned w = LANES / 2; w > 0; w /= 2)
        v = v + __shfl_down_sync(lanes_mask(), v, w, LANES);
    return __shfl_sync(lanes_mask(), v, 0, LANES);
}

static __device__ __forceinline__ double fold_lanes(double v)
{
    for (unsigned w = LANES / 2; w > 0; w /= 2)
        v = v + __shfl_down_sync(lanes_mask(), v, w, LANES);
    return __shfl_sync(lanes_mask(), v, 0, LANES);
}

/* Finds the largest value of the 16 lanes. NaN values are ignored. All 16 threads get the result. */
static __device__ __forceinline__ float max_lanes(float v)
{
    for (unsigned w = LANES / 2; w > 0; w /= 2) {
        const float other = __shfl_down_sync(lanes_mask(), v, w, LANES);
        v = other > v ? other : v;
    }
    return __shfl_sync(lanes_mask(), v, 0, LANES);
}

/* Returns the row that this thread works on. Half a warp, which is 16 threads, computes one row. The grid
 * must have row_grid(rows) blocks. */
static __device__ __forceinline__ uint32_t my_row(void)
{
    return blockIdx.x * SUMS + threadIdx.x / LANES;
}

static inline unsigned row_grid(uint32_t rows)
{
    return rows / SUMS + (rows % SUMS != 0);
}

/* Returns `start` plus the `n` numbers at `x`, added in ascending order. Only thread 0 gets the result. All
 * threads of the block help to load the numbers. The grid must have only one block. */
static __device__ double add_in_order(double start, const double *x, uint32_t n)
{
    __shared__ double tile[THREADS];

    for (uint32_t begin = 0; begin < n; begin += THREADS) {
        const uint32_t width = n - begin < THREADS ? n - begin : THREADS;
        if (threadIdx.x < width)
            tile[threadIdx.x] = x[begin + threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 0)
            for (uint32_t i = 0; i < width; i++)
                start = start + tile[i];
        __syncthreads();
    }
    return start;
}

#endif
