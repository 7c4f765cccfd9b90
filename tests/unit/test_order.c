/* Tests the orders of data-parallel candidates, before any moves are added. Every task occurs once, and a
 * task in shares occurs once for each share that is not empty, on the share's owner. Sums run in ascending
 * order, after the gradients that they add. Gradients are reduced when there was enough time to exchange
 * them. Saved micro-batches are not recomputed. Snake orders alternate their direction. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>

#include "base/rng.h"
#include "scheduler/build/build.h"
#include "scheduler/policy/candidate.h"
#include "scheduler/policy/policy.h"
#include "scheduler/rate.h"
#include "tests/unit/even_table.h"
#include "tests/unit/random_chain.h"

#define CASES      1500
#define MAX_LAYERS 24

struct setup {
    struct table *table; /* NULL: a chain */
    struct graph *graph;
    struct machine machine;
    struct plan_request request;
    struct profile *profile;
    struct candidate candidate;
    uint32_t starts[MAX_LAYERS + 1];
    bool pinned[MAX_LAYERS];
    struct order order;
};

static void begin_order(struct setup *s)
{
    s->request.train = s->graph;
    s->request.machine = &s->machine;
    s->request.table = s->table;
    s->candidate.starts = s->starts;
    s->profile = plan_profile(&s->request);
    policy_auto.order(&s->request, s->profile, &s->candidate, &s->order);
}

static void finish(struct setup *s)
{
    order_finish(&s->order);
    profile_destroy(s->profile);
    graph_destroy(s->graph);
    table_destroy(s->table);
}

/* Cuts the layers before the fused segment into packs of `pack` layers. */
static void cut(struct setup *s, uint32_t fused, uint32_t pack)
{
    struct candidate *c = &s->candidate;
    c->fused = fused;
    c->packs = 0;
    for (uint32_t l = 0; l < fused; l += pack)
        s->starts[c->packs++] = l;
    s->starts[c->packs] = fused;
}

/* Equal layers; each device has `each` micro-batches of one row. */
static void even_setup(struct setup *s, uint32_t layers, uint64_t w, uint32_t devices, uint32_t each)
{
    uint32_t rows[MAX_LAYERS];
    *s = (struct setup){.table = even_table(layers, w, 2 * w, 1024, 4096),
                        .candidate = {.waves = 1, .teams = devices, .unit = 1}};
    for (uint32_t l = 0; l < layers; l++)
        rows[l] = 1;
    const struct graph_sizes sizes = {devices * each, devices, rows};
    assert_int_equal(graph_build_sizes(s->table, &sizes, true, &s->graph, NULL), 0);
    machine_init_cpu(&s->machine, devices, 1ull << 40, 1ull << 40);
}

static void random_setup(struct setup *s, uint32_t seed)
{
    struct rng rng = {.seed = seed};
    struct random_chain c;
    *s = (struct setup){.candidate = {.waves = 1}};
    random_chain(&c, &rng, rng_below(&rng, 3) == 0 ? 8 : 100);
    uint32_t shares = 1 + rng_below(&rng, 4), each = 1 + rng_below(&rng, 4), stages = 1 + rng_below(&rng, 2);
    c.n_replicas = shares * (each % 2 == 0 ? 1 + rng_below(&rng, 2) : 1);
    c.n_micro = shares * each;
    assert_int_equal(random_graph(&c, true, &s->graph), 0);
    machine_init_cpu(&s->machine, shares * stages, 1ull << 40, 1ull << 40);
    s->request.update = rng_below(&rng, UPDATE_PLACE_COUNT);
    s->candidate.teams = shares;
    s->candidate.unit = s->graph->rows;
    s->candidate.waves = 1 + rng_below(&rng, each);
    s->candidate.snake = rng_below(&rng, 2);
    s->candidate.save = (struct save_rate){1, rng_below(&rng, 4)};
    for (uint32_t l = 0; l < s->graph->n_layers; l++)
        s->pinned[l] = rng_below(&rng, 2);
    if (s->request.update != UPDATE_HOST && rng_below(&rng, 2))
        s->candidate.knobs.pinned = s->pinned;
    cut(s, rng_below(&rng, s->graph->n_layers), 1 + rng_below(&rng, 2));
    s->candidate.overlap =
        stages == 1 && s->candidate.waves > 1 && s->candidate.packs > 0 && rng_below(&rng, 2);
    begin_order(s);
}

/* ---- every task ---- */

static uint32_t count(const struct order *o, enum instr_kind kind, uint32_t layer, uint32_t micro,
                      uint32_t replica, uint32_t share)
{
    uint32_t n = 0;
    for (size_t i = 0; i < o->todos.n; i++) {
        const struct todo *t = &o->todos.at[i];
        n += t->kind == kind && t->layer == layer && t->micro == micro && t->share == share &&
             (kind != INSTR_RED || t->replica == replica);
    }
    return n;
}

static bool share_is_empty(const struct order *o, uint32_t layer, uint32_t share)
{
    tensor_id w = graph_tensor_find(o->graph, TENSOR_DW, layer, 0, 0);
    struct extent e = extent_piece(o->graph, o->n_shares, w, share);
    return e.begin == e.end;
}

/* Checks that a task occurs exactly once: either as a whole, or once for each share that is not empty. */
static void check_once(const struct setup *s, const struct graph_task *t, uint32_t seed)
{
    const struct order *o = &s->order;
    uint32_t whole = count(o, t->kind, t->layer, t->micro, t->replica, SHARE_ALL), parts = 0;
    for (uint32_t k = 0; o->n_shares > 1 && (t->kind == INSTR_RED || t->kind == INSTR_UPD) && k < o->n_shares;
         k++) {
        uint32_t n = count(o, t->kind, t->layer, t->micro, t->replica, k);
        if (whole + n != (whole > 0 || !share_is_empty(o, t->layer, k)))
            fail_msg("seed %u: %s l%u share %u: %u times", seed, instr_kind_names[t->kind], t->layer, k, n);
        parts += n;
    }
    bool in_parts = o->n_shares > 1 && (t->kind == INSTR_RED || parts > 0);
    if (whole != !in_parts || (in_parts && parts == 0))
        fail_msg("seed %u: %s l%u m%u: %u times as a whole, %u shares", seed, instr_kind_names[t->kind],
                 t->layer, t->micro, whole, parts);
}

static bool is_share(const struct todo *t)
{
    return t->share != SHARE_ALL;
}

/* Where it is done: shares by their owner, passes by a device of the group whose rows they are. */
static void check_places(const struct setup *s, uint32_t seed)
{
    const struct order *o = &s->order;
    uint32_t stages = s->machine.n_devices / o->n_shares;
    for (size_t i = 0; i < o->todos.n; i++) {
        const struct todo *t = &o->todos.at[i];
        bool pass = t->kind == INSTR_FWD || t->kind == INSTR_BWD || t->kind == INSTR_REC;
        uint32_t group = pass ? t->micro / (graph_micros(s->graph, t->layer) / o->n_shares) : 0;
        if (is_share(t))
            assert_int_equal(t->loc, o->owners[t->layer * o->n_shares + t->share]);
        else if (pass && o->n_shares > 1 && t->loc != o->owners[t->layer * o->n_shares + group])
            fail_msg("seed %u: %s l%u m%u on device %u", seed, instr_kind_names[t->kind], t->layer, t->micro,
                     t->loc);
        if (pass)
            assert_int_equal(t->loc / stages, group);
        if (t->kind == INSTR_UPD || t->kind == INSTR_NORM)
            assert_true(updates_on_device(&s->request, s->candidate.knobs.pinned, t->layer) ||
                        t->loc == PLAN_HOST);
    }
}

static void test_order_has_every_task_once(void **state)
{
    (void)state;
    uint32_t shared = 0, empty = 0;
    for (uint32_t seed = 1; seed <= CASES; seed++) {
        struct setup s;
        random_setup(&s, seed);
        for (uint32_t i = 0; i < s.graph->n_tasks; i++)
            check_once(&s, &s.graph->tasks[i], seed);
        check_places(&s, seed);
        for (size_t i = 0; i < s.order.todos.n; i++)
            shared += is_share(&s.order.todos.at[i]);
        for (uint32_t l = 0; s.order.n_shares > 1 && l < s.graph->n_layers; l++)
            empty += s.graph->layers[l].size.w > 0 && share_is_empty(&s.order, l, 0);
        struct err err = {0};
        if (order_merge(&s.order, s.profile, &err) < 0)
            fail_msg("seed %u: %s", seed, err.msg);
        finish(&s);
    }
    assert_true(shared > 5 * CASES && empty > CASES / 4);
}

/* ---- sums ---- */

/* In issue order: what a RED adds is done, on every device, and replicas ascend; so do micro-batches. */
static void check_sums(const struct order *o, uint32_t seed)
{
    const struct graph *g = o->graph;
    for (size_t i = 0; i < o->todos.n; i++) {
        const struct todo *t = &o->todos.at[i];
        for (size_t k = i + 1; k < o->todos.n; k++) {
            const struct todo *later = &o->todos.at[k];
            bool same = later->layer == t->layer;
            if (same && t->kind == INSTR_BWD && later->kind == INSTR_BWD &&
                graph_replica(g, t->layer, t->micro) == graph_replica(g, t->layer, later->micro) &&
                later->micro < t->micro)
                fail_msg("seed %u: BWD l%u m%u behind m%u", seed, t->layer, later->micro, t->micro);
            if (same && t->kind == INSTR_RED && later->kind == INSTR_RED && later->share == t->share &&
                later->replica <= t->replica)
                fail_msg("seed %u: RED l%u of replica %u behind %u", seed, t->layer, later->replica,
                         t->replica);
            if (same && t->kind == INSTR_RED && later->kind == INSTR_BWD) {
                uint32_t of = graph_replica(g, t->layer, later->micro);
                if (of == t->replica || of == 0)
                    fail_msg("seed %u: RED l%u of replica %u before BWD m%u", seed, t->layer, t->replica,
                             later->micro);
            }
            if (same && (t->kind == INSTR_UPD || t->kind == INSTR_NORM) && later->kind == INSTR_RED &&
                (t->share == SHARE_ALL || t->share == later->share))
                fail_msg("seed %u: %s l%u before RED", seed, instr_kind_names[t->kind], t->layer);
        }
    }
}

static void test_order_adds_replicas_in_order(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= CASES / 4; seed++) {
        struct setup s;
        random_setup(&s, seed);
        assert_int_equal(order_merge(&s.order, s.profile, NULL), 0);
        check_sums(&s.order, seed);
        finish(&s);
    }
}

/* ---- settling ---- */

/* Returns after which backward pass of the device the first RED of the layer comes. 1 is the first backward
 * pass on this device. */
static uint32_t settled_after(const struct order *o, uint32_t layer, uint32_t device)
{
    uint32_t span = PLAN_NONE, passes = 0;
    for (size_t i = 0; i < o->todos.n; i++) {
        const struct todo *t = &o->todos.at[i];
        if (t->loc != device)
            continue;
        if (t->kind == INSTR_BWD && t->span != span) {
            span = t->span;
            passes++;
        }
        if (t->kind == INSTR_RED && t->layer == layer)
            return passes;
    }
    return PLAN_NONE;
}

/* Eight packs of one layer come before the fused segment. For each of 4 micro-batches a backward pass takes 2
 * ms and its recomputation 1 ms. */
static void test_order_settles_when_the_exchange_had_its_time(void **state)
{
    (void)state;
    enum { LAYERS = 11, FUSED = 8, EACH = 4, W = 1 << 20 };
    const uint64_t pass_ns = 3000000ull * EACH;
    static const double in_passes[] = {0, 0.3, 0.5, 1, 1.5, 2.5, 20}; /* that the exchange of a layer takes */
    for (size_t i = 0; i < sizeof in_passes / sizeof in_passes[0]; i++)
        for (uint32_t devices = 2; devices <= 4; devices += 2) {
            struct setup s;
            even_setup(&s, LAYERS, W, devices, EACH);
            cut(&s, FUSED, 1);
            uint64_t bytes = W / devices * (devices - 1);
            s.machine.peer_bytes_per_s =
                in_passes[i] > 0 ? (uint64_t)((double)bytes * 1e9 / (in_passes[i] * (double)pass_ns)) : 0;
            begin_order(&s);
            uint64_t ns = in_passes[i] > 0 ? rate_ns(bytes, s.machine.peer_bytes_per_s) : 0, had = 0;
            uint32_t next = LAYERS - 2; /* to settle: the loss has no W */
            for (uint32_t pass = 1; pass <= FUSED + 1; pass++) {
                uint32_t done =
                    pass == 1 ? FUSED : FUSED + 1 - pass; /* gradients from this layer up are there */
                had += pass > 1 ? pass_ns : 0;
                uint32_t open = pass == 1 ? LAYERS : done + 1; /* before this pass */
                for (; next >= open && next < LAYERS && (had >= ns || pass == FUSED + 1); next--) {
                    had -= ns < had ? ns : had;
                    assert_int_equal(settled_after(&s.order, next, devices - 1), pass);
                }
                if (next < open)
                    had = 0; /* an idle link saves no time */
            }
            for (uint32_t l = 0; l <= next && next < LAYERS; l++) /* the rest at the end */
                assert_int_equal(settled_after(&s.order, l, devices - 1), FUSED + 1);
            finish(&s);
        }
}

/* ---- what is kept ---- */

static const struct todo *find(const struct order *o, enum instr_kind kind, uint32_t layer, uint32_t micro)
{
    for (size_t i = 0; i < o->todos.n; i++)
        if (o->todos.at[i].kind == kind && o->todos.at[i].layer == layer && o->todos.at[i].micro == micro)
            return &o->todos.at[i];
    return NULL;
}

static void test_order_keeps_each_nth(void **state)
{
    (void)state;
    enum { LAYERS = 10, FUSED = 7, EACH = 12 };
    for (uint32_t keep = 0; keep <= 7; keep++)
        for (uint32_t devices = 1; devices <= 3; devices++)
            for (uint32_t groups = 1; groups <= 3; groups += 2) {
                struct setup s;
                even_setup(&s, LAYERS, 4096, devices, EACH);
                cut(&s, FUSED, 1);
                s.candidate.save = (struct save_rate){1, keep};
                s.candidate.waves = groups;
                begin_order(&s);
                for (uint32_t l = 0; l < LAYERS; l++) {
                    uint32_t saved = 0;
                    for (uint32_t j = 0; j < devices * EACH; j++) {
                        const struct todo *fwd = find(&s.order, INSTR_FWD, l, j),
                                          *rec = find(&s.order, INSTR_REC, l, j);
                        assert_non_null(fwd);
                        assert_true(fwd->output);
                        saved += fwd->save;
                        assert_int_equal(rec == NULL,
                                         fwd->save); /* forwarded again exactly where it is not saved */
                        if (rec != NULL)
                            assert_true(rec->save && !rec->output);
                    }
                    /* The last pack's would be on their way when the fused layers need the memory. */
                    bool kept = keep > 0 && l < FUSED - 1;
                    uint32_t n = devices * EACH;
                    if (l >= FUSED)
                        assert_int_equal(saved, n);
                    else if (kept)
                        assert_in_range(
                            saved, n / keep - devices + (n % keep == 0 && EACH % keep == 0 ? devices : 0),
                            n / keep + devices);
                    else
                        assert_int_equal(saved, 0);
                }
                finish(&s);
            }
}

/* ---- waves that overlap ---- */

/* The forward passes of a wave through pack k alternate with the backward passes of the wave before
 * through the opposite pack. */
static void check_alternates(const struct setup *s, uint32_t fused, uint32_t layer, uint32_t micro,
                             uint32_t back)
{
    const struct todo *fwd = find(&s->order, INSTR_FWD, layer, micro),
                      *bwd = find(&s->order, INSTR_BWD, fused - 1 - layer, back);
    assert_int_equal(fwd->span, bwd->span);
    assert_int_equal(fwd->item + 1, bwd->item);
}

static void test_order_waves_overlap(void **state)
{
    (void)state;
    enum { LAYERS = 8, FUSED = 6, EACH = 12, WAVES = 3, WAVE = EACH / WAVES };
    for (uint32_t devices = 1; devices <= 2; devices++) {
        struct setup s;
        even_setup(&s, LAYERS, 4096, devices, EACH);
        cut(&s, FUSED, 1);
        s.candidate.save = (struct save_rate){2, 3};
        s.candidate.waves = WAVES;
        s.candidate.overlap = true;
        begin_order(&s);
        for (uint32_t d = 0; d < devices; d++)
            for (uint32_t l = 0; l < FUSED; l++) {
                uint32_t saved = 0;
                for (uint32_t j = 0; j < EACH; j++) {
                    const struct todo *fwd = find(&s.order, INSTR_FWD, l, d * EACH + j);
                    saved += fwd->save;
                    assert_int_equal(find(&s.order, INSTR_REC, l, d * EACH + j) == NULL, fwd->save);
                    assert_true(!fwd->save || j >= WAVE); /* the first wave goes forward alone */
                    if (j >= WAVE)
                        check_alternates(&s, FUSED, l, d * EACH + j, d * EACH + j - WAVE);
                }
                /* Two of three in the other waves. The last pack saves nothing. */
                assert_in_range(saved, l < FUSED - 1 ? 5 : 0, l < FUSED - 1 ? 6 : 0);
            }
        finish(&s);
    }
}

/* ---- snakes ---- */

/* Each forward pass of a device goes through the micro-batches in the opposite direction of the pass before,
 * and the last forward pass descends. The fused pass and the backward passes ascend, because sums must be in
 * ascending order. */
static void test_order_snakes(void **state)
{
    (void)state;
    enum { LAYERS = 9, EACH = 4 };
    for (uint32_t fused = 0; fused < LAYERS; fused++)
        for (uint32_t snake = 0; snake <= 1; snake++)
            for (uint32_t groups = 1; groups <= 2; groups++) {
                struct setup s;
                even_setup(&s, LAYERS, 4096, 2, EACH);
                cut(&s, fused, 1);
                s.candidate.snake = snake;
                s.candidate.waves = groups;
                begin_order(&s);
                const struct todo *last[LAYERS][INSTR_KIND_COUNT] = {0};
                for (size_t i = 0; i < s.order.todos.n; i++) {
                    const struct todo *t = &s.order.todos.at[i];
                    if (t->loc != 0 || (t->kind != INSTR_FWD && t->kind != INSTR_BWD))
                        continue;
                    const struct todo **before = &last[t->layer][t->kind];
                    bool same = *before != NULL && (*before)->span == t->span;
                    bool down =
                        snake && t->kind == INSTR_FWD && t->layer < fused && (fused - t->layer) % 2 == 1;
                    if (same)
                        assert_int_equal(t->micro, down ? (*before)->micro - 1 : (*before)->micro + 1);
                    *before = t;
                }
                finish(&s);
            }
}

/* ---- merging ---- */

static void test_order_that_contradicts_itself_is_refused(void **state)
{
    (void)state;
    struct setup s;
    struct err err = {0};
    even_setup(&s, 3, 4096, 2, 1);
    cut(&s, 0, 1);
    begin_order(&s);
    for (size_t i = 0; i < s.order.todos.n; i++) /* the sum before what is added */
        if (s.order.todos.at[i].kind == INSTR_RED && s.order.todos.at[i].loc == 0) {
            struct todo t = s.order.todos.at[i];
            memmove(&s.order.todos.at[1], &s.order.todos.at[0], i * sizeof t);
            s.order.todos.at[0] = t;
            break;
        }
    assert_int_equal(order_merge(&s.order, s.profile, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "no schedule"));
    finish(&s);
}

static void test_order_forward_only_saves_nothing(void **state)
{
    (void)state;
    struct setup s;
    struct order eval;
    even_setup(&s, 6, 4096, 3, 2);
    cut(&s, 3, 1);
    s.candidate.save = (struct save_rate){1, 1};
    begin_order(&s);
    order_forward_only(&s.order, s.graph, &eval);
    assert_int_equal(eval.todos.n, 6 * 6);
    assert_int_equal(eval.n_shares, 3);
    for (size_t i = 0; i < eval.todos.n; i++)
        assert_true(eval.todos.at[i].kind == INSTR_FWD && !eval.todos.at[i].save);
    assert_memory_equal(eval.owners, s.order.owners, 6 * 3 * sizeof *eval.owners);
    order_finish(&eval);
    finish(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_has_every_task_once),
        cmocka_unit_test(test_order_adds_replicas_in_order),
        cmocka_unit_test(test_order_settles_when_the_exchange_had_its_time),
        cmocka_unit_test(test_order_keeps_each_nth),
        cmocka_unit_test(test_order_waves_overlap),
        cmocka_unit_test(test_order_snakes),
        cmocka_unit_test(test_order_that_contradicts_itself_is_refused),
        cmocka_unit_test(test_order_forward_only_saves_nothing),
    };
    return cmocka_run_group_tests_name("order", tests, NULL, NULL);
}
