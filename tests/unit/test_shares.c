/* Tests exactly how many bytes move when devices share state, on chains of equal layers. W must come from the
 * host once per pass, not once per device, and go from its owner to the other devices. Gradients must go to
 * the owners, and from there to the host. For comparison the tests plan harmony-dp, where each device fetches
 * everything itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/rng.h"
#include "scheduler/build/build.h"
#include "scheduler/policy/candidate.h"
#include "scheduler/policy/outline.h"
#include "scheduler/policy/profile_search.h"
#include "scheduler/verify/verify.h"
#include "tests/unit/even_table.h"

#define LAYERS 9          /* the last is the loss, without weights */
#define W      (24 * KIB) /* divides into aligned shares for 2, 3 and 4 devices */
#define X      1024
#define S      5120

struct made {
    struct table *table;
    struct graph *graph;
    struct machine machine;
    struct plan *plan;
    struct plan_bytes bytes;
};

static void begin(struct made *m, uint32_t devices, uint32_t each, uint32_t replicas)
{
    uint32_t rows[LAYERS];
    *m = (struct made){.table = even_table(LAYERS, W, 2 * W, X, S)};
    for (uint32_t l = 0; l < LAYERS; l++)
        rows[l] = 1;
    const struct graph_sizes sizes = {devices * each, replicas, rows};
    assert_int_equal(graph_build_sizes(m->table, &sizes, true, &m->graph, NULL), 0);
    machine_init_cpu(&m->machine, devices, 1 << 28, 1ull << 40);
}

static void finish(struct made *m)
{
    plan_destroy(m->plan);
    graph_destroy(m->graph);
    table_destroy(m->table);
}

/* Everything is taken from the home tier and brought back by entry, flush and exit, and the plan holds. */
static void check(struct made *m)
{
    struct err err = {0};
    assert_non_null(m->plan);
    if (plan_verify(m->plan, m->graph, NULL, &m->machine, NULL, &err) < 0)
        fail_msg("%s", err.msg);
    plan_count_bytes(m->plan, PROGRAM_CYCLE, &m->bytes);
}

static void make_outline(struct made *m, const struct outline *o, enum update_place update)
{
    struct plan_request r = {.train = m->graph, .machine = &m->machine, .table = m->table, .update = update};
    struct profile *prof = plan_profile(&r);
    struct plan_need need;
    assert_int_equal(plan_outline(&r, o, prof, &m->plan, &need, NULL), 0);
    profile_destroy(prof);
    check(m);
}

static struct outline outline(uint32_t devices, uint32_t fused, uint32_t pins)
{
    return (struct outline){.n_devices = devices,
                            .rows = 1,
                            .fused_rows = 1,
                            .head_rows = 1,
                            .fused = fused,
                            .head = LAYERS,
                            .pack = 1,
                            .pins = pins,
                            .waves = 1};
}

static void check_even(const struct made *m, uint64_t in, uint64_t out)
{
    for (uint32_t d = 0; d < m->machine.n_devices; d++) {
        struct plan_bytes b;
        plan_count_device_bytes(m->plan, PROGRAM_CYCLE, d, &b);
        assert_int_equal(b.state_in, in / m->machine.n_devices);
        assert_int_equal(b.state_out, out / m->machine.n_devices);
    }
}

/* Every layer twice, the fused ones once; the pinned ones not at all. */
static void test_shares_fetch_once_for_all_devices(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 4; n++)
        for (uint32_t fused = 0; fused < LAYERS; fused++)
            for (uint32_t pins = 0; pins <= LAYERS; pins += 3) {
                struct made m;
                begin(&m, n, 3, n);
                struct outline o = outline(n, fused, pins);
                make_outline(&m, &o, pins > 0 ? UPDATE_AUTO : UPDATE_HOST);
                uint64_t in = 0, out = 0, peer = 0;
                for (uint32_t l = 0; l < LAYERS - 1; l++) {
                    uint64_t rounds = l < fused ? 2 : 1;
                    in += l >= pins ? rounds * W : 0;
                    out += l >= pins ? W : 0;
                    peer += (n - 1) * (rounds + 1) * W; /* what is gathered, and the gradient */
                }
                assert_int_equal(m.bytes.state_in, in);
                assert_int_equal(m.bytes.state_out, out);
                assert_int_equal(m.bytes.peer, peer);
                check_even(&m, in, out);
                finish(&m);
            }
}

/* Pinned shares are copied within their device for each pass, and nothing is fetched. Each device owns a
 * third of W. */
static void test_shares_that_stay_are_copied_inside(void **state)
{
    (void)state;
    enum { N = 3, FUSED = 5 };
    struct made m;
    begin(&m, N, 2, N);
    struct outline o = outline(N, FUSED, LAYERS);
    make_outline(&m, &o, UPDATE_AUTO);
    const struct plan_program *cycle = &m.plan->programs[PROGRAM_CYCLE];
    uint64_t copied = 0, boundary = 0;
    for (uint32_t i = 0; i < cycle->n_instrs; i++)
        copied += cycle->instrs[i].kind == INSTR_COPY
                      ? operand_bytes(&cycle->operands[cycle->instrs[i].operand])
                      : 0;
    for (uint32_t i = 0; i < m.plan->n_boundary; i++)
        boundary += m.plan->boundary[i].end - m.plan->boundary[i].begin;
    assert_int_equal(copied, (uint64_t)W * (2 * FUSED + LAYERS - 1 - FUSED));
    assert_int_equal(boundary, 3ull * W * (LAYERS - 1)); /* W and K, once over all devices */
    assert_int_equal(m.bytes.state_in + m.bytes.state_out, 0);
    finish(&m);
}

/* Two sums on each device: both are exchanged. */
static void test_shares_of_more_replicas_than_devices(void **state)
{
    (void)state;
    struct made m;
    begin(&m, 2, 4, 4);
    struct outline o = outline(2, 4, 0);
    make_outline(&m, &o, UPDATE_HOST);
    uint64_t all = (uint64_t)W * (LAYERS - 1), again = 4 * W;
    assert_int_equal(m.bytes.state_in, all + again);
    assert_int_equal(m.bytes.state_out, all);
    assert_int_equal(m.bytes.peer, all + again + 2 * all);
    finish(&m);
}

/* The batch runs in two waves. Everything is fetched twice, except W of the first layer, which stays from one
 * wave to the next. Unfinished gradient sums stay on their devices, because there is enough memory. */
static void test_shares_in_groups(void **state)
{
    (void)state;
    enum { N = 2, FUSED = 4 };
    struct made m;
    begin(&m, N, 4, N);
    struct outline o = outline(N, FUSED, 0);
    o.waves = 2;
    make_outline(&m, &o, UPDATE_HOST);
    uint64_t once = (uint64_t)W * (LAYERS - 1 + FUSED), sums = (uint64_t)W * (LAYERS - 1);
    assert_int_equal(m.bytes.state_in, 2 * once - W);
    assert_int_equal(m.bytes.state_out, sums);
    assert_int_equal(m.bytes.peer, (N - 1) * (2 * once - W + sums));
    finish(&m);
}

/* The weights are too small to be cut into shares, so the last device owns all of them. */
static void test_shares_of_small_weights(void **state)
{
    (void)state;
    enum { N = 4, SMALL = 100 };
    struct made m;
    begin(&m, N, 2, N);
    graph_destroy(m.graph);
    for (uint32_t l = 0; l < LAYERS - 1; l++) {
        m.table->layers[l].w = SMALL;
        m.table->layers[l].k = 2 * SMALL;
    }
    uint32_t rows[LAYERS] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    const struct graph_sizes sizes = {2 * N, N, rows};
    assert_int_equal(graph_build_sizes(m.table, &sizes, true, &m.graph, NULL), 0);
    struct outline o = outline(N, 4, 0);
    make_outline(&m, &o, UPDATE_HOST);
    uint64_t all = SMALL * (LAYERS - 1), again = SMALL * 4;
    assert_int_equal(m.bytes.state_in, all + again);
    assert_int_equal(m.bytes.state_out, all);
    assert_int_equal(m.bytes.peer, (N - 1) * (all + again + all));
    struct plan_bytes b;
    plan_count_device_bytes(m.plan, PROGRAM_CYCLE, N - 1, &b);
    assert_int_equal(b.state_in, all + again);
    finish(&m);
}

/* W has 6144 elements in F32. K has parts of three kinds: as W, as long as W in 16 bits, and shorter, with
 * unused bytes at its end. Whether the update runs on the host or on the devices that keep the shares, the
 * verifier finds the right elements of every part in every share, and as many bytes move as with two parts
 * as long as W. */
static void test_shares_of_unequal_parts(void **state)
{
    (void)state;
    static const struct state_part parts[] = {{"same", DTYPE_F32, 6144, 0, W},
                                              {"half", DTYPE_BF16, 6144, W, W + W / 2},
                                              {"few", DTYPE_F32, 3001, W + W / 2, 2 * W}};
    for (uint32_t n = 2; n <= 4; n++)
        for (uint32_t pins = 0; pins <= LAYERS; pins += 3) {
            struct made m, even;
            struct outline o = outline(n, 4, pins);
            enum update_place update = pins > 0 ? UPDATE_AUTO : UPDATE_HOST;
            begin(&even, n, 3, n);
            make_outline(&even, &o, update);
            begin(&m, n, 3, n);
            for (uint32_t l = 0; l < LAYERS - 1; l++) {
                m.graph->layers[l].size.w_dtype = DTYPE_F32;
                m.graph->layers[l].parts = parts;
                m.graph->layers[l].n_parts = 3;
            }
            for (tensor_id t = 0; t < m.graph->n_tensors; t++)
                if (m.graph->tensors[t].kind == TENSOR_W || m.graph->tensors[t].kind == TENSOR_DW)
                    m.graph->tensors[t].dtype = DTYPE_F32;
            make_outline(&m, &o, update);
            assert_int_equal(m.bytes.state_in, even.bytes.state_in);
            assert_int_equal(m.bytes.state_out, even.bytes.state_out);
            assert_int_equal(m.bytes.peer, even.bytes.peer);
            finish(&even);
            finish(&m);
        }
}

/* ---- harmony-dp ---- */

static void make_leanest(struct made *m, const struct policy *policy, uint32_t lead)
{
    struct plan_request r = {
        .train = m->graph, .machine = &m->machine, .table = m->table, .update = UPDATE_HOST};
    struct profile *prof = plan_profile(&r);
    struct plan_need need;
    struct candidate c;
    struct order o;
    policy->leanest(&r, &c);
    c.teams = r.machine->n_devices;
    c.knobs.lead_state = c.knobs.lead_items = lead;
    policy->order(&r, prof, &c, &o);
    assert_int_equal(plan_build(&r, policy->name, &o, &c.knobs, prof, &m->plan, &need, NULL), 0);
    order_finish(&o);
    profile_destroy(prof);
    check(m);
}

static void test_shares_of_harmony_fetch_by_themselves(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 4; n++)
        for (uint32_t lead = 0; lead <= 1; lead++) {
            struct made alone, ours;
            uint64_t all = (uint64_t)W * (LAYERS - 1);
            begin(&alone, n, 2, n);
            make_leanest(&alone, &policy_harmony_dp, lead);
            assert_int_equal(alone.bytes.state_in, n * 2 * all);
            assert_int_equal(alone.bytes.state_out, all);
            assert_int_equal(alone.bytes.peer, (n - 1) * all); /* gradients alone */
            begin(&ours, n, 2, n);
            make_leanest(&ours, &policy_auto, lead);
            assert_int_equal(ours.bytes.state_in, 2 * all);
            assert_int_equal(ours.bytes.state_out, all);
            assert_int_equal(ours.bytes.peer, (n - 1) * 3 * all);
            finish(&alone);
            finish(&ours);
        }
}

/* Two teams of two devices each: every layer is on one device of each team. */
static void test_shares_of_pipelines(void **state)
{
    (void)state;
    for (uint32_t lead = 0; lead <= 1; lead++) {
        struct made m;
        uint64_t all = (uint64_t)W * (LAYERS - 1);
        begin(&m, 4, 2, 2);
        struct plan_request r = {
            .train = m.graph, .machine = &m.machine, .table = m.table, .update = UPDATE_HOST};
        struct profile *prof = plan_profile(&r);
        struct plan_need need;
        struct candidate c;
        struct order o;
        policy_auto.leanest(&r, &c);
        c.teams = 2;
        c.knobs.lead_state = c.knobs.lead_items = lead;
        policy_auto.order(&r, prof, &c, &o);
        assert_int_equal(plan_build(&r, "auto", &o, &c.knobs, prof, &m.plan, &need, NULL), 0);
        order_finish(&o);
        profile_destroy(prof);
        check(&m);
        /* The device of the last layer does nothing between the forward and the backward pass of that layer.
         * With a lead, W is still there for the backward pass. */
        assert_int_equal(m.bytes.state_in, 2 * all - lead * W);
        assert_int_equal(m.bytes.state_out, all);
        finish(&m);
    }
}

/* ---- out of step ---- */

/* Repeats some forward passes of one device as recomputations, so that this device is whole passes behind the
 * others. It must still get every tensor in time, if necessary from the host. */
static void delay(struct order *o, struct rng *rng)
{
    struct order slow;
    uint32_t late = rng_below(rng, o->n_devices), often = 1 + rng_below(rng, 6);
    order_init(&slow, o->graph, o->n_devices);
    for (size_t i = 0; i < o->todos.n; i++) {
        struct todo t = o->todos.at[i];
        vec_push(&slow.todos, t);
        uint32_t times = t.kind == INSTR_FWD && t.loc == late ? rng_below(rng, 2) * often * 4 : 0;
        t.kind = INSTR_REC;
        t.save = !t.output;
        for (uint32_t k = 0; k < times && t.layer + 1 < o->graph->n_layers; k++)
            vec_push(&slow.todos, t);
    }
    vec_free(&o->todos);
    o->todos.at = slow.todos.at;
    o->todos.n = slow.todos.n;
    o->todos.cap = slow.todos.cap;
}

static void test_shares_of_devices_out_of_step(void **state)
{
    (void)state;
    uint32_t more = 0;
    for (uint32_t seed = 1; seed <= 400; seed++) {
        struct rng rng = {.seed = seed};
        struct made m;
        uint32_t n = 2 + rng_below(&rng, 3);
        begin(&m, n, 1 + rng_below(&rng, 2), n);
        struct plan_request r = {
            .train = m.graph, .machine = &m.machine, .table = m.table, .update = UPDATE_HOST};
        struct profile *prof = plan_profile(&r);
        struct plan_need need;
        struct candidate c;
        struct order o;
        policy_auto.leanest(&r, &c);
        c.packs = c.fused = rng_below(&rng, LAYERS);
        c.teams = n;
        c.waves = 1 + rng_below(&rng, m.graph->n_micro / n);
        c.knobs.lead_state = rng_below(&rng, 2);
        policy_auto.order(&r, prof, &c, &o);
        delay(&o, &rng);
        assert_int_equal(plan_build(&r, "auto", &o, &c.knobs, prof, &m.plan, &need, NULL), 0);
        order_finish(&o);
        profile_destroy(prof);
        check(&m);
        more += m.bytes.state_in > (uint64_t)W * (LAYERS - 1 + c.fused) * c.waves;
        finish(&m);
    }
    assert_true(more > 20);
}

/* ---- what the search finds ---- */

/* In every plan that the search makes, all devices together fetch a layer twice if it is recomputed or its S
 * is saved on the host, and once otherwise. */
static void test_shares_found_by_search(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 4; n++)
        for (uint64_t capacity = 24; capacity <= 72; capacity += 16) {
            struct table *t = even_table(17, 3 * MIB, 6 * MIB, 64 * KIB, 1 * MIB);
            struct machine m;
            struct profile_search_result found;
            bool again[17] = {0}, pinned[17] = {0};
            machine_init_cuda(&m);
            m.n_devices = n;
            for (uint32_t d = 0; d < n; d++)
                m.capacity_bytes[d] = capacity * MIB;
            m.host_bytes = 1ull << 40;
            const struct profile_search_request q = {
                .table = t, .machine = &m, .batch = 8 * n, .micro_batch = 1};
            assert_int_equal(profile_search_outlines(&q, &found, NULL), 0);
            assert_non_null(found.plan);
            const struct plan_program *cycle = &found.plan->programs[PROGRAM_CYCLE];
            for (uint32_t i = 0; i < cycle->n_instrs; i++) {
                const struct plan_instr *in = &cycle->instrs[i];
                const struct plan_tensor *first = &found.plan->tensors[cycle->operands[in->operand].tensor];
                if (in->kind == INSTR_REC || (in->kind == INSTR_SPILL && first->kind == TENSOR_S))
                    again[in->kind == INSTR_REC ? in->layer : first->layer] = true;
            }
            for (uint32_t i = 0; i < found.plan->n_boundary; i++)
                pinned[found.plan->tensors[found.plan->boundary[i].tensor].layer] = true;
            uint64_t in = 0, out = 0;
            for (uint32_t l = 0; l < 16; l++) {
                in += pinned[l] ? 0 : (again[l] ? 2 : 1) * 3 * MIB;
                out += pinned[l] ? 0 : 3 * MIB;
            }
            struct plan_bytes b;
            plan_count_bytes(found.plan, PROGRAM_CYCLE, &b);
            assert_int_equal(b.state_in, in);
            assert_int_equal(b.state_out, out);
            profile_search_result_finish(&found);
            table_destroy(t);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares_fetch_once_for_all_devices),
        cmocka_unit_test(test_shares_that_stay_are_copied_inside),
        cmocka_unit_test(test_shares_of_more_replicas_than_devices),
        cmocka_unit_test(test_shares_in_groups),
        cmocka_unit_test(test_shares_of_small_weights),
        cmocka_unit_test(test_shares_of_unequal_parts),
        cmocka_unit_test(test_shares_of_harmony_fetch_by_themselves),
        cmocka_unit_test(test_shares_of_pipelines),
        cmocka_unit_test(test_shares_of_devices_out_of_step),
        cmocka_unit_test(test_shares_found_by_search),
    };
    return cmocka_run_group_tests_name("shares", tests, NULL, NULL);
}
