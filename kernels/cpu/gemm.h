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

/* c[m][n] = (accumulate ? c : 0) + op(a) * op(b), all dense and row-major. a is [m][k], or [k][m] when
 * a_trans; b is [k][n], or [n][k] when b_trans. m, n, k >= 1. */
struct gemm {
    const float *a, *b;
    float *c;
    uint32_t m, n, k;
    bool a_trans, b_trans, accumulate;
};

void gemm_run(const struct gemm *g, struct pool *pool);

/* For m or n < GEMM_SMALL; gemm_run calls it with the best set that this processor has. The bits are the same
 * with each: a test runs them all. */
enum gemm_isa { GEMM_PLAIN, GEMM_AVX2, GEMM_AVX512 };
enum gemm_isa gemm_small_best(void);
void gemm_small_run(const struct gemm *g, enum gemm_isa isa, struct pool *pool);

#endif
