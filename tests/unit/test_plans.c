/* Every plan of every policy, for random chains and machines: it verifies, stays inside its leases, and
 * moves no less than the bound. A failure names the seed; TUTTI_CASES=N tries the first N seeds instead of
 * the usual ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "scheduler/bound.h"
#include "scheduler/policy.h"
#include "scheduler/table.h"
#include "scheduler/verify.h"
#include "tests/unit/random_chain.h"

#define CASES        2000
#define TABLE_CASES  400
#define TABLE_LAYERS 10

static uint32_t cases(uint32_t usual)
{
    const char *env = getenv("TUTTI_CASES");
    return env ? (uint32_t)strtoul(env, NULL, 10) : usual;
}

struct tally {
    uint32_t plans, positive, close; /* bound above 0; moved at most a quarter more */
    uint32_t by_devices[5], by_micro[6], by_place[UPDATE_PLACE_COUNT], with_decision;
};

/* ---- one plan ---- */

#define say(seed, p, fmt, ...) fail_msg("seed %u, policy %s: " fmt, seed, (p)->policy, __VA_ARGS__)

static void check_way(const struct bound_way *way, const struct plan_bytes *b, const struct plan *p,
                      uint32_t seed)
{
    if (b->state_in < way->in || b->state_out < way->out)
        say(seed, p, "state moves %llu in and %llu out, less than %llu and %llu",
            (unsigned long long)b->state_in, (unsigned long long)b->state_out, (unsigned long long)way->in,
            (unsigned long long)way->out);
}

static void check_bound(const struct plan_request *r, const struct plan *p, uint32_t seed,
                        struct tally *tally)
{
    struct plan_bytes b;
    plan_count_bytes(p, PROGRAM_CYCLE, &b);
    uint64_t moved = b.state_in + b.state_out + b.stash_in + b.stash_out, least = bound_bytes(p);
    for (uint32_t turn = r->train->first_trained; turn < p->n_layers; turn++) {
        struct bound_sizes s;
        struct bound bound;
        assert_true(bound_sizes_of(p, turn, &s));
        bound_compute(&s, &bound);
        if (moved < bound.bytes)
            say(seed, p, "%llu bytes are less than %llu, the bound with the turn at layer %u",
                (unsigned long long)moved, (unsigned long long)bound.bytes, turn);
        if (r->update != UPDATE_AUTO)
            check_way(r->update == UPDATE_HOST ? &bound.host : &bound.device, &b, p, seed);
        bound_sizes_finish(&s);
    }
    tally->plans++;
    tally->positive += least > 0;
    tally->close += least > 0 && moved <= least + least / 4;
}

static void check_plan(const struct plan_request *r, uint32_t seed, struct tally *tally)
{
    struct plan *p;
    struct err err = {0};
    if (plan_make(r, &p, NULL, &err) < 0)
        fail_msg("seed %u, policy %s: %s", seed, policy_names[r->policy], err.msg);
    if (plan_verify(p, r->train, r->eval, r->machine, NULL, &err) < 0)
        say(seed, p, "%s", err.msg);
    for (uint32_t d = 0; d < p->n_devices; d++) {
        assert_int_equal(p->devices[d].lease_bytes, r->machine->capacity_bytes[d]);
        if (p->devices[d].peak_bytes > p->devices[d].lease_bytes)
            say(seed, p, "device %u: peak of %llu, lease of %llu", d,
                (unsigned long long)p->devices[d].peak_bytes, (unsigned long long)p->devices[d].lease_bytes);
    }
    check_bound(r, p, seed, tally);
    plan_destroy(p);
}

/* The least capacity, a little more, or up to four times as much, and not the same for each device. */
static void choose_capacities(struct machine *m, uint64_t least, struct rng *rng)
{
    uint32_t way = rng_below(rng, 4);
    for (uint32_t d = 0; d < m->n_devices; d++) {
        uint64_t more = way == 0   ? 0
                        : way == 1 ? rng_below(rng, 5) * 256
                        : way == 2 ? rng_below(rng, 1u << 16) * (least / 4) >> 16
                                   : rng_below(rng, 1u << 16) * 3 * least >> 16;
        m->capacity_bytes[d] = least + more;
    }
}

static void check_policies(struct plan_request *r, struct machine *m, struct rng *rng, uint32_t seed,
                           struct tally *tally)
{
    for (int policy = 0; policy < POLICY_COUNT; policy++) {
        uint64_t least;
        struct err err = {0};
        r->policy = policy;
        r->update = rng_below(rng, UPDATE_PLACE_COUNT);
        r->objective = rng_below(rng, OBJECTIVE_COUNT);
        if (plan_least_capacity(r, &least, &err) < 0)
            fail_msg("seed %u, policy %s: %s", seed, policy_names[policy], err.msg);
        choose_capacities(m, least, rng);
        check_plan(r, seed, tally);
        tally->by_place[r->update]++;
    }
}

static void print_tally(const struct tally *t)
{
    print_message("# %u plans, bound above 0 for %u, moved at most a quarter more: %u\n", t->plans,
                  t->positive, t->close);
}

/* ---- chains of layers ---- */

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

static void test_plans_of_random_chains_hold(void **state)
{
    (void)state;
    struct tally tally = {0};
    uint32_t n = cases(CASES);
    for (uint32_t seed = 1; seed <= n; seed++) {
        struct rng rng = {.seed = seed};
        struct random_chain c;
        struct machine m;
        struct graph *train, *eval;
        if (seed % 2 == 0)
            random_chain(&c, &rng, 300);
        else
            even_chain(&c, &rng);
        machine_init_cpu(&m, 1 + rng_below(&rng, 4), 0, 1ull << 40);
        assert_int_equal(random_graph(&c, true, &train), 0);
        assert_int_equal(random_graph(&c, false, &eval), 0);
        struct plan_request r = {.train = train, .eval = eval, .machine = &m};
        check_policies(&r, &m, &rng, seed, &tally);
        tally.by_devices[m.n_devices]++;
        tally.by_micro[c.n_micro]++;
        tally.with_decision += train->decision;
        graph_destroy(train);
        graph_destroy(eval);
    }
    print_tally(&tally);
    if (n < CASES)
        return;
    for (int i = 1; i <= 4; i++)
        assert_true(tally.by_devices[i] > n / 8);
    for (int i = 1; i <= 5; i++)
        assert_true(tally.by_micro[i] > n / 10);
    for (int i = 0; i < UPDATE_PLACE_COUNT; i++)
        assert_true(tally.by_place[i] > n);
    assert_true(tally.with_decision > n / 4 && tally.with_decision < n - n / 4);
    /* A bound that says nothing would pass as well. */
    assert_true(tally.positive > tally.plans / 4);
    assert_true(tally.close > tally.plans / 100);
}

/* ---- tables ---- */

/* A model of which only a table is known: each layer with another proportion of K and W, some without W.
 * What the inside of a layer takes, the forward pass has as workspace or saves for the backward; the loss
 * has none. */
struct random_table {
    struct table table;
    struct table_layer layers[TABLE_LAYERS];
    uint32_t sizes[1];
    double fwd_s[1], bwd_s[1], input[TABLE_LAYERS + 1], fwd_bytes[TABLE_LAYERS], bwd_bytes[TABLE_LAYERS];
};

static void random_table_layer(struct random_table *t, uint32_t l, uint32_t unit, struct rng *rng)
{
    uint64_t w = l > 0 && rng_below(rng, 5) == 0 ? 0 : unit + rng_below(rng, unit);
    uint64_t b = rng_below(rng, 4) == 0 ? 512 : 0, k = w * rng_below(rng, 9) / 4;
    uint32_t inside = l < t->table.n_layers - 1 ? rng_below(rng, 2) * rng_below(rng, 4000) : 0;
    t->fwd_bytes[l] = (double)(w + b + inside) + t->input[l] + t->input[l + 1];
    t->bwd_bytes[l] = (double)(2 * w + b + inside) + 2 * t->input[l];
    t->layers[l] = (struct table_layer){.w = w,
                                        .b = b,
                                        .k = k,
                                        .input_bytes = &t->input[l],
                                        .fwd_s = t->fwd_s,
                                        .bwd_s = t->bwd_s,
                                        .fwd_bytes = &t->fwd_bytes[l],
                                        .bwd_bytes = &t->bwd_bytes[l],
                                        .update_cpu_s = 1e-4,
                                        .update_gpu_s = 1e-5};
}

static void random_table(struct random_table *t, struct rng *rng)
{
    *t = (struct random_table){.sizes = {1}, .fwd_s = {1e-4}, .bwd_s = {3e-4}};
    struct table_axis axis = {1, t->sizes};
    uint32_t unit = 512 + rng_below(rng, 20000);
    t->table = (struct table){.fwd = axis, .bwd = axis, .fwd_bytes = axis, .bwd_bytes = axis, .input = axis};
    t->table.n_layers = 2 + rng_below(rng, TABLE_LAYERS - 1);
    t->table.layers = t->layers;
    for (uint32_t l = 0; l < t->table.n_layers; l++)
        t->input[l] = 256 + rng_below(rng, unit / 4);
    for (uint32_t l = 0; l < t->table.n_layers; l++)
        random_table_layer(t, l, unit, rng);
}

static void test_plans_of_random_tables_hold(void **state)
{
    (void)state;
    struct tally tally = {0};
    uint32_t n = cases(TABLE_CASES);
    for (uint32_t seed = 1; seed <= n; seed++) {
        struct rng rng = {.seed = seed};
        struct random_table t;
        struct machine m;
        struct graph *train;
        random_table(&t, &rng);
        machine_init_cpu(&m, 1 + rng_below(&rng, 4), 0, 1ull << 40);
        assert_int_equal(graph_build_table(&t.table, 1, 1 + rng_below(&rng, 5), true, &train, NULL), 0);
        struct plan_request r = {.train = train, .machine = &m, .table = &t.table};
        check_policies(&r, &m, &rng, seed, &tally);
        graph_destroy(train);
    }
    print_tally(&tally);
    assert_true(n < TABLE_CASES || tally.positive > tally.plans / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans_of_random_chains_hold),
        cmocka_unit_test(test_plans_of_random_tables_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
