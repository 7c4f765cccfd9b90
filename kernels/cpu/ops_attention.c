/* Attention, forward and backward.
 *
 * A task is a sample and one of its key heads, with the query heads that use it: no sum crosses tasks, so it does not matter
 * who runs one. They are handed out to at most ATTENTION_LANES lanes; the scratch is the lane's.
 *
 * Why this way: with all operands copied once into padded rows, each product (scores, outputs, and five in the backward
 * pass) is the same small kernel (gemm_rows), the key heads' part of the copies stays in the second level cache, what the
 * causal mask cuts off is left out by a step of 8 rows, and the bits are the same on every instruction set but for
 * the C library's log:
 *
 *   q' = q * scale, scale = 1 / sqrt(head) rounded to float; score = q' . k, one chain of fused multiply-adds
 *   forward:  max over the row; e = exp(score - max) (vmath.h); sum = of e in 16 lanes, folded in halves
 *             lse = max + log(sum), in double, rounded
 *             y = (sum over blocks of ATTENTION_KEYS keys, each a chain, of keep * e * v) * (keep_scale / sum)
 *   backward: dy' = dy * keep_scale, D = sum of dy * y in 16 lanes; P = exp(score - lse)
 *             dS = P * (keep * (dy' . v) - D)
 *             dq = (sum over blocks of keys of dS * k) * scale; dk = sum over strips of ATTENTION_QUERIES queries, each a chain,
 *             of dS * q', head after head; dv likewise of keep * P * dy'
 *
 * keep is 1 or 0, and keep_scale 1 / (1 - p); without dropout both are 1. A forward lane holds the scores of a strip of
 * queries, since a row's maximum comes first; a backward lane a block of them.
 *
 * Any thread.
 */
#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/vmath.h"

#define LANES   16 /* of a sum */
#define KEYS    ATTENTION_KEYS
#define QUERIES ATTENTION_QUERIES
#define LINE    16 /* floats of a line of a cache */
#define AHEAD   8  /* rows: tokens are far apart, and no processor guesses the next by itself */

/* What both passes have, and what follows from it. */
struct attention {
    const struct step_args *step;
    const float *qkv;
    uint32_t rows, seq, heads, kv_heads, head;
    uint32_t layer, first_row;
    float p;          /* 0: nothing is dropped */
    float scale;      /* of the queries */
    float keep_scale; /* 1 / (1 - p) */
    uint32_t group;   /* query heads to a key head */
    uint32_t keys;    /* seq, padded */
    size_t width;     /* of head, padded */
    size_t token;     /* from token to token in qkv */
    enum gemm_isa isa;
};

/* One call, shared by its lanes. */
struct run {
    struct attention a;
    const struct op_attention_fwd *fwd; /* one of the two */
    const struct op_attention_bwd *bwd;
    float *scratch;
    uint32_t tasks;
    _Atomic uint32_t next; /* task that nobody has taken */
};

/* Where a task works. */
struct place {
    const struct run *run;
    uint32_t r, kv; /* sample, key head */
    float *k, *v;   /* [keys][width]; forward has no k, backward no v */
    float *kt, *vt; /* transposed, in blocks of KEYS keys: [head][keys of the block]; forward has no vt */
    float *dk, *dv;
    float *q, *dy, *out; /* of a strip, [queries][width]; forward has no dy */
    float *s, *ds;       /* scores, and their gradient; forward has none */
    size_t ld;           /* of both */
};

static uint32_t round_up(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* ---- copies ---- */

CPU_CLONES static void copy_scaled(float *restrict to, const float *restrict from, size_t n, float factor)
{
    for (size_t i = 0; i < n; i++)
        to[i] = from[i] * factor;
}

/* `rows` rows of a head into rows of `width`, padded with zeros to a multiple of `multiple` rows. */
static void copy_rows(const struct attention *a, float *to, const float *from, size_t ld, uint32_t rows, uint32_t multiple,
                      float factor)
{
    for (uint32_t i = 0; i < rows; i++, to += a->width, from += ld) {
        for (uint32_t d = 0; i + AHEAD < rows && d < a->head; d += LINE)
            __builtin_prefetch(from + AHEAD * ld + d);
        copy_scaled(to, from, a->head, factor);
        memset(to + a->head, 0, (a->width - a->head) * sizeof *to);
    }
    memset(to, 0, (round_up(rows, multiple) - rows) * a->width * sizeof *to);
}

static void copy_rows_back(const struct attention *a, float *to, size_t ld, const float *from, uint32_t rows)
{
    for (uint32_t i = 0; i < rows; i++)
        memcpy(to + i * ld, from + i * a->width, a->head * sizeof *to);
}

CPU_CLONES static void transpose_group(float *restrict to, size_t ld, const float *restrict from, size_t width, uint32_t n)
{
    for (uint32_t d = 0; d < n; d++)
        for (int l = 0; l < LANES; l++)
            to[d * ld + l] = from[l * width + d];
}

/* Keys in one block of the transposed copy. */
static uint32_t block_keys(const struct attention *a, uint32_t first)
{
    return least(a->keys - first, KEYS);
}

/* From padded rows. */
static void transpose(const struct attention *a, float *to, const float *from)
{
    for (uint32_t first = 0; first < a->keys; first += KEYS) {
        uint32_t n = block_keys(a, first);
        for (uint32_t i = 0; i < n; i += LANES)
            transpose_group(to + (size_t)first * a->head + i, n, from + (first + i) * a->width, a->width, a->head);
    }
}

/* In qkv, of a token of sample r: query head h, or with h >= heads the keys, then the values. */
static size_t head_at(const struct attention *a, uint32_t r, uint32_t token, uint32_t h)
{
    return ((size_t)r * a->seq + token) * a->token + (size_t)h * a->head;
}

/* In y and dy. */
static size_t y_at(const struct attention *a, uint32_t r, uint32_t token, uint32_t h)
{
    return (((size_t)r * a->seq + token) * a->heads + h) * a->head;
}

static size_t lse_at(const struct attention *a, uint32_t r, uint32_t token, uint32_t h)
{
    return ((size_t)r * a->heads + h) * a->seq + token;
}

static void copy_head(const struct place *p, float *to, uint32_t h)
{
    const struct attention *a = &p->run->a;
    copy_rows(a, to, a->qkv + head_at(a, p->r, 0, h), a->token, a->seq, LANES, 1.0f);
}

/* ---- products: queries q0.. of a strip (`rows` of them) against the block of keys at `first` ---- */

/* Keys of the block that the group of queries at q0 + i sees, or some of its. */
static uint32_t seen_keys(const struct attention *a, uint32_t q0, uint32_t i, uint32_t first)
{
    return least(least(a->seq, q0 + i + GEMM_ROWS) - first, KEYS);
}

/* The first group of queries that sees any. */
static uint32_t first_group(uint32_t q0, uint32_t first)
{
    return first > q0 ? first - q0 : 0;
}

/* to[rows][ld] = x[rows][width] * transposed block of keys or values, as far as somebody sees them. */
static void multiply_transposed(const struct attention *a, const float *x, const float *block, float *to, size_t ld, uint32_t q0,
                                uint32_t rows, uint32_t first)
{
    for (uint32_t i = first_group(q0, first); i < rows; i += GEMM_ROWS)
        gemm_rows_run(&(struct gemm_rows){.a = x + i * a->width,
                                          .b = block + (size_t)first * a->head,
                                          .c = to + i * ld,
                                          .a_i = a->width,
                                          .a_k = 1,
                                          .ldb = block_keys(a, first),
                                          .ldc = ld,
                                          .n = round_up(seen_keys(a, q0, i, first), LANES),
                                          .k = a->head},
                      a->isa);
}

/* out[rows][width] = or += s[rows][ld] * keys or values of the block. */
static void multiply_rows(const struct attention *a, const float *s, size_t ld, const float *x, float *out, uint32_t q0,
                          uint32_t rows, uint32_t first)
{
    for (uint32_t i = first_group(q0, first); i < rows; i += GEMM_ROWS)
        gemm_rows_run(&(struct gemm_rows){.a = s + i * ld,
                                          .b = x + first * a->width,
                                          .c = out + i * a->width,
                                          .a_i = ld,
                                          .a_k = 1,
                                          .ldb = a->width,
                                          .ldc = a->width,
                                          .n = (uint32_t)a->width,
                                          .k = seen_keys(a, q0, i, first),
                                          .accumulate = first > 0},
                      a->isa);
}

/* dx (of keys or values) += s[rows][ld]^T * x[rows][width]; queries before a key do not see it. */
static void add_transposed(const struct attention *a, const float *s, size_t ld, const float *x, float *dx, uint32_t q0,
                           uint32_t rows, uint32_t first)
{
    uint32_t n = least(q0 + rows - first, KEYS);

    for (uint32_t j = 0; j < n; j += GEMM_ROWS) {
        uint32_t skip = first + j > q0 ? first + j - q0 : 0;
        gemm_rows_run(&(struct gemm_rows){.a = s + skip * ld + j,
                                          .b = x + skip * a->width,
                                          .c = dx + (first + j) * a->width,
                                          .a_i = 1,
                                          .a_k = ld,
                                          .ldb = a->width,
                                          .ldc = a->width,
                                          .n = (uint32_t)a->width,
                                          .k = rows - skip,
                                          .accumulate = true},
                      a->isa);
    }
}

/* ---- rows of scores ---- */

CPU_INLINE float fold(float lane[LANES])
{
    for (int w = LANES / 2; w > 0; w /= 2)
        for (int l = 0; l < w; l++)
            lane[l] = lane[l] + lane[l + w];
    return lane[0];
}

/* The n scores of a row, a multiple of LANES. NaN is passed over here and comes back in the sum. */
CPU_CLONES static float row_max(const float *x, size_t n)
{
    float lane[LANES];

    for (int l = 0; l < LANES; l++)
        lane[l] = -INFINITY;
    for (size_t i = 0; i < n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    for (int w = LANES / 2; w > 0; w /= 2)
        for (int l = 0; l < w; l++)
            lane[l] = lane[l + w] > lane[l] ? lane[l + w] : lane[l];
    return lane[0];
}

CPU_CLONES static float row_exp(float *x, size_t n, float max)
{
    float lane[LANES] = {0};

    for (size_t i = 0; i < n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float e = vmath_exp(x[i + l] - max);
            x[i + l] = e;
            lane[l] = lane[l] + e;
        }
    return fold(lane);
}

CPU_CLONES static float row_dot(const float *restrict x, const float *restrict y, size_t n)
{
    float lane[LANES] = {0};
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] = lane[l] + x[i + l] * y[i + l];
    for (size_t l = 0; i + l < n; l++)
        lane[l] = lane[l] + x[i + l] * y[i + l];
    return fold(lane);
}

CPU_CLONES static void multiply(float *restrict x, const float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = x[i] * y[i];
}

/* keep[n] of the keys from `first` on, of query q of head h. */
static void keep_keys(const struct place *p, uint32_t h, uint32_t q, uint32_t first, float *keep, uint32_t n)
{
    const struct attention *a = &p->run->a;
    const struct cpu_dropout d = {a->step, a->layer, a->first_row + p->r, a->p};
    cpu_dropout_keep(&d, ((uint64_t)h * a->seq + q) * a->seq + first, keep, n);
}

/* Row q of the scores becomes keep * e, with zeros up to a whole vector. Returns what its output is multiplied with. */
static float soften_row(const struct place *p, float *s, uint32_t h, uint32_t q, float *lse)
{
    const struct attention *a = &p->run->a;
    uint32_t n = q + 1, whole = round_up(n, LANES);

    for (uint32_t k = n; k < whole; k++)
        s[k] = -INFINITY; /* e^-80 in a sum that is at least 1 */
    float max = row_max(s, whole), sum = row_exp(s, whole, max);
    memset(s + n, 0, (whole - n) * sizeof *s);
    *lse = (float)((double)max + log((double)sum));
    for (uint32_t first = 0; a->p > 0.0f && first < n; first += KEYS) {
        float keep[KEYS];
        uint32_t some = least(n - first, KEYS);
        keep_keys(p, h, q, first, keep, some);
        multiply(s + first, keep, some);
    }
    return a->keep_scale / sum;
}

/* ---- forward ---- */

static void fwd_strip(const struct place *p, uint32_t h, uint32_t q0, uint32_t rows)
{
    const struct attention *a = &p->run->a;
    const struct op_attention_fwd *o = p->run->fwd;
    float *lse = o->lse + lse_at(a, p->r, q0, h), factor[ATTENTION_STRIP];

    copy_rows(a, p->q, a->qkv + head_at(a, p->r, q0, h), a->token, rows, GEMM_ROWS, a->scale);
    for (uint32_t first = 0; first < q0 + rows; first += KEYS)
        multiply_transposed(a, p->q, p->kt, p->s + first, p->ld, q0, rows, first);
    for (uint32_t i = 0; i < rows; i++)
        factor[i] = soften_row(p, p->s + i * p->ld, h, q0 + i, &lse[i]);
    for (uint32_t first = 0; first < q0 + rows; first += KEYS)
        multiply_rows(a, p->s + first, p->ld, p->v, p->out, q0, rows, first);
    for (uint32_t i = 0; i < rows; i++)
        copy_scaled(o->y + y_at(a, p->r, q0 + i, h), p->out + i * a->width, a->head, factor[i]);
}

/* Pieces of a lane's scratch, each a multiple of a vector. */
static float *take(float **at, size_t n)
{
    float *piece = *at;
    *at += n;
    return piece;
}

static void fwd_task(struct place *p, float *at)
{
    const struct attention *a = &p->run->a;
    size_t all = a->keys * a->width;
    uint32_t strip = attention_strip(a->seq);

    p->kt = take(&at, all);
    p->v = take(&at, all);
    p->q = take(&at, strip * a->width);
    p->out = take(&at, strip * a->width);
    p->ld = a->keys + LANES; /* rows a power of two apart would share the same lines of a cache */
    p->s = at;

    copy_head(p, p->v, a->heads + p->kv);
    transpose(a, p->kt, p->v);
    copy_head(p, p->v, a->heads + a->kv_heads + p->kv);
    for (uint32_t h = p->kv * a->group; h < (p->kv + 1) * a->group; h++)
        for (uint32_t q0 = 0; q0 < a->seq; q0 += strip)
            fwd_strip(p, h, q0, least(a->seq - q0, strip));
}

/* ---- backward ---- */

/* What is known of the queries of a strip. */
struct queries {
    uint32_t h, q0, rows;
    const float *lse;
    float d[QUERIES]; /* sums of dy * y */
};

/* A row of scores and of dy' . v, n of each, a multiple of LANES, become P and dS. */
CPU_CLONES static void row_gradient(float *restrict s, float *restrict ds, size_t n, float lse, float d)
{
    for (size_t i = 0; i < n; i++) {
        float e = vmath_exp(s[i] - lse);
        s[i] = e;
        ds[i] = e * (ds[i] - d);
    }
}

/* With dropout: keep * P. */
CPU_CLONES static void row_gradient_kept(float *restrict s, float *restrict ds, const float *restrict keep, size_t n, float lse,
                                         float d)
{
    for (size_t i = 0; i < n; i++) {
        float e = vmath_exp(s[i] - lse);
        s[i] = e * keep[i];
        ds[i] = e * (keep[i] * ds[i] - d);
    }
}

/* The scores of a block and their gradients, with zeros where a query does not see a key of its last vector. */
static void block_gradient(const struct place *p, const struct queries *q, uint32_t first)
{
    float keep[KEYS] = {0};

    for (uint32_t i = first_group(q->q0, first); i < q->rows; i++) {
        uint32_t n = least(q->q0 + i + 1 - first, KEYS), whole = round_up(n, LANES);
        float *s = p->s + i * p->ld, *ds = p->ds + i * p->ld;
        if (p->run->a.p > 0.0f) {
            keep_keys(p, q->h, q->q0 + i, first, keep, n);
            row_gradient_kept(s, ds, keep, whole, q->lse[i], q->d[i]);
        } else
            row_gradient(s, ds, whole, q->lse[i], q->d[i]);
        memset(s + n, 0, (whole - n) * sizeof *s);
        memset(ds + n, 0, (whole - n) * sizeof *ds);
    }
}

static void bwd_block(const struct place *p, const struct queries *q, uint32_t first)
{
    const struct attention *a = &p->run->a;

    multiply_transposed(a, p->q, p->kt, p->s, p->ld, q->q0, q->rows, first);
    multiply_transposed(a, p->dy, p->vt, p->ds, p->ld, q->q0, q->rows, first);
    block_gradient(p, q, first);
    add_transposed(a, p->s, p->ld, p->dy, p->dv, q->q0, q->rows, first);
    add_transposed(a, p->ds, p->ld, p->q, p->dk, q->q0, q->rows, first);
    multiply_rows(a, p->ds, p->ld, p->k, p->out, q->q0, q->rows, first);
}

static void bwd_strip(const struct place *p, uint32_t h, uint32_t q0, uint32_t rows)
{
    const struct attention *a = &p->run->a;
    const struct op_attention_bwd *o = p->run->bwd;
    size_t at = y_at(a, p->r, q0, h), y_token = (size_t)a->heads * a->head;
    struct queries q = {h, q0, rows, o->lse + lse_at(a, p->r, q0, h), {0}};

    copy_rows(a, p->q, a->qkv + head_at(a, p->r, q0, h), a->token, rows, GEMM_ROWS, a->scale);
    copy_rows(a, p->dy, o->dy + at, y_token, rows, GEMM_ROWS, a->keep_scale);
    for (uint32_t i = 0; i < rows; i++)
        q.d[i] = row_dot(o->dy + at + i * y_token, o->y + at + i * y_token, a->head);
    for (uint32_t first = 0; first < q0 + rows; first += KEYS)
        bwd_block(p, &q, first);
    for (uint32_t i = 0; i < rows; i++)
        copy_scaled(o->dqkv + head_at(a, p->r, q0 + i, h), p->out + i * a->width, a->head, a->scale);
}

static void bwd_task(struct place *p, float *at)
{
    const struct attention *a = &p->run->a;
    size_t all = a->keys * a->width;
    uint32_t strip = least(round_up(a->seq, GEMM_ROWS), QUERIES), k = a->heads + p->kv, v = k + a->kv_heads;
    float *dqkv = p->run->bwd->dqkv;

    p->kt = take(&at, all);
    p->vt = take(&at, all);
    p->k = take(&at, all);
    p->dk = take(&at, all);
    p->dv = take(&at, all);
    p->q = take(&at, strip * a->width);
    p->dy = take(&at, strip * a->width);
    p->out = take(&at, strip * a->width);
    p->ld = least(a->keys, KEYS) + LANES;
    p->s = take(&at, strip * p->ld);
    p->ds = at;

    copy_head(p, p->k, v);
    transpose(a, p->vt, p->k);
    copy_head(p, p->k, k);
    transpose(a, p->kt, p->k);
    memset(p->dk, 0, all * sizeof *p->dk);
    memset(p->dv, 0, all * sizeof *p->dv);
    for (uint32_t h = p->kv * a->group; h < (p->kv + 1) * a->group; h++)
        for (uint32_t q0 = 0; q0 < a->seq; q0 += strip)
            bwd_strip(p, h, q0, least(a->seq - q0, strip));
    copy_rows_back(a, dqkv + head_at(a, p->r, 0, k), a->token, p->dk, a->seq);
    copy_rows_back(a, dqkv + head_at(a, p->r, 0, v), a->token, p->dv, a->seq);
}

/* ---- calls ---- */

static void set_shape(struct attention *a)
{
    assert(a->heads % a->kv_heads == 0);
    if (!a->step->training)
        a->p = 0.0f;
    a->scale = (float)(1.0 / sqrt((double)a->head));
    a->keep_scale = 1.0f / (1.0f - a->p);
    a->group = a->heads / a->kv_heads;
    a->keys = round_up(a->seq, LANES);
    a->width = round_up(a->head, LANES);
    a->token = ((size_t)a->heads + 2 * a->kv_heads) * a->head;
    a->isa = gemm_small_best();
}

static float *align_line(float *p)
{
    return (float *)(((uintptr_t)p + 63) / 64 * 64);
}

static void run_lane(void *ctx, uint32_t lane)
{
    struct run *run = ctx;
    float *scratch = align_line(run->scratch + lane * attention_lane(run->a.seq, run->a.head));

    for (;;) {
        uint32_t task = atomic_fetch_add_explicit(&run->next, 1, memory_order_relaxed);
        struct place p = {.run = run, .r = task / run->a.kv_heads, .kv = task % run->a.kv_heads};
        if (task >= run->tasks)
            return;
        if (run->fwd)
            fwd_task(&p, scratch);
        else
            bwd_task(&p, scratch);
    }
}

static void run_lanes(struct run *run, struct pool *pool)
{
    set_shape(&run->a);
    run->tasks = run->a.rows * run->a.kv_heads;
    pool_run(pool, run_lane, run, least(run->tasks, ATTENTION_LANES));
}

void cpu_op_attention_fwd(const struct op_call *call, struct pool *pool)
{
    const struct op_attention_fwd *o = &call->attention_fwd;
    struct run run = {.a = {call->step, o->qkv, o->rows, o->seq, o->heads, o->kv_heads, o->head, o->layer, o->first_row, o->p},
                      .fwd = o,
                      .scratch = o->scratch};
    run_lanes(&run, pool);
}

void cpu_op_attention_bwd(const struct op_call *call, struct pool *pool)
{
    const struct op_attention_bwd *o = &call->attention_bwd;
    struct run run = {.a = {call->step, o->qkv, o->rows, o->seq, o->heads, o->kv_heads, o->head, o->layer, o->first_row, o->p},
                      .bwd = o,
                      .scratch = o->scratch};
    run_lanes(&run, pool);
}
