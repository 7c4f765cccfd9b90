/* Tests the verifier on plans made by hand with replicas, shares, copies within a device, and pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "scheduler/verify/verify.h"
#include "tests/unit/plan_shake.h"
#include "tests/unit/share_plans.h"

#define ONLY(i) (1u << (i))

static struct violation found[40];
static struct verify_report report;

static unsigned numbers(const struct plan *p, enum share_graph g)
{
    struct err err = {0};
    unsigned set = 0;
    report = (struct verify_report){.violations = found, .max = 40};
    int status = plan_verify(p, share_graphs[g], NULL, &share_machine, &report, &err);
    for (int i = 1; i <= 10; i++)
        set |= report.by_number[i] > 0 ? ONLY(i) : 0;
    assert_int_equal(status, set == 0 ? 0 : -EBADMSG);
    return set;
}

static void print_found(const struct plan *p)
{
    print_error("%s:\n", p->policy);
    for (uint32_t i = 0; i < report.n; i++)
        print_error("[%d] %s\n", found[i].invariant, found[i].text);
}

/* The edit of a plan of this graph breaks exactly these invariants; consumes it. */
static void expect_edit(struct edit *e, enum share_graph g, unsigned want)
{
    struct plan *p = edit_pack(e);
    unsigned got = numbers(p, g);
    if (got != want)
        print_found(p);
    assert_int_equal(got, want);
    plan_destroy(p);
    edit_finish(e);
}

/* It breaks something, and nothing but these. */
static void expect_within(struct edit *e, enum share_graph g, unsigned may, uint32_t instr)
{
    struct plan *p = edit_pack(e);
    unsigned got = numbers(p, g);
    if (got == 0 || (got & ~may) != 0) {
        print_found(p);
        fail_msg("%s, cycle#%u: found %x, not in %x", p->policy, instr, got, may);
    }
    plan_destroy(p);
    edit_finish(e);
}

static void expect_text(const char *text)
{
    for (uint32_t i = 0; i < report.n; i++)
        if (strstr(found[i].text, text) != NULL)
            return;
    fail_msg("nothing says \"%s\", but %s", text, report.n > 0 ? found[0].text : "nothing");
}

static struct edit_program *cycle_of(struct edit *e)
{
    return &e->programs[PROGRAM_CYCLE];
}

static uint32_t find_cycle(const struct edit *e, enum instr_kind kind, uint32_t nth)
{
    return edit_find(&e->programs[PROGRAM_CYCLE], kind, PLAN_NONE, nth);
}

static struct edit_instr *cycle_instr(struct edit *e, enum instr_kind kind, uint32_t nth)
{
    return &cycle_of(e)->at.at[find_cycle(e, kind, nth)];
}

static enum tensor_kind kind_of(const struct edit *e, const struct plan_operand *o)
{
    return e->tensors.at[o->tensor].kind;
}

/* The nth operand of a kind of tensor. */
static struct plan_operand *operand_of(const struct edit *e, struct edit_instr *in, enum tensor_kind kind,
                                       uint32_t nth)
{
    for (size_t j = 0; j < in->ops.n; j++)
        if (kind_of(e, &in->ops.at[j]) == kind && nth-- == 0)
            return &in->ops.at[j];
    abort();
}

/* Moves both ends of the range; its bytes are where they were, unless that would be below the memory. */
static void slide(struct plan_operand *o, int64_t begin, int64_t end)
{
    o->begin += (uint64_t)begin;
    if (begin > 0 || o->addr >= (uint64_t)-begin)
        o->addr += (uint64_t)begin;
    o->end += (uint64_t)end;
}

/* A lease that leaves room for what comes to lie elsewhere. */
static void make_room(struct edit *e)
{
    for (uint32_t d = 0; d < e->header.n_devices; d++)
        e->header.devices[d] = (struct plan_device){SCRIPT_LEASE, SCRIPT_LEASE};
}

/* All accesses to the copy, in all programs. */
static void shift_copy(struct edit *e, struct plan_operand copy, uint64_t by)
{
    for (int k = 0; k < PROGRAM_COUNT; k++)
        for (size_t i = 0; i < e->programs[k].at.n; i++)
            for (size_t j = 0; j < e->programs[k].at.at[i].ops.n; j++) {
                struct plan_operand *o = &e->programs[k].at.at[i].ops.at[j];
                if (o->tensor == copy.tensor && o->loc == copy.loc &&
                    o->addr - o->begin == copy.addr - copy.begin)
                    o->addr += by;
            }
}

/* Moves an instruction. Waits of distance 0 that would then point forward are removed, because these tests
 * are not about order. */
static void move_instr(struct edit_program *p, uint32_t from, uint32_t to)
{
    edit_move(p, from, to);
    for (uint32_t n = 0; n < p->at.n; n++)
        for (size_t w = p->at.at[n].waits.n; w-- > 0;)
            if (p->at.at[n].waits.at[w].distance == 0 && p->at.at[n].waits.at[w].instr >= n)
                p->at.at[n].waits.at[w] = p->at.at[n].waits.at[--p->at.at[n].waits.n];
}

#define FOR_EACH_PLAN(s) for (const struct share_plan *s = share_plans; s < share_plans + SHARE_PLANS; s++)

static struct plan *plans[SHARE_PLANS]; /* made once, for loops over many edits */

static const struct plan *plan_of(const struct share_plan *s)
{
    return plans[s - share_plans];
}

static int make_plans(void **state)
{
    make_share_graphs(state);
    FOR_EACH_PLAN(s)
    {
        struct edit e = s->make();
        plans[s - share_plans] = edit_pack(&e);
        edit_finish(&e);
    }
    return 0;
}

static int free_plans(void **state)
{
    for (size_t i = 0; i < SHARE_PLANS; i++)
        plan_destroy(plans[i]);
    return free_share_graphs(state);
}

#define FOR_EACH_CYCLE_INSTR(s, i)                                                                           \
    FOR_EACH_PLAN(s)                                                                                         \
    for (uint32_t i = 0; i < plan_of(s)->programs[PROGRAM_CYCLE].n_instrs; i++)

/* ---- good plans ---- */

static void test_plans_hold(void **state)
{
    (void)state;
    FOR_EACH_PLAN(s)
    {
        const struct plan *p = plan_of(s);
        char why[256];
        if (numbers(p, s->graph) != 0) {
            print_found(p);
            fail();
        }
        for (uint64_t seed = 1; seed <= 40; seed++)
            if (!plan_shake(p, share_graphs[s->graph], NULL, seed, why))
                fail_msg("%s: holds, but fails with seed %llu: %s", p->policy, (unsigned long long)seed, why);
    }
}

/* A whole update may also name all of K by its parts. */
static void test_whole_update_with_parts_holds(void **state)
{
    (void)state;
    struct edit e = plan_replicas();
    struct edit_instr *upd = cycle_instr(&e, INSTR_UPD, 0);
    struct plan_operand k = upd->ops.at[upd->ops.n - 1];
    vec_push(&upd->ops, k);
    slide(&upd->ops.at[upd->ops.n - 2], 0, -(int64_t)SHARE_W);
    slide(&upd->ops.at[upd->ops.n - 1], SHARE_W, 0);
    expect_edit(&e, GRAPH_TWO, 0);
}

/* ---- replicas ---- */

static void test_reductions_in_wrong_order_break_6(void **state)
{
    (void)state;
    struct edit e = plan_replicas_host();
    move_instr(cycle_of(&e), find_cycle(&e, INSTR_RED, 0), find_cycle(&e, INSTR_RED, 1));
    expect_edit(&e, GRAPH_THREE, ONLY(6));
    expect_text("RED l0 r1");
    e = plan_tied(); /* of one share only: RED l0 r1, r2, l1 r1, r2 of the second share, then of the first */
    move_instr(cycle_of(&e), find_cycle(&e, INSTR_RED, 6), find_cycle(&e, INSTR_RED, 7));
    expect_edit(&e, GRAPH_TIED, ONLY(6));
    expect_text("dW1/r0[0..512)");
}

static void test_missing_reduction_breaks_6(void **state)
{
    (void)state;
    struct edit e = plan_replicas();
    edit_remove(cycle_of(&e), find_cycle(&e, INSTR_RED, 0));
    expect_edit(&e, GRAPH_TWO, ONLY(6));
    expect_text("no RED l0 r1");
}

static void test_update_before_reduction_breaks_1(void **state)
{
    (void)state;
    struct edit e = plan_replicas();
    move_instr(cycle_of(&e), find_cycle(&e, INSTR_RED, 0), find_cycle(&e, INSTR_UPD, 0));
    expect_edit(&e, GRAPH_TWO, ONLY(1));
}

static void test_reduction_before_its_replica_breaks_1(void **state)
{
    (void)state;
    struct edit e = plan_replicas(); /* the last BWD of replica 1 comes after */
    move_instr(cycle_of(&e), find_cycle(&e, INSTR_BWD, 7), find_cycle(&e, INSTR_RED, 0));
    struct plan *p = edit_pack(&e);
    assert_true(numbers(p, GRAPH_TWO) & ONLY(1));
    plan_destroy(p);
    edit_finish(&e);
}

static void test_wrong_replica_breaks_10(void **state)
{
    (void)state;
    for (int what = 0; what < 6; what++) {
        struct edit e = plan_replicas_host();
        struct edit_instr *red = cycle_instr(&e, INSTR_RED, 0), *fwd = cycle_instr(&e, INSTR_FWD, 2);
        if (what == 0)
            red->in.replica = 0;
        else if (what == 1)
            red->in.replica = 2; /* a second time, with the operands of another */
        else if (what == 2)
            red->ops.at[1] = cycle_instr(&e, INSTR_RED, 1)->ops.at[1];
        else if (what == 3)
            fwd->in.replica = fwd->in.replica == 0;
        else if (what == 4)
            e.header.n_replicas = 1;
        else
            e.header.n_micro = 1; /* of one replica */
        expect_edit(&e, GRAPH_THREE, ONLY(10));
    }
}

/* ---- shares: coverage ---- */

static void test_missing_share_breaks_6(void **state)
{
    (void)state;
    struct edit e = plan_shares_device();
    edit_remove(cycle_of(&e), find_cycle(&e, INSTR_UPD, 1));
    expect_edit(&e, GRAPH_PAIR, ONLY(6));
    expect_text("UPD l0: bytes 256..704 are never updated");
    e = plan_shares_device();
    edit_remove(cycle_of(&e), find_cycle(&e, INSTR_RED, 0));
    expect_edit(&e, GRAPH_PAIR, ONLY(6));
    expect_text("RED l0 r1: bytes 0..256 are never added");
    e = plan_shares_device();
    edit_remove(cycle_of(&e), find_cycle(&e, INSTR_UPD, 0));
    edit_remove(cycle_of(&e), find_cycle(&e, INSTR_UPD, 0));
    expect_edit(&e, GRAPH_PAIR, ONLY(6));
    expect_text("no UPD l0");
}

static void test_repeated_share_breaks_6(void **state)
{
    (void)state;
    struct edit e = plan_shares_host();
    uint32_t i = find_cycle(&e, INSTR_UPD, 1);
    edit_insert(cycle_of(&e), i + 1, &cycle_of(&e)->at.at[i]);
    expect_edit(&e, GRAPH_PAIR, ONLY(6));
    expect_text("UPD l0: bytes 256..704 are updated twice");
}

static void test_share_of_what_is_done_breaks_6(void **state)
{
    (void)state;
    struct edit e = plan_replicas_host();
    struct edit_program *p = cycle_of(&e);
    uint32_t i = find_cycle(&e, INSTR_RED, 0);
    edit_insert(p, i, &p->at.at[i]); /* all of it, and a share */
    for (int o = 0; o < 2; o++)
        slide(&p->at.at[i].ops.at[o], SHARE_CUT, 0);
    expect_edit(&e, GRAPH_THREE, ONLY(6));
    expect_text("RED l0 r1: bytes 256..704 are added twice");
}

/* The ranges of an instruction, all by as much; K as W, in each part. */
static void slide_share(const struct edit *e, struct edit_instr *in, int64_t begin, int64_t end)
{
    for (size_t j = 0; j < in->ops.n; j++) {
        enum tensor_kind kind = kind_of(e, &in->ops.at[j]);
        if (kind == TENSOR_W || kind == TENSOR_DW || kind == TENSOR_K)
            slide(&in->ops.at[j], begin, end);
    }
}

static bool is_share(const struct edit *e, const struct edit_instr *in)
{
    return (in->in.kind == INSTR_RED || in->in.kind == INSTR_UPD) &&
           operand_bytes(&in->ops.at[0]) < e->tensors.at[in->ops.at[0].tensor].bytes;
}

/* Each share is made longer or shorter by PLAN_ALIGN at either end, so that some bytes are processed twice or
 * not at all. */
static void test_shifted_share_breaks_6(void **state)
{
    (void)state;
    const int64_t by[] = {-(int64_t)PLAN_ALIGN, 0, PLAN_ALIGN};
    uint32_t tried = 0;
    FOR_EACH_CYCLE_INSTR(s, i)
    for (int how = 0; how < 9; how++) {
        struct edit e = edit_begin(plan_of(s));
        struct edit_instr *in = &cycle_of(&e)->at.at[i];
        int64_t from = (int64_t)in->ops.at[0].begin + by[how / 3],
                to = (int64_t)in->ops.at[0].end + by[how % 3];
        if (!is_share(&e, in) || e.tensors.at[in->ops.at[0].tensor].bytes != SHARE_W || how == 4 ||
            from < 0 || from >= to || to > SHARE_W || to - from == SHARE_W) {
            edit_finish(&e);
            continue;
        }
        make_room(&e);
        slide_share(&e, in, by[how / 3], by[how % 3]);
        /* at the end of a tensor an end that is shifted is not aligned */
        expect_within(&e, s->graph, to % PLAN_ALIGN == 0 || to == SHARE_W ? ONLY(6) : ONLY(10), i);
        tried++;
    }
    assert_true(tried > 20);
}

/* ---- shares: ranges ---- */

/* Every W, dW and K of every share, on its own. */
static void test_shifted_operand_of_a_share_breaks_10(void **state)
{
    (void)state;
    const int64_t by[][2] = {
        {PLAN_ALIGN, PLAN_ALIGN}, {-(int64_t)PLAN_ALIGN, 0}, {0, PLAN_ALIGN}, {0, -8}, {8, 8}};
    uint32_t tried = 0;
    FOR_EACH_CYCLE_INSTR(s, i)
    for (uint32_t j = 0; j < 8; j++)
        for (size_t how = 0; how < sizeof by / sizeof *by; how++) {
            struct edit e = edit_begin(plan_of(s));
            struct edit_instr *in = &cycle_of(&e)->at.at[i];
            struct plan_operand *o = j < in->ops.n ? &in->ops.at[j] : NULL;
            if (o == NULL || !is_share(&e, in) || kind_of(&e, o) == TENSOR_GROUP) {
                edit_finish(&e);
                continue;
            }
            make_room(&e);
            slide(o, by[how][0], by[how][1]);
            expect_within(&e, s->graph, ONLY(10), i);
            tried++;
        }
    assert_true(tried > 100);
}

static void test_unaligned_share_breaks_10(void **state)
{
    (void)state;
    struct edit e = plan_shares_host();
    slide_share(&e, cycle_instr(&e, INSTR_UPD, 0), 0, 8); /* no gap and no overlap */
    slide_share(&e, cycle_instr(&e, INSTR_UPD, 1), 8, 0);
    expect_edit(&e, GRAPH_PAIR, ONLY(10));
    e = plan_shares_host();
    slide_share(&e, cycle_instr(&e, INSTR_UPD, 1), 8, 0);
    expect_edit(&e, GRAPH_PAIR, ONLY(10));
}

static void test_wrong_parts_of_state_break_10(void **state)
{
    (void)state;
    for (int what = 0; what < 6; what++) {
        struct edit e = plan_shares_host();
        struct edit_instr *upd = cycle_instr(&e, INSTR_UPD, 0);
        struct plan_operand *k = operand_of(&e, upd, TENSOR_K, 0), first = *k;
        if (what == 0)
            upd->ops.n--; /* the second part is missing */
        else if (what == 1)
            k[0] = k[1], k[1] = first; /* in the wrong order */
        else if (what == 2)
            k[1] = k[0]; /* one part twice */
        else if (what == 3)
            slide(k, 0, SHARE_W), upd->ops.n--; /* both as one */
        else if (what == 4)
            slide(k, 0, 2 * SHARE_W - SHARE_CUT), upd->ops.n--; /* all of K */
        else
            vec_push(&upd->ops, first); /* too many */
        expect_edit(&e, GRAPH_PAIR, ONLY(10));
    }
}

/* Of 1800 bytes of K for 1024 of W, 900 go with the first half, of which 768 are aligned. */
static void test_state_that_is_no_multiple_is_cut_in_proportion(void **state)
{
    (void)state;
    struct edit e = plan_tied();
    struct plan_operand *k = operand_of(&e, cycle_instr(&e, INSTR_UPD, 0), TENSOR_K, 0);
    assert_int_equal(k->begin, 768);
    assert_int_equal(k->end, 1800);
    k->begin = 900;
    k->addr += 900 - 768;
    expect_edit(&e, GRAPH_TIED, ONLY(10));
    expect_text("768..1800");
}

/* Half of W is 128 elements. The first half of K has the same elements of the parts that are as long as W. Of
 * the part of 100 elements, 50 go with the first half, but that is less than one unit of 64, so the first
 * half has no operand for this part. */
static void test_parts_of_other_types_are_cut_by_elements(void **state)
{
    (void)state;
    static const uint64_t want[2][3][2] = {{{0, 512}, {1024, 1280}},
                                           {{512, 1024}, {1280, 1536}, {1536, 1936}}};
    for (uint32_t half = 0; half < 2; half++)
        for (uint32_t p = 0; p < 3 - !half; p++) {
            struct edit e = plan_parts();
            struct edit_instr *upd = cycle_instr(&e, INSTR_UPD, half);
            struct plan_operand *dw = operand_of(&e, upd, TENSOR_DW, 0),
                                *k = operand_of(&e, upd, TENSOR_K, 0);
            assert_int_equal(dw->begin, half * 1024);
            assert_int_equal(dw->end, (half + 1) * 1024);
            assert_int_equal(k[p].begin, want[half][p][0]);
            assert_int_equal(k[p].end, want[half][p][1]);
            slide(&k[p], half ? 128 : 0, half ? 0 : -128); /* half as many elements in 16 bits */
            expect_edit(&e, GRAPH_PARTS, ONLY(10));
            expect_text("its share of part");
        }
}

/* The sums are F64 and the weights F32, so equal byte ranges are different elements. */
static void test_shares_of_equal_bytes_but_other_elements_break_10(void **state)
{
    (void)state;
    struct edit e = plan_parts();
    struct plan_operand *w = operand_of(&e, cycle_instr(&e, INSTR_UPD, 0), TENSOR_W, 0);
    slide(w, 0, 512);
    expect_edit(&e, GRAPH_PARTS, ONLY(10));
    expect_text("its shares differ");
}

/* Of 104 bytes nothing is left for the first half once it is aligned: then there is no operand. */
static void test_empty_share_of_state_has_no_operand(void **state)
{
    (void)state;
    struct edit e = plan_small_state();
    struct edit_instr *first = cycle_instr(&e, INSTR_UPD, 0), *second = cycle_instr(&e, INSTR_UPD, 1);
    assert_int_equal(first->ops.n, second->ops.n - 1);
    struct plan_operand k = second->ops.at[second->ops.n - 1];
    vec_push(&first->ops, k);
    second->ops.n--;
    expect_edit(&e, GRAPH_SMALL, ONLY(10));
}

static void test_share_of_other_tasks_breaks_10(void **state)
{
    (void)state;
    const struct {
        enum instr_kind task;
        enum tensor_kind tensor;
    } operands[] = {{INSTR_FWD, TENSOR_W},   {INSTR_FWD, TENSOR_X},        {INSTR_BWD, TENSOR_Y},
                    {INSTR_NORM, TENSOR_DW}, {INSTR_DECIDE, TENSOR_SUMSQ}, {INSTR_UPD, TENSOR_GROUP}};
    for (size_t i = 0; i < sizeof operands / sizeof *operands; i++) {
        struct edit e = plan_shares_decision();
        struct plan_operand *o = operand_of(&e, cycle_instr(&e, operands[i].task, 0), operands[i].tensor, 0);
        o->end = o->begin + (operand_bytes(o) > 256 ? 256 : operand_bytes(o) / 2);
        expect_edit(&e, GRAPH_DECISION, ONLY(10));
    }
}

/* A list that is used twice, as only a file could have it: the work is bounded by the lists. */
static void test_list_of_another_breaks_10(void **state)
{
    (void)state;
    struct edit e = plan_shares_host();
    struct plan *p = edit_pack(&e);
    struct plan_program *cycle = &p->programs[PROGRAM_CYCLE];
    struct plan_instr *last = &cycle->instrs[cycle->n_instrs - 1];
    cycle->n_operands -= last->n_operands;
    last->operand--;
    assert_int_equal(numbers(p, GRAPH_PAIR), ONLY(10));
    expect_text("its list of operands overlaps another instruction's");
    plan_destroy(p);
    edit_finish(&e);
}

/* ---- shares: owners ---- */

static void swap_ranges(struct edit *e, enum instr_kind kind)
{
    for (uint32_t n = 0; n < 2; n++) {
        struct edit_instr *in = cycle_instr(e, kind, n);
        int64_t begin = n ? -(int64_t)SHARE_CUT : SHARE_CUT,
                end = n ? (int64_t)SHARE_CUT - SHARE_W : (int64_t)SHARE_W - SHARE_CUT;
        slide_share(e, in, begin, end);
    }
}

/* Each device processes the share of the other device, for which it has neither the gradient sum nor K. */
static void test_swapped_owners_break_1(void **state)
{
    (void)state;
    for (int what = 0; what < 3; what++) {
        struct edit e = what < 2 ? plan_shares_device() : plan_pinned();
        swap_ranges(&e, what == 0 ? INSTR_RED : INSTR_UPD);
        struct plan *p = edit_pack(&e);
        assert_true(numbers(p, GRAPH_PAIR) & ONLY(1));
        plan_destroy(p);
        edit_finish(&e);
    }
}

/* A device reads its own copy of a share that another device has updated. */
static void test_share_that_is_not_sent_breaks_1(void **state)
{
    (void)state;
    struct edit e = plan_shares_decision(); /* the norm needs the other's part of the sum */
    edit_vanish(&e, PROGRAM_CYCLE, find_cycle(&e, INSTR_SEND, 4));
    expect_edit(&e, GRAPH_DECISION, ONLY(1));
    expect_text("NORM");
    expect_text("dW0/r0[256..704)");
}

/* ---- moves of ranges ---- */

/* Every move of a part, shifted by PLAN_ALIGN. */
static void test_shifted_move_is_found(void **state)
{
    (void)state;
    uint32_t tried = 0;
    FOR_EACH_CYCLE_INSTR(s, i)
    for (int sign = -1; sign < 2; sign += 2) {
        struct edit e = edit_begin(plan_of(s));
        struct edit_instr *in = &cycle_of(&e)->at.at[i];
        struct plan_operand *o = in->ops.at;
        uint64_t bytes = e.tensors.at[o->tensor].bytes;
        if (!instr_is_move(in->in.kind) || operand_bytes(o) == bytes ||
            (sign < 0 ? o->begin < PLAN_ALIGN : o->end + PLAN_ALIGN > bytes)) {
            edit_finish(&e);
            continue;
        }
        for (int j = 0; j < 2; j++)
            slide(&o[j], sign * (int64_t)PLAN_ALIGN, sign * (int64_t)PLAN_ALIGN);
        make_room(&e);
        expect_within(&e, s->graph, ONLY(1) | ONLY(2) | ONLY(4) | ONLY(5) | ONLY(7) | ONLY(9), i);
        tried++;
    }
    assert_true(tried > 10);
}

/* ---- copies within a device ---- */

static void test_ill_formed_copy_breaks_10(void **state)
{
    (void)state;
    for (int what = 0; what < 6; what++) {
        struct edit e = plan_pinned();
        struct edit_instr *copy = cycle_instr(&e, INSTR_COPY, 0);
        if (what == 0)
            copy->in.stream = plan_stream(0, LANE_OUT);
        else if (what == 1)
            copy->in.stream = plan_stream(1, LANE_PEER);
        else if (what == 2)
            copy->ops.at[1].loc = 1;
        else if (what == 3)
            copy->ops.at[1].addr = copy->ops.at[0].addr;
        else if (what == 4)
            slide(&copy->ops.at[1], 0, SHARE_W - SHARE_CUT);
        else
            copy->in.kind = INSTR_SEND;
        expect_edit(&e, GRAPH_PAIR, ONLY(10));
    }
}

static void test_copy_onto_its_source_breaks_2(void **state)
{
    (void)state;
    struct edit e = plan_pinned();
    const struct edit_instr *copy = cycle_instr(&e, INSTR_COPY, 1); /* 256..704 of W on device 1 */
    struct plan_operand from = copy->ops.at[0], to = copy->ops.at[1];
    shift_copy(&e, to, from.addr + PLAN_ALIGN - to.addr);
    expect_edit(&e, GRAPH_PAIR, ONLY(2));
}

/* Of two copies, the one that is read must be whole and new. */
static void test_read_of_the_other_copy_breaks_1(void **state)
{
    (void)state;
    struct edit e = plan_pinned();
    const struct plan_operand *pinned = &cycle_instr(&e, INSTR_COPY, 0)->ops.at[0];
    struct plan_operand *w = operand_of(&e, cycle_instr(&e, INSTR_FWD, 0), TENSOR_W, 0);
    w->addr = pinned->addr;
    expect_edit(&e, GRAPH_PAIR, ONLY(1));
    expect_text("expects W0 at d0:0, but it is at d0:");
}

/* The update changes the assembled W instead of the pinned share. */
static void test_update_of_the_other_copy_breaks_5_and_7(void **state)
{
    (void)state;
    struct edit e = plan_pinned();
    struct edit_program *p = cycle_of(&e);
    const struct plan_operand *ops = cycle_instr(&e, INSTR_COPY, 0)->ops.at;
    uint32_t last = (uint32_t)p->at.n - 1;
    operand_of(&e, cycle_instr(&e, INSTR_UPD, 0), TENSOR_W, 0)->addr = ops[1].addr;
    move_instr(p, edit_find(p, INSTR_DROP, ops[0].tensor, 0), last); /* it is there until then */
    edit_wait(p, find_cycle(&e, INSTR_COPY, 0), last, 1);
    edit_wait(p, find_cycle(&e, INSTR_SEND, 1), last, 1);
    expect_edit(&e, GRAPH_PAIR, ONLY(5) | ONLY(7));
}

/* Between cycles both are newest, or it is not the boundary. */
static void test_stale_copy_beside_the_new_one_breaks_7(void **state)
{
    (void)state;
    struct edit e = plan_pinned(); /* W as put together on device 1 stays there, too */
    struct edit_program *p = cycle_of(&e), *entry = &e.programs[PROGRAM_ENTRY],
                        *exit = &e.programs[PROGRAM_EXIT];
    const struct edit_instr *copy = cycle_instr(&e, INSTR_COPY, 1);
    struct plan_operand all = copy->ops.at[1];
    slide(&all, -(int64_t)SHARE_CUT, 0);
    vec_push(&e.boundary, (struct plan_copy){all.tensor, 1, 0, SHARE_W, all.addr});
    uint32_t fetch = edit_find(entry, INSTR_FETCH, all.tensor, 1), n = (uint32_t)entry->at.n;
    edit_insert(entry, n, &entry->at.at[fetch]);
    struct plan_operand *ops = entry->at.at[n].ops.at;
    slide(&ops[0], -(int64_t)SHARE_CUT, 0);
    all.access = ACCESS_WRITE;
    ops[1] = all;
    n = (uint32_t)exit->at.n;
    edit_insert(exit, n, &exit->at.at[edit_find(exit, INSTR_DROP, all.tensor, 1)]);
    all.access = ACCESS_DROP;
    exit->at.at[n].ops.at[0] = all;
    edit_vanish(&e, PROGRAM_CYCLE, edit_find(p, INSTR_DROP, all.tensor, 1));
    expect_edit(&e, GRAPH_PAIR, ONLY(7));
}

/* ---- state that stays in shares ---- */

static struct edit_instr *instr_of(struct edit *e, enum program_kind k, enum instr_kind kind, uint32_t nth)
{
    return &e->programs[k].at.at[edit_find(&e->programs[k], kind, PLAN_NONE, nth)];
}

static void test_dirty_range_that_is_dropped_breaks_5(void **state)
{
    (void)state;
    for (uint32_t nth = 0; nth < 6; nth++) { /* W, K, K on either device */
        struct edit e = plan_pinned();
        edit_vanish(&e, PROGRAM_EXIT, edit_find(&e.programs[PROGRAM_EXIT], INSTR_SPILL, PLAN_NONE, nth));
        expect_edit(&e, GRAPH_PAIR, ONLY(5));
        e = plan_pinned(); /* all but the last bytes of it */
        for (int j = 0; j < 2; j++)
            slide(&instr_of(&e, PROGRAM_EXIT, INSTR_SPILL, nth)->ops.at[j], 0, -8);
        expect_edit(&e, GRAPH_PAIR, ONLY(5));
    }
}

static void test_range_that_does_not_come_home_breaks_9(void **state)
{
    (void)state;
    for (uint32_t nth = 0; nth < 6; nth++) {
        struct edit e = plan_pinned();
        edit_remove(&e.programs[PROGRAM_FLUSH], nth);
        expect_edit(&e, GRAPH_PAIR, ONLY(9));
        e = plan_pinned();
        for (int j = 0; j < 2; j++)
            slide(&e.programs[PROGRAM_FLUSH].at.at[nth].ops.at[j], 8, 0);
        expect_edit(&e, GRAPH_PAIR, ONLY(9));
    }
}

static void test_range_that_entry_leaves_out_breaks_9(void **state)
{
    (void)state;
    for (uint32_t nth = 0; nth < 6; nth++) {
        struct edit e = plan_pinned();
        edit_remove(&e.programs[PROGRAM_ENTRY], nth);
        expect_edit(&e, GRAPH_PAIR, ONLY(9));
        e = plan_pinned();
        for (int j = 0; j < 2; j++)
            slide(&e.programs[PROGRAM_ENTRY].at.at[nth].ops.at[j], 0, -8);
        expect_edit(&e, GRAPH_PAIR, ONLY(9));
    }
}

/* A copy that the boundary has in two ranges is still one. */
static void test_boundary_in_two_ranges_holds(void **state)
{
    (void)state;
    struct edit e = plan_replicas();
    struct plan_copy w = e.boundary.at[0];
    e.boundary.at[0].end = SHARE_CUT;
    vec_push(&e.boundary, (struct plan_copy){w.tensor, 0, SHARE_CUT, w.end, w.addr + SHARE_CUT});
    expect_edit(&e, GRAPH_TWO, 0);
    e = plan_replicas();
    e.boundary.at[0].end = SHARE_CUT;
    vec_push(&e.boundary, (struct plan_copy){w.tensor, 0, SHARE_CUT + 8, w.end, w.addr + SHARE_CUT + 8});
    expect_edit(&e, GRAPH_TWO, ONLY(9));
}

static void test_other_ranges_in_the_boundary_are_found(void **state)
{
    (void)state;
    for (uint32_t nth = 0; nth < 6; nth++) {
        struct edit e = plan_pinned();
        e.boundary.at[nth].end -= 8;
        expect_within(&e, GRAPH_PAIR, ONLY(7) | ONLY(9), nth);
        e = plan_pinned(); /* the same bytes of the device, but as others of the tensor */
        if (e.boundary.at[nth].begin >= 8)
            e.boundary.at[nth].begin -= 8, e.boundary.at[nth].end -= 8;
        else
            e.boundary.at[nth].begin += 8, e.boundary.at[nth].end += 8;
        expect_within(&e, GRAPH_PAIR, ONLY(7) | ONLY(9), nth);
    }
}

/* ---- alignment ---- */

/* A copy of a part must begin at an aligned address, wherever the part is in its tensor. */
static void test_unaligned_part_breaks_3(void **state)
{
    (void)state;
    uint32_t tried = 0;
    FOR_EACH_CYCLE_INSTR(s, i)
    for (uint32_t j = 0; j < 2; j++) {
        struct edit e = edit_begin(plan_of(s));
        const struct edit_instr *in = &cycle_of(&e)->at.at[i];
        struct plan_operand o = in->ops.at[j < in->ops.n ? j : 0];
        bool apart = instr_is_move(in->in.kind) && o.loc != PLAN_HOST && e.boundary.n == 0 &&
                     (o.addr - o.begin) % PLAN_ALIGN != 0;
        if (!apart) {
            edit_finish(&e);
            continue;
        }
        make_room(&e);
        assert_int_equal(o.addr % PLAN_ALIGN, 0);
        shift_copy(&e, o, 131072 + 8 - o.addr);
        expect_within(&e, s->graph, ONLY(3), i);
        tried++;
    }
    assert_true(tried > 8);
}

/* ---- pieces ---- */

static void test_read_before_the_last_piece_breaks_1(void **state)
{
    (void)state;
    struct edit e = plan_pieces(); /* l0, l1 m1, l1 m0, l2: the whole of X2 before its first piece is there */
    move_instr(cycle_of(&e), find_cycle(&e, INSTR_FWD, 2), find_cycle(&e, INSTR_FWD, 3));
    expect_edit(&e, GRAPH_SIZES, ONLY(1));
    expect_text("Y1.0[0..168)");
    e = plan_pieces(); /* BWD l2, l1 m0, l1 m1, l0: dX1 likewise */
    move_instr(cycle_of(&e), find_cycle(&e, INSTR_BWD, 2), find_cycle(&e, INSTR_BWD, 3));
    expect_edit(&e, GRAPH_SIZES, ONLY(1));
    expect_text("dX1.0[200..400)");
}

/* A recomputation after the update reads a W that is too new. */
static void test_recomputation_after_the_update_breaks_1(void **state)
{
    (void)state;
    for (uint32_t late = 0; late < 2; late++) {
        struct edit e = plan_pieces();
        struct edit_program *p = cycle_of(&e);
        uint32_t at = find_cycle(&e, INSTR_UPD, 0) + late;
        edit_insert(p, at, &p->at.at[find_cycle(&e, INSTR_FWD, 4)]); /* layer 0 of the second half */
        p->at.at[at].in.kind = INSTR_REC;
        expect_edit(&e, GRAPH_SIZES, late ? ONLY(1) : 0);
    }
}

static void test_pieces_in_any_order_hold(void **state)
{
    (void)state;
    struct edit e = plan_pieces();
    move_instr(cycle_of(&e), find_cycle(&e, INSTR_FWD, 1), find_cycle(&e, INSTR_FWD, 2));
    expect_edit(&e, GRAPH_SIZES, 0);
}

static void test_sums_of_pieces_in_wrong_order_break_6(void **state)
{
    (void)state;
    struct edit e = plan_pieces();
    move_instr(cycle_of(&e), find_cycle(&e, INSTR_BWD, 1), find_cycle(&e, INSTR_BWD, 2));
    expect_edit(&e, GRAPH_SIZES, ONLY(6));
}

/* X1 is read and X2 written by layer 1; dX2 read and dX1 written. */
static void test_another_piece_breaks_10(void **state)
{
    (void)state;
    const enum tensor_kind kinds[] = {TENSOR_Y, TENSOR_DX};
    for (int what = 0; what < 8; what++) {
        struct edit e = plan_pieces();
        struct edit_instr *in = cycle_instr(&e, what < 4 ? INSTR_FWD : INSTR_BWD, 1); /* FWD m1, BWD m0 */
        struct plan_operand *o = operand_of(&e, in, kinds[what / 4], what % 2);
        int64_t piece = (int64_t)operand_bytes(o), sign = what < 4 ? -1 : 1;
        if (what / 2 % 2 == 0)
            slide(o, sign * piece, sign * piece); /* the other one */
        else
            slide(o, what < 4 ? -piece : 0, what < 4 ? 0 : piece); /* all of it */
        expect_edit(&e, GRAPH_SIZES, ONLY(10));
    }
}

/* A piece is put at the address of another piece. */
static void test_piece_beside_its_place_is_found(void **state)
{
    (void)state;
    struct edit e = plan_pieces_apart();
    const struct edit_program *p = cycle_of(&e);
    for (uint32_t i = 0; i < p->at.n; i++) {
        struct edit f = plan_pieces_apart();
        struct edit_instr *in = &cycle_of(&f)->at.at[i];
        struct plan_operand *to = &in->ops.at[in->ops.n - 1];
        bool gathers = in->in.kind == INSTR_SEND && to->loc == 0 && to->begin == 0;
        if (!gathers) {
            edit_finish(&f);
            continue;
        }
        to->addr += operand_bytes(to);
        expect_within(&f, GRAPH_SIZES, ONLY(1) | ONLY(2) | ONLY(3) | ONLY(4) | ONLY(7), i);
    }
    edit_finish(&e);
}

/* ---- waits ---- */

/* test_saboteur tests that each wait is needed. This test shows that waits depend on bytes and not on
 * tensors: two shares of one tensor are not ordered. */
static void test_shares_run_side_by_side(void **state)
{
    (void)state;
    struct edit e = plan_shares_device();
    for (int kind = INSTR_RED; kind <= INSTR_UPD; kind += INSTR_UPD - INSTR_RED) {
        const struct edit_instr *second = cycle_instr(&e, (enum instr_kind)kind, 1);
        assert_int_not_equal(second->in.stream, cycle_instr(&e, (enum instr_kind)kind, 0)->in.stream);
        for (size_t j = 0; j < second->waits.n; j++)
            assert_int_not_equal(second->waits.at[j].instr, find_cycle(&e, (enum instr_kind)kind, 0));
    }
    expect_edit(&e, GRAPH_PAIR, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans_hold),
        cmocka_unit_test(test_whole_update_with_parts_holds),
        cmocka_unit_test(test_reductions_in_wrong_order_break_6),
        cmocka_unit_test(test_missing_reduction_breaks_6),
        cmocka_unit_test(test_update_before_reduction_breaks_1),
        cmocka_unit_test(test_reduction_before_its_replica_breaks_1),
        cmocka_unit_test(test_wrong_replica_breaks_10),
        cmocka_unit_test(test_missing_share_breaks_6),
        cmocka_unit_test(test_repeated_share_breaks_6),
        cmocka_unit_test(test_share_of_what_is_done_breaks_6),
        cmocka_unit_test(test_shifted_share_breaks_6),
        cmocka_unit_test(test_shifted_operand_of_a_share_breaks_10),
        cmocka_unit_test(test_unaligned_share_breaks_10),
        cmocka_unit_test(test_wrong_parts_of_state_break_10),
        cmocka_unit_test(test_state_that_is_no_multiple_is_cut_in_proportion),
        cmocka_unit_test(test_parts_of_other_types_are_cut_by_elements),
        cmocka_unit_test(test_shares_of_equal_bytes_but_other_elements_break_10),
        cmocka_unit_test(test_empty_share_of_state_has_no_operand),
        cmocka_unit_test(test_share_of_other_tasks_breaks_10),
        cmocka_unit_test(test_list_of_another_breaks_10),
        cmocka_unit_test(test_swapped_owners_break_1),
        cmocka_unit_test(test_share_that_is_not_sent_breaks_1),
        cmocka_unit_test(test_shifted_move_is_found),
        cmocka_unit_test(test_ill_formed_copy_breaks_10),
        cmocka_unit_test(test_copy_onto_its_source_breaks_2),
        cmocka_unit_test(test_read_of_the_other_copy_breaks_1),
        cmocka_unit_test(test_update_of_the_other_copy_breaks_5_and_7),
        cmocka_unit_test(test_stale_copy_beside_the_new_one_breaks_7),
        cmocka_unit_test(test_dirty_range_that_is_dropped_breaks_5),
        cmocka_unit_test(test_range_that_does_not_come_home_breaks_9),
        cmocka_unit_test(test_range_that_entry_leaves_out_breaks_9),
        cmocka_unit_test(test_boundary_in_two_ranges_holds),
        cmocka_unit_test(test_other_ranges_in_the_boundary_are_found),
        cmocka_unit_test(test_unaligned_part_breaks_3),
        cmocka_unit_test(test_read_before_the_last_piece_breaks_1),
        cmocka_unit_test(test_recomputation_after_the_update_breaks_1),
        cmocka_unit_test(test_pieces_in_any_order_hold),
        cmocka_unit_test(test_sums_of_pieces_in_wrong_order_break_6),
        cmocka_unit_test(test_another_piece_breaks_10),
        cmocka_unit_test(test_piece_beside_its_place_is_found),
        cmocka_unit_test(test_shares_run_side_by_side),
    };
    return cmocka_run_group_tests(tests, make_plans, free_plans);
}
