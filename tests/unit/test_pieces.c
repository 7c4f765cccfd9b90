/* Tests of pieces: the cuts of every tensor are aligned and cover the tensor without gap or overlap, the cuts
 * of K and dW follow the cuts of W, also if their types differ, and the shares of a task together cover each
 * of its operands exactly once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "scheduler/build/build.h"
#include "tests/unit/even_table.h"

#define CASES      2000
#define MAX_SHARES 8

static bool is_state(enum tensor_kind k)
{
    return k == TENSOR_W || k == TENSOR_DW || k == TENSOR_B;
}

static uint64_t distance(uint64_t a, uint64_t b)
{
    return a > b ? a - b : b - a;
}

static void check_cover(const struct graph *g, uint32_t n, tensor_id t)
{
    uint32_t pieces = tensor_pieces(g, n, t);
    struct extent all = extent_whole(g, n, t);
    uint64_t at = 0;
    assert_true(pieces > 0);
    assert_int_equal(all.piece, 0);
    assert_int_equal(all.n_pieces, pieces);
    assert_int_equal(all.begin, 0);
    assert_int_equal(all.end, g->tensors[t].bytes);
    for (uint32_t p = 0; p < pieces; p++) {
        struct extent e = extent_piece(g, n, t, p);
        uint64_t begin, end;
        tensor_piece(g, n, t, p, &begin, &end);
        assert_true(e.piece == p && e.n_pieces == 1 && e.begin == begin && e.end == end);
        assert_int_equal(begin, at); /* no gap, no overlap */
        assert_true(end >= begin);
        at = end;
    }
    assert_int_equal(at, g->tensors[t].bytes);
}

static void check_state(const struct graph *g, uint32_t n, tensor_id t)
{
    uint64_t bytes = g->tensors[t].bytes;
    assert_int_equal(tensor_pieces(g, n, t), n);
    for (uint32_t p = 0; p < n; p++) {
        struct extent e = extent_piece(g, n, t, p);
        assert_int_equal(e.begin % PLAN_ALIGN, 0);
        assert_true(distance(e.begin, bytes * p / n) < PLAN_ALIGN);
        assert_true(p + 1 < n || e.end > e.begin); /* the last has what is left */
    }
}

/* Number of parts that the tables of this test give to K: one for each multiple of W, up to a limit. */
static uint64_t parts_of(uint64_t w, uint64_t k)
{
    return k % w == 0 && k / w <= TABLE_MAX_PARTS ? k / w : 1;
}

/* Lists the parts of K in the table. */
static void divide_k(struct table *t, struct table_layer *l)
{
    l->n_k_parts = (uint32_t)parts_of(l->w, l->k);
    l->k_parts = arena_alloc_array(t->arena, l->n_k_parts, sizeof *l->k_parts);
    for (uint32_t p = 0; p < l->n_k_parts; p++)
        l->k_parts[p] = l->k / l->n_k_parts;
}

static void check_moments(const struct graph *g, uint32_t n, tensor_id t)
{
    uint32_t layer = g->tensors[t].layer, pieces = tensor_pieces(g, n, t);
    uint64_t w = g->layers[layer].size.w, k = g->tensors[t].bytes;
    tensor_id weights = graph_tensor_find(g, TENSOR_W, layer, PLAN_NONE, 0);
    assert_int_equal(g->layers[layer].n_parts, parts_of(w, k));
    assert_int_equal(pieces, n == 1 ? 1 : n * parts_of(w, k));
    for (uint32_t p = 0; n > 1 && p < pieces; p++) {
        struct extent e = extent_piece(g, n, t, p), of = extent_piece(g, n, weights, p % n);
        if (parts_of(w, k) * w == k) {
            assert_int_equal(e.begin, p / n * w + of.begin);
            assert_int_equal(e.end, p / n * w + of.end);
        } else {
            assert_int_equal(e.begin % PLAN_ALIGN, 0);
            assert_true(distance(e.begin, (uint64_t)((double)of.begin * (double)k / (double)w)) <=
                        PLAN_ALIGN);
            assert_true(of.end > of.begin || e.end == e.begin); /* nothing goes with nothing */
        }
    }
}

static void check_inputs(const struct graph *g, uint32_t n, tensor_id t)
{
    /* An output is named after the layer that writes it, an input and its gradient after the reader. */
    uint32_t layer = g->tensors[t].layer + (g->tensors[t].kind == TENSOR_Y), pieces = tensor_pieces(g, n, t);
    uint32_t own = g->layers[layer].rows, before = layer > 0 ? g->layers[layer - 1].rows : own;
    assert_int_equal(pieces, own > before ? own / before : before / own);
    for (uint32_t p = 0; p < pieces; p++) {
        struct extent e = extent_piece(g, n, t, p);
        assert_int_equal((e.end - e.begin) * pieces, g->tensors[t].bytes);
    }
}

/* The operands of all shares of RED and UPD: each byte of each tensor once, and W and dW cut alike. */
static void check_shares(const struct graph *g, uint32_t n, uint32_t task)
{
    const struct graph_task *gt = &g->tasks[task];
    struct order o;
    order_init(&o, g, n);
    o.n_shares = n;
    for (uint32_t k = 0; k < gt->n_operands; k++) {
        const struct graph_operand *op = &g->operands[gt->operand + k];
        uint64_t bytes = 0, w = g->layers[gt->layer].size.w;
        for (uint32_t s = 0; s < n; s++) {
            struct todo t = {.kind = gt->kind, .layer = gt->layer, .share = s, .task = task};
            uint32_t parts = todo_extents(&o, &t, op);
            bool moments = g->tensors[op->tensor].kind == TENSOR_K;
            assert_int_equal(parts, moments ? parts_of(w, op->end) : 1);
            for (uint32_t i = 0; i < parts; i++) {
                struct extent e = todo_extent(&o, &t, op, i);
                assert_int_equal(e.n_pieces, 1);
                assert_int_equal(e.piece, i * n + s);
                bytes += e.end - e.begin;
            }
        }
        assert_int_equal(bytes, g->tensors[op->tensor].bytes);
    }
    order_finish(&o);
}

/* A task that runs as a whole on one of several devices must have all of W, and the rows of X that it
 * computes. */
static void check_whole_tasks(const struct graph *g, uint32_t n, uint32_t task)
{
    const struct graph_task *gt = &g->tasks[task];
    struct order o;
    order_init(&o, g, n);
    o.n_shares = n;
    struct todo t = {
        .kind = gt->kind, .layer = gt->layer, .micro = gt->micro, .share = SHARE_ALL, .task = task};
    for (uint32_t k = 0; k < gt->n_operands; k++) {
        const struct graph_operand *op = &g->operands[gt->operand + k];
        struct extent e = todo_extent(&o, &t, op, 0);
        assert_int_equal(todo_extents(&o, &t, op), 1);
        assert_int_equal(e.begin, op->begin);
        assert_int_equal(e.end, op->end);
    }
    order_finish(&o);
}

static void check_tensor(const struct graph *g, uint32_t n, tensor_id t)
{
    enum tensor_kind kind = g->tensors[t].kind;
    check_cover(g, n, t);
    if (is_state(kind))
        check_state(g, n, t);
    else if (kind == TENSOR_K)
        check_moments(g, n, t);
    else if (kind == TENSOR_X || kind == TENSOR_Y || kind == TENSOR_DX)
        check_inputs(g, n, t);
    else
        assert_int_equal(tensor_pieces(g, n, t), 1);
}

static void test_pieces_cover_every_tensor(void **state)
{
    (void)state;
    static const uint32_t sizes[][4] = {{1, 1, 1, 1}, {4, 2, 1, 1}, {12, 4, 2, 2}, {2, 6, 6, 3}};
    for (uint32_t seed = 1; seed <= CASES; seed++) {
        struct rng rng = {.seed = seed};
        struct table *t = even_table(4, 1, 1, 1, 1);
        struct graph *g;
        uint32_t n = 1 + rng_below(&rng, MAX_SHARES);
        for (uint32_t l = 0; l < 3; l++) {
            uint64_t w = 1 + rng_below(&rng, rng_below(&rng, 2) ? 300 * MAX_SHARES : 1u << 30);
            t->layers[l].w = w;
            t->layers[l].k =
                rng_below(&rng, 2) ? w * (1 + rng_below(&rng, 4)) : 1 + rng_below(&rng, 1u << 20);
            t->layers[l].b = rng_below(&rng, 5000);
            divide_k(t, &t->layers[l]);
        }
        const struct graph_sizes s = {12 * n, n, sizes[rng_below(&rng, 4)]};
        assert_int_equal(graph_build_sizes(t, &s, true, &g, NULL), 0);
        for (tensor_id i = 0; i < g->n_tensors; i++)
            check_tensor(g, n, i);
        for (uint32_t i = 0; i < g->n_tasks; i++) {
            bool shared = n > 1 && (g->tasks[i].kind == INSTR_RED || g->tasks[i].kind == INSTR_UPD);
            (shared ? check_shares : check_whole_tasks)(g, n, i);
        }
        graph_destroy(g);
        table_destroy(t);
    }
}

static void test_pieces_by_hand(void **state)
{
    (void)state;
    struct table *t = even_table(2, 1000, 2000, 100, 0);
    struct graph *g;
    uint64_t begin, end;
    static const uint64_t cuts[] = {0, 256, 512, 1000}, empty[] = {0, 0, 0, 0, 100};
    assert_int_equal(graph_build_table(t, 1, 3, true, &g, NULL), 0);
    tensor_id w = graph_tensor_find(g, TENSOR_W, 0, PLAN_NONE, 0),
              k = graph_tensor_find(g, TENSOR_K, 0, PLAN_NONE, 0);
    assert_int_equal(tensor_pieces(g, 3, k), 6);
    for (uint32_t i = 0; i < 3; i++) {
        tensor_piece(g, 3, w, i, &begin, &end); /* a third is 333 bytes */
        assert_true(begin == cuts[i] && end == cuts[i + 1]);
        tensor_piece(g, 3, k, 3 + i, &begin, &end);
        assert_true(begin == 1000 + cuts[i] && end == 1000 + cuts[i + 1]);
    }
    g->tensors[w].bytes = 100; /* small: all of it is the last one's */
    for (uint32_t i = 0; i < 4; i++) {
        tensor_piece(g, 4, w, i, &begin, &end);
        assert_true(begin == empty[i] && end == empty[i + 1]);
    }
    graph_destroy(g);
    table_destroy(t);
}

/* Byte of a tensor with elements of `size` bytes, in a part that begins at byte `begin`. */
static uint64_t at_element(uint64_t begin, uint64_t element, uint64_t size)
{
    return begin + element * size;
}

/* A W of 1000 elements in F32 or BF16, a dW in F32, and K with parts of other types and other lengths: every
 * share has the same elements of W, dW and the parts that are as long as W. The part of 300 elements is cut
 * in proportion. */
static void check_unequal_parts(enum dtype w_dtype, const uint64_t *cuts, const uint64_t *few)
{
    const uint64_t size = dtype_size(w_dtype), w_bytes = 1000 * size;
    const struct state_part parts[] = {{"same", w_dtype, 1000, 0, w_bytes},
                                       {"few", DTYPE_F32, 300, w_bytes, w_bytes + 1200},
                                       {"half", DTYPE_BF16, 1000, w_bytes + 1200, w_bytes + 3200}};
    struct table *t = even_table(2, w_bytes, w_bytes + 3200, 100, 0);
    struct graph *g;
    assert_int_equal(graph_build_table(t, 1, 3, true, &g, NULL), 0);
    tensor_id w = graph_tensor_find(g, TENSOR_W, 0, PLAN_NONE, 0),
              dw = graph_tensor_find(g, TENSOR_DW, 0, 0, 0),
              k = graph_tensor_find(g, TENSOR_K, 0, PLAN_NONE, 0);
    g->layers[0].size.w_dtype = g->tensors[w].dtype = w_dtype;
    g->tensors[dw].dtype = DTYPE_F32;
    g->tensors[dw].bytes = 4000;
    g->layers[0].parts = parts;
    g->layers[0].n_parts = 3;
    check_cover(g, 3, w);
    check_cover(g, 3, dw);
    check_cover(g, 3, k);
    assert_int_equal(tensor_pieces(g, 3, k), 9);
    for (uint32_t i = 0; i < 3; i++) {
        struct extent e = extent_piece(g, 3, w, i);
        assert_true(e.begin == at_element(0, cuts[i], size) && e.end == at_element(0, cuts[i + 1], size));
        e = extent_piece(g, 3, dw, i);
        assert_true(e.begin == at_element(0, cuts[i], 4) && e.end == at_element(0, cuts[i + 1], 4));
        e = extent_piece(g, 3, k, i);
        assert_true(e.begin == at_element(0, cuts[i], size) && e.end == at_element(0, cuts[i + 1], size));
        e = extent_piece(g, 3, k, 3 + i);
        assert_int_equal(e.begin, at_element(parts[1].begin, few[i], 4));
        assert_int_equal(e.end, at_element(parts[1].begin, few[i + 1], 4));
        e = extent_piece(g, 3, k, 6 + i);
        assert_int_equal(e.begin, at_element(parts[2].begin, cuts[i], 2));
        assert_int_equal(e.end, at_element(parts[2].begin, cuts[i + 1], 2));
    }
    graph_destroy(g);
    table_destroy(t);
}

static void test_pieces_of_unequal_parts(void **state)
{
    (void)state;
    /* A third of 1000 is 333: the next multiple of 64 below is 320, and of 128 it is 256. Of 300 elements, 96
     * and 76 go with the first share, and 192 and 192 with the first two. */
    check_unequal_parts(DTYPE_F32, (const uint64_t[]){0, 320, 640, 1000},
                        (const uint64_t[]){0, 64, 192, 300});
    check_unequal_parts(DTYPE_BF16, (const uint64_t[]){0, 256, 640, 1000},
                        (const uint64_t[]){0, 64, 192, 300});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_of_unequal_parts),
        cmocka_unit_test(test_pieces_cover_every_tensor),
        cmocka_unit_test(test_pieces_by_hand),
    };
    return cmocka_run_group_tests_name("pieces", tests, NULL, NULL);
}
