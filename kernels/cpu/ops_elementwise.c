/* The ops for activations and dropout. Each element of the result depends on one element of the input, so
 * the bits do not depend on how the work is cut into pieces or vectors. Any thread may call these
 * functions. */
#include <assert.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/cpu/as_floats.h"
#include "kernels/cpu/ops.h"
#include "kernels/vmath.h"

/* Defines a function with the loop y = act(x) for one activation. Each activation has its own loop, so that
 * the compiler can turn it into vector code. `y` may be equal to `x`. */
#define FORWARD(name, function)                                                                              \
    CPU_CLONES static void name(const float *x, float *y, size_t n)                                          \
    {                                                                                                        \
        CPU_INDEPENDENT                                                                                      \
        for (size_t i = 0; i < n; i++)                                                                       \
            y[i] = function(x[i]);                                                                           \
    }

FORWARD(relu_fwd, vmath_relu)
FORWARD(gelu_fwd, vmath_gelu)
FORWARD(tanh_fwd, vmath_tanh)
FORWARD(gelu_erf_fwd, vmath_gelu_erf)
FORWARD(silu_fwd, vmath_silu)

/* Defines a function with the loop dx = dy * act'(x) for one activation. `dx` may be equal to `dy`. */
#define BACKWARD(name, expression)                                                                           \
    CPU_CLONES static void name(const float *x, const float *dy, float *dx, size_t n)                        \
    {                                                                                                        \
        CPU_INDEPENDENT                                                                                      \
        for (size_t i = 0; i < n; i++)                                                                       \
            dx[i] = expression;                                                                              \
    }

BACKWARD(relu_bwd, x[i] <= 0.0f ? 0.0f : dy[i])
BACKWARD(gelu_bwd, dy[i] * vmath_gelu_slope(x[i]))
BACKWARD(tanh_bwd, dy[i] * vmath_tanh_slope(x[i]))
BACKWARD(gelu_erf_bwd, dy[i] * vmath_gelu_erf_slope(x[i]))
BACKWARD(silu_bwd, dy[i] * vmath_silu_slope(x[i]))

void cpu_act_fwd(enum act act, const float *x, float *y, size_t n)
{
    switch (act) {
    case ACT_NONE:
        memmove(y, x, n * sizeof *y);
        break;
    case ACT_RELU:
        relu_fwd(x, y, n);
        break;
    case ACT_GELU:
        gelu_fwd(x, y, n);
        break;
    case ACT_TANH:
        tanh_fwd(x, y, n);
        break;
    case ACT_GELU_ERF:
        gelu_erf_fwd(x, y, n);
        break;
    case ACT_SILU:
        silu_fwd(x, y, n);
        break;
    case ACT_COUNT:
        assert(!"no such activation");
    }
}

static void act_fwd_piece(void *ctx, uint32_t i)
{
    const struct op_act_fwd *o = ctx;
    uint64_t at = piece_begin(i), end = at + piece_size(i, o->n);
    float x_buffer[FLOATS_BLOCK], y_buffer[FLOATS_BLOCK];

    for (size_t n; at < end; at += n) {
        n = floats_span(o->dtype, end - at);
        const float *x = floats_in(o->dtype, o->x, at, n, x_buffer);
        float *y = floats_out(o->dtype, o->y, at, y_buffer);
        cpu_act_fwd(o->act, x, y, n);
        floats_store(o->dtype, y, o->y, at, n);
    }
}

void cpu_op_act_fwd(const struct op_call *call, struct pool *pool)
{
    struct op_act_fwd o = call->act_fwd;
    pool_run(pool, act_fwd_piece, &o, piece_count(o.n));
}

void cpu_act_bwd(enum act act, const float *x, const float *dy, float *dx, size_t n)
{
    switch (act) {
    case ACT_NONE:
        memmove(dx, dy, n * sizeof *dx);
        break;
    case ACT_RELU:
        relu_bwd(x, dy, dx, n);
        break;
    case ACT_GELU:
        gelu_bwd(x, dy, dx, n);
        break;
    case ACT_TANH:
        tanh_bwd(x, dy, dx, n);
        break;
    case ACT_GELU_ERF:
        gelu_erf_bwd(x, dy, dx, n);
        break;
    case ACT_SILU:
        silu_bwd(x, dy, dx, n);
        break;
    case ACT_COUNT:
        assert(!"no such activation");
    }
}

static void act_bwd_piece(void *ctx, uint32_t i)
{
    const struct op_act_bwd *o = ctx;
    uint64_t at = piece_begin(i), end = at + piece_size(i, o->n);
    float x_buffer[FLOATS_BLOCK], dy_buffer[FLOATS_BLOCK], dx_buffer[FLOATS_BLOCK];

    for (size_t n; at < end; at += n) {
        n = floats_span(o->dtype, end - at);
        const float *x = floats_in(o->dtype, o->x, at, n, x_buffer),
                    *dy = floats_in(o->dtype, o->dy, at, n, dy_buffer);
        float *dx = floats_out(o->dtype, o->dx, at, dx_buffer);
        cpu_act_bwd(o->act, x, dy, dx, n);
        floats_store(o->dtype, dx, o->dx, at, n);
    }
}

void cpu_op_act_bwd(const struct op_call *call, struct pool *pool)
{
    struct op_act_bwd o = call->act_bwd;
    pool_run(pool, act_bwd_piece, &o, piece_count(o.n));
}

/* BLOCKS is the number of blocks of the Philox random generator that are computed together, in vector code.
 * Each block gives 4 random numbers, so BLOCKS blocks give the numbers for SPAN elements. */
#define BLOCKS 32
#define SPAN   ((size_t)4 * BLOCKS)

/* Computes BLOCKS blocks of the Philox random generator. Block `b` is rng_philox(seed, block + b, q, c2, c3),
 * and word `w` of this block goes to bits[4 * b + w]. The inner loops are over the blocks, so that the
 * compiler can vectorize them. */
CPU_INLINE void philox_span(uint64_t seed, uint32_t block, uint32_t q, uint32_t c2, uint32_t c3,
                            uint32_t bits[SPAN])
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t v0[BLOCKS], v1[BLOCKS], v2[BLOCKS], v3[BLOCKS];

    for (uint32_t b = 0; b < BLOCKS; b++) {
        v0[b] = block + b;
        v1[b] = q;
        v2[b] = c2;
        v3[b] = c3;
    }
    for (int round = 0; round < 10; round++) {
        for (uint32_t b = 0; b < BLOCKS; b++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * v0[b], p1 = (uint64_t)0xCD9E8D57u * v2[b];
            v0[b] = (uint32_t)(p1 >> 32) ^ v1[b] ^ k0;
            v2[b] = (uint32_t)(p0 >> 32) ^ v3[b] ^ k1;
            v1[b] = (uint32_t)p1;
            v3[b] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (size_t b = 0; b < BLOCKS; b++) {
        bits[4 * b] = v0[b];
        bits[4 * b + 1] = v1[b];
        bits[4 * b + 2] = v2[b];
        bits[4 * b + 3] = v3[b];
    }
}

/* Applies dropout to `n` elements of one row. The first of them is element number `first` of its row, and
 * `first` is a multiple of SPAN. `y` may be equal to `x`. */
CPU_CLONES static void dropout_row(const float *x, float *y, size_t n, size_t first, float p, uint64_t seed,
                                   uint32_t q, uint32_t c2, uint32_t c3)
{
    uint32_t bits[SPAN];
    float keep = 1.0f - p;

    for (size_t e0 = 0; e0 < n; e0 += SPAN) {
        size_t width = n - e0 < SPAN ? n - e0 : SPAN;
        philox_span(seed, (uint32_t)((first + e0) / 4), q, c2, c3, bits);
        CPU_INDEPENDENT
        for (size_t e = 0; e < width; e++) {
            float u = (float)(int32_t)(bits[e] >> 8) * 0x1p-24f; /* as in rng_unit */
            y[e0 + e] = u >= p ? x[e0 + e] / keep : 0.0f;
        }
    }
}

/* Sets keep[i] to 1 if dropout keeps element i, and to 0 otherwise, for all i < n. The random numbers come in
 * quads (groups of four). The first quad has the number `quad`, and its first `skip` numbers are not used. */
CPU_CLONES static void keep_span(float *restrict keep, size_t n, float p, uint64_t seed, uint64_t quad,
                                 size_t skip, uint32_t q, uint32_t c2, uint32_t c3)
{
    uint32_t bits[SPAN];

    philox_span(rng_quad_key(seed, quad), (uint32_t)quad, q, c2, c3, bits);
    for (size_t i = 0; i < n; i++) {
        float u = (float)(int32_t)(bits[skip + i] >> 8) * 0x1p-24f; /* as in rng_unit */
        keep[i] = u >= p ? 1.0f : 0.0f;
    }
}

void cpu_dropout_keep(const struct cpu_dropout *d, uint64_t first, float *keep, size_t n)
{
    for (size_t done = 0; done < n;) {
        uint64_t quad = (first + done) / 4;
        /* The number of quads that use the same key of the random generator, counted from quad number `quad`.
         * The key changes after every 2^32 quads. */
        uint64_t same_key = (UINT64_C(1) << 32) - (uint32_t)quad;
        size_t skip = (first + done) % 4, span = same_key < BLOCKS ? 4 * (size_t)same_key : SPAN;
        size_t count = n - done < span - skip ? n - done : span - skip;
        keep_span(keep + done, count, d->p, d->step->seed, quad, skip, d->q, rng_word2(RNG_SCORES, d->layer),
                  (uint32_t)d->step->step);
        done += count;
    }
}

struct dropout_ctx {
    const struct op_dropout *o;
    const struct step_args *step;
    uint32_t rows_per_piece;
};

_Static_assert(FLOATS_BLOCK % SPAN == 0, "a block of elements begins with a whole span");

/* Applies dropout to row number `r` of a call. */
static void drop_elements(const struct dropout_ctx *d, uint32_t r)
{
    const struct op_dropout *o = d->o;
    float x_buffer[FLOATS_BLOCK], y_buffer[FLOATS_BLOCK];

    for (size_t e = 0, n; e < o->n; e += n) {
        const uint64_t at = (uint64_t)r * o->n + e;
        n = floats_span(o->dtype, o->n - e);
        const float *x = floats_in(o->dtype, o->x, at, n, x_buffer);
        float *y = floats_out(o->dtype, o->y, at, y_buffer);
        dropout_row(x, y, n, e, o->p, d->step->seed, o->first_row + r, rng_word2(RNG_DROPOUT, o->layer),
                    (uint32_t)d->step->step);
        floats_store(o->dtype, y, o->y, at, n);
    }
}

static void dropout_piece(void *ctx, uint32_t i)
{
    const struct dropout_ctx *d = ctx;
    const struct op_dropout *o = d->o;
    uint32_t r0 = i * d->rows_per_piece;
    uint32_t rows = o->rows - r0 < d->rows_per_piece ? o->rows - r0 : d->rows_per_piece;

    for (uint32_t r = r0; r < r0 + rows; r++)
        drop_elements(d, r);
}

void cpu_op_dropout(const struct op_call *call, struct pool *pool)
{
    const struct op_dropout *o = &call->dropout;

    if (!call->step->training) {
        if (o->x != o->y)
            memcpy(o->y, o->x, (size_t)o->rows * o->n * dtype_size(o->dtype));
        return;
    }
    struct dropout_ctx d = {o, call->step, o->n < PIECE / 4 ? PIECE / 4 / o->n : 1};
    pool_run(pool, dropout_piece, &d, o->rows / d.rows_per_piece + (o->rows % d.rows_per_piece != 0));
}
