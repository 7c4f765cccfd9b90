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
 * An operand of a 16-bit type is widened to float in the same way, a block at a time, unless the processor
 * multiplies BF16 numbers (gemm_bf16.h). If the result has a 16-bit type, a tile is computed in a buffer of
 * the thread and then rounded.
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
#include "kernels/cpu/as_floats.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_bf16.h"
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
/* Used instead of TILES_WANTED if a product transposes an operand, if k is large or if oneDNN multiplies BF16
 * operands. Each tile then transposes or copies its own parts of the operands, so more tiles would repeat
 * more of this work. */
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
    bool bf16;           /* oneDNN multiplies the BF16 operands as they are */
    uint32_t rows, cols; /* number of rows and columns of tiles */
};

static uint32_t div_up(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

/* Sets the number of rows and columns of tiles. The choice depends only on the shape of the product and on
 * how the operands are copied. */
static void choose_tiles(struct tiling *t)
{
    bool deep = t->g->k >= DEEP;
    uint32_t wanted = t->turn_a || t->turn_b || t->bf16 || deep ? TILES_TURNED : TILES_WANTED;
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
 * little larger than TILE_M x TILE_N. The buffers have space for such a tile, transposed or not. */
#define COPIED_K_LD   (GEMM_K_BLOCK + TILE_STEP) /* of a copy whose rows are contiguous along k */
#define COPIED_N_LD   (TILE_N + TILE_STEP)       /* of a copy whose rows are contiguous along m or n */
#define COPIED_FLOATS (COPIED_N_LD * COPIED_K_LD)
static _Thread_local float copied_a[COPIED_FLOATS];
static _Thread_local float copied_b[COPIED_FLOATS];

_Static_assert(TILE_M <= TILE_N, "copies of `a` need no more space than copies of `b`");
_Static_assert(TILE_N + TILE_STEP <= FLOATS_BLOCK, "a tile is a part");

/* Widens `rows` rows of `n` elements to floats. The distance between two rows is `ld` elements at `from`, and
 * `ld_to` elements at `to`. */
static void widen_rows(enum dtype type, const void *from, size_t ld, uint32_t rows, uint32_t n, float *to,
                       size_t ld_to)
{
    for (uint32_t i = 0; i < rows; i++)
        half_widen(type, floats_at(type, from, i * ld), to + i * ld_to, n);
}

/* operand_a and operand_b return the part of an operand that one call into oneDNN reads. If the operand has a
 * 16-bit type, they first widen this part into the thread's buffer. If choose_copies wants a copy of the
 * operand, they first copy or transpose this part into the buffer. */
static struct operand operand_a(const struct tiling *t, uint32_t m0, uint32_t m1, uint32_t k0, uint32_t k1)
{
    const struct gemm *g = t->g;
    size_t ld = g->a_trans ? g->m : g->k;
    const void *at = floats_at(g->a_type, g->a, g->a_trans ? k0 * ld + m0 : m0 * ld + k0);

    if (g->a_type == DTYPE_F32 && !t->turn_a)
        return (struct operand){at, ld, g->a_trans};
    assert(m1 - m0 <= COPIED_N_LD && k1 - k0 <= GEMM_K_BLOCK);
    if (g->a_type == DTYPE_F32) {
        transpose_f32(at, ld, k1 - k0, m1 - m0, copied_a, COPIED_K_LD);
        return (struct operand){copied_a, COPIED_K_LD, false};
    }
    if (g->a_trans) {
        widen_rows(g->a_type, at, ld, k1 - k0, m1 - m0, copied_a, COPIED_N_LD);
        return (struct operand){copied_a, COPIED_N_LD, true};
    }
    widen_rows(g->a_type, at, ld, m1 - m0, k1 - k0, copied_a, COPIED_K_LD);
    return (struct operand){copied_a, COPIED_K_LD, false};
}

static struct operand operand_b(const struct tiling *t, uint32_t n0, uint32_t n1, uint32_t k0, uint32_t k1)
{
    const struct gemm *g = t->g;
    size_t ld = g->b_trans ? g->k : g->n;
    const void *at = floats_at(g->b_type, g->b, g->b_trans ? n0 * ld + k0 : k0 * ld + n0);

    if (g->b_type == DTYPE_F32 && !t->turn_b && !t->copy_b)
        return (struct operand){at, ld, g->b_trans};
    assert(n1 - n0 <= COPIED_N_LD && k1 - k0 <= GEMM_K_BLOCK);
    if (g->b_type == DTYPE_F32 && t->turn_b) {
        transpose_f32(at, ld, n1 - n0, k1 - k0, copied_b, COPIED_N_LD);
        return (struct operand){copied_b, COPIED_N_LD, false};
    }
    if (g->b_trans) {
        widen_rows(g->b_type, at, ld, n1 - n0, k1 - k0, copied_b, COPIED_K_LD);
        return (struct operand){copied_b, COPIED_K_LD, true};
    }
    widen_rows(g->b_type, at, ld, k1 - k0, n1 - n0, copied_b, COPIED_N_LD); /* F32: a plain copy */
    return (struct operand){copied_b, COPIED_N_LD, false};
}

/* Computes one tile, but sums only over the indices k0 <= k < k1. If k0 > 0, the sums are added to the
 * tile. */
static void tile_block(const struct tiling *t, const struct gemm_part *p, uint32_t k0, uint32_t k1)
{
    struct operand a = operand_a(t, p->m0, p->m1, k0, k1), b = operand_b(t, p->n0, p->n1, k0, k1);
    float beta = k0 > 0 || t->g->accumulate ? 1.0f : 0.0f;

    dnnl_status_t status =
        dnnl_sgemm(a.trans ? 'T' : 'N', b.trans ? 'T' : 'N', p->m1 - p->m0, p->n1 - p->n0, k1 - k0, 1.0f,
                   a.at, (dnnl_dim_t)a.ld, b.at, (dnnl_dim_t)b.ld, beta, p->at, (dnnl_dim_t)p->ld);
    /* oneDNN fails only if it cannot allocate memory. An op cannot return an error, so the process must end
     * here. */
    if (status != dnnl_success) {
        log_error("dnnl_sgemm failed with status %d", (int)status);
        abort();
    }
}

/* Computes one tile in float, by sums over all k. */
static void float_tile(const struct tiling *t, const struct gemm_part *p)
{
    const struct gemm *g = t->g;
    bool copies = t->turn_a || t->turn_b || t->copy_b || g->a_type != DTYPE_F32 || g->b_type != DTYPE_F32;
    uint32_t step = copies ? GEMM_K_BLOCK : g->k - g->k % GEMM_K_BLOCK;

    for (uint32_t k0 = 0, k1; k0 < g->k; k0 = k1) {
        k1 = step == 0 || g->k - k0 < step ? g->k : k0 + step;
        tile_block(t, p, k0, k1);
    }
}

/* Computes one tile of BF16 operands in one call into oneDNN. */
static void bf16_tile(const struct gemm *g, const struct gemm_part *p)
{
    const uint16_t *a = g->a, *b = g->b;
    struct gemm_bf16 product = {.a = a + (g->a_trans ? p->m0 : p->m0 * (size_t)g->k),
                                .b = b + (g->b_trans ? p->n0 * (size_t)g->k : p->n0),
                                .c = p->at,
                                .shape = {.m = p->m1 - p->m0,
                                          .n = p->n1 - p->n0,
                                          .k = g->k,
                                          .lda = g->a_trans ? g->m : g->k,
                                          .ldb = g->b_trans ? g->k : g->n,
                                          .ldc = (uint32_t)p->ld,
                                          .a_trans = g->a_trans,
                                          .b_trans = g->b_trans,
                                          .accumulate = g->accumulate}};
    gemm_bf16_run(&product);
}

void gemm_part_done(const struct gemm *g, const struct gemm_part *p)
{
    if (g->done)
        g->done(g, p);
    if (g->c_type == DTYPE_F32)
        return;
    for (uint32_t m = p->m0; m < p->m1; m++) {
        uint16_t *c = (uint16_t *)g->c + m * (size_t)g->n + p->n0;
        half_round(g->c_type, p->at + (m - p->m0) * p->ld, c, p->n1 - p->n0);
    }
}

static void run_tile(void *ctx, uint32_t i)
{
    const struct tiling *t = ctx;
    const struct gemm *g = t->g;
    uint32_t row = i / t->cols, col = i % t->cols;
    struct gemm_part p = {.m0 = tile_begin(g->m, t->rows, row),
                          .m1 = tile_begin(g->m, t->rows, row + 1),
                          .n0 = tile_begin(g->n, t->cols, col),
                          .n1 = tile_begin(g->n, t->cols, col + 1)};

    if (g->c_type == DTYPE_F32) {
        p.at = (float *)g->c + p.m0 * (size_t)g->n + p.n0;
        p.ld = g->n;
    } else {
        p.ld = p.n1 - p.n0;
        p.at = cpu_thread_memory((p.m1 - p.m0) * p.ld * sizeof *p.at);
    }
    if (t->bf16)
        bf16_tile(g, &p);
    else
        float_tile(t, &p);
    gemm_part_done(g, &p);
}

/* Returns true if oneDNN uses AVX512. The environment can forbid it, even if the processor supports
 * AVX512. */
static bool has_avx512(void)
{
    unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();
    return (isa & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
}

/* Decides which F32 operands are copied or transposed before oneDNN reads them. GEMM_OTHER_COPIES makes the
 * opposite choice for one of the operands. */
static void choose_copies(struct tiling *t, enum gemm_variant variant)
{
    const struct gemm *g = t->g;
    bool enough = g->k >= READS_ENOUGH; /* otherwise the calls are short anyway */

    t->turn_b = g->b_trans;
    t->turn_a = enough && g->a_trans && g->m % FAR_APART == 0 && g->n >= READS_ENOUGH;
    t->copy_b = enough && !g->b_trans && g->n % FAR_APART == 0 && g->m >= READS_ENOUGH;
    bool *other = g->b_trans ? &t->turn_b : g->a_trans ? &t->turn_a : &t->copy_b;
    if (variant == GEMM_OTHER_COPIES)
        *other = !*other;
    /* Widening an operand already makes a copy. */
    t->turn_a &= g->a_type == DTYPE_F32;
    t->turn_b &= g->b_type == DTYPE_F32;
    t->copy_b &= g->b_type == DTYPE_F32;
}

static bool is_small(const struct gemm *g)
{
    return g->m < GEMM_SMALL || g->n < GEMM_SMALL;
}

void gemm_run_variant(const struct gemm *g, enum gemm_variant variant, struct pool *pool)
{
    struct tiling t = {.g = g};

    assert(g->m >= 1 && g->n >= 1 && g->k >= 1);
    assert(!g->accumulate || g->c_type == DTYPE_F32);
    if (is_small(g)) {
        gemm_small_run(g, gemm_small_best(), pool);
        return;
    }
    t.bf16 = variant != GEMM_WIDENED && g->a_type == DTYPE_BF16 && g->b_type == DTYPE_BF16 &&
             gemm_bf16_in_hardware();
    if (has_avx512() && !t.bf16)
        choose_copies(&t, variant);
    choose_tiles(&t);
    pool_run(pool, run_tile, &t, t.rows * t.cols);
}

void gemm_run(const struct gemm *g, struct pool *pool)
{
    gemm_run_variant(g, GEMM_DEFAULT, pool);
}

void cpu_thread_init(void)
{
    omp_set_num_threads(1);
}

static const char *isa_name(bool bf16)
{
    unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();

    if (bf16 && gemm_bf16_in_hardware())
        return (isa & dnnl_cpu_isa_avx512_core_amx) == dnnl_cpu_isa_avx512_core_amx ? "amx_bf16"
                                                                                    : "avx512_bf16";
    if (has_avx512())
        return "avx512";
    if ((isa & dnnl_cpu_isa_avx2) == dnnl_cpu_isa_avx2)
        return "avx2";
    if ((isa & dnnl_cpu_isa_avx) == dnnl_cpu_isa_avx)
        return "avx";
    return "generic";
}

/* The strings that cpu_numerics and cpu_numerics_bf16 return. They are written once, by numerics_once. */
static char numerics[64], numerics_bf16[64];
static pthread_once_t numerics_once = PTHREAD_ONCE_INIT;

static void format_numerics(void)
{
    const dnnl_version_t *v = dnnl_version();
    snprintf(numerics, sizeof numerics, "%s oneDNN %d.%d.%d", isa_name(false), v->major, v->minor, v->patch);
    snprintf(numerics_bf16, sizeof numerics_bf16, "%s oneDNN %d.%d.%d", isa_name(true), v->major, v->minor,
             v->patch);
}

const char *cpu_numerics(void)
{
    pthread_once(&numerics_once, format_numerics);
    return numerics;
}

const char *cpu_numerics_bf16(void)
{
    pthread_once(&numerics_once, format_numerics);
    return numerics_bf16;
}
