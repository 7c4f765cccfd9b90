/* Matrix products inside the cpu backend. Their bits depend on values and shapes only.
 *
 * With AVX512, each element of the result has one definition, whatever the tiles and threads. Each block
 * of GEMM_K_BLOCK consecutive k (the last may be shorter) is one chain of fused multiply-adds in ascending
 * k, starting from zero. The blocks are added up in ascending order, starting from the old value if
 * `accumulate` is set.
 *
 * gemm_small follows this definition on every machine. oneDNN's AVX2 kernels do not, so there the bits
 * depend on the tiles, and the tiles depend on the shape alone.
 */
#ifndef KERNELS_CPU_GEMM_H
#define KERNELS_CPU_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pool;

#define GEMM_K_BLOCK 384
/* Below this many rows or columns, oneDNN changes its order of summation. */
#define GEMM_SMALL 16

/* A product: c[m][n] = (accumulate ? c : 0) + op(a) * op(b), all dense and row-major. a is [m][k], or
 * [k][m] if a_trans; b is [k][n], or [n][k] if b_trans. m, n, k >= 1. */
struct gemm {
    const float *a, *b;
    float *c;
    uint32_t m, n, k;
    bool a_trans, b_trans, accumulate;
    /* Called for every part of c, rows m0..m1-1 and columns n0..n1-1, when that part is complete and still
     * in a cache. Its effect must not depend on how c was cut into parts. May be NULL. */
    void (*done)(const struct gemm *g, uint32_t m0, uint32_t m1, uint32_t n0, uint32_t n1);
    const void *ctx; /* argument for `done` */
};

/* Computes the product, sharing the work with the pool's threads. */
void gemm_run(const struct gemm *g, struct pool *pool);
/* Computes the product in one of two variants, 0 or 1, which differ in the operands that are copied first.
 * gemm_run finds out which variant is faster. Both give the same bits; a test compares them. */
void gemm_run_variant(const struct gemm *g, uint32_t variant, struct pool *pool);

enum gemm_isa { GEMM_PLAIN, GEMM_AVX2, GEMM_AVX512 };
/* Returns the best instruction set that this processor has. */
enum gemm_isa gemm_small_best(void);
/* Computes a product with m or n < GEMM_SMALL. gemm_run calls it with gemm_small_best(). All instruction
 * sets give the same bits; a test compares them. */
void gemm_small_run(const struct gemm *g, enum gemm_isa isa, struct pool *pool);

#define GEMM_ROWS 8
/* GEMM_ROWS rows of a product whose operands are in a cache: c[i][j] = (accumulate ? c : 0) + the sum over
 * k of a[i * a_i + k * a_k] * b[k * ldb + j]. The sum is one chain of fused multiply-adds in ascending k,
 * starting from zero. n is a multiple of 16. */
struct gemm_rows {
    const float *a, *b;
    float *c;
    size_t a_i, a_k, ldb, ldc;
    uint32_t n, k;
    bool accumulate;
};
/* Computes GEMM_ROWS rows of a product in the calling thread. All instruction sets give the same bits. */
void gemm_rows_run(const struct gemm_rows *g, enum gemm_isa isa);

#endif
