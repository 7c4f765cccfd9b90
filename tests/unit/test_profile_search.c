/* Tests the search over outlines. The result must be a plan that verifies for its graph, fits devices and
 * host memory, and is the same every time. The objective "fewest bytes" must give fewer bytes, and more
 * devices must not be slower. S is saved on the host only when the link is fast. Plans for the published
 * profiles must take less time than Harmony's plans. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>

#include "base/rng.h"
#include "base/strbuf.h"
#include "scheduler/explain/explain.h"
#include "scheduler/policy/profile_search.h"
#include "scheduler/predict/simulate.h"
#include "scheduler/verify/verify.h"
#include "tests/cases.h"
#include "tests/unit/even_table.h"
#include "tests/unit/random_table.h"

#define CASES 600

static void machine(struct machine *m, const struct table *t, uint32_t devices, uint64_t capacity)
{
    machine_init_cuda(m);
    m->n_devices = devices;
    for (uint32_t d = 0; d < devices; d++)
        m->capacity_bytes[d] = capacity / PLAN_ALIGN * PLAN_ALIGN;
    m->host_bytes = 256000000000ull;
    if (t->link_bytes_per_s > 0)
        m->link_bytes_per_s = m->all_links_bytes_per_s = t->link_bytes_per_s;
    if (t->peer_bytes_per_s > 0)
        m->peer_bytes_per_s = t->peer_bytes_per_s;
}

/* Checks that the result is a plan that verifies and fits, and that its time and bytes are those of a
 * simulation. */
static void check(const struct profile_search_request *q, const struct profile_search_result *r,
                  const char *what)
{
    const struct machine *m = q->machine;
    struct err err = {0};
    assert_non_null(r->plan);
    assert_non_null(r->graph);
    if (plan_verify(r->plan, r->graph, NULL, m, NULL, &err) < 0)
        fail_msg("%s: %s", what, err.msg);
    for (uint32_t d = 0; d < m->n_devices; d++)
        assert_true(r->plan->devices[d].peak_bytes <= m->capacity_bytes[d]);
    assert_true(r->plan->host_bytes + m->host_taken_bytes <= m->host_bytes);
    assert_int_equal((uint64_t)r->graph->rows * r->graph->n_micro, q->batch);
    for (uint32_t l = 0; q->micro_batch > 0 && l < r->graph->n_layers; l++)
        assert_int_equal(r->graph->layers[l].rows, q->micro_batch);
    struct plan_request request = {.train = r->graph, .machine = m, .table = q->table};
    struct profile *prof = plan_profile(&request);
    struct sim_result *sim = plan_simulate(r->plan, PROGRAM_CYCLE, SIM_RUNS, prof, m);
    assert_int_equal(r->score.ns, sim->cycle_ns);
    assert_int_equal(r->score.bytes, sim->bytes.in + sim->bytes.out);
    assert_int_equal(r->moves_data_only, r->score.bytes == sim->bytes.data_in + sim->bytes.data_out);
    sim_destroy(sim);
    profile_destroy(prof);
}

static void search(const struct profile_search_request *q, struct profile_search_result *ret,
                   const char *what)
{
    struct err err = {0};
    if (profile_search_outlines(q, ret, &err) < 0 &&
        strstr(err.msg, "has no input") == NULL) /* an odd table */
        fail_msg("%s: %s", what, err.msg);
    if (ret->plan != NULL)
        check(q, ret, what);
    else
        assert_true(ret->graph == NULL && ret->score.ns == 0 && ret->score.bytes == 0);
}

/* ---- random tables ---- */

/* Widens the range of measured sizes, so that the search can choose between several micro-batch sizes. */
static void widen(struct table_axis *axis)
{
    axis->sizes[0] = 1;
    if (axis->n > 1)
        axis->sizes[axis->n - 1] += 12;
    else
        axis->sizes[0] = 12;
}

static void test_search_of_random_tables_holds(void **state)
{
    (void)state;
    uint32_t n = random_cases(CASES), found = 0, mixed = 0, several = 0;
    for (uint32_t seed = 1; seed <= n; seed++) {
        struct rng rng = {.seed = seed};
        struct strbuf b = {0};
        struct table *t;
        struct machine m;
        struct profile_search_result r;
        char what[32];
        snprintf(what, sizeof what, "seed %u", seed);
        random_table_json(&b, &rng);
        assert_int_equal(table_parse(b.at, b.n, "t", &t, NULL), 0);
        widen(&t->fwd);
        widen(&t->bwd);
        machine(&m, t, 1 + rng_below(&rng, 5), 400000 + rng_below(&rng, 1u << (8 + rng_below(&rng, 14))));
        struct profile_search_request q = {
            .table = t,
            .machine = &m,
            .batch = 1 + rng_below(&rng, 24), /* fewer than there are devices, or 12 each */
            .update = rng_below(&rng, UPDATE_PLACE_COUNT),
            .objective = rng_below(&rng, OBJECTIVE_COUNT)};
        if (rng_below(&rng, 2))
            q.batch = m.n_devices * 12;
        if (rng_below(&rng, 3) == 0)
            q.micro_batch = 1 + rng_below(&rng, 3);
        if (rng_below(&rng, 3) == 0)
            m.host_bytes = 500000 + rng_below(&rng, 4000000);
        search(&q, &r, what);
        found += r.plan != NULL;
        for (uint32_t l = 1; r.plan != NULL && l < r.graph->n_layers; l++)
            if (r.graph->layers[l].rows != r.graph->layers[0].rows) {
                mixed++;
                break;
            }
        several += r.plan != NULL && r.graph->n_replicas > 1;
        profile_search_result_finish(&r);
        table_destroy(t);
        strbuf_finish(&b);
    }
    print_message("# of %u: %u plans, %u with sizes that differ, %u of several devices\n", n, found, mixed,
                  several);
    assert_true(n < CASES || (found > n / 4 && mixed > n / 100 && several > n / 6));
}

static void test_search_is_deterministic(void **state)
{
    (void)state;
    for (uint32_t devices = 1; devices <= 4; devices += 3)
        for (int objective = 0; objective < OBJECTIVE_COUNT; objective++) {
            struct table *t = even_table(25, 4 * MIB, 8 * MIB, 256 * KIB, 2 * MIB);
            struct machine m;
            struct profile_search_result a, b;
            machine(&m, t, devices, 40 * MIB);
            const struct profile_search_request q = {
                .table = t, .machine = &m, .batch = 16, .objective = objective};
            search(&q, &a, "first");
            search(&q, &b, "again");
            assert_true(a.score.ns == b.score.ns && a.score.bytes == b.score.bytes &&
                        plan_equal(a.plan, b.plan));
            profile_search_result_finish(&a);
            profile_search_result_finish(&b);
            table_destroy(t);
        }
}

/* ---- what is better ---- */

static void test_search_moves_less_when_asked_to(void **state)
{
    (void)state;
    struct table *t = even_table(25, 4 * MIB, 8 * MIB, 256 * KIB, 2 * MIB);
    for (uint32_t devices = 1; devices <= 4; devices++)
        for (uint64_t capacity = 36; capacity <= 288; capacity *= 2) {
            struct machine m;
            struct profile_search_result fast, few;
            machine(&m, t, devices, capacity * MIB);
            struct profile_search_request q = {.table = t, .machine = &m, .batch = 24};
            search(&q, &fast, "time");
            q.objective = OBJECTIVE_BYTES;
            search(&q, &few, "bytes");
            assert_true(fast.plan != NULL && few.plan != NULL);
            if (few.score.bytes > fast.score.bytes || fast.score.ns > few.score.ns + few.score.ns / 100)
                fail_msg("%u devices of %llu MiB: %llu bytes in %llu ns, and %llu in %llu", devices,
                         (unsigned long long)capacity, (unsigned long long)few.score.bytes,
                         (unsigned long long)few.score.ns, (unsigned long long)fast.score.bytes,
                         (unsigned long long)fast.score.ns);
            profile_search_result_finish(&fast);
            profile_search_result_finish(&few);
        }
    table_destroy(t);
}

static void test_search_is_not_slower_on_more_devices(void **state)
{
    (void)state;
    struct table *t = even_table(25, 4 * MIB, 8 * MIB, 256 * KIB, 2 * MIB);
    for (uint64_t capacity = 36; capacity <= 192; capacity += 24) {
        uint64_t before = UINT64_MAX;
        for (uint32_t devices = 1; devices <= 4; devices++) {
            struct machine m;
            struct profile_search_result r;
            machine(&m, t, devices, capacity * MIB);
            const struct profile_search_request q = {.table = t, .machine = &m, .batch = 24};
            search(&q, &r, "even");
            assert_non_null(r.plan);
            if (r.score.ns > before + before / 100)
                fail_msg("%u devices of %llu MiB: %llu ns, with one less %llu", devices,
                         (unsigned long long)capacity, (unsigned long long)r.score.ns,
                         (unsigned long long)before);
            before = r.score.ns;
            profile_search_result_finish(&r);
        }
    }
    table_destroy(t);
}

/* ---- limits ---- */

static void test_search_stays_within_host_memory(void **state)
{
    (void)state;
    struct table *t = even_table(25, 4 * MIB, 8 * MIB, 1 * MIB, 4 * MIB);
    uint32_t found = 0;
    for (uint32_t devices = 1; devices <= 4; devices += 3) {
        struct machine m;
        struct profile_search_result r;
        machine(&m, t, devices, 64 * MIB);
        const struct profile_search_request q = {.table = t, .machine = &m, .batch = 32};
        search(&q, &r, "plenty"); /* W, K and dW alone are 384 MiB */
        uint64_t takes = r.plan->host_bytes;
        profile_search_result_finish(&r);
        for (uint32_t part = 100; part > 30; part -= 10) {
            m.host_bytes = takes / 100 * part + 12345;
            m.host_taken_bytes = 12345;
            search(&q, &r, "little"); /* and checks it */
            found += r.plan != NULL;
            profile_search_result_finish(&r);
        }
    }
    assert_in_range(found, 4, 13);
    table_destroy(t);
}

static void test_search_finds_nothing_where_nothing_fits(void **state)
{
    (void)state;
    struct table *t = even_table(25, 4 * MIB, 8 * MIB, 256 * KIB, 2 * MIB);
    struct machine m;
    struct profile_search_result r = {.score = {.ns = 1}};
    machine(&m, t, 2, 8 * MIB); /* less than W and dW of two layers */
    struct profile_search_request q = {.table = t, .machine = &m, .batch = 8};
    search(&q, &r, "small");
    assert_null(r.plan);
    machine(&m, t, 2, 64 * MIB);
    m.host_bytes = 16 * MIB; /* less than the weights */
    search(&q, &r, "little");
    assert_null(r.plan);
    m.host_bytes = 1ull << 40;
    q.micro_batch = 3; /* 8 rows are not a multiple of it */
    search(&q, &r, "odd");
    assert_null(r.plan);
    table_destroy(t);
}

static void test_search_takes_the_size_that_is_given(void **state)
{
    (void)state;
    struct table *t = even_table(9, 4 * MIB, 8 * MIB, 256 * KIB, 2 * MIB);
    for (uint32_t size = 1; size <= 4; size++) {
        struct machine m;
        struct profile_search_result r;
        machine(&m, t, 2, 64 * MIB);
        const struct profile_search_request q = {.table = t, .machine = &m, .batch = 24, .micro_batch = size};
        search(&q, &r, "given"); /* and checks it */
        assert_non_null(r.plan);
        profile_search_result_finish(&r);
    }
    table_destroy(t);
}

/* The batch has fewer rows than there are devices, or a number that the devices do not divide, and two layers
 * share their weights. The plan must be correct, however the search uses the devices. */
static void test_search_of_odd_batches_and_tied_weights(void **state)
{
    (void)state;
    struct table *t = even_table(12, 1 * MIB, 2 * MIB, 64 * KIB, 512 * KIB);
    t->layers[10].tied = true;
    t->layers[10].owner = 0;
    t->layers[10].k = 0;
    for (uint32_t devices = 2; devices <= 6; devices++)
        for (uint32_t batch = 1; batch <= 7; batch++)
            for (int objective = 0; objective < OBJECTIVE_COUNT; objective++) {
                struct machine m;
                struct profile_search_result r;
                char what[64];
                snprintf(what, sizeof what, "%u devices, batch of %u", devices, batch);
                machine(&m, t, devices, 12 * MIB);
                const struct profile_search_request q = {
                    .table = t, .machine = &m, .batch = batch, .objective = objective};
                search(&q, &r, what);
                profile_search_result_finish(&r);
            }
    table_destroy(t);
}

static void test_search_of_a_long_chain(void **state)
{
    (void)state;
    struct table *t = even_table(400, 4 * MIB, 8 * MIB, 256 * KIB, 2 * MIB);
    for (uint32_t devices = 1; devices <= 4; devices += 3) {
        struct machine m;
        struct profile_search_result r;
        machine(&m, t, devices, 128 * MIB);
        const struct profile_search_request q = {.table = t, .machine = &m, .batch = 16};
        search(&q, &r, "long");
        assert_non_null(r.plan);
        profile_search_result_finish(&r);
    }
    table_destroy(t);
}

/* ---- saving S on the host ---- */

/* Counts the tensors S that are saved on the host, and the tensors S that are recomputed. */
static void count_kept(const struct plan *p, uint32_t *ret_saved, uint32_t *ret_again)
{
    const struct plan_program *cycle = &p->programs[PROGRAM_CYCLE];
    bool *saved = calloc(p->n_tensors, sizeof *saved), *again = calloc(p->n_tensors, sizeof *again);
    for (uint32_t i = 0; i < cycle->n_instrs; i++) {
        const struct plan_instr *in = &cycle->instrs[i];
        for (uint32_t k = 0; k < in->n_operands; k++) {
            const struct plan_operand *o = &cycle->operands[in->operand + k];
            if (p->tensors[o->tensor].kind != TENSOR_S)
                continue;
            saved[o->tensor] |= in->kind == INSTR_SPILL;
            again[o->tensor] |= in->kind == INSTR_REC;
        }
    }
    *ret_saved = *ret_again = 0;
    for (uint32_t t = 0; t < p->n_tensors; t++) {
        assert_false(saved[t] && again[t]); /* one or the other */
        *ret_saved += saved[t];
        *ret_again += again[t];
    }
    free(saved);
    free(again);
}

static void test_search_saves_on_the_host_where_the_link_is_fast(void **state)
{
    (void)state;
    struct table *t = even_table(25, 4 * MIB, 8 * MIB, 256 * KIB, 2 * MIB);
    for (uint32_t devices = 1; devices <= 2; devices++) {
        uint64_t ns[3];
        static const uint64_t rates[] = {500000000, 10000000000, 1000000000000};
        for (int i = 0; i < 3; i++) {
            struct machine m;
            struct profile_search_result r;
            uint32_t saved, again;
            machine(&m, t, devices, 28 * MIB);
            m.link_bytes_per_s = rates[i];
            m.all_links_bytes_per_s = 0;
            const struct profile_search_request q = {.table = t, .machine = &m, .batch = 32};
            search(&q, &r, "keep");
            count_kept(r.plan, &saved, &again);
            if (i == 0)
                assert_int_equal(saved, 0); /* 2 MiB take 4 ms, and a forward one */
            if (i == 2)
                assert_true(saved > 4 * again && saved > 16 * 20); /* nearly all that is not fused */
            ns[i] = r.score.ns;
            profile_search_result_finish(&r);
        }
        assert_true(ns[2] < ns[1] && ns[1] < ns[0]);
        assert_true(ns[2] * 5 < ns[0] * 4); /* a quarter of the compute is not done again */
    }
    table_destroy(t);
}

/* The same of plan_make, where one graph is given. */
static void test_auto_saves_on_the_host_where_the_link_is_fast(void **state)
{
    (void)state;
    struct table *t = even_table(25, 4 * MIB, 8 * MIB, 256 * KIB, 2 * MIB);
    struct graph *g;
    uint32_t saved, again;
    assert_int_equal(graph_build_table(t, 2, 16, true, &g, NULL), 0);
    static const uint64_t rates[] = {500000000, 1000000000000};
    for (int i = 0; i < 2; i++) {
        struct machine m;
        struct plan *p;
        struct err err = {0};
        machine(&m, t, 1, 36 * MIB);
        m.link_bytes_per_s = rates[i];
        m.all_links_bytes_per_s = 0;
        const struct plan_request r = {.train = g, .machine = &m, .table = t, .policy = POLICY_auto};
        assert_int_equal(plan_make(&r, &p, NULL, &err), 0);
        assert_int_equal(plan_verify(p, g, NULL, &m, NULL, &err), 0);
        count_kept(p, &saved, &again);
        if (i == 0)
            assert_true(saved == 0 && again > 0);
        else
            assert_true(saved > 2 * again);
        plan_destroy(p);
    }
    graph_destroy(g);
    table_destroy(t);
}

/* ---- the published profiles ---- */

/* Four devices, a batch of 64, 9 GB each, 256 GB: within this of Harmony's time, and in less. */
static void test_search_beats_harmony(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        double harmony_s, within;
    } cases[] = {{"gpt2_xl", 43.368, 0.90}, {"bert_96", 17.876, 0.87}, {"gpt2_medium", 11.872, 0.84}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct table *t = published_table(cases[i].model);
        struct machine m;
        struct profile_search_result r;
        assert_non_null(t);
        machine(&m, t, 4, 9000000000);
        const struct profile_search_request q = {.table = t, .machine = &m, .batch = 64};
        search(&q, &r, cases[i].model);
        assert_non_null(r.plan);
        double ratio = (double)r.score.ns / 1e9 / cases[i].harmony_s;
        print_message("# %s: %.3f s, %.4f of Harmony's\n", cases[i].model, (double)r.score.ns / 1e9, ratio);
        assert_true(ratio <= cases[i].within);
        profile_search_result_finish(&r);
        table_destroy(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_search_of_random_tables_holds),
        cmocka_unit_test(test_search_is_deterministic),
        cmocka_unit_test(test_search_moves_less_when_asked_to),
        cmocka_unit_test(test_search_is_not_slower_on_more_devices),
        cmocka_unit_test(test_search_stays_within_host_memory),
        cmocka_unit_test(test_search_finds_nothing_where_nothing_fits),
        cmocka_unit_test(test_search_takes_the_size_that_is_given),
        cmocka_unit_test(test_search_of_odd_batches_and_tied_weights),
        cmocka_unit_test(test_search_of_a_long_chain),
        cmocka_unit_test(test_search_saves_on_the_host_where_the_link_is_fast),
        cmocka_unit_test(test_auto_saves_on_the_host_where_the_link_is_fast),
        cmocka_unit_test(test_search_beats_harmony),
    };
    return cmocka_run_group_tests_name("search", tests, NULL, NULL);
}
