/* The types that array elements can have in kernels: float, bf16 and f16, and how kernels read and write
 * them.
 *
 * A kernel is a template over the types of its arrays. It computes in float: `load` and `load_pack` widen
 * what they read, which is exact, and `store` and `store_pack` round each result once, as kernels/half.h
 * does. The launcher chooses the types with WITH_TYPE. For example:
 *
 *     WITH_TYPE(T, o->dtype,
 *               act_fwd<<<grid, THREADS, 0, at->stream>>>(o->act, (const T *)o->x, (T *)o->y, o->n));
 *
 * A pack is a few neighbouring elements that one thread handles together: 16 bytes of the kernel's type,
 * which are 4 floats or 8 numbers of 16 bits. If its address is a multiple of 16, the thread reads or writes
 * a pack with accesses of 16 bytes, otherwise one element after another. The values are the same in both
 * cases.
 */
#ifndef KERNELS_CUDA_ELEMENT_CUH
#define KERNELS_CUDA_ELEMENT_CUH

#include <stdint.h>

#include "kernels/cuda/kernel.cuh"
#include "kernels/dtype.h"

/* Numbers of 16 bits, in the formats that kernels/half.h describes. */
struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};

/* Runs the statement with T defined as the C++ type of the elements of type `dtype`, which is F32, BF16 or
 * F16. */
#define WITH_TYPE(T, dtype, ...)                                                                             \
    do {                                                                                                     \
        if ((dtype) == DTYPE_BF16) {                                                                         \
            typedef bf16 T;                                                                                  \
            __VA_ARGS__;                                                                                     \
        } else if ((dtype) == DTYPE_F16) {                                                                   \
            typedef f16 T;                                                                                   \
            __VA_ARGS__;                                                                                     \
        } else {                                                                                             \
            typedef float T;                                                                                 \
            __VA_ARGS__;                                                                                     \
        }                                                                                                    \
    } while (0)

/* The same for two types. `other` is equal to `dtype`, or one of the two is F32. */
#define WITH_TYPES(T, U, dtype, other, ...)                                                                  \
    do {                                                                                                     \
        if ((dtype) == (other)) {                                                                            \
            WITH_TYPE(T, dtype, typedef T U; __VA_ARGS__);                                                   \
        } else if ((other) == DTYPE_F32) {                                                                   \
            typedef float U;                                                                                 \
            WITH_HALF(T, dtype, __VA_ARGS__);                                                                \
        } else {                                                                                             \
            typedef float T;                                                                                 \
            WITH_HALF(U, other, __VA_ARGS__);                                                                \
        }                                                                                                    \
    } while (0)

/* WITH_TYPE for a type that is BF16 or F16. */
#define WITH_HALF(T, dtype, ...)                                                                             \
    do {                                                                                                     \
        if ((dtype) == DTYPE_BF16) {                                                                         \
            typedef bf16 T;                                                                                  \
            __VA_ARGS__;                                                                                     \
        } else {                                                                                             \
            typedef f16 T;                                                                                   \
            __VA_ARGS__;                                                                                     \
        }                                                                                                    \
    } while (0)

/* ---- one element ---- */

static __device__ __forceinline__ float widen(float x)
{
    return x;
}

static __device__ __forceinline__ float widen(bf16 x)
{
    return __uint_as_float((uint32_t)x.bits << 16);
}

static __device__ __forceinline__ float widen(f16 x)
{
    float y;

    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

/* narrow<T>(x) returns the number of type T that is nearest to x. */
template <class T> static __device__ __forceinline__ T narrow(float x);

template <> __device__ __forceinline__ float narrow<float>(float x)
{
    return x;
}

template <> __device__ __forceinline__ bf16 narrow<bf16>(float x)
{
    bf16 y;

#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
    /* Older devices have no such instruction. Adding almost half of the dropped bits rounds to nearest, and a
     * carry into the exponent is right. */
    const uint32_t bits = __float_as_uint(x);
    y.bits = x != x ? 0x7fff : (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
#endif
    return y;
}

template <> __device__ __forceinline__ f16 narrow<f16>(float x)
{
    f16 y;

    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

template <class T> static __device__ __forceinline__ float load(const T *at)
{
    return widen(*at);
}

template <class T> static __device__ __forceinline__ void store(T *at, float x)
{
    *at = narrow<T>(x);
}

/* ---- packs ---- */

/* The number of elements in a pack of type T. */
#define PACK_OF(T) ((uint32_t)(16 / sizeof(T)))

template <uint32_t N> struct pack {
    float v[N];
};

/* Loops over the packs of an array of `n` elements. `at` is the first element of a pack. The threads of the
 * grid share the packs. The grid has grid_for(n, THREADS * PACK_OF(T)) blocks. */
#define FOR_EACH_PACK(at, n, N)                                                                              \
    for (uint64_t at = ((uint64_t)blockIdx.x * THREADS + threadIdx.x) * (N); at < (n);                       \
         at += (uint64_t)gridDim.x * THREADS * (N))

/* Returns true if a whole pack lies at this address, aligned to 16 bytes. `n` is the number of elements from
 * this address to the end of the array. */
template <uint32_t N> static __device__ __forceinline__ bool is_whole(const void *at, uint64_t n)
{
    return n >= N && (uintptr_t)at % 16 == 0;
}

static __device__ __forceinline__ void load_16_bytes(const float *at, float *v)
{
    const float4 x = *(const float4 *)at;

    v[0] = x.x;
    v[1] = x.y;
    v[2] = x.z;
    v[3] = x.w;
}

template <class T> static __device__ __forceinline__ void load_16_bytes(const T *at, float *v)
{
    const uint4 x = *(const uint4 *)at;
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};

#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const T low = {(uint16_t)words[i]}, high = {(uint16_t)(words[i] >> 16)};
        v[2 * i] = widen(low);
        v[2 * i + 1] = widen(high);
    }
}

/* Returns two numbers of type T in one word. The first is in the lower half. */
template <class T> static __device__ __forceinline__ uint32_t narrow_two(float first, float second)
{
    return (uint32_t)narrow<T>(second).bits << 16 | narrow<T>(first).bits;
}

#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 800
template <> __device__ __forceinline__ uint32_t narrow_two<bf16>(float first, float second)
{
    uint32_t both;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}

template <> __device__ __forceinline__ uint32_t narrow_two<f16>(float first, float second)
{
    uint32_t both;

    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}
#endif

static __device__ __forceinline__ void store_16_bytes(float *at, const float *v)
{
    *(float4 *)at = make_float4(v[0], v[1], v[2], v[3]);
}

template <class T> static __device__ __forceinline__ void store_16_bytes(T *at, const float *v)
{
    *(uint4 *)at = make_uint4(narrow_two<T>(v[0], v[1]), narrow_two<T>(v[2], v[3]), narrow_two<T>(v[4], v[5]),
                              narrow_two<T>(v[6], v[7]));
}

/* Returns the N elements at this address as floats. Only `n` elements exist. If n < N, the other values are
 * 0. */
template <uint32_t N, class T> static __device__ __forceinline__ pack<N> load_pack(const T *at, uint64_t n)
{
    pack<N> p;

    if (N % PACK_OF(T) == 0 && is_whole<N>(at, n)) {
#pragma unroll
        for (uint32_t i = 0; i + PACK_OF(T) <= N; i += PACK_OF(T))
            load_16_bytes(at + i, p.v + i);
    } else {
#pragma unroll
        for (uint32_t i = 0; i < N; i++)
            p.v[i] = i < n ? load(at + i) : 0.0f;
    }
    return p;
}

/* Writes the elements of a pack to this address, each rounded once. If n < N, only the first `n` elements are
 * written. */
template <uint32_t N, class T>
static __device__ __forceinline__ void store_pack(T *at, const pack<N> &p, uint64_t n)
{
    if (N % PACK_OF(T) == 0 && is_whole<N>(at, n)) {
#pragma unroll
        for (uint32_t i = 0; i + PACK_OF(T) <= N; i += PACK_OF(T))
            store_16_bytes(at + i, p.v + i);
    } else {
#pragma unroll
        for (uint32_t i = 0; i < N; i++)
            if (i < n)
                store(at + i, p.v[i]);
    }
}

/* ---- packs of rows ---- */

/* A pack of a matrix with rows of `n` elements, whose rows are divided into packs one by one. So no pack has
 * elements of two rows. */
struct row_pack {
    uint32_t row, column; /* of the pack's first element */
};

/* Returns the number of packs in a row of `n` elements. */
static __host__ __device__ __forceinline__ uint32_t packs_in_row(uint32_t n, uint32_t in_pack)
{
    return n / in_pack + (n % in_pack != 0);
}

/* Returns the number of thread blocks for a kernel whose threads take one pack of a matrix after another. */
static inline unsigned row_pack_grid(uint64_t rows, uint32_t n, uint32_t in_pack)
{
    return grid_for(rows * packs_in_row(n, in_pack), THREADS);
}

/* Returns where pack number `i` of a matrix is. `packs` is packs_in_row(n, N). If `i` fits into 32 bits, the
 * function uses a 32-bit division, which is several times as fast as a 64-bit division. */
template <uint32_t N> static __device__ __forceinline__ row_pack row_pack_at(uint64_t i, uint32_t packs)
{
    const uint32_t row = i >> 32 ? (uint32_t)(i / packs) : (uint32_t)i / packs;
    const row_pack p = {row, (uint32_t)(i - (uint64_t)row * packs) * N};

    return p;
}

#endif
