/* Matrix products on oneDNN, and everything else that knows oneDNN.
 *
 * Why this way: the library's own threading picks its cuts of the work, K included, by the number of threads,
 * and so changes the bits. Here the output is cut into tiles by shape alone, the pool hands the tiles out,
 * and every call into the library is single-threaded. Per call K is at most GEMM_K_BLOCK or a multiple of it,
 * and no tile is narrower than GEMM_SMALL: within these bounds the AVX512 kernels compute the chain that
 * gemm.h defines, so there even the choice of tiles does not show (tests/unit/test_ops.c checks against a
 * scalar loop); and there a transposed b is transposed here, tile by tile, for the library is slow at that.
 *
 * Any thread, after cpu_thread_init.
 */
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/transpose.h"

/* Tiles: no larger than TILE_M x TILE_N; halved until there are as many as wanted, but not below the least tile,
 * where copying into the library's panels outweighs the arithmetic, nor below the least work, where waking a
 * thread does. Steps of TILE_STEP suit its kernels. Figures: tools/bench.d/gemm.c. */
#define TILE_M          512
#define TILE_N          512
#define TILE_M_LEAST    64
#define TILE_N_LEAST    96
#define TILE_N_DEEP     192 /* for large k, where each tile copies many rows of a */
#define DEEP            8192u
#define TILE_STEP       16
#define TILE_LEAST_FMAS (UINT64_C(1) << 21)
#define TILES_WANTED    8 /* where copies share the cores, a thread that waits for another's tile waits less */
#define TILES_TURNED    4 /* of a transposed b, which is transposed once for every tile above another */

struct tiling {
    const struct gemm *g;
    bool turn;           /* transpose b for the library; where its bits are the same either way */
    uint32_t rows, cols; /* how many tiles each way */
};

static uint32_t div_up(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

static void choose_tiles(struct tiling *t)
{
    uint32_t wanted = t->turn ? TILES_TURNED : TILES_WANTED;
    uint32_t m = t->g->m, n = t->g->n, least_n = t->g->k >= DEEP ? TILE_N_DEEP : TILE_N_LEAST;

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

/* Where tile i of `tiles` begins: even shares, rounded down to the step. Shares of at least 2 * TILE_STEP
 * (the least tile is larger) leave no tile under GEMM_SMALL. */
static uint32_t tile_begin(uint32_t size, uint32_t tiles, uint32_t i)
{
    if (i == tiles)
        return size;
    return (uint32_t)((uint64_t)size * i / tiles) / TILE_STEP * TILE_STEP;
}

/* b of a tile, and how it lies. */
struct operand {
    const float *at;
    size_t ld;
    bool trans;
};

static void tile_block(const struct gemm *g, uint32_t m0, uint32_t m1, uint32_t n0, uint32_t n1, uint32_t k0,
                       uint32_t k1, struct operand b)
{
    size_t lda = g->a_trans ? g->m : g->k, ldc = g->n;
    const float *a = g->a + (g->a_trans ? k0 * lda + m0 : m0 * lda + k0);
    float *c = g->c + m0 * ldc + n0;
    float beta = k0 > 0 || g->accumulate ? 1.0f : 0.0f;

    dnnl_status_t status =
        dnnl_sgemm(g->a_trans ? 'T' : 'N', b.trans ? 'T' : 'N', m1 - m0, n1 - n0, k1 - k0, 1.0f, a,
                   (dnnl_dim_t)lda, b.at, (dnnl_dim_t)b.ld, beta, c, (dnnl_dim_t)ldc);
    if (status != dnnl_success) { /* its panels could not be allocated: small, internal */
        fprintf(stderr, "dnnl_sgemm failed with status %d\n", (int)status);
        abort();
    }
}

/* The library copies a transposed b slowly, and multiplies what is not transposed without a copy. The thread's own. A tile may
 * have TILE_STEP - 1 columns more than TILE_N, for its begin is rounded down. */
#define TURNED_LD (TILE_N + TILE_STEP)
static _Thread_local float turned[GEMM_K_BLOCK * TURNED_LD];

static struct operand turn(const struct gemm *g, uint32_t n0, uint32_t n1, uint32_t k0, uint32_t k1)
{
    assert(n1 - n0 <= TURNED_LD && k1 - k0 <= GEMM_K_BLOCK);
    transpose_f32(g->b + n0 * (size_t)g->k + k0, g->k, n1 - n0, k1 - k0, turned, TURNED_LD);
    return (struct operand){turned, TURNED_LD, false};
}

static void run_tile(void *ctx, uint32_t i)
{
    const struct tiling *t = ctx;
    const struct gemm *g = t->g;
    uint32_t row = i / t->cols, col = i % t->cols;
    uint32_t m0 = tile_begin(g->m, t->rows, row), m1 = tile_begin(g->m, t->rows, row + 1);
    uint32_t n0 = tile_begin(g->n, t->cols, col), n1 = tile_begin(g->n, t->cols, col + 1);
    uint32_t step = t->turn ? GEMM_K_BLOCK : g->k - g->k % GEMM_K_BLOCK;

    for (uint32_t k0 = 0, k1; k0 < g->k; k0 = k1) {
        k1 = step == 0 || g->k - k0 < step ? g->k : k0 + step;
        struct operand b = {g->b + k0 * (size_t)g->n + n0, g->n, false};
        if (t->turn)
            b = turn(g, n0, n1, k0, k1);
        else if (g->b_trans)
            b = (struct operand){g->b + n0 * (size_t)g->k + k0, g->k, true};
        tile_block(g, m0, m1, n0, n1, k0, k1, b);
    }
    if (g->done)
        g->done(g, m0, m1, n0, n1);
}

/* Of the library, which can be told to use less than there is. */
static bool has_avx512(void)
{
    unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();
    return (isa & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
}

void gemm_run(const struct gemm *g, struct pool *pool)
{
    struct tiling t = {.g = g, .turn = g->b_trans && has_avx512()};

    assert(g->m >= 1 && g->n >= 1 && g->k >= 1);
    if (g->m < GEMM_SMALL || g->n < GEMM_SMALL) {
        gemm_small_run(g, gemm_small_best(), pool);
        return;
    }
    choose_tiles(&t);
    pool_run(pool, run_tile, &t, t.rows * t.cols);
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

static char numerics[64]; /* written once, under numerics_once */
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
