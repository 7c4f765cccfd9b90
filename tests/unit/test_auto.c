/* Tests what the policy `auto` promises: few bytes when the request asks for few bytes, no state traffic when
 * the devices hold the state, a plan that is not slower than those of the other policies, and addresses with
 * little waste. Most cases plan a chain of equal layers, for which the promise is a number. The others plan
 * the published profiles of tests/profiles. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "scheduler/policy/policy.h"
#include "scheduler/predict/bound.h"
#include "scheduler/predict/simulate.h"
#include "scheduler/verify/verify.h"
#include "tests/unit/even_table.h"

struct outcome {
    uint64_t ns;
    struct plan_bytes bytes;
    uint64_t bound;
    double waste;   /* highest address over live bytes, of the worst device */
    uint32_t again; /* layers forwarded a second time in an iteration */
};

static uint32_t count_again(const struct plan *p)
{
    const struct plan_program *cycle = &p->programs[PROGRAM_CYCLE];
    uint32_t n = 0;
    for (uint32_t i = 0; i < cycle->n_instrs; i++)
        n += cycle->instrs[i].kind == INSTR_REC;
    return n;
}

static void check_waste(const struct plan *p, struct outcome *ret)
{
    uint64_t live[DEVICE_MAX];
    plan_live_peak(p, live);
    for (uint32_t d = 0; d < p->n_devices; d++) {
        double waste = live[d] > 0 ? (double)p->devices[d].peak_bytes / (double)live[d] : 1;
        ret->waste = waste > ret->waste ? waste : ret->waste;
    }
}

static bool plan_replicas(const struct table *t, uint32_t batch, uint32_t micro, uint32_t replicas,
                          uint32_t devices, uint64_t capacity, enum policy_id policy,
                          enum plan_objective objective, struct outcome *ret)
{
    struct graph *g;
    struct machine m;
    struct plan *p;
    struct err err = {0};
    uint32_t rows[TABLE_MAX_LAYERS / 100];
    for (uint32_t l = 0; l < t->n_layers; l++)
        rows[l] = micro;
    const struct graph_sizes sizes = {batch, replicas, rows};
    assert_int_equal(graph_build_sizes(t, &sizes, true, &g, &err), 0);
    machine_init_cuda(&m);
    m.n_devices = devices;
    for (uint32_t d = 0; d < devices; d++)
        m.capacity_bytes[d] = capacity / PLAN_ALIGN * PLAN_ALIGN;
    m.host_bytes = 256000000000ull;
    m.link_bytes_per_s = m.all_links_bytes_per_s = t->link_bytes_per_s;
    m.peer_bytes_per_s = t->peer_bytes_per_s;
    struct plan_request r = {.train = g, .machine = &m, .table = t, .policy = policy, .objective = objective};
    bool fits = plan_make(&r, &p, NULL, &err) == 0;
    *ret = (struct outcome){0};
    if (fits) {
        if (plan_verify(p, g, NULL, &m, NULL, &err) < 0)
            fail_msg("%s: %s", p->policy, err.msg);
        struct profile *prof = plan_profile(&r);
        struct sim_result *sim = plan_simulate(p, PROGRAM_CYCLE, SIM_RUNS, prof, &m);
        ret->ns = sim->cycle_ns;
        ret->bytes = sim->bytes;
        ret->bound = bound_bytes(p);
        ret->again = count_again(p);
        check_waste(p, ret);
        sim_destroy(sim);
        profile_destroy(prof);
        plan_destroy(p);
    }
    graph_destroy(g);
    return fits;
}

static bool plan_it(const struct table *t, uint32_t batch, uint32_t micro, uint32_t devices,
                    uint64_t capacity, enum policy_id policy, enum plan_objective objective,
                    struct outcome *ret)
{
    return plan_replicas(t, batch, micro, 1, devices, capacity, policy, objective, ret);
}

static uint64_t host_moves(const struct outcome *o) /* what the bound is of */
{
    return o->bytes.state_in + o->bytes.state_out + o->bytes.stash_in + o->bytes.stash_out;
}

static void test_auto_few_bytes_when_weights_exceed_memory(void **state)
{
    (void)state;
    static const struct {
        uint64_t k; /* of 4 MiB of weights */
        uint64_t capacity;
    } cases[] = {{8, 24}, {8, 40}, {8, 64}, {4, 24}, {4, 40}, {0, 24}, {0, 40}};
    struct outcome o;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct table *t = even_table(65, 4 * MIB, cases[i].k * MIB, 64 * KIB, 1 * MIB);
        assert_true(plan_it(t, 2, 1, 1, cases[i].capacity * MIB, POLICY_auto, OBJECTIVE_BYTES, &o));
        if ((double)host_moves(&o) > 1.05 * (double)o.bound)
            fail_msg("K of %llu MiB, capacity of %llu MiB: %llu bytes are %.3f of the bound",
                     (unsigned long long)cases[i].k, (unsigned long long)cases[i].capacity,
                     (unsigned long long)host_moves(&o), (double)host_moves(&o) / (double)o.bound);
        table_destroy(t);
    }
}

/* The last layer's weights are the first's: the devices that use them are two, and one has the update. */
static void test_auto_tied_weights_reach_every_device(void **state)
{
    (void)state;
    struct table *t = even_table(17, 4 * MIB, 8 * MIB, 64 * KIB, 1 * MIB);
    struct outcome o;
    t->layers[15].tied = true;
    t->layers[15].owner = 0;
    t->layers[15].k = 0;
    for (uint32_t devices = 2; devices <= 4; devices++)
        for (uint64_t capacity = 32; capacity <= 192; capacity += 8)
            for (int objective = 0; objective < OBJECTIVE_COUNT; objective++)
                assert_true(plan_it(t, 4, 1, devices, capacity * MIB, POLICY_auto, objective,
                                    &o)); /* and it verifies */
    table_destroy(t);
}

static void test_auto_no_state_moves_when_devices_hold_it(void **state)
{
    (void)state;
    struct table *t = even_table(33, 4 * MIB, 8 * MIB, 64 * KIB, 1 * MIB);
    struct outcome o;
    assert_true(plan_it(t, 16, 1, 4, 8 * 12 * MIB + 32 * MIB, POLICY_auto, OBJECTIVE_BYTES, &o));
    assert_int_equal(o.bytes.state_in, 0);
    assert_int_equal(o.bytes.state_out, 0);
    /* And with a little less than the state it does move. */
    assert_true(plan_it(t, 16, 1, 4, 8 * 12 * MIB - 4 * MIB, POLICY_auto, OBJECTIVE_BYTES, &o));
    assert_true(o.bytes.state_in > 0);
    table_destroy(t);
}

/* Compares `auto` with the policies that recompute S as `auto` does. Policy lru is left out: it moves S to
 * the host instead of recomputing it, and can win on a fast link. */
static void test_auto_no_slower_than_the_others(void **state)
{
    (void)state;
    static const enum policy_id others[] = {POLICY_harmony_pp, POLICY_stream, POLICY_resident};
    struct table *t = even_table(25, 4 * MIB, 8 * MIB, 256 * KIB, 2 * MIB);
    for (uint32_t devices = 1; devices <= 4; devices++)
        for (uint64_t capacity = 24; capacity <= 192; capacity *= 2) {
            struct outcome ours, other;
            if (!plan_it(t, 16, 2, devices, capacity * MIB, POLICY_auto, OBJECTIVE_TIME, &ours))
                fail_msg("%u devices of %llu MiB: no plan", devices, (unsigned long long)capacity);
            for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
                if (plan_it(t, 16, 2, devices, capacity * MIB, others[i], OBJECTIVE_TIME, &other) &&
                    (double)ours.ns > 1.01 * (double)other.ns)
                    fail_msg("%u devices of %llu MiB: %llu ns, %s %llu", devices,
                             (unsigned long long)capacity, (unsigned long long)ours.ns,
                             policy_names[others[i]], (unsigned long long)other.ns);
        }
    table_destroy(t);
}

static void test_auto_no_slower_than_the_others_with_replicas(void **state)
{
    (void)state;
    static const enum policy_id others[] = {POLICY_harmony_dp, POLICY_harmony_pp, POLICY_stream};
    struct table *t = even_table(13, 4 * MIB, 8 * MIB, 256 * KIB, 2 * MIB);
    for (uint32_t devices = 2; devices <= 4; devices++)
        for (uint64_t capacity = 40; capacity <= 320; capacity *= 2) {
            struct outcome ours, other;
            if (!plan_replicas(t, 24, 2, devices, devices, capacity * MIB, POLICY_auto, OBJECTIVE_TIME,
                               &ours))
                fail_msg("%u devices of %llu MiB: no plan", devices, (unsigned long long)capacity);
            for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
                if (plan_replicas(t, 24, 2, devices, devices, capacity * MIB, others[i], OBJECTIVE_TIME,
                                  &other) &&
                    (double)ours.ns > 1.01 * (double)other.ns)
                    fail_msg("%u devices of %llu MiB: %llu ns, %s %llu", devices,
                             (unsigned long long)capacity, (unsigned long long)ours.ns,
                             policy_names[others[i]], (unsigned long long)other.ns);
        }
    table_destroy(t);
}

static void test_auto_addresses_waste_little(void **state)
{
    (void)state;
    struct table *t = even_table(25, 4 * MIB, 8 * MIB, 256 * KIB, 2 * MIB);
    for (uint32_t devices = 1; devices <= 4; devices++)
        for (uint64_t capacity = 24; capacity <= 96; capacity += 12) {
            struct outcome o;
            assert_true(plan_it(t, 16, 2, devices, capacity * MIB, POLICY_auto, OBJECTIVE_TIME, &o));
            if (o.waste > 1.05)
                fail_msg("%u devices of %llu MiB: %.3f", devices, (unsigned long long)capacity, o.waste);
        }
    table_destroy(t);
}

/* Moving S takes a tenth of the time of a forward pass, and the host has enough memory. The plan must then
 * recompute nothing, whatever the capacity of the device. */
static void test_auto_forwards_nothing_again_where_links_are_fast(void **state)
{
    (void)state;
    struct table *t = even_table(9, 1 * MIB, 2 * MIB, 64 * KIB, 1 * MIB);
    struct outcome o;
    for (uint64_t capacity = 10; capacity <= 20; capacity += 2) {
        assert_true(plan_it(t, 8, 1, 1, capacity * MIB, POLICY_auto, OBJECTIVE_TIME, &o));
        assert_int_equal(o.again, 0);
    }
    table_destroy(t);
}

/* ---- the published profiles ---- */

static void test_auto_holds_the_state_of_bert_on_four(void **state)
{
    (void)state;
    struct table *t = published_table("bert_96");
    struct outcome o;
    assert_non_null(t);
    assert_true(plan_it(t, 64, 16, 4, 9000000000, POLICY_auto, OBJECTIVE_BYTES, &o));
    assert_int_equal(o.bytes.state_in, 0);
    assert_int_equal(o.bytes.state_out, 0);
    assert_true(o.waste < 1.03);
    assert_true(plan_it(t, 64, 16, 4, 9000000000, POLICY_auto, OBJECTIVE_TIME, &o));
    assert_true(o.waste < 1.03);
    assert_true(o.ns < 17876000000); /* Harmony's best */
    table_destroy(t);
}

/* No plan takes less time than it computes. So a time just above that of the best plan still leaves the best
 * plan, and a time below the bound leaves none. */
static void test_auto_beats_a_given_time_or_finds_nothing(void **state)
{
    (void)state;
    struct table *t = even_table(12, 4 * MIB, 8 * MIB, 64 * KIB, 1 * MIB);
    struct graph *g;
    struct machine m;
    struct plan *p;
    struct plan_report report = {0};
    struct err err = {0};
    uint32_t rows[12] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const struct graph_sizes sizes = {4, 1, rows};
    assert_int_equal(graph_build_sizes(t, &sizes, true, &g, &err), 0);
    machine_init_cuda(&m);
    m.n_devices = 1;
    m.capacity_bytes[0] = 40 * MIB;
    m.host_bytes = 1ull << 40;
    struct plan_request r = {
        .train = g, .machine = &m, .table = t, .objective = OBJECTIVE_TIME, .report = &report};
    assert_int_equal(plan_make(&r, &p, NULL, &err), 0);
    plan_destroy(p);
    const uint64_t best = report.score.ns;
    r.to_beat_ns = best + 1;
    assert_int_equal(plan_make(&r, &p, NULL, &err), 0);
    assert_true(report.score.ns <= best + best / 50);
    plan_destroy(p);
    r.to_beat_ns = report.floor_ns / 2;
    assert_int_equal(plan_make(&r, &p, NULL, &err), -ENOSPC);
    assert_string_equal(err.msg, "");
    graph_destroy(g);
    table_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_auto_few_bytes_when_weights_exceed_memory),
        cmocka_unit_test(test_auto_tied_weights_reach_every_device),
        cmocka_unit_test(test_auto_no_state_moves_when_devices_hold_it),
        cmocka_unit_test(test_auto_no_slower_than_the_others),
        cmocka_unit_test(test_auto_no_slower_than_the_others_with_replicas),
        cmocka_unit_test(test_auto_addresses_waste_little),
        cmocka_unit_test(test_auto_forwards_nothing_again_where_links_are_fast),
        cmocka_unit_test(test_auto_holds_the_state_of_bert_on_four),
        cmocka_unit_test(test_auto_beats_a_given_time_or_finds_nothing),
    };
    return cmocka_run_group_tests_name("auto", tests, NULL, NULL);
}
