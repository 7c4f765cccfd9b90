/* Matrix products inside the cpu backend. Their bits depend on values and shapes only.
 *
 * With AVX512, each element of the result has one definition, for any choice of tiles and threads. Each
 * block of GEMM_K_BLOCK consecutive k (the last may be shorter) is one chain of fused multiply-adds in
 * ascending k, starting from zero. The blocks are added up in ascending order, starting from the old value
 * if `accumulate` is set.
 *
 * gemm_small follows this definition on every machine. oneDNN's AVX2 kernels do not. With AVX2, the bits
 * also depend on the tiles, which in turn depend only on the shape.
 *
 * 16-bit operands are widened to float, which is exact. Their product is then the product of floats that is
 * defined above. There is one exception: where the processor can multiply BF16 numbers
 * (gemm_bf16_in_hardware) and both operands are BF16, oneDNN reads them as they are (gemm_bf16.c). Its sums
 * are float too, but their order depends on the instruction set and on the shape, and subnormal numbers may
 * count as 0. Each sum is complete before it is rounded to the type of c.
 */
#ifndef KERNELS_CPU_GEMM_H
#define KERNELS_CPU_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"

struct gemm;
struct pool;

#define GEMM_K_BLOCK 384
/* If a product has fewer than GEMM_SMALL rows or columns, oneDNN would add in a different order.
 * gemm_small_run computes such products instead of oneDNN. */
#define GEMM_SMALL 16

/* A finished part of a matrix product: the rows m0 to m1 - 1 and the columns n0 to n1 - 1 of c, in float. The
 * element in row m and column n is at[(m - m0) * ld + (n - n0)]. The thread that computed the part makes the
 * struct, and the struct lives during one call of `done`. If c is F32, the part lies in c itself. Otherwise
 * the part lies in a buffer of the thread. A part has at most FLOATS_BLOCK columns (as_floats.h). */
struct gemm_part {
    float *at;
    size_t ld;
    uint32_t m0, m1, n0, n1;
};

/* A function that gemm_run calls for each finished part of c, while the part is still in a cache. The
 * function may change the elements of the part. If c has a 16-bit type, gemm_run then rounds the elements
 * into c. The result of the function must not depend on the size of the parts. */
typedef void gemm_done_fn(const struct gemm *g, const struct gemm_part *part);

/* A matrix product: c[m][n] = a * b. If `accumulate` is true, the product is added to the old c, which must
 * be F32. `a` is [m][k], or [k][m] if `a_trans` is true. `b` is [k][n], or [n][k] if `b_trans` is true. All
 * matrices are dense and row-major, and m, n and k are at least 1. */
struct gemm {
    const void *a, *b;
    void *c;
    enum dtype a_type, b_type, c_type; /* each is F32, BF16 or F16 */
    uint32_t m, n, k;
    bool a_trans, b_trans, accumulate;
    gemm_done_fn *done; /* NULL if nothing is to be done with the parts */
    const void *ctx;    /* argument for `done` */
};

/* Every function that computes products calls this one for each finished part. It calls g->done. If c has a
 * 16-bit type, it then rounds the part into c. */
void gemm_part_done(const struct gemm *g, const struct gemm_part *part);

/* Computes the matrix product *g. The threads of the pool share the work. */
void gemm_run(const struct gemm *g, struct pool *pool);

/* The ways to compute a product. gemm_run uses GEMM_DEFAULT. */
enum gemm_variant {
    GEMM_DEFAULT,
    /* Copies other operands before the multiplication than GEMM_DEFAULT, but gives the same bits. */
    GEMM_OTHER_COPIES,
    /* Widens 16-bit operands even where the processor can multiply them. Gives the bits that GEMM_DEFAULT
     * gives on a processor that cannot multiply BF16 numbers. */
    GEMM_WIDENED,
};
void gemm_run_variant(const struct gemm *g, enum gemm_variant variant, struct pool *pool);

/* Returns true if GEMM_DEFAULT multiplies BF16 numbers without widening them. The processor must be able to
 * do it, and the environment must not forbid it (ONEDNN_MAX_CPU_ISA). */
bool gemm_bf16_in_hardware(void);

enum gemm_isa { GEMM_PLAIN, GEMM_AVX2, GEMM_AVX512 };
/* Returns the fastest instruction set for gemm_small_run and gemm_rows_run that this processor supports. */
enum gemm_isa gemm_small_best(void);
/* Computes a product with fewer than GEMM_SMALL rows or columns. All instruction sets give the same bits, so
 * use the fastest one, gemm_small_best(). */
void gemm_small_run(const struct gemm *g, enum gemm_isa isa, struct pool *pool);

#define GEMM_ROWS 8
/* A product of GEMM_ROWS rows whose operands are in a cache. c[i][j] is the sum over k of a[i * a_i + k *
 * a_k] * b[k * ldb + j]. If `accumulate` is true, the sum is added to the old c. Each sum starts from zero
 * and is made by fused multiply-adds in ascending k. `n` must be a multiple of 16. */
struct gemm_rows {
    const float *a, *b;
    float *c;
    size_t a_i, a_k, ldb, ldc;
    uint32_t n, k;
    bool accumulate;
};
/* Computes the product *g in the calling thread. The product has GEMM_ROWS rows. All instruction sets give
 * the same bits. */
void gemm_rows_run(const struct gemm_rows *g, enum gemm_isa isa);

#endif
