/* Tests lower bounds against values computed by hand. test_plans.c checks that no plan moves less than the
 * bound, and test_bound_brute.c checks that no possible sequence of moves does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "scheduler/policy/policy.h"
#include "scheduler/predict/bound.h"

#define W 1200ull

static struct bound bound_of_state(struct bound_state state, uint64_t stash, uint64_t turn_free_bytes,
                                   uint64_t end_free_bytes)
{
    struct bound b;
    bound_compute(&(struct bound_sizes){&state, 1, stash, turn_free_bytes, end_free_bytes}, &b);
    return b;
}

/* fp32: dW is as large as W. */
static struct bound bound_of(uint64_t k, uint64_t stash, uint64_t room)
{
    return bound_of_state((struct bound_state){W, W, k, 0, false}, stash, room, room);
}

/* Adam 3W - C, SGD with momentum 3W - 1.5C, plain SGD 3W - 3C, never below 0. */
static void test_bound_free_choice_by_hand(void **state)
{
    (void)state;
    for (uint64_t room = 0; room <= 4 * W; room += 100) {
        assert_int_equal(bound_of(2 * W, 0, room).bytes, room < 3 * W ? 3 * W - room : 0);
        assert_int_equal(bound_of(W, 0, room).bytes, room < 2 * W ? 3 * W - 3 * room / 2 : 0);
        assert_int_equal(bound_of(0, 0, room).bytes, room < W ? 3 * W - 3 * room : 0);
    }
    assert_int_equal(bound_of(2 * W, 0, UINT64_MAX).bytes, 0);
}

/* Half a byte moved is a byte moved. */
static void test_bound_is_whole_bytes(void **state)
{
    (void)state;
    assert_int_equal(bound_of(W, 0, 1).bytes, 3 * W - 1);
    assert_int_equal(bound_of(W, 0, 2).bytes, 3 * W - 3);
    assert_int_equal(bound_of(W, 0, 3).bytes, 3 * W - 4);
}

/* Each byte of free memory saves 2 bytes of traffic when it holds stash. The state of Adam saves 1 and of
 * momentum 1.5, so stash is kept before them. The state of plain SGD saves 3 and is kept before the stash. */
static void test_bound_fills_by_density(void **state)
{
    (void)state;
    uint64_t a = 500;
    assert_int_equal(bound_of(2 * W, a, 0).bytes, 3 * W + 2 * a);
    assert_int_equal(bound_of(2 * W, a, 300).bytes, 3 * W + 2 * a - 600);
    assert_int_equal(bound_of(2 * W, a, 700).bytes, 3 * W - 200);
    assert_int_equal(bound_of(W, a, 700).bytes, 3 * W - 300);
    assert_int_equal(bound_of(0, a, W).bytes, 2 * a);
    assert_int_equal(bound_of(0, a, W + 200).bytes, 2 * a - 400);
    assert_int_equal(bound_of(0, a, W + a).bytes, 0);
}

/* A state smaller than half of W: then to keep W alone, and let K go in and out, saves 3W - 2K with W bytes.
 */
static void test_bound_small_state_is_left_out_first(void **state)
{
    (void)state;
    uint64_t k = W / 4;
    assert_int_equal(bound_of(k, 0, W).bytes, 2 * k);
    assert_int_equal(bound_of(k, 0, W / 2).bytes, 3 * W - (3 * W - 2 * k) / 2);
    assert_int_equal(bound_of(k, 0, W + k).bytes, 0);
}

/* Adam with updates on the host needs no room at the end. Without K each room counts: 2 per byte at the
 * turn, 1 at the end. */
static void test_bound_rooms_count_apart(void **state)
{
    (void)state;
    struct bound_state adam = {W, W, 2 * W, 0, false}, plain = {W, W, 0, 0, false};
    assert_int_equal(bound_of_state(adam, 0, 500, 500).bytes, 3 * W - 500);
    assert_int_equal(bound_of_state(adam, 0, 500, 900).bytes, 3 * W - 500);
    assert_int_equal(bound_of_state(adam, 0, 500, 0).bytes, 3 * W - 500);
    assert_int_equal(bound_of_state(plain, 0, 500, 900).bytes, 3 * W - 2 * 500 - 900);
    assert_int_equal(bound_of_state(plain, 0, 900, 500).bytes, 3 * W - 3 * 500 - 400);
}

/* When updates wait for a decision, all dW are there at the end, or travel: with Adam the host is as good up
 * to room for W, and nothing is moved only with room for dW too. */
static void test_bound_decision_holds_gradients(void **state)
{
    (void)state;
    struct bound_state adam = {W, W, 2 * W, W, false};
    assert_int_equal(bound_of_state(adam, 0, 500, 500).bytes, 3 * W - 500);
    assert_int_equal(bound_of_state(adam, 0, 2 * W, 2 * W).bytes, W);
    assert_int_equal(bound_of_state(adam, 0, 3 * W, 3 * W).bytes, W / 2);
    assert_int_equal(bound_of_state(adam, 0, 3 * W, 4 * W - 2).bytes, 1);
    assert_int_equal(bound_of_state(adam, 0, 3 * W, 4 * W).bytes, 0);
}

/* A layer without K saves 3 bytes of traffic per byte of memory. It is kept first, whatever state the other
 * layers have. */
static void test_bound_layers_count_apart(void **state)
{
    (void)state;
    struct bound_state states[2] = {{W, W, 0, 0, false}, {W, W, 2 * W, 0, false}};
    struct bound b;
    for (uint64_t room = 0; room <= 4 * W; room += 100) {
        bound_compute(&(struct bound_sizes){states, 2, 0, room, room}, &b);
        assert_int_equal(b.bytes, 6 * W - (room < W ? 3 * room : 2 * W + room));
    }
}

/* The W of a layer behind that of the turn goes out and in once, like K, unless it is there at both. */
static void test_bound_passed_layers_need_w_once(void **state)
{
    (void)state;
    struct bound_state adam = {W, W, 2 * W, 0, true}, plain = {W, W, 0, 0, true};
    assert_int_equal(bound_of_state(adam, 0, 0, 0).bytes, 2 * W);
    assert_int_equal(bound_of_state(adam, 0, W, 0).bytes, 2 * W);
    assert_int_equal(bound_of_state(plain, 0, 500, 900).bytes, 2 * W - 2 * 500);
    assert_int_equal(bound_of_state(plain, 0, 900, 500).bytes, 2 * W - 2 * 500);
}

static void assert_way(struct bound_way got, uint64_t in, uint64_t out)
{
    assert_int_equal(got.in, in);
    assert_int_equal(got.out, out);
    assert_int_equal(got.total, in + out);
}

static void test_bound_fixed_places_by_hand(void **state)
{
    (void)state;
    assert_way(bound_of(2 * W, 0, 0).host, 2 * W, W);
    assert_way(bound_of(2 * W, 0, 200).host, 2 * W - 200, W);
    assert_way(bound_of(2 * W, 0, 9 * W).host, W, W);
    assert_way(bound_of(2 * W, 0, 0).device, 4 * W, 3 * W);
    assert_way(bound_of(2 * W, 0, 200).device, 4 * W - 400, 3 * W - 200);
    assert_way(bound_of(2 * W, 0, 2 * W).device, W, W);
    assert_way(bound_of(2 * W, 0, 3 * W).device, 0, 0);
}

/* ---- plans ---- */

static const struct model two_dense = {
    (struct layer[]){
        {.type = &layer_dense, .id = 0, .in = {1, {64}}, .out = {1, {64}}, .dense = {.act = ACT_RELU}},
        {.type = &layer_dense, .id = 1, .in = {1, {64}}, .out = {1, {64}}},
        {.type = &layer_softmax_xent, .id = 2, .in = {1, {64}}},
    },
    3};

/* Two layers of 64 x 64, 8 rows, two micro-batches, one after another. At the loss X1.0 and S0.0 are stash,
 * and X2.0, T and dX2.0 are its working set; at layer 1 S0.0 is stash, and X1.0, dX2.0, dX1.0 and dW1 are in
 * use, and at the end X0.1, S0.1, dX1.1, scratch and dW0. */
static void check_sizes(const struct plan *p, const struct graph *g, uint64_t memory)
{
    uint64_t w = 2 * 64 * 64 * 4, x = 8 * 64 * 4, target = 8 * 4, s0 = g->layers[0].size.s;
    for (uint32_t turn = 1; turn <= 2; turn++) {
        struct bound_sizes s;
        assert_true(bound_sizes_of(p, turn, &s));
        assert_int_equal(s.n_states, 1);
        assert_int_equal(s.states[0].w, w);
        assert_int_equal(s.states[0].dw, w);
        assert_int_equal(s.states[0].k, 2 * w);
        assert_int_equal(s.states[0].waiting, 0);
        assert_int_equal(s.stash, turn == 2 ? x + s0 : s0);
        assert_int_equal(memory - s.turn_free_bytes, turn == 2 ? x + target + x : 3 * x + w / 2);
        assert_int_equal(memory - s.end_free_bytes, 2 * x + s0 + g->layers[0].size.scratch_bwd + w / 2);
        bound_sizes_finish(&s);
    }
}

static void test_bound_sizes_of_a_plan_by_hand(void **state)
{
    (void)state;
    struct optimizer o = {.kind = OPTIMIZER_ADAMW};
    struct graph_config c = {.model = &two_dense, .optimizer = &o, .rows = 8, .n_micro = 2, .training = true};
    struct graph *g;
    struct machine m;
    struct plan *p;
    assert_int_equal(graph_build(&c, &g, NULL), 0);
    for (uint32_t n = 1; n <= 2; n++) {
        machine_init_cpu(&m, n, 1 << 20, 1 << 30);
        struct plan_request r = {g, NULL, &m, POLICY_lru, UPDATE_DEVICE, NULL};
        assert_int_equal(plan_make(&r, &p, NULL, NULL), 0);
        check_sizes(p, g, n * (1 << 20));
        assert_int_equal(bound_bytes(p), 0);
        for (uint32_t d = 0; d < n; d++)
            p->devices[d].lease_bytes = 0;
        assert_int_equal(bound_bytes(p), 3 * 2 * 64 * 64 * 4 + 2 * (8 * 64 * 4 + g->layers[0].size.s));
        plan_destroy(p);
    }
    graph_destroy(g);
}

/* With clipping dW of all layers but the first waits: two proportions. */
static void test_bound_sizes_of_a_plan_with_decision(void **state)
{
    (void)state;
    struct optimizer o = {.kind = OPTIMIZER_ADAMW, .clip = 1};
    struct graph_config c = {.model = &two_dense, .optimizer = &o, .rows = 8, .n_micro = 2, .training = true};
    struct graph *g;
    struct machine m;
    struct plan *p;
    struct bound_sizes s;
    uint64_t w = 64 * 64 * 4;
    assert_int_equal(graph_build(&c, &g, NULL), 0);
    machine_init_cpu(&m, 1, 1 << 20, 1 << 30);
    struct plan_request r = {g, NULL, &m, POLICY_lru, UPDATE_DEVICE, NULL};
    assert_int_equal(plan_make(&r, &p, NULL, NULL), 0);
    assert_int_equal(bound_turn_layer(p), 1);
    assert_true(bound_sizes_of(p, 1, &s));
    assert_int_equal(s.n_states, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(s.states[i].w, w);
        assert_int_equal(s.states[i].dw, w);
        assert_int_equal(s.states[i].k, 2 * w);
        assert_int_equal(s.states[i].waiting, i * w);
        assert_false(s.states[i].passed);
    }
    bound_sizes_finish(&s);
    p->steps = 2;
    assert_false(bound_sizes_of(p, 1, &s));
    assert_int_equal(bound_bytes(p), 0);
    plan_destroy(p);
    graph_destroy(g);
}

/* ---- a run of any cycle ---- */

static uint64_t bound_of_cycle(uint32_t steps, uint64_t k, int64_t free_bytes)
{
    struct bound_state state = {.w = W, .dw = W, .k = k};
    return bound_cycle_compute(&(struct bound_cycle){steps, &state, 1, free_bytes});
}

/* AdamW with K = 2W: the update on the host moves 2W a step. The state is 3W, and crosses twice in a cycle.
 * So from 3 steps on, the update on the device moves less. */
static void test_bound_of_a_cycle_by_hand(void **state)
{
    (void)state;
    for (uint32_t steps = 1; steps <= 16; steps++) {
        uint64_t without_memory = steps < 3 ? 2 * steps * W : 6 * W;
        for (int64_t room = 0; room <= 3 * (int64_t)W; room += 100)
            assert_int_equal(bound_of_cycle(steps, 2 * W, room),
                             (without_memory * (3 * W - (uint64_t)room) + 3 * W - 1) / (3 * W));
        assert_int_equal(bound_of_cycle(steps, 2 * W, INT64_MAX), 0);
        /* Activations that do not fit go out and in. */
        assert_true(bound_of_cycle(steps, 2 * W, -500) >= without_memory + 500);
        /* Without optimizer state, the update on the device moves W in and out. */
        assert_int_equal(bound_of_cycle(steps, 0, 0), 2 * W);
    }
    assert_int_equal(bound_of_cycle(4, 2 * W, -500), 6 * W + 1000);
}

/* Layers with and without optimizer state: the free bytes go to the layer that saves more. */
static void test_bound_of_a_cycle_fills_by_density(void **state)
{
    struct bound_state states[] = {{.w = W, .dw = W, .k = 2 * W}, {.w = W, .dw = W}};
    struct bound_cycle c = {1, states, 2, 0};
    (void)state;
    assert_int_equal(bound_cycle_compute(&c), 4 * W);
    c.free_bytes = W; /* keeps the second layer: 2 bytes for each byte of memory */
    assert_int_equal(bound_cycle_compute(&c), 2 * W);
    c.free_bytes = 2 * W;
    assert_int_equal(bound_cycle_compute(&c), 4 * W / 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bound_free_choice_by_hand),
        cmocka_unit_test(test_bound_is_whole_bytes),
        cmocka_unit_test(test_bound_fills_by_density),
        cmocka_unit_test(test_bound_small_state_is_left_out_first),
        cmocka_unit_test(test_bound_rooms_count_apart),
        cmocka_unit_test(test_bound_decision_holds_gradients),
        cmocka_unit_test(test_bound_layers_count_apart),
        cmocka_unit_test(test_bound_passed_layers_need_w_once),
        cmocka_unit_test(test_bound_fixed_places_by_hand),
        cmocka_unit_test(test_bound_sizes_of_a_plan_by_hand),
        cmocka_unit_test(test_bound_sizes_of_a_plan_with_decision),
        cmocka_unit_test(test_bound_of_a_cycle_by_hand),
        cmocka_unit_test(test_bound_of_a_cycle_fills_by_density),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
