/* Inside the cpu backend: matrix products whose bits depend on values and shape only.
 *
 * On AVX512 each element of the result has one definition, whatever the tiles and threads: for each block of
 * GEMM_K_BLOCK consecutive k (the last may be shorter), one chain of fused multiply-adds in ascending k
 * starting from zero; the blocks are added in ascending order, to the old value where `accumulate` is set.
 * gemm_small keeps to it on every machine; oneDNN's AVX2 kernels do not, so there the bits are those of the
 * tiles, and tiles follow from the shape alone.
 */
#ifndef KERNELS_CPU_GEMM_H
#define KERNELS_CPU_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pool;

#define GEMM_K_BLOCK 384
#define GEMM_SMALL   16 /* below this many rows or columns the library changes its order of summation */

/* c[m][n] = (accumulate ? c : 0) + op(a) * op(b), all dense and row-major. a is [m][k], or [k][m] when a_trans; b is [k][n],
 * or [n][k] when b_trans. m, n, k >= 1. */
struct gemm {
    const float *a, *b;
    float *c;
    uint32_t m, n, k;
    bool a_trans, b_trans, accumulate;
    /* Called for every part of c, rows m0..m1-1 and columns n0..n1-1, when it is done and still in a cache; NULL: nothing.
     * What it does may not depend on how c was cut. */
    void (*done)(const struct gemm *g, uint32_t m0, uint32_t m1, uint32_t n0, uint32_t n1);
    const void *ctx; /* its own */
};

void gemm_run(const struct gemm *g, struct pool *pool);
/* The same in one of two ways that differ in which operands are copied first: way 0, or 1. gemm_run finds out which is faster. The
 * bits are the same with either: a test runs both. */
void gemm_run_way(const struct gemm *g, uint32_t way, struct pool *pool);

/* For m or n < GEMM_SMALL; gemm_run calls it with the best set that this processor has. The bits are the same
 * with each: a test runs them all. */
enum gemm_isa { GEMM_PLAIN, GEMM_AVX2, GEMM_AVX512 };
enum gemm_isa gemm_small_best(void);
void gemm_small_run(const struct gemm *g, enum gemm_isa isa, struct pool *pool);

/* GEMM_ROWS rows of a product whose operands lie in a cache: c[i][j] = (accumulate ? c : 0) + one chain of fused
 * multiply-adds over ascending k, from zero, of a[i * a_i + k * a_k] * b[k * ldb + j]. n is a multiple of 16. In the calling
 * thread; the bits are the same with every instruction set. */
#define GEMM_ROWS 8
struct gemm_rows {
    const float *a, *b;
    float *c;
    size_t a_i, a_k, ldb, ldc;
    uint32_t n, k;
    bool accumulate;
};
void gemm_rows_run(const struct gemm_rows *g, enum gemm_isa isa);

#endif
