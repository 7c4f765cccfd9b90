/* Tests every layer kind in layers.def, in the configurations of layer_configs.h.
 *
 * Forward passes are compared with a reference in double precision, and backward passes with central
 * differences of that reference. Blocks are allocated with exactly the number of bytes that sizes() returns,
 * so a sanitizer checks the sizes.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "kernels/cpu/cpu.h"
#include "kernels/layer.h"
#include "layer_configs.h"
#include "reference.h"

#define COUNT(array) ((uint32_t)(sizeof(array) / sizeof((array)[0])))
#define FIRST_ROW    100

static struct pool *pool;

/* ---- a sink that runs launches at once ---- */

struct sink_log {
    uint32_t n;
    enum op ops[16];
    uint32_t fail_at; /* this launch fails; UINT32_MAX: none */
};

static int launch_now(void *ctx, const struct op_call *call)
{
    struct sink_log *log = ctx;
    if (log->n == log->fail_at)
        return -EIO;
    log->ops[log->n++ % COUNT(log->ops)] = call->op;
    cpu_ops[call->op](call, pool);
    return 0;
}

/* ---- one layer with all its blocks ---- */

struct rig {
    const struct layer *l;
    const struct layer_type *type;
    struct layer_sizes sizes;
    struct step_args step;
    struct layer_io io;
    float *w, *x, *dy, *b;
    struct sink_log log;
    struct op_sink sink;
};

/* Returns element `i` of a block of floats. */
static float element(const void *floats, uint64_t i)
{
    return ((const float *)floats)[i];
}

/* Returns a block of exactly `bytes` bytes filled with NaN, or NULL when the layer has no such block. */
static void *block(uint64_t bytes)
{
    if (bytes == 0)
        return NULL;
    void *p = malloc(bytes);
    assert_non_null(p);
    memset(p, 0xff, bytes);
    return p;
}

static float *random_block(uint64_t bytes, uint32_t key, float scale)
{
    float *p = block(bytes);
    if (p)
        ref_fill(p, bytes / sizeof *p, key, scale);
    return p;
}

/* Classes, and in sequences some that are ignored. */
static void *random_target(const struct layer *l, uint32_t rows, uint64_t bytes)
{
    if (l->type != &layer_softmax_xent && l->type != &layer_lm_head && l->type != &layer_label_vectors)
        return random_block(bytes, 4, 1);
    uint32_t classes = l->type == &layer_lm_head         ? l->lm_head.vocab
                       : l->type == &layer_label_vectors ? l->label_vectors.classes
                                                         : layer_width(l);
    int32_t *t = block(bytes);
    for (uint32_t r = 0; r < rows * layer_seq(l); r++)
        t[r] = layer_seq(l) > 1 && r % 5 == 3 ? -1 : (int32_t)(r * 3 % classes);
    return t;
}

static float *random_input(const struct layer *l, uint64_t bytes)
{
    float *x = random_block(bytes, 2, 2);
    for (uint32_t i = 0; l->type == &layer_embedding && i < bytes / sizeof *x; i++) {
        int32_t id = (int32_t)(i * 5 / 2 % l->embedding.vocab);
        memcpy(&x[i], &id, sizeof id);
    }
    return x;
}

static void rig_init(struct rig *g, const struct layer *l, uint32_t rows)
{
    *g = (struct rig){.l = l, .type = layer_type(l)};
    g->type->sizes(l, rows, &g->sizes);
    g->step = (struct step_args){
        .step = 9, .seed = 5, .grad_scale = 0.25f, .valid_rows = UINT32_MAX, .training = 1};
    g->w = random_block(g->sizes.w, 1, 1);
    g->x = random_input(l, g->sizes.x);
    g->dy = random_block(g->sizes.y, 3, 1);
    g->b = random_block(g->sizes.b, 5, 1);
    if (g->type->init_buffers != NULL)
        g->type->init_buffers(l, g->step.seed, g->b);
    g->io = (struct layer_io){
        .step = &g->step,
        .rows = rows,
        .first_row = FIRST_ROW,
        .w = g->w,
        .x = g->x,
        .b = g->b,
        .y = block(g->sizes.y),
        .s = block(g->sizes.s),
        .dw = block(g->sizes.w),
        .dx = block(g->sizes.x),
        .dy = g->dy,
        .target = random_target(l, rows, g->sizes.target),
        .result = block(g->sizes.result),
    };
    g->log.fail_at = UINT32_MAX;
    g->sink = (struct op_sink){launch_now, &g->log};
}

static void rig_finish(struct rig *g)
{
    free(g->w);
    free(g->x);
    free(g->dy);
    free(g->b);
    free(g->io.y);
    free(g->io.s);
    free(g->io.dw);
    free(g->io.dx);
    free((void *)(uintptr_t)g->io.target);
    free(g->io.result);
}

/* Number of guard bytes behind a scratch block, which a pass must not change. With a sanitizer there are
 * none, because the sanitizer detects a write behind the block itself. */
#if defined(__SANITIZE_ADDRESS__)
#define BEHIND 0
#else
#define BEHIND 256
#endif

/* Runs a pass with a scratch block of `scratch_bytes` bytes, and asserts that it writes nothing behind the
 * block. */
static int run_pass(struct rig *g,
                    int (*pass)(const struct layer *, const struct layer_io *, const struct op_sink *),
                    uint64_t scratch_bytes)
{
    uint8_t *scratch = block(scratch_bytes + BEHIND); /* 0xff everywhere, which no op writes */

    g->io.scratch = scratch_bytes > 0 ? scratch : NULL;
    int r = pass(g->l, &g->io, &g->sink);
    for (uint64_t i = 0; i < BEHIND; i++)
        assert_int_equal(scratch[scratch_bytes + i], 0xff);
    g->io.scratch = NULL;
    free(scratch);
    return r;
}

static int try_fwd(struct rig *g)
{
    return run_pass(g, g->type->fwd, g->io.s ? g->sizes.room : g->sizes.scratch_fwd);
}

static int try_bwd(struct rig *g)
{
    return run_pass(g, g->type->bwd, g->sizes.scratch_bwd);
}

static void rig_fwd(struct rig *g)
{
    assert_int_equal(try_fwd(g), 0);
}

static void rig_bwd(struct rig *g)
{
    assert_int_equal(try_bwd(g), 0);
}

/* The state of a test is a pointer to the struct configs of one kind. */
static void for_each_config(void (*fn)(const struct layer *l, uint32_t rows), void **state)
{
    static const uint32_t rows[] = {1, 3, 17};
    const struct configs *kind = *state;
    for (uint32_t i = 0; i < kind->n; i++)
        for (uint32_t r = 0; r < COUNT(rows); r++)
            fn(&kind->at[i], rows[r]);
}

/* ---- forward ---- */

static void check_fwd(const struct layer *l, uint32_t rows)
{
    struct rig g;
    rig_init(&g, l, rows);
    rig_fwd(&g);

    uint64_t n = g.type->is_loss ? 1 : g.sizes.y / sizeof(float);
    double *w = ref_to_double(g.w, g.sizes.w / sizeof(float)),
           *x = ref_to_double(g.x, g.sizes.x / sizeof(float));
    double *want = malloc(n * sizeof *want);
    ref_layer_fwd(&(struct ref_layer){l, &g.step, rows, FIRST_ROW, w, x, g.io.target, g.b}, want);
    for (uint64_t i = 0; i < n; i++) {
        double got = g.type->is_loss ? g.io.result->loss : (double)element(g.io.y, i);
        if (!(fabs(got - want[i]) <= 1e-5 * (1 + fabs(want[i]))))
            fail_msg("%s rows %u: [%lu] is %.9g, want %.9g", g.type->name, rows, (unsigned long)i, got,
                     want[i]);
    }
    free(w);
    free(x);
    free(want);
    rig_finish(&g);
}

static void test_layer_fwd_matches_reference(void **state)
{
    for_each_config(check_fwd, state);
}

/* The forward pass must give the same y with and without S, and the same S with and without y. */
static void check_saved(const struct layer *l, uint32_t rows)
{
    struct rig g, without, only;
    rig_init(&g, l, rows);
    rig_init(&without, l, rows);
    rig_init(&only, l, rows);
    free(without.io.s);
    without.io.s = NULL;
    free(only.io.y);
    only.io.y = NULL;

    rig_fwd(&g);
    rig_fwd(&without);
    rig_fwd(&only);
    if (g.sizes.y)
        assert_memory_equal(g.io.y, without.io.y, g.sizes.y);
    if (g.sizes.s) { /* not byte for byte: between its arrays it may hold anything */
        rig_bwd(&g);
        rig_bwd(&only);
        assert_memory_equal(g.io.dx, only.io.dx, g.sizes.x);
        if (g.sizes.w)
            assert_memory_equal(g.io.dw, only.io.dw, g.sizes.w);
    }
    if (g.sizes.result) {
        assert_memory_equal(g.io.result, without.io.result, g.sizes.result);
        assert_memory_equal(g.io.result, only.io.result, g.sizes.result);
    }
    rig_finish(&g);
    rig_finish(&without);
    rig_finish(&only);
}

static void test_layer_recompute_has_same_bits(void **state)
{
    for_each_config(check_saved, state);
}

/* ---- label vectors ---- */

static void test_label_vectors_are_uniform_and_keep_their_bits(void **state)
{
    const struct layer l = {.type = &layer_label_vectors,
                            .key = 11,
                            .in = {1, {40}},
                            .label_vectors = {.classes = 25, .scale = 3}};
    struct layer_sizes size;
    double sum = 0;
    (void)state;
    layer_type(&l)->sizes(&l, 1, &size);
    assert_int_equal(size.b, (25 * 40 + 25) * sizeof(float));
    float *b = block(size.b), *other = block(size.b), *again = block(size.b);
    layer_type(&l)->init_buffers(&l, 5, b);
    layer_type(&l)->init_buffers(&l, 6, other);
    layer_type(&l)->init_buffers(&l, 5, again);
    assert_memory_equal(b, again, size.b);
    assert_memory_not_equal(b, other, size.b);
    for (uint32_t i = 0; i < 25 * 40; i++) {
        assert_true(b[i] >= 0 && b[i] < 3);
        sum += (double)b[i];
    }
    assert_true(fabs(sum / (25 * 40) - 1.5) < 0.1);
    free(b);
    free(other);
    free(again);
}

/* An evaluation counts the rows whose nearest vector is that of their class, and computes the same loss. */
static void check_nearest(const struct layer *l, uint32_t rows)
{
    struct rig g;
    const int32_t *target;
    uint32_t n = layer_in(l), correct = 0;
    rig_init(&g, l, rows);
    target = g.io.target;
    rig_fwd(&g);
    double loss = g.io.result->loss;
    assert_true(g.io.result->correct == 0);
    g.step.training = 0;
    rig_fwd(&g);
    assert_true(g.io.result->loss == loss);
    for (uint32_t r = 0; r < rows; r++) {
        uint32_t best = 0;
        double least = INFINITY;
        for (uint32_t c = 0; c < l->label_vectors.classes; c++) {
            double d = 0;
            for (uint32_t i = 0; i < n; i++)
                d += pow((double)g.x[r * n + i] - (double)g.b[c * n + i], 2);
            best = d < least ? c : best;
            least = d < least ? d : least;
        }
        correct += best == (uint32_t)target[r];
    }
    assert_true(g.io.result->correct == correct);
    rig_finish(&g);
}

static void test_label_vectors_count_the_nearest(void **state)
{
    void *kind = (void *)(uintptr_t)&label_vectors_kind;
    (void)state;
    for_each_config(check_nearest, &kind);
}

/* ---- backward ---- */

/* What the backward pass differentiates: sum of dy * y, or the loss times grad_scale. */
static double objective(const struct rig *g, const double *w, const double *x)
{
    uint64_t n = g->type->is_loss ? 1 : g->sizes.y / sizeof(float);
    double *y = malloc(n * sizeof *y), sum = 0;

    ref_layer_fwd(&(struct ref_layer){g->l, &g->step, g->io.rows, FIRST_ROW, w, x, g->io.target, g->b}, y);
    for (uint64_t i = 0; i < n; i++)
        sum += y[i] * (double)(g->type->is_loss ? g->step.grad_scale : g->dy[i]);
    free(y);
    return sum;
}

/* times * d objective / d at[i], by central differences. `at` is w or x. */
static double difference(const struct rig *g, const double *w, const double *x, double *at, double times)
{
    const double h = 1e-6, before = *at;
    *at = before + h;
    double up = objective(g, w, x);
    *at = before - h;
    double down = objective(g, w, x);
    *at = before;
    return times * (up - down) / (2 * h);
}

/* Compares got[n] with the central differences. A gradient element is a sum of terms that may cancel each
 * other, so its rounding error depends on the size of the terms and not on the size of the sum. The root mean
 * square of all elements serves as the size of the terms. The largest error in all cases is 4e-6 of this size
 * plus 1; the limit is 1e-5. */
static void check_gradient(const struct rig *g, const double *w, const double *x, double *at, uint64_t n,
                           const float *got, double times)
{
    double *want = calloc(n + 1, sizeof *want), squares = 0;
    for (uint64_t i = 0; i < n; i++) {
        want[i] = difference(g, w, x, &at[i], times);
        squares += want[i] * want[i];
    }
    double most = 1e-5 * (1 + sqrt(squares / (double)(n + 1)));
    for (uint64_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= most))
            fail_msg("%s rows %u: gradient [%lu] is %.9g, want %.9g", g->type->name, g->io.rows,
                     (unsigned long)i, (double)got[i], want[i]);
    free(want);
}

static void check_bwd(const struct layer *l, uint32_t rows)
{
    struct rig g;
    rig_init(&g, l, rows);
    uint64_t n_w = g.sizes.w / sizeof(float), n_x = g.sizes.x / sizeof(float);
    double *w = ref_to_double(g.w, n_w), *x = ref_to_double(g.x, n_x);

    n_x = l->type == &layer_embedding ? 0 : n_x; /* ids have no gradient */
    rig_fwd(&g);
    rig_bwd(&g);
    check_gradient(&g, w, x, x, n_x, g.io.dx, 1);
    check_gradient(&g, w, x, w, n_w, g.io.dw, 1);
    g.io.accumulate = true;
    rig_bwd(&g);
    check_gradient(&g, w, x, x, n_x, g.io.dx, 1);
    check_gradient(&g, w, x, w, n_w, g.io.dw, 2);
    free(w);
    free(x);
    rig_finish(&g);
}

static void test_layer_bwd_matches_differences(void **state)
{
    for_each_config(check_bwd, state);
}

static void check_bwd_without_dx(const struct layer *l, uint32_t rows)
{
    struct rig g, without;
    rig_init(&g, l, rows);
    rig_init(&without, l, rows);
    free(without.io.dx);
    without.io.dx = NULL;
    rig_fwd(&g);
    rig_fwd(&without);
    rig_bwd(&g);
    rig_bwd(&without);
    if (g.sizes.w)
        assert_memory_equal(g.io.dw, without.io.dw, g.sizes.w);
    rig_finish(&g);
    rig_finish(&without);
}

static void test_layer_bwd_without_dx_has_same_dw(void **state)
{
    for_each_config(check_bwd_without_dx, state);
}

/* ---- everything else ---- */

static void check_blocks(const struct layer *l, uint32_t rows)
{
    const struct layer_type *type = layer_type(l);
    struct layer_param params[32];
    struct layer_sizes s;
    struct layer_cost cost;
    uint64_t at = 0;

    type->sizes(l, rows, &s);
    type->cost(l, rows, &cost);
    uint32_t n = type->params(l, NULL);
    assert_true(n <= COUNT(params));
    assert_int_equal(type->params(l, params), n);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t count = 1;
        for (uint32_t d = 0; d < params[i].rank; d++)
            count *= params[i].shape[d];
        assert_int_equal(params[i].count, count);
        assert_int_equal(params[i].offset, at);
        at += count * sizeof(float);
    }
    assert_int_equal(s.w, at);
    assert_int_equal(s.x, (uint64_t)rows * layer_in(l) * sizeof(float));
    assert_int_equal(s.y, type->is_loss ? 0 : (uint64_t)rows * layer_out(l) * sizeof(float));
    assert_true((s.target > 0) == type->is_loss && (s.result > 0) == type->is_loss);
    assert_true(s.room == 0 || s.s > 0); /* it is beside S */
    assert_true(s.s == 0 || s.scratch_fwd == 0 || s.scratch_fwd >= s.s + s.room);
    assert_true(cost.bwd_flops > 0 && cost.bwd_bytes >= s.w + s.x);
    if (!type->loss_in_bwd) /* which has no forward pass to speak of */
        assert_true(cost.fwd_flops > 0 && cost.fwd_bytes >= s.x + s.y + s.target);
}

static void test_layer_blocks_agree_with_params(void **state)
{
    for_each_config(check_blocks, state);
}

/* The first launch that fails ends the pass and is reported. */
static void check_failure(const struct layer *l, uint32_t rows)
{
    struct rig g;
    rig_init(&g, l, rows);
    rig_fwd(&g);
    uint32_t n_fwd = g.log.n;
    rig_bwd(&g);
    uint32_t n_bwd = g.log.n - n_fwd;

    for (uint32_t i = 0; i < n_fwd + n_bwd; i++) {
        g.log.n = i < n_fwd ? 0 : n_fwd;
        g.log.fail_at = i;
        assert_int_equal(i < n_fwd ? try_fwd(&g) : try_bwd(&g), -EIO);
        assert_int_equal(g.log.n, i);
    }
    rig_finish(&g);
}

static void test_layer_reports_failed_launch(void **state)
{
    for_each_config(check_failure, state);
}

/* A transformer block must save only what its backward pass reads, and not the workspace of its forward pass,
 * because the saved block may be moved to the host and back. The expected size is counted in activations of
 * the block's width plus a few numbers per token. */
static void test_block_saves_no_workspace(void **state)
{
    enum { ROWS = 2, SEQ = 8, WIDTH = 32, HEADS = 2, TOKENS = ROWS * SEQ };
    const uint64_t c = TOKENS * WIDTH * sizeof(float), stats = TOKENS * 2 * sizeof(float),
                   lse = TOKENS * HEADS * sizeof(float);
    const struct layer attention[] = {
        {.type = &layer_norm, .in = {2, {SEQ, WIDTH}}, .out = {2, {SEQ, WIDTH}}, .norm = {.bias = true}},
        {.type = &layer_attention,
         .in = {2, {SEQ, WIDTH}},
         .out = {2, {SEQ, WIDTH}},
         .attention = {.bias = true, .heads = HEADS, .kv_heads = HEADS}},
    };
    const struct layer mlp[] = {
        {.type = &layer_norm, .in = {2, {SEQ, WIDTH}}, .out = {2, {SEQ, WIDTH}}, .norm = {.bias = true}},
        {.type = &layer_mlp,
         .in = {2, {SEQ, WIDTH}},
         .out = {2, {SEQ, WIDTH}},
         .mlp = {.bias = true, .hidden = 4 * WIDTH, .act = ACT_GELU}},
    };
    const struct layer parts[] = {
        {.type = &layer_residual,
         .in = {2, {SEQ, WIDTH}},
         .out = {2, {SEQ, WIDTH}},
         .inner = attention,
         .n_inner = 2},
        {.type = &layer_residual,
         .in = {2, {SEQ, WIDTH}},
         .out = {2, {SEQ, WIDTH}},
         .inner = mlp,
         .n_inner = 2},
    };
    const struct layer whole = {.type = &layer_block,
                                .in = {2, {SEQ, WIDTH}},
                                .out = {2, {SEQ, WIDTH}},
                                .inner = parts,
                                .n_inner = 2};
    struct layer_sizes s;

    (void)state;
    layer_type(&whole)->sizes(&whole, ROWS, &s);
    /* normed, qkv, attended; the first half's output; normed, fc's output */
    assert_int_equal(s.s, (1 + 3 + 1) * c + stats + lse + c + (1 + 4) * c + stats);
    assert_int_equal(s.room, 4 * c);
    /* Two gradients, then the gradients of attended and qkv, and one number for each query. This is more than
     * the mlp needs. */
    assert_int_equal(s.scratch_bwd, 2 * c + 4 * c + lse);
}

static void test_dense_without_act_and_dropout_needs_no_scratch(void **state)
{
    struct layer l = {.type = &layer_dense, .in = {1, {3}}, .out = {1, {4}}, .dense = {.bias = true}};
    struct layer_sizes s;
    (void)state;

    layer_type(&l)->sizes(&l, 2, &s);
    assert_int_equal(s.s, 0);
    assert_int_equal(s.scratch_bwd, 0);
    l.dense.dropout = 0.1f;
    layer_type(&l)->sizes(&l, 2, &s);
    assert_int_equal(s.s, 0);
    assert_int_equal(s.scratch_bwd, 32);
    l.dense.act = ACT_RELU;
    layer_type(&l)->sizes(&l, 2, &s);
    assert_int_equal(s.s, 32);
    assert_int_equal(s.scratch_bwd, 32);
}

static void test_dense_launches_in_order(void **state)
{
    static const enum op want[] = {OP_linear_fwd, OP_dropout,           OP_dropout,        OP_act_bwd,
                                   OP_bias_bwd,   OP_linear_bwd_weight, OP_linear_bwd_data};
    struct layer l = {.type = &layer_dense,
                      .in = {1, {3}},
                      .out = {1, {4}},
                      .dense = {.bias = true, .act = ACT_TANH, .dropout = 0.5f}};
    struct rig g;
    (void)state;

    rig_init(&g, &l, 2);
    rig_fwd(&g);
    rig_bwd(&g);
    assert_int_equal(g.log.n, COUNT(want));
    assert_memory_equal(g.log.ops, want, sizeof want);
    rig_finish(&g);
}

static void test_huge_layer_does_not_wrap(void **state)
{
    struct layer l = {.type = &layer_dense,
                      .in = {1, {UINT32_MAX}},
                      .out = {1, {UINT32_MAX}},
                      .dense = {.bias = true, .act = ACT_GELU}};
    struct layer_sizes s;
    (void)state;

    layer_type(&l)->sizes(&l, UINT32_MAX, &s);
    assert_true(s.w >= UINT64_C(1) << 60 && s.x >= UINT64_C(1) << 60 && s.s >= UINT64_C(1) << 60);
    assert_true(s.w + s.x + s.y + s.s + s.scratch_bwd > s.w);
}

static void test_eval_ignores_dropout(void **state)
{
    struct layer l = {.type = &layer_dense,
                      .in = {1, {5}},
                      .out = {1, {6}},
                      .dense = {.bias = true, .dropout = 0.9f}},
                 plain = l;
    struct rig g, p;
    (void)state;

    plain.dense.dropout = 0;
    rig_init(&g, &l, 4);
    rig_init(&p, &plain, 4);
    g.step.training = 0;
    rig_fwd(&g);
    rig_fwd(&p);
    assert_memory_equal(g.io.y, p.io.y, g.sizes.y);
    rig_finish(&g);
    rig_finish(&p);
}

static void test_init_is_uniform_and_keyed(void **state)
{
    struct layer l = {
        .type = &layer_dense, .id = 2, .key = 2, .in = {1, {100}}, .out = {1, {33}}, .dense = {.bias = true}};
    float w[3333], again[3333];
    double sum = 0, squares = 0;
    (void)state;

    layer_init(&l, 42, w);
    for (uint32_t i = 0; i < COUNT(w); i++) {
        struct rng_block b = rng_philox(42, i / 4, 0, rng_word2(RNG_INIT, 2), 0);
        assert_true(w[i] == (2 * rng_unit(b.v[i % 4]) - 1) * 0.1f);
        assert_true(w[i] >= -0.1f && w[i] <= 0.1f);
        sum += (double)w[i];
        squares += (double)w[i] * (double)w[i];
    }
    assert_true(fabs(sum / COUNT(w)) < 0.005);
    assert_true(fabs(squares / COUNT(w) - 0.01 / 3) < 2e-4);
    layer_init(&l, 42, again);
    assert_memory_equal(w, again, sizeof w);
    layer_init(&l, 43, again);
    assert_memory_not_equal(w, again, sizeof w);
    l.id = l.key = 3;
    layer_init(&l, 42, again);
    assert_memory_not_equal(w, again, sizeof w);
}

/* ---- optimizers ---- */

static int update(const struct optimizer *o, const struct step_args *step, float *w, const float *dw,
                  float *k, const struct group_state *group, uint64_t w_bytes, struct sink_log *log)
{
    struct optimizer_io io = {.w = w, .g = {.dw = {dw}, .n = 1}, .group = group, .n = w_bytes / sizeof *w};
    const struct op_sink sink = {launch_now, log};

    optimizer_split(o, k, &io);
    return optimizer_update(o, step, &io, &sink);
}

/* Checks the parts of an optimizer's state for a W of 10 elements: their names, and that they fill K. */
static void check_parts(const struct optimizer *o, uint32_t n, const char *const *names)
{
    struct state_part parts[OPTIMIZER_PARTS];
    uint64_t at = 0;

    assert_int_equal(optimizer_parts(o, 10, parts), n);
    for (uint32_t p = 0; p < n; p++) {
        assert_string_equal(parts[p].name, names[p]);
        assert_int_equal(parts[p].dtype, DTYPE_F32);
        assert_int_equal(parts[p].elements, 10);
        assert_int_equal(parts[p].begin, at);
        assert_int_equal(parts[p].end, at + 40);
        at = parts[p].end;
    }
    assert_int_equal(optimizer_k_bytes(o, 10), at);
}

static void test_optimizer_parts_fit_kind(void **state)
{
    static const char *const adamw[] = {"exp_avg", "exp_avg_sq"}, *const sgd[] = {"momentum_buffer"};

    (void)state;
    check_parts(&(struct optimizer){.kind = OPTIMIZER_ADAMW}, 2, adamw);
    check_parts(&(struct optimizer){.kind = OPTIMIZER_SGD}, 0, NULL);
    check_parts(&(struct optimizer){.kind = OPTIMIZER_SGD, .momentum = 0.9f}, 1, sgd);
}

/* Five steps down f(w) = |w|^2 / 2: every optimizer must go down. */
static void check_optimizer(const struct optimizer *o)
{
    float w[21], dw[21], k[42] = {0};
    struct sink_log log = {.fail_at = UINT32_MAX};
    double last = INFINITY;

    ref_fill(w, COUNT(w), 1, 1);
    for (int t = 0; t < 5; t++) {
        struct step_args step = {.step = (uint64_t)t, .lr = 0.01f};
        struct group_state group = {.t = (uint64_t)t + 1,
                                    .bias_correct1 = (float)(1 / (1 - pow(0.9, t + 1))),
                                    .bias_correct2 = (float)(1 / (1 - pow(0.999, t + 1))),
                                    .scale = 1,
                                    .apply = 1};
        double f = 0;
        for (uint32_t i = 0; i < COUNT(w); i++)
            f += (double)w[i] * (double)w[i];
        assert_true(f < last);
        last = f;
        memcpy(dw, w, sizeof w);
        assert_int_equal(update(o, &step, w, dw, k, &group, sizeof w, &log), 0);
    }
    uint64_t used = optimizer_k_bytes(o, COUNT(w)) / sizeof(float);
    for (uint32_t i = 0; i < COUNT(k); i++)
        assert_true((k[i] != 0) == (i < used));
}

static void test_every_optimizer_descends(void **state)
{
    (void)state;
    for (int kind = 0; kind < OPTIMIZER_COUNT; kind++) {
        struct optimizer o = {
            .kind = (enum optimizer_kind)kind, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};
        assert_non_null(optimizer_names[kind]);
        check_optimizer(&o);
        o.momentum = 0.9f;
        o.weight_decay = 0.01f;
        check_optimizer(&o);
    }
}

static void test_optimizer_update_obeys_group_state(void **state)
{
    struct optimizer o = {.kind = OPTIMIZER_ADAMW, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};
    float w[3] = {1, 2, 3}, dw[3] = {1, 1, 1}, k[6] = {0};
    struct group_state no = {.bias_correct1 = 1, .bias_correct2 = 1, .scale = 1, .apply = 0};
    struct step_args step = {.lr = 1};
    struct sink_log log = {.fail_at = UINT32_MAX};
    (void)state;

    assert_int_equal(update(&o, &step, w, dw, k, &no, sizeof w, &log), 0);
    assert_true(w[0] == 1 && w[1] == 2 && w[2] == 3 && k[0] == 0 && k[5] == 0);
    log = (struct sink_log){.fail_at = 0};
    assert_int_equal(update(&o, &step, w, dw, k, NULL, sizeof w, &log), -EIO);
}

/* Ranges of W, each with its parts of K somewhere of their own: the bits of the whole. */
static void check_shares(const struct optimizer *o)
{
    enum { N = 1000, CUTS = 4 };
    static const uint32_t cuts[CUTS + 1] = {0, 64, 65, 640, N};
    const struct step_args step = {.lr = 0.1f};
    const struct group_state group = {.bias_correct1 = 1.5f, .bias_correct2 = 3, .scale = 0.3f, .apply = 1};
    struct state_part of[OPTIMIZER_PARTS];
    const uint32_t parts = optimizer_parts(o, N, of);
    float w[2][N], dw[N], k[2][OPTIMIZER_PARTS * N], part[OPTIMIZER_PARTS][N];
    struct sink_log log = {.fail_at = UINT32_MAX};
    const struct op_sink sink = {launch_now, &log};

    ref_fill(w[0], N, 1, 1);
    ref_fill(dw, N, 2, 1);
    ref_fill(k[0], COUNT(k[0]), 3, 1);
    for (uint32_t i = N; i < COUNT(k[0]); i++)
        k[0][i] = fabsf(k[0][i]);
    memcpy(w[1], w[0], sizeof w[0]);
    memcpy(k[1], k[0], sizeof k[0]);
    assert_int_equal(update(o, &step, w[0], dw, k[0], &group, sizeof w[0], &log), 0);
    for (uint32_t i = 0; i < CUTS; i++) {
        const uint32_t at = cuts[i], n = cuts[i + 1] - at;
        struct optimizer_io io = {.w = w[1] + at, .g = {.dw = {dw + at}, .n = 1}, .group = &group, .n = n};
        for (uint32_t p = 0; p < parts; p++) {
            io.k[p] = memcpy(part[p], k[1] + p * N + at, n * sizeof(float));
        }
        assert_int_equal(optimizer_update(o, &step, &io, &sink), 0);
        for (uint32_t p = 0; p < parts; p++)
            memcpy(k[1] + p * N + at, part[p], n * sizeof(float));
    }
    assert_memory_equal(w[1], w[0], sizeof w[0]);
    assert_memory_equal(k[1], k[0], sizeof k[0]);
}

static void test_optimizer_update_in_shares_has_same_bits(void **state)
{
    struct optimizer o = {.kind = OPTIMIZER_ADAMW, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};
    (void)state;

    o.weight_decay = 0.01f;
    check_shares(&o);
    o.kind = OPTIMIZER_SGD;
    check_shares(&o);
    o.momentum = 0.9f;
    check_shares(&o);
}

/* ---- a type that is not in layers.def ---- */

static void twice_sizes(const struct layer *l, uint32_t rows, struct layer_sizes *ret)
{
    uint64_t bytes = (uint64_t)rows * layer_in(l) * sizeof(float);

    *ret = (struct layer_sizes){.x = bytes, .y = bytes};
}

static void twice_cost(const struct layer *l, uint32_t rows, struct layer_cost *ret)
{
    uint64_t n = (uint64_t)rows * layer_in(l), bytes = n * sizeof(float);

    *ret =
        (struct layer_cost){.fwd_flops = n, .bwd_flops = n, .fwd_bytes = 3 * bytes, .bwd_bytes = 3 * bytes};
}

static uint32_t twice_params(const struct layer *l, struct layer_param *ret)
{
    (void)l;
    (void)ret;
    return 0;
}

/* Copies `from` to `to` and adds `from` again. */
static int launch_twice(const struct layer *l, const struct layer_io *io, const void *from, void *to,
                        const struct op_sink *sink)
{
    uint64_t n = (uint64_t)io->rows * layer_in(l);
    struct op_call copy = {.op = OP_act_fwd, .step = io->step, .act_fwd = {.x = from, .y = to, .n = n}},
                   add = {.op = OP_add, .step = io->step, .add = {.x = from, .y = to, .n = n}};

    if (!to)
        return 0;
    int r = sink->launch(sink->ctx, &copy);
    return r ? r : sink->launch(sink->ctx, &add);
}

static int twice_fwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    return launch_twice(l, io, io->x, io->y, sink);
}

static int twice_bwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    return launch_twice(l, io, io->dy, io->dx, sink);
}

/* A layer y = 2 x. */
static const struct layer_type twice = {
    .name = "twice",
    .sizes = twice_sizes,
    .cost = twice_cost,
    .params = twice_params,
    .fwd = twice_fwd,
    .bwd = twice_bwd,
};

static void test_own_type_needs_no_table(void **state)
{
    static const struct layer l = {.type = &twice, .in = {3, {2, 3, 4}}, .out = {3, {2, 3, 4}}};
    struct rig g;
    (void)state;

    assert_int_equal(layer_in(&l), 24);
    assert_ptr_equal(layer_type(&l), &twice);
    check_saved(&l, 3);
    check_bwd_without_dx(&l, 3);
    check_blocks(&l, 3);
    check_failure(&l, 3);
    rig_init(&g, &l, 3);
    rig_fwd(&g);
    rig_bwd(&g);
    for (uint32_t i = 0; i < 3 * 24; i++) {
        assert_true(element(g.io.y, i) == 2 * g.x[i]);
        assert_true(element(g.io.dx, i) == 2 * g.dy[i]);
    }
    rig_finish(&g);
}

/* A block of a dense layer and a layer of the test's own type has the parameters, the initial values and
 * twice the output of the dense layer. */
static void test_own_type_works_inside_a_block(void **state)
{
    static struct layer inner[] = {
        {.type = &layer_dense, .in = {1, {7}}, .out = {1, {5}}, .dense = {.bias = true}, .name = "up"},
        {.type = &twice, .in = {1, {5}}, .out = {1, {5}}},
    };
    struct layer l = {.type = &layer_block, .in = {1, {7}}, .out = {1, {5}}, .inner = inner, .n_inner = 2};
    struct layer_param p[2];
    float w[40], dense_w[40];
    struct rig g, dense;
    (void)state;

    model_number(&(struct model){&l, 1});
    check_saved(&l, 3);
    check_bwd_without_dx(&l, 3);
    check_blocks(&l, 3);
    check_failure(&l, 3);
    assert_int_equal(layer_type(&l)->params(&l, p), 2);
    assert_string_equal(p[0].name, "up.weight");
    layer_init(&l, 42, w);
    layer_init(&inner[0], 42, dense_w);
    assert_memory_equal(w, dense_w, sizeof w);
    rig_init(&g, &l, 3);
    rig_init(&dense, &inner[0], 3);
    rig_fwd(&g);
    rig_fwd(&dense);
    for (uint32_t i = 0; i < 3 * 5; i++)
        assert_true(element(g.io.y, i) == 2 * element(dense.io.y, i));
    rig_finish(&g);
    rig_finish(&dense);
}

static void test_names_are_complete(void **state)
{
    (void)state;
    for (int i = 0; i < OP_COUNT; i++)
        assert_non_null(op_names[i]);
    for (int i = 0; i < ACT_COUNT; i++)
        assert_non_null(act_names[i]);
    const struct layer_type *const *type = layer_types;
#define LAYER(layer)                                                                                         \
    assert_ptr_equal(*type, &layer_##layer);                                                                 \
    assert_string_equal((*type++)->name, #layer);
#include "kernels/layers.def"
#undef LAYER
    assert_null(*type);
    assert_string_equal(op_names[OP_linear_fwd], "linear_fwd");
}

static int open_pool(void **state)
{
    (void)state;
    cpu_thread_init();
    return pool_create(2, &pool);
}

static int close_pool(void **state)
{
    (void)state;
    pool_destroy(pool);
    return 0;
}

#define LAYER_TEST(layer, test)                                                                              \
    {                                                                                                        \
        "test_" #layer "_" #test, test_layer_##test, NULL, NULL, (void *)(uintptr_t)&layer##_kind            \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
#define LAYER(name)                                                                                          \
    LAYER_TEST(name, fwd_matches_reference), LAYER_TEST(name, recompute_has_same_bits),                      \
        LAYER_TEST(name, bwd_matches_differences), LAYER_TEST(name, bwd_without_dx_has_same_dw),             \
        LAYER_TEST(name, blocks_agree_with_params), LAYER_TEST(name, reports_failed_launch),
#include "kernels/layers.def"
#undef LAYER
        cmocka_unit_test(test_block_saves_no_workspace),
        cmocka_unit_test(test_dense_without_act_and_dropout_needs_no_scratch),
        cmocka_unit_test(test_dense_launches_in_order),
        cmocka_unit_test(test_huge_layer_does_not_wrap),
        cmocka_unit_test(test_eval_ignores_dropout),
        cmocka_unit_test(test_init_is_uniform_and_keyed),
        cmocka_unit_test(test_optimizer_parts_fit_kind),
        cmocka_unit_test(test_every_optimizer_descends),
        cmocka_unit_test(test_optimizer_update_obeys_group_state),
        cmocka_unit_test(test_optimizer_update_in_shares_has_same_bits),
        cmocka_unit_test(test_own_type_needs_no_table),
        cmocka_unit_test(test_own_type_works_inside_a_block),
        cmocka_unit_test(test_names_are_complete),
        cmocka_unit_test(test_label_vectors_are_uniform_and_keep_their_bits),
        cmocka_unit_test(test_label_vectors_count_the_nearest),
    };
    return cmocka_run_group_tests(tests, open_pool, close_pool);
}
