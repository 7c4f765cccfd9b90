/* Weight updates, the sums of gradients that they use, and the decision whether to apply them. Every
 * backend computes the same bits, so these expressions are part of the contract. Each operation is rounded
 * on its own, in float unless it says double, and nothing is fused:
 *
 *   add:     y' = y + x                             (rounded once more if y has a 16-bit type)
 *
 *   sgd and adamw: g = dw * scale                    scale = group ? group->scale : 1
 *                  with several gradients, dw is their sum ((dw[0] + dw[1]) + dw[2]) + ..., and their mean is
 *                  that sum times the float 1 / n; sumsq combines gradients in the same way
 *
 *   sgd:     d = g + weight_decay * w
 *            v' = momentum * v + d                   (without v: v' = d)
 *            w' = w - lr * v'
 *
 *   adamw:   c1 = 1 - beta1, c2 = 1 - beta2, decay = lr * weight_decay                    (once, in float)
 *            m' = beta1 * m + c1 * g
 *            v' = beta2 * v + (c2 * g) * g
 *            w' = (w - decay * w) - (lr * (m' * bias_correct1)) / (sqrt(v' * bias_correct2) + eps)
 *            with the bias corrections of the group
 *
 *            Both apply to the master weights if w has a 16-bit type. Then w is the new master weight,
 *            rounded.
 *
 *   sumsq:   block b has the elements [4096 b, 4096 (b + 1)); its lane l (of 16) adds (double)x * (double)x,
 *            which is exact, over its elements l, l + 16, ... in ascending order; lanes are folded in halves
 *            (l += l + 8, then 4, 2, 1); blocks are added to 0 in ascending order, all in double
 *
 *   decide:  in double, scale rounded to float at the end; bias corrections as in kernels/bias.h
 *            with loss scaling: norm = sqrt(sumsq) / loss_scale, scale = (clip factor) / loss_scale, both
 *            with the old loss scale; the new loss scale is that of loss_scale_change
 *
 * A group whose apply is 0 leaves W and K untouched. Any thread may call it.
 */
#include <math.h>

#include "kernels/bias.h"
#include "kernels/cpu/as_floats.h"
#include "kernels/cpu/ops.h"

#define LANES 16
#define BLOCK 4096u
/* The number of blocks whose sums are on the stack at the same time. These blocks have 8 Mi elements, and
 * their sums take 16 KiB. */
#define BLOCKS_AT_ONCE 2048u
#define BLOCKS_A_PIECE 16u

/* If there are three or more gradients, their elements are combined in a buffer on the stack, COMBINED
 * elements at a time. */
#define COMBINED BLOCK

CPU_CLONES static void add_arrays(float *restrict y, const float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = y[i] + x[i];
}

static void add_piece(void *ctx, uint32_t i)
{
    const struct op_add *o = ctx;
    uint64_t at = piece_begin(i), end = at + piece_size(i, o->n);
    float x_buffer[FLOATS_BLOCK], y_buffer[FLOATS_BLOCK];

    for (size_t n; at < end; at += n) {
        n = floats_span(o->dtype, end - at);
        const float *x = floats_in(o->dtype, o->x, at, n, x_buffer);
        float *y = floats_inout(o->dtype, o->y, at, n, y_buffer);
        add_arrays(y, x, n);
        floats_store(o->dtype, y, o->y, at, n);
    }
}

void cpu_op_add(const struct op_call *call, struct pool *pool)
{
    struct op_add o = call->add;
    pool_run(pool, add_piece, &o, piece_count(o.n));
}

static float group_scale(const struct group_state *g)
{
    return g ? g->scale : 1.0f;
}

static bool group_skips(const struct group_state *g)
{
    return g && !g->apply;
}

/* Returns the weights to which the formulas of an update apply: `w` if its elements are floats, and the
 * master weights otherwise. */
static float *updated_weights(enum dtype dtype, void *w, float *master)
{
    return dtype == DTYPE_F32 ? (float *)w : master;
}

/* The factors of one sgd update. */
struct sgd_scalars {
    float scale, momentum, weight_decay, lr;
};

/* The gradients that an update reads. If there are two, the update adds them element by element while it
 * reads them. In this struct the gradients have the type float. */
struct gradient_pair {
    /* `dw2` is NULL if there is only one gradient. */
    const float *dw, *dw2;
};

CPU_CLONES static void combine_gradients(const struct op_gradients *g, uint64_t at, size_t n,
                                         float *restrict ret)
{
    const float *first = (const float *)g->dw[0] + at;
    for (size_t i = 0; i < n; i++)
        ret[i] = first[i];
    for (uint32_t u = 1; u < g->n; u++) {
        const float *dw = (const float *)g->dw[u] + at;
        for (size_t i = 0; i < n; i++)
            ret[i] = ret[i] + dw[i];
    }
    const float part = 1.0f / (float)g->n;
    for (size_t i = 0; g->mean && i < n; i++)
        ret[i] = ret[i] * part;
}

/* Returns true if an update can read the gradients directly. This is the case for one gradient, and for two
 * gradients that are added and not averaged. */
static bool is_pair(const struct op_gradients *g)
{
    return g->n == 1 || (g->n == 2 && !g->mean);
}

/* Returns `n` elements of the gradients, starting at element `at`. If the update can read the gradients
 * directly, the function returns their addresses. Otherwise it stores the combined elements in `buffer` and
 * returns `buffer`. In this case, `n` must be at most COMBINED. */
static struct gradient_pair gradients_at(const struct op_gradients *g, uint64_t at, size_t n, float *buffer)
{
    if (is_pair(g))
        return (struct gradient_pair){(const float *)g->dw[0] + at,
                                      g->n == 2 ? (const float *)g->dw[1] + at : NULL};
    combine_gradients(g, at, n, buffer);
    return (struct gradient_pair){buffer, NULL};
}

/* Returns how many of the next `n` elements of weights of type `dtype` an update handles together. It handles
 * all of them if it needs no buffer for combined gradients and rounds no weights. Otherwise it handles as
 * many as fit into the buffer, so that the new master weights are still in a cache when they are rounded. */
static size_t update_span(const struct op_gradients *g, enum dtype dtype, size_t n)
{
    return (is_pair(g) && dtype == DTYPE_F32) || n < COMBINED ? n : COMBINED;
}

/* Returns dw[i], or dw[i] + dw2[i] if `dw2` is not NULL. `dw2` is the same in every iteration, so the
 * compiler moves the test out of the loop. */
CPU_INLINE float gradient(const float *restrict dw, const float *restrict dw2, size_t i)
{
    return dw2 ? dw[i] + dw2[i] : dw[i];
}

CPU_CLONES static void sgd_plain(float *restrict w, const float *restrict dw, const float *restrict dw2,
                                 size_t n, struct sgd_scalars s)
{
    for (size_t i = 0; i < n; i++) {
        float g = gradient(dw, dw2, i) * s.scale;
        float d = g + s.weight_decay * w[i];
        w[i] = w[i] - s.lr * d;
    }
}

CPU_CLONES static void sgd_momentum(float *restrict w, const float *restrict dw, const float *restrict dw2,
                                    float *restrict v, size_t n, struct sgd_scalars s)
{
    for (size_t i = 0; i < n; i++) {
        float g = gradient(dw, dw2, i) * s.scale;
        float d = g + s.weight_decay * w[i];
        v[i] = s.momentum * v[i] + d;
        w[i] = w[i] - s.lr * v[i];
    }
}

static void sgd_piece(void *ctx, uint32_t i)
{
    const struct op_call *call = ctx;
    const struct op_sgd *o = &call->sgd;
    struct sgd_scalars s = {group_scale(o->group), o->momentum, o->weight_decay, call->step->lr};
    uint64_t at = piece_begin(i), end = at + piece_size(i, o->n);
    float *w = updated_weights(o->dtype, o->w, o->master), buffer[COMBINED];

    for (size_t n; at < end; at += n) {
        n = update_span(&o->g, o->dtype, (size_t)(end - at));
        const struct gradient_pair g = gradients_at(&o->g, at, n, buffer);
        if (o->v)
            sgd_momentum(w + at, g.dw, g.dw2, o->v + at, n, s);
        else
            sgd_plain(w + at, g.dw, g.dw2, n, s);
        floats_store(o->dtype, w + at, o->w, at, n);
    }
}

void cpu_op_sgd(const struct op_call *call, struct pool *pool)
{
    struct op_call c = *call;
    if (!group_skips(c.sgd.group))
        pool_run(pool, sgd_piece, &c, piece_count(c.sgd.n));
}

/* The factors of one adamw update. */
struct adamw_scalars {
    float scale, beta1, beta2, c1, c2, eps, decay, lr, bias_correct1, bias_correct2;
};

CPU_CLONES static void adamw(float *restrict w, const float *restrict dw, const float *restrict dw2,
                             float *restrict m, float *restrict v, size_t n, const struct adamw_scalars *from)
{
    const struct adamw_scalars s = *from;

    for (size_t i = 0; i < n; i++) {
        float g = gradient(dw, dw2, i) * s.scale;
        m[i] = s.beta1 * m[i] + s.c1 * g;
        v[i] = s.beta2 * v[i] + (s.c2 * g) * g;
        float step = (s.lr * (m[i] * s.bias_correct1)) / (__builtin_sqrtf(v[i] * s.bias_correct2) + s.eps);
        w[i] = (w[i] - s.decay * w[i]) - step;
    }
}

static void adamw_piece(void *ctx, uint32_t i)
{
    const struct op_call *call = ctx;
    const struct op_adamw *o = &call->adamw;
    const struct adamw_scalars s = {
        .scale = group_scale(o->group),
        .beta1 = o->beta1,
        .beta2 = o->beta2,
        .c1 = 1.0f - o->beta1,
        .c2 = 1.0f - o->beta2,
        .eps = o->eps,
        .decay = call->step->lr * o->weight_decay,
        .lr = call->step->lr,
        .bias_correct1 = o->group ? o->group->bias_correct1 : 1.0f,
        .bias_correct2 = o->group ? o->group->bias_correct2 : 1.0f,
    };
    uint64_t at = piece_begin(i), end = at + piece_size(i, o->n);
    float *w = updated_weights(o->dtype, o->w, o->master), buffer[COMBINED];

    for (size_t n; at < end; at += n) {
        n = update_span(&o->g, o->dtype, (size_t)(end - at));
        const struct gradient_pair g = gradients_at(&o->g, at, n, buffer);
        adamw(w + at, g.dw, g.dw2, o->m + at, o->v + at, n, &s);
        floats_store(o->dtype, w + at, o->w, at, n);
    }
}

void cpu_op_adamw(const struct op_call *call, struct pool *pool)
{
    struct op_call c = *call;
    if (!group_skips(c.adamw.group))
        pool_run(pool, adamw_piece, &c, piece_count(c.adamw.n));
}

CPU_INLINE double square(const float *x, const float *x2, size_t i)
{
    double v = (double)gradient(x, x2, i);
    return v * v;
}

CPU_CLONES static double block_sumsq(const float *x, const float *x2, size_t n)
{
    double lane[LANES] = {0};
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] = lane[l] + square(x, x2, i + l);
    for (size_t l = 0; i + l < n; l++)
        lane[l] = lane[l] + square(x, x2, i + l);
    for (int w = LANES / 2; w > 0; w /= 2)
        for (int l = 0; l < w; l++)
            lane[l] = lane[l] + lane[l + w];
    return lane[0];
}

/* The arguments and results of one pool_run of sumsq. Each piece of work writes one sum for each of its
 * blocks. */
struct sumsq_ctx {
    const struct op_gradients *g;
    uint64_t first; /* element at which this pool_run begins */
    /* The number of elements whose squares this pool_run adds up, at most BLOCKS_AT_ONCE * BLOCK. */
    uint64_t n;
    double sums[BLOCKS_AT_ONCE];
};

static uint32_t block_count(uint64_t n)
{
    return (uint32_t)((n + BLOCK - 1) / BLOCK);
}

static void sumsq_piece(void *ctx, uint32_t piece)
{
    struct sumsq_ctx *c = ctx;
    uint32_t end = (piece + 1) * BLOCKS_A_PIECE, blocks = block_count(c->n);
    float buffer[COMBINED];

    for (uint32_t b = piece * BLOCKS_A_PIECE; b < end && b < blocks; b++) {
        uint64_t at = (uint64_t)b * BLOCK, left = c->n - at;
        size_t n = left < BLOCK ? (size_t)left : BLOCK;
        const struct gradient_pair g = gradients_at(c->g, c->first + at, n, buffer);
        c->sums[b] = block_sumsq(g.dw, g.dw2, n);
    }
}

void cpu_op_sumsq(const struct op_call *call, struct pool *pool)
{
    const struct op_sumsq *o = &call->sumsq;
    const uint64_t most = (uint64_t)BLOCKS_AT_ONCE * BLOCK;
    struct sumsq_ctx c;
    double sum = 0;

    for (uint64_t at = 0; at < o->n; at += most) {
        c.g = &o->g;
        c.first = at;
        c.n = o->n - at < most ? o->n - at : most;
        uint32_t blocks = block_count(c.n);
        pool_run(pool, sumsq_piece, &c, (blocks + BLOCKS_A_PIECE - 1) / BLOCKS_A_PIECE);
        for (uint32_t b = 0; b < blocks; b++)
            sum += c.sums[b];
    }
    *o->sum = sum;
}

void cpu_op_norm_add(const struct op_call *call, struct pool *pool)
{
    const struct op_norm_add *o = &call->norm_add;
    (void)pool;
    const double sum = o->other && isfinite(*o->sum) ? 0.0 : *o->sum;
    o->decision->sumsq = (o->first ? 0.0 : o->decision->sumsq) + sum;
    if (o->first)
        o->decision->bad_layer = STEP_NO_LAYER;
    if (!isfinite(*o->sum))
        o->decision->bad_layer = o->layer;
}

void cpu_op_decide(const struct op_call *call, struct pool *pool)
{
    const struct op_decide *o = &call->decide;
    struct group_state *g = o->group;
    /* Without loss scaling, the group state ends before the field loss_scale. */
    const double loss_scale = o->growth_steps > 0 ? (double)g->loss_scale : 1.0;
    double norm = o->decision ? sqrt(o->decision->sumsq) / loss_scale : 0;

    (void)pool;
    g->apply = isfinite(norm) ? 1 : 0;
    if (o->decision)
        o->decision->apply = g->apply;
    if (o->growth_steps > 0)
        loss_scale_change(o->growth_steps, g->apply != 0, &g->loss_scale, &g->good_steps);
    if (!g->apply)
        return;
    g->t++;
    g->scale = (float)((o->clip > 0 && norm > o->clip ? o->clip / (norm + 1e-6) : 1.0) / loss_scale);
    g->bias_correct1 = bias_correction(o->beta1, g->t);
    g->bias_correct2 = bias_correction(o->beta2, g->t);
}
