/* Tests binding a plan to a model and optimizer. A plan that cannot be executed with them must be refused,
 * with a message that names the place of the mistake. Each case takes a good plan and spoils it in one
 * way. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "swap/exec.h"
#include "tests/unit/handmade_chain.h"

static struct plan_instr *nth(struct maker *m, enum program_kind k, enum instr_kind kind, uint32_t n)
{
    struct hm_program *p = &m->h.programs[k];
    for (size_t i = 0; i < p->instrs.n; i++)
        if (p->instrs.at[i].kind == kind && n-- == 0)
            return &p->instrs.at[i];
    fail_msg("the plan has no such instruction");
    return NULL;
}

static struct plan_operand *operands(struct maker *m, const struct plan_instr *in)
{
    return &m->h.programs[PROGRAM_CYCLE].operands.at[in->operand];
}

/* The operand of that kind. */
static struct plan_operand *find(struct maker *m, const struct plan_instr *in, enum tensor_kind kind)
{
    for (uint32_t i = 0; i < in->n_operands; i++)
        if (m->h.tensors.at[operands(m, in)[i].tensor].kind == kind)
            return &operands(m, in)[i];
    fail_msg("the instruction has no such operand");
    return NULL;
}

static void cut(struct maker *m, struct plan_instr *in, enum tensor_kind kind)
{
    struct plan_operand *o = find(m, in, kind), *last = &operands(m, in)[in->n_operands - 1];
    memmove(o, o + 1, (size_t)((char *)last - (char *)o));
    in->n_operands--;
}

static void swap_operands(struct plan_operand o[2])
{
    const struct plan_operand first = o[0];
    o[0] = o[1];
    o[1] = first;
}

static uint32_t index_of(const struct maker *m, const struct plan_instr *in)
{
    return (uint32_t)(in - m->h.programs[PROGRAM_CYCLE].instrs.at);
}

/* A DECIDE with a decision but without anything to decide by. */
static void cut_norms(struct maker *m, struct plan_instr *in)
{
    for (uint32_t i = in->n_operands; i-- > 0;)
        if (m->h.tensors.at[operands(m, in)[i].tensor].kind == TENSOR_SUMSQ)
            cut(m, in, TENSOR_SUMSQ);
}

/* Replaces the first wait of the first SPILL. */
static void set_wait(struct maker *m, uint32_t instr, uint32_t distance)
{
    const struct plan_instr *in = nth(m, PROGRAM_CYCLE, INSTR_SPILL, 0);
    m->h.programs[PROGRAM_CYCLE].waits.at[in->wait] = (struct plan_wait){instr, distance};
}

/* Makes the first SPILL, which is from device 1, a DROP of its source. */
static void drop_on(struct maker *m, uint32_t stream)
{
    struct plan_instr *in = nth(m, PROGRAM_CYCLE, INSTR_SPILL, 0);
    in->kind = INSTR_DROP;
    in->n_operands = 1;
    in->stream = stream;
}

/* What is wrong, and words of the message it must give. FWD and BWD are counted in issue order: FWD of layers
 * 0 1 2, then BWD of 2 1 0. */
#define FWD(n)     nth(m, PROGRAM_CYCLE, INSTR_FWD, n)
#define BWD(n)     nth(m, PROGRAM_CYCLE, INSTR_BWD, n)
#define FIRST(k)   nth(m, PROGRAM_CYCLE, INSTR_##k, 0)
#define OPERAND(i) operands(m, FWD(0))[i]
#define WRONGS(WRONG)                                                                                        \
    WRONG(place, "cycle[2] FWD of layer 0: ", cut(m, FWD(0), TENSOR_W))                                      \
    WRONG(no_w_fwd, "no weights", cut(m, FWD(0), TENSOR_W))                                                  \
    WRONG(no_x_fwd, "no input", cut(m, FWD(2), TENSOR_Y))                                                    \
    WRONG(no_y_fwd, "no output", FWD(0)->n_operands = 2)                                                     \
    WRONG(no_target, "no targets", cut(m, FWD(2), TENSOR_TARGET))                                            \
    WRONG(no_result, "no result", cut(m, FWD(2), TENSOR_RESULT))                                             \
    WRONG(no_w_bwd, "no weights", cut(m, BWD(1), TENSOR_W))                                                  \
    WRONG(no_dw_bwd, "no gradient sum", cut(m, BWD(1), TENSOR_DW))                                           \
    WRONG(no_dy_bwd, "no gradient of the output", cut(m, BWD(2), TENSOR_DX))                                 \
    WRONG(no_dw_norm, "no gradient sum", cut(m, FIRST(NORM), TENSOR_DW))                                     \
    WRONG(no_sumsq, "no squared norm", cut(m, FIRST(NORM), TENSOR_SUMSQ))                                    \
    WRONG(no_decision, "no decision", cut(m, FIRST(DECIDE), TENSOR_DECISION))                                \
    WRONG(no_group, "no group state", cut(m, FIRST(DECIDE), TENSOR_GROUP))                                   \
    WRONG(no_group_upd, "no group state", cut(m, FIRST(UPD), TENSOR_GROUP))                                  \
    WRONG(no_norms, "no squared norm", cut_norms(m, FIRST(DECIDE)))                                          \
    WRONG(no_w_upd, "no weights", cut(m, FIRST(UPD), TENSOR_W))                                              \
    WRONG(no_k, "no optimizer state", cut(m, FIRST(UPD), TENSOR_K))                                          \
    WRONG(layers_swapped, "ascending", swap_operands(operands(m, FIRST(DECIDE))))                            \
    WRONG(role_none, "cannot be its no role", OPERAND(0).role = ROLE_NONE)                                   \
    WRONG(role_range, "unknown role", OPERAND(0).role = ROLE_COUNT)                                          \
    WRONG(role_foreign, "cannot be its optimizer state", OPERAND(0).role = ROLE_K)                           \
    WRONG(role_of_pass, "cannot be its output", find(m, BWD(1), TENSOR_DX)->role = ROLE_Y)                   \
    WRONG(tensor_foreign, "one block", OPERAND(1).tensor = m->w[0])                                          \
    WRONG(layer_other, "one block", operands(m, FWD(1))->tensor = m->w[0])                                   \
    WRONG(dtype_other, "its weights must have elements of type F32, the plan says BF16",                     \
          m->h.tensors.at[m->w[0]].dtype = DTYPE_BF16)                                                       \
    WRONG(dtype_target, "its targets must have elements of type I32, the plan says F32",                     \
          m->h.tensors.at[m->target[0][0]].dtype = DTYPE_F32)                                                \
    WRONG(dtype_range, "its input must have elements of type F32, the plan says unknown",                    \
          m->h.tensors.at[m->x0[0][0]].dtype = DTYPE_COUNT)                                                  \
    WRONG(twice, "2 operands that are its weights", OPERAND(1) = OPERAND(0))                                 \
    WRONG(tensor_range, "does not exist", OPERAND(0).tensor = 9999)                                          \
    WRONG(byte_range, "not inside", operands(m, FIRST(SPILL))->end += 4)                                     \
    WRONG(byte_order, "not inside", operands(m, FIRST(SPILL))->begin = 1u << 30)                             \
    WRONG(half_block, "one block", OPERAND(0).end /= 2)                                                      \
    WRONG(rows, "one block", m->h.plan.rows++)                                                               \
    WRONG(lease, "lease", OPERAND(0).addr = LEASE - 256)                                                     \
    WRONG(lease_overflow, "lease", OPERAND(0).addr = UINT64_MAX - 8)                                         \
    WRONG(device_range, "does not exist", OPERAND(0).loc = 5)                                                \
    WRONG(device_other, "reach", OPERAND(0).loc = 1)                                                         \
    WRONG(device_for_host, "reach", find(m, FIRST(DECIDE), TENSOR_SUMSQ)->loc = 0)                           \
    WRONG(host_pool, "of host memory go beyond", OPERAND(2).loc = PLAN_HOST;                                 \
          OPERAND(2).addr = m->h.plan.host_bytes - 256)                                                      \
    WRONG(host_addr, "the operand says", operands(m, FIRST(SPILL))[1].addr += 256)                           \
    WRONG(layer_range, "3 layers", BWD(0)->layer = LAYERS)                                                   \
    WRONG(layer_none, "3 layers", FIRST(UPD)->layer = PLAN_NONE)                                             \
    WRONG(micro_range, "micro-batch", BWD(0)->micro = MICROS)                                                \
    WRONG(micro_none, "micro-batch", FWD(0)->micro = PLAN_NONE)                                              \
    WRONG(row_range, "first row", FWD(0)->micro = 2, m->h.plan.rows = UINT32_MAX)                            \
    WRONG(replica_range, "is of replica 0", FWD(0)->replica = PLAN_NONE - 1)                                 \
    WRONG(replica_none, "is of replica 0", BWD(0)->replica = PLAN_NONE)                                      \
    WRONG(replicas_none, "3 micro-batches", m->h.plan.n_replicas = 0)                                        \
    WRONG(replicas_uneven, "for 2 replicas", m->h.plan.n_replicas = 2)                                       \
    WRONG(step_range, "not within the cycle", FWD(0)->step = 1)                                              \
    WRONG(stream_range, "does not exist", FWD(0)->stream = 9)                                                \
    WRONG(kind_range, "unknown kind", FIRST(SEND)->kind = INSTR_KIND_COUNT)                                  \
    WRONG(operands_count, "operands lie outside", FWD(0)->n_operands = UINT32_MAX)                           \
    WRONG(operands_start, "operands lie outside", FWD(0)->operand = UINT32_MAX)                              \
    WRONG(waits_count, "waits lie outside", FWD(0)->n_waits = UINT32_MAX)                                    \
    WRONG(copy_stream, "does not compute", FWD(0)->stream = plan_stream(0, LANE_IN))                         \
    WRONG(lane, "cannot carry", FIRST(FETCH)->stream = plan_stream(0, LANE_OUT))                             \
    WRONG(sender, "cannot carry", FIRST(SEND)->stream = plan_stream(1, LANE_PEER))                           \
    WRONG(way, "cannot carry", FIRST(FETCH)->kind = INSTR_SPILL)                                             \
    WRONG(one_end, "two operands", FIRST(FETCH)->n_operands = 1)                                             \
    WRONG(other_bytes, "same bytes", operands(m, FIRST(FETCH))->end -= 4)                                    \
    WRONG(drop_operands, "one operand", FIRST(SPILL)->kind = INSTR_DROP)                                     \
    WRONG(drop_place, "another device", drop_on(m, plan_stream(0, LANE_OUT)))                                \
    WRONG(drop_host_stream, "another device", drop_on(m, plan_host_stream(&m->h.plan)))                      \
    WRONG(wait_ahead, "not before it", set_wait(m, index_of(m, FIRST(UPD)), 0))                              \
    WRONG(wait_itself, "not before it", set_wait(m, index_of(m, FIRST(SPILL)), 0))                           \
    WRONG(wait_range, "not before it", set_wait(m, 9999, 1))                                                 \
    WRONG(wait_eval, "earlier run", m->h.programs[PROGRAM_EVAL].waits.at[0].distance = 1)                    \
    WRONG(steps, "at least one step", m->h.plan.steps = 0)                                                   \
    WRONG(devices, "0 devices", m->h.plan.n_devices = 0)                                                     \
    WRONG(layers, "the model has 3", m->h.plan.n_layers = 2)

/* The cases below spoil a plan with three replicas and two shares. Its first UPD has the operands dW, group
 * state, W and two parts of K, each for bytes 0..512. Its first RED belongs to the other share, and has dW of
 * replica 0 and of another replica. */
#define RED_OPERAND(i) operands(m, FIRST(RED))[i]
#define UPD_OPERAND(i) operands(m, FIRST(UPD))[i]
#define COPY_END(i)    operands(m, FIRST(COPY))[i]
#define WRONG_SHARES(WRONG)                                                                                  \
    WRONG(red_place, "RED of layer 0: ", FIRST(RED)->n_operands = 1)                                         \
    WRONG(red_no_other, "no other replica's gradient sum", FIRST(RED)->n_operands = 1)                       \
    WRONG(red_no_sum, "no gradient sum", RED_OPERAND(0).role = ROLE_DW_OTHER, FIRST(RED)->n_operands = 1)    \
    WRONG(red_twice, "2 operands that are its gradient sum", RED_OPERAND(1) = RED_OPERAND(0))                \
    WRONG(red_of_zero, "of 3 replicas", FIRST(RED)->replica = 0)                                             \
    WRONG(red_range, "of 3 replicas", FIRST(RED)->replica = 3)                                               \
    WRONG(red_of_none, "of 3 replicas", FIRST(RED)->replica = PLAN_NONE)                                     \
    WRONG(red_bytes, "must be bytes 512..1040 of 1040, the operand is 768..1040",                            \
          RED_OPERAND(1).begin += 256)                                                                       \
    WRONG(red_lane, "does not compute", FIRST(RED)->stream = plan_stream(0, LANE_PEER))                      \
    WRONG(norm_share, "one block", find(m, FIRST(NORM), TENSOR_DW)->end = 512)                               \
    WRONG(upd_bytes, "weights must be bytes 0..512 of 1040", UPD_OPERAND(2).end = 768)                       \
    WRONG(upd_whole_w, "weights must be bytes 0..512 of 1040", UPD_OPERAND(2).end = 1040)                    \
    WRONG(share_begin, "are not a share", RED_OPERAND(0).begin += 4)                                         \
    WRONG(share_end, "are not a share", UPD_OPERAND(0).end -= 4)                                             \
    WRONG(share_empty, "are not a share", UPD_OPERAND(0).end = 0)                                            \
    WRONG(part_none, "no optimizer state", FIRST(UPD)->n_operands = 3)                                       \
    WRONG(part_missing, "1 of the 2 parts", FIRST(UPD)->n_operands = 4)                                      \
    WRONG(parts_swapped, "optimizer state must be bytes 0..512 of 2080", swap_operands(&UPD_OPERAND(3)))     \
    WRONG(part_twice, "must be bytes 1040..1552 of 2080", UPD_OPERAND(4) = UPD_OPERAND(3))                   \
    WRONG(part_too_many, "3 operands that are its optimizer state, and can have only 2",                     \
          UPD_OPERAND(1) = UPD_OPERAND(3), UPD_OPERAND(3) = UPD_OPERAND(4))                                  \
    WRONG(part_bytes, "must be bytes 1040..1552 of 2080", UPD_OPERAND(4).end += 256)                         \
    WRONG(part_whole, "must be bytes 0..512 of 2080", UPD_OPERAND(3).begin = 0, UPD_OPERAND(3).end = 2080)   \
    WRONG(copy_away, "cannot carry", COPY_END(1).loc = 1)                                                    \
    WRONG(copy_of_host, "cannot carry", COPY_END(0).loc = COPY_END(1).loc = PLAN_HOST,                       \
          COPY_END(0).addr = COPY_END(1).addr = m->h.tensors.at[m->w[0]].host_offset)                        \
    WRONG(copy_lane, "cannot carry", FIRST(COPY)->stream = plan_stream(0, LANE_IN))                          \
    WRONG(copy_elsewhere, "cannot carry", FIRST(COPY)->stream = plan_stream(1, LANE_PEER))                   \
    WRONG(copy_onto_itself, "overlap", COPY_END(1).addr = COPY_END(0).addr)                                  \
    WRONG(copy_overlap, "overlap", COPY_END(1).addr = COPY_END(0).addr + 256)                                \
    WRONG(send_inside, "cannot carry", FIRST(COPY)->kind = INSTR_SEND)                                       \
    WRONG(copy_between, "cannot carry", FIRST(SEND)->kind = INSTR_COPY)

#define WRONG(name, words, ...)                                                                              \
    static void spoil_##name(struct maker *m)                                                                \
    {                                                                                                        \
        __VA_ARGS__;                                                                                         \
    }
WRONGS(WRONG)
WRONG_SHARES(WRONG)
#undef WRONG

static const struct wrong {
    const char *name;
    void (*spoil)(struct maker *m);
    const char *words;
} wrongs[] =
    {
#define WRONG(name, words, ...) {#name, spoil_##name, words},
        WRONGS(WRONG)},
  wrong_shares[] = {WRONG_SHARES(WRONG)
#undef WRONG
};

static void assert_refused(const struct scenario *sc, const struct wrong *wrongs_of, size_t n)
{
    struct devset *devices = open_devices(sc->n_devices, 0);

    for (size_t i = 0; i < n; i++) {
        struct err err = {0};
        struct store *store;
        struct exec *e = NULL;
        struct maker m;
        char text[1200];

        make_plan(&m, sc);
        assert_int_equal(store_create(devices, &m.h.plan, &store, &err), 0);
        wrongs_of[i].spoil(&m);
        hm_finish(&m.h);
        const struct exec_config config = {&m.h.plan, &model, sc->optimizer, devices, store};
        const int r = exec_create(&config, &e, &err);
        if (r != -EINVAL || err.code != -EINVAL ||
            !strstr(err_text(&err, text, sizeof text), wrongs_of[i].words))
            fail_msg("%s: %d, expected \"%s\", got \"%s\"", wrongs_of[i].name, r, wrongs_of[i].words,
                     err_text(&err, text, sizeof text));
        assert_null(e);
        assert_int_equal(exec_create(&config, &e, NULL), -EINVAL); /* nobody need read it */
        store_destroy(store);
        hm_free(&m.h);
    }
    devset_close(devices);
}

static void test_plans_that_cannot_be_executed_are_refused(void **state)
{
    (void)state;
    assert_refused(&scenarios[TWO_DEVICES], wrongs, sizeof wrongs / sizeof *wrongs);
}

static void test_wrong_shares_and_copies_are_refused(void **state)
{
    (void)state;
    assert_refused(&scenarios[SHARES_OF_REPLICAS], wrong_shares, sizeof wrong_shares / sizeof *wrong_shares);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans_that_cannot_be_executed_are_refused),
        cmocka_unit_test(test_wrong_shares_and_copies_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
