/* Arrays of type F32, BF16 or F16, for loops that compute in float.
 *
 * A loop uses an array of floats in place. It reads and writes a 16-bit array through a buffer of floats, at
 * most FLOATS_BLOCK elements at a time. For example, an op with the input x and the output y does this:
 *
 *     float x_buffer[FLOATS_BLOCK], y_buffer[FLOATS_BLOCK];
 *
 *     for (size_t n; at < end; at += n) {
 *         n = floats_span(o->dtype, end - at);
 *         const float *x = floats_in(o->dtype, o->x, at, n, x_buffer);
 *         float *y = floats_out(o->dtype, o->y, at, y_buffer);
 *         compute(x, y, n);
 *         floats_store(o->dtype, y, o->y, at, n);
 *     }
 *
 * Every element is converted alone, so the size of a block never changes the bits of a result. If the type is
 * F32, floats_span returns all elements, floats_in and floats_out return addresses inside the array, and
 * floats_store does nothing. The buffers then stay unused.
 *
 * Any thread may call these functions.
 */
#ifndef KERNELS_CPU_AS_FLOATS_H
#define KERNELS_CPU_AS_FLOATS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/cpu.h"
#include "kernels/dtype.h"
#include "kernels/half.h"

/* The size of a buffer, in elements. Several buffers fit into the first-level cache. */
#define FLOATS_BLOCK 1024u

/* Returns how many of the next `n` elements a loop handles together. */
static inline size_t floats_span(enum dtype dtype, uint64_t n)
{
    return dtype == DTYPE_F32 || n < FLOATS_BLOCK ? (size_t)n : FLOATS_BLOCK;
}

/* Returns the address of element `at` of an array. */
static inline void *floats_at(enum dtype dtype, const void *array, uint64_t at)
{
    return (void *)((uintptr_t)array + at * dtype_size(dtype));
}

/* Returns the elements at, ..., at + n - 1 of an array as floats. If the type is a 16-bit type, the function
 * stores them in `buffer` and returns `buffer`. `buffer` must then have room for `n` floats. */
static inline const float *floats_in(enum dtype dtype, const void *array, uint64_t at, size_t n,
                                     float *buffer)
{
    if (dtype == DTYPE_F32)
        return (const float *)array + at;
    half_widen(dtype, floats_at(dtype, array, at), buffer, n);
    return buffer;
}

/* Returns the address to which a loop writes the elements from `at` on: their place in the array if the type
 * is F32, and `buffer` otherwise. */
static inline float *floats_out(enum dtype dtype, void *array, uint64_t at, float *buffer)
{
    return dtype == DTYPE_F32 ? (float *)array + at : buffer;
}

/* Returns the elements at, ..., at + n - 1 of an array as floats, for a loop that changes them. They are in
 * `buffer` if the type is a 16-bit type. */
static inline float *floats_inout(enum dtype dtype, void *array, uint64_t at, size_t n, float *buffer)
{
    floats_in(dtype, array, at, n, buffer);
    return floats_out(dtype, array, at, buffer);
}

/* Completes the elements at, ..., at + n - 1 of an array. `from` is the address from floats_out or
 * floats_inout. If the type is a 16-bit type, the function rounds the floats at this address into the
 * array. */
static inline void floats_store(enum dtype dtype, const float *from, void *array, uint64_t at, size_t n)
{
    if (dtype != DTYPE_F32)
        half_round(dtype, from, floats_at(dtype, array, at), n);
}

/* Returns the elements at, ..., at + n - 1 of an array as floats, for a loop that needs a whole row. The
 * floats of a 16-bit array are in the memory of the calling thread (cpu_thread_memory). */
static inline const float *floats_row(enum dtype dtype, const void *array, uint64_t at, size_t n)
{
    return floats_in(dtype, array, at, n,
                     dtype == DTYPE_F32 ? NULL : (float *)cpu_thread_memory(n * sizeof(float)));
}

#endif
