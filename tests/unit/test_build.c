/* The planner as a whole: for random chains and machines, every policy that fits makes a plan that plan_verify accepts,
 * and the least capacity that it names is exact. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <errno.h>

#include "base/strbuf.h"
#include "scheduler/explain.h"
#include "scheduler/policy.h"
#include "scheduler/verify.h"
#include "tests/unit/random_chain.h"

#define CASES 400

static void show(const struct plan *p, uint32_t seed, const struct err *err)
{
    struct strbuf b = {0};
    plan_dump(p, &b);
    fprintf(stderr, "seed %u, policy %s: %s\n%s\n", seed, p->policy, err->msg, getenv("TUTTI_DUMP") ? b.at : "");
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

/* At the least capacity, a little above it and with plenty the plan holds; one granule below there is none. */
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
        m->capacity_bytes[d] = least / 2;
    int e = plan_make(r, &p, &told, &err);
    if (e == 0) {
        plan_destroy(p);
        fail_msg("seed %u: half of the least capacity was enough", seed);
    }
    assert_int_equal(e, -ENOSPC);
    assert_int_equal(told, least);
}

static void test_build_random_chains_verify(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= CASES; seed++) {
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_build_random_chains_verify),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
