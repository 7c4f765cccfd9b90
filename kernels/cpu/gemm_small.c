/* Matrix products that do not use oneDNN. One kind has fewer than 16 rows or columns, as in the last layer
 * of a classifier or in batches of a few rows. The other kind is the building block of attention: a few
 * rows of a product whose operands are in a cache (gemm_rows).
 *
 * For narrow shapes oneDNN changes its order of summation and is slow. Here the narrow operand (under 16)
 * is copied, padded with zeros, into a panel [k][16]. The wide operand is not copied. If the wide operand
 * is contiguous along k, the 16 lanes of a vector hold the narrow operand, and the wide operand is
 * broadcast ("rows" form). If it is contiguous along its own index, the lanes hold the wide operand, and
 * the panel is broadcast ("lanes" form). Lanes never mix, so every element is the chain of fused
 * multiply-adds that gemm.h defines, on every instruction set.
 *
 * The kernels work on floats. If the wide operand has a 16-bit type, each block of it is widened into a
 * buffer of the thread. The panel and the result of a piece are always floats.
 *
 * The kernels are written once, in gemm_small_kernel.h, over vectors of 16 floats. They are compiled for
 * AVX512, AVX2 and plain C. Compilers do not generate this code by themselves: C has no portable way to
 * write a fused multiply-add over a generic vector, and arrays of accumulators end up in memory. On a
 * processor without FMA, plain C is correct but slow.
 *
 * Any thread may call these functions.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/as_floats.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"

#define LANES 16
/* The size of one piece of work, in rows or columns of the wide operand. Each piece copies the whole narrow
 * operand, which would take most of the time of a smaller piece. */
#define WIDE_PIECE 128

/* A copy of the narrow operand (the matrix with fewer than 16 rows), for one block of indices k. Each row of
 * the panel fills a vector of LANES floats. Columns without data are zero. */
typedef float panel[GEMM_K_BLOCK][LANES];

/* The kernels of one instruction set. */
struct kernels {
    /* The kernel for a wide operand that is contiguous along k. For each j < count, out[j][i] is the sum over
     * k < n of wide[j * ld + k] * p[k][i]. The sums use fused multiply-adds in ascending k. */
    void (*rows)(const float *wide, size_t ld, uint32_t count, const panel p, uint32_t n,
                 float (*out)[LANES]);
    /* The kernel for a wide operand that is not contiguous along k. For each i < narrow and l < lanes,
     * out[i][l] is the sum over k < n of wide[k * ld + l] * p[k][i]. The sums use fused multiply-adds in
     * ascending k. */
    void (*lanes)(const float *wide, size_t ld, uint32_t lanes, const panel p, uint32_t narrow, uint32_t n,
                  float (*out)[WIDE_PIECE]);
    void (*some_rows)(const struct gemm_rows *g);
};

/* A matrix product of a wide and a narrow operand: c(j, i) is the sum over k of wide(j, k) * narrow(i, k).
 * The narrow operand has fewer than 16 rows. The struct lives on the stack of gemm_small_run. */
struct small {
    const struct gemm *g;
    const void *wide, *narrow;
    enum dtype wide_type, narrow_type;
    /* The distances in elements between neighbouring elements. For example, wide(j, k) is wide[j * wide_j + k
     * * wide_k]. Each matrix is contiguous in one of its two directions, so either wide_j or wide_k is 1. */
    size_t wide_j, wide_k;
    size_t narrow_i, narrow_k;
    bool wide_is_a; /* j counts the rows of c, and i its columns; if false, the other way round */
    uint32_t n_wide, n_narrow, k;
    bool accumulate;
    const struct kernels *kernels;
};

/* The memory of a thread for one piece of a product with 16-bit types. */
struct small_memory {
    float wide[WIDE_PIECE * GEMM_K_BLOCK]; /* a block of the wide operand */
    float part[WIDE_PIECE * LANES];        /* the results of the piece */
};

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 24")
#endif

#if defined(__x86_64__)
#include <immintrin.h>

#define NAME(x)      x##_avx512
#define TARGET       __attribute__((target("avx512f")))
#define VEC          __m512
#define ROWS_AT_ONCE 8
#define ACCUMULATORS 24
#define TILE_ROWS    8
#define TILE_VECS    2

TARGET INLINE VEC NAME(vec_zero)(void)
{
    return _mm512_setzero_ps();
}

TARGET INLINE VEC NAME(vec_load)(const float *p)
{
    return _mm512_loadu_ps(p);
}

TARGET INLINE void NAME(vec_store)(float *p, VEC v)
{
    _mm512_storeu_ps(p, v);
}

TARGET INLINE VEC NAME(vec_add)(VEC a, VEC b)
{
    return _mm512_add_ps(a, b);
}

TARGET INLINE VEC NAME(vec_fma)(float a, VEC b, VEC c)
{
    return _mm512_fmadd_ps(_mm512_set1_ps(a), b, c);
}

#include "kernels/cpu/gemm_small_kernel.h"

struct vec_avx2 {
    __m256 lo, hi;
};

#define NAME(x)      x##_avx2
#define TARGET       __attribute__((target("avx2,fma")))
#define VEC          struct vec_avx2
#define ROWS_AT_ONCE 4
#define ACCUMULATORS 4
#define TILE_ROWS    4
#define TILE_VECS    1

TARGET INLINE VEC NAME(vec_zero)(void)
{
    return (VEC){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

TARGET INLINE VEC NAME(vec_load)(const float *p)
{
    return (VEC){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

TARGET INLINE void NAME(vec_store)(float *p, VEC v)
{
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
}

TARGET INLINE VEC NAME(vec_add)(VEC a, VEC b)
{
    return (VEC){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}

TARGET INLINE VEC NAME(vec_fma)(float a, VEC b, VEC c)
{
    __m256 s = _mm256_set1_ps(a);
    return (VEC){_mm256_fmadd_ps(s, b.lo, c.lo), _mm256_fmadd_ps(s, b.hi, c.hi)};
}

#include "kernels/cpu/gemm_small_kernel.h"
#endif

struct vec_plain {
    float v[LANES];
};

#define NAME(x) x##_plain
#define TARGET
#define VEC          struct vec_plain
#define ROWS_AT_ONCE 1
#define ACCUMULATORS 4
#define TILE_ROWS    4
#define TILE_VECS    1

INLINE VEC NAME(vec_zero)(void)
{
    return (VEC){{0}};
}

INLINE VEC NAME(vec_load)(const float *p)
{
    VEC v;
    memcpy(v.v, p, sizeof v.v);
    return v;
}

INLINE void NAME(vec_store)(float *p, VEC v)
{
    memcpy(p, v.v, sizeof v.v);
}

INLINE VEC NAME(vec_add)(VEC a, VEC b)
{
    for (int l = 0; l < LANES; l++)
        a.v[l] = a.v[l] + b.v[l];
    return a;
}

INLINE VEC NAME(vec_fma)(float a, VEC b, VEC c)
{
    for (int l = 0; l < LANES; l++)
        c.v[l] = fmaf(a, b.v[l], c.v[l]);
    return c;
}

#include "kernels/cpu/gemm_small_kernel.h"

enum gemm_isa gemm_small_best(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return GEMM_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return GEMM_AVX2;
#endif
    return GEMM_PLAIN;
}

static const struct kernels *kernels_of(enum gemm_isa isa)
{
#if defined(__x86_64__)
    if (isa == GEMM_AVX512)
        return &kernels_avx512;
    if (isa == GEMM_AVX2)
        return &kernels_avx2;
#endif
    (void)isa;
    return &kernels_plain;
}

/* Copies the elements of the narrow operand with k0 <= k < k0 + n into the panel `p`, as floats. There are
 * two loops, one for each memory layout of the operand, so that the inner loop always reads contiguous
 * memory. */
static void pack_narrow(const struct small *s, uint32_t k0, uint32_t n, panel p)
{
    const void *from = floats_at(s->narrow_type, s->narrow, k0 * s->narrow_k);
    float row[GEMM_K_BLOCK];

    memset(p, 0, n * sizeof p[0]);
    if (s->narrow_i == 1)
        for (uint32_t k = 0; k < n; k++)
            half_widen(s->narrow_type, floats_at(s->narrow_type, from, k * s->narrow_k), p[k], s->n_narrow);
    else
        for (uint32_t i = 0; i < s->n_narrow; i++) {
            half_widen(s->narrow_type, floats_at(s->narrow_type, from, i * s->narrow_i), row, n);
            for (uint32_t k = 0; k < n; k++)
                p[k][i] = row[k];
        }
}

/* Rows of the wide operand as floats. `ld` is the distance between two rows in memory. */
struct wide_block {
    const float *at;
    size_t ld;
};

/* Returns the elements of the wide operand with j0 <= j < j0 + count and k0 <= k < k0 + n. Elements of a
 * 16-bit type are widened into the thread's memory. */
static struct wide_block wide_block(const struct small *s, uint32_t j0, uint32_t count, uint32_t k0,
                                    uint32_t n, struct small_memory *memory)
{
    const void *at = floats_at(s->wide_type, s->wide, j0 * s->wide_j + k0 * s->wide_k);
    bool along_k = s->wide_k == 1; /* rows in memory are contiguous along k */
    size_t ld = along_k ? s->wide_j : s->wide_k, ld_to = along_k ? GEMM_K_BLOCK : WIDE_PIECE;

    if (s->wide_type == DTYPE_F32)
        return (struct wide_block){at, ld};
    for (uint32_t i = 0; i < (along_k ? count : n); i++)
        half_widen(s->wide_type, floats_at(s->wide_type, at, i * ld), memory->wide + i * ld_to,
                   along_k ? n : count);
    return (struct wide_block){memory->wide, ld_to};
}

static void put_line(float *restrict c, const float *restrict out, size_t out_stride, uint32_t count,
                     bool add)
{
    if (add)
        for (uint32_t l = 0; l < count; l++)
            c[l] = c[l] + out[l * out_stride];
    else
        for (uint32_t l = 0; l < count; l++)
            c[l] = out[l * out_stride];
}

/* Copies the results of a piece with `count` rows of the wide operand to the part *to of c. Element (j, i) of
 * the part comes from out[j * out_j + i * out_i]. If `add` is true, the results are added to the old
 * elements. */
static void put(const struct small *s, const struct gemm_part *to, uint32_t count, const float *out,
                size_t out_j, size_t out_i, bool add)
{
    if (!s->wide_is_a)
        for (uint32_t i = 0; i < s->n_narrow; i++)
            put_line(to->at + i * to->ld, out + i * out_i, out_j, count, add);
    else
        for (uint32_t j = 0; j < count; j++)
            put_line(to->at + j * to->ld, out + j * out_j, out_i, s->n_narrow, add);
}

/* The number of rows that rows_block widens at a time. Their floats fit into the first-level cache. */
#define WIDENED_ROWS 16

static void rows_block(const struct small *s, const struct gemm_part *to, uint32_t j0, uint32_t count,
                       uint32_t k0, uint32_t n, const panel p, struct small_memory *memory)
{
    float out[WIDE_PIECE][LANES];
    uint32_t step = s->wide_type == DTYPE_F32 ? WIDE_PIECE : WIDENED_ROWS;

    for (uint32_t j = 0; j < count; j += step) {
        uint32_t some = count - j < step ? count - j : step;
        struct wide_block wide = wide_block(s, j0 + j, some, k0, n, memory);
        s->kernels->rows(wide.at, wide.ld, some, p, n, out + j);
    }
    put(s, to, count, out[0], LANES, 1, k0 > 0 || s->accumulate);
}

static void lanes_block(const struct small *s, const struct gemm_part *to, uint32_t j0, uint32_t count,
                        uint32_t k0, uint32_t n, const panel p, struct small_memory *memory)
{
    float out[LANES][WIDE_PIECE];
    uint32_t whole = count - count % LANES, rest = count - whole;
    struct wide_block wide = wide_block(s, j0, count, k0, n, memory);

    s->kernels->lanes(wide.at, wide.ld, whole, p, s->n_narrow, n, out);
    /* The last columns do not fill a vector. Copy them to a buffer whose other columns are zero. */
    if (rest > 0) {
        panel tail;
        memset(tail, 0, n * sizeof tail[0]);
        for (uint32_t k = 0; k < n; k++)
            memcpy(tail[k], wide.at + k * wide.ld + whole, rest * sizeof(float));
        s->kernels->lanes(tail[0], LANES, LANES, p, s->n_narrow, n, (float(*)[WIDE_PIECE])(out[0] + whole));
    }
    put(s, to, count, out[0], 1, WIDE_PIECE, k0 > 0 || s->accumulate);
}

/* Returns the part of c that belongs to the piece with j0 <= j < j0 + count. */
static struct gemm_part part_of(const struct small *s, uint32_t j0, uint32_t count,
                                struct small_memory *memory)
{
    const struct gemm *g = s->g;
    struct gemm_part part = {.m1 = g->m, .n1 = g->n};

    if (s->wide_is_a)
        part.m0 = j0, part.m1 = j0 + count;
    else
        part.n0 = j0, part.n1 = j0 + count;
    if (g->c_type == DTYPE_F32) {
        part.at = (float *)g->c + part.m0 * (size_t)g->n + part.n0;
        part.ld = g->n;
    } else {
        part.at = memory->part;
        part.ld = part.n1 - part.n0;
    }
    return part;
}

static void run_piece(void *ctx, uint32_t piece)
{
    const struct small *s = ctx;
    uint32_t j0 = piece * WIDE_PIECE;
    uint32_t count = s->n_wide - j0 < WIDE_PIECE ? s->n_wide - j0 : WIDE_PIECE;
    bool floats = s->wide_type == DTYPE_F32 && s->g->c_type == DTYPE_F32;
    struct small_memory *memory = floats ? NULL : cpu_thread_memory(sizeof *memory);
    struct gemm_part part = part_of(s, j0, count, memory);
    panel p;

    for (uint32_t k0 = 0; k0 < s->k; k0 += GEMM_K_BLOCK) {
        uint32_t n = s->k - k0 < GEMM_K_BLOCK ? s->k - k0 : GEMM_K_BLOCK;
        pack_narrow(s, k0, n, p);
        if (s->wide_k == 1)
            rows_block(s, &part, j0, count, k0, n, p, memory);
        else
            lanes_block(s, &part, j0, count, k0, n, p, memory);
        if (n < GEMM_K_BLOCK)
            break; /* k0 must not wrap around */
    }
    gemm_part_done(s->g, &part);
}

/* Describes the product *g as a product of a wide and a narrow operand. The narrow operand is b if n <
 * GEMM_SMALL, and a otherwise. */
static struct small from_gemm(const struct gemm *g)
{
    struct small s = {.g = g, .k = g->k, .accumulate = g->accumulate, .wide_is_a = g->n < GEMM_SMALL};
    size_t a_m = g->a_trans ? 1 : g->k, a_k = g->a_trans ? g->m : 1;
    size_t b_n = g->b_trans ? g->k : 1, b_k = g->b_trans ? 1 : g->n;

    if (s.wide_is_a) {
        s.wide = g->a, s.wide_type = g->a_type, s.wide_j = a_m, s.wide_k = a_k, s.n_wide = g->m;
        s.narrow = g->b, s.narrow_type = g->b_type, s.narrow_i = b_n, s.narrow_k = b_k, s.n_narrow = g->n;
    } else {
        s.wide = g->b, s.wide_type = g->b_type, s.wide_j = b_n, s.wide_k = b_k, s.n_wide = g->n;
        s.narrow = g->a, s.narrow_type = g->a_type, s.narrow_i = a_m, s.narrow_k = a_k, s.n_narrow = g->m;
    }
    return s;
}

void gemm_small_run(const struct gemm *g, enum gemm_isa isa, struct pool *pool)
{
    struct small s = from_gemm(g);
    s.kernels = kernels_of(isa);
    pool_run(pool, run_piece, &s, s.n_wide / WIDE_PIECE + (s.n_wide % WIDE_PIECE != 0));
}

void gemm_rows_run(const struct gemm_rows *g, enum gemm_isa isa)
{
    kernels_of(isa)->some_rows(g);
}
