/* Tests the property that the engine exists for: one problem gives the same bits on many different machines.
 *
 * test_engine [BACKEND DEVICES...] runs on this backend with these numbers of devices. The default is cpu
 * with 1 to 4. Backends other than cpu are simulated and slow, and therefore get fewer cases. In the
 * environment, TUTTI_ONLY selects tests by name, and TUTTI_CASES sets the number of random cases.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/cases.h"
#include "tests/engine/engine.h"
#include "tests/engine/plan_features.h"
#include "tests/engine/random_plan.h"
#include "tests/unit/random_linked.h"

static uint32_t device_counts[DEVICE_MAX] = {1, 2, 3, 4}, n_device_counts = 4;

static bool on_cpu(void)
{
    return strcmp(engine_backend, "cpu") == 0;
}

/* More on demand: TUTTI_CASES=1000 test_engine. */
static uint32_t n_cases(uint32_t on_the_cpu, uint32_t elsewhere)
{
    return random_cases(on_cpu() ? on_the_cpu : elsewhere);
}

#define PLENTY (1ull << 30) /* bytes of a device: more than any case uses */

static uint32_t seen[FEATURE_COUNT]; /* plans with it, in all tests so far */

static void random_case(struct engine_case *c, uint32_t seed)
{
    struct rng r = {.seed = seed};
    *c = (struct engine_case){.seed = seed};
    random_chain(&c->chain, &r, 80);
    random_precision(&c->chain, random_dtype(seed));
    c->chain.n_replicas = 1 + rng_below(&r, 4);
    c->chain.n_micro = c->chain.n_replicas * (1 + rng_below(&r, c->chain.n_replicas > 1 ? 3 : 5));
}

static void describe(char *buf, size_t size, uint32_t seed, uint32_t replicas, const struct engine_machine *m)
{
    snprintf(buf, size,
             "seed %u, %u replicas, %u devices of %llu bytes%s, policy %s by %s, update on %s, %u threads, "
             "delays %llu",
             seed, replicas, m->n_devices, (unsigned long long)m->capacity_bytes,
             m->slow_compute ? " that compute slowly" : "", policy_names[m->policy],
             plan_objective_names[m->objective], update_place_names[m->update], m->threads,
             (unsigned long long)m->delay_seed);
}

static void check(const struct engine_case *c, const struct engine_machine *m, uint32_t seed,
                  const struct engine_result *want)
{
    char what[256];
    struct engine_result got;
    describe(what, sizeof what, seed, c->chain.n_replicas, m);
    engine_run(c, m, &got);
    engine_assert_equal(&got, want, what);
    features_count(seen, got.features);
}

/* Every policy x place of update x number of devices, at the least capacity and with plenty. */
static void test_engine_every_machine_same_bits(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= n_cases(6, 2); seed++) {
        struct engine_case c;
        struct engine_result want;
        random_case(&c, seed);
        engine_reference(&c, &want);
        for (int policy = 0; policy < POLICY_COUNT; policy++)
            for (int update = UPDATE_HOST; update < UPDATE_PLACE_COUNT; update++)
                for (uint32_t i = 0; i < n_device_counts; i++) {
                    const uint32_t n = device_counts[i];
                    struct engine_machine m = {.n_devices = n,
                                               .capacity_bytes = PLENTY,
                                               .policy = policy,
                                               .update = update,
                                               .threads = 1 + n % 2};
                    check(&c, &m, seed, &want);
                    m.capacity_bytes = engine_least_capacity(&c, &m);
                    m.scarce_host = true;
                    m.threads = 2;
                    check(&c, &m, seed, &want);
                }
    }
}

/* Random chains, batches, machines, capacities between the least and plenty, delays on every stream. */
static void test_engine_random_machines_same_bits(void **state)
{
    (void)state;
    for (uint32_t seed = 100; seed < 100 + n_cases(60, 8); seed++) {
        struct engine_case c;
        struct engine_result want;
        struct rng r = {.seed = seed, .at = 1000};
        random_case(&c, seed);
        engine_reference(&c, &want);
        for (int k = 0; k < 4; k++) {
            struct engine_machine m = {
                .n_devices = device_counts[rng_below(&r, n_device_counts)],
                .capacity_bytes = PLENTY,
                .policy = rng_below(&r, POLICY_COUNT),
                .update = rng_below(&r, UPDATE_PLACE_COUNT),
                .threads = 1 + rng_below(&r, 2),
                .delay_seed = k % 2 ? seed * 4 + (uint32_t)k : 0,
                .objective = rng_below(&r, 4) == 0 ? OBJECTIVE_BYTES : OBJECTIVE_TIME,
                .slow_compute = rng_below(&r, 2),
                .scarce_host = rng_below(&r, 2),
            };
            uint64_t least = engine_least_capacity(&c, &m);
            m.capacity_bytes = least + (uint64_t)rng_below(&r, 40) * least / 20 / 256 * 256;
            check(&c, &m, seed, &want);
        }
    }
}

static void check_random_plan(const struct engine_case *c, struct rng *r, const struct engine_result *want);

/* Makes a language model: its blocks consist of several layers, its backward pass computes the loss, and two
 * layers may share one weight, which can be on the device of either layer. */
static void transformer_case(struct engine_case *c, uint32_t seed)
{
    struct rng r = {.seed = seed};
    *c = (struct engine_case){.seed = seed};
    random_transformer(&c->chain, &r);
    random_precision(&c->chain, random_dtype(seed));
    c->chain.n_replicas = 1 + rng_below(&r, 3);
    c->chain.n_micro = c->chain.n_replicas * (1 + rng_below(&r, 3));
}

static void test_engine_transformers_same_bits(void **state)
{
    uint32_t tied = 0;
    (void)state;
    for (uint32_t seed = 300; seed < 300 + n_cases(24, 3); seed++) {
        struct engine_case c;
        struct engine_result want;
        struct rng r = {.seed = seed, .at = 3000};
        transformer_case(&c, seed);
        tied += c.chain.layers[c.chain.model.n_layers - 1].tied;
        engine_reference(&c, &want);
        assert_true(want.finite && want.loss[0] > 0);
        for (int policy = 0; policy < POLICY_COUNT; policy++) {
            struct engine_machine m = {.n_devices = device_counts[rng_below(&r, n_device_counts)],
                                       .capacity_bytes = PLENTY,
                                       .policy = policy,
                                       .update = rng_below(&r, UPDATE_PLACE_COUNT),
                                       .threads = 1 + rng_below(&r, 2),
                                       .delay_seed = rng_below(&r, 3),
                                       .slow_compute = rng_below(&r, 2)};
            check(&c, &m, seed, &want);
            uint64_t least = engine_least_capacity(&c, &m);
            m.capacity_bytes = least + (uint64_t)rng_below(&r, 10) * least / 20 / 256 * 256;
            check(&c, &m, seed, &want);
        }
        check_random_plan(&c, &r, &want);
    }
    assert_true(tied > 0 || getenv("TUTTI_CASES") != NULL);
}

/* Tries a case with every policy, at the least capacity and with plenty, with random delays, and with a
 * random plan. */
static void check_policies(const struct engine_case *c, uint32_t seed, struct rng *r)
{
    struct engine_result want;
    engine_reference(c, &want);
    for (int policy = 0; policy < POLICY_COUNT; policy++) {
        struct engine_machine m = {.n_devices = device_counts[rng_below(r, n_device_counts)],
                                   .capacity_bytes = PLENTY,
                                   .policy = policy,
                                   .update = rng_below(r, UPDATE_PLACE_COUNT),
                                   .threads = 1 + rng_below(r, 2),
                                   .delay_seed = rng_below(r, 3),
                                   .slow_compute = rng_below(r, 2)};
        check(c, &m, seed, &want);
        uint64_t least = engine_least_capacity(c, &m);
        m.capacity_bytes = least + (uint64_t)rng_below(r, 10) * least / 20 / 256 * 256;
        m.scarce_host = rng_below(r, 2);
        check(c, &m, seed, &want);
    }
    check_random_plan(c, r, &want);
}

/* A cycle of 2 to 7 training steps gives the bits of the reference, which has one. */
static void test_engine_steps_of_a_cycle_same_bits(void **state)
{
    (void)state;
    for (uint32_t seed = 500; seed < 500 + n_cases(16, 2); seed++) {
        struct engine_case c;
        struct rng r = {.seed = seed, .at = 5000};
        if (seed % 4 == 0 && on_cpu())
            transformer_case(&c, seed);
        else
            random_case(&c, seed);
        c.chain.steps = !on_cpu() ? 2 : seed % 5 == 0 ? 7 : 2 + rng_below(&r, 3);
        check_policies(&c, seed, &r);
    }
}

/* Graphs that are no chains: forks, losses, decision groups, several uses of one W, twins. */
static void test_engine_linked_graphs_same_bits(void **state)
{
    struct linked_features f, sum = {0};
    (void)state;
    for (uint32_t seed = 600; seed < 600 + n_cases(40, 4); seed++) {
        struct engine_case c = {.seed = seed};
        struct rng r = {.seed = seed, .at = 6000};
        random_linked(&c.chain, &r, &f);
        random_precision(&c.chain, random_dtype(seed));
        c.chain.n_replicas = 1 + rng_below(&r, 3);
        c.chain.n_micro = c.chain.n_replicas * (1 + rng_below(&r, 3));
        c.chain.steps = 1 + rng_below(&r, on_cpu() ? 3 : 2);
        sum.losses += f.losses > 1;
        sum.forks += f.forks > 0;
        sum.stops += f.stops > 0;
        sum.twins += f.twins > 0;
        sum.tied += f.tied > 1;
        sum.means += f.means > 0;
        sum.groups += f.groups > 1;
        sum.buffers += f.buffers > 0;
        check_policies(&c, seed, &r);
    }
    print_message(
        "# graphs with several losses %u, forks %u, stopped gradients %u, twins %u, three uses of a W %u, "
        "means %u, several groups %u, buffers %u\n",
        sum.losses, sum.forks, sum.stops, sum.twins, sum.tied, sum.means, sum.groups, sum.buffers);
    if (getenv("TUTTI_CASES") == NULL && on_cpu())
        assert_true(sum.losses > 5 && sum.forks > 5 && sum.stops > 5 && sum.twins > 2 && sum.tied > 2 &&
                    sum.means > 2 && sum.groups > 10 && sum.buffers > 5);
}

/* Checks that the graph has everything that the test below is about. */
static void check_hand_built(const struct engine_case *c)
{
    struct graph *g;
    uint32_t losses = 0, readers = 0, returns = 0, uses = 0, buffers = 0, decides = 0;
    assert_int_equal(random_graph(&c->chain, true, &g), 0);
    for (uint32_t l = 0; l < g->n_layers; l++) {
        const struct graph_layer *gl = &g->layers[l];
        losses += gl->is_loss;
        readers += graph_has_fwd(g, l) && gl->input != PLAN_NONE && g->layers[gl->input].original == 2;
        returns += gl->returns && g->layers[gl->input].original == 2;
        uses = gl->n_uses > uses ? gl->n_uses : uses;
        buffers += gl->folds;
    }
    for (uint32_t i = 0; i < g->n_tasks; i++)
        decides += g->tasks[i].kind == INSTR_DECIDE;
    assert_int_equal(losses, 2);
    assert_int_equal(readers, 2);
    assert_int_equal(returns, 2);
    assert_int_equal(uses, 3);
    assert_int_equal(buffers, 1);
    assert_int_equal(decides, 2 * g->steps);
    graph_destroy(g);
}

/* The graph by hand, with one optimizer per decision group. Seed 700 clips the gradients of both groups,
 * with AdamW and SGD. Seed 701 clips those of one group, and the other group only counts its updates. Seed
 * 701 computes in fp16 and seed 703 in bf16. */
static void hand_built_case(struct engine_case *c, uint32_t seed)
{
    struct rng r = {.seed = seed};
    *c = (struct engine_case){.seed = seed};
    linked_by_hand(&c->chain, &r, 24, 7);
    random_precision(&c->chain, random_dtype(seed));
    c->chain.rows = 5;
    c->chain.n_replicas = 1 + seed % 2;
    c->chain.n_micro = 4;
    c->chain.steps = 1 + seed % 2;
    c->chain.optimizers[0].kind = OPTIMIZER_ADAMW;
    c->chain.optimizers[0].clip = seed % 2 ? 0 : 0.1;
    c->chain.optimizers[1].kind = OPTIMIZER_SGD;
    c->chain.optimizers[1].clip = 0.1;
}

static void test_engine_hand_built_graph_same_bits(void **state)
{
    (void)state;
    for (uint32_t seed = 700; seed < 704; seed++) {
        struct engine_case c;
        struct rng r = {.seed = seed, .at = 7000};
        struct engine_result want;
        hand_built_case(&c, seed);
        check_hand_built(&c);
        engine_reference(&c, &want);
        assert_true(want.finite && want.loss[0] > 0);
        for (uint32_t k = 0; k < n_cases(16, 4); k++)
            check_random_plan(&c, &r, &want);
        for (int policy = 0; policy < POLICY_COUNT; policy++)
            for (uint32_t i = 0; i < n_device_counts; i++) {
                struct engine_machine m = {.n_devices = device_counts[i],
                                           .capacity_bytes = PLENTY,
                                           .policy = policy,
                                           .update =
                                               (enum update_place)((uint32_t)policy + i) % UPDATE_PLACE_COUNT,
                                           .threads = 2};
                check(&c, &m, seed, &want);
                m.capacity_bytes = engine_least_capacity(&c, &m);
                m.delay_seed = seed + i;
                check(&c, &m, seed, &want);
            }
    }
}

/* The same for dropout and clipping on and off, on one chain large enough to have every kind of move. */
static void test_engine_dropout_and_clipping_same_bits(void **state)
{
    (void)state;
    for (uint32_t variant = 0; variant < 4; variant++) {
        struct engine_case c = {.seed = 77 + variant};
        struct engine_result want, other = {0};
        uint32_t width[] = {50, 64, 31, 64, 64, 10};
        for (uint32_t l = 0; l < 5; l++)
            c.chain.layers[l] = (struct layer){.type = &layer_dense,
                                               .id = l,
                                               .key = l,
                                               .in = {1, {width[l]}},
                                               .out = {1, {width[l + 1]}},
                                               .dense = {.bias = true,
                                                         .act = l < 4 ? ACT_GELU : ACT_NONE,
                                                         .dropout = (variant & 1) && l < 4 ? 0.2f : 0}};
        c.chain.layers[5] = (struct layer){.type = &layer_softmax_xent, .id = 5, .in = {1, {10}}};
        c.chain.model = (struct model){c.chain.layers, 6};
        c.chain.rows = 12;
        c.chain.n_micro = 4;
        c.chain.optimizer = (struct optimizer){.kind = OPTIMIZER_ADAMW,
                                               .beta1 = 0.9f,
                                               .beta2 = 0.999f,
                                               .eps = 1e-8f,
                                               .weight_decay = 0.01f,
                                               .clip = variant & 2 ? 0.01 : 0};
        engine_reference(&c, &want);
        assert_memory_not_equal(&want, &other, sizeof want);
        for (uint32_t i = 0; i < n_device_counts; i++)
            for (int policy = 0; policy < POLICY_COUNT; policy++) {
                struct engine_machine m = {
                    .n_devices = device_counts[i], .capacity_bytes = PLENTY, .policy = policy, .threads = 2};
                uint64_t least = engine_least_capacity(&c, &m);
                for (uint32_t f = 4; f <= 12; f += 4) { /* 1, 2 and 3 times the least */
                    m.capacity_bytes = least * f / 4 / 256 * 256;
                    m.delay_seed = f == 8 ? variant + 1 : 0;
                    check(&c, &m, variant, &want);
                }
            }
    }
}

/* Replicas of a chain with a layer of a few bytes in it. */
static void replicated_case(struct engine_case *c, uint32_t replicas, uint32_t seed)
{
    static const uint32_t width[] = {24, 40, 6, 6, 40, 40, 40, 40, 10};
    const uint32_t n = sizeof width / sizeof *width - 1;
    *c = (struct engine_case){.seed = seed};
    for (uint32_t l = 0; l < n; l++)
        c->chain.layers[l] = (struct layer){
            .type = &layer_dense,
            .id = l,
            .key = l,
            .in = {1, {width[l]}},
            .out = {1, {width[l + 1]}},
            .dense = {.bias = true, .act = l + 1 < n ? ACT_GELU : ACT_NONE, .dropout = l == 1 ? 0.2f : 0}};
    c->chain.layers[n] = (struct layer){.type = &layer_softmax_xent, .id = n, .in = {1, {width[n]}}};
    c->chain.model = (struct model){c->chain.layers, n + 1};
    c->chain.rows = 5;
    c->chain.n_micro = 12;
    c->chain.n_replicas = replicas;
    c->chain.optimizer = (struct optimizer){.kind = OPTIMIZER_ADAMW,
                                            .beta1 = 0.9f,
                                            .beta2 = 0.999f,
                                            .eps = 1e-8f,
                                            .weight_decay = 0.01f,
                                            .clip = seed % 2 ? 0.01 : 0};
}

static void check_random_plan(const struct engine_case *c, struct rng *r, const struct engine_result *want)
{
    struct engine_machine m = {.n_devices = device_counts[rng_below(r, n_device_counts)],
                               .policy = POLICY_auto,
                               .update = rng_below(r, UPDATE_PLACE_COUNT),
                               .threads = 1 + rng_below(r, 2),
                               .delay_seed = rng_below(r, 3)};
    struct plan *p = random_plan(c, r, &m);
    if (on_cpu() || features_rare(seen, plan_features(p))) {
        struct engine_result got;
        char what[256];
        describe(what, sizeof what, (uint32_t)c->seed, c->chain.n_replicas, &m);
        engine_run_plan(c, &m, p, &got);
        engine_assert_equal(&got, want, what);
        features_count(seen, got.features);
    }
    plan_destroy(p);
}

/* Runs random candidates that the search could choose, whether or not it chooses them today. Where running a
 * plan is slow, the test runs only plans with a feature that has hardly been tried. */
static void test_engine_every_form_same_bits(void **state)
{
    (void)state;
    for (uint32_t seed = 500; seed < 500 + n_cases(40, 20); seed++) {
        struct rng r = {.seed = seed, .at = 2000};
        struct engine_case c;
        struct engine_result want;
        if (seed % 4 == 0)
            random_case(&c, seed);
        else
            replicated_case(&c, 1 + rng_below(&r, 4), seed);
        engine_reference(&c, &want);
        for (int k = 0; k < 4; k++)
            check_random_plan(&c, &r, &want);
    }
}

/* A gradient that is not finite leaves W and K alone where steps are skipped, on every machine alike. */
static void test_engine_skipped_step_same_bits(void **state)
{
    (void)state;
    struct engine_case c;
    struct engine_result want;
    random_case(&c, 3);
    c.nan_steps = 1u << 2;
    for (int skip = 0; skip < 2;
         skip++) { /* without skipping the weights must be ruined, or this tests nothing */
        c.chain.skip_nonfinite = skip;
        c.chain.optimizer.clip = 0;
        engine_reference(&c, &want);
        assert_int_equal(want.finite, skip);
    }
    for (int policy = 0; policy < POLICY_COUNT; policy++) {
        const uint32_t n = device_counts[n_device_counts / 3]; /* of 1 to 4: 2 */
        struct engine_machine m = {
            .n_devices = n, .capacity_bytes = PLENTY, .policy = policy, .threads = 1, .delay_seed = 5};
        check(&c, &m, 3, &want);
    }
}

/* Skips a random set of steps, which may include the first and the last. The optimizer is AdamW, so that the
 * number of updates t matters. On every machine the bits must equal the reference, and t must count only the
 * steps that were applied. */
static void test_engine_random_skipped_steps_same_bits(void **state)
{
    (void)state;
    for (uint32_t seed = 700; seed < 700 + n_cases(24, 6); seed++) {
        struct rng r = {.seed = seed, .at = 3000};
        struct engine_case c;
        struct engine_result want;
        replicated_case(&c, 1 + rng_below(&r, 3), seed);
        c.chain.skip_nonfinite = true;
        c.chain.optimizer.kind = OPTIMIZER_ADAMW;
        c.nan_steps = rng_below(&r, 1u << ENGINE_CYCLES);
        engine_reference(&c, &want);
        assert_int_equal(want.updates, ENGINE_CYCLES - (uint32_t)__builtin_popcount(c.nan_steps));
        assert_true(want.finite);
        for (int k = 0; k < 3; k++)
            check_random_plan(&c, &r, &want);
    }
}

/* Or the tests above have tested less than they say. */
static void test_engine_has_tried_everything(void **state)
{
    uint32_t devices = 0;
    (void)state;
    for (uint32_t i = 0; i < n_device_counts; i++)
        devices = device_counts[i] > devices ? device_counts[i] : devices;
    if (getenv("TUTTI_CASES") == NULL)
        features_assert_all(seen, devices);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine_every_machine_same_bits),
        cmocka_unit_test(test_engine_random_machines_same_bits),
        cmocka_unit_test(test_engine_transformers_same_bits),
        cmocka_unit_test(test_engine_steps_of_a_cycle_same_bits),
        cmocka_unit_test(test_engine_linked_graphs_same_bits),
        cmocka_unit_test(test_engine_hand_built_graph_same_bits),
        cmocka_unit_test(test_engine_dropout_and_clipping_same_bits),
        cmocka_unit_test(test_engine_skipped_step_same_bits),
        cmocka_unit_test(test_engine_random_skipped_steps_same_bits),
        cmocka_unit_test(test_engine_every_form_same_bits),
        cmocka_unit_test(test_engine_has_tried_everything),
    };
    if (argc > 1)
        engine_backend = argv[1];
    if (argc > 2) {
        n_device_counts = 0;
        for (int i = 2; i < argc && n_device_counts < DEVICE_MAX; i++)
            device_counts[n_device_counts++] = (uint32_t)atoi(argv[i]);
    }
    if (getenv("TUTTI_ONLY") != NULL) /* a pattern of names, such as "*linked*" */
        cmocka_set_test_filter(getenv("TUTTI_ONLY"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
