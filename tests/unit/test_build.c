/* Tests the planner as a whole on random chains and machines. Every policy that fits must make a plan that
 * plan_verify accepts, and the least capacity that the planner reports must be exact. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <errno.h>

#include "base/strbuf.h"
#include "scheduler/explain/explain.h"
#include "scheduler/policy/policy.h"
#include "scheduler/verify/verify.h"
#include "tests/cases.h"
#include "tests/unit/random_chain.h"

#define CASES 400

static void show(const struct plan *p, uint32_t seed, const struct err *err)
{
    struct strbuf b = {0};
    plan_dump(p, &b);
    fprintf(stderr, "seed %u, policy %s: %s\n%s\n", seed, p->policy, err->msg,
            getenv("TUTTI_DUMP") ? b.at : "");
    strbuf_finish(&b);
}

static void check_plan(const struct plan_request *r, uint32_t seed, uint64_t capacity)
{
    struct plan *p = NULL;
    struct err err = {0};
    assert_int_equal(plan_make(r, &p, NULL, &err), 0);
    if (plan_verify(p, r->train, r->eval, r->machine, NULL, &err) != 0) {
        show(p, seed, &err);
        fail_msg("seed %u policy %s: %s", seed, p->policy, err.msg);
    }
    for (uint32_t i = 0; i < p->n_devices; i++)
        assert_true(p->devices[i].peak_bytes <= capacity);
    plan_destroy(p);
}

/* At the least capacity, slightly above it, and with plenty of memory there must be a plan that verifies. One
 * granule below the least capacity there must be none. */
static void check_policy(struct plan_request *r, struct machine *m, uint32_t seed)
{
    uint64_t least, told = 0;
    struct err err = {0};
    assert_int_equal(plan_least_capacity(r, &least, &err), 0);
    uint64_t capacities[] = {least, least + 4096, 1ull << 40};
    for (int i = 0; i < 3; i++) {
        for (uint32_t d = 0; d < m->n_devices; d++)
            m->capacity_bytes[d] = capacities[i];
        check_plan(r, seed, capacities[i]);
    }
    struct plan *p = NULL;
    for (uint32_t d = 0; d < m->n_devices; d++)
        m->capacity_bytes[d] = least - PLAN_ALIGN;
    int e = plan_make(r, &p, &told, &err);
    if (e == 0) {
        plan_destroy(p);
        fail_msg("seed %u: less than the least capacity was enough", seed);
    }
    assert_int_equal(e, -ENOSPC);
    assert_int_equal(told, least);
}

static void test_build_random_chains_verify(void **state)
{
    (void)state;
    for (uint32_t seed = 1, n = random_cases(CASES); seed <= n; seed++) {
        struct rng rng = {.seed = seed};
        struct random_chain c;
        struct machine m;
        struct graph *train, *eval;
        random_chain(&c, &rng, 300);
        machine_init_cpu(&m, 1 + rng_below(&rng, 4), 1ull << 40, 1ull << 40);
        assert_int_equal(random_graph(&c, true, &train), 0);
        assert_int_equal(random_graph(&c, false, &eval), 0);
        struct plan_request r = {.train = train, .eval = eval, .machine = &m};
        r.policy = rng_below(&rng, POLICY_COUNT);
        r.update = rng_below(&rng, UPDATE_PLACE_COUNT);
        check_policy(&r, &m, seed);
        graph_destroy(train);
        graph_destroy(eval);
    }
}

/* Checks that every wait is needed: the verifier must refuse the plan when any one wait is removed. */
static void check_every_wait(const struct plan_request *r, uint32_t seed)
{
    struct plan *p;
    assert_int_equal(plan_make(r, &p, NULL, NULL), 0);
    for (int k = 0; k < PROGRAM_COUNT; k++) {
        struct plan_program *prog = &p->programs[k];
        for (uint32_t i = 0; i < prog->n_instrs; i++) {
            struct plan_instr *in = &prog->instrs[i];
            for (uint32_t w = 0; w < in->n_waits; w++) {
                struct plan_wait *last = &prog->waits[in->wait + in->n_waits - 1];
                struct plan_wait taken = prog->waits[in->wait + w], moved = *last;
                prog->waits[in->wait + w] = moved;
                in->n_waits--;
                if (plan_verify(p, r->train, r->eval, r->machine, NULL, NULL) == 0)
                    fail_msg("seed %u: wait %u of instruction %u of %s is not missed", seed, w, i,
                             program_kind_names[k]);
                in->n_waits++;
                *last = moved;
                prog->waits[in->wait + w] = taken;
            }
        }
    }
    assert_int_equal(plan_verify(p, r->train, r->eval, r->machine, NULL, NULL), 0);
    plan_destroy(p);
}

static void test_build_random_chains_need_every_wait(void **state)
{
    (void)state;
    for (uint32_t seed = 1000, n = random_cases(60); seed < 1000 + n; seed++) {
        struct rng rng = {.seed = seed};
        struct random_chain c;
        struct machine m;
        struct graph *train, *eval;
        random_chain(&c, &rng, 64);
        machine_init_cpu(&m, 1 + rng_below(&rng, 5), 1ull << 40, 1ull << 40);
        assert_int_equal(random_graph(&c, true, &train), 0);
        assert_int_equal(random_graph(&c, false, &eval), 0);
        struct plan_request r = {.train = train, .eval = eval, .machine = &m};
        r.policy = rng_below(&rng, POLICY_COUNT);
        r.update = rng_below(&rng, UPDATE_PLACE_COUNT);
        uint64_t least;
        assert_int_equal(plan_least_capacity(&r, &least, NULL), 0);
        for (uint32_t d = 0; d < m.n_devices; d++)
            m.capacity_bytes[d] = least + rng_below(&rng, 2) * least;
        check_every_wait(&r, seed);
        graph_destroy(train);
        graph_destroy(eval);
    }
}

/* A chain of equal layers, for which traffic and peaks can be said in closed form. */
struct even {
    struct layer layers[40];
    struct model model;
    struct optimizer optimizer;
    struct graph *train, *eval;
    struct machine machine;
    struct plan_request request;
    uint64_t w; /* bytes of all weights */
};

#define EVEN_MICRO 3

static void even_init(struct even *e, uint32_t depth, double clip, enum policy_id policy,
                      enum update_place update)
{
    *e = (struct even){.optimizer = {.kind = OPTIMIZER_ADAMW, .clip = clip}};
    for (uint32_t l = 0; l < depth; l++)
        e->layers[l] = (struct layer){.type = &layer_dense,
                                      .id = l,
                                      .in = {1, {64}},
                                      .out = {1, {64}},
                                      .dense = {.bias = true, .act = ACT_RELU}};
    e->layers[depth] = (struct layer){.type = &layer_softmax_xent, .id = depth, .in = {1, {64}}};
    e->model = (struct model){e->layers, depth + 1};
    struct graph_config c = {
        .model = &e->model, .optimizer = &e->optimizer, .rows = 8, .n_micro = EVEN_MICRO, .training = true};
    assert_int_equal(graph_build(&c, &e->train, NULL), 0);
    c.training = false;
    assert_int_equal(graph_build(&c, &e->eval, NULL), 0);
    machine_init_cpu(&e->machine, 1, 1ull << 40, 1ull << 40);
    e->request = (struct plan_request){e->train, e->eval, &e->machine, policy, update};
    e->w = (uint64_t)depth * (64 * 64 + 64) * sizeof(float);
}

static void even_finish(struct even *e)
{
    graph_destroy(e->train);
    graph_destroy(e->eval);
}

static struct plan_bytes even_bytes(struct even *e, uint64_t capacity)
{
    struct plan *p;
    struct plan_bytes b;
    e->machine.capacity_bytes[0] = capacity;
    assert_int_equal(plan_make(&e->request, &p, NULL, NULL), 0);
    plan_count_bytes(p, PROGRAM_CYCLE, &b);
    plan_destroy(p);
    return b;
}

static uint64_t even_least(struct even *e)
{
    uint64_t least;
    assert_int_equal(plan_least_capacity(&e->request, &least, NULL), 0);
    return least;
}

static void test_build_resident_moves_no_state(void **state)
{
    (void)state;
    struct even e;
    even_init(&e, 6, 0, POLICY_resident, UPDATE_DEVICE);
    struct plan_bytes b = even_bytes(&e, 1ull << 40);
    assert_int_equal(b.state_in + b.state_out + b.stash_in + b.stash_out, 0);
    even_finish(&e);
}

/* Everything in one fused pack: W once in, dW once out, nothing stashed. Layer by layer: W twice in, but that
 * of the last layer, which shares the fused pack with the loss. */
static void test_build_harmony_moves_w_once_per_pass(void **state)
{
    (void)state;
    struct even e;
    even_init(&e, 6, 0, POLICY_harmony_pp, UPDATE_HOST);
    struct plan_bytes b = even_bytes(&e, 1ull << 40);
    assert_int_equal(b.state_in, e.w);
    assert_int_equal(b.state_out, e.w);
    assert_int_equal(b.stash_in + b.stash_out, 0);
    b = even_bytes(&e, even_least(&e));
    assert_int_equal(b.state_in, 2 * e.w - e.w / 6);
    assert_int_equal(b.state_out, e.w);
    even_finish(&e);
}

/* With the update on the device K (twice W) comes in and goes out once, and W goes out instead of dW. */
static void test_build_harmony_device_update_moves_k(void **state)
{
    (void)state;
    struct even e;
    even_init(&e, 6, 0, POLICY_harmony_pp, UPDATE_DEVICE);
    struct plan_bytes b = even_bytes(&e, 1ull << 40);
    assert_int_equal(b.state_in, 3 * e.w);
    assert_int_equal(b.state_out, 3 * e.w);
    even_finish(&e);
}

/* Micro-batch by micro-batch: W for every pass of each, the unfinished sums out each time and in again. */
static void test_build_stream_moves_w_per_micro_batch(void **state)
{
    (void)state;
    struct even e;
    even_init(&e, 6, 0, POLICY_stream, UPDATE_HOST);
    struct plan_bytes b = even_bytes(&e, even_least(&e));
    assert_int_equal(b.state_in, 2 * EVEN_MICRO * e.w + (EVEN_MICRO - 1) * e.w);
    assert_int_equal(b.state_out, EVEN_MICRO * e.w);
    even_finish(&e);
}

/* Doubling the depth does not change the peak of a streamed plan. */
static void test_build_streamed_peak_independent_of_depth(void **state)
{
    (void)state;
    const enum policy_id policies[] = {POLICY_stream, POLICY_harmony_pp};
    for (int i = 0; i < 2; i++) {
        uint64_t least[3];
        for (uint32_t k = 0; k < 3; k++) {
            struct even e;
            even_init(&e, 8u << k, i, policies[i], UPDATE_HOST);
            least[k] = even_least(&e);
            even_finish(&e);
        }
        assert_int_equal(least[0], least[1]);
        assert_int_equal(least[0], least[2]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_build_random_chains_verify),
        cmocka_unit_test(test_build_random_chains_need_every_wait),
        cmocka_unit_test(test_build_resident_moves_no_state),
        cmocka_unit_test(test_build_harmony_moves_w_once_per_pass),
        cmocka_unit_test(test_build_harmony_device_update_moves_k),
        cmocka_unit_test(test_build_stream_moves_w_per_micro_batch),
        cmocka_unit_test(test_build_streamed_peak_independent_of_depth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
