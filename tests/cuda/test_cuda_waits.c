/* Shows that every wait of a plan is needed. Each plan runs once complete, and the simulator's race detector
 * must report nothing. Then the plan runs once for each of its waits, with that wait removed, and the
 * detector must report a race every time.
 *
 * The verifier shows the same by its own bookkeeping (tests/unit/test_build.c). Here the executor and the
 * cuda backend really execute the plans, and the detector knows nothing about plans. It sees streams, events,
 * and the bytes that kernels, copies, discards, host functions and the loop around the executor touch. The
 * detector reports accesses that are not ordered, whether or not they met in this run, so one run for each
 * wait is enough.
 *
 * Two mechanisms of the backend add order beyond what a plan asks for, and could hide races. First, copies
 * between devices without peer access share a stream of the receiver. Here all devices have peer access.
 * Second, a thread that enqueues more host calls than fit into half of the backend's ring waits for earlier
 * calls (kernels/cuda/host_queue.c). Here two steps have fewer host calls, and all earlier calls are known to
 * be done.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/cases.h"
#include "tests/cudasim/lookup.h"
#include "tests/engine/engine.h"
#include "tests/engine/plan_features.h"
#include "tests/engine/random_plan.h"

static uint32_t n_plans, n_waits;
static uint32_t tried[FEATURE_COUNT]; /* plans with it, in all tests so far */

static struct cudasim_calls simulator(void)
{
    struct cudasim_calls sim;
    assert_true(cudasim_lookup(&sim));
    return sim;
}

static uint64_t races_of_training(struct engine *e)
{
    const struct cudasim_calls sim = simulator();
    const uint64_t before = sim.races();
    struct engine_result result;
    engine_train(e, &result);
    return sim.races() - before;
}

/* Wait w of the instruction is taken out and put back. */
static void check_wait(struct engine *e, enum program_kind k, uint32_t instr, uint32_t w, const char *what)
{
    const struct plan_program *p = &e->plan->programs[k];
    struct plan_instr *in = &p->instrs[instr];
    struct plan_wait *waits = &p->waits[in->wait];
    const struct plan_wait taken = waits[w], last = waits[in->n_waits - 1];

    waits[w] = last;
    in->n_waits--;
    if (races_of_training(e) == 0)
        fail_msg("%s: no race when instruction %u of %s (%s) does not wait for %u (%s), %u runs back", what,
                 instr, program_kind_names[k], instr_kind_names[in->kind], taken.instr,
                 instr_kind_names[p->instrs[taken.instr].kind], taken.distance);
    in->n_waits++;
    waits[in->n_waits - 1] = last;
    waits[w] = taken;
    n_waits++;
}

static void check_waits(struct engine *e)
{
    const struct engine_case *c = e->c;
    const struct engine_machine *m = e->machine;
    char what[200];

    snprintf(what, sizeof what,
             "seed %llu, %u replicas, policy %s, %u devices of %llu bytes, update on %s, clip %g",
             (unsigned long long)c->seed, e->plan->n_replicas, e->plan->policy, m->n_devices,
             (unsigned long long)m->capacity_bytes, update_place_names[m->update], c->chain.optimizer.clip);
    if (races_of_training(e) > 0)
        fail_msg("%s: a race, with all waits", what);
    for (int k = 0; k < PROGRAM_COUNT; k++)
        for (uint32_t i = 0; i < e->plan->programs[k].n_instrs; i++)
            for (uint32_t w = 0; w < e->plan->programs[k].instrs[i].n_waits; w++)
                check_wait(e, (enum program_kind)k, i, w, what);
    features_count(tried, plan_features(e->plan));
    n_plans++;
}

static void check_plan(const struct engine_case *c, const struct engine_machine *m)
{
    struct engine e;
    engine_open(&e, c, m);
    check_waits(&e);
    engine_close(&e);
}

/* Two layers with weights, one that saves something for its backward and drops out, and a loss. */
static struct engine_case small_case(bool clip)
{
    struct engine_case c = {.seed = 5};

    c.chain.layers[0] = (struct layer){.type = &layer_dense,
                                       .id = 0,
                                       .in = {1, {6}},
                                       .out = {1, {8}},
                                       .dense = {.bias = true, .act = ACT_GELU, .dropout = 0.2f}};
    c.chain.layers[1] = (struct layer){
        .type = &layer_dense, .id = 1, .in = {1, {8}}, .out = {1, {3}}, .dense = {.bias = true}};
    c.chain.layers[2] = (struct layer){.type = &layer_softmax_xent, .id = 2, .in = {1, {3}}};
    c.chain.rows = 4;
    c.chain.n_micro = 2;
    c.chain.optimizer = (struct optimizer){.kind = OPTIMIZER_ADAMW,
                                           .beta1 = 0.9f,
                                           .beta2 = 0.999f,
                                           .eps = 1e-8f,
                                           .weight_decay = 0.01f,
                                           .clip = clip ? 0.01 : 0};
    return c;
}

/* Covers every policy, 1 and 2 devices, updates on the host and on devices, with and without clipping, and
 * both ample and scarce memory. */
static void test_every_wait_is_missed(void **state)
{
    (void)state;
    n_plans = n_waits = 0;
    for (int clip = 0; clip < 2; clip++) {
        struct engine_case c = small_case(clip);
        c.chain.model = (struct model){c.chain.layers, 3};
        for (uint32_t n = 1; n <= 2; n++)
            for (int policy = 0; policy < POLICY_COUNT; policy++)
                for (int update = UPDATE_HOST; update < UPDATE_PLACE_COUNT; update++) {
                    struct engine_machine m = {.n_devices = n,
                                               .capacity_bytes = 1 << 20,
                                               .policy = policy,
                                               .update = update,
                                               .threads = 1};
                    check_plan(&c, &m);
                    m.capacity_bytes = engine_least_capacity(&c, &m);
                    check_plan(&c, &m);
                }
    }
    printf("# %u waits of %u plans\n", n_waits, n_plans);
    assert_true(n_waits > 10 * n_plans); /* or this tests little */
}

/* Tests the waits of longer chains with other layers, losses and optimizers. TUTTI_CASES=25 tests more
 * chains. */
static void test_every_wait_of_random_chains_is_missed(void **state)
{
    const uint32_t last = random_cases(4);

    (void)state;
    n_plans = n_waits = 0;
    for (uint32_t seed = 1; seed <= last; seed++) {
        struct engine_case c = {.seed = seed};
        struct rng r = {.seed = seed};
        random_chain(&c.chain, &r, 6);
        struct engine_machine m = {.n_devices = 1 + rng_below(&r, 2),
                                   .capacity_bytes = 1 << 20,
                                   .policy = rng_below(&r, POLICY_COUNT),
                                   .update = rng_below(&r, UPDATE_PLACE_COUNT),
                                   .threads = 1};
        if (rng_below(&r, 4) > 0)
            m.capacity_bytes = engine_least_capacity(&c, &m);
        check_plan(&c, &m);
    }
    printf("# %u waits of %u plans\n", n_waits, n_plans);
}

/* Makes a model with two layers that have weights. One of the layers is too small to be cut into shares. */
static void replicated_case(struct engine_case *c, uint32_t seed)
{
    *c = small_case(seed % 2);
    c->seed = seed;
    c->chain.layers[0].out = c->chain.layers[1].in = shape_vector(24);
    c->chain.layers[0].in = shape_vector(7);
    c->chain.layers[1].out = c->chain.layers[2].in = shape_vector(2);
    c->chain.model = (struct model){c->chain.layers, 3};
    c->chain.n_replicas = 2;
    c->chain.n_micro = seed % 3 == 0 ? 6 : 2;
    c->chain.rows = 2;
}

/* Data parallel plans, of every form that the planner knows: shares, pins, pipelines. */
static void test_every_wait_of_replicas_is_missed(void **state)
{
    const uint32_t last = random_cases(60);

    (void)state;
    n_plans = n_waits = 0;
    for (uint32_t seed = 1; seed <= last; seed++) {
        struct engine_case c;
        struct rng r = {.seed = seed};
        struct engine e;
        replicated_case(&c, seed);
        struct engine_machine m = {.n_devices = seed % 5 == 0 ? 4 : 2,
                                   .policy = POLICY_auto,
                                   .update = rng_below(&r, UPDATE_PLACE_COUNT),
                                   .threads = 1};
        struct plan *p = random_plan(&c, &r, &m);
        if (features_rare(tried, plan_features(p)) || getenv("TUTTI_CASES") != NULL) {
            engine_open_plan(&e, &c, &m, p);
            check_waits(&e);
            engine_close(&e);
        }
        plan_destroy(p);
    }
    printf("# %u waits of %u plans\n", n_waits, n_plans);
}

/* Policies as they are, with replicas. */
static void test_every_wait_of_policies_with_replicas_is_missed(void **state)
{
    (void)state;
    n_plans = n_waits = 0;
    for (uint32_t seed = 1; seed <= 2; seed++) {
        struct engine_case c;
        replicated_case(&c, seed);
        for (int policy = 0; policy < POLICY_COUNT; policy++) {
            struct engine_machine m = {.n_devices = 2,
                                       .capacity_bytes = 1 << 20,
                                       .policy = policy,
                                       .update = seed == 1 ? UPDATE_HOST : UPDATE_AUTO,
                                       .threads = 1,
                                       .slow_compute = seed == 2};
            check_plan(&c, &m);
            m.capacity_bytes = engine_least_capacity(&c, &m);
            check_plan(&c, &m);
        }
    }
    printf("# %u waits of %u plans\n", n_waits, n_plans);
    if (getenv("TUTTI_CASES") == NULL)
        features_assert_all(tried, 4);
}

/* Marks are host functions, and the race detector must see them. A mark writes memory that a copy reads, once
 * with an event between the two and once without. */
static void test_marks_are_seen(void **state)
{
    struct devset_config config = {.backend = "cuda", .n_devices = 1, .capacity_bytes = {4096}, .threads = 1};
    struct devset *ds = NULL;
    struct event *e = NULL;
    void *at = NULL;

    (void)state;
    assert_int_equal(devset_open(&config, &ds, NULL), 0);
    assert_int_equal(event_create(ds, &e), 0);
    assert_int_equal(devset_host_alloc(ds, sizeof(uint64_t), &at, NULL), 0);
    for (int waits = 0; waits < 2; waits++) {
        const struct cudasim_calls sim = simulator();
        sim.begin((uint64_t)waits + 1);
        const uint64_t before = sim.races();
        assert_int_equal(devset_mark(ds, LANE_COMPUTE, at), 0);
        assert_int_equal(event_record(ds, LANE_COMPUTE, e), 0);
        if (waits)
            assert_int_equal(event_wait(ds, LANE_IN, e), 0);
        assert_int_equal(devset_copy(ds, LANE_IN, devset_address(ds, 0, 0), at, sizeof(uint64_t)), 0);
        assert_int_equal(devset_drain(ds), 0);
        assert_int_equal(sim.races() - before, !waits);
    }
    devset_host_free(ds, at, sizeof(uint64_t));
    event_destroy(ds, e);
    devset_close(ds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_wait_is_missed),
        cmocka_unit_test(test_every_wait_of_random_chains_is_missed),
        cmocka_unit_test(test_every_wait_of_replicas_is_missed),
        cmocka_unit_test(test_every_wait_of_policies_with_replicas_is_missed),
        cmocka_unit_test(test_marks_are_seen),
    };
    engine_backend = "cuda";
    printf("# races are meant to be reported: each is a wait that was taken out\n");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
