/* Matrix products on oneDNN, and everything else that depends on oneDNN.
 *
 * oneDNN's own threading cuts the work by the number of threads, even along K, and so changes the bits.
 * Here the shape alone decides how the output is cut into tiles. The pool hands out the tiles, and every
 * call into the library is single-threaded. In each call K is at most GEMM_K_BLOCK or a multiple of it,
 * and no tile is narrower than GEMM_SMALL. Within these limits the AVX512 kernels compute exactly the
 * chain that gemm.h defines. So with AVX512 even the choice of tiles does not affect the bits
 * (tests/unit/test_ops.c compares them with a scalar loop).
 *
 * With AVX512, operands that the library handles slowly are first copied, a block at a time, into a layout
 * that it handles well. These are a transposed b, and rows whose distance is a multiple of 4 KiB, because
 * such rows compete for the same few cache lines. The shape decides which operands are copied
 * (choose_copies).
 *
 * Any thread may call these functions after cpu_thread_init.
 */
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include "base/log.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/transpose.h"

/* A tile of the result has at most TILE_M x TILE_N elements. Tiles are halved until there are enough tiles. A
 * tile never becomes smaller than TILE_M_LEAST or TILE_N_LEAST, because the overhead of a tiny tile would
 * exceed its arithmetic. The benchmark tools/bench.d/gemm.c measures these limits. */
#define TILE_M       512
#define TILE_N       512
#define TILE_M_LEAST 64
#define TILE_N_LEAST 96
/* The smallest width of a tile if k is at least DEEP. All tiles that are side by side copy the same rows of
 * operand `a`, so a few wide tiles copy less than many narrow tiles. */
#define TILE_N_DEEP     192
#define DEEP            8192u
#define TILE_STEP       16
#define TILE_LEAST_FMAS (UINT64_C(1) << 21)
/* The number of tiles that a large product should have. Many small tiles finish at about the same time on all
 * threads, so no thread waits long for the last tile. */
#define TILES_WANTED 8
/* Used instead of TILES_WANTED if a product transposes an operand or if k is large. Each tile then transposes
 * or copies its own parts of the operands, so more tiles would repeat more of this work. */
#define TILES_TURNED 4

/* If the distance between the rows of an operand is a multiple of FAR_APART floats, the rows compete for the
 * same few cache lines. The operand is then copied before it is used, provided that each row is read at least
 * READS_ENOUGH times. */
#define FAR_APART    1024
#define READS_ENOUGH 128

/* The division of one matrix product into tiles. The struct lives on the stack of gemm_run_variant. */
struct tiling {
    const struct gemm *g;
    /* turn_a and turn_b say whether oneDNN reads a transposed copy of `a` or `b`. copy_b says whether oneDNN
     * reads a plain copy of `b`. With AVX512, these copies do not change the bits of the result. */
    bool turn_a, turn_b, copy_b;
    uint32_t rows, cols; /* number of rows and columns of tiles */
};

static uint32_t div_up(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

/* Sets the number of rows and columns of tiles. The choice depends only on the shape of the product and on
 * which operands are transposed. */
static void choose_tiles(struct tiling *t)
{
    bool deep = t->g->k >= DEEP;
    uint32_t wanted = t->turn_a || t->turn_b || deep ? TILES_TURNED : TILES_WANTED;
    uint32_t m = t->g->m, n = t->g->n, least_n = deep ? TILE_N_DEEP : TILE_N_LEAST;

    t->rows = div_up(m, TILE_M);
    t->cols = div_up(n, TILE_N);
    while ((uint64_t)t->rows * t->cols < wanted) {
        uint32_t tile_m = m / t->rows, tile_n = n / t->cols;
        bool can_m = tile_m >= 2 * TILE_M_LEAST, can_n = tile_n >= 2 * least_n;
        if ((uint64_t)tile_m * tile_n * t->g->k < 2 * TILE_LEAST_FMAS || (!can_m && !can_n))
            break;
        if (can_n && (tile_n >= tile_m || !can_m))
            t->cols *= 2;
        else
            t->rows *= 2;
    }
}

/* Divides `size` rows evenly among `tiles` tiles, and returns the first row of tile `i`. If `i` is `tiles`,
 * returns `size`. The function also serves for columns. Tiles start at multiples of TILE_STEP and have at
 * least GEMM_SMALL rows. */
static uint32_t tile_begin(uint32_t size, uint32_t tiles, uint32_t i)
{
    if (i == tiles)
        return size;
    return (uint32_t)((uint64_t)size * i / tiles) / TILE_STEP * TILE_STEP;
}

/* A matrix operand of one call into oneDNN. `ld` is the distance between two rows, in floats. */
struct operand {
    const float *at;
    size_t ld;
    bool trans;
};

/* Each thread has two buffers for copied operands. Tiles start at multiples of TILE_STEP, so a tile can be a
 * little larger than TILE_M x TILE_N. The buffers have space for such a tile. */
#define COPIED_A_LD (GEMM_K_BLOCK + TILE_STEP)
#define COPIED_B_LD (TILE_N + TILE_STEP)
static _Thread_local float copied_a[(TILE_M + TILE_STEP) * COPIED_A_LD];
static _Thread_local float copied_b[GEMM_K_BLOCK * COPIED_B_LD];

/* operand_a and operand_b return the part of an operand that one call into oneDNN reads. If choose_copies
 * wants a copy of the operand, they first copy or transpose this part into the thread's buffer. */
static struct operand operand_a(const struct tiling *t, uint32_t m0, uint32_t m1, uint32_t k0, uint32_t k1)
{
    const struct gemm *g = t->g;

    if (!g->a_trans)
        return (struct operand){g->a + m0 * (size_t)g->k + k0, g->k, false};
    const float *a = g->a + k0 * (size_t)g->m + m0;
    if (!t->turn_a)
        return (struct operand){a, g->m, true};
    assert(m1 - m0 <= TILE_M + TILE_STEP && k1 - k0 <= GEMM_K_BLOCK);
    transpose_f32(a, g->m, k1 - k0, m1 - m0, copied_a, COPIED_A_LD);
    return (struct operand){copied_a, COPIED_A_LD, false};
}

static struct operand operand_b(const struct tiling *t, uint32_t n0, uint32_t n1, uint32_t k0, uint32_t k1)
{
    const struct gemm *g = t->g;
    size_t ld = g->b_trans ? g->k : g->n;
    const float *b = g->b + (g->b_trans ? n0 * ld + k0 : k0 * ld + n0);

    if (!t->turn_b && !t->copy_b)
        return (struct operand){b, ld, g->b_trans};
    assert(n1 - n0 <= COPIED_B_LD && k1 - k0 <= GEMM_K_BLOCK);
    if (t->turn_b)
        transpose_f32(b, ld, n1 - n0, k1 - k0, copied_b, COPIED_B_LD);
    else
        for (uint32_t k = 0; k < k1 - k0; k++)
            memcpy(copied_b + k * (size_t)COPIED_B_LD, b + k * ld, (n1 - n0) * sizeof *b);
    return (struct operand){copied_b, COPIED_B_LD, false};
}

/* Computes one tile, but sums only over the indices k0 <= k < k1. If k0 > 0, the sums are added to the
 * tile. */
static void tile_block(const struct tiling *t, uint32_t m0, uint32_t m1, uint32_t n0, uint32_t n1,
                       uint32_t k0, uint32_t k1)
{
    const struct gemm *g = t->g;
    struct operand a = operand_a(t, m0, m1, k0, k1), b = operand_b(t, n0, n1, k0, k1);
    float *c = g->c + m0 * (size_t)g->n + n0;
    float beta = k0 > 0 || g->accumulate ? 1.0f : 0.0f;

    dnnl_status_t status = dnnl_sgemm(a.trans ? 'T' : 'N', b.trans ? 'T' : 'N', m1 - m0, n1 - n0, k1 - k0,
                                      1.0f, a.at, (dnnl_dim_t)a.ld, b.at, (dnnl_dim_t)b.ld, beta, c, g->n);
    /* oneDNN fails only if it cannot allocate memory. An op cannot return an error, so the process must end
     * here. */
    if (status != dnnl_success) {
        log_error("dnnl_sgemm failed with status %d", (int)status);
        abort();
    }
}

static void run_tile(void *ctx, uint32_t i)
{
    const struct tiling *t = ctx;
    const struct gemm *g = t->g;
    uint32_t row = i / t->cols, col = i % t->cols;
    uint32_t m0 = tile_begin(g->m, t->rows, row), m1 = tile_begin(g->m, t->rows, row + 1);
    uint32_t n0 = tile_begin(g->n, t->cols, col), n1 = tile_begin(g->n, t->cols, col + 1);
    bool copies = t->turn_a || t->turn_b || t->copy_b;
    uint32_t step = copies ? GEMM_K_BLOCK : g->k - g->k % GEMM_K_BLOCK;

    for (uint32_t k0 = 0, k1; k0 < g->k; k0 = k1) {
        k1 = step == 0 || g->k - k0 < step ? g->k : k0 + step;
        tile_block(t, m0, m1, n0, n1, k0, k1);
    }
    if (g->done)
        g->done(g, m0, m1, n0, n1);
}

/* Returns true if oneDNN uses AVX512. The environment can forbid it, even if the processor supports
 * AVX512. */
static bool has_avx512(void)
{
    unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();
    return (isa & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
}

/* Decides which operands are copied or transposed before oneDNN reads them. Variant 0 is the default. Variant
 * 1 makes the opposite choice for one of the operands. */
static void choose_copies(struct tiling *t, uint32_t variant)
{
    const struct gemm *g = t->g;
    bool enough = g->k >= READS_ENOUGH; /* otherwise the calls are short anyway */

    t->turn_b = g->b_trans;
    t->turn_a = enough && g->a_trans && g->m % FAR_APART == 0 && g->n >= READS_ENOUGH;
    t->copy_b = enough && !g->b_trans && g->n % FAR_APART == 0 && g->m >= READS_ENOUGH;
    bool *other = g->b_trans ? &t->turn_b : g->a_trans ? &t->turn_a : &t->copy_b;
    if (variant == 1)
        *other = !*other;
}

static bool is_small(const struct gemm *g)
{
    return g->m < GEMM_SMALL || g->n < GEMM_SMALL;
}

void gemm_run_variant(const struct gemm *g, uint32_t variant, struct pool *pool)
{
    struct tiling t = {.g = g};

    assert(g->m >= 1 && g->n >= 1 && g->k >= 1);
    if (is_small(g)) {
        gemm_small_run(g, gemm_small_best(), pool);
        return;
    }
    if (has_avx512())
        choose_copies(&t, variant);
    choose_tiles(&t);
    pool_run(pool, run_tile, &t, t.rows * t.cols);
}

void gemm_run(const struct gemm *g, struct pool *pool)
{
    gemm_run_variant(g, 0, pool);
}

void cpu_thread_init(void)
{
    omp_set_num_threads(1);
}

static const char *isa_name(void)
{
    unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();

    if (has_avx512())
        return "avx512";
    if ((isa & dnnl_cpu_isa_avx2) == dnnl_cpu_isa_avx2)
        return "avx2";
    if ((isa & dnnl_cpu_isa_avx) == dnnl_cpu_isa_avx)
        return "avx";
    return "generic";
}

static char numerics[64]; /* written once, by numerics_once */
static pthread_once_t numerics_once = PTHREAD_ONCE_INIT;

static void format_numerics(void)
{
    const dnnl_version_t *v = dnnl_version();
    snprintf(numerics, sizeof numerics, "%s oneDNN %d.%d.%d", isa_name(), v->major, v->minor, v->patch);
}

const char *cpu_numerics(void)
{
    pthread_once(&numerics_once, format_numerics);
    return numerics;
}
