/* Tests the plans of every policy for random chains, tables, replicas and machines, and the plans of random
 * outlines, whose micro-batch sizes differ between layers. Each plan must verify, stay inside its leases,
 * move no less than the bound on bytes and take no less than the bound on time. A failure names its seed.
 * TUTTI_CASES=N tries the first N seeds instead of the default number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>

#include "scheduler/build/build.h"
#include "scheduler/policy/candidate.h"
#include "scheduler/policy/outline.h"
#include "scheduler/predict/bound.h"
#include "scheduler/predict/simulate.h"
#include "scheduler/predict/time_bound.h"
#include "scheduler/table.h"
#include "scheduler/verify/verify.h"
#include "tests/cases.h"
#include "tests/unit/random_chain.h"

#define CASES         1000
#define TABLE_CASES   400
#define OUTLINE_CASES 2500
#define EVERY_CASES   120
#define TABLE_LAYERS  10
#define MAX_REPLICAS  4
#define MAX_EACH      5 /* micro-batches of a replica */
#define PLENTY        (1ull << 40)

struct tally {
    uint32_t plans, positive, close; /* bound above 0; moved at most a quarter more */
    uint32_t by_devices[5], by_each[MAX_EACH + 1], by_replicas[MAX_REPLICAS + 1];
    uint32_t by_place[UPDATE_PLACE_COUNT], by_sizes[3], with_decision;
    uint32_t sent, reduced;     /* plans of devices that share state; instructions RED in part */
    uint32_t short_host, small; /* of machines with little host memory: plans; refused */
    uint32_t lost;              /* of these, although there is a plan */
    uint32_t by_kind[TIME_BOUND_KIND_COUNT],
        traded;           /* bounds on time, by what makes them as long as they are */
    uint32_t near, hasty; /* within a tenth of the bound; faster than it in the first few runs */
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

/* Checks the bound that holds for every cycle. */
static void check_cycle_bound(const struct plan *p, uint64_t moved, uint32_t seed)
{
    struct bound_cycle c;
    if (!bound_cycle_of(p, &c))
        return;
    uint64_t least = bound_cycle_compute(&c);
    if (moved < least)
        say(seed, p, "%llu bytes are less than %llu, the bound on a run of the cycle",
            (unsigned long long)moved, (unsigned long long)least);
    bound_cycle_finish(&c);
}

static void check_bound(const struct plan_request *r, const struct plan *p, uint32_t seed,
                        struct tally *tally)
{
    struct plan_bytes b;
    plan_count_bytes(p, PROGRAM_CYCLE, &b);
    uint64_t moved = b.state_in + b.state_out + b.stash_in + b.stash_out, least = bound_bytes(p);
    for (uint32_t turn = 0; turn < p->n_layers; turn++) {
        if (!r->train->layers[turn].backward)
            continue;
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
    check_cycle_bound(p, moved, seed);
    tally->plans++;
    tally->positive += least > 0;
    tally->close += least > 0 && moved <= least + least / 4;
}

/* Returns the average time of the first `runs` runs of the cycle. */
static uint64_t average_ns(const struct plan *p, uint32_t runs, const struct profile *prof,
                           const struct machine *m, uint64_t *ret_cycle_ns)
{
    struct sim_result *sim = plan_simulate(p, PROGRAM_CYCLE, runs, prof, m);
    uint64_t ns = sim->total_ns / runs;
    *ret_cycle_ns = sim->cycle_ns;
    sim_destroy(sim);
    return ns;
}

/* Checks the bound on time with one machine. No number of runs may take less than the bound on average. The
 * time of a run that reports show is a difference of two ends, and may be less if the first run ends late. */
static void check_time_on(const struct plan *p, const struct graph *g, const struct profile *prof,
                          const struct machine *m, uint32_t seed, struct tally *tally)
{
    struct time_bound b;
    uint64_t cycle_ns, average;
    time_bound(g, m, prof, &b);
    average = average_ns(p, SIM_RUNS, prof, m, &cycle_ns);
    if (average < b.ns * p->steps)
        say(seed, p, "%llu ns are less than %llu, the bound by %s%s", (unsigned long long)average,
            (unsigned long long)b.ns, time_bound_names[b.kind], b.traded ? " and others" : "");
    tally->by_kind[b.kind]++;
    tally->traded += b.traded;
    tally->near += (double)cycle_ns < 1.1 * (double)(b.ns * p->steps);
    tally->hasty += cycle_ns < b.ns * p->steps;
}

/* Checks the bound on time with the machine of the request and with random other rates, so that every
 * resource is sometimes the scarcest. */
static void check_time(const struct plan_request *r, const struct plan *p, uint32_t seed, struct tally *tally)
{
    struct rng rng = {.seed = seed * 31 + p->programs[PROGRAM_CYCLE].n_instrs};
    struct machine m = *r->machine;
    struct profile *prof = plan_profile(r);
    check_time_on(p, r->train, prof, &m, seed, tally);
    uint64_t slower = 1 + rng_below(&rng, 1000);
    m.link_bytes_per_s /= slower;
    m.link_out_bytes_per_s = rng_below(&rng, 2) ? m.link_bytes_per_s / (1 + rng_below(&rng, 4)) : 0;
    m.all_links_bytes_per_s = rng_below(&rng, 2) ? m.link_bytes_per_s : 0;
    m.host_shared_bytes_per_s = rng_below(&rng, 2) ? m.link_bytes_per_s * (1 + rng_below(&rng, 3)) : 0;
    m.cores = rng_below(&rng, 2) ? 1 + rng_below(&rng, 4) : 0;
    m.device_cores = m.cores > 0 ? 1 + rng_below(&rng, 4) : 0;
    m.host_cores = m.cores > 0 ? 1 + rng_below(&rng, 4) : 0;
    m.core_copy_bytes_per_s = m.cores > 0 ? 1 + m.link_bytes_per_s * rng_below(&rng, 3) : 0;
    check_time_on(p, r->train, prof, &m, seed, tally);
    profile_destroy(prof);
}

/* Checks that the plan stays inside the leases of devices and host, and that the live bytes never exceed the
 * peak address. */
static void check_leases(const struct plan_request *r, const struct plan *p, uint32_t seed)
{
    const struct machine *m = r->machine;
    uint64_t live[DEVICE_MAX];
    plan_live_peak(p, live);
    for (uint32_t d = 0; d < p->n_devices; d++) {
        assert_int_equal(p->devices[d].lease_bytes, m->capacity_bytes[d]);
        if (p->devices[d].peak_bytes > p->devices[d].lease_bytes)
            say(seed, p, "device %u: peak of %llu, lease of %llu", d,
                (unsigned long long)p->devices[d].peak_bytes, (unsigned long long)p->devices[d].lease_bytes);
        if (live[d] > p->devices[d].peak_bytes)
            say(seed, p, "device %u: %llu bytes alive below a peak of %llu", d, (unsigned long long)live[d],
                (unsigned long long)p->devices[d].peak_bytes);
    }
    assert_int_equal(p->host_lease_bytes, m->host_bytes - m->host_taken_bytes);
    if (p->host_bytes > p->host_lease_bytes)
        say(seed, p, "host memory: %llu bytes, lease of %llu", (unsigned long long)p->host_bytes,
            (unsigned long long)p->host_lease_bytes);
}

/* Whether it is a plan of devices that share state, and of tasks in shares. */
static void count_shares(const struct plan *p, struct tally *tally)
{
    const struct plan_program *cycle = &p->programs[PROGRAM_CYCLE];
    bool sent = false, parts = false;
    for (uint32_t i = 0; i < cycle->n_instrs; i++) {
        const struct plan_instr *in = &cycle->instrs[i];
        const struct plan_operand *o = &cycle->operands[in->operand];
        const struct plan_tensor *t = &p->tensors[o->tensor];
        sent |= in->kind == INSTR_SEND && t->kind == TENSOR_W;
        parts |= in->kind == INSTR_RED && operand_bytes(o) < t->bytes;
    }
    tally->sent += sent;
    tally->reduced += parts;
}

static void check_made(const struct plan_request *r, const struct plan *p, uint32_t seed, struct tally *tally)
{
    struct err err = {0};
    if (plan_verify(p, r->train, r->eval, r->machine, NULL, &err) < 0)
        say(seed, p, "%s", err.msg);
    check_leases(r, p, seed);
    check_bound(r, p, seed, tally);
    check_time(r, p, seed, tally);
    count_shares(p, tally);
}

/* Makes and checks the plan. Returns the bytes of host memory that it takes. */
static uint64_t check_plan(const struct plan_request *r, uint32_t seed, struct tally *tally)
{
    struct plan *p;
    struct err err = {0};
    if (plan_make(r, &p, NULL, &err) < 0)
        fail_msg("seed %u, policy %s: %s", seed, policy_names[r->policy], err.msg);
    check_made(r, p, seed, tally);
    uint64_t host = p->host_bytes;
    plan_destroy(p);
    return host;
}

/* With less host memory than the best plan takes, planning must find another plan that fits, or fail with the
 * right reason. With as much host memory as a policy's plan takes, the policy must find a plan. Policy `auto`
 * is an exception: it reaches its plan step by step, and sometimes an earlier step does not fit. */
static void check_host_memory(const struct plan_request *r, struct machine *m, uint64_t host, struct rng *rng,
                              uint32_t seed, struct tally *tally)
{
    struct plan *p;
    struct err err = {0};
    uint64_t taken = rng_below(rng, 2) * 4096, has = host;
    if (rng_below(rng, 4) != 0)
        has = host / 2 + (rng_below(rng, 1u << 16) * host >> 16);
    m->host_bytes = has + taken;
    m->host_taken_bytes = taken;
    int e = plan_make(r, &p, NULL, &err);
    if (e == 0) {
        check_made(r, p, seed, tally);
        plan_destroy(p);
        tally->short_host++;
    } else {
        assert_int_equal(e, -ENOSPC);
        assert_non_null(strstr(err.msg, "host memory"));
        tally->lost += has >= host;
        if (has >= host && r->policy != POLICY_auto)
            fail_msg("seed %u, policy %s: it has had a plan of %llu bytes: %s", seed, policy_names[r->policy],
                     (unsigned long long)host, err.msg);
        tally->small++;
    }
    m->host_bytes = PLENTY;
    m->host_taken_bytes = 0;
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
        uint64_t host = check_plan(r, seed, tally);
        if (rng_below(rng, 6) == 0)
            check_host_memory(r, m, host, rng, seed, tally);
        tally->by_place[r->update]++;
    }
}

static void print_tally(const struct tally *t)
{
    print_message(
        "# %u plans, bound above 0 for %u, moved at most a quarter more: %u; state is shared in %u, reduced "
        "by shares in %u; with little host memory %u, and %u refused, %u of these in vain\n",
        t->plans, t->positive, t->close, t->sent, t->reduced, t->short_host, t->small, t->lost);
    print_message("# bound on time: near in %u, traded in %u, hasty %u; by", t->near, t->traded, t->hasty);
    for (int i = 0; i < TIME_BOUND_KIND_COUNT; i++)
        print_message(" %s %u", time_bound_names[i], t->by_kind[i]);
    print_message("\n");
}

/* ---- chains of layers ---- */

/* Many layers of about one size, so that the memory that one needs does not hold most of the others. */
static void even_chain(struct random_chain *c, struct rng *rng)
{
    random_chain(c, rng, 40);
    uint32_t n = 8 + rng_below(rng, RANDOM_MAX_LAYERS - 8), base = 30 + rng_below(rng, 100), in = base;
    for (uint32_t l = 0; l < n; l++) {
        uint32_t out = base + rng_below(rng, 1 + base / 8);
        c->layers[l] = (struct layer){.type = &layer_dense,
                                      .id = l,
                                      .in = shape_vector(in),
                                      .out = shape_vector(out),
                                      .dense = {.act = rng_below(rng, ACT_COUNT)}};
        in = out;
    }
    c->layers[n] = (struct layer){.type = &layer_softmax_xent, .id = n, .in = {1, {in}}};
    c->model = (struct model){c->layers, n + 1};
}

static void test_plans_of_random_chains_hold(void **state)
{
    (void)state;
    struct tally tally = {0};
    uint32_t n = random_cases(CASES);
    for (uint32_t seed = 1; seed <= n; seed++) {
        struct rng rng = {.seed = seed};
        struct random_chain c;
        struct machine m;
        struct graph *train, *eval;
        if (seed % 2 == 0)
            random_chain(&c, &rng, seed % 8 == 0 ? 8 : 300); /* small: less than an aligned share each */
        else
            even_chain(&c, &rng);
        uint32_t each = c.n_micro;
        c.n_replicas = 1 + rng_below(&rng, MAX_REPLICAS);
        machine_init_cpu(&m, 1 + rng_below(&rng, 4), 0, PLENTY);
        /* Devices share state if each has a replica, so a quarter of the cases is like this. */
        if (seed % 4 == 3)
            c.n_replicas = m.n_devices;
        each = each > MAX_EACH / c.n_replicas + 1 ? MAX_EACH / c.n_replicas + 1 : each;
        c.n_micro = each * c.n_replicas;
        random_precision(&c, random_dtype(seed / 4));
        assert_int_equal(random_graph(&c, true, &train), 0);
        assert_int_equal(random_graph(&c, false, &eval), 0);
        struct plan_request r = {.train = train, .eval = eval, .machine = &m};
        check_policies(&r, &m, &rng, seed, &tally);
        tally.by_devices[m.n_devices]++;
        tally.by_each[each]++;
        tally.by_replicas[c.n_replicas]++;
        tally.with_decision += train->groups[0].decision;
        graph_destroy(train);
        graph_destroy(eval);
    }
    print_tally(&tally);
    if (n < CASES)
        return;
    for (int i = 1; i <= 4; i++)
        assert_true(tally.by_devices[i] > n / 8);
    for (int i = 1; i <= 3; i++)
        assert_true(tally.by_each[i] > n / 10);
    for (int i = 1; i <= MAX_REPLICAS; i++)
        assert_true(tally.by_replicas[i] > n / 8);
    assert_true(tally.sent > n / 50 && tally.reduced > n / 4);
    assert_true(tally.short_host > n / 8 && tally.small > n / 20);
    for (int i = 0; i < UPDATE_PLACE_COUNT; i++)
        assert_true(tally.by_place[i] > n);
    assert_true(tally.with_decision > n / 4 && tally.with_decision < n - n / 4);
    /* A bound of 0 would pass too, so enough bounds must be positive. */
    assert_true(tally.positive > tally.plans / 4);
    assert_true(tally.close > tally.plans / 100);
}

/* ---- forward-only chains ---- */

/* Checks the graph of a chain without a loss: it has the tasks of the forward pass and nothing that only
 * training needs, and the trainer reads the outputs of the last layer. */
static void check_forward_only(const struct random_chain *c, const struct graph *g)
{
    uint32_t last = g->n_layers - 1, outputs = 0;
    assert_false(g->groups[0].decision || g->groups[0].state_bytes > 0);
    assert_int_equal(g->n_tasks, g->n_layers * c->n_micro);
    for (uint32_t t = 0; t < g->n_tasks; t++)
        assert_int_equal(g->tasks[t].kind, INSTR_FWD);
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        enum tensor_kind kind = g->tensors[i].kind;
        assert_true(kind != TENSOR_DW && kind != TENSOR_K && kind != TENSOR_DX && kind != TENSOR_TARGET);
        if (kind != TENSOR_Y || g->tensors[i].layer != last)
            continue;
        outputs++;
        assert_true(g->tensors[i].external && g->tensors[i].bytes == g->layers[last].size.y);
    }
    assert_int_equal(outputs, c->n_micro);
}

static void test_plans_of_forward_only_chains_hold(void **state)
{
    (void)state;
    struct tally tally = {0};
    for (uint32_t seed = 1, n = random_cases(CASES) / 4; seed <= n; seed++) {
        struct rng rng = {.seed = seed};
        struct random_chain c;
        struct machine m;
        struct graph *g;
        if (seed % 2 == 0)
            random_chain(&c, &rng, seed % 8 == 0 ? 8 : 300);
        else
            even_chain(&c, &rng);
        c.model.n_layers--; /* the loss */
        c.n_replicas = 1 + rng_below(&rng, MAX_REPLICAS);
        c.n_micro = (1 + rng_below(&rng, 2)) * c.n_replicas;
        machine_init_cpu(&m, 1 + rng_below(&rng, 4), 0, PLENTY);
        assert_int_equal(random_graph(&c, false, &g), 0);
        check_forward_only(&c, g);
        struct plan_request r = {.train = g, .machine = &m};
        check_policies(&r, &m, &rng, seed, &tally);
        graph_destroy(g);
    }
    print_tally(&tally);
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
    uint64_t b = rng_below(rng, 4) == 0 ? 512 : 0, k = rng_below(rng, 2) ? w * rng_below(rng, 9) / 4 : 2 * w;
    bool tied = l > 1 && rng_below(rng, 8) == 0 && !t->layers[0].tied;
    w = tied ? t->layers[0].w : w;
    w -= w % dtype_size(t->table.dtype) * (t->table.dtype != DTYPE_F32);
    k = tied ? 0 : k;
    uint32_t inside = l < t->table.n_layers - 1 ? rng_below(rng, 2) * rng_below(rng, 4000) : 0;
    t->fwd_bytes[l] = (double)(w + b + inside) + t->input[l] + t->input[l + 1];
    uint64_t dw = t->table.dtype == DTYPE_F32 ? w : 2 * w;
    t->bwd_bytes[l] = (double)(w + dw + b + inside) + 2 * t->input[l];
    t->layers[l] = (struct table_layer){.tied = tied,
                                        .w = w,
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

static void random_table(struct random_table *t, enum dtype dtype, struct rng *rng)
{
    *t = (struct random_table){.sizes = {1}, .fwd_s = {1e-4}, .bwd_s = {3e-4}};
    struct table_axis axis = {1, t->sizes};
    uint32_t unit = rng_below(rng, 6) == 0 ? 64 + rng_below(rng, 512) : 512 + rng_below(rng, 20000);
    t->table = (struct table){.fwd = axis, .bwd = axis, .fwd_bytes = axis, .bwd_bytes = axis, .input = axis};
    t->table.dtype = dtype;
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
    uint32_t n = random_cases(TABLE_CASES);
    for (uint32_t seed = 1; seed <= n; seed++) {
        struct rng rng = {.seed = seed};
        struct random_table t;
        struct machine m;
        struct graph *train;
        random_table(&t, random_dtype(seed), &rng);
        machine_init_cpu(&m, 1 + rng_below(&rng, 4), 0, PLENTY);
        uint32_t replicas = 1 + rng_below(&rng, MAX_REPLICAS), micro = 1 + rng_below(&rng, 2);
        uint32_t rows[TABLE_LAYERS];
        for (uint32_t l = 0; l < t.table.n_layers; l++)
            rows[l] = micro;
        const struct graph_sizes sizes = {replicas * micro * (1 + rng_below(&rng, MAX_EACH / replicas + 1)),
                                          replicas, rows};
        assert_int_equal(graph_build_sizes(&t.table, &sizes, true, &train, NULL), 0);
        struct plan_request r = {.train = train, .machine = &m, .table = &t.table};
        check_policies(&r, &m, &rng, seed, &tally);
        graph_destroy(train);
    }
    print_tally(&tally);
    assert_true(n < TABLE_CASES || tally.positive > tally.plans / 4);
}

/* ---- outlines ---- */

static uint32_t random_divisor(uint32_t of, struct rng *rng)
{
    uint32_t d;
    do
        d = 1 + rng_below(rng, of);
    while (of % d != 0);
    return d;
}

/* Any that its header allows, sensible or not. */
static struct outline random_outline(uint32_t n, uint32_t shares, uint32_t local, bool may_pin,
                                     struct rng *rng)
{
    struct outline o = {.n_devices = shares, .rows = random_divisor(local, rng)};
    o.fused_rows = random_divisor(o.rows, rng);
    o.head_rows = random_divisor(o.fused_rows, rng);
    o.head = rng_below(rng, 2) ? n : 1 + rng_below(rng, n - 1);
    if (o.head == n)
        o.head_rows = o.fused_rows;
    o.fused = rng_below(rng, o.head < n ? o.head + 1 : n);
    o.pack = 1 + rng_below(rng, 4);
    o.pins = may_pin && rng_below(rng, 2) ? rng_below(rng, n + 1) : 0;
    o.waves = 1 + rng_below(rng, local / o.rows);
    o.save.of = rng_below(rng, 2) ? rng_below(rng, 5) : 0;
    o.save.count = o.save.of > 0 ? 1 + rng_below(rng, o.save.of) : 0;
    o.overlap = o.waves > 1 && o.fused > 0 && rng_below(rng, 2);
    o.lead = 2 * (1 + rng_below(rng, 2));
    return o;
}

static void check_outline(const struct plan_request *r, struct machine *m, const struct outline *o,
                          struct rng *rng, uint32_t seed, struct tally *tally)
{
    struct plan *p;
    struct plan_need need;
    struct err err = {0};
    struct profile *prof = plan_profile(r);
    for (uint32_t d = 0; d < m->n_devices; d++)
        m->capacity_bytes[d] = 0;
    assert_int_equal(plan_outline(r, o, prof, &p, &need, &err), 0);
    assert_null(p);
    assert_false(need.devices_fit);
    choose_capacities(m, need.device_bytes, rng);
    if (plan_outline(r, o, prof, &p, &need, &err) < 0 || p == NULL)
        fail_msg("seed %u: no plan in what it needs: %s", seed, err.msg);
    check_made(r, p, seed, tally);
    plan_destroy(p);
    profile_destroy(prof);
}

/* A step of a table, with micro-batch sizes that differ. */
static void outline_of_table(struct machine *m, struct rng *rng, uint32_t seed, struct tally *tally)
{
    struct random_table t;
    struct graph *train;
    static const uint32_t locals[] = {1, 2, 3, 4, 6, 8, 12, 12};
    uint32_t rows[TABLE_LAYERS], local = locals[rng_below(rng, 8)], shares = m->n_devices;
    random_table(&t, random_dtype(seed / 2), rng);
    enum update_place update = rng_below(rng, UPDATE_PLACE_COUNT);
    struct outline o = random_outline(t.table.n_layers, shares, local, update != UPDATE_HOST, rng);
    outline_rows(&o, t.table.n_layers, rows);
    const struct graph_sizes sizes = {local * shares, shares, rows};
    assert_int_equal(graph_build_sizes(&t.table, &sizes, true, &train, NULL), 0);
    struct plan_request r = {.train = train,
                             .machine = m,
                             .table = &t.table,
                             .update = update,
                             .objective = rng_below(rng, OBJECTIVE_COUNT)};
    check_outline(&r, m, &o, rng, seed, tally);
    tally->by_sizes[(o.rows > o.fused_rows) + (o.fused_rows > o.head_rows && o.head < t.table.n_layers)]++;
    graph_destroy(train);
}

/* Makes outlines of a chain of layers, with evaluation, and with or without a decision. All layers have the
 * same micro-batch size, and each device has one or more replicas. */
static void outline_of_chain(struct machine *m, struct rng *rng, uint32_t seed, struct tally *tally)
{
    struct random_chain c;
    struct graph *train, *eval;
    random_chain(&c, rng, rng_below(rng, 4) == 0 ? 8 : 200);
    uint32_t local = 1 + rng_below(rng, 4), shares = m->n_devices;
    c.n_replicas = shares * (local % 2 == 0 ? 1 + rng_below(rng, 2) : 1);
    c.n_micro = local * shares;
    assert_int_equal(random_graph(&c, true, &train), 0);
    assert_int_equal(random_graph(&c, false, &eval), 0);
    enum update_place update = rng_below(rng, UPDATE_PLACE_COUNT);
    struct outline o = random_outline(train->n_layers, shares, local, update != UPDATE_HOST, rng);
    o.waves = 1 + o.waves % local;
    o.rows = o.fused_rows = o.head_rows = c.rows;
    struct plan_request r = {.train = train, .eval = eval, .machine = m, .update = update};
    check_outline(&r, m, &o, rng, seed, tally);
    tally->with_decision += train->groups[0].decision;
    graph_destroy(train);
    graph_destroy(eval);
}

static void test_plans_of_random_outlines_hold(void **state)
{
    (void)state;
    struct tally tally = {0};
    uint32_t n = random_cases(OUTLINE_CASES);
    for (uint32_t seed = 1; seed <= n; seed++) {
        struct rng rng = {.seed = seed};
        struct machine m;
        machine_init_cpu(&m, 1 + rng_below(&rng, MAX_REPLICAS), 0, PLENTY);
        (seed % 2 ? outline_of_table : outline_of_chain)(&m, &rng, seed, &tally);
    }
    print_tally(&tally);
    if (n < OUTLINE_CASES)
        return;
    assert_true(tally.sent > n / 2 && tally.reduced > n / 2 && tally.with_decision > n / 8);
    for (int i = 0; i < 3; i++)
        assert_true(tally.by_sizes[i] > n / 100);
}

/* ---- every candidate ---- */

/* In place of plan_make's: what a policy tries is checked whether it is the best or not. */
struct checker {
    struct trial trial; /* first: a trial is a checker */
    const struct plan_request *r;
    const struct policy *policy;
    uint64_t built; /* tasks */
    uint32_t seed;
    struct tally *tally;
};

#define ENOUGH 100000 /* tasks of all candidates of a search */

static int check_candidate(struct trial *t, const struct candidate *c)
{
    struct checker *k = (struct checker *)t;
    struct order order;
    struct plan *p;
    struct plan_bytes b;
    struct err err = {0};
    k->policy->order(k->r, t->profile, c, &order);
    uint64_t order_tasks = order.todos.n;
    int e = plan_build(k->r, k->policy->name, &order, &c->knobs, t->profile, &p, &t->need, &err);
    order_finish(&order);
    if (e < 0)
        fail_msg("seed %u, policy %s, %u shares, %u groups: %s", k->seed, k->policy->name, c->teams, c->waves,
                 err.msg);
    t->made = t->moves_data_only = false;
    k->built += order_tasks;
    t->over = k->built > ENOUGH;
    if (p == NULL)
        return t->need.devices_fit;
    check_made(k->r, p, k->seed, k->tally);
    k->tally->by_replicas[c->teams > 1 && c->teams < k->r->machine->n_devices]++;
    plan_count_bytes(p, PROGRAM_CYCLE, &b);
    t->made = true;
    t->score = (struct score){b.in + b.out, b.in + b.out};
    plan_destroy(p);
    return 1;
}

static const struct policy *const searched[] = {&policy_auto, &policy_harmony_dp};

static void check_every(struct plan_request *r, struct machine *m, struct rng *rng, uint32_t seed,
                        struct tally *tally)
{
    struct profile *prof = plan_profile(r);
    uint64_t least;
    r->policy = POLICY_auto;
    assert_int_equal(plan_least_capacity(r, &least, NULL), 0);
    for (size_t i = 0; i < sizeof searched / sizeof searched[0]; i++) {
        struct checker k = {{.run = check_candidate, .profile = prof}, r, searched[i], 0, seed, tally};
        for (uint32_t d = 0; d < m->n_devices; d++)
            m->capacity_bytes[d] = least + (rng_below(rng, 1u << 16) * 2 * least >> 16);
        r->update = rng_below(rng, UPDATE_PLACE_COUNT);
        r->objective = rng_below(rng, OBJECTIVE_COUNT);
        assert_int_equal(searched[i]->search(r, &k.trial), 0);
    }
    profile_destroy(prof);
}

/* Groups of pipelines among them. */
static void test_plans_of_every_candidate_hold(void **state)
{
    (void)state;
    struct tally tally = {0};
    uint32_t n = random_cases(EVERY_CASES);
    for (uint32_t seed = 1; seed <= n; seed++) {
        struct rng rng = {.seed = seed + 7000};
        struct random_chain c;
        struct machine m;
        struct graph *train;
        random_chain(&c, &rng, seed % 4 == 0 ? 8 : 100);
        c.n_replicas = 2 + rng_below(&rng, 2);
        c.n_micro = c.n_replicas * (1 + rng_below(&rng, 2));
        machine_init_cpu(&m, 2 + rng_below(&rng, 4), 0, PLENTY);
        assert_int_equal(random_graph(&c, true, &train), 0);
        struct plan_request r = {.train = train, .machine = &m};
        check_every(&r, &m, &rng, seed, &tally);
        graph_destroy(train);
    }
    print_tally(&tally);
    assert_true(n < EVERY_CASES || (tally.by_replicas[1] > 2 * n && tally.sent > 2 * n));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans_of_random_chains_hold),
        cmocka_unit_test(test_plans_of_forward_only_chains_hold),
        cmocka_unit_test(test_plans_of_random_tables_hold),
        cmocka_unit_test(test_plans_of_random_outlines_hold),
        cmocka_unit_test(test_plans_of_every_candidate_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
