/* Lower bounds: the values that follow by hand, and that no verified plan of any policy moves less. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "scheduler/bound.h"
#include "scheduler/policy.h"
#include "scheduler/verify.h"
#include "tests/unit/random_chain.h"

#define CASES 200
#define W     1200ull

/* fp32: dW is as large as W. */
static struct bound bound_of(uint64_t k, uint64_t stash, uint64_t room)
{
    struct bound b;
    bound_compute(&(struct bound_sizes){.w = W, .dw = W, .k = k, .stash = stash, .room = room}, &b);
    return b;
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

/* Gains are rounded up: half a byte less is a byte less. */
static void test_bound_rounds_down(void **state)
{
    (void)state;
    assert_int_equal(bound_of(W, 0, 1).bytes, 3 * W - 2);
    assert_int_equal(bound_of(W, 0, 2).bytes, 3 * W - 3);
    assert_int_equal(bound_of(W, 0, 3).bytes, 3 * W - 5);
}

/* Stash saves 2 per byte: before the state of Adam (1) and momentum (1.5), after that of plain SGD (3). */
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
        {.kind = LAYER_dense, .id = 0, .in = 64, .out = 64, .act = ACT_RELU},
        {.kind = LAYER_dense, .id = 1, .in = 64, .out = 64},
        {.kind = LAYER_softmax_xent, .id = 2, .in = 64},
    },
    3};

/* Two layers of 64 x 64, 8 rows, two micro-batches, one after another: X1.0 and S0.0 are alive at the turn;
 * X2.0, T and dX2.0 are its working set. */
static void test_bound_sizes_of_a_plan_by_hand(void **state)
{
    (void)state;
    struct optimizer o = {.kind = OPTIMIZER_ADAMW};
    struct graph_config c = {.model = &two_dense, .optimizer = &o, .rows = 8, .n_micro = 2, .training = true};
    struct graph *g;
    struct machine m;
    struct plan *p;
    struct bound_sizes s;
    assert_int_equal(graph_build(&c, &g, NULL), 0);
    for (uint32_t n = 1; n <= 2; n++) {
        machine_init_cpu(&m, n, 1 << 20, 1 << 30);
        struct plan_request r = {g, NULL, &m, POLICY_lru, UPDATE_DEVICE};
        assert_int_equal(plan_make(&r, &p, NULL, NULL), 0);
        bound_sizes_of(p, &s);
        uint64_t w = 2 * 64 * 64 * 4, x = 8 * 64 * 4, target = 8 * 4;
        assert_int_equal(s.w, w);
        assert_int_equal(s.dw, w);
        assert_int_equal(s.k, 2 * w);
        assert_int_equal(s.stash, x + g->layers[0].size.s);
        assert_int_equal(s.room, n * (1 << 20) - (x + target + x));
        assert_int_equal(bound_bytes(p), 0);
        for (uint32_t d = 0; d < n; d++)
            p->devices[d].lease_bytes = 0;
        assert_int_equal(bound_bytes(p), 3 * w + 2 * s.stash);
        plan_destroy(p);
    }
    graph_destroy(g);
}

/* Many layers of about one size, so that the memory that one needs does not hold most of the others. */
static void even_chain(struct random_chain *c, struct rng *rng)
{
    random_chain(c, rng, 40);
    uint32_t n = 8 + rng_below(rng, RANDOM_MAX_LAYERS - 8), base = 30 + rng_below(rng, 100), in = base;
    for (uint32_t l = 0; l < n; l++) {
        uint32_t out = base + rng_below(rng, 1 + base / 8);
        c->layers[l] = (struct layer){
            .kind = LAYER_dense, .id = l, .in = in, .out = out, .act = rng_below(rng, ACT_COUNT)};
        in = out;
    }
    c->layers[n] = (struct layer){.kind = LAYER_softmax_xent, .id = n, .in = in};
    c->model = (struct model){c->layers, n + 1};
}

struct tally {
    uint32_t plans, positive, reached;
};

static void check_plan(const struct plan_request *r, const struct plan *p, uint32_t seed, struct tally *tally)
{
    struct plan_bytes b;
    struct bound_sizes s;
    struct bound bound;
    plan_count_bytes(p, PROGRAM_CYCLE, &b);
    bound_sizes_of(p, &s);
    bound_compute(&s, &bound);
    uint64_t moved = b.state_in + b.state_out + b.stash_in + b.stash_out;
    if (moved < bound.bytes)
        fail_msg("seed %u: %s moves %llu bytes, less than the bound of %llu", seed, p->policy,
                 (unsigned long long)moved, (unsigned long long)bound.bytes);
    const struct bound_way *way = r->update == UPDATE_HOST ? &bound.host : &bound.device;
    if (b.state_in < way->in || b.state_out < way->out)
        fail_msg("seed %u: %s with updates on the %s moves %llu in and %llu out, less than %llu and %llu",
                 seed, p->policy, update_place_names[r->update], (unsigned long long)b.state_in,
                 (unsigned long long)b.state_out, (unsigned long long)way->in, (unsigned long long)way->out);
    tally->plans++;
    tally->positive += bound.bytes > 0;
    tally->reached += bound.bytes > 0 && moved <= bound.bytes + bound.bytes / 4;
}

static void check_policies(const struct graph *g, struct machine *m, struct rng *rng, uint32_t seed,
                           struct tally *tally)
{
    for (int policy = 0; policy < POLICY_COUNT; policy++) {
        for (int update = UPDATE_HOST; update < UPDATE_PLACE_COUNT; update++) {
            struct plan_request r = {g, NULL, m, policy, update};
            uint64_t least;
            struct plan *p;
            assert_int_equal(plan_least_capacity(&r, &least, NULL), 0);
            for (int i = 0; i < 3; i++) { /* the least, then anything up to four times that */
                for (uint32_t d = 0; d < m->n_devices; d++)
                    m->capacity_bytes[d] = least + (i > 0 ? rng_below(rng, 1u << 16) * 3 * least >> 16 : 0);
                assert_int_equal(plan_make(&r, &p, NULL, NULL), 0);
                check_plan(&r, p, seed, tally);
                plan_destroy(p);
            }
        }
    }
}

static void test_bound_holds_for_every_policy(void **state)
{
    (void)state;
    struct tally tally = {0};
    for (uint32_t seed = 1; seed <= CASES; seed++) {
        struct rng rng = {.seed = seed};
        struct random_chain c;
        struct machine m;
        struct graph *g;
        if (seed % 3 == 0)
            random_chain(&c, &rng, 300);
        else
            even_chain(&c, &rng);
        machine_init_cpu(&m, 1 + rng_below(&rng, 4), 0, 1ull << 40);
        assert_int_equal(random_graph(&c, true, &g), 0);
        check_policies(g, &m, &rng, seed, &tally);
        graph_destroy(g);
    }
    /* A bound that says nothing would pass as well. */
    print_message("# %u plans, bound above 0 for %u, within a quarter of it %u\n", tally.plans, tally.positive,
                  tally.reached);
    assert_true(tally.positive > tally.plans / 5);
    assert_true(tally.reached > tally.plans / 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bound_free_choice_by_hand),
        cmocka_unit_test(test_bound_rounds_down),
        cmocka_unit_test(test_bound_fills_by_density),
        cmocka_unit_test(test_bound_small_state_is_left_out_first),
        cmocka_unit_test(test_bound_fixed_places_by_hand),
        cmocka_unit_test(test_bound_sizes_of_a_plan_by_hand),
        cmocka_unit_test(test_bound_holds_for_every_policy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
