/* Tests residency alone: a hand-made issue order goes in, and the draft must have exactly the expected
 * copies, moves and drops of one tensor.
 *
 * An order is a text of tasks in issue order. `F1.0` is FWD of layer 1 and micro-batch 0, `B` is BWD, `R` is
 * REC, `D1.1` is the RED of replica 1, `U1` is UPD, `N1` is NORM, and `C` is DECIDE. A task runs on device 0,
 * unless it has the suffix `@1` for device 1 or `@h` for the host. Other suffixes are `/1` for share 1, `s`
 * for a task that saves S, `n` for a task that does not write its output, and `k` for an update that keeps K.
 * `|` begins a new item, and `||` begins a new span and a new item.
 *
 * A draft is told as a text too, from the point of view of one tensor. A task that uses the tensor has a
 * capital letter, and all others have a small letter. Between the tasks stand only the moves and drops of
 * this tensor:
 *
 *     +0     device 0 fetches it             ^0     device 0 spills it
 *     0>1    device 0 sends it to device 1   -0     device 0 drops it, on the compute stream
 *     -0o    drop on the out stream          -0p    drop on the peer stream
 *
 * Moves of one share have its number in front: `1:+0` means that device 0 fetches share 1. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/strbuf.h"
#include "scheduler/build/build.h"
#include "tests/unit/even_table.h"

static struct layer layers[] = {
    {.type = &layer_dense, .id = 0, .in = {1, {8}}, .out = {1, {32}}, .dense = {true, ACT_RELU, 0, 0}},
    {.type = &layer_dense, .id = 1, .in = {1, {32}}, .out = {1, {32}}, .dense = {true, ACT_RELU, 0.1f, 0}},
    {.type = &layer_dense, .id = 2, .in = {1, {32}}, .out = {1, {4}}, .dense = {.bias = true}},
    {.type = &layer_softmax_xent, .id = 3, .in = {1, {4}}},
};
static const struct model model = {layers, 4};

#define N_LAYERS 4

/* One draft and everything it was made from. */
struct scene {
    struct graph *graph;
    struct order order;
    struct knobs knobs;
    bool cyclic;
    bool pinned[N_LAYERS];
    gap_list gaps;     /* of the draft */
    gap_list retained; /* given to residency */
    struct draft draft;
    struct strbuf text;
};

/* ---- orders ---- */

static enum instr_kind kind_of(char c)
{
    switch (c) {
    case 'F':
        return INSTR_FWD;
    case 'B':
        return INSTR_BWD;
    case 'R':
        return INSTR_REC;
    case 'D':
        return INSTR_RED;
    case 'U':
        return INSTR_UPD;
    case 'N':
        return INSTR_NORM;
    case 'C':
        return INSTR_DECIDE;
    }
    fail_msg("no task '%c'", c);
    return INSTR_FWD;
}

static uint32_t number(const char **at)
{
    char *end;
    uint32_t n = (uint32_t)strtoul(*at, &end, 10);
    assert_true(end > *at);
    *at = end;
    return n;
}

static void add_suffixes(struct todo *t, uint32_t *share, const char **at)
{
    for (; **at != '\0' && **at != ' ';) {
        char c = *(*at)++;
        if (c == '@' && **at == 'h') {
            t->loc = PLAN_HOST;
            (*at)++;
        } else if (c == '@') {
            t->loc = number(at);
        } else if (c == '/') {
            *share = number(at);
        } else {
            t->save |= c == 's';
            t->keep_k |= c == 'k';
            t->output &= c != 'n';
        }
    }
}

static void add_task(struct order *o, const char **at, uint32_t span, uint32_t item)
{
    struct todo t = {
        .kind = kind_of(*(*at)++), .span = span, .item = item, .micro = PLAN_NONE, .output = true};
    uint32_t share = SHARE_ALL, second = PLAN_NONE;
    t.layer = t.kind == INSTR_DECIDE ? PLAN_NONE : number(at);
    if (**at == '.') {
        (*at)++;
        second = number(at);
    }
    if (t.kind == INSTR_RED)
        t.replica = second;
    else
        t.micro = second;
    add_suffixes(&t, &share, at);
    order_add(o, t);
    o->todos.at[o->todos.n - 1].share = share;
}

static void parse_order(struct order *o, const char *text)
{
    uint32_t span = 0, item = 0;
    for (const char *at = text; *at != '\0';) {
        if (*at == ' ') {
            at++;
        } else if (*at == '|') {
            item++;
            span += at[1] == '|';
            at += at[1] == '|' ? 2 : 1;
        } else {
            add_task(o, &at, span, item);
        }
    }
}

/* ---- scenes ---- */

static struct graph *make_graph(uint32_t n_micro, uint32_t n_replicas, bool training)
{
    struct optimizer o = {.kind = OPTIMIZER_ADAMW, .clip = 1};
    struct graph_config c = {.model = &model,
                             .optimizer = &o,
                             .rows = 4,
                             .n_micro = n_micro,
                             .n_replicas = n_replicas,
                             .training = training};
    struct graph *g;
    assert_int_equal(graph_build(&c, &g, NULL), 0);
    return g;
}

/* Starts a cyclic program on two devices, with the rule KEEP_UNIT and without leads. */
static void begin(struct scene *s, uint32_t n_micro, uint32_t n_replicas)
{
    *s = (struct scene){.cyclic = true};
    s->graph = make_graph(n_micro, n_replicas, true);
    order_init(&s->order, s->graph, 2);
}

static void finish(struct scene *s)
{
    order_finish(&s->order);
    draft_finish(&s->draft);
    vec_free(&s->gaps);
    vec_free(&s->retained);
    strbuf_finish(&s->text);
    graph_destroy(s->graph);
}

/* Divides the state of every layer into two shares: device i owns share i. */
static void share_state(struct scene *s)
{
    order_own(&s->order, 2);
    for (uint32_t l = 0; l < N_LAYERS; l++)
        s->order.owners[2 * l + 1] = 1;
}

/* Checks everything that holds for every draft: segments begin and end with the instructions that say so, and
 * operands lie inside their segments. */
static void check_segments(const struct draft *d)
{
    uint32_t *first_write = malloc((d->segments.n + 1) * sizeof *first_write);
    uint32_t *dropped = malloc((d->segments.n + 1) * sizeof *dropped);
    memset(first_write, 0xff, (d->segments.n + 1) * sizeof *first_write);
    memset(dropped, 0xff, (d->segments.n + 1) * sizeof *dropped);
    for (uint32_t i = 0; i < d->instrs.n; i++) {
        const struct plan_instr *in = &d->instrs.at[i];
        for (uint32_t k = in->operand; k < in->operand + in->n_operands; k++) {
            const struct draft_operand *o = &d->operands.at[k];
            if (o->segment == SEGMENT_NONE)
                continue;
            const struct segment *s = &d->segments.at[o->segment];
            assert_int_equal(s->tensor, o->tensor);
            assert_true(s->of.begin <= o->of.begin && o->of.end <= s->of.end);
            if (o->access == ACCESS_DROP)
                dropped[o->segment] = i;
            else if ((o->access & ACCESS_WRITE) && first_write[o->segment] == UINT32_MAX)
                first_write[o->segment] = i;
        }
    }
    for (uint32_t i = 0; i < d->segments.n; i++) {
        const struct segment *s = &d->segments.at[i];
        if (dropped[i] != UINT32_MAX)
            assert_int_equal(s->end, dropped[i]);
        else
            assert_true(s->boundary && s->start == 0 && s->end == d->instrs.n - 1);
        if (!s->boundary || s->start > s->end)
            assert_int_equal(s->start, first_write[i]);
    }
    free(first_write);
    free(dropped);
}

static void run(struct scene *s)
{
    draft_finish(&s->draft);
    draft_residency(&s->draft, &s->order, &s->knobs, s->cyclic, s->retained.n > 0 ? &s->retained : NULL,
                    &s->gaps);
    check_segments(&s->draft);
}

static void run_order(struct scene *s, const char *order)
{
    s->order.todos.n = 0;
    parse_order(&s->order, order);
    run(s);
}

/* Runs the scene again with these gaps of the last draft closed. */
static void retain(struct scene *s, bool (*which)(const struct scene *s, const struct gap *g))
{
    s->retained.n = 0;
    for (size_t i = 0; i < s->gaps.n; i++) {
        struct gap g = s->gaps.at[i];
        g.retain = which(s, &g);
        vec_push(&s->retained, g);
    }
    run(s);
}

/* ---- drafts as text ---- */

static void tell_task(struct scene *s, const struct plan_instr *in, bool uses)
{
    static const char letters[INSTR_KIND_COUNT] = {
        [INSTR_FWD] = 'f', [INSTR_BWD] = 'b',  [INSTR_REC] = 'r',    [INSTR_RED] = 'd',
        [INSTR_UPD] = 'u', [INSTR_NORM] = 'n', [INSTR_DECIDE] = 'c',
    };
    strbuf_addf(&s->text, "%c", letters[in->kind] - (uses ? 'a' - 'A' : 0));
    if (in->kind != INSTR_DECIDE)
        strbuf_addf(&s->text, "%u", in->layer);
    if (in->micro != PLAN_NONE)
        strbuf_addf(&s->text, ".%u", in->micro);
}

static void tell_move(struct scene *s, const struct plan_instr *in)
{
    const struct draft *d = &s->draft;
    const struct draft_operand *from = &d->operands.at[in->operand], *to = from + in->n_operands - 1;
    uint32_t a = from->segment == SEGMENT_NONE ? 0 : d->segments.at[from->segment].device;
    uint32_t b = to->segment == SEGMENT_NONE ? 0 : d->segments.at[to->segment].device;
    if (in->kind != INSTR_DROP && from->of.n_pieces < tensor_pieces(d->graph, d->n_shares, from->tensor))
        strbuf_addf(&s->text, "%u:", from->of.piece);
    if (in->kind == INSTR_FETCH)
        strbuf_addf(&s->text, "+%u", b);
    else if (in->kind == INSTR_SPILL)
        strbuf_addf(&s->text, "^%u", a);
    else if (in->kind == INSTR_DROP)
        strbuf_addf(&s->text, "-%u%s", a,
                    in->stream == plan_stream(a, LANE_OUT)    ? "o"
                    : in->stream == plan_stream(a, LANE_PEER) ? "p"
                                                              : "");
    else
        strbuf_addf(&s->text, "%u>%u", a, b);
}

static const char *tell(struct scene *s, tensor_id tensor)
{
    const struct draft *d = &s->draft;
    assert_int_not_equal(tensor, PLAN_NONE);
    strbuf_finish(&s->text);
    s->text = (struct strbuf){0};
    for (uint32_t i = 0; i < d->instrs.n; i++) {
        const struct plan_instr *in = &d->instrs.at[i];
        bool uses = false, task = in->kind != INSTR_FETCH && in->kind != INSTR_SPILL &&
                                  in->kind != INSTR_SEND && in->kind != INSTR_COPY && in->kind != INSTR_DROP;
        for (uint32_t k = 0; k < in->n_operands; k++)
            uses |= d->operands.at[in->operand + k].tensor == tensor;
        if (!task && !uses)
            continue;
        strbuf_add(&s->text, s->text.n > 0 ? " " : "");
        if (task)
            tell_task(s, in, uses);
        else
            tell_move(s, in);
    }
    return s->text.at;
}

static void expect(struct scene *s, enum tensor_kind kind, uint32_t layer, uint32_t which, const char *want)
{
    assert_string_equal(tell(s, graph_tensor_find(s->graph, kind, layer, which, 0)), want);
}

static const struct segment *only_segment(const struct scene *s, enum tensor_kind kind, uint32_t layer)
{
    tensor_id t = graph_tensor_find(s->graph, kind, layer, PLAN_NONE, 0);
    const struct segment *found = NULL;
    for (size_t i = 0; i < s->draft.segments.n; i++) {
        if (s->draft.segments.at[i].tensor != t)
            continue;
        assert_null(found);
        found = &s->draft.segments.at[i];
    }
    assert_non_null(found);
    return found;
}

static uint32_t tensor_of(const struct scene *s, const struct gap *g)
{
    /* The gap's drop and fetch name the tensor. */
    const struct plan_instr *in = &s->draft.instrs.at[g->to];
    return s->draft.operands.at[in->operand].tensor;
}

static bool is_w1(const struct scene *s, const struct gap *g)
{
    return tensor_of(s, g) == graph_tensor_find(s->graph, TENSOR_W, 1, PLAN_NONE, 0);
}

static bool is_w1_inside(const struct scene *s, const struct gap *g)
{
    return is_w1(s, g) && g->from < g->to;
}

static bool is_w1_across(const struct scene *s, const struct gap *g)
{
    return is_w1(s, g) && g->from > g->to;
}

static const struct gap *only_gap(const struct scene *s,
                                  bool (*which)(const struct scene *, const struct gap *))
{
    const struct gap *found = NULL;
    for (size_t i = 0; i < s->gaps.n; i++) {
        if (!which(s, &s->gaps.at[i]))
            continue;
        assert_null(found);
        found = &s->gaps.at[i];
    }
    assert_non_null(found);
    return found;
}

/* ---- plain ---- */

#define TWO_SPANS "F1.0s | F1.1s || F2.0s | F2.1s || B1.0 | B1.1 || U1@h"

static void test_residency_keeps_weights_for_a_span(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 1);
    run_order(&s, TWO_SPANS);
    expect(&s, TENSOR_W, 1, PLAN_NONE, "+0 F1.0 F1.1 -0 f2.0 f2.1 +0 B1.0 B1.1 -0 U1");
    finish(&s);
}

static void test_residency_leads_overlap_moves_with_units(void **state)
{
    (void)state;
    static const char *const w[] = {
        "+0 F1.0 F1.1 -0 f2.0 f2.1 +0 B1.0 B1.1 -0 U1", "+0 F1.0 F1.1 -0 +0 f2.0 f2.1 B1.0 B1.1 -0 U1",
        "+0 F1.0 F1.1 f2.0 f2.1 B1.0 B1.1 -0 U1", /* it would be fetched again before its drop */
    };
    static const char *const k[] = {
        "f1.0 f1.1 f2.0 f2.1 b1.0 b1.1 +0 U1 ^0 -0o b2.0 b2.1",
        "f1.0 f1.1 f2.0 f2.1 b1.0 +0 b1.1 U1 ^0 b2.0 -0o b2.1",
        "f1.0 f1.1 f2.0 f2.1 +0 b1.0 b1.1 U1 ^0 b2.0 b2.1 -0", /* the spill ended long before */
    };
    static const char *const dw[] = {
        "f1.0 f1.1 f2.0 f2.1 B1.0 B1.1 ^0 -0o b2.0 b2.1 f0.0 U1",
        "f1.0 f1.1 f2.0 f2.1 B1.0 B1.1 ^0 b2.0 b2.1 -0o f0.0 U1",
        "f1.0 f1.1 f2.0 f2.1 B1.0 B1.1 ^0 b2.0 b2.1 f0.0 -0o U1",
    };
    for (uint32_t lead = 0; lead <= 2; lead++) {
        struct scene s;
        begin(&s, 2, 1);
        s.knobs.lead_state = s.knobs.lead_items = lead;
        run_order(&s, TWO_SPANS);
        expect(&s, TENSOR_W, 1, PLAN_NONE, w[lead]);
        run_order(&s, "F1.0s | F1.1s || F2.0s | F2.1s || B1.0 | B1.1 | U1 || B2.0 | B2.1");
        expect(&s, TENSOR_K, 1, PLAN_NONE, k[lead]);
        run_order(&s, "F1.0s | F1.1s || F2.0s | F2.1s || B1.0 | B1.1 || B2.0 | B2.1 || F0.0 | U1@h");
        expect(&s, TENSOR_DW, 1, 0, dw[lead]);
        finish(&s);
    }
}

/* An activation stays until the next item ends, and no longer. */
static void test_residency_fetches_an_activation_again(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 1);
    run_order(&s, "F0.0s | F1.0s | F2.0s | F3.0s | B3.0 | B2.0 | B1.0");
    expect(&s, TENSOR_Y, 0, 0, "F0.0 ^0 F1.0 -0o f2.0 f3.0 b3.0 b2.0 +0 B1.0 -0");
    expect(&s, TENSOR_Y, 2, 0, "f0.0 f1.0 F2.0 F3.0 B3.0 -0 b2.0 b1.0");
    expect(&s, TENSOR_S, 1, 0, "f0.0 F1.0 ^0 -0o f2.0 f3.0 b3.0 b2.0 +0 B1.0 -0");
    finish(&s);
}

/* A copy that would be fetched again before it is dropped stays instead. */
static void test_residency_lead_joins_copies(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 1);
    s.knobs.lead_items = 2;
    run_order(&s, "F0.0s | F1.0s | F2.0s | F3.0s | B1.0");
    expect(&s, TENSOR_Y, 0, 0, "F0.0 ^0 F1.0 -0o +0 f2.0 f3.0 B1.0 -0");
    s.knobs.lead_items = 3;
    run(&s);
    expect(&s, TENSOR_Y, 0, 0, "F0.0 F1.0 f2.0 f3.0 B1.0 -0");
    finish(&s);
}

static void test_residency_recomputed_value_is_a_copy(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 1);
    run_order(&s, "F0.0 F1.0 | F2.0 | F3.0 | B3.0 | B2.0 | R0.0 R1.0sn | B1.0 | B0.0");
    /* The host has nothing to do with Y0: REC writes the same value again. */
    expect(&s, TENSOR_Y, 0, 0, "F0.0 F1.0 -0 f2.0 f3.0 b3.0 b2.0 R0.0 R1.0 B1.0 -0 b0.0");
    expect(&s, TENSOR_Y, 1, 0, "f0.0 F1.0 ^0 F2.0 -0o f3.0 b3.0 +0 B2.0 -0 r0.0 r1.0 b1.0 b0.0");
    finish(&s);
}

/* The trainer reads the result, and the host reads the norm. Both are spilled once, after their write. */
static void test_residency_spills_what_the_host_reads(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 1);
    run_order(&s, "F3.0s | B3.0 || N1 || C@h || U1 | U2");
    expect(&s, TENSOR_RESULT, 3, 0, "F3.0 ^0 -0o b3.0 n1 c u1 u2");
    expect(&s, TENSOR_SUMSQ, 1, PLAN_NONE, "f3.0 b3.0 N1 ^0 -0o C u1 u2");
    /* The group state comes from the host once, and stays for all updates. */
    expect(&s, TENSOR_GROUP, 0, PLAN_NONE, "f3.0 b3.0 n1 C +0 U1 U2 -0");
    finish(&s);
}

/* A drop that waits for no move stands before the moves, so that memory is free early. */
static void test_residency_frees_memory_before_moves(void **state)
{
    (void)state;
    struct scene s;
    uint32_t drop_w = 0, spill_y = 0;
    begin(&s, 2, 1);
    run_order(&s, "F1.0s || F0.1s || F0.0s || F2.0s");
    for (uint32_t i = 0; i < s.draft.instrs.n; i++) {
        const struct plan_instr *in = &s.draft.instrs.at[i];
        tensor_id t = s.draft.operands.at[in->operand].tensor;
        if (in->kind == INSTR_DROP && t == graph_tensor_find(s.graph, TENSOR_W, 1, PLAN_NONE, 0))
            drop_w = i;
        if (in->kind == INSTR_SPILL && t == graph_tensor_find(s.graph, TENSOR_Y, 1, 0, 0))
            spill_y = i;
    }
    assert_true(drop_w > 0 && drop_w < spill_y);
    finish(&s);
}

/* The group state is small. It stays even if the updates are far apart. */
static void test_residency_group_state_stays(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 1);
    run_order(&s, "C@h || U1 || F0.0s | F1.0s | F2.0s || U2");
    expect(&s, TENSOR_GROUP, 0, PLAN_NONE, "C +0 U1 f0.0 f1.0 f2.0 U2 -0");
    finish(&s);
}

/* A task of layer 2 writes half of a dX: both halves go into one copy. */
static void test_residency_pieces_share_a_copy(void **state)
{
    (void)state;
    static const uint32_t rows[] = {2, 2, 1, 1};
    const struct graph_sizes sizes = {2, 1, rows};
    struct table *t = even_table(4, 4096, 8192, 1024, 4096);
    struct scene s = {.cyclic = true};
    assert_int_equal(graph_build_sizes(t, &sizes, true, &s.graph, NULL), 0);
    order_init(&s.order, s.graph, 1);
    run_order(&s, "B2.0 | B2.1 | B1.0");
    expect(&s, TENSOR_DX, 2, 0, "B2.0 B2.1 B1.0 -0");
    table_destroy(t);
    finish(&s);
}

/* A device wrote the value and does not read it soon: the value goes through the host, not to itself. */
static void test_residency_does_not_send_to_the_writer(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 1);
    run_order(&s, "F0.0s | F2.0s | F3.0s | F1.0s");
    expect(&s, TENSOR_Y, 0, 0, "F0.0 ^0 -0o f2.0 f3.0 +0 F1.0 -0");
    finish(&s);
}

/* ---- two devices ---- */

/* Only activations are sent. Updated weights go through the host. */
static void test_residency_does_not_send_weights(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 1);
    run_order(&s, "U1 || F1.0s@1");
    expect(&s, TENSOR_W, 1, PLAN_NONE, "+0 U1 ^0 -0o +1 F1.0 -1");
    finish(&s);
}

/* A fetch with a lead still comes after the write of its value. */
static void test_residency_fetch_comes_after_the_write(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 1);
    s.knobs.lead_items = s.knobs.lead_state = 2;
    run_order(&s, "F2.0s@1 | F0.0s | F1.0s || B1.0@1");
    expect(&s, TENSOR_Y, 0, 0, "f2.0 F0.0 ^0 +1 F1.0 B1.0 -1 -0o");
    run_order(&s, "F2.0s@1 | U1@h | F1.0s@1");
    expect(&s, TENSOR_W, 1, PLAN_NONE, "f2.0 U1 +1 F1.0 -1");
    finish(&s);
}

/* A REC makes no other copy stale, and ends the earlier copy on its own device. */
static void test_residency_recomputation_leaves_other_copies_alone(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 1);
    run_order(&s, "F0.0s F1.0s@1 | R0.0 | B1.0@1");
    expect(&s, TENSOR_Y, 0, 0, "F0.0 0>1 -0p F1.0 R0.0 -0 B1.0 -1");
    s.knobs.lead_items = 2;
    run(&s);
    expect(&s, TENSOR_Y, 0, 0, "F0.0 0>1 F1.0 -0p R0.0 -0 B1.0 -1");
    finish(&s);
}

/* A copy that was sent and is used long after is dropped by the compute stream, which uses it last. */
static void test_residency_drops_where_the_copy_is_used_last(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 1);
    s.knobs.keep = KEEP_ALL;
    run_order(&s, "F0.0s F1.0s@1 | F2.0s | F3.0s | R1.0sn");
    expect(&s, TENSOR_Y, 0, 0, "F0.0 0>1 F1.0 -1 f2.0 f3.0 R1.0 -0");
    finish(&s);
}

static void test_residency_sends_activations_to_the_next_device(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 1);
    run_order(&s, "F0.0s F1.0s@1 | B1.0@1 B0.0");
    expect(&s, TENSOR_Y, 0, 0, "F0.0 0>1 -0p F1.0 B1.0 -1 b0.0");
    expect(&s, TENSOR_DX, 1, 0, "f0.0 f1.0 B1.0 1>0 -1p B0.0 -0");
    finish(&s);
}

/* Only two sent activations may wait at the receiver. The others go through the host. */
static void test_residency_limits_direct_sends(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 4, 1);
    run_order(&s, "F0.0s | F0.1s | F0.2s | F0.3s | F1.0s@1 | F1.1s@1 | F1.2s@1 | F1.3s@1");
    expect(&s, TENSOR_Y, 0, 0, "F0.0 0>1 -0p f0.1 f0.2 f0.3 F1.0 -1 f1.1 f1.2 f1.3");
    expect(&s, TENSOR_Y, 0, 1, "f0.0 F0.1 0>1 -0p f0.2 f0.3 f1.0 F1.1 -1 f1.2 f1.3");
    expect(&s, TENSOR_Y, 0, 2, "f0.0 f0.1 F0.2 ^0 -0o f0.3 f1.0 f1.1 +1 F1.2 -1 f1.3");
    expect(&s, TENSOR_Y, 0, 3, "f0.0 f0.1 f0.2 F0.3 ^0 -0o f1.0 f1.1 f1.2 +1 F1.3 -1");
    finish(&s);
}

/* An activation that its own device has read is spilled for the other device, not sent. */
static void test_residency_spills_what_another_device_reads_later(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 1);
    run_order(&s, "F0.0s | F1.0s | F2.0s || B1.0@1");
    expect(&s, TENSOR_Y, 0, 0, "F0.0 ^0 F1.0 -0o f2.0 +1 B1.0 -1");
    expect(&s, TENSOR_W, 1, PLAN_NONE, "f0.0 +0 F1.0 -0 f2.0 +1 B1.0 -1");
    finish(&s);
}

/* ---- pinned ---- */

static void test_residency_pinned_state_never_moves(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 1);
    s.pinned[1] = true;
    s.knobs.pinned = s.pinned;
    run_order(&s, "F1.0s | F1.1s || F2.0s || B1.0 | B1.1 | U1");
    expect(&s, TENSOR_W, 1, PLAN_NONE, "F1.0 F1.1 f2.0 B1.0 B1.1 U1");
    expect(&s, TENSOR_K, 1, PLAN_NONE, "f1.0 f1.1 f2.0 b1.0 b1.1 U1");
    assert_true(only_segment(&s, TENSOR_W, 1)->boundary && only_segment(&s, TENSOR_W, 1)->dirty);
    assert_true(only_segment(&s, TENSOR_K, 1)->boundary && only_segment(&s, TENSOR_K, 1)->dirty);
    /* Layer 2 is not pinned. */
    expect(&s, TENSOR_W, 2, PLAN_NONE, "f1.0 f1.1 +0 F2.0 -0 b1.0 b1.1 u1");
    /* Without an update, nothing is dirty. */
    run_order(&s, "F1.0s | F1.1s");
    assert_true(only_segment(&s, TENSOR_W, 1)->boundary && !only_segment(&s, TENSOR_W, 1)->dirty);
    /* A program that does not repeat keeps nothing. */
    s.cyclic = false;
    run_order(&s, "F1.0s | F1.1s");
    expect(&s, TENSOR_W, 1, PLAN_NONE, "+0 F1.0 F1.1 -0");
    finish(&s);
}

/* A pinned layer that two locations use moves like any other. */
static void test_residency_pins_only_what_one_device_uses(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 1);
    s.pinned[1] = true;
    s.knobs.pinned = s.pinned;
    run_order(&s, "F1.0s || B1.0 || U1@h");
    expect(&s, TENSOR_W, 1, PLAN_NONE, "+0 F1.0 -0 +0 B1.0 -0 U1");
    run_order(&s, "F1.0s || B1.0@1 || U1@1");
    expect(&s, TENSOR_W, 1, PLAN_NONE, "+0 F1.0 -0 +1 B1.0 -1 +1 U1 ^1 -1o");
    finish(&s);
}

static void test_residency_keep_all_keeps_until_the_last_use(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 1);
    s.knobs.keep = KEEP_ALL;
    run_order(&s, "F0.0s | F1.0s | F2.0s | F3.0s || B3.0 | B2.0 || B1.0 || U1");
    expect(&s, TENSOR_Y, 0, 0, "F0.0 F1.0 f2.0 f3.0 b3.0 b2.0 B1.0 -0 u1");
    expect(&s, TENSOR_W, 1, PLAN_NONE, "f0.0 F1.0 f2.0 f3.0 b3.0 b2.0 B1.0 U1");
    expect(&s, TENSOR_DW, 1, 0, "f0.0 f1.0 f2.0 f3.0 b3.0 b2.0 B1.0 U1 -0");
    /* State that only the host uses has no copy on a device. */
    run_order(&s, "F1.0s | B1.0 | U1@h");
    expect(&s, TENSOR_K, 1, PLAN_NONE, "f1.0 b1.0 U1");
    for (size_t i = 0; i < s.draft.segments.n; i++)
        assert_true(s.draft.segments.at[i].device < s.order.n_devices);
    finish(&s);
}

/* ---- gaps, and copies across the boundary ---- */

static void test_residency_lists_gaps_and_closes_them(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 1);
    run_order(&s, "F1.0s || F2.0s || B1.0 || B2.0 || U1@h");
    expect(&s, TENSOR_W, 1, PLAN_NONE, "+0 F1.0 -0 f2.0 +0 B1.0 -0 b2.0 U1");
    /* The host writes W, so the only gap is between FWD and BWD: one fetch less. */
    const struct gap *g = only_gap(&s, is_w1);
    tensor_id w = graph_tensor_find(s.graph, TENSOR_W, 1, PLAN_NONE, 0);
    assert_int_equal(s.draft.instrs.at[g->from].kind, INSTR_DROP);
    assert_int_equal(s.draft.instrs.at[g->to].kind, INSTR_FETCH);
    assert_int_equal(g->gain, g->bytes);
    assert_true(g->bytes >= s.graph->tensors[w].bytes && g->bytes < s.graph->tensors[w].bytes + PLAN_ALIGN);
    retain(&s, is_w1);
    expect(&s, TENSOR_W, 1, PLAN_NONE, "+0 F1.0 f2.0 B1.0 -0 b2.0 U1");
    finish(&s);
}

static bool is_y0(const struct scene *s, const struct gap *g)
{
    return tensor_of(s, g) == graph_tensor_find(s->graph, TENSOR_Y, 0, 0, 0);
}

/* The spill serves only the fetch that retention avoids, so closing the gap saves both. */
static void test_residency_gap_of_a_stash_saves_the_spill_too(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 1);
    run_order(&s, "F0.0s | F1.0s | F2.0s | F3.0s | B1.0");
    expect(&s, TENSOR_Y, 0, 0, "F0.0 ^0 F1.0 -0o f2.0 f3.0 +0 B1.0 -0");
    assert_int_equal(only_gap(&s, is_y0)->gain, 2 * only_gap(&s, is_y0)->bytes);
    retain(&s, is_y0);
    expect(&s, TENSOR_Y, 0, 0, "F0.0 F1.0 f2.0 f3.0 B1.0 -0");
    finish(&s);
}

static bool is_dw1(const struct scene *s, const struct gap *g)
{
    return tensor_of(s, g) == graph_tensor_find(s->graph, TENSOR_DW, 1, 0, 0);
}

/* Closing a gap does not save a spill that the host, another device or the next cycle needs as well. */
static void test_residency_gap_keeps_spills_that_others_need(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 1);
    run_order(&s, "B1.0 || N1@h F2.0s || U1");
    expect(&s, TENSOR_DW, 1, 0, "B1.0 ^0 -0o N1 f2.0 +0 U1 -0");
    assert_int_equal(only_gap(&s, is_dw1)->gain, only_gap(&s, is_dw1)->bytes);
    run_order(&s, "F0.0s | F1.0s | F2.0s | F3.0s | R1.0sn@1 | B1.0");
    expect(&s, TENSOR_Y, 0, 0, "F0.0 ^0 F1.0 -0o f2.0 f3.0 +1 R1.0 -1 +0 B1.0 -0");
    assert_int_equal(only_gap(&s, is_y0)->gain, only_gap(&s, is_y0)->bytes);
    run_order(&s, "U1 || F2.0s || F1.0s || F2.1s");
    expect(&s, TENSOR_W, 1, PLAN_NONE, "+0 U1 ^0 -0o f2.0 +0 F1.0 -0 f2.1");
    assert_int_equal(only_gap(&s, is_w1_inside)->gain, only_gap(&s, is_w1_inside)->bytes);
    finish(&s);
}

/* The device updates W, so W may stay from the update to the next cycle. If this gap is closed, the copy
 * never leaves, and neither fetch nor spill is needed. */
static void test_residency_keeps_a_copy_for_good(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 1);
    run_order(&s, "F1.0s | B1.0 | U1 || F2.0s");
    expect(&s, TENSOR_W, 1, PLAN_NONE, "+0 F1.0 B1.0 U1 ^0 -0o f2.0");
    assert_int_equal(only_gap(&s, is_w1)->gain, 2 * only_gap(&s, is_w1)->bytes);
    retain(&s, is_w1);
    expect(&s, TENSOR_W, 1, PLAN_NONE, "F1.0 B1.0 U1 f2.0");
    const struct segment *w = only_segment(&s, TENSOR_W, 1);
    assert_true(w->boundary && w->dirty);
    /* Without an update, the host has the newest value anyway. */
    s.retained.n = 0;
    run_order(&s, "F1.0s | F1.1s || F2.0s");
    retain(&s, is_w1);
    expect(&s, TENSOR_W, 1, PLAN_NONE, "F1.0 F1.1 f2.0");
    w = only_segment(&s, TENSOR_W, 1);
    assert_true(w->boundary && !w->dirty);
    finish(&s);
}

/* The gap inside the cycle stays open, and the gap across the boundary is closed. The copy is created late in
 * one cycle and dropped early in the next. The host gets every update, so the copy is not dirty. */
static void test_residency_joins_copies_over_the_boundary(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 1);
    run_order(&s, "F1.0s || F2.0s || B1.0 | U1 || F2.1s");
    expect(&s, TENSOR_W, 1, PLAN_NONE, "+0 F1.0 -0 f2.0 +0 B1.0 U1 ^0 -0o f2.1");
    assert_int_equal(only_gap(&s, is_w1_across)->gain, only_gap(&s, is_w1_across)->bytes);
    retain(&s, is_w1_across);
    expect(&s, TENSOR_W, 1, PLAN_NONE, "F1.0 -0 f2.0 +0 B1.0 U1 ^0 f2.1");
    const struct segment *w = only_segment(&s, TENSOR_W, 1);
    assert_true(w->boundary && !w->dirty && w->start > w->end);
    /* The gap inside the cycle is still listed. */
    assert_true(only_gap(&s, is_w1_inside)->from == w->end && only_gap(&s, is_w1_inside)->to == w->start);
    finish(&s);
}

/* Another device fetches W from the host in every cycle, so the host must have the newest value, although the
 * copy on device 0 never leaves. */
static void test_residency_brings_home_what_another_device_reads(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 1);
    run_order(&s, "F1.0s | B1.0 | F1.1s@1 | U1");
    expect(&s, TENSOR_W, 1, PLAN_NONE, "+0 F1.0 B1.0 +1 F1.1 -1 U1 ^0 -0o");
    retain(&s, is_w1_across);
    expect(&s, TENSOR_W, 1, PLAN_NONE, "F1.0 B1.0 +1 F1.1 -1 U1 ^0");
    for (size_t i = 0; i < s.draft.segments.n; i++)
        assert_false(s.draft.segments.at[i].dirty);
    finish(&s);
}

/* Persistent state that a program without repetition wrote goes home, and nothing crosses its end. */
static void test_residency_without_a_cycle_has_no_gap_across(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 1);
    s.cyclic = false;
    run_order(&s, "F1.0s | B1.0 | U1 || F2.0s");
    expect(&s, TENSOR_W, 1, PLAN_NONE, "+0 F1.0 B1.0 U1 ^0 -0o f2.0");
    for (size_t i = 0; i < s.gaps.n; i++)
        assert_false(is_w1(&s, &s.gaps.at[i]));
    finish(&s);
}

/* ---- K by span ---- */

/* Two updates in one span: K stays between them only where the order says so. A lead counts spans then. */
static void test_residency_keeps_k_for_a_span_if_the_order_says_so(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 4, 1);
    run_order(&s, "F2.0s || F1.0s | B1.0 | U1 | F1.1s | B1.1 | U1 || F2.1s | F2.2s");
    expect(&s, TENSOR_K, 1, PLAN_NONE, "f2.0 f1.0 b1.0 +0 U1 ^0 -0o f1.1 b1.1 +0 U1 ^0 -0o f2.1 f2.2");
    /* W stays for the span in any case, and only its last value goes home. */
    expect(&s, TENSOR_W, 1, PLAN_NONE, "f2.0 +0 F1.0 B1.0 U1 F1.1 B1.1 U1 ^0 -0o f2.1 f2.2");
    run_order(&s, "F2.0s || F1.0s | B1.0 | U1k | F1.1s | B1.1 | U1k || F2.1s | F2.2s");
    expect(&s, TENSOR_K, 1, PLAN_NONE, "f2.0 f1.0 b1.0 +0 U1 f1.1 b1.1 U1 ^0 -0o f2.1 f2.2");
    s.knobs.lead_state = 1;
    run(&s);
    expect(&s, TENSOR_K, 1, PLAN_NONE, "+0 f2.0 f1.0 b1.0 U1 f1.1 b1.1 U1 ^0 f2.1 f2.2 -0o");
    /* K does not stay beyond its span. */
    s.knobs.lead_state = 0;
    run_order(&s, "F1.0s | B1.0 | U1k || F1.1s | B1.1 | U1k");
    expect(&s, TENSOR_K, 1, PLAN_NONE, "f1.0 b1.0 +0 U1 ^0 -0o f1.1 b1.1 +0 U1 ^0 -0o");
    finish(&s);
}

/* ---- shared ---- */

/* Each owner fetches its share and sends it to the other device. */
static void test_residency_shared_weights_are_gathered(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 2);
    share_state(&s);
    run_order(&s, "F1.0s F1.1s@1 || F2.0s F2.1s@1");
    expect(&s, TENSOR_W, 1, PLAN_NONE, "0:+0 1:+1 1:1>0 0:0>1 F1.0 -0 F1.1 -1 f2.0 f2.1");
    s.order.alone = true;
    run(&s);
    expect(&s, TENSOR_W, 1, PLAN_NONE, "+0 F1.0 -0 +1 F1.1 -1 f2.0 f2.1");
    finish(&s);
}

/* Device 1 reaches a pass later than device 0. It still uses its copy of the first pass when device 0 needs
 * the second copy, so device 0 fetches both shares. Device 0's copy lives until it has sent its share. */
static void test_residency_shares_that_come_late_are_fetched(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 2);
    share_state(&s);
    run_order(&s, "F1.0s || F2.0s || B1.0 || F1.1s@1 || F2.1s@1 || B1.1@1");
    expect(&s, TENSOR_W, 1, PLAN_NONE,
           "0:+0 1:+1 1:1>0 0:0>1 F1.0 -0 f2.0 0:+0 1:+0 B1.0 F1.1 -1 1:+1 0:0>1 f2.1 -0 B1.1 -1");
    /* With a third pass of device 0, its second copy is gone when device 1 could take the share. */
    run_order(
        &s, "F1.0s || F2.0s || R1.0s || F2.0s || B1.0 || F1.1s@1 || F2.1s@1 || R1.1s@1 || F2.1s@1 || B1.1@1");
    expect(&s, TENSOR_W, 1, PLAN_NONE,
           "0:+0 1:+1 1:1>0 0:0>1 F1.0 -0 f2.0 0:+0 1:+0 R1.0 -0 f2.0 0:+0 1:+0 B1.0 "
           "F1.1 -1 0:+1 1:+1 f2.1 R1.1 -1 1:+1 0:0>1 f2.1 -0 B1.1 -1");
    finish(&s);
}

static void test_residency_pinned_shares_stay_beside_the_pass(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 2);
    share_state(&s);
    s.pinned[1] = true;
    s.knobs.pinned = s.pinned;
    run_order(&s, "B1.0 B1.1@1 || U1/0 U1/1@1 | U1/0 U1/1@1");
    expect(&s, TENSOR_W, 1, PLAN_NONE, "0:0>0 1:1>0 0:0>1 1:1>1 B1.0 -0 B1.1 -1 U1 U1 U1 U1");
    expect(&s, TENSOR_K, 1, PLAN_NONE, "b1.0 b1.1 U1 U1 U1 U1");
    uint32_t boundary = 0;
    for (size_t i = 0; i < s.draft.segments.n; i++)
        boundary += s.draft.segments.at[i].boundary && s.draft.segments.at[i].dirty;
    assert_int_equal(boundary, 2 + 4); /* two shares of W, and of each of the two parts of K */
    finish(&s);
}

/* The owner of a share gets the share of every replica's gradient, adds them up, and updates. */
static void test_residency_shared_gradients_go_to_their_owners(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 2, 2);
    share_state(&s);
    run_order(&s, "B1.0 B1.1@1 || D1.1/0 D1.1/1@1 || U1/0 U1/1@1");
    expect(&s, TENSOR_DW, 1, 0, "B1.0 1:0>1 b1.1 D1 D1 U1 -0 U1 -1");
    expect(&s, TENSOR_DW, 1, 1, "b1.0 B1.1 0:1>0 D1 -0 D1 -1 u1 u1");
    expect(&s, TENSOR_K, 1, PLAN_NONE,
           "b1.0 b1.1 d1 d1 0:+0 2:+0 U1 0:^0 2:^0 -0o -0o 1:+1 3:+1 U1 1:^1 3:^1 -1o -1o");
    /* The host updates: every owner spills its share of the sum. */
    run_order(&s, "B1.0 B1.1@1 || D1.1/0 D1.1/1@1 || U1@h");
    expect(&s, TENSOR_DW, 1, 0, "B1.0 1:0>1 b1.1 D1 0:^0 -0o D1 1:^1 -1o U1");
    /* The host reads the sum twice, and gets it once. */
    run_order(&s, "B1.0 B1.1@1 || D1.1/0 D1.1/1@1 || N1@h U1@h");
    expect(&s, TENSOR_DW, 1, 0, "B1.0 1:0>1 b1.1 D1 0:^0 -0o D1 1:^1 -1o N1 U1");
    /* The sender leaves its copy time for the send. */
    s.knobs.lead_state = 1;
    run_order(&s, "B1.0 B1.1@1 || F2.1s@1 || F2.1s@1 || D1.1/0");
    expect(&s, TENSOR_DW, 1, 1, "b1.0 B1.1 0:1>0 f2.1 -1 f2.1 D1 -0");
    finish(&s);
}

/* A share of K is kept by span like an undivided K. */
static void test_residency_shared_k_is_kept_for_a_span(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, 4, 2);
    share_state(&s);
    run_order(&s, "B1.0 | U1/0 | B1.1 | B1.2@1 | U1/0");
    expect(&s, TENSOR_K, 1, PLAN_NONE,
           "b1.0 0:+0 2:+0 U1 0:^0 2:^0 -0o -0o b1.1 b1.2 0:+0 2:+0 U1 0:^0 2:^0 -0o -0o");
    run_order(&s, "B1.0 | U1/0k | B1.1 | B1.2@1 | U1/0k");
    expect(&s, TENSOR_K, 1, PLAN_NONE, "b1.0 0:+0 2:+0 U1 b1.1 b1.2 U1 0:^0 2:^0 -0o -0o");
    finish(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_residency_keeps_weights_for_a_span),
        cmocka_unit_test(test_residency_leads_overlap_moves_with_units),
        cmocka_unit_test(test_residency_fetches_an_activation_again),
        cmocka_unit_test(test_residency_lead_joins_copies),
        cmocka_unit_test(test_residency_recomputed_value_is_a_copy),
        cmocka_unit_test(test_residency_spills_what_the_host_reads),
        cmocka_unit_test(test_residency_frees_memory_before_moves),
        cmocka_unit_test(test_residency_group_state_stays),
        cmocka_unit_test(test_residency_pieces_share_a_copy),
        cmocka_unit_test(test_residency_does_not_send_to_the_writer),
        cmocka_unit_test(test_residency_does_not_send_weights),
        cmocka_unit_test(test_residency_fetch_comes_after_the_write),
        cmocka_unit_test(test_residency_recomputation_leaves_other_copies_alone),
        cmocka_unit_test(test_residency_drops_where_the_copy_is_used_last),
        cmocka_unit_test(test_residency_sends_activations_to_the_next_device),
        cmocka_unit_test(test_residency_limits_direct_sends),
        cmocka_unit_test(test_residency_spills_what_another_device_reads_later),
        cmocka_unit_test(test_residency_pinned_state_never_moves),
        cmocka_unit_test(test_residency_pins_only_what_one_device_uses),
        cmocka_unit_test(test_residency_keep_all_keeps_until_the_last_use),
        cmocka_unit_test(test_residency_lists_gaps_and_closes_them),
        cmocka_unit_test(test_residency_gap_of_a_stash_saves_the_spill_too),
        cmocka_unit_test(test_residency_gap_keeps_spills_that_others_need),
        cmocka_unit_test(test_residency_keeps_a_copy_for_good),
        cmocka_unit_test(test_residency_joins_copies_over_the_boundary),
        cmocka_unit_test(test_residency_brings_home_what_another_device_reads),
        cmocka_unit_test(test_residency_without_a_cycle_has_no_gap_across),
        cmocka_unit_test(test_residency_keeps_k_for_a_span_if_the_order_says_so),
        cmocka_unit_test(test_residency_shared_weights_are_gathered),
        cmocka_unit_test(test_residency_shares_that_come_late_are_fetched),
        cmocka_unit_test(test_residency_pinned_shares_stay_beside_the_pass),
        cmocka_unit_test(test_residency_shared_gradients_go_to_their_owners),
        cmocka_unit_test(test_residency_shared_k_is_kept_for_a_span),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
