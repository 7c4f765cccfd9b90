/* Tests that every layer kind in layers.def works with any types of activations and weights. No backend
 * computes with other types than F32 yet, so no op runs: the test looks at the launches of a layer. Each
 * launch must have the types of the layer, and its arrays, whose sizes follow from the types, must lie inside
 * the blocks whose sizes the layer has stated. The blocks have invented addresses and no memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"
#include "kernels/layer.h"
#include "layer_configs.h"

/* A block of a layer, such as its W. */
struct type_block {
    uintptr_t at;
    uint64_t bytes;
};

enum { W, DW, B, X, DX, Y, DY, S, SCRATCH, TARGET, RESULT, BLOCKS };

/* One layer, its blocks and the number of its launches so far. */
struct type_rig {
    const struct layer *l;
    struct layer_sizes sizes;
    struct type_block blocks[BLOCKS];
    uint32_t launches;
};

/* Returns true if the array lies inside a block. */
static bool is_inside(const struct type_rig *g, const struct op_range *r)
{
    for (uint32_t b = 0; b < BLOCKS; b++) {
        const uint64_t offset = (uintptr_t)r->at - g->blocks[b].at;
        if (offset <= g->blocks[b].bytes && r->bytes <= g->blocks[b].bytes - offset)
            return true;
    }
    return false;
}

/* Returns whether type number `i` of a call may be `found`. The weights of a product or of a norm have the
 * layer's w_dtype, and all other types are the layer's dtype. There are two exceptions: buffers and what is
 * computed from them alone are float in every layer, and logits are. */
static bool is_right_type(const struct type_rig *g, const struct op_call *call, uint32_t i, enum dtype found)
{
    const bool weights = i == 1 && call->op != OP_softmax_xent;
    const bool logits = layer_type(g->l) == &layer_lm_head &&
                        ((call->op == OP_linear_fwd && i == 2) || (call->op == OP_softmax_xent && i == 0));

    if (logits)
        return found == DTYPE_F32;
    return found == (weights ? g->l->w_dtype : g->l->dtype) || (g->sizes.b > 0 && found == DTYPE_F32);
}

static int check_launch(void *ctx, const struct op_call *call)
{
    struct type_rig *g = ctx;
    const struct op_dtypes *types = &op_dtypes[call->op];
    struct op_range ranges[OP_RANGES];

    for (uint32_t i = 0; i < types->n; i++) {
        enum dtype found;
        memcpy(&found, (const char *)call + types->at[i], sizeof found);
        if (!is_right_type(g, call, i, found))
            fail_msg("%s launches %s with type %u as %s", layer_type(g->l)->name, op_names[call->op], i,
                     dtype_names[found]);
    }
    const uint32_t n = op_ranges(call, ranges);
    for (uint32_t i = 0; i < n; i++)
        if (!is_inside(g, &ranges[i]))
            fail_msg("%s launches %s with array %u outside its blocks", layer_type(g->l)->name,
                     op_names[call->op], i);
    g->launches++;
    return 0;
}

/* Gives every block an address of its own, far from those of the other blocks. */
static void place(struct type_rig *g, uint64_t scratch_bytes)
{
    const struct layer_sizes *s = &g->sizes;
    const uint64_t bytes[BLOCKS] = {
        [W] = s->w,
        [DW] = layer_dw_bytes(s),
        [B] = s->b,
        [X] = s->x,
        [DX] = s->x,
        [Y] = s->y,
        [DY] = s->y,
        [S] = s->s,
        [SCRATCH] = scratch_bytes,
        [TARGET] = s->target,
        [RESULT] = s->result,
    };

    for (uint32_t b = 0; b < BLOCKS; b++)
        g->blocks[b] = (struct type_block){(uintptr_t)(b + 1) << 40, bytes[b]};
}

static void *address(const struct type_rig *g, uint32_t b)
{
    return g->blocks[b].bytes > 0 ? (void *)g->blocks[b].at : NULL;
}

static struct layer_io io_of(const struct type_rig *g, const struct step_args *step, uint32_t rows)
{
    return (struct layer_io){
        .step = step,
        .rows = rows,
        .w = address(g, W),
        .b = address(g, B),
        .x = address(g, X),
        .scratch = address(g, SCRATCH),
        .target = address(g, TARGET),
        .result = address(g, RESULT),
    };
}

/* Runs a forward pass: with S or without, with the output Y or as a recompute of S, in training or in an
 * evaluation. */
static void run_fwd(struct type_rig *g, uint32_t rows, bool saves, bool recompute, bool training)
{
    const struct step_args step = {.training = training};
    const struct op_sink sink = {check_launch, g};

    place(g, saves && g->sizes.s > 0 ? g->sizes.room : g->sizes.scratch_fwd);
    struct layer_io io = io_of(g, &step, rows);
    io.y = recompute ? NULL : address(g, Y);
    io.s = saves ? address(g, S) : NULL;
    assert_int_equal(layer_type(g->l)->fwd(g->l, &io, &sink), 0);
}

static void run_bwd(struct type_rig *g, uint32_t rows, bool dx, bool accumulate)
{
    const struct step_args step = {.training = 1};
    const struct op_sink sink = {check_launch, g};

    place(g, g->sizes.scratch_bwd);
    struct layer_io io = io_of(g, &step, rows);
    io.accumulate = accumulate;
    io.s = address(g, S);
    io.dw = address(g, DW);
    io.dy = address(g, DY);
    io.dx = dx ? address(g, DX) : NULL;
    assert_int_equal(layer_type(g->l)->bwd(g->l, &io, &sink), 0);
}

/* The sizes and parameters have the types of the layer, and as many elements as with F32. */
static void check_sizes(const struct type_rig *g, const struct layer *f32, uint32_t rows)
{
    struct layer_param params[32];
    struct layer_sizes want;
    uint64_t count = 0;

    layer_type(f32)->sizes(f32, rows, &want);
    assert_int_equal(g->sizes.w_dtype, g->l->w_dtype);
    assert_true(g->sizes.x_dtype == g->l->dtype || g->sizes.x_dtype == DTYPE_I32);
    assert_int_equal(g->sizes.y_dtype, g->l->dtype);
    assert_int_equal(g->sizes.target_dtype, want.target_dtype);
    assert_int_equal(g->sizes.target, want.target);
    assert_int_equal(dtype_elements(g->sizes.x_dtype, g->sizes.x), dtype_elements(want.x_dtype, want.x));
    assert_int_equal(dtype_elements(g->sizes.y_dtype, g->sizes.y), dtype_elements(want.y_dtype, want.y));
    assert_int_equal(layer_w_elements(&g->sizes), layer_w_elements(&want));
    const uint32_t n = layer_type(g->l)->params(g->l, params);
    for (uint32_t p = 0; p < n; p++) {
        assert_int_equal(params[p].dtype, g->l->w_dtype);
        assert_int_equal(params[p].offset, count * dtype_size(g->l->w_dtype));
        count += params[p].count;
    }
    assert_int_equal(count, g->l->tied ? 0 : layer_w_elements(&g->sizes));
}

/* Returns a copy of a layer, and of the layers inside it, with other types. */
static struct layer retyped(const struct layer *from, enum dtype dtype, enum dtype w_dtype,
                            struct arena *arena)
{
    struct layer to = *from;
    struct layer *inner = arena_alloc_array(arena, from->n_inner + 1, sizeof *inner);

    for (uint32_t i = 0; i < from->n_inner; i++)
        inner[i] = retyped(&from->inner[i], dtype, w_dtype, arena);
    to.inner = from->n_inner > 0 ? inner : NULL;
    to.dtype = dtype;
    to.w_dtype = w_dtype;
    return to;
}

static void check_types(const struct layer *config, enum dtype dtype, enum dtype w_dtype, uint32_t rows)
{
    struct arena *arena = arena_create();
    const struct layer l = retyped(config, dtype, w_dtype, arena);
    struct type_rig g = {.l = &l};

    layer_type(&l)->sizes(&l, rows, &g.sizes);
    check_sizes(&g, config, rows);
    run_fwd(&g, rows, true, false, true);
    run_fwd(&g, rows, true, true, true);
    run_fwd(&g, rows, false, false, true);
    run_fwd(&g, rows, false, false, false);
    run_bwd(&g, rows, true, false);
    run_bwd(&g, rows, false, true);
    assert_true(g.launches >= 3);
    arena_destroy(arena);
}

static void test_layer_has_types(void **state)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F64};
    static const uint32_t rows[] = {1, 3, 17};
    const struct configs *kind = *state;

    for (uint32_t i = 0; i < kind->n; i++)
        for (size_t a = 0; a < sizeof types / sizeof *types; a++)
            for (size_t b = 0; b < sizeof types / sizeof *types; b++)
                for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
                    check_types(&kind->at[i], types[a], types[b], rows[r]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define LAYER(name)                                                                                          \
    {"test_" #name "_has_types", test_layer_has_types, NULL, NULL, (void *)(uintptr_t)&name##_kind},
#include "kernels/layers.def"
#undef LAYER
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
