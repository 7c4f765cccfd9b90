/* A plain matrix product whose bits depend on shapes and values only: every element of the result is one
 * sum in float over ascending k, whatever the blocking, the vectors of the CPU or the transposes. No fused
 * multiply-add (the whole project is compiled without contraction), so all CPUs agree.
 *
 * A panel of op(a) and one of op(b) are packed, so that one loop serves all four transposes; the sums of a
 * tile of c live in registers while k goes by. */
#include "gemm.h"

#include <stdlib.h>

#define TILE_M 32
#define TILE_N 4

/* A tile: sums[j][i] += a[k][i] * b[k][j], ascending k. */
__attribute__((target_clones("avx512f", "avx2", "default"))) static void
multiply(uint32_t depth, const float (*a)[TILE_M], const float (*b)[TILE_N], float (*sums)[TILE_M])
{
    for (uint32_t k = 0; k < depth; k++)
        for (uint32_t j = 0; j < TILE_N; j++)
            for (uint32_t i = 0; i < TILE_M; i++)
                sums[j][i] += a[k][i] * b[k][j];
}

struct matrix {
    const float *p;
    uint32_t ld;
    bool transpose;
};

static float at(const struct matrix *x, uint32_t row, uint32_t column)
{
    return x->transpose ? x->p[column + (uint64_t)row * x->ld] : x->p[row + (uint64_t)column * x->ld];
}

static void pack_a(const struct matrix *x, uint32_t i0, uint32_t height, uint32_t k, float (*panel)[TILE_M])
{
    for (uint32_t p = 0; p < k; p++)
        for (uint32_t i = 0; i < TILE_M; i++)
            panel[p][i] = i < height ? at(x, i0 + i, p) : 0;
}

static void pack_b(const struct matrix *x, uint32_t j0, uint32_t width, uint32_t k, float (*panel)[TILE_N])
{
    for (uint32_t p = 0; p < k; p++)
        for (uint32_t j = 0; j < TILE_N; j++)
            panel[p][j] = j < width ? at(x, p, j0 + j) : 0;
}

static void finish(float alpha, float beta, float *c, uint32_t ldc, uint32_t m, uint32_t n,
                   float (*sums)[TILE_M])
{
    for (uint32_t j = 0; j < n; j++)
        for (uint32_t i = 0; i < m; i++) {
            float *to = &c[i + (uint64_t)j * ldc], value = alpha * sums[j][i];
            *to = beta == 0 ? value : value + beta * *to;
        }
}

void gemm(bool transpose_a, bool transpose_b, uint32_t m, uint32_t n, uint32_t k, float alpha, const float *a,
          uint32_t lda, const float *b, uint32_t ldb, float beta, float *c, uint32_t ldc)
{
    const struct matrix x = {a, lda, transpose_a}, y = {b, ldb, transpose_b};
    float(*panel_a)[TILE_M] = malloc((k + 1) * sizeof *panel_a);
    float(*panel_b)[TILE_N] = malloc((k + 1) * sizeof *panel_b);

    if (!panel_a || !panel_b)
        abort();
    for (uint32_t i0 = 0; i0 < m; i0 += TILE_M) {
        uint32_t height = m - i0 < TILE_M ? m - i0 : TILE_M;
        pack_a(&x, i0, height, k, panel_a);
        for (uint32_t j0 = 0; j0 < n; j0 += TILE_N) {
            uint32_t width = n - j0 < TILE_N ? n - j0 : TILE_N;
            float sums[TILE_N][TILE_M] = {0};
            pack_b(&y, j0, width, k, panel_b);
            multiply(k, panel_a, panel_b, sums);
            finish(alpha, beta, &c[i0 + (uint64_t)j0 * ldc], ldc, height, width, sums);
        }
    }
    free(panel_a);
    free(panel_b);
}
