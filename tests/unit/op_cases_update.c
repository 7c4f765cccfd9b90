/* Test cases of the updates, and of the norm that decides about them, in the form that op_cases.h
 * describes. */
#include "tests/unit/op_cases.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

/* The variants of an update are all lengths, each with {scale 1, apply with a scale, do not apply}. They are
 * repeated for each of these ways to combine the gradients of layers that share weights. */
static const struct {
    uint32_t n;
    bool mean;
} ways[] = {{1, false}, {2, false}, {2, true}, {3, false}, {OP_USES, true}};

static struct op_gradients tape_gradients(struct tape *t, uint32_t way, uint64_t n)
{
    struct op_gradients g = {.n = ways[way].n, .mean = ways[way].mean};
    for (uint32_t u = 0; u < g.n; u++)
        g.dw[u] = tape_floats(t, n, 1);
    return g;
}

/* The combined gradient, exactly as op.h promises it. */
static float combined(const struct op_gradients *g, uint64_t i)
{
    float sum = g->dw[0][i];
    for (uint32_t u = 1; u < g->n; u++)
        sum += g->dw[u][i];
    return g->mean ? sum * (1.0f / (float)g->n) : sum;
}

/* The size of a group state without loss scaling. */
#define GROUP_BYTES offsetof(struct group_state, loss_scale)

static const struct group_state *tape_group(struct tape *t, uint32_t kind)
{
    struct group_state *g = tape_bytes(t, GROUP_BYTES, _Alignof(struct group_state));
    const struct group_state from = {.t = 4,
                                     .bias_correct1 = 1.25f,
                                     .bias_correct2 = 17.5f,
                                     .scale = kind == 0 ? 1 : 0.37f,
                                     .apply = kind < 2};
    return memcpy(g, &from, GROUP_BYTES);
}

static float used_scale(const struct group_state *g)
{
    return g ? g->scale : 1.0f;
}

/* Weights of a 16-bit type are only written. The update reads their master weights instead. */
static void *tape_weights(struct tape *t, uint64_t n)
{
    const enum dtype dtype = t->types.dtype;
    return dtype == DTYPE_F32 ? tape_state(t, n, 1) : tape_out(t, dtype, n);
}

static float *tape_master(struct tape *t, uint64_t n)
{
    return t->types.dtype == DTYPE_F32 ? NULL : tape_state(t, n, 1);
}

/* The weights of an update: float weights before and after the update, and the 16-bit weights before and
 * after it, if there are any. */
struct weights {
    const float *old, *new;
    enum dtype dtype;
    const void *old_rounded, *new_rounded;
};

static struct weights weights_of(enum dtype dtype, const void *old, const float *old_master, const void *new,
                                 const float *new_master)
{
    return dtype == DTYPE_F32 ? (struct weights){.old = old, .new = new}
                              : (struct weights){old_master, new_master, dtype, old, new};
}

/* Weight `i` must be `want` now. If it has a 16-bit copy, the copy must be rounded, or unchanged if the
 * update was skipped. */
static void check_weight(const struct weights *w, uint64_t i, float want, bool applied)
{
    const uint16_t *before = w->old_rounded, *after = w->new_rounded;

    assert_bits(w->new[i], want);
    if (w->new_rounded && applied)
        assert_rounded(w->dtype, w->new_rounded, i, want);
    else if (w->new_rounded)
        assert_int_equal(after[i], before[i]);
}

#define SGD_VARIANTS (6 * N_LENGTHS)

static void build_sgd(struct tape *t, uint32_t v, struct op_call *call)
{
    uint32_t way = v / SGD_VARIANTS;
    v %= SGD_VARIANTS;
    uint64_t n = lengths[v / 6];
    call->sgd = (struct op_sgd){.w = tape_weights(t, n),
                                .master = tape_master(t, n),
                                .g = tape_gradients(t, way, n),
                                .v = v % 2 ? tape_state(t, n, 1) : NULL,
                                .group = v / 2 % 3 == 0 ? NULL : tape_group(t, v / 2 % 3),
                                .n = n,
                                .momentum = v % 2 ? 0.9f : 0,
                                .weight_decay = 0.01f,
                                .dtype = t->types.dtype};
}

static void check_sgd(const struct op_call *in, const struct op_call *out)
{
    const struct op_sgd *o = &in->sgd, *got = &out->sgd;
    const struct weights weights = weights_of(o->dtype, o->w, o->master, got->w, got->master);
    const bool applied = !o->group || o->group->apply;
    float scale = used_scale(o->group), lr = in->step->lr;

    for (uint64_t i = 0; i < o->n; i++) {
        float w = weights.old[i], v = o->v ? o->v[i] : 0, g = combined(&o->g, i);
        double dv = 0, dw = 0;
        if (applied) { /* once exactly as promised, once in double */
            dv = (double)o->momentum * (double)v +
                 ((double)g * (double)scale + (double)o->weight_decay * (double)w);
            dw = (double)w - (double)lr * dv;
            float d = g * scale + o->weight_decay * w;
            v = o->v ? o->momentum * v + d : d;
            w = w - lr * v;
            assert_near(w, dw, 4 * (double)EPS);
        }
        check_weight(&weights, i, w, applied);
        if (o->v)
            assert_bits(got->v[i], v);
    }
}

const struct op_test sgd_test = {COUNT(ways) * SGD_VARIANTS, build_sgd, check_sgd,
                                 UINT64_C(0xa74697a120fc3830), UINT64_C(0xea1378b3916e8c40)};

#define ADAMW_VARIANTS (3 * N_LENGTHS)

static void build_adamw(struct tape *t, uint32_t v, struct op_call *call)
{
    uint32_t way = v / ADAMW_VARIANTS;
    v %= ADAMW_VARIANTS;
    uint64_t n = lengths[v / 3];
    float *moment = tape_state(t, n, 0.1f);
    for (uint64_t i = 0; i < n; i++)
        moment[i] = moment[i] * moment[i];
    call->adamw = (struct op_adamw){.w = tape_weights(t, n),
                                    .master = tape_master(t, n),
                                    .g = tape_gradients(t, way, n),
                                    .m = tape_state(t, n, 0.1f),
                                    .v = moment,
                                    .group = tape_group(t, v % 3),
                                    .n = n,
                                    .beta1 = 0.9f,
                                    .beta2 = 0.999f,
                                    .eps = 1e-8f,
                                    .weight_decay = 0.01f,
                                    .dtype = t->types.dtype};
}

static double adamw_in_double(const struct op_adamw *o, const struct step_args *s, const float *weights,
                              uint64_t i)
{
    double g = (double)combined(&o->g, i) * (double)used_scale(o->group), b1 = (double)o->beta1,
           b2 = (double)o->beta2;
    double m = b1 * (double)o->m[i] + (1 - b1) * g, v = b2 * (double)o->v[i] + (1 - b2) * g * g;
    double w = (double)weights[i] * (1 - (double)s->lr * (double)o->weight_decay);
    double denominator = sqrt(v * (double)o->group->bias_correct2) + (double)o->eps;
    return w - (double)s->lr * m * (double)o->group->bias_correct1 / denominator;
}

static void check_adamw(const struct op_call *in, const struct op_call *out)
{
    const struct op_adamw *o = &in->adamw, *got = &out->adamw;
    const struct weights weights = weights_of(o->dtype, o->w, o->master, got->w, got->master);
    const struct step_args *s = in->step;
    float scale = used_scale(o->group), c1 = 1.0f - o->beta1, c2 = 1.0f - o->beta2;
    float decay = s->lr * o->weight_decay;

    for (uint64_t i = 0; i < o->n; i++) {
        float w = weights.old[i], m = o->m[i], v = o->v[i];
        if (o->group->apply) {
            float g = combined(&o->g, i) * scale;
            m = o->beta1 * m + c1 * g;
            v = o->beta2 * v + (c2 * g) * g;
            w = (w - decay * w) -
                (s->lr * (m * o->group->bias_correct1)) / (sqrtf(v * o->group->bias_correct2) + o->eps);
            assert_near(w, adamw_in_double(o, s, weights.old, i), 1e-6 * fmax(1, fabs((double)w)));
        }
        check_weight(&weights, i, w, o->group->apply);
        assert_bits(got->m[i], m);
        assert_bits(got->v[i], v);
    }
}

const struct op_test adamw_test = {COUNT(ways) * ADAMW_VARIANTS, build_adamw, check_adamw,
                                   UINT64_C(0x9874d9fc9a6d7722), UINT64_C(0x5c5dddc641f1e8b8)};

/* Each length occurs twice: with random numbers, and with pairs of the special values below. Sums that give
 * NaN are left to the tests of each backend, because their bits are not guaranteed. */
#define N_ODD 14
static const float odd_floats[N_ODD] = {0.0f,       -0.0f,     1.0f,       -1.0f,       0x1p-126f,
                                        -0x1p-126f, 0x1p-149f, -0x1p-149f, 0x1.8p-140f, 0x1p-127f,
                                        FLT_MAX,    -FLT_MAX,  INFINITY,   0x1p24f};
static const float odd_bf16[N_ODD] = {0.0f,        -0.0f,        1.0f,       -1.0f,       0x1p-126f,
                                      -0x1p-126f,  0x1p-133f,    -0x1p-133f, 0x1.8p-132f, 0x1p-127f,
                                      0x1.fep127f, -0x1.fep127f, INFINITY,   0x1p8f};
static const float odd_f16[N_ODD] = {0.0f,      -0.0f,     1.0f,      -1.0f,      0x1p-14f,
                                     -0x1p-14f, 0x1p-24f,  -0x1p-24f, 0x1.8p-23f, 0x1p-15f,
                                     65504.0f,  -65504.0f, INFINITY,  0x1p11f};

static void build_add(struct tape *t, uint32_t v, struct op_call *call)
{
    uint64_t n = lengths[v / 2];
    const enum dtype dtype = t->types.dtype;
    const float *odd = dtype == DTYPE_F32 ? odd_floats : dtype == DTYPE_BF16 ? odd_bf16 : odd_f16;
    void *y = tape_inout(t, dtype, n, 1), *x = tape_in(t, dtype, n, 1e-3f);
    for (uint64_t i = 0; v % 2 && i < n; i++) {
        put(dtype, y, i, odd[i % N_ODD]);
        put(dtype, x, i, odd[i / N_ODD % N_ODD]);
    }
    call->add = (struct op_add){.y = y, .x = x, .n = n, .dtype = dtype};
}

/* The expected sum is computed in double and then rounded to float. This gives the float nearest to the exact
 * sum, because double has more than twice the digits of float. A 16-bit sum is that float, rounded. */
static void check_add(const struct op_call *in, const struct op_call *out)
{
    const struct op_add *o = &in->add;

    for (uint64_t i = 0; i < o->n; i++)
        assert_rounded(o->dtype, out->add.y, i,
                       (float)((double)get(o->dtype, o->y, i) + (double)get(o->dtype, o->x, i)));
}

const struct op_test add_test = {2 * N_LENGTHS, build_add, check_add, UINT64_C(0x6d44aa6be89df52e),
                                 UINT64_C(0x145dc30cf621456d)};

static const uint64_t sumsq_lengths[] = {1, 2, 15, 16, 17, 4095, 4096, 4097, 70001, (8u << 20) + 5000};
/* The last length, which is large, is tried with one gradient only. */
#define SUMSQ_VARIANTS (COUNT(sumsq_lengths) - 1)

static double *tape_double(struct tape *t, double value)
{
    double *d = tape_bytes(t, sizeof *d, _Alignof(double));
    *d = value;
    return d;
}

static void build_sumsq(struct tape *t, uint32_t v, struct op_call *call)
{
    bool large = v == COUNT(ways) * SUMSQ_VARIANTS;
    uint64_t n = sumsq_lengths[large ? SUMSQ_VARIANTS : v % SUMSQ_VARIANTS];
    double *sum = tape_double(t, NAN);
    tape_output(t, sum, sizeof *sum);
    call->sumsq =
        (struct op_sumsq){.g = tape_gradients(t, large ? 0 : v / SUMSQ_VARIANTS, n), .sum = sum, .n = n};
}

/* The order that ops_update.c promises to every backend. */
static double promised_sumsq(const struct op_gradients *g, uint64_t n)
{
    double sum = 0;
    for (uint64_t at = 0; at < n; at += 4096) {
        double lane[16] = {0};
        for (uint64_t i = at; i < n && i < at + 4096; i++)
            lane[i % 16] += (double)combined(g, i) * (double)combined(g, i);
        for (int w = 8; w > 0; w /= 2)
            for (int l = 0; l < w; l++)
                lane[l] += lane[l + w];
        sum += lane[0];
    }
    return sum;
}

static void check_sumsq(const struct op_call *in, const struct op_call *out)
{
    const struct op_sumsq *o = &in->sumsq;
    long double want = 0;
    for (uint64_t i = 0; i < o->n; i++)
        want += (long double)combined(&o->g, i) * (long double)combined(&o->g, i);
    assert_true(fabsl(*out->sumsq.sum - want) <= 1e-12L * want);
    assert_true(*out->sumsq.sum == promised_sumsq(&o->g, o->n));
}

const struct op_test sumsq_test = {COUNT(ways) * SUMSQ_VARIANTS + 1, build_sumsq, check_sumsq,
                                   UINT64_C(0x3fcabe8b2796845a)};

static struct step_decision *tape_new_decision(struct tape *t, double sumsq)
{
    struct step_decision *d = tape_bytes(t, sizeof *d, _Alignof(struct step_decision));
    *d = (struct step_decision){.sumsq = sumsq, .bad_layer = 9, .apply = 77};
    tape_output(t, d, sizeof *d);
    return d;
}

static void build_norm_add(struct tape *t, uint32_t v, struct op_call *call)
{
    call->norm_add = (struct op_norm_add){.sum = tape_double(t, v % 4 < 2 ? 0.1 : (double)INFINITY),
                                          .decision = tape_new_decision(t, v % 2 == 0 ? NAN : 0.7),
                                          .first = v % 2 == 0,
                                          .other = v >= 4,
                                          .layer = 5};
    if (!call->norm_add.first)
        call->norm_add.decision->bad_layer = 3;
}

static void check_norm_add(const struct op_call *in, const struct op_call *out)
{
    const struct op_norm_add *o = &in->norm_add;
    double want = (o->first ? 0 : 0.7) + (o->other && !isinf(*o->sum) ? 0 : *o->sum);
    uint32_t bad = isinf(*o->sum) ? 5 : o->first ? STEP_NO_LAYER : 3;
    assert_true(out->norm_add.decision->sumsq == want);
    assert_int_equal(out->norm_add.decision->bad_layer, bad);
}

const struct op_test norm_add_test = {8, build_norm_add, check_norm_add};

/* The fields of a loss scale before and after the decision mean nothing in cases without loss scaling. */
static const struct decide_case {
    double sumsq, clip;
    uint64_t t; /* before */
    uint32_t apply;
    float scale;
    float loss_scale; /* before */
    uint32_t good_steps;
    float new_loss_scale; /* after */
    uint32_t new_good_steps;
} decide_cases[] = {
    {0, 0, 0, 1, 1},
    {25, 0, 1, 1, 1},
    {25, 6, 2, 1, 1},
    {25, 5, 1000, 1, 1},
    {25, 2, 6, 1, (float)(2 / (5 + 1e-6))},
    {1e300, 1, 1ull << 40, 1, (float)(1 / (1e150 + 1e-6))},
    {(double)INFINITY, 0, 8, 0, -1},
    {(double)NAN, 1, 9, 0, -1},
    {-1, 3, 10, 1, 1}, /* no decision: clip means nothing */
};

/* The loss scale doubles after this number of steps without an overflow. */
#define GROWTH_STEPS 3

static const struct decide_case scaled_cases[] = {
    {0, 0, 0, 1, 0x1p-16f, 0x1p16f, 0, 0x1p16f, 1},
    {25, 0, 1, 1, 0x1p-10f, 0x1p10f, 1, 0x1p10f, 2},
    {25, 0, 2, 1, 0x1p-10f, 0x1p10f, 2, 0x1p11f, 0},          /* the third step */
    {25 * 0x1p20, 6, 3, 1, 0x1p-10f, 0x1p10f, 0, 0x1p10f, 1}, /* the norm is 5: no clipping */
    {25 * 0x1p20, 2, 4, 1, (float)(2 / (5 + 1e-6) * 0x1p-10), 0x1p10f, 2, 0x1p11f, 0},
    {36, 1, 1ull << 40, 1, (float)(1 / (2 + 1e-6) / 3), 3, 0, 3, 1}, /* the norm is 6 / 3 */
    {(double)INFINITY, 0, 8, 0, -1, 0x1p16f, 2, 0x1p15f, 0},
    {(double)NAN, 1, 9, 0, -1, 1, 0, 0.5f, 0},
    {1e300, 0, 10, 1, 0x1p-16f, 0x1p16f, 0, 0x1p16f, 1},
};
_Static_assert(COUNT(scaled_cases) == COUNT(decide_cases), "both are the variants of one op");

/* Losses are scaled if the job has the type F16. */
static bool scales_losses(const struct tape *t)
{
    return t->types.dtype == DTYPE_F16;
}

static void build_decide(struct tape *t, uint32_t v, struct op_call *call)
{
    const struct decide_case *c = scales_losses(t) ? &scaled_cases[v] : &decide_cases[v];
    const size_t bytes = scales_losses(t) ? sizeof(struct group_state) : GROUP_BYTES;
    struct group_state *g = tape_bytes(t, bytes, _Alignof(struct group_state));

    const struct group_state from = {.t = c->t,
                                     .bias_correct1 = -2,
                                     .bias_correct2 = -3,
                                     .scale = -1,
                                     .apply = 55,
                                     .loss_scale = c->loss_scale,
                                     .good_steps = c->good_steps};
    memcpy(g, &from, bytes);
    tape_output(t, g, bytes);
    call->decide = (struct op_decide){.decision = c->sumsq < 0 ? NULL : tape_new_decision(t, c->sumsq),
                                      .group = g,
                                      .clip = c->clip,
                                      .beta1 = 0.9f,
                                      .beta2 = 0.999f,
                                      .growth_steps = scales_losses(t) ? GROWTH_STEPS : 0};
}

static float correction(float beta, uint64_t t)
{
    return (float)(1.0 / (1.0 - pow((double)beta, (double)t)));
}

/* A skipped step changes nothing but `apply` and the loss scale. */
static void check_decide(const struct op_call *in, const struct op_call *out)
{
    const struct op_decide *o = &in->decide;
    const struct group_state *g = out->decide.group;
    const struct decide_case *c = o->growth_steps > 0 ? scaled_cases : decide_cases;

    while (c->t != o->group->t) /* no two cases of a table have the same */
        c++;
    assert_int_equal(g->apply, c->apply);
    assert_bits(g->scale, c->scale);
    assert_int_equal(g->t, c->t + c->apply);
    assert_bits(g->bias_correct1, c->apply ? correction(o->beta1, g->t) : -2);
    assert_bits(g->bias_correct2, c->apply ? correction(o->beta2, g->t) : -3);
    if (o->growth_steps > 0) {
        assert_bits(g->loss_scale, c->new_loss_scale);
        assert_int_equal(g->good_steps, c->new_good_steps);
    }
    if (o->decision) {
        assert_int_equal(out->decide.decision->apply, c->apply);
        assert_int_equal(out->decide.decision->bad_layer, 9);
    }
}

const struct op_test decide_test = {COUNT(decide_cases), build_decide, check_decide,
                                    UINT64_C(0xfbd744d4937d66e9), UINT64_C(0xb7fafa7523d5dde4)};
