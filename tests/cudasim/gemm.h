/* The matrix product of the stand-in libcublas. */
#ifndef CUDASIM_GEMM_H
#define CUDASIM_GEMM_H

#include <stdbool.h>
#include <stdint.h>

/* The types of elements. The elements of a GEMM_TF32 matrix are floats, and the product rounds them to TF32
 * when it reads them. */
enum gemm_type { GEMM_F32, GEMM_TF32, GEMM_BF16, GEMM_F16 };

static inline uint32_t gemm_bytes(enum gemm_type type)
{
    return type == GEMM_BF16 || type == GEMM_F16 ? 2 : 4;
}

/* A factor of a product, column-major as BLAS has it: element (i, j) as stored is number i + j * ld. */
struct gemm_factor {
    const void *p;
    uint32_t ld;
    bool transpose; /* the factor is the transpose of what is stored */
    enum gemm_type type;
};

/* c[m][n] = alpha * a * b + beta * c, column-major. The sums are floats. If the elements of c have 16 bits,
 * each of them is rounded once, at the end. beta 0: c is not read. */
void gemm(uint32_t m, uint32_t n, uint32_t k, float alpha, const struct gemm_factor *a,
          const struct gemm_factor *b, float beta, void *c, uint32_t ldc, enum gemm_type c_type);

#endif
