/* Implements transpose_f32. With AVX512 it transposes blocks of 16 x 16 in registers. The edges, and
 * everything on other processors, are transposed element by element.
 *
 * Rows of weights are thousands of bytes apart. So the code walks through sixteen rows side by side, one
 * cache line of each at a time. Meanwhile it prefetches the same columns of the next sixteen rows, into
 * the second-level cache because the first level is too small.
 *
 * Any thread may call this function.
 */
#include "kernels/cpu/transpose.h"

#define SIDE 16

/* Transposes a matrix element by element. */
static void plain(const float *from, size_t ld, size_t rows, size_t columns, float *to, size_t ld_to)
{
    for (size_t j = 0; j < columns; j++)
        for (size_t i = 0; i < rows; i++)
            to[j * ld_to + i] = from[i * ld + j];
}

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx512f")))
#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* A vector has four quarters, and each quarter has a low and a high pair of floats. In each quarter of the
 * result, low_pairs puts the low pairs of `a` and `b` side by side. high_pairs does the same with the high
 * pairs. */
TARGET INLINE __m512 low_pairs(__m512 a, __m512 b)
{
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}

TARGET INLINE __m512 high_pairs(__m512 a, __m512 b)
{
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}

/* Transposes one block of 16 x 16 elements in registers. The code first transposes 4 x 4 elements within the
 * quarters of the vectors, and then exchanges the quarters. */
TARGET INLINE void block(const float *from, size_t ld, float *to, size_t ld_to)
{
    __m512 r[SIDE], t[SIDE];

    UNROLL
    for (size_t i = 0; i < SIDE; i++)
        r[i] = _mm512_loadu_ps(from + i * ld);
    UNROLL
    for (size_t i = 0; i < SIDE; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL
    for (size_t i = 0; i < SIDE; i += 4) {
        r[i] = low_pairs(t[i], t[i + 2]);
        r[i + 1] = high_pairs(t[i], t[i + 2]);
        r[i + 2] = low_pairs(t[i + 1], t[i + 3]);
        r[i + 3] = high_pairs(t[i + 1], t[i + 3]);
    }
    UNROLL
    for (size_t i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    UNROLL
    for (size_t i = 0; i < 8; i++) {
        _mm512_storeu_ps(to + i * ld_to, _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88));
        _mm512_storeu_ps(to + (i + 8) * ld_to, _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd));
    }
}

/* Transposes a matrix with AVX512, one block of SIDE x SIDE elements at a time. `rows` and `columns` must be
 * multiples of SIDE. */
TARGET static void blocks(const float *from, size_t ld, size_t rows, size_t columns, float *to, size_t ld_to)
{
    for (size_t i = 0; i < rows; i += SIDE)
        for (size_t j = 0; j < columns; j += SIDE) {
            for (size_t n = 0; i + SIDE < rows && n < SIDE; n++)
                __builtin_prefetch(from + (i + SIDE + n) * ld + j, 0, 2);
            block(from + i * ld + j, ld, to + j * ld_to + i, ld_to);
        }
}

void transpose_f32(const float *from, size_t ld, size_t rows, size_t columns, float *to, size_t ld_to)
{
    size_t whole_rows = rows - rows % SIDE, whole_columns = columns - columns % SIDE;

    if (!__builtin_cpu_supports("avx512f")) {
        plain(from, ld, rows, columns, to, ld_to);
        return;
    }
    blocks(from, ld, whole_rows, whole_columns, to, ld_to);
    plain(from + whole_columns, ld, whole_rows, columns - whole_columns, to + whole_columns * ld_to, ld_to);
    plain(from + whole_rows * ld, ld, rows - whole_rows, columns, to + whole_rows, ld_to);
}
#else
void transpose_f32(const float *from, size_t ld, size_t rows, size_t columns, float *to, size_t ld_to)
{
    plain(from, ld, rows, columns, to, ld_to);
}
#endif
