/* Attention, forward and backward.
 *
 * A task is one sample and one of its key heads, with the query heads that use this key head. No sum
 * crosses tasks, so any thread may run any task. The task works in the thread's own memory.
 *
 * The operands are copied into padded rows. Then each product (two forward, five backward) is a few calls
 * of one small kernel, gemm_rows. The copies of a task stay in the second-level cache, and scores that the
 * causal mask hides are skipped in steps of 8 queries. The copies, the scores and all sums are floats. 16-bit
 * elements are widened when they are copied in and rounded when they are copied out. Apart from the C
 * library's log, each element has one definition on every instruction set:
 *
 *     score:    (q * scale) . k, one chain of fused multiply-adds; scale = 1 / sqrt(head), rounded to float
 *     forward:  e = exp(score - max) (vmath.h); sum = sum of e, in 16 lanes that are folded in halves
 *               lse = max + log(sum), in double, then rounded
 *               y = (sum over blocks of KEYS keys, each a chain, of keep * e * v) * (keep_scale / sum)
 *     backward: P = exp(score - lse), dy' = dy * keep_scale, D = sum of dy * y, in 16 lanes
 *               dS = P * (keep * (dy' . v) - D)
 *               dq = (sum over blocks of keys, each a chain, of dS * k) * scale
 *               dk = sum over strips of QUERIES queries, each a chain, head after head, of dS * (q * scale)
 *               dv = the same sum of keep * P * dy'
 *
 * keep is 1 or 0, and keep_scale is 1 / (1 - p). Without dropout both are 1. A forward task holds the
 * scores of a strip of queries with all keys, because it needs the maximum first. A backward task holds
 * the scores of a strip with one block of keys.
 *
 * Any thread may call these functions.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/as_floats.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/transpose.h"
#include "kernels/vmath.h"

#define LANES 16 /* width of a vector and a sum */
/* The largest number of queries whose scores are in memory at the same time, in a task of the forward
 * pass. */
#define STRIP 128
/* The backward pass works on strips of QUERIES queries and blocks of KEYS keys. Changing one of these numbers
 * changes the order of additions, and with it the bits of the result. */
#define QUERIES 64
#define KEYS    128

/* Every block of keys begins at the first token of a strip of queries. Under the causal mask, either all
 * queries of a strip see the first key of a block, or none of them does. */
_Static_assert(KEYS % STRIP == 0 && STRIP % QUERIES == 0, "a block begins where a strip begins");
_Static_assert(QUERIES % GEMM_ROWS == 0, "strips are padded to whole groups of rows");

/* The arguments of an attention op, and values that are computed from them. Forward and backward pass use the
 * same struct. */
struct cpu_attention {
    const struct step_args *step;
    const void *qkv;
    enum dtype dtype; /* of qkv, y and their gradients */
    uint32_t rows, seq, heads, kv_heads, head;
    uint32_t layer, first_row, first_head;
    float p; /* 0 if there is no dropout */
    float scale, keep_scale;
    uint32_t group; /* query heads per key head */
    uint32_t keys;  /* seq, rounded up to LANES */
    size_t width;   /* elements of a head, with padding */
    size_t token;   /* distance between two tokens in qkv */
    enum gemm_isa isa;
};

/* The arguments of one call of an attention op, forward or backward. All tasks of the call share this
 * struct. */
struct attention_run {
    struct cpu_attention a;
    const struct op_attention_fwd *fwd; /* one of fwd and bwd is NULL */
    const struct op_attention_bwd *bwd;
};

/* A task is the work on one key head of one sample, including the query heads that use this key head. The
 * struct also has the memory of the task. */
struct attention_task {
    const struct attention_run *run;
    uint32_t r, kv; /* number of the sample and key head */
    /* The keys and the values of the task, each an array [keys][width]. Only the backward pass uses `k`, and
     * only the forward pass uses `v`. */
    float *k, *v;
    /* The transposed keys and the transposed values. Each block of KEYS keys is stored as a matrix with one
     * row for each element of the head and one column for each key. Only the backward pass uses `vt`. */
    float *kt, *vt;
    /* The gradients of the keys and of the values. Only the backward pass uses them. */
    float *dk, *dv;
    /* The queries of a strip, the gradients dy of their outputs, and their results. Each is an array
     * [queries][width]. Only the backward pass uses `dy`. */
    float *q, *dy, *out;
    float *score, *dscore; /* [queries][ld]; dscore is backward only */
    size_t ld;
};

/* A strip of queries: consecutive queries of one head. The scores of the strip are computed together. */
struct query_strip {
    uint32_t h, q0, rows; /* head, first query, number of queries */
    const float *lse;     /* backward only: lse of these queries */
    /* In the forward pass, the output of query i is multiplied by factor[i]. In the backward pass, factor[i]
     * is the sum D of query i in the formulas at the top of this file. */
    float factor[STRIP];
};

static uint32_t round_up(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* qkv_at, y_at and lse_at return the index where head `h` of a token begins in the arrays qkv, y and lse. In
 * qkv, each token has its query heads first, then its key heads, then its value heads. */
static size_t qkv_at(const struct cpu_attention *a, uint32_t r, uint32_t token, uint32_t h)
{
    return ((size_t)r * a->seq + token) * a->token + (size_t)h * a->head;
}

static size_t y_at(const struct cpu_attention *a, uint32_t r, uint32_t token, uint32_t h)
{
    return (((size_t)r * a->seq + token) * a->heads + h) * a->head;
}

static size_t lse_at(const struct cpu_attention *a, uint32_t r, uint32_t token, uint32_t h)
{
    return ((size_t)r * a->heads + h) * a->seq + token;
}

/* ---- copies ---- */

#define LINE_BYTES 64 /* of a cache line */
#define LINE       (LINE_BYTES / sizeof(float))
/* copy_in prefetches this number of rows ahead. The processor cannot predict the next row itself, because
 * tokens are too far apart in memory. */
#define AHEAD 8

/* Computes to = from * factor. `to` may be equal to `from`. */
CPU_CLONES static void copy_scaled(float *to, const float *from, size_t n, float factor)
{
    CPU_INDEPENDENT
    for (size_t i = 0; i < n; i++)
        to[i] = from[i] * factor;
}

/* Copies one head of `rows` tokens, and multiplies each element by `factor`. The head of the first token
 * begins at element `at` of the array `from`, and the tokens are `ld` elements apart. Each row of the copy is
 * padded to the head's padded width. Rows of zeros are added until the number of rows is a multiple of
 * `multiple`. */
static void copy_in(const struct cpu_attention *a, float *to, const void *from, size_t at, size_t ld,
                    uint32_t rows, uint32_t multiple, float factor)
{
    const size_t head_bytes = a->head * dtype_size(a->dtype);

    for (uint32_t i = 0; i < rows; i++, to += a->width, at += ld) {
        for (size_t b = 0; i + AHEAD < rows && b < head_bytes; b += LINE_BYTES)
            __builtin_prefetch((const char *)floats_at(a->dtype, from, at + AHEAD * ld) + b);
        copy_scaled(to, floats_in(a->dtype, from, at, a->head, to), a->head, factor);
        memset(to + a->head, 0, (a->width - a->head) * sizeof *to);
    }
    memset(to, 0, (round_up(rows, multiple) - rows) * a->width * sizeof *to);
}

static void copy_in_head(const struct attention_task *t, float *to, uint32_t h)
{
    const struct cpu_attention *a = &t->run->a;
    copy_in(a, to, a->qkv, qkv_at(a, t->r, 0, h), a->token, a->seq, LANES, 1.0f);
}

static void copy_in_queries(const struct attention_task *t, const struct query_strip *s)
{
    const struct cpu_attention *a = &t->run->a;
    copy_in(a, t->q, a->qkv, qkv_at(a, t->r, s->q0, s->h), a->token, s->rows, GEMM_ROWS, a->scale);
}

static void copy_out_head(const struct attention_task *t, const float *from, uint32_t h)
{
    const struct cpu_attention *a = &t->run->a;
    for (uint32_t i = 0; i < a->seq; i++)
        half_round(a->dtype, from + i * a->width,
                   floats_at(a->dtype, t->run->bwd->dqkv, qkv_at(a, t->r, i, h)), a->head);
}

/* Multiplies row `i` of the task's results by `factor` and writes it to the array `to`, from element `at`
 * on. */
static void copy_out_scaled(const struct attention_task *t, uint32_t i, void *to, size_t at, float factor)
{
    const struct cpu_attention *a = &t->run->a;
    float *from = t->out + i * a->width, *row = floats_out(a->dtype, to, at, from);

    copy_scaled(row, from, a->head, factor);
    floats_store(a->dtype, row, to, at, a->head);
}

/* Returns the number of keys in the block that starts at key `first`. The padding after the last key of the
 * sequence is counted too. */
static uint32_t block_keys(const struct cpu_attention *a, uint32_t first)
{
    return least(a->keys - first, KEYS);
}

/* Transposes the keys or the values of a task, one block of KEYS keys at a time. */
static void transpose(const struct cpu_attention *a, float *to, const float *from)
{
    for (uint32_t first = 0; first < a->keys; first += KEYS)
        transpose_f32(from + first * a->width, a->width, block_keys(a, first), a->head,
                      to + (size_t)first * a->head, block_keys(a, first));
}

/* ---- products of queries and keys ---- */

/* Returns how many keys of the block that starts at key `first` are visible to a group of GEMM_ROWS queries.
 * A key counts if at least one query of the group sees it. The group starts at query `i` of the strip. */
static uint32_t seen_keys(const struct cpu_attention *a, const struct query_strip *s, uint32_t i,
                          uint32_t first)
{
    return least(least(a->seq, s->q0 + i + GEMM_ROWS) - first, KEYS);
}

/* Computes to[queries][ld] = x[queries][width] * transposed, for the block of keys that starts at key
 * `first`. Either `x` is the queries and `transposed` the keys, or `x` is dy and `transposed` the values. */
static void multiply_transposed(const struct attention_task *t, const struct query_strip *s, uint32_t first,
                                const float *x, const float *transposed, float *to)
{
    const struct cpu_attention *a = &t->run->a;

    for (uint32_t i = 0; i < s->rows; i += GEMM_ROWS)
        gemm_rows_run(&(struct gemm_rows){.a = x + i * a->width,
                                          .b = transposed + (size_t)first * a->head,
                                          .c = to + i * t->ld,
                                          .a_i = a->width,
                                          .a_k = 1,
                                          .ldb = block_keys(a, first),
                                          .ldc = t->ld,
                                          .n = round_up(seen_keys(a, s, i, first), LANES),
                                          .k = a->head},
                      a->isa);
}

/* Computes out[queries][width] = score[queries][ld] * x, for the block of keys that starts at key `first`.
 * `x` is the keys or the values of this block. If `first` is 0, the function overwrites `out`. Otherwise it
 * adds to `out`. */
static void add_seen(const struct attention_task *t, const struct query_strip *s, uint32_t first,
                     const float *score, const float *x)
{
    const struct cpu_attention *a = &t->run->a;

    for (uint32_t i = 0; i < s->rows; i += GEMM_ROWS)
        gemm_rows_run(&(struct gemm_rows){.a = score + i * t->ld,
                                          .b = x + first * a->width,
                                          .c = t->out + i * a->width,
                                          .a_i = t->ld,
                                          .a_k = 1,
                                          .ldb = a->width,
                                          .ldc = a->width,
                                          .n = (uint32_t)a->width,
                                          .k = seen_keys(a, s, i, first),
                                          .accumulate = first > 0},
                      a->isa);
}

/* Adds the contribution of a strip of queries to the gradients of keys or values: dx[keys][width] += score^T
 * * x[queries][width]. Queries that see none of the keys contribute nothing and are skipped. */
static void add_to_keys(const struct attention_task *t, const struct query_strip *s, uint32_t first,
                        const float *score, const float *x, float *dx)
{
    const struct cpu_attention *a = &t->run->a;
    uint32_t n = least(s->q0 + s->rows - first, KEYS);

    for (uint32_t j = 0; j < n; j += GEMM_ROWS) {
        uint32_t skip = first + j > s->q0 ? first + j - s->q0 : 0;
        gemm_rows_run(&(struct gemm_rows){.a = score + skip * t->ld + j,
                                          .b = x + skip * a->width,
                                          .c = dx + (first + j) * a->width,
                                          .a_i = 1,
                                          .a_k = t->ld,
                                          .ldb = a->width,
                                          .ldc = a->width,
                                          .n = (uint32_t)a->width,
                                          .k = s->rows - skip,
                                          .accumulate = true},
                      a->isa);
    }
}

/* ---- rows of scores, padded to LANES ---- */

/* Adds up the 16 lanes of a sum by halving: lanes 8 to 15 are added to lanes 0 to 7, then lanes 4 to 7 to
 * lanes 0 to 3, and so on. The fixed order gives the same bits on every processor. */
CPU_INLINE float fold_scores(float lane[LANES])
{
    for (int w = LANES / 2; w > 0; w /= 2)
        for (int l = 0; l < w; l++)
            lane[l] = lane[l] + lane[l + w];
    return lane[0];
}

/* Returns the largest element, ignoring NaNs. A NaN still reaches the result of the softmax, because the sum
 * of exponentials becomes NaN. */
CPU_CLONES static float score_max(const float *x, size_t n)
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

/* Replaces each element of x by exp(element - max) and returns the sum of the new values. */
CPU_CLONES static float row_exp(float *x, size_t n, float max)
{
    float lane[LANES] = {0};

    for (size_t i = 0; i < n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float e = vmath_exp(x[i + l] - max);
            x[i + l] = e;
            lane[l] = lane[l] + e;
        }
    return fold_scores(lane);
}

CPU_CLONES static void row_multiply(float *restrict x, const float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = x[i] * y[i];
}

/* Replaces `score` by the softmax weights P, and `dscore` by the gradients dS of the scores. The comment at
 * the top of this file has the formulas. This function is for attention without dropout. */
CPU_CLONES static void score_gradient(float *restrict score, float *restrict dscore, size_t n, float lse,
                                      float d)
{
    for (size_t i = 0; i < n; i++) {
        float p = vmath_exp(score[i] - lse);
        score[i] = p;
        dscore[i] = p * (dscore[i] - d);
    }
}

/* Replaces `score` by keep * P, and `dscore` by the gradients dS of the scores. The comment at the top of
 * this file has the formulas. keep[i] is 1 if dropout keeps score i, and 0 otherwise. This function is for
 * attention with dropout. */
CPU_CLONES static void score_gradient_kept(float *restrict score, float *restrict dscore,
                                           const float *restrict keep, size_t n, float lse, float d)
{
    for (size_t i = 0; i < n; i++) {
        float p = vmath_exp(score[i] - lse);
        score[i] = keep[i] * p;
        dscore[i] = p * (keep[i] * dscore[i] - d);
    }
}

/* Returns the dot product of x and y. The products are added in LANES partial sums. `n` need not be a
 * multiple of LANES. */
CPU_CLONES static float row_dot(const float *restrict x, const float *restrict y, size_t n)
{
    float lane[LANES] = {0};
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] = lane[l] + x[i + l] * y[i + l];
    for (size_t l = 0; i + l < n; l++)
        lane[l] = lane[l] + x[i + l] * y[i + l];
    return fold_scores(lane);
}

/* Sets keep[k] for every k < n: to 1 if dropout keeps the score of query `i` of the strip and key first + k,
 * and to 0 otherwise. */
static void keep_keys(const struct attention_task *t, const struct query_strip *s, uint32_t i, uint32_t first,
                      float *keep, uint32_t n)
{
    const struct cpu_attention *a = &t->run->a;
    const struct cpu_dropout d = {a->step, a->layer, a->first_row + t->r, a->p};
    uint64_t row = ((uint64_t)a->first_head + s->h) * a->seq + s->q0 + i; /* row of the score matrix */
    cpu_dropout_keep(&d, row * a->seq + first, keep, n);
}

static void drop_row(const struct attention_task *t, const struct query_strip *s, uint32_t i, float *row,
                     uint32_t n)
{
    float keep[KEYS];

    for (uint32_t first = 0; first < n; first += KEYS) {
        uint32_t some = least(n - first, KEYS);
        keep_keys(t, s, i, first, keep, some);
        row_multiply(row + first, keep, some);
    }
}

/* ---- forward ---- */

/* Replaces the scores of query `i` by keep * exp(score - max), which is 0 for keys that the query does not
 * see. These values become the softmax weights later, when they are divided by the sum of the
 * exponentials. */
static void soften_row(const struct attention_task *t, struct query_strip *s, uint32_t i)
{
    const struct cpu_attention *a = &t->run->a;
    float *row = t->score + i * t->ld;
    uint32_t n = s->q0 + i + 1, whole = round_up(n, LANES);

    for (uint32_t k = n; k < whole; k++)
        /* vmath_exp treats -infinity as -80 and returns e^-80. The sum of exponentials is at least 1, so
         * adding e^-80 does not change the sum. */
        row[k] = -INFINITY;
    float max = score_max(row, whole), sum = row_exp(row, whole, max);
    memset(row + n, 0, (whole - n) * sizeof *row);
    if (a->p > 0.0f)
        drop_row(t, s, i, row, n);
    s->factor[i] = a->keep_scale / sum;
    t->run->fwd->lse[lse_at(a, t->r, s->q0 + i, s->h)] = (float)((double)max + log((double)sum));
}

static void fwd_strip(const struct attention_task *t, uint32_t h, uint32_t q0, uint32_t rows)
{
    const struct cpu_attention *a = &t->run->a;
    struct query_strip s = {.h = h, .q0 = q0, .rows = rows};

    copy_in_queries(t, &s);
    for (uint32_t first = 0; first < q0 + rows; first += KEYS)
        multiply_transposed(t, &s, first, t->q, t->kt, t->score + first);
    for (uint32_t i = 0; i < rows; i++)
        soften_row(t, &s, i);
    for (uint32_t first = 0; first < q0 + rows; first += KEYS)
        add_seen(t, &s, first, t->score + first, t->v);
    for (uint32_t i = 0; i < rows; i++)
        copy_out_scaled(t, i, t->run->fwd->y, y_at(a, t->r, q0 + i, h), s.factor[i]);
}

/* Reserves `n` floats: returns the address *at, and moves *at forward by `n` floats. `n` must fill whole
 * cache lines, so that every array is aligned. */
static float *take(float **at, size_t n)
{
    float *piece = *at;
    *at += n;
    return piece;
}

/* Returns the number of queries in a strip of the forward pass, which is at most STRIP. All scores of such a
 * strip fit into a cache. */
static uint32_t fwd_strip_rows(uint32_t seq)
{
    uint32_t strip = STRIP;

    while (strip > GEMM_ROWS && (uint64_t)strip * seq > 131072)
        strip /= 2;
    return least(round_up(seq, GEMM_ROWS), strip);
}

static void take_fwd(struct attention_task *t, uint32_t strip)
{
    const struct cpu_attention *a = &t->run->a;
    /* Add a cache line to each row. Without it, the distance between rows could be a power of two, and all
     * rows would compete for the same few cache lines. */
    size_t ld = a->keys + LINE;
    float *at =
        cpu_thread_memory(sizeof *at * ((size_t)2 * a->keys * a->width + strip * (2 * a->width + ld)));

    t->kt = take(&at, a->keys * a->width);
    t->v = take(&at, a->keys * a->width);
    t->q = take(&at, strip * a->width);
    t->out = take(&at, strip * a->width);
    t->ld = ld;
    t->score = take(&at, strip * ld);
}

static void fwd_task(struct attention_task *t)
{
    const struct cpu_attention *a = &t->run->a;
    uint32_t strip = fwd_strip_rows(a->seq), k = a->heads + t->kv, v = k + a->kv_heads;

    take_fwd(t, strip);
    /* t->v is used twice. It first holds the keys, which are transposed from there to t->kt. Then it gets the
     * values. */
    copy_in_head(t, t->v, k);
    transpose(a, t->kt, t->v);
    copy_in_head(t, t->v, v);
    for (uint32_t h = t->kv * a->group; h < (t->kv + 1) * a->group; h++)
        for (uint32_t q0 = 0; q0 < a->seq; q0 += strip)
            fwd_strip(t, h, q0, least(a->seq - q0, strip));
}

/* ---- backward ---- */

/* For a strip and a block of keys, replaces the scores by keep * P, and the elements of dscore by the
 * gradients dS of the scores. The comment at the top of this file has the formulas. Both results are 0 for
 * keys that a query does not see. */
static void block_gradient(const struct attention_task *t, const struct query_strip *s, uint32_t first)
{
    float keep[KEYS] = {0};

    for (uint32_t i = 0; i < s->rows; i++) {
        uint32_t n = least(s->q0 + i + 1 - first, KEYS), whole = round_up(n, LANES);
        float *row = t->score + i * t->ld, *drow = t->dscore + i * t->ld;
        if (t->run->a.p > 0.0f) {
            keep_keys(t, s, i, first, keep, n);
            score_gradient_kept(row, drow, keep, whole, s->lse[i], s->factor[i]);
        } else
            score_gradient(row, drow, whole, s->lse[i], s->factor[i]);
        memset(row + n, 0, (whole - n) * sizeof *row);
        memset(drow + n, 0, (whole - n) * sizeof *drow);
    }
}

static void bwd_strip(const struct attention_task *t, uint32_t h, uint32_t q0, uint32_t rows)
{
    const struct cpu_attention *a = &t->run->a;
    const struct op_attention_bwd *o = t->run->bwd;
    struct query_strip s = {.h = h, .q0 = q0, .rows = rows, .lse = o->lse + lse_at(a, t->r, q0, h)};

    copy_in_queries(t, &s);
    copy_in(a, t->dy, o->dy, y_at(a, t->r, q0, h), (size_t)a->heads * a->head, rows, GEMM_ROWS,
            a->keep_scale);
    for (uint32_t i = 0; i < rows; i++) {
        size_t at = y_at(a, t->r, q0 + i, h);
        /* t->out holds no results yet and has at least GEMM_ROWS rows. Two of them are the buffers. */
        s.factor[i] = row_dot(floats_in(a->dtype, o->dy, at, a->head, t->out),
                              floats_in(a->dtype, o->y, at, a->head, t->out + a->width), a->head);
    }
    for (uint32_t first = 0; first < q0 + rows; first += KEYS) {
        multiply_transposed(t, &s, first, t->q, t->kt, t->score);
        multiply_transposed(t, &s, first, t->dy, t->vt, t->dscore);
        block_gradient(t, &s, first);
        add_to_keys(t, &s, first, t->score, t->dy, t->dv);
        add_to_keys(t, &s, first, t->dscore, t->q, t->dk);
        add_seen(t, &s, first, t->dscore, t->k);
    }
    for (uint32_t i = 0; i < rows; i++)
        copy_out_scaled(t, i, o->dqkv, qkv_at(a, t->r, q0 + i, h), a->scale);
}

static void take_bwd(struct attention_task *t, uint32_t strip)
{
    const struct cpu_attention *a = &t->run->a;
    size_t ld = least(a->keys, KEYS) + LINE;
    float *at =
        cpu_thread_memory(sizeof *at * ((size_t)5 * a->keys * a->width + strip * (3 * a->width + 2 * ld)));

    t->kt = take(&at, a->keys * a->width);
    t->vt = take(&at, a->keys * a->width);
    t->k = take(&at, a->keys * a->width);
    t->dk = take(&at, a->keys * a->width);
    t->dv = take(&at, a->keys * a->width);
    t->q = take(&at, strip * a->width);
    t->dy = take(&at, strip * a->width);
    t->out = take(&at, strip * a->width);
    t->ld = ld;
    t->score = take(&at, strip * ld);
    t->dscore = take(&at, strip * ld);
}

static void bwd_task(struct attention_task *t)
{
    const struct cpu_attention *a = &t->run->a;
    uint32_t strip = least(round_up(a->seq, GEMM_ROWS), QUERIES), k = a->heads + t->kv, v = k + a->kv_heads;

    take_bwd(t, strip);
    /* t->k is used twice. It first holds the values, which are transposed from there to t->vt. Then it gets
     * the keys. */
    copy_in_head(t, t->k, v);
    transpose(a, t->vt, t->k);
    copy_in_head(t, t->k, k);
    transpose(a, t->kt, t->k);
    memset(t->dk, 0, a->keys * a->width * sizeof *t->dk);
    memset(t->dv, 0, a->keys * a->width * sizeof *t->dv);
    for (uint32_t h = t->kv * a->group; h < (t->kv + 1) * a->group; h++)
        for (uint32_t q0 = 0; q0 < a->seq; q0 += strip)
            bwd_strip(t, h, q0, least(a->seq - q0, strip));
    copy_out_head(t, t->dk, k);
    copy_out_head(t, t->dv, v);
}

/* ---- calls ---- */

static void set_shape(struct cpu_attention *a)
{
    assert(a->heads % a->kv_heads == 0);
    if (!a->step->training)
        a->p = 0.0f;
    a->scale = (float)(1.0 / sqrt((double)a->head));
    a->keep_scale = 1.0f / (1.0f - a->p);
    a->group = a->heads / a->kv_heads;
    a->keys = round_up(a->seq, LANES);
    a->width = round_up(a->head, LANES);
    a->token = ((size_t)a->heads + 2 * (size_t)a->kv_heads) * a->head;
    a->isa = gemm_small_best();
}

static void run_task(void *ctx, uint32_t i)
{
    const struct attention_run *run = ctx;
    struct attention_task t = {.run = run, .r = i / run->a.kv_heads, .kv = i % run->a.kv_heads};

    if (run->fwd)
        fwd_task(&t);
    else
        bwd_task(&t);
}

static void run_tasks(struct attention_run *run, struct pool *pool)
{
    set_shape(&run->a);
    pool_run(pool, run_task, run, run->a.rows * run->a.kv_heads);
}

#define ATTENTION_OF(call, o)                                                                                \
    {                                                                                                        \
        .step = (call)->step, .qkv = (o)->qkv, .dtype = (o)->dtype, .rows = (o)->rows, .seq = (o)->seq,      \
        .heads = (o)->heads, .kv_heads = (o)->kv_heads, .head = (o)->head, .layer = (o)->layer,              \
        .first_row = (o)->first_row, .first_head = (o)->first_head, .p = (o)->p                              \
    }

void cpu_op_attention_fwd(const struct op_call *call, struct pool *pool)
{
    const struct op_attention_fwd *o = &call->attention_fwd;
    struct attention_run run = {.a = ATTENTION_OF(call, o), .fwd = o};
    run_tasks(&run, pool);
}

void cpu_op_attention_bwd(const struct op_call *call, struct pool *pool)
{
    const struct op_attention_bwd *o = &call->attention_bwd;
    struct attention_run run = {.a = ATTENTION_OF(call, o), .bwd = o};
    run_tasks(&run, pool);
}
