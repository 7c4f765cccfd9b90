/* Test cases of the ops that transformers use, in the form that op_cases.h describes. */
#include "tests/unit/op_cases.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/vmath.h"
#include "tests/unit/reference.h"

/* ---- attention ----
 *
 * The reference computes every query of every head by the definition, in double. With each value it computes
 * a bound on the error of any summation order in float. A score may be off by (head + 4) roundings of the sum
 * of the absolute values of its products. The bound of a probability is the factor that follows from the
 * scores, and so on down to the gradients.
 */

static const struct attention_shape {
    uint32_t rows, seq, heads, kv_heads, head;
    float scale; /* of the random qkv; 8: some probabilities are nearly 1 or 0 */
} attention_shapes[] = {
    {1, 1, 1, 1, 2, 1},    {3, 1, 4, 2, 8, 1},    {1, 2, 1, 1, 64, 1},  {2, 5, 4, 2, 8, 2},
    {1, 15, 2, 1, 20, 1},  {2, 16, 2, 2, 16, 1},  {1, 17, 3, 3, 20, 2}, {2, 33, 6, 2, 16, 1},
    {5, 9, 8, 4, 2, 1},    {1, 64, 2, 2, 64, 1},  {3, 65, 6, 6, 8, 1},  {1, 47, 4, 1, 64, 8},
    {1, 193, 2, 1, 8, 1},  {1, 384, 1, 1, 16, 1}, {1, 401, 2, 2, 8, 8}, {1, 700, 1, 1, 2, 1},
    {2, 209, 4, 2, 16, 1},
};
/* Forms: without dropout; with dropout; with dropout in a step that does not train; with dropout of heads
 * whose scores have numbers around 2^34, where the number of a quad passes 32 bits. */
#define ATTENTION_FORMS 4
#define ATTENTION_P     0.2f

/* The head in which the number of a score passes 2^34. A sequence of one or two tokens would need too many
 * heads. */
static uint32_t attention_first_head(uint32_t seq, uint32_t form)
{
    return form == 3 && seq > 2 ? (uint32_t)((UINT64_C(1) << 34) / seq / seq) : 0;
}

/* The arguments that the forward and the backward op have in common. */
struct attention {
    const struct step_args *step;
    float *qkv; /* a copy in floats, to be freed */
    uint32_t rows, seq, heads, kv_heads, head, layer, first_row, first_head;
    float p;
};

static size_t qkv_width(const struct attention *a)
{
    return ((size_t)a->heads + 2 * a->kv_heads) * a->head;
}

static struct attention of_fwd(const struct op_call *call)
{
    const struct op_attention_fwd *o = &call->attention_fwd;
    struct attention a = {call->step, NULL,     o->rows,      o->seq,        o->heads, o->kv_heads,
                          o->head,    o->layer, o->first_row, o->first_head, o->p};
    a.qkv = to_floats(o->dtype, o->qkv, (uint64_t)a.rows * a.seq * qkv_width(&a));
    return a;
}

static struct attention of_bwd(const struct op_call *call)
{
    const struct op_attention_bwd *o = &call->attention_bwd;
    struct attention a = {call->step, NULL,     o->rows,      o->seq,        o->heads, o->kv_heads,
                          o->head,    o->layer, o->first_row, o->first_head, o->p};
    a.qkv = to_floats(o->dtype, o->qkv, (uint64_t)a.rows * a.seq * qkv_width(&a));
    return a;
}

/* Where query q of head h is in qkv, and the key and value that head h sees at k. */
static size_t query_at(const struct attention *a, uint32_t r, uint32_t h, uint32_t q)
{
    return ((size_t)r * a->seq + q) * qkv_width(a) + (size_t)h * a->head;
}

static size_t key_at(const struct attention *a, uint32_t r, uint32_t h, uint32_t k)
{
    uint32_t kv = h / (a->heads / a->kv_heads);
    return ((size_t)r * a->seq + k) * qkv_width(a) + ((size_t)a->heads + kv) * a->head;
}

static size_t value_at(const struct attention *a, uint32_t r, uint32_t h, uint32_t k)
{
    return key_at(a, r, h, k) + (size_t)a->kv_heads * a->head;
}

/* Of y and dy. */
static size_t y_at(const struct attention *a, uint32_t r, uint32_t h, uint32_t q)
{
    return (((size_t)r * a->seq + q) * a->heads + h) * a->head;
}

static size_t lse_at(const struct attention *a, uint32_t r, uint32_t h, uint32_t q)
{
    return ((size_t)r * a->heads + h) * a->seq + q;
}

static double dot(const float *x, const float *y, uint32_t n, double *ret_size)
{
    double sum = 0, size = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += (double)x[i] * (double)y[i];
        size += fabs((double)x[i] * (double)y[i]);
    }
    *ret_size = size;
    return sum;
}

/* Computes the probabilities of keys 0..q for one query and returns the logarithm of the sum of exponentials.
 * Each probability in float may be off by a factor of up to 1 + *ret_off. */
static double probabilities(const struct attention *a, uint32_t r, uint32_t h, uint32_t q, double *prob,
                            double *ret_off)
{
    double scale = 1 / sqrt((double)a->head), max = -INFINITY, most = 0, sum = 0, size;

    for (uint32_t k = 0; k <= q; k++) {
        prob[k] = scale * dot(a->qkv + query_at(a, r, h, q), a->qkv + key_at(a, r, h, k), a->head, &size);
        max = fmax(max, prob[k]);
        most = fmax(most, scale * size);
    }
    for (uint32_t k = 0; k <= q; k++) {
        prob[k] = exp(prob[k] - max);
        sum += prob[k];
    }
    for (uint32_t k = 0; k <= q; k++)
        prob[k] /= sum;
    *ret_off = (2 * (a->head + 6.0) * most + q + 20) * (double)EPS;
    return log(sum) + max;
}

/* What dropout multiplies a probability with. */
static double kept(const struct attention *a, uint32_t r, uint32_t h, uint32_t q, uint32_t k)
{
    if (a->p <= 0 || !a->step->training)
        return 1;
    uint64_t element = (((uint64_t)a->first_head + h) * a->seq + q) * a->seq + k;
    bool keeps = ref_dropout_keeps(a->step, RNG_SCORES, a->layer, a->first_row + r, element, a->p);
    return keeps ? 1 / (1 - (double)a->p) : 0;
}

/* Computes the output y of one query from its probabilities, and the error that y may have in float. */
static void mix_values(const struct attention *a, uint32_t r, uint32_t h, uint32_t q, const double *prob,
                       double off, double *y, double *y_off)
{
    for (uint32_t d = 0; d < a->head; d++)
        y[d] = y_off[d] = 0;
    for (uint32_t k = 0; k <= q; k++) {
        const float *v = a->qkv + value_at(a, r, h, k);
        double p = prob[k] * kept(a, r, h, q, k);
        for (uint32_t d = 0; d < a->head; d++) {
            y[d] += p * (double)v[d];
            y_off[d] += p * fabs((double)v[d]) * (off + (q + 6) * (double)EPS) + 1e-30;
        }
    }
}

#define MAX_HEAD 64

static void *tape_qkv(struct tape *t, const struct attention_shape *s)
{
    return tape_in(t, t->types.dtype, (uint64_t)s->rows * s->seq * (s->heads + 2 * s->kv_heads) * s->head,
                   s->scale);
}

static void build_attention_fwd(struct tape *t, uint32_t v, struct op_call *call)
{
    const struct attention_shape *s = &attention_shapes[v / ATTENTION_FORMS];

    t->step.training = v % ATTENTION_FORMS != 2;
    call->attention_fwd = (struct op_attention_fwd){
        .qkv = tape_qkv(t, s),
        .y = tape_out(t, t->types.dtype, (uint64_t)s->rows * s->seq * s->heads * s->head),
        .lse = tape_result(t, (uint64_t)s->rows * s->heads * s->seq),
        .rows = s->rows,
        .seq = s->seq,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head = s->head,
        .layer = 5,
        .first_row = 1000,
        .first_head = attention_first_head(s->seq, v % ATTENTION_FORMS),
        .p = v % ATTENTION_FORMS ? ATTENTION_P : 0,
        .dtype = t->types.dtype};
}

static void check_query(const struct attention *a, const struct op_attention_fwd *got, uint32_t r, uint32_t h,
                        uint32_t q, double *prob)
{
    double y[MAX_HEAD], y_off[MAX_HEAD], off, lse = probabilities(a, r, h, q, prob, &off);

    mix_values(a, r, h, q, prob, off, y, y_off);
    assert_near(got->lse[lse_at(a, r, h, q)], lse, off + 4 * (double)EPS * fabs(lse));
    for (uint32_t d = 0; d < a->head; d++)
        assert_near_in(got->dtype, got->y, y_at(a, r, h, q) + d, y[d], y_off[d]);
}

static void check_attention_fwd(const struct op_call *in, const struct op_call *out)
{
    struct attention a = of_fwd(in);
    double *prob = malloc(a.seq * sizeof *prob);

    for (uint32_t r = 0; r < a.rows; r++)
        for (uint32_t h = 0; h < a.heads; h++)
            for (uint32_t q = 0; q < a.seq; q++)
                check_query(&a, &out->attention_fwd, r, h, q, prob);
    free(prob);
    free(a.qkv);
}

const struct op_test attention_fwd_test = {ATTENTION_FORMS * COUNT(attention_shapes), build_attention_fwd,
                                           check_attention_fwd};

/* Fills y, of type `dtype`, and lse with the results of a forward pass. */
static void fill_forward(const struct attention *a, enum dtype dtype, void *y, float *lse)
{
    double *prob = malloc(a->seq * sizeof *prob), mixed[MAX_HEAD], mixed_off[MAX_HEAD], off;

    for (uint32_t r = 0; r < a->rows; r++)
        for (uint32_t h = 0; h < a->heads; h++)
            for (uint32_t q = 0; q < a->seq; q++) {
                lse[lse_at(a, r, h, q)] = (float)probabilities(a, r, h, q, prob, &off);
                mix_values(a, r, h, q, prob, off, mixed, mixed_off);
                for (uint32_t d = 0; d < a->head; d++)
                    put(dtype, y, y_at(a, r, h, q) + d, (float)mixed[d]);
            }
    free(prob);
}

static void build_attention_bwd(struct tape *t, uint32_t v, struct op_call *call)
{
    const struct attention_shape *s = &attention_shapes[v / ATTENTION_FORMS];
    uint64_t n_y = (uint64_t)s->rows * s->seq * s->heads * s->head;
    const enum dtype dtype = t->types.dtype;
    void *y = tape_in(t, dtype, n_y, 0);
    float *lse = tape_floats(t, (uint64_t)s->rows * s->heads * s->seq, 0);
    uint64_t n_qkv = (uint64_t)s->rows * s->seq * (s->heads + 2 * s->kv_heads) * s->head;

    t->step.training = v % ATTENTION_FORMS != 2;
    call->attention_bwd =
        (struct op_attention_bwd){.qkv = tape_qkv(t, s),
                                  .y = y,
                                  .lse = lse,
                                  .dy = tape_in(t, dtype, n_y, 1),
                                  .dqkv = tape_out(t, dtype, n_qkv),
                                  .scratch = tape_scratch(t, (uint64_t)s->rows * s->heads * s->seq),
                                  .rows = s->rows,
                                  .seq = s->seq,
                                  .heads = s->heads,
                                  .kv_heads = s->kv_heads,
                                  .head = s->head,
                                  .layer = 5,
                                  .first_row = 1000,
                                  .first_head = attention_first_head(s->seq, v % ATTENTION_FORMS),
                                  .p = v % ATTENTION_FORMS ? ATTENTION_P : 0,
                                  .dtype = dtype};
    struct attention a = of_bwd(call);
    fill_forward(&a, dtype, y, lse);
    free(a.qkv);
}

/* The gradient of qkv, and the error that each of its elements may have in float. */
struct gradient {
    double *d, *off;
};

static void add_to(struct gradient g, size_t at, const float *x, uint32_t n, double factor, double off)
{
    for (uint32_t d = 0; d < n; d++) {
        g.d[at + d] += factor * (double)x[d];
        g.off[at + d] += off * fabs((double)x[d]) + 1e-30;
    }
}

/* Adds the contribution of query q of head h to its own gradient and to the gradients of the keys and values
 * that the query sees. P are the probabilities, and M are the factors of dropout. Then dP = M (dy . v), dS =
 * P (dP - dy . y), dq = sum of dS k / sqrt(head), dk = sum of dS q / sqrt(head), dv = sum of P M dy. The
 * product dy . y is the sum of P dP, with the rounding of y. */
static void add_query(const struct attention *a, const float *dy, const float *y, uint32_t r, uint32_t h,
                      uint32_t q, double *prob, double *dprob, struct gradient g)
{
    double scale = 1 / sqrt((double)a->head), off, rounding = (a->head + 6) * (double)EPS, mean_size = 0;
    double lse = probabilities(a, r, h, q, prob, &off), size;
    /* sums over the queries of all heads of a group, or over the keys */
    double sums = ((double)a->seq * (a->heads / a->kv_heads) + 8) * (double)EPS;

    off += 2 * (double)EPS * fabs(lse) + sums;
    dy += y_at(a, r, h, q);
    const double mean = dot(dy, y + y_at(a, r, h, q), a->head, &size);
    for (uint32_t k = 0; k <= q; k++) {
        double m = kept(a, r, h, q, k);
        dprob[k] = m * dot(dy, a->qkv + value_at(a, r, h, k), a->head, &size);
        mean_size += prob[k] * m * size;
    }
    for (uint32_t k = 0; k <= q; k++) {
        double m = kept(a, r, h, q, k), ds = scale * prob[k] * (dprob[k] - mean);
        dot(dy, a->qkv + value_at(a, r, h, k), a->head, &size);
        double ds_off = off * fabs(ds) + scale * prob[k] * rounding * (m * size + mean_size);
        add_to(g, query_at(a, r, h, q), a->qkv + key_at(a, r, h, k), a->head, ds, ds_off);
        add_to(g, key_at(a, r, h, k), a->qkv + query_at(a, r, h, q), a->head, ds, ds_off);
        add_to(g, value_at(a, r, h, k), dy, a->head, m * prob[k], off * m * prob[k]);
    }
}

static void check_attention_bwd(const struct op_call *in, const struct op_call *out)
{
    struct attention a = of_bwd(in);
    size_t n = (size_t)a.rows * a.seq * qkv_width(&a);
    struct gradient g = {calloc(n, sizeof(double)), calloc(n, sizeof(double))};
    double *prob = malloc(a.seq * sizeof *prob), *dprob = malloc(a.seq * sizeof *dprob);
    const struct op_attention_bwd *o = &in->attention_bwd;
    const uint64_t n_y = (uint64_t)a.rows * a.seq * a.heads * a.head;
    float *dy = to_floats(o->dtype, o->dy, n_y), *y = to_floats(o->dtype, o->y, n_y);

    for (uint32_t r = 0; r < a.rows; r++)
        for (uint32_t h = 0; h < a.heads; h++)
            for (uint32_t q = 0; q < a.seq; q++)
                add_query(&a, dy, y, r, h, q, prob, dprob, g);
    for (size_t i = 0; i < n; i++)
        assert_near_in(o->dtype, out->attention_bwd.dqkv, i, g.d[i], g.off[i]);
    free(dy);
    free(y);
    free(a.qkv);
    free(g.d);
    free(g.off);
    free(prob);
    free(dprob);
}

const struct op_test attention_bwd_test = {ATTENTION_FORMS * COUNT(attention_shapes), build_attention_bwd,
                                           check_attention_bwd};

/* ---- embedding ---- */

static const uint32_t embedding_shapes[][3] = {{1, 1, 1},      {5, 3, 1},    {16, 16, 50},
                                               {33, 65, 7},    {70, 20, 3},  {97, 385, 40},
                                               {64, 130, 300}, {300, 70, 11}}; /* rows, n, vocab */

/* Few of many, some often; the last and the first are among them. */
static const int32_t *tape_ids(struct tape *t, uint32_t rows, uint32_t vocab)
{
    int32_t *ids = tape_bytes(t, rows * sizeof *ids, sizeof *ids);
    for (uint32_t r = 0; r < rows; r++)
        ids[r] = (int32_t)(r % 3 == 0 ? vocab - 1 : (uint64_t)r * r * 7919 % vocab);
    ids[rows / 2] = 0;
    return ids;
}

static void build_embedding_fwd(struct tape *t, uint32_t v, struct op_call *call)
{
    uint32_t rows = embedding_shapes[v][0], n = embedding_shapes[v][1], vocab = embedding_shapes[v][2];
    call->embedding_fwd = (struct op_embedding_fwd){.ids = tape_ids(t, rows, vocab),
                                                    .table = tape_in(t, t->types.w, (uint64_t)vocab * n, 1),
                                                    .y = tape_out(t, t->types.dtype, (uint64_t)rows * n),
                                                    .rows = rows,
                                                    .n = n,
                                                    .vocab = vocab,
                                                    .dtype = t->types.dtype,
                                                    .w_dtype = t->types.w};
}

static void check_embedding_fwd(const struct op_call *in, const struct op_call *out)
{
    const struct op_embedding_fwd *o = &in->embedding_fwd;
    for (size_t r = 0; r < o->rows; r++)
        for (size_t i = 0; i < o->n; i++)
            assert_rounded(o->dtype, out->embedding_fwd.y, r * o->n + i,
                           get(o->w_dtype, o->table, (size_t)o->ids[r] * o->n + i));
}

const struct op_test embedding_fwd_test = {COUNT(embedding_shapes), build_embedding_fwd, check_embedding_fwd,
                                           UINT64_C(0x9f6709a49135a365), UINT64_C(0xa4975612ca6b9fa9)};

static void build_embedding_bwd(struct tape *t, uint32_t v, struct op_call *call)
{
    uint32_t rows = embedding_shapes[v][0], n = embedding_shapes[v][1], vocab = embedding_shapes[v][2];
    call->embedding_bwd = (struct op_embedding_bwd){.ids = tape_ids(t, rows, vocab),
                                                    .dy = tape_in(t, t->types.dtype, (uint64_t)rows * n, 1),
                                                    .dtable = tape_state(t, (uint64_t)vocab * n, 1),
                                                    .rows = rows,
                                                    .n = n,
                                                    .vocab = vocab,
                                                    .dtype = t->types.dtype};
}

/* The order is promised, so the bits are. */
static void check_embedding_bwd(const struct op_call *in, const struct op_call *out)
{
    const struct op_embedding_bwd *o = &in->embedding_bwd;
    size_t count = (size_t)o->vocab * o->n;
    float *want = malloc(count * sizeof *want);

    memcpy(want, o->dtable, count * sizeof *want);
    for (size_t r = 0; r < o->rows; r++)
        for (size_t i = 0; i < o->n; i++)
            want[(size_t)o->ids[r] * o->n + i] += get(o->dtype, o->dy, r * o->n + i);
    for (size_t i = 0; i < count; i++)
        assert_bits(out->embedding_bwd.dtable[i], want[i]);
    free(want);
}

const struct op_test embedding_bwd_test = {COUNT(embedding_shapes), build_embedding_bwd, check_embedding_bwd,
                                           UINT64_C(0xdac834f7a23a67c6), UINT64_C(0x957ce31dd564ad42)};

/* ---- rotary positions ---- */

static const struct rope_shape {
    uint32_t rows, seq, heads, head, rest; /* rest: elements of a token that are not rotated */
    float theta;
} rope_shapes[] = {{1, 1, 1, 2, 0, 10000},    {2, 3, 2, 8, 0, 10000},    {1, 17, 3, 20, 20, 10000},
                   {3, 5, 1, 64, 7, 500000},  {2, 33, 4, 16, 32, 10000}, {1, 300, 2, 8, 4, 1000},
                   {4, 40, 2, 64, 64, 500000}};

static void build_rope(struct tape *t, uint32_t v, struct op_call *call)
{
    const struct rope_shape *s = &rope_shapes[v / 2];
    uint32_t n = s->heads * s->head + s->rest;
    call->rope = (struct op_rope){.x = tape_inout(t, t->types.dtype, (uint64_t)s->rows * s->seq * n, 1),
                                  .rows = s->rows,
                                  .seq = s->seq,
                                  .n = n,
                                  .heads = s->heads,
                                  .head = s->head,
                                  .theta = s->theta,
                                  .inverse = v % 2,
                                  .dtype = t->types.dtype};
}

/* Checks the head that begins at element `at`, at position `t` of its sequence. */
static void check_rotation(const struct op_rope *o, uint32_t t, size_t at, const void *got)
{
    uint32_t half = o->head / 2;

    for (size_t i = 0; i < half; i++) {
        double angle = t * pow((double)o->theta, -2.0 * (double)i / o->head) * (o->inverse ? -1 : 1);
        double a = (double)get(o->dtype, o->x, at + i), b = (double)get(o->dtype, o->x, at + i + half),
               off = 4 * (double)EPS * (fabs(a) + fabs(b));
        assert_near_in(o->dtype, got, at + i, a * cos(angle) - b * sin(angle), off);
        assert_near_in(o->dtype, got, at + i + half, a * sin(angle) + b * cos(angle), off);
    }
}

static void check_rope(const struct op_call *in, const struct op_call *out)
{
    const struct op_rope *o = &in->rope;

    for (uint32_t token = 0; token < o->rows * o->seq; token++) {
        const size_t at = (size_t)token * o->n;
        for (uint32_t h = 0; h < o->heads; h++)
            check_rotation(o, token % o->seq, at + (size_t)h * o->head, out->rope.x);
        for (uint32_t i = o->heads * o->head; i < o->n; i++)
            assert_rounded(o->dtype, out->rope.x, at + i, get(o->dtype, o->x, at + i));
    }
}

const struct op_test rope_test = {2 * COUNT(rope_shapes), build_rope, check_rope};

/* ---- normalization of rows ---- */

#define NORM_EPS 1e-5f

/* The sum that any order gives of n numbers is off by at most this, times the sum of their sizes. */
static double sum_off(uint32_t n)
{
    return (n + 4) * (double)EPS;
}

struct norm_stats {
    double mean, rstd;
    double mean_off; /* of a mean computed in float */
};

static struct norm_stats norm_stats(const float *x, uint32_t n, float eps, bool rms)
{
    double sum = 0, size = 0, square = 0;

    for (uint32_t i = 0; i < n; i++) {
        sum += (double)x[i];
        size += fabs((double)x[i]);
    }
    struct norm_stats s = {rms ? 0 : sum / n, 0, rms ? 0 : sum_off(n) * size / n};
    for (uint32_t i = 0; i < n; i++)
        square += ((double)x[i] - s.mean) * ((double)x[i] - s.mean);
    s.rstd = 1 / sqrt(square / n + (double)eps);
    return s;
}

/* Numbers around 0 or, every other variant, far from it. */
static void *tape_norm_x(struct tape *t, uint32_t v, uint32_t rows, uint32_t n)
{
    const enum dtype dtype = t->types.dtype;
    void *x = tape_in(t, dtype, (uint64_t)rows * n, 2);
    for (size_t i = 0; v % 2 && i < (size_t)rows * n; i++)
        put(dtype, x, i, get(dtype, x, i) + 5);
    return x;
}

static const struct norm_fwd_form {
    bool rms, b, y, stats;
} norm_fwd_forms[] = {{false, true, true, true},
                      {false, false, true, false},
                      {false, true, false, true},
                      {true, false, true, true},
                      {true, false, false, true}};
#define NORM_FWD_FORMS COUNT(norm_fwd_forms)

static void build_rownorm_fwd(struct tape *t, uint32_t v, struct op_call *call)
{
    const struct norm_fwd_form *f = &norm_fwd_forms[v % NORM_FWD_FORMS];
    uint32_t rows = matrices[v / NORM_FWD_FORMS][0], n = matrices[v / NORM_FWD_FORMS][1];
    call->rownorm_fwd =
        (struct op_rownorm_fwd){.x = tape_norm_x(t, v, rows, n),
                                .w = tape_in(t, t->types.w, n, 1),
                                .b = f->b ? tape_in(t, t->types.w, n, 1) : NULL,
                                .y = f->y ? tape_out(t, t->types.dtype, (uint64_t)rows * n) : NULL,
                                .stats = f->stats ? tape_result(t, 2 * (uint64_t)rows) : NULL,
                                .rows = rows,
                                .n = n,
                                .eps = NORM_EPS,
                                .rms = f->rms,
                                .dtype = t->types.dtype,
                                .w_dtype = t->types.w};
}

/* `x` is row `r` in floats. */
static void check_norm_row(const struct op_rownorm_fwd *o, const struct op_rownorm_fwd *got, size_t r,
                           const float *x)
{
    struct norm_stats s = norm_stats(x, o->n, o->eps, o->rms);
    /* off as a factor: the sum of squares, and that of numbers which are a little beside their mean */
    double off = sum_off(o->n) + s.mean_off * s.rstd + 4 * (double)EPS;

    if (o->stats) {
        assert_near(got->stats[2 * r], s.mean, s.mean_off);
        assert_near(got->stats[2 * r + 1], s.rstd, s.rstd * off);
    }
    for (uint32_t i = 0; o->y && i < o->n; i++) {
        double w = (double)get(o->w_dtype, o->w, i), b = o->b ? (double)get(o->w_dtype, o->b, i) : 0,
               hat = ((double)x[i] - s.mean) * s.rstd;
        assert_near_in(o->dtype, got->y, r * o->n + i, hat * w + b,
                       fabs(w) * (s.mean_off * s.rstd + (off + 4 * (double)EPS) * fabs(hat)) +
                           2 * (double)EPS * fabs(b));
    }
}

static void check_rownorm_fwd(const struct op_call *in, const struct op_call *out)
{
    const struct op_rownorm_fwd *o = &in->rownorm_fwd;
    float *x = to_floats(o->dtype, o->x, (uint64_t)o->rows * o->n);

    for (size_t r = 0; r < o->rows; r++)
        check_norm_row(o, &out->rownorm_fwd, r, x + r * o->n);
    free(x);
}

const struct op_test rownorm_fwd_test = {NORM_FWD_FORMS * N_MATRICES, build_rownorm_fwd, check_rownorm_fwd,
                                         UINT64_C(0x797fd17412be1f89), UINT64_C(0x5371e676ae0cec04)};

static const struct norm_bwd_form {
    bool rms, db, accumulate;
    enum { DX_OWN, DX_IN_PLACE, DX_NONE } dx;
} norm_bwd_forms[] = {{false, true, false, DX_OWN},  {false, true, true, DX_IN_PLACE},
                      {false, true, false, DX_NONE}, {false, false, true, DX_OWN},
                      {true, false, true, DX_OWN},   {true, false, false, DX_IN_PLACE},
                      {true, false, true, DX_NONE}};
#define NORM_BWD_FORMS COUNT(norm_bwd_forms)

/* As the forward op leaves them. */
static const float *tape_stats(struct tape *t, const void *from, uint32_t rows, uint32_t n, bool rms)
{
    float *stats = tape_floats(t, 2 * (uint64_t)rows, 0),
          *x = to_floats(t->types.dtype, from, (uint64_t)rows * n);
    for (size_t r = 0; r < rows; r++) {
        struct norm_stats s = norm_stats(x + r * n, n, NORM_EPS, rms);
        stats[2 * r] = (float)s.mean;
        stats[2 * r + 1] = (float)s.rstd;
    }
    free(x);
    return stats;
}

static float *tape_sum(struct tape *t, uint32_t n, bool accumulate)
{
    return accumulate ? tape_state(t, n, 1) : tape_result(t, n);
}

static void build_rownorm_bwd(struct tape *t, uint32_t v, struct op_call *call)
{
    const struct norm_bwd_form *f = &norm_bwd_forms[v % NORM_BWD_FORMS];
    uint32_t rows = matrices[v / NORM_BWD_FORMS][0], n = matrices[v / NORM_BWD_FORMS][1];
    uint64_t count = (uint64_t)rows * n;
    struct op_rownorm_bwd o = {.x = tape_norm_x(t, v, rows, n),
                               .w = tape_in(t, t->types.w, n, 1),
                               .dw = tape_sum(t, n, f->accumulate),
                               .db = f->db ? tape_sum(t, n, f->accumulate) : NULL,
                               .rows = rows,
                               .n = n,
                               .rms = f->rms,
                               .accumulate = f->accumulate,
                               .dtype = t->types.dtype,
                               .w_dtype = t->types.w};

    o.stats = tape_stats(t, o.x, rows, n, f->rms);
    if (f->dx == DX_IN_PLACE)
        o.dy = o.dx = tape_inout(t, o.dtype, count, 1);
    else {
        o.dy = tape_in(t, o.dtype, count, 1);
        o.dx = f->dx == DX_OWN ? tape_out(t, o.dtype, count) : NULL;
    }
    call->rownorm_bwd = o;
}

static double norm_dy(const struct op_rownorm_bwd *o, size_t r, uint32_t i)
{
    return (double)get(o->dtype, o->dy, r * o->n + i);
}

/* x normalized, with the statistics that the op is given. */
static double norm_hat(const struct op_rownorm_bwd *o, size_t r, uint32_t i)
{
    return ((double)get(o->dtype, o->x, r * o->n + i) - (double)o->stats[2 * r]) *
           (double)o->stats[2 * r + 1];
}

/* dx = rstd (g - mean of g - xhat * mean of g xhat), g = dy w; the rms form has no mean of g. */
static void check_norm_dx(const struct op_rownorm_bwd *o, const void *dx, size_t r)
{
    double rstd = (double)o->stats[2 * r + 1], g_mean = 0, g_size = 0, hat_mean = 0, hat_size = 0;

    for (uint32_t i = 0; i < o->n; i++) {
        double g = norm_dy(o, r, i) * (double)get(o->w_dtype, o->w, i), hat = norm_hat(o, r, i);
        g_mean += o->rms ? 0 : g / o->n;
        g_size += o->rms ? 0 : fabs(g) / o->n;
        hat_mean += g * hat / o->n;
        hat_size += fabs(g * hat) / o->n;
    }
    for (uint32_t i = 0; i < o->n; i++) {
        double g = norm_dy(o, r, i) * (double)get(o->w_dtype, o->w, i), hat = norm_hat(o, r, i);
        double off = 6 * (double)EPS * fabs(g) + (sum_off(o->n) + 4 * (double)EPS) * g_size +
                     (sum_off(o->n) + 12 * (double)EPS) * fabs(hat) * hat_size;
        assert_near_in(o->dtype, dx, r * o->n + i, rstd * (g - g_mean - hat * hat_mean), rstd * off + 1e-30);
    }
}

static void check_norm_sums(const struct op_rownorm_bwd *o, const struct op_rownorm_bwd *got, uint32_t i)
{
    double dw = o->accumulate ? (double)o->dw[i] : 0, dw_size = fabs(dw);
    double db = o->accumulate && o->db ? (double)o->db[i] : 0, db_size = fabs(db);

    for (size_t r = 0; r < o->rows; r++) {
        double dy = norm_dy(o, r, i), hat = norm_hat(o, r, i);
        dw += dy * hat;
        dw_size += fabs(dy * hat);
        db += dy;
        db_size += fabs(dy);
    }
    double roundings = 36 + o->rows / 32; /* in chunks of 32, as bias_bwd */
    assert_near(got->dw[i], dw, (roundings + 4) * (double)EPS * dw_size);
    if (o->db)
        assert_near(got->db[i], db, roundings * (double)EPS * db_size);
}

static void check_rownorm_bwd(const struct op_call *in, const struct op_call *out)
{
    const struct op_rownorm_bwd *o = &in->rownorm_bwd, *got = &out->rownorm_bwd;

    for (size_t r = 0; o->dx && r < o->rows; r++)
        check_norm_dx(o, got->dx, r);
    for (uint32_t i = 0; i < o->n; i++)
        check_norm_sums(o, got, i);
}

const struct op_test rownorm_bwd_test = {NORM_BWD_FORMS * N_MATRICES, build_rownorm_bwd, check_rownorm_bwd,
                                         UINT64_C(0x34f1d26bcd0b1f4a), UINT64_C(0xa548944b0c597eeb)};

/* ---- swiglu ---- */

static void build_swiglu_fwd(struct tape *t, uint32_t v, struct op_call *call)
{
    uint32_t rows = matrices[v][0], n = matrices[v][1];
    call->swiglu_fwd = (struct op_swiglu_fwd){.x = tape_in(t, t->types.dtype, 2 * (uint64_t)rows * n, 8),
                                              .y = tape_out(t, t->types.dtype, (uint64_t)rows * n),
                                              .rows = rows,
                                              .n = n,
                                              .dtype = t->types.dtype};
}

static void check_swiglu_fwd(const struct op_call *in, const struct op_call *out)
{
    const struct op_swiglu_fwd *o = &in->swiglu_fwd;

    for (size_t r = 0; r < o->rows; r++)
        for (size_t i = 0; i < o->n; i++) {
            float gate = get(o->dtype, o->x, 2 * r * o->n + i),
                  x = get(o->dtype, o->x, (2 * r + 1) * o->n + i);
            double want = ref_act(ACT_SILU, (double)gate) * (double)x;
            assert_near_in(o->dtype, out->swiglu_fwd.y, r * o->n + i, want, 1e-6 * fabs(want));
            assert_rounded(o->dtype, out->swiglu_fwd.y, r * o->n + i, vmath_silu(gate) * x);
        }
}

const struct op_test swiglu_fwd_test = {N_MATRICES, build_swiglu_fwd, check_swiglu_fwd,
                                        UINT64_C(0x92183abde70177fb), UINT64_C(0xbe149775154c5fba)};

static void build_swiglu_bwd(struct tape *t, uint32_t v, struct op_call *call)
{
    uint32_t rows = matrices[v / 2][0], n = matrices[v / 2][1];
    uint64_t count = (uint64_t)rows * n;
    struct op_swiglu_bwd o = {
        .dy = tape_in(t, t->types.dtype, count, 1), .rows = rows, .n = n, .dtype = t->types.dtype};

    if (v % 2)
        o.x = o.dx = tape_inout(t, o.dtype, 2 * count, 8);
    else {
        o.x = tape_in(t, o.dtype, 2 * count, 8);
        o.dx = tape_out(t, o.dtype, 2 * count);
    }
    call->swiglu_bwd = o;
}

static void check_swiglu_bwd(const struct op_call *in, const struct op_call *out)
{
    const struct op_swiglu_bwd *o = &in->swiglu_bwd;

    for (size_t r = 0; r < o->rows; r++)
        for (size_t i = 0; i < o->n; i++) {
            size_t gate_at = 2 * r * o->n + i, x_at = gate_at + o->n;
            float gate = get(o->dtype, o->x, gate_at), x = get(o->dtype, o->x, x_at),
                  dy = get(o->dtype, o->dy, r * o->n + i);
            double size = fabs((double)dy * (double)x), want = (double)dy * ref_act(ACT_SILU, (double)gate);
            double slope = ref_act_slope(ACT_SILU, (double)gate);
            assert_near_in(o->dtype, out->swiglu_bwd.dx, gate_at, (double)dy * (double)x * slope,
                           5e-7 * (1 + fabs(slope)) * size);
            assert_rounded(o->dtype, out->swiglu_bwd.dx, gate_at, (dy * x) * vmath_silu_slope(gate));
            assert_near_in(o->dtype, out->swiglu_bwd.dx, x_at, want, 1e-6 * fabs(want));
            assert_rounded(o->dtype, out->swiglu_bwd.dx, x_at, dy * vmath_silu(gate));
        }
}

const struct op_test swiglu_bwd_test = {2 * N_MATRICES, build_swiglu_bwd, check_swiglu_bwd,
                                        UINT64_C(0xff92d48935675b21), UINT64_C(0xb726d5f4d143fcb1)};

/* ---- zero ---- */

static void build_zero(struct tape *t, uint32_t v, struct op_call *call)
{
    call->zero = (struct op_zero){.y = tape_result(t, lengths[v]), .bytes = lengths[v] * sizeof(float)};
}

static void check_zero(const struct op_call *in, const struct op_call *out)
{
    for (uint64_t i = 0; i < in->zero.bytes; i++)
        assert_int_equal(((const unsigned char *)out->zero.y)[i], 0);
}

const struct op_test zero_test = {N_LENGTHS, build_zero, check_zero, UINT64_C(0xcbcc4bc662afb7a5)};
