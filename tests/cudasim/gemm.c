/* A plain matrix product whose bits depend on shapes, types and values only: every element of the result is
 * one sum in float over ascending k, whatever the blocking, the vectors of the CPU or the transposes. No
 * fused multiply-add (the whole project is compiled without contraction), so all CPUs agree. Factors of 16
 * bits are widened when they are packed, so their products are exact.
 *
 * A panel of op(a) and one of op(b) are packed, so that one loop serves all four transposes; the sums of a
 * tile of c live in registers while k goes by. */
#include "gemm.h"

#include <stdlib.h>

#include "half.h"

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

/* Returns element number `i` of a factor, as it enters the product. */
static float element(const struct gemm_factor *x, uint64_t i)
{
    switch (x->type) {
    case GEMM_TF32:
        return round_tf32(((const float *)x->p)[i]);
    case GEMM_BF16:
        return as_bf16(((const uint16_t *)x->p)[i]);
    case GEMM_F16:
        return as_f16(((const uint16_t *)x->p)[i]);
    default:
        return ((const float *)x->p)[i];
    }
}

static float at(const struct gemm_factor *x, uint32_t row, uint32_t column)
{
    return element(x, x->transpose ? column + (uint64_t)row * x->ld : row + (uint64_t)column * x->ld);
}

static void pack_a(const struct gemm_factor *x, uint32_t i0, uint32_t height, uint32_t k,
                   float (*panel)[TILE_M])
{
    for (uint32_t p = 0; p < k; p++)
        for (uint32_t i = 0; i < TILE_M; i++)
            panel[p][i] = i < height ? at(x, i0 + i, p) : 0;
}

static void pack_b(const struct gemm_factor *x, uint32_t j0, uint32_t width, uint32_t k,
                   float (*panel)[TILE_N])
{
    for (uint32_t p = 0; p < k; p++)
        for (uint32_t j = 0; j < TILE_N; j++)
            panel[p][j] = j < width ? at(x, p, j0 + j) : 0;
}

/* The result of a product. */
struct result {
    void *p;
    uint32_t ld;
    enum gemm_type type;
};

static void store(const struct result *c, uint64_t i, float value)
{
    switch (c->type) {
    case GEMM_BF16:
        ((uint16_t *)c->p)[i] = of_bf16(value);
        break;
    case GEMM_F16:
        ((uint16_t *)c->p)[i] = of_f16(value);
        break;
    default:
        ((float *)c->p)[i] = value;
    }
}

/* Writes one tile of the result, whose first element is (i0, j0). */
static void finish(float alpha, float beta, const struct result *c, uint32_t i0, uint32_t j0, uint32_t height,
                   uint32_t width, float (*sums)[TILE_M])
{
    const struct gemm_factor old = {c->p, c->ld, false, c->type};

    for (uint32_t j = 0; j < width; j++)
        for (uint32_t i = 0; i < height; i++) {
            const uint64_t to = i0 + i + (uint64_t)(j0 + j) * c->ld;
            const float value = alpha * sums[j][i];
            store(c, to, beta == 0 ? value : value + beta * element(&old, to));
        }
}

void gemm(uint32_t m, uint32_t n, uint32_t k, float alpha, const struct gemm_factor *a,
          const struct gemm_factor *b, float beta, void *c, uint32_t ldc, enum gemm_type c_type)
{
    const struct result result = {c, ldc, c_type};
    float(*panel_a)[TILE_M] = malloc((k + 1) * sizeof *panel_a);
    float(*panel_b)[TILE_N] = malloc((k + 1) * sizeof *panel_b);

    if (!panel_a || !panel_b)
        abort();
    for (uint32_t i0 = 0; i0 < m; i0 += TILE_M) {
        uint32_t height = m - i0 < TILE_M ? m - i0 : TILE_M;
        pack_a(a, i0, height, k, panel_a);
        for (uint32_t j0 = 0; j0 < n; j0 += TILE_N) {
            uint32_t width = n - j0 < TILE_N ? n - j0 : TILE_N;
            float sums[TILE_N][TILE_M] = {0};
            pack_b(b, j0, width, k, panel_b);
            multiply(k, panel_a, panel_b, sums);
            finish(alpha, beta, &result, i0, j0, height, width, sums);
        }
    }
    free(panel_a);
    free(panel_b);
}
