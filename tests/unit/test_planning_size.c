/* Tests the memory and work of planning. The memory estimate is compared with the bytes that are really
 * allocated, for random jobs and every policy. A memory limit or a stop may end any stage at any moment, and
 * work is limited. A failure names its seed. TUTTI_CASES=N tries the first N seeds instead of the default
 * number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>

#include "base/bounded.h"
#include "scheduler/policy/planning_size.h"
#include "scheduler/policy/policy.h"
#include "scheduler/predict/bound.h"
#include "scheduler/predict/simulate.h"
#include "scheduler/predict/why.h"
#include "scheduler/verify/verify.h"
#include "tests/cases.h"
#include "tests/unit/random_chain.h"

#define CASES      64
#define MAX_LAYERS 80
#define MAX_TASKS  1500
#define STOP_CASES 8
#define STOPS      24          /* moments at which each of these is stopped */
#define LARGE      (24u << 20) /* estimated bytes from which on an estimate should be close */

/* A job, and the graphs and plan that were made from it. */
struct work {
    struct layer layers[MAX_LAYERS + RANDOM_MAX_LAYERS];
    struct model model;
    struct random_chain chain;
    struct graph_config config;
    struct machine machine;
    enum policy_id policy;
    uint32_t more; /* capacity, in percent of the least */
    struct graph *train, *eval;
    struct plan *plan;
    struct err err;
};

/* ---- random jobs ---- */

/* A language model with one of its blocks repeated. */
static void repeat_block(struct work *w, uint32_t more)
{
    uint32_t n = 0, block = w->chain.layers[1].type == &layer_positions ? 2 : 1;
    for (uint32_t i = 0; i < w->chain.model.n_layers; i++)
        for (uint32_t k = 0; k <= (i == block ? more : 0); k++, n++) {
            w->layers[n] = w->chain.layers[i];
            w->layers[n].id = n;
            w->layers[n].key = 1000 + n;
        }
    w->model = (struct model){w->layers, n};
}

static void longer_chain(struct work *w, struct rng *r, uint32_t more)
{
    uint32_t n = 0, width = 1 + rng_below(r, 30);
    for (; n < more; n++) {
        w->layers[n] = random_layer(r, n, width, 30);
        width = layer_out(&w->layers[n]);
    }
    w->layers[n] = (struct layer){.type = &layer_dense, .id = n, .in = {1, {width}}, .out = {1, {5}}};
    w->layers[n + 1] = (struct layer){.type = &layer_softmax_xent, .id = n + 1, .in = {1, {5}}};
    w->model = (struct model){w->layers, n + 2};
    model_number(&w->model);
}

static void random_work(struct work *w, uint32_t seed, uint32_t most_tasks)
{
    static const uint32_t devices[] = {1, 1, 1, 2, 3, 4, 8, 16}, more[] = {100, 110, 150, 200, 400, 2000};
    struct rng r = {.seed = seed};
    memset(w, 0, sizeof *w);
    uint32_t longer = 1 + rng_below(&r, seed % 3 == 0 ? MAX_LAYERS - 2 : 12);
    if (seed % 2 == 0) {
        random_transformer(&w->chain, &r);
        repeat_block(w, longer);
    } else {
        random_chain(&w->chain, &r, 16);
        longer_chain(w, &r, longer);
    }
    uint32_t n = devices[rng_below(&r, 8)], replicas = 1 + rng_below(&r, 2) * rng_below(&r, n);
    uint32_t micros = 1 + rng_below(&r, 1 + most_tasks / w->model.n_layers);
    w->config = (struct graph_config){.model = &w->model,
                                      .optimizer = &w->chain.optimizer,
                                      .rows = 1 + rng_below(&r, 4),
                                      .n_micro = (micros + replicas - 1) / replicas * replicas,
                                      .n_replicas = replicas,
                                      .skip_nonfinite = w->chain.skip_nonfinite};
    machine_init_cpu(&w->machine, n, 1ull << 50, 1ull << 50);
    w->policy = rng_below(&r, POLICY_COUNT + 3);
    if (w->policy >= POLICY_COUNT)
        w->policy = POLICY_auto;
    w->more = more[rng_below(&r, 6)];
}

/* Everything that the worker does with a job before it trains, and what `tutti plan` does. */
static int do_all(void *arg)
{
    struct work *w = arg;
    struct plan_request r = {.machine = &w->machine, .policy = w->policy};
    uint64_t least = 0;
    w->config.training = true;
    int e = graph_build(&w->config, &w->train, &w->err);
    w->config.training = false;
    if (e == 0)
        e = graph_build(&w->config, &w->eval, &w->err);
    r.train = w->train;
    r.eval = w->eval;
    if (e == 0)
        e = plan_least_capacity(&r, &least, &w->err);
    for (uint32_t d = 0; d < w->machine.n_devices; d++)
        w->machine.capacity_bytes[d] = least * w->more / 100 / PLAN_ALIGN * PLAN_ALIGN;
    if (e == 0)
        e = plan_make(&r, &w->plan, NULL, &w->err);
    if (e == 0)
        e = plan_verify(w->plan, w->train, w->eval, &w->machine, NULL, &w->err);
    if (e < 0)
        return e;
    struct profile *times = plan_profile(&r);
    struct sim_result *sim = plan_simulate(w->plan, PROGRAM_CYCLE, SIM_RUNS, times, &w->machine);
    struct why why;
    why_of(w->plan, sim, &why);
    bound_bytes(w->plan);
    sim_destroy(sim);
    profile_destroy(times);
    return 0;
}

static void finish(struct work *w)
{
    plan_destroy(w->plan);
    graph_destroy(w->train);
    graph_destroy(w->eval);
    w->plan = NULL;
    w->train = w->eval = NULL;
}

static void fail_work(const struct work *w, uint32_t seed, const char *what)
{
    fail_msg("seed %u, policy %s, %u layers, %u micro-batches, %u replicas, %u devices: %s (%s)", seed,
             policy_names[w->policy], w->model.n_layers, w->config.n_micro, w->config.n_replicas,
             w->machine.n_devices, what, w->err.msg);
}

/* ---- the estimate ---- */

struct tally {
    uint32_t by_policy[POLICY_COUNT], large, many_devices, shared;
    double most, least; /* counted by estimated, of large ones */
};

static void check_size(const struct work *w, const struct planning_size *s, uint32_t seed)
{
    if (s->tasks < w->train->n_tasks || s->operands < w->train->n_operands)
        fail_work(w, seed, "more tasks or operands than measured");
    if (s->tasks > w->train->n_tasks + 2 * w->model.n_layers + 1 ||
        s->operands > w->train->n_operands + 10 * w->model.n_layers + w->config.n_micro)
        fail_work(w, seed, "far fewer tasks or operands than measured");
}

static void check_estimate(struct work *w, uint32_t seed, struct tally *t)
{
    struct bounded b = {0};
    struct planning_size size;
    random_work(w, seed, MAX_TASKS);
    assert_int_equal(planning_measure(&w->config, &size, &w->err), 0);
    if (bounded_run(&b, do_all, w) < 0)
        fail_work(w, seed, "no plan");
    uint64_t bytes = planning_bytes(&size, w->policy, w->machine.n_devices);
    double part = (double)b.peak_bytes / (double)bytes;
    char what[160];
    snprintf(what, sizeof what, "%llu bytes counted, %llu estimated, %llu kept",
             (unsigned long long)b.peak_bytes, (unsigned long long)bytes, (unsigned long long)b.held_bytes);
    check_size(w, &size, seed);
    if (b.peak_bytes > bytes || b.held_bytes > bytes / 2 || (bytes > LARGE && part < 0.25))
        fail_work(w, seed, what);
    t->by_policy[w->policy]++;
    t->many_devices += w->machine.n_devices >= 8;
    t->shared += w->machine.n_devices > 1 && w->config.n_replicas > 1;
    if (bytes > LARGE) {
        t->large++;
        t->most = part > t->most ? part : t->most;
        t->least = part < t->least ? part : t->least;
    }
    finish(w);
}

static void test_planning_takes_no_more_than_estimated(void **state)
{
    static struct work w;
    struct tally t = {.least = 1};
    uint32_t n = random_cases(CASES);
    (void)state;
    for (uint32_t seed = 1; seed <= n; seed++)
        check_estimate(&w, seed, &t);
    print_message("# %u jobs; of %u large ones planning took %.2f to %.2f of the estimate\n", n, t.large,
                  t.least, t.most);
    if (n < CASES)
        return;
    for (int p = 0; p < POLICY_COUNT; p++)
        assert_true(t.by_policy[p] > n / 30);
    assert_true(t.large > n / 20 && t.many_devices > n / 10 && t.shared > n / 10);
}

/* A job with too many tasks must be refused before anything is built, and the message must say what to
 * change. */
static void test_too_many_tasks_are_refused_at_once(void **state)
{
    static struct work w;
    struct planning_size size;
    (void)state;
    random_work(&w, 1, MAX_TASKS);
    w.config.n_replicas = 1;
    w.config.n_micro = GRAPH_MAX_TASKS / 2 / w.model.n_layers;
    assert_int_equal(planning_measure(&w.config, &size, &w.err), 0);
    assert_true(size.tasks <= GRAPH_MAX_TASKS + 3 * w.model.n_layers);
    w.config.n_micro++;
    char most[64];
    snprintf(most, sizeof most, "at most %u micro-batches", w.config.n_micro - 1);
    assert_int_equal(planning_measure(&w.config, &size, &w.err), -EINVAL);
    assert_non_null(strstr(w.err.msg, most));
    assert_non_null(strstr(w.err.msg, "train.micro_batch"));
}

static void test_estimate_grows_with_everything(void **state)
{
    const struct planning_size small = {10, 4, 1, 100, 500}, large = {10, 8, 1, 200, 1000},
                               shared = {10, 4, 4, 100, 500};
    (void)state;
    assert_true(planning_bytes(&large, POLICY_auto, 1) > planning_bytes(&small, POLICY_auto, 1));
    assert_true(planning_bytes(&small, POLICY_auto, 8) > planning_bytes(&small, POLICY_auto, 1));
    assert_true(planning_bytes(&shared, POLICY_auto, 8) > planning_bytes(&small, POLICY_auto, 8));
    assert_int_equal(planning_bytes(&shared, POLICY_auto, 1), planning_bytes(&small, POLICY_auto, 1));
    assert_true(planning_bytes(&small, POLICY_resident, 1) < planning_bytes(&small, POLICY_auto, 1));
    assert_int_equal(planning_kept_bytes(planning_bytes(&small, POLICY_auto, 1)), 0);
    assert_int_equal(planning_kept_bytes(PLANNING_FREE_BYTES + 2), PLANNING_FREE_BYTES / 2 + 1);
}

/* ---- limit and stop ---- */

/* Clears all pointers of a work whose planning ended early, because their memory is already freed. */
static void forget(struct work *w)
{
    w->plan = NULL;
    w->train = w->eval = NULL;
}

static bool stop_after(void *ctx)
{
    uint64_t *left = ctx;
    return (*left)-- == 0;
}

/* Every stage of planning polls for a stop. The test stops planning at many different polls. */
static void test_planning_stops_at_any_poll(void **state)
{
    static struct work w;
    (void)state;
    for (uint32_t seed = 1; seed <= random_cases(STOP_CASES); seed++) {
        uint64_t never = UINT64_MAX;
        struct bounded whole = {.poll_every = 1, .stop = stop_after, .ctx = &never};
        random_work(&w, seed, 60);
        if (bounded_run(&whole, do_all, &w) < 0)
            fail_work(&w, seed, "no plan");
        finish(&w);
        for (uint64_t k = 0; k < STOPS; k++) {
            uint64_t at = k < 5 ? k : whole.asked * k / STOPS, left = at;
            struct bounded b = {.poll_every = 1, .stop = stop_after, .ctx = &left};
            random_work(&w, seed, 60);
            assert_int_equal(bounded_run(&b, do_all, &w), -ECANCELED);
            assert_int_equal(b.asked, at + 1);
            forget(&w);
        }
    }
}

/* A limit below the memory that planning needs, as after a wrong estimate, ends planning cleanly at any
 * moment. A limit that is just high enough does not change the plan. */
static void test_planning_keeps_to_its_limit(void **state)
{
    static struct work w;
    (void)state;
    for (uint32_t seed = 1; seed <= random_cases(STOP_CASES); seed++) {
        struct bounded whole = {0};
        random_work(&w, seed, 60);
        if (bounded_run(&whole, do_all, &w) < 0)
            fail_work(&w, seed, "no plan");
        uint32_t n_instrs = w.plan->programs[PROGRAM_CYCLE].n_instrs;
        finish(&w);
        for (uint64_t k = 1; k < STOPS; k++) {
            struct bounded b = {.limit_bytes = whole.peak_bytes * k / STOPS};
            random_work(&w, seed, 60);
            assert_int_equal(bounded_run(&b, do_all, &w), -ENOMEM);
            assert_true(b.ended_early && b.peak_bytes <= b.limit_bytes);
            forget(&w);
        }
        struct bounded enough = {.limit_bytes = whole.peak_bytes};
        random_work(&w, seed, 60);
        assert_int_equal(bounded_run(&enough, do_all, &w), 0);
        assert_int_equal(w.plan->programs[PROGRAM_CYCLE].n_instrs, n_instrs);
        finish(&w);
    }
}

/* ---- work ---- */

/* A search alone. */
struct searching {
    struct plan_request request;
    struct plan *plan;
    struct err err;
};

static int do_search(void *arg)
{
    struct searching *s = arg;
    return plan_make(&s->request, &s->plan, NULL, &s->err);
}

/* Returns the number of polls that the search made, as a measure of its work. */
static uint64_t search_with(const struct work *w, uint64_t most_work, uint32_t seed)
{
    uint64_t never = UINT64_MAX;
    struct bounded b = {.poll_every = 1, .stop = stop_after, .ctx = &never};
    struct searching s = {.request = {.train = w->train,
                                      .eval = w->eval,
                                      .machine = &w->machine,
                                      .policy = POLICY_auto,
                                      .most_work = most_work}};
    if (bounded_run(&b, do_search, &s) < 0 ||
        plan_verify(s.plan, w->train, w->eval, &w->machine, NULL, &s.err) < 0)
        fail_work(w, seed, s.err.msg);
    plan_destroy(s.plan);
    return b.asked;
}

/* With the smallest limit of work the search must still find a plan whenever there is one, with less than
 * half of the work. */
static void test_little_work_still_finds_a_plan(void **state)
{
    static struct work w;
    uint64_t usual = 0, least = 0;
    (void)state;
    for (uint32_t seed = 1; seed <= random_cases(24); seed++) {
        struct bounded b = {0};
        random_work(&w, seed, 100);
        w.policy = POLICY_auto;
        w.more = 100 + seed % 3 * 10;
        if (bounded_run(&b, do_all, &w) < 0)
            fail_work(&w, seed, "no plan");
        usual += search_with(&w, 0, seed);
        least += search_with(&w, 1, seed);
        finish(&w);
    }
    assert_true(least < usual / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planning_takes_no_more_than_estimated),
        cmocka_unit_test(test_too_many_tasks_are_refused_at_once),
        cmocka_unit_test(test_estimate_grows_with_everything),
        cmocka_unit_test(test_planning_stops_at_any_poll),
        cmocka_unit_test(test_planning_keeps_to_its_limit),
        cmocka_unit_test(test_little_work_still_finds_a_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
