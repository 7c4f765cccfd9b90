/* Products of BF16 matrices in the calling thread, for processors that can multiply BF16 numbers. gemm.c cuts
 * a large product into tiles and computes each tile with gemm_bf16_run. */
#ifndef KERNELS_CPU_GEMM_BF16_H
#define KERNELS_CPU_GEMM_BF16_H

#include <stdint.h>

/* Everything about a product except the addresses. `lda`, `ldb` and `ldc` are the distances between rows of
 * the matrices as they lie in memory, in elements. The flags mean the same as in struct gemm, and are 0 or 1.
 * All fields have one type, so that two shapes can be compared as bytes. */
struct gemm_bf16_shape {
    uint32_t m, n, k;
    uint32_t lda, ldb, ldc;
    uint32_t a_trans, b_trans, accumulate;
};

/* A product of two BF16 matrices with a float result. The caller makes it for one call of gemm_bf16_run. */
struct gemm_bf16 {
    const uint16_t *a, *b;
    float *c;
    struct gemm_bf16_shape shape;
};

/* Computes the product *p in the calling thread. gemm_bf16_in_hardware() must be true. The bits of the result
 * depend only on the values and the shape. */
void gemm_bf16_run(const struct gemm_bf16 *p);

#endif
