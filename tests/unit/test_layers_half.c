/* Every kind of layer with weights and activations in 16 bits, beside the same layer in fp32.
 *
 * Both layers get the same numbers, which 16 bits can represent. The results then differ only by the
 * roundings of the 16-bit layer, so they are close. A wrong offset, a wrong type or a gradient in the wrong
 * place gives a large difference. Further, whether a forward pass saves S must not change any bit: a plan
 * decides that, and a plan never decides about results. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"
#include "kernels/cpu/cpu.h"
#include "kernels/half.h"
#include "kernels/layer.h"
#include "tests/unit/layer_configs.h"
#include "tests/unit/reference.h"

#define FIRST_ROW 2
#define ROWS      3
/* Bytes behind each block, which no pass may change. */
#define BEHIND 64

static struct pool *pool;

/* One layer with memory for all its arrays. Each array has exactly the size that the layer asks for. */
struct half_rig {
    struct layer l;
    struct layer_sizes size;
    struct step_args step;
    struct layer_io io;
    void *w, *x, *dy, *target;
    float *b;
};

static int launch(void *ctx, const struct op_call *call)
{
    (void)ctx;
    cpu_ops[call->op](call, pool);
    return 0;
}
static const struct op_sink sink = {launch, NULL};

/* Returns a block filled with bytes 0xff, which are NaN in every floating point type, or NULL for 0 bytes. */
static void *new_block(uint64_t bytes)
{
    char *at = bytes > 0 ? malloc(bytes + BEHIND) : NULL;
    if (at != NULL)
        memset(at, 0xff, bytes + BEHIND);
    return at;
}

/* Frees a block, after a check that nothing was written behind it. */
static void free_block(void *block, uint64_t bytes)
{
    for (uint64_t i = 0; block != NULL && i < BEHIND; i++)
        assert_int_equal(((unsigned char *)block)[bytes + i], 0xff);
    free(block);
}

/* Returns random elements of the type `dtype`. The values depend on the key and the position only, and BF16
 * and F16 can represent them exactly: they are multiples of 1/16 below 4. */
static void *random_elements(enum dtype dtype, uint64_t bytes, uint32_t key)
{
    const uint64_t n = dtype_elements(dtype, bytes);
    float *floats = malloc((n + 1) * sizeof *floats);
    void *at = new_block(bytes);
    ref_fill(floats, n, key, 1);
    for (uint64_t i = 0; i < n; i++)
        floats[i] = roundf(floats[i] * 32) / 16 * 0.5f;
    if (at != NULL)
        half_round(dtype, floats, at, n);
    free(floats);
    return at;
}

static struct layer retyped_layer(const struct layer *from, enum dtype dtype, struct arena *arena)
{
    struct layer to = *from, *inner = arena_alloc_array(arena, from->n_inner + 1, sizeof *inner);
    for (uint32_t i = 0; i < from->n_inner; i++)
        inner[i] = retyped_layer(&from->inner[i], dtype, arena);
    to.inner = from->n_inner > 0 ? inner : NULL;
    to.dtype = to.w_dtype = dtype;
    return to;
}

/* Returns the number of classes of a loss, or 0 for other layers and losses without classes. */
static uint32_t classes_of(const struct layer *l)
{
    if (l->type == &layer_lm_head)
        return l->lm_head.vocab;
    if (l->type == &layer_label_vectors)
        return l->label_vectors.classes;
    return l->type == &layer_softmax_xent ? layer_width(l) : 0;
}

static void fill_ids(const struct half_rig *g)
{
    int32_t *ids = g->size.x_dtype == DTYPE_I32 ? g->x : NULL,
            *target = classes_of(&g->l) > 0 ? g->target : NULL;
    for (uint32_t i = 0; i < ROWS * layer_seq(&g->l); i++) {
        if (ids != NULL)
            ids[i] = (int32_t)(i * 5 / 2 % g->l.embedding.vocab);
        if (target != NULL)
            target[i] = (int32_t)(i * 3 % classes_of(&g->l));
    }
}

static void half_rig_init(struct half_rig *g, const struct layer *config, enum dtype dtype,
                          struct arena *arena)
{
    *g = (struct half_rig){.l = retyped_layer(config, dtype, arena)};
    const struct layer_type *type = layer_type(&g->l);
    type->sizes(&g->l, ROWS, &g->size);
    g->step = (struct step_args){
        .step = 9, .seed = 5, .grad_scale = 0.25f, .valid_rows = UINT32_MAX, .training = 1};
    g->w = random_elements(g->size.w_dtype, g->size.w, 1);
    g->x =
        g->size.x_dtype == DTYPE_I32 ? new_block(g->size.x) : random_elements(g->size.x_dtype, g->size.x, 2);
    g->dy = random_elements(g->size.y_dtype, g->size.y, 3);
    g->b = random_elements(DTYPE_F32, g->size.b, 5);
    g->target = random_elements(DTYPE_F32, g->size.target, 4);
    fill_ids(g);
    if (type->init_buffers != NULL)
        type->init_buffers(&g->l, g->step.seed, g->b);
    g->io = (struct layer_io){
        .step = &g->step,
        .rows = ROWS,
        .first_row = FIRST_ROW,
        .w = g->w,
        .x = g->x,
        .b = g->b,
        .y = new_block(g->size.y),
        .s = new_block(g->size.s),
        .dw = new_block(layer_dw_bytes(&g->size)),
        .dx = g->size.x_dtype == DTYPE_I32 ? NULL : new_block(g->size.x),
        .dy = g->dy,
        .target = g->target,
        .result = new_block(g->size.result),
    };
}

static void half_rig_finish(struct half_rig *g)
{
    free_block(g->w, g->size.w);
    free_block(g->x, g->size.x);
    free_block(g->dy, g->size.y);
    free_block(g->b, g->size.b);
    free_block(g->target, g->size.target);
    free_block(g->io.y, g->size.y);
    free_block(g->io.s, g->size.s);
    free_block(g->io.dw, layer_dw_bytes(&g->size));
    free_block(g->io.dx, g->size.x);
    free_block(g->io.result, g->size.result);
}

/* Runs a forward pass that writes what is not NULL. */
static void forward(struct half_rig *g, void *y, void *s)
{
    const uint64_t bytes = s != NULL ? g->size.room : g->size.scratch_fwd;
    struct layer_io io = g->io;
    io.y = y;
    io.s = s;
    io.scratch = new_block(bytes);
    assert_int_equal(layer_type(&g->l)->fwd(&g->l, &io, &sink), 0);
    free_block(io.scratch, bytes);
}

/* Runs a backward pass twice: the second adds its gradient of the weights to that of the first. */
static void backward(struct half_rig *g)
{
    for (int i = 0; i < 2; i++) {
        struct layer_io io = g->io;
        io.accumulate = i == 1;
        io.scratch = new_block(g->size.scratch_bwd);
        assert_int_equal(layer_type(&g->l)->bwd(&g->l, &io, &sink), 0);
        free_block(io.scratch, g->size.scratch_bwd);
    }
}

/* Checks that an array is close to the same array in fp32: the root mean square of the differences is at
 * most a few roundings of the root mean square of the values. */
static void assert_close(const struct layer *l, const char *what, enum dtype dtype, enum dtype of,
                         const void *at, const void *f32, uint64_t n)
{
    float *got = malloc((n + 1) * sizeof *got);
    const float *want = f32;
    double difference = 0, size = 0;
    half_widen(of, at, got, n);
    for (uint64_t i = 0; i < n; i++) {
        difference += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        size += (double)want[i] * (double)want[i];
    }
    const double bound = (dtype == DTYPE_BF16 ? 0x1p-8 : 0x1p-11) * 8;
    if (!(sqrt(difference) <= bound * sqrt(size) + 1e-6))
        fail_msg("%s, %s in %s: the root mean square differs by %g of %g", layer_type(l)->name, what,
                 dtype_names[dtype], sqrt(difference / (double)n), sqrt(size / (double)n));
    free(got);
}

static void check_against_fp32(const struct layer *config, enum dtype dtype)
{
    struct arena *arena = arena_create();
    struct half_rig half, full;
    half_rig_init(&half, config, dtype, arena);
    half_rig_init(&full, config, DTYPE_F32, arena);
    forward(&half, half.io.y, half.io.s);
    forward(&full, full.io.y, full.io.s);
    backward(&half);
    backward(&full);
    if (half.size.y > 0)
        assert_close(config, "Y", dtype, dtype, half.io.y, full.io.y, dtype_elements(dtype, half.size.y));
    if (half.io.dx != NULL)
        assert_close(config, "dX", dtype, dtype, half.io.dx, full.io.dx, dtype_elements(dtype, half.size.x));
    if (half.size.w > 0)
        assert_close(config, "dW", dtype, DTYPE_F32, half.io.dw, full.io.dw, layer_w_elements(&half.size));
    if (half.io.result != NULL)
        assert_true(fabs(half.io.result->loss - full.io.result->loss) <=
                    0.03 * fabs(full.io.result->loss) + 1e-6);
    half_rig_finish(&half);
    half_rig_finish(&full);
    arena_destroy(arena);
}

/* Y is the same whether S is saved or not, and S is the same whether Y is computed or not. */
static void check_saving(const struct layer *config, enum dtype dtype)
{
    struct arena *arena = arena_create();
    struct half_rig g;
    half_rig_init(&g, config, dtype, arena);
    void *y = new_block(g.size.y), *s = new_block(g.size.s);
    if (!layer_type(config)->is_loss && g.size.s > 0) {
        forward(&g, g.io.y, g.io.s);
        forward(&g, y, NULL);
        assert_memory_equal(y, g.io.y, g.size.y);
        forward(&g, NULL, s);
        assert_memory_equal(s, g.io.s, g.size.s);
    }
    free_block(y, g.size.y);
    free_block(s, g.size.s);
    half_rig_finish(&g);
    arena_destroy(arena);
}

static void test_layer_in_16_bits(void **state)
{
    const struct configs *kind = *state;
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16};
    for (uint32_t i = 0; i < kind->n; i++)
        for (uint32_t t = 0; t < 2; t++) {
            check_against_fp32(&kind->at[i], types[t]);
            check_saving(&kind->at[i], types[t]);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define LAYER(name)                                                                                          \
    {"test_" #name "_in_16_bits", test_layer_in_16_bits, NULL, NULL, (void *)(uintptr_t)&name##_kind},
#include "kernels/layers.def"
#undef LAYER
    };
    cpu_thread_init();
    if (pool_create(2, &pool) < 0)
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    pool_destroy(pool);
    return failed;
}
