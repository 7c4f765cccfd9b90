/* The matrix product of the stand-in libcublas. */
#ifndef CUDASIM_GEMM_H
#define CUDASIM_GEMM_H

#include <stdbool.h>
#include <stdint.h>

/* c[m][n] = alpha * op(a) * op(b) + beta * c, column-major as BLAS has it: element (i, j) of c is c[i + j
 * * ldc]. op is the transpose where the flag says so. beta 0: c is not read. */
void gemm(bool transpose_a, bool transpose_b, uint32_t m, uint32_t n, uint32_t k, float alpha, const float *a,
          uint32_t lda, const float *b, uint32_t ldb, float beta, float *c, uint32_t ldc);

#endif
