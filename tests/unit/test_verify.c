/* Tests the verifier on plans made by hand: correct plans, and the same plans with each invariant broken in
 * turn. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "scheduler/verify/verify.h"
#include "tests/unit/toy_plans.h"

/* ---- expectations ---- */

#define ONLY(i) (1u << (i))

static unsigned numbers(const struct plan *p, const struct graph *eval, struct verify_report *r)
{
    struct err err = {0};
    unsigned set = 0;
    int status = plan_verify(p, &train_graph, eval, &machine, r, &err);
    for (int i = 1; i <= 10; i++)
        set |= r->by_number[i] > 0 ? ONLY(i) : 0;
    assert_int_equal(status, set == 0 ? 0 : -EBADMSG);
    assert_int_equal(set != 0, strncmp(err.msg, "invariant ", 10) == 0);
    return set;
}

static void expect_plan(const struct plan *p, const struct graph *eval, unsigned want)
{
    struct violation v[40];
    struct verify_report r = {.violations = v, .max = 40};
    unsigned got = numbers(p, eval, &r);
    if (got != want)
        print_error("%s:\n", p->policy);
    if (got != want)
        for (uint32_t i = 0; i < r.n; i++)
            print_error("[%d] %s\n", v[i].invariant, v[i].text);
    assert_int_equal(got, want);
}

static void expect_holds(const struct edit *e)
{
    struct plan *p = edit_pack(e);
    expect_plan(p, e->programs[PROGRAM_EVAL].at.n > 0 ? &eval_graph : NULL, 0);
    plan_destroy(p);
}

/* The edit breaks exactly these invariants; consumes it. */
static void expect_edit(struct edit *e, unsigned want)
{
    struct plan *p = edit_pack(e);
    expect_plan(p, e->programs[PROGRAM_EVAL].at.n > 0 ? &eval_graph : NULL, want);
    plan_destroy(p);
    edit_finish(e);
}

/* Verifies a plan with two steps in a cycle against the graphs with two steps; returns its violations. */
static unsigned verify_twice(struct edit *e)
{
    struct plan *p = edit_pack(e);
    struct verify_report r = {0};
    unsigned found = 0;
    plan_verify(p, &train_twice, e->programs[PROGRAM_EVAL].at.n > 0 ? &eval_twice : NULL, &machine, &r, NULL);
    for (int i = 1; i <= 10; i++)
        found |= r.by_number[i] > 0 ? ONLY(i) : 0;
    plan_destroy(p);
    edit_finish(e);
    return found;
}

static void expect_twice(struct edit *e, unsigned want)
{
    assert_int_equal(verify_twice(e), want);
}

static void expect_refused_twice(struct edit *e)
{
    assert_int_not_equal(verify_twice(e), 0);
}

static struct edit_instr *cycle_instr(struct edit *e, enum instr_kind kind, tensor_id t)
{
    struct edit_program *p = &e->programs[PROGRAM_CYCLE];
    return &p->at.at[edit_find(p, kind, t, 0)];
}

static void remove_from(struct edit *e, enum program_kind k, enum instr_kind kind, tensor_id t)
{
    edit_remove(&e->programs[k], edit_find(&e->programs[k], kind, t, 0));
}

/* All operands of the tensor on the device, in all programs and the boundary. */
static void shift(struct edit *e, tensor_id t, uint32_t d, uint64_t by)
{
    for (int k = 0; k < PROGRAM_COUNT; k++)
        for (size_t i = 0; i < e->programs[k].at.n; i++)
            for (size_t j = 0; j < e->programs[k].at.at[i].ops.n; j++) {
                struct plan_operand *o = &e->programs[k].at.at[i].ops.at[j];
                if (o->tensor == t && o->loc == d)
                    o->addr += by;
            }
    for (size_t i = 0; i < e->boundary.n; i++)
        if (e->boundary.at[i].tensor == t && e->boundary.at[i].device == d)
            e->boundary.at[i].addr += by;
}

/* ---- good plans ---- */

static void test_good_plan_on_one_device_holds(void **state)
{
    (void)state;
    struct edit e = plan_one();
    expect_edit(&e, 0);
}

static void test_good_plan_on_two_devices_holds(void **state)
{
    (void)state;
    struct edit e = plan_two();
    expect_edit(&e, 0);
}

static void test_good_plan_of_two_steps_holds(void **state)
{
    (void)state;
    struct edit e = plan_one_twice();
    expect_twice(&e, 0);
}

static void test_report_may_be_absent(void **state)
{
    (void)state;
    struct edit e = plan_one();
    struct plan *p = edit_pack(&e);
    assert_int_equal(plan_verify(p, &train_graph, &eval_graph, &machine, NULL, NULL), 0);
    p->steps = 0;
    assert_int_equal(plan_verify(p, &train_graph, &eval_graph, &machine, NULL, NULL), -EBADMSG);
    plan_destroy(p);
    edit_finish(&e);
}

static void test_violation_names_program_instruction_and_tensor(void **state)
{
    (void)state;
    struct edit e = plan_one();
    remove_from(&e, PROGRAM_CYCLE, INSTR_FETCH, T_1);
    struct plan *p = edit_pack(&e);
    struct violation v[4];
    struct verify_report r = {.violations = v, .max = 4};
    struct err err;
    assert_int_equal(plan_verify(p, &train_graph, &eval_graph, &machine, &r, &err), -EBADMSG);
    assert_int_equal(r.total, 1);
    assert_int_equal(v[0].program, PROGRAM_CYCLE);
    assert_int_equal(p->programs[PROGRAM_CYCLE].instrs[v[0].instr].kind, INSTR_FWD);
    assert_non_null(strstr(v[0].text, "FWD l1 m1 on d0.compute"));
    assert_non_null(strstr(v[0].text, "T1.1"));
    assert_non_null(strstr(v[0].text, "d0:3072"));
    assert_non_null(strstr(err.msg, "invariant 1: "));
    plan_destroy(p);
    edit_finish(&e);
}

/* ---- [1] ---- */

static void test_missing_fetch_breaks_1(void **state)
{
    (void)state;
    struct edit e = plan_one();
    remove_from(&e, PROGRAM_CYCLE, INSTR_FETCH, X0_1);
    expect_edit(&e, ONLY(1));
    e = plan_one();
    remove_from(&e, PROGRAM_EVAL, INSTR_FETCH, X0_1);
    expect_edit(&e, ONLY(1));
}

static void test_missing_fetch_of_a_later_step_breaks_1(void **state)
{
    (void)state;
    struct edit e = plan_one_twice();
    remove_from(&e, PROGRAM_CYCLE, INSTR_FETCH, toy_of_step(X0_0, 1));
    expect_twice(&e, ONLY(1));
}

static void test_partial_fetch_breaks_1(void **state)
{
    (void)state;
    struct edit e = plan_one();
    struct edit_instr *in = cycle_instr(&e, INSTR_FETCH, X0_0);
    in->ops.at[0].end = in->ops.at[1].end = 100;
    expect_edit(&e, ONLY(1));
}

static void test_split_fetch_holds(void **state)
{
    (void)state;
    struct edit e = plan_one();
    struct edit_program *p = &e.programs[PROGRAM_CYCLE];
    uint32_t i = edit_find(p, INSTR_FETCH, K, 0);
    edit_insert(p, i, &p->at.at[i]); /* the first half, with the same waits */
    for (size_t j = 0; j < p->at.at[i + 1].waits.n; j++)
        vec_push(&p->at.at[i].waits, p->at.at[i + 1].waits.at[j]);
    for (int o = 0; o < 2; o++) {
        p->at.at[i].ops.at[o].end = 256;
        p->at.at[i + 1].ops.at[o].begin = 256;
        p->at.at[i + 1].ops.at[o].addr += 256;
    }
    expect_edit(&e, 0);
}

static void test_read_at_wrong_address_breaks_1(void **state)
{
    (void)state;
    struct edit e = plan_one();
    cycle_instr(&e, INSTR_FWD, X0_0)->ops.at[1].addr += 2560;
    expect_edit(&e, ONLY(1));
}

/* W is updated while a backward pass still needs the old one. */
static void test_early_update_breaks_1(void **state)
{
    (void)state;
    struct edit e = plan_one();
    struct edit_program *p = &e.programs[PROGRAM_CYCLE];
    shift(&e, K, 0, 4096);
    edit_move(p, edit_find(p, INSTR_FETCH, K, 0), 0);
    p->at.at[0].waits.n = 0;
    edit_wait(p, 0, edit_find(p, INSTR_DROP, K, 0), 1);
    edit_wait(p, 0, edit_find(p, INSTR_DROP, DW, 0), 1);
    expect_holds(&e);
    edit_move(p, edit_find(p, INSTR_UPD, W, 0), edit_find(p, INSTR_BWD, X0_1, 0));
    expect_edit(&e, ONLY(1));
}

static void test_drop_of_what_is_not_there_breaks_1(void **state)
{
    (void)state;
    struct edit e = plan_one();
    struct edit_program *p = &e.programs[PROGRAM_CYCLE];
    uint32_t i = edit_find(p, INSTR_DROP, X0_0, 0);
    edit_insert(p, i + 1, &p->at.at[i]);
    expect_edit(&e, ONLY(1));
    e = plan_one();
    cycle_instr(&e, INSTR_DROP, T_1)->ops.at[0].addr += 1024;
    expect_edit(&e, ONLY(1));
}

static void test_spill_of_what_is_not_there_breaks_1(void **state)
{
    (void)state;
    struct edit e = plan_one();
    struct edit_program *p = &e.programs[PROGRAM_CYCLE];
    edit_insert(p, 0, &p->at.at[edit_find(p, INSTR_SPILL, R_0, 0)]);
    struct plan *plan = edit_pack(&e);
    struct violation v[40];
    struct verify_report r = {.violations = v, .max = 40};
    unsigned got = numbers(plan, &eval_graph, &r);
    assert_true(got & ONLY(1));
    plan_destroy(plan);
    edit_finish(&e);
}

/* ---- [2] ---- */

static void test_overlapping_addresses_break_2(void **state)
{
    (void)state;
    struct edit e = plan_one();
    shift(&e, X0_1, 0, 256); /* onto X1.0 */
    expect_edit(&e, ONLY(2));
    e = plan_one();
    shift(&e, W, 0, 256); /* onto K, S */
    expect_edit(&e, ONLY(2));
}

/* A device may have two copies of a tensor, but not on each other, and both must go. */
static void test_second_copy_on_the_first_breaks_2(void **state)
{
    (void)state;
    for (int overlaps = 0; overlaps < 2; overlaps++) {
        struct edit e = plan_one();
        struct edit_program *p = &e.programs[PROGRAM_CYCLE];
        shift(&e, K, 0, 4096 - 512);
        uint32_t i = edit_find(p, INSTR_FETCH, K, 0), drop = edit_find(p, INSTR_DROP, K, 0);
        edit_insert(p, drop, &p->at.at[drop]);
        p->at.at[drop].ops.at[0].addr += overlaps ? 256 : 512;
        edit_insert(p, i, &p->at.at[i]);
        p->at.at[i].ops.at[1].addr += overlaps ? 256 : 512;
        edit_wait(p, i, edit_find(p, INSTR_DROP, K, 1), 1);
        expect_edit(&e, overlaps ? ONLY(2) : 0);
    }
}

static void test_second_copy_left_over_breaks_7(void **state)
{
    (void)state;
    struct edit e = plan_one();
    struct edit_program *p = &e.programs[PROGRAM_CYCLE];
    uint32_t i = edit_find(p, INSTR_FETCH, X0_0, 0);
    edit_insert(p, i, &p->at.at[i]);
    p->at.at[i].ops.at[1].addr = 4096;
    expect_edit(&e, ONLY(7));
}

static void test_reuse_of_an_address_without_wait_breaks_2(void **state)
{
    (void)state;
    struct edit e = plan_two();
    struct edit_instr *fwd = cycle_instr(&e, INSTR_FWD, X0_1); /* X1.0 may still be there */
    fwd->waits.n--;
    expect_edit(&e, ONLY(2));
}

static void test_missing_drop_breaks_2(void **state)
{
    (void)state;
    struct edit e = plan_one();
    remove_from(&e, PROGRAM_CYCLE, INSTR_DROP, DX_0); /* dX.1 has the same address */
    expect_edit(&e, ONLY(2));
}

/* ---- [3] ---- */

static void test_unaligned_address_breaks_3(void **state)
{
    (void)state;
    struct edit e = plan_one();
    shift(&e, R_1, 0, 1);
    expect_edit(&e, ONLY(3));
}

static void test_address_outside_lease_breaks_3(void **state)
{
    (void)state;
    struct edit e = plan_one();
    shift(&e, X0_0, 0, LEASE - 1536 - 256); /* just fits */
    expect_edit(&e, 0);
    e = plan_one();
    shift(&e, X0_0, 0, LEASE - 1536);
    expect_edit(&e, ONLY(3));
    e = plan_one();
    shift(&e, W, 0, LEASE);
    expect_edit(&e, ONLY(3));
    e = plan_one();
    e.header.devices[0].peak_bytes = LEASE + 256;
    expect_edit(&e, ONLY(3));
}

static void test_address_that_wraps_around_breaks_3(void **state)
{
    (void)state;
    struct edit e = plan_one();
    cycle_instr(&e, INSTR_FETCH, K)->ops.at[1].addr = UINT64_MAX - 255;
    expect_edit(&e, ONLY(3));
    e = plan_one();
    e.boundary.at[0].addr = UINT64_MAX - 255;
    expect_edit(&e, ONLY(3));
}

/* ---- [4] ---- */

static void test_missing_wait_breaks_4(void **state)
{
    (void)state;
    struct edit e = plan_one();
    cycle_instr(&e, INSTR_SPILL, K)->waits.n = 0;
    expect_edit(&e, ONLY(4));
    e = plan_one();
    cycle_instr(&e, INSTR_UPD, W)->waits.n = 0;
    expect_edit(&e, ONLY(4));
}

static void test_drop_unordered_with_a_reader_breaks_4(void **state)
{
    (void)state;
    struct edit e = plan_one();
    struct edit_program *p = &e.programs[PROGRAM_CYCLE];
    uint32_t i = edit_find(p, INSTR_DROP, X0_1, 0);
    p->at.at[i].in.stream = plan_stream(0, LANE_IN); /* before the fetch of K, so that nothing else changes */
    expect_edit(&e, ONLY(4));
}

static void test_host_copy_read_before_written_breaks_4(void **state)
{
    (void)state;
    struct edit e = plan_two(); /* UPD writes the host's W: not before the fetch has read it */
    cycle_instr(&e, INSTR_UPD, W)->waits.n = 0;
    expect_edit(&e, ONLY(4));
    e = plan_two(); /* and the next fetch not before UPD has written it */
    cycle_instr(&e, INSTR_FETCH, W)->waits.n = 1;
    expect_edit(&e, ONLY(4));
}

static void test_every_wait_of_plan_one_is_needed(void **state)
{
    (void)state;
    struct edit e = plan_one();
    struct plan *p = edit_pack(&e);
    for (int k = 0; k < PROGRAM_COUNT; k++)
        for (uint32_t i = 0; i < p->programs[k].n_instrs; i++) {
            struct plan_instr *in = &p->programs[k].instrs[i];
            for (uint32_t j = 0; j < in->n_waits; j++) {
                struct plan_wait *w = &p->programs[k].waits[in->wait], saved = w[j];
                w[j] = w[in->n_waits - 1];
                in->n_waits--;
                struct verify_report r = {0};
                unsigned got = numbers(p, &eval_graph, &r);
                if (got == 0 || (got & ~(ONLY(2) | ONLY(4))) != 0)
                    fail_msg("%s#%u without its wait for #%u: %x", program_kind_names[k], i, saved.instr,
                             got);
                in->n_waits++;
                w[j] = saved;
            }
        }
    plan_destroy(p);
    edit_finish(&e);
}

/* ---- [5] ---- */

static void test_drop_of_dirty_state_breaks_5(void **state)
{
    (void)state;
    struct edit e = plan_one();
    remove_from(&e, PROGRAM_CYCLE, INSTR_SPILL, K);
    edit_wait(&e.programs[PROGRAM_CYCLE], edit_find(&e.programs[PROGRAM_CYCLE], INSTR_DROP, K, 0),
              edit_find(&e.programs[PROGRAM_CYCLE], INSTR_UPD, K, 0), 0);
    expect_edit(&e, ONLY(5));
    e = plan_one();
    remove_from(&e, PROGRAM_EXIT, INSTR_SPILL, W);
    expect_edit(&e, ONLY(5));
}

static void test_partial_spill_of_dirty_state_breaks_5(void **state)
{
    (void)state;
    struct edit e = plan_one();
    struct edit_instr *in = cycle_instr(&e, INSTR_SPILL, K);
    in->ops.at[0].end = in->ops.at[1].end = 256;
    expect_edit(&e, ONLY(5));
}

static void test_fetch_over_newer_state_breaks_5(void **state)
{
    (void)state;
    struct edit e = plan_one();
    struct edit_program *p = &e.programs[PROGRAM_CYCLE];
    uint32_t i = edit_find(p, INSTR_SPILL, K, 0), upd = edit_find(p, INSTR_UPD, K, 0);
    edit_insert(p, i, &p->at.at[edit_find(p, INSTR_FETCH, K, 0)]);
    edit_wait(p, i, upd, 0);
    edit_wait(p, i + 1, i, 0);
    expect_edit(&e, ONLY(5));
}

/* ---- [6] ---- */

static void test_missing_task_breaks_6(void **state)
{
    (void)state;
    struct edit e = plan_one();
    remove_from(&e, PROGRAM_CYCLE, INSTR_UPD, W);
    expect_edit(&e, ONLY(6));
    e = plan_one();
    remove_from(&e, PROGRAM_EVAL, INSTR_FWD, R_1);
    expect_edit(&e, ONLY(6));
}

static void test_repeated_task_breaks_6(void **state)
{
    (void)state;
    struct edit e = plan_one();
    struct edit_program *p = &e.programs[PROGRAM_CYCLE];
    uint32_t i = edit_find(p, INSTR_FWD, X0_0, 0);
    edit_insert(p, i + 1, &p->at.at[i]);
    expect_edit(&e, ONLY(6));
}

static void test_sum_in_wrong_order_breaks_6(void **state)
{
    (void)state;
    struct edit e = plan_one();
    struct edit_program *p = &e.programs[PROGRAM_CYCLE];
    edit_move(p, edit_find(p, INSTR_BWD, X0_0, 0), edit_find(p, INSTR_BWD, X0_1, 0));
    expect_edit(&e, ONLY(6));
}

static void test_task_outside_cycle_breaks_6(void **state)
{
    (void)state;
    struct edit e = plan_one();
    const struct edit_instr *upd = cycle_instr(&e, INSTR_UPD, W);
    edit_insert(&e.programs[PROGRAM_FLUSH], 0, upd);
    expect_edit(&e, ONLY(6));
}

static void test_recomputed_result_breaks_6(void **state)
{
    (void)state;
    struct edit e = plan_one();
    struct edit_program *p = &e.programs[PROGRAM_CYCLE];
    uint32_t i = edit_find(p, INSTR_FWD, R_0, 0);
    edit_insert(p, i + 1, &p->at.at[i]);
    p->at.at[i + 1].in.kind = INSTR_REC;
    expect_edit(&e, ONLY(6));
}

static void test_step_without_tasks_breaks_6(void **state)
{
    (void)state;
    struct edit e = plan_one_twice();
    edit_remove(&e.programs[PROGRAM_CYCLE], edit_find(&e.programs[PROGRAM_CYCLE], INSTR_UPD, W, 1));
    expect_twice(&e, ONLY(6));
    e = plan_one_twice(); /* step 0 twice and step 1 not at all */
    struct edit_program *p = &e.programs[PROGRAM_CYCLE];
    p->at.at[edit_find(p, INSTR_UPD, W, 1)].in.step = 0;
    expect_refused_twice(&e);
}

/* ---- [7] ---- */

static void test_copy_left_over_breaks_7(void **state)
{
    (void)state;
    struct edit e = plan_one();
    remove_from(&e, PROGRAM_CYCLE, INSTR_DROP, DW);
    expect_edit(&e, ONLY(7));
}

static void test_copy_gone_breaks_7(void **state)
{
    (void)state;
    struct edit e = plan_one();
    struct edit_program *p = &e.programs[PROGRAM_CYCLE];
    const struct edit_program *exit = &e.programs[PROGRAM_EXIT]; /* W goes home and away */
    edit_insert(p, (uint32_t)p->at.n, &exit->at.at[edit_find(exit, INSTR_SPILL, W, 0)]);
    edit_insert(p, (uint32_t)p->at.n, &exit->at.at[edit_find(exit, INSTR_DROP, W, 0)]);
    edit_wait(p, edit_find(p, INSTR_SPILL, W, 0), edit_find(p, INSTR_UPD, W, 0), 0);
    expect_edit(&e, ONLY(7));
}

static void test_stale_copy_in_boundary_breaks_7(void **state)
{
    (void)state;
    struct edit e = plan_two(); /* W stays on d0 while the host updates it */
    struct edit_program *p = &e.programs[PROGRAM_CYCLE], *entry = &e.programs[PROGRAM_ENTRY];
    uint32_t fetch_w = edit_find(p, INSTR_FETCH, W, 0), drop_w = edit_find(p, INSTR_DROP, W, 0);
    edit_insert(entry, 0, &p->at.at[fetch_w]);
    edit_insert(&e.programs[PROGRAM_EXIT], 0, &p->at.at[drop_w]);
    /* The drop keeps its place in the web of waits, as that of the S beside it. */
    edit_move(p, edit_find(p, INSTR_DROP, S_1, 0), drop_w);
    drop_w = edit_find(p, INSTR_DROP, W, 0);
    for (size_t i = 0; i < p->at.n; i++)
        for (size_t j = 0; j < p->at.at[i].waits.n; j++)
            if (p->at.at[i].waits.at[j].instr == drop_w)
                p->at.at[i].waits.at[j].instr = edit_find(p, INSTR_DROP, S_1, 0);
    edit_remove(p, drop_w);
    vec_push(&e.boundary, (struct plan_copy){W, 0, 0, 512, 0});
    /* The fetch at the start of the cycle brings the new W: all holds but the boundary. */
    expect_edit(&e, ONLY(7));
}

/* ---- [8] ---- */

static void test_wait_for_a_later_instruction_breaks_8(void **state)
{
    (void)state;
    struct edit e = plan_one();
    edit_wait(&e.programs[PROGRAM_CYCLE], 3, 7, 0);
    expect_edit(&e, ONLY(8));
    e = plan_one();
    edit_wait(&e.programs[PROGRAM_CYCLE], 3, 3, 0);
    expect_edit(&e, ONLY(8));
}

static void test_distance_outside_cycle_breaks_8(void **state)
{
    (void)state;
    struct edit e = plan_one();
    edit_wait(&e.programs[PROGRAM_EXIT], 1, 0, 1);
    expect_edit(&e, ONLY(8));
}

/* ---- [9] ---- */

static void test_entry_that_leaves_a_gap_breaks_9(void **state)
{
    (void)state;
    struct edit e = plan_one();
    remove_from(&e, PROGRAM_ENTRY, INSTR_FETCH, W);
    expect_edit(&e, ONLY(9));
}

static void test_flush_that_flushes_nothing_breaks_9(void **state)
{
    (void)state;
    struct edit e = plan_one();
    remove_from(&e, PROGRAM_FLUSH, INSTR_SPILL, W);
    expect_edit(&e, ONLY(9));
}

static void test_exit_that_leaves_a_copy_breaks_9(void **state)
{
    (void)state;
    struct edit e = plan_one();
    remove_from(&e, PROGRAM_EXIT, INSTR_DROP, W);
    expect_edit(&e, ONLY(9));
}

static void test_flush_that_drops_breaks_9(void **state)
{
    (void)state;
    struct edit e = plan_one();
    edit_insert(&e.programs[PROGRAM_FLUSH], 1, &e.programs[PROGRAM_EXIT].at.at[1]);
    expect_edit(&e, ONLY(9));
}

static void test_eval_that_leaves_a_copy_breaks_9(void **state)
{
    (void)state;
    struct edit e = plan_one();
    remove_from(&e, PROGRAM_EVAL, INSTR_DROP, W);
    expect_edit(&e, ONLY(9));
}

static void test_result_that_stays_away_breaks_9(void **state)
{
    (void)state;
    for (enum program_kind k = PROGRAM_CYCLE; k <= PROGRAM_EVAL; k += PROGRAM_EVAL - PROGRAM_CYCLE) {
        struct edit e = plan_one();
        struct edit_program *p = &e.programs[k];
        edit_wait(p, edit_find(p, INSTR_DROP, R_1, 0), edit_find(p, INSTR_FWD, R_1, 0), 0);
        remove_from(&e, k, INSTR_SPILL, R_1);
        expect_edit(&e, ONLY(9));
    }
}

static void test_missing_result_of_a_later_step_breaks_9(void **state)
{
    (void)state;
    struct edit e = plan_one_twice();
    struct edit_program *p = &e.programs[PROGRAM_CYCLE];
    tensor_id result = toy_of_step(R_1, 1);
    edit_wait(p, edit_find(p, INSTR_DROP, result, 0), edit_find(p, INSTR_FWD, result, 0), 0);
    remove_from(&e, PROGRAM_CYCLE, INSTR_SPILL, result);
    expect_twice(&e, ONLY(9));
}

/* ---- [10] ---- */

typedef void edit_fn(struct edit *e);

static void fetch_backwards(struct edit *e)
{
    struct edit_instr *in = cycle_instr(e, INSTR_FETCH, K);
    struct plan_operand o = in->ops.at[0];
    in->ops.at[0] = in->ops.at[1];
    in->ops.at[1] = o;
}

static void no_host_slot(struct edit *e)
{
    struct plan_tensor *t = &e->tensors.at[S_0];
    struct edit_instr *in = cycle_instr(e, INSTR_FETCH, K);
    t->host_offset = PLAN_NO_HOST;
    t->host_slots = 0;
    in->ops.at[0].tensor = in->ops.at[1].tensor = S_0;
    in->ops.at[0].end = in->ops.at[1].end = 256;
}

static void operand_too_many(struct edit *e)
{
    struct edit_instr *in = cycle_instr(e, INSTR_FWD, R_0);
    vec_push(&in->ops, in->ops.at[0]);
}

static void operands_swapped(struct edit *e)
{
    struct edit_instr *in = cycle_instr(e, INSTR_UPD, W);
    struct plan_operand o = in->ops.at[1];
    in->ops.at[1] = in->ops.at[2];
    in->ops.at[2] = o;
}

static void operand_on_host(struct edit *e)
{
    struct plan_operand *o = &cycle_instr(e, INSTR_UPD, W)->ops.at[1];
    o->loc = PLAN_HOST;
    o->addr = e->tensors.at[W].host_offset;
}

#define EDIT(name, ...)                                                                                      \
    static void name(struct edit *e)                                                                         \
    {                                                                                                        \
        __VA_ARGS__;                                                                                         \
    }

/* clang-format off */
EDIT(bad_devices, e->header.n_devices = 3)
EDIT(no_devices, e->header.n_devices = 0)
EDIT(many_devices, e->header.n_devices = UINT32_MAX)
EDIT(bad_layers, e->header.n_layers = 3)
EDIT(bad_micros, e->header.n_micro = 1)
EDIT(bad_rows, e->header.rows++)
EDIT(bad_replicas, e->header.n_replicas = 2)
EDIT(no_steps, e->header.steps = 0)
EDIT(many_steps, e->header.steps = UINT32_MAX)
EDIT(fewer_tensors, e->tensors.n--)
EDIT(bad_tensor_kind, e->tensors.at[W].kind = TENSOR_K)
EDIT(wild_tensor_kind, e->tensors.at[W].kind = (enum tensor_kind)77)
EDIT(bad_tensor_layer, e->tensors.at[W].layer = 1)
EDIT(bad_tensor_bytes, e->tensors.at[W].bytes = UINT64_MAX)
EDIT(unaligned_slot, e->tensors.at[K].host_offset += 1)
EDIT(overlapping_slots, e->tensors.at[W].host_offset += 512)
EDIT(slots_missing, e->tensors.at[X0_0].host_slots = 1)
EDIT(slots_too_many, e->tensors.at[W].host_slots = 2)
EDIT(slots_wild, e->tensors.at[X0_0].host_slots = UINT32_MAX)
EDIT(slot_without_home, e->tensors.at[S_0].host_offset = 4096; e->tensors.at[S_0].host_slots = 1)
EDIT(offset_without_slots, e->tensors.at[K].host_slots = 0)
EDIT(slot_outside_pool, e->tensors.at[K].host_offset = e->header.host_bytes)
EDIT(slot_wraps_around, e->tensors.at[K].host_offset = UINT64_MAX - 255)
EDIT(pool_too_small, e->header.host_bytes -= 768)
EDIT(pool_over_lease, e->header.host_lease_bytes = e->header.host_bytes - 1)
EDIT(host_lease_over_machine, e->header.host_lease_bytes = machine.host_bytes + 1)
EDIT(lease_over_machine, e->header.devices[0].lease_bytes = LEASE + 256)
EDIT(peak_too_low, e->header.devices[0].peak_bytes = 3584)
EDIT(boundary_tensor, e->boundary.at[0].tensor = N_TENSORS)
EDIT(boundary_device, e->boundary.at[0].device = 1)
EDIT(boundary_range, e->boundary.at[0].end++)
EDIT(boundary_unsorted, vec_push(&e->boundary, e->boundary.at[0]))
EDIT(wild_kind, cycle_instr(e, INSTR_FETCH, K)->in.kind = (enum instr_kind)99)
EDIT(wild_stream, cycle_instr(e, INSTR_FETCH, K)->in.stream = 5)
EDIT(wild_step, cycle_instr(e, INSTR_FETCH, K)->in.step = 1)
EDIT(wild_tensor, cycle_instr(e, INSTR_FETCH, K)->ops.at[0].tensor = N_TENSORS)
EDIT(wild_loc, cycle_instr(e, INSTR_FETCH, K)->ops.at[1].loc = 1)
EDIT(wild_access, cycle_instr(e, INSTR_FETCH, K)->ops.at[1].access = (enum access)7)
EDIT(wild_range, cycle_instr(e, INSTR_FETCH, K)->ops.at[1].end = UINT64_MAX)
EDIT(backward_range, cycle_instr(e, INSTR_FETCH, K)->ops.at[1].begin = 513)
EDIT(wild_wait, cycle_instr(e, INSTR_FETCH, K)->waits.at[0].instr = 1000)
EDIT(wild_distance, cycle_instr(e, INSTR_FETCH, K)->waits.at[0].distance = UINT32_MAX)
EDIT(wrong_lane, cycle_instr(e, INSTR_FETCH, K)->in.stream = LANE_OUT)
EDIT(task_on_copy_lane, cycle_instr(e, INSTR_UPD, K)->in.stream = LANE_OUT)
EDIT(task_on_host, cycle_instr(e, INSTR_FWD, W)->in.stream = 4)
EDIT(drop_on_host, cycle_instr(e, INSTR_DROP, K)->in.stream = 4)
EDIT(move_with_layer, cycle_instr(e, INSTR_FETCH, K)->in.layer = 0)
EDIT(wrong_layer, cycle_instr(e, INSTR_FWD, W)->in.layer = 7)
EDIT(wrong_replica, cycle_instr(e, INSTR_FWD, W)->in.replica = 1)
EDIT(fetch_of_two, cycle_instr(e, INSTR_FETCH, K)->ops.at[1].tensor = W)
EDIT(fetch_with_one, cycle_instr(e, INSTR_FETCH, K)->ops.n = 1)
EDIT(fetch_ranges_differ, cycle_instr(e, INSTR_FETCH, K)->ops.at[0].end = 256)
EDIT(wrong_host_address, cycle_instr(e, INSTR_FETCH, K)->ops.at[0].addr += 256)
EDIT(operand_left_out, cycle_instr(e, INSTR_UPD, W)->ops.n--)
EDIT(operand_access, cycle_instr(e, INSTR_UPD, W)->ops.at[1].access = ACCESS_READ)
EDIT(operand_partial, cycle_instr(e, INSTR_UPD, W)->ops.at[1].end = 256)
/* clang-format on */

/* In plan two, dW is on the host for a while: it is spilled, and the update reads it there. */
static void move_gradient(struct edit *e, uint64_t spilled_to, uint64_t read_at)
{
    cycle_instr(e, INSTR_SPILL, DW)->ops.at[1].addr = spilled_to;
    struct edit_instr *update = cycle_instr(e, INSTR_UPD, W);
    for (size_t j = 0; j < update->ops.n; j++)
        if (update->ops.at[j].tensor == DW)
            update->ops.at[j].addr = read_at;
}

static void test_places_in_host_memory(void **state)
{
    (void)state;
    struct edit e = plan_two();
    uint64_t end = e.header.host_bytes, of_w = e.tensors.at[W].host_offset;
    uint64_t place = cycle_instr(&e, INSTR_SPILL, DW)->ops.at[1].addr;
    e.header.host_bytes += 512;
    move_gradient(&e, end, end); /* elsewhere is as good */
    expect_edit(&e, 0);
    e = plan_two();
    move_gradient(&e, place, end);
    expect_edit(&e, ONLY(10)); /* outside the pool */
    e = plan_two();
    e.header.host_bytes += 512;
    move_gradient(&e, place, end);
    expect_edit(&e, ONLY(1)); /* it was spilled to another place */
    e = plan_two();
    move_gradient(&e, of_w + 256, of_w + 256);
    expect_edit(&e, ONLY(10)); /* where W is at home */
    e = plan_two();
    e.header.host_bytes += 512;
    move_gradient(&e, end - 8, end - 8);
    expect_edit(&e, ONLY(3)); /* not aligned */
}

static void test_disagreement_breaks_10(void **state)
{
    (void)state;
    static edit_fn *const edits[] = {
        bad_devices,
        no_devices,
        many_devices,
        bad_layers,
        bad_micros,
        bad_rows,
        bad_replicas,
        no_steps,
        many_steps,
        fewer_tensors,
        bad_tensor_kind,
        wild_tensor_kind,
        bad_tensor_layer,
        bad_tensor_bytes,
        unaligned_slot,
        overlapping_slots,
        slots_missing,
        slots_too_many,
        slots_wild,
        slot_without_home,
        offset_without_slots,
        slot_outside_pool,
        slot_wraps_around,
        pool_too_small,
        pool_over_lease,
        host_lease_over_machine,
        lease_over_machine,
        peak_too_low,
        boundary_tensor,
        boundary_device,
        boundary_range,
        boundary_unsorted,
        wild_kind,
        wild_stream,
        wild_step,
        wild_tensor,
        wild_loc,
        wild_access,
        wild_range,
        backward_range,
        wild_wait,
        wild_distance,
        wrong_lane,
        task_on_copy_lane,
        task_on_host,
        drop_on_host,
        move_with_layer,
        wrong_layer,
        wrong_replica,
        fetch_of_two,
        fetch_with_one,
        fetch_ranges_differ,
        fetch_backwards,
        wrong_host_address,
        no_host_slot,
        operand_left_out,
        operand_too_many,
        operands_swapped,
        operand_access,
        operand_partial,
        operand_on_host,
    };
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        struct edit e = plan_one();
        edits[i](&e);
        snprintf(e.header.policy, sizeof e.header.policy, "edit %zu", i); /* for who looks why it failed */
        expect_edit(&e, ONLY(10));
    }
}

static void test_eval_without_graph_breaks_10(void **state)
{
    (void)state;
    struct edit e = plan_one();
    struct plan *p = edit_pack(&e);
    expect_plan(p, NULL, ONLY(10));
    plan_destroy(p);
    edit_finish(&e);
}

static void test_recomputation_of_nothing_breaks_10(void **state)
{
    (void)state;
    struct edit e = plan_two();
    cycle_instr(&e, INSTR_REC, S_0)->ops.n--;
    expect_edit(&e, ONLY(10));
}

/* Lists that run out of their arrays, as only a file could have them. */
static void test_lists_out_of_range_break_10(void **state)
{
    (void)state;
    for (int what = 0; what < 6; what++) {
        struct edit e = plan_one();
        struct plan *p = edit_pack(&e);
        struct plan_program *prog = &p->programs[PROGRAM_CYCLE];
        struct plan_instr *in = &prog->instrs[9];
        if (what == 0)
            in->operand = prog->n_operands;
        else if (what == 1)
            in->operand = UINT32_MAX;
        else if (what == 2)
            in->n_operands = UINT32_MAX;
        else if (what == 3)
            in->wait = UINT32_MAX, in->n_waits = 2;
        else if (what == 4)
            in->wait = 0, in->n_waits = prog->n_waits; /* waits of others */
        else
            prog->operands = NULL;
        expect_plan(p, &eval_graph, ONLY(10));
        plan_destroy(p);
        edit_finish(&e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_plan_on_one_device_holds),
        cmocka_unit_test(test_good_plan_on_two_devices_holds),
        cmocka_unit_test(test_good_plan_of_two_steps_holds),
        cmocka_unit_test(test_report_may_be_absent),
        cmocka_unit_test(test_violation_names_program_instruction_and_tensor),
        cmocka_unit_test(test_missing_fetch_breaks_1),
        cmocka_unit_test(test_missing_fetch_of_a_later_step_breaks_1),
        cmocka_unit_test(test_partial_fetch_breaks_1),
        cmocka_unit_test(test_split_fetch_holds),
        cmocka_unit_test(test_read_at_wrong_address_breaks_1),
        cmocka_unit_test(test_early_update_breaks_1),
        cmocka_unit_test(test_drop_of_what_is_not_there_breaks_1),
        cmocka_unit_test(test_spill_of_what_is_not_there_breaks_1),
        cmocka_unit_test(test_overlapping_addresses_break_2),
        cmocka_unit_test(test_second_copy_on_the_first_breaks_2),
        cmocka_unit_test(test_reuse_of_an_address_without_wait_breaks_2),
        cmocka_unit_test(test_missing_drop_breaks_2),
        cmocka_unit_test(test_unaligned_address_breaks_3),
        cmocka_unit_test(test_address_outside_lease_breaks_3),
        cmocka_unit_test(test_address_that_wraps_around_breaks_3),
        cmocka_unit_test(test_missing_wait_breaks_4),
        cmocka_unit_test(test_drop_unordered_with_a_reader_breaks_4),
        cmocka_unit_test(test_host_copy_read_before_written_breaks_4),
        cmocka_unit_test(test_every_wait_of_plan_one_is_needed),
        cmocka_unit_test(test_drop_of_dirty_state_breaks_5),
        cmocka_unit_test(test_partial_spill_of_dirty_state_breaks_5),
        cmocka_unit_test(test_fetch_over_newer_state_breaks_5),
        cmocka_unit_test(test_missing_task_breaks_6),
        cmocka_unit_test(test_repeated_task_breaks_6),
        cmocka_unit_test(test_sum_in_wrong_order_breaks_6),
        cmocka_unit_test(test_task_outside_cycle_breaks_6),
        cmocka_unit_test(test_recomputed_result_breaks_6),
        cmocka_unit_test(test_step_without_tasks_breaks_6),
        cmocka_unit_test(test_copy_left_over_breaks_7),
        cmocka_unit_test(test_second_copy_left_over_breaks_7),
        cmocka_unit_test(test_copy_gone_breaks_7),
        cmocka_unit_test(test_stale_copy_in_boundary_breaks_7),
        cmocka_unit_test(test_wait_for_a_later_instruction_breaks_8),
        cmocka_unit_test(test_distance_outside_cycle_breaks_8),
        cmocka_unit_test(test_entry_that_leaves_a_gap_breaks_9),
        cmocka_unit_test(test_flush_that_flushes_nothing_breaks_9),
        cmocka_unit_test(test_flush_that_drops_breaks_9),
        cmocka_unit_test(test_exit_that_leaves_a_copy_breaks_9),
        cmocka_unit_test(test_eval_that_leaves_a_copy_breaks_9),
        cmocka_unit_test(test_result_that_stays_away_breaks_9),
        cmocka_unit_test(test_missing_result_of_a_later_step_breaks_9),
        cmocka_unit_test(test_places_in_host_memory),
        cmocka_unit_test(test_disagreement_breaks_10),
        cmocka_unit_test(test_eval_without_graph_breaks_10),
        cmocka_unit_test(test_recomputation_of_nothing_breaks_10),
        cmocka_unit_test(test_lists_out_of_range_break_10),
    };
    return cmocka_run_group_tests(tests, set_graphs, NULL);
}
