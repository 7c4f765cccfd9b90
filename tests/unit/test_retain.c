/* Compares retention with an exact solver that tries every subset of the gaps, on small instances. The sum
 * over many instances must be within 2 % of the optimum, and no single choice may leave memory free that a
 * gap could use. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "scheduler/build/build.h"
#include "scheduler/policy/candidate.h"
#include "scheduler/policy/policy.h"

#define POSITIONS 40
#define MOST_GAPS 13

static uint32_t draws;

static uint32_t draw(uint32_t seed, uint32_t below)
{
    return rng_philox(seed, draws++, 0, 0, 0).v[0] % below;
}

static bool covers(const struct gap *g, uint32_t at)
{
    return g->from > g->to ? at > g->from || at < g->to : at > g->from && at < g->to;
}

struct instance {
    struct gap gaps[MOST_GAPS];
    uint32_t n;
    uint64_t room[POSITIONS];
};

/* Like those of a chain: some around a turning point, some across the boundary, some anywhere. */
static void make(struct instance *in, uint32_t seed, bool equal, bool across)
{
    static const uint64_t sizes[] = {256, 512, 768, 1024, 2560, 5120};
    draws = 0;
    memset(in, 0, sizeof *in);
    in->n = 1 + draw(seed, MOST_GAPS);
    for (uint32_t i = 0; i < in->n; i++) {
        struct gap *g = &in->gaps[i];
        uint32_t kind = draw(seed, 4), a, b;
        do {
            a = draw(seed, kind == 0 ? POSITIONS / 2 : POSITIONS);
            b = kind == 0 ? POSITIONS - 1 - a : draw(seed, POSITIONS);
        } while (a == b);
        bool wrap = across && kind == 1;
        *g = (struct gap){.use = i, .from = wrap == (a > b) ? a : b, .to = wrap == (a > b) ? b : a};
        g->bytes = equal ? 512 : sizes[draw(seed, 6)];
        g->gain = g->bytes * (1 + draw(seed, 2));
    }
    uint64_t most = 256 * (1 + draw(seed, 40));
    for (uint32_t i = 0; i < POSITIONS; i++)
        in->room[i] = draw(seed, 3) == 0 ? most / 2 + 256 * draw(seed, 4) : most;
}

static bool fits(const struct instance *in, uint32_t set)
{
    for (uint32_t at = 0; at < POSITIONS; at++) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < in->n; i++)
            sum += set >> i & 1 && covers(&in->gaps[i], at) ? in->gaps[i].bytes : 0;
        if (sum > in->room[at])
            return false;
    }
    return true;
}

static uint64_t gain(const struct instance *in, uint32_t set)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < in->n; i++)
        sum += set >> i & 1 ? in->gaps[i].gain : 0;
    return sum;
}

static uint64_t best(const struct instance *in)
{
    uint64_t most = 0;
    for (uint32_t set = 0; set < 1u << in->n; set++)
        if (gain(in, set) > most && fits(in, set))
            most = gain(in, set);
    return most;
}

static uint32_t chosen(struct instance *in)
{
    uint32_t set = 0;
    retain_pack(in->gaps, in->n, in->room, POSITIONS);
    for (uint32_t i = 0; i < in->n; i++)
        set |= (uint32_t)in->gaps[i].retain << i;
    return set;
}

static void compare(uint32_t first_seed, bool equal, bool across)
{
    uint64_t ours = 0, exact = 0;
    for (uint32_t seed = first_seed; seed < first_seed + 1500; seed++) {
        struct instance in;
        make(&in, seed, equal, across);
        uint32_t set = chosen(&in);
        if (!fits(&in, set))
            fail_msg("seed %u: more than there is room for", seed);
        for (uint32_t i = 0; i < in.n; i++)
            if (!(set >> i & 1) && fits(&in, set | 1u << i))
                fail_msg("seed %u: gap %u would still fit", seed, i);
        ours += gain(&in, set);
        exact += best(&in);
    }
    print_message("# %.4f of the best\n", (double)ours / (double)exact);
    assert_true((double)ours >= 0.98 * (double)exact);
}

static void test_equal_blocks_near(void **state)
{
    (void)state;
    compare(1, true, false);
    compare(200000, true, true);
}

static void test_unequal_blocks_near(void **state)
{
    (void)state;
    compare(100000, false, false);
    compare(300000, false, true);
}

/* The next pack's forward pass reads a stash, and its backward pass reads it again. Without retention both
 * reads fetch the stash from the host, and these two fetches are the only reason for the spill. Retaining the
 * stash in the last gap saves a fetch and the spill. Retaining it in the first gap saves only a fetch. */
static void test_last_gap_of_a_stash_saves_the_spill(void **state)
{
    static const char *const text = "{\"micro_batch_fwd\":[1],\"micro_batch_bwd\":[1],\"micro_batch_fwd_"
                                    "bytes\":[1],\"micro_batch_bwd_bytes\":[1],"
                                    "\"micro_batch_input\":[1],\"layers\":["
                                    "{\"weight_bytes\":4096,\"input_bytes\":[256],\"fwd_s\":[1],\"bwd_s\":[3]"
                                    ",\"fwd_bytes\":[0],\"bwd_bytes\":[0]},"
                                    "{\"weight_bytes\":4096,\"input_bytes\":[768],\"fwd_s\":[1],\"bwd_s\":[3]"
                                    ",\"fwd_bytes\":[0],\"bwd_bytes\":[0]},"
                                    "{\"weight_bytes\":0,\"input_bytes\":[512],\"fwd_s\":[1],\"bwd_s\":[3],"
                                    "\"fwd_bytes\":[0],\"bwd_bytes\":[0]}]}";
    enum { MICROS = 6, STASH = 768 };
    struct table *t;
    struct graph *g;
    struct machine m;
    struct candidate c;
    struct order o;
    struct draft d;
    gap_list gaps = {0};
    uint32_t first = 0, last = 0;
    (void)state;
    assert_int_equal(table_parse(text, strlen(text), "three", &t, NULL), 0);
    assert_int_equal(graph_build_table(t, 1, MICROS, true, &g, NULL), 0);
    machine_init_cpu(&m, 1, 1 << 20, 1 << 30);
    struct plan_request r = {.train = g, .machine = &m, .table = t};
    struct profile *prof = plan_profile(&r);
    policy_auto.leanest(&r, &c);
    policy_auto.order(&r, prof, &c, &o);
    assert_int_equal(order_merge(&o, prof, NULL), 0);
    draft_residency(&d, &o, &c.knobs, true, NULL, &gaps);
    for (size_t i = 0; i < gaps.n; i++) {
        first += gaps.at[i].bytes == STASH && gaps.at[i].gain == STASH;
        last += gaps.at[i].bytes == STASH && gaps.at[i].gain == 2 * STASH;
    }
    assert_true(first > 0);
    /* The gradient of the stash has the same size and has one such gap for each micro-batch. The other gaps
     * are those of the stash. The newest stash may have none, because it may still be on the device. */
    assert_true(last > MICROS);
    vec_free(&gaps);
    draft_finish(&d);
    order_finish(&o);
    profile_destroy(prof);
    graph_destroy(g);
    table_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_blocks_near),
        cmocka_unit_test(test_unequal_blocks_near),
        cmocka_unit_test(test_last_gap_of_a_stash_saves_the_spill),
    };
    return cmocka_run_group_tests_name("retain", tests, NULL, NULL);
}
