/* Binding: a plan that cannot be executed with this model and optimizer is refused with a message that names
 * the place, whatever is wrong with it. One good plan, spoiled in one way at a time.
 */
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

/* Makes the first wait of the first SPILL another. */
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
    WRONG(no_x_fwd, "no input", cut(m, FWD(2), TENSOR_X))                                                    \
    WRONG(no_y_fwd, "no output", FWD(0)->n_operands = 2)                                                     \
    WRONG(no_target, "no targets", cut(m, FWD(2), TENSOR_TARGET))                                            \
    WRONG(no_result, "no result", cut(m, FWD(2), TENSOR_RESULT))                                             \
    WRONG(no_w_bwd, "no weights", cut(m, BWD(1), TENSOR_W))                                                  \
    WRONG(no_dw_bwd, "no gradient sum", cut(m, BWD(1), TENSOR_DW))                                           \
    WRONG(no_dy_bwd, "no gradient of the output", cut(m, BWD(2), TENSOR_DX))                                 \
    WRONG(no_dw_norm, "no gradient sum", cut(m, FIRST(NORM), TENSOR_DW))                                     \
    WRONG(no_sumsq, "no squared norm", cut(m, FIRST(NORM), TENSOR_SUMSQ))                                    \
    WRONG(no_decision, "no decision", cut(m, FIRST(DECIDE), TENSOR_DECISION))                                \
    WRONG(no_clip, "no decision", cut(m, FIRST(UPD), TENSOR_DECISION))                                       \
    WRONG(no_w_upd, "no weights", cut(m, FIRST(UPD), TENSOR_W))                                              \
    WRONG(no_k, "no optimizer state", cut(m, FIRST(UPD), TENSOR_K))                                          \
    WRONG(layers_swapped, "ascending", swap_operands(operands(m, FIRST(DECIDE))))                            \
    WRONG(tensor_foreign, "no operand of such a task", OPERAND(0).tensor = m->dw[0])                         \
    WRONG(micro_other, "no operand of such a task", OPERAND(1).tensor = m->x[0][1])                          \
    WRONG(layer_other, "no operand of such a task", operands(m, FWD(1))->tensor = m->w[0])                   \
    WRONG(twice, "two operands", OPERAND(1) = OPERAND(0))                                                    \
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
    WRONG(host_copy, "no host copy", OPERAND(2).loc = PLAN_HOST)                                             \
    WRONG(host_addr, "the operand says", operands(m, FIRST(SPILL))[1].addr += 256)                           \
    WRONG(layer_range, "3 layers", BWD(0)->layer = LAYERS)                                                   \
    WRONG(layer_none, "3 layers", FIRST(UPD)->layer = PLAN_NONE)                                             \
    WRONG(micro_range, "micro-batch", BWD(0)->micro = MICROS)                                                \
    WRONG(micro_none, "micro-batch", FWD(0)->micro = PLAN_NONE)                                              \
    WRONG(row_range, "first row", FWD(0)->replica = PLAN_NONE - 1)                                           \
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
    WRONG(drop_place, "another place", drop_on(m, plan_stream(0, LANE_OUT)))                                 \
    WRONG(drop_host_stream, "another place", drop_on(m, plan_host_stream(&m->h.plan)))                       \
    WRONG(wait_ahead, "not before it", set_wait(m, index_of(m, FIRST(UPD)), 0))                              \
    WRONG(wait_itself, "not before it", set_wait(m, index_of(m, FIRST(SPILL)), 0))                           \
    WRONG(wait_range, "not before it", set_wait(m, 9999, 1))                                                 \
    WRONG(wait_eval, "earlier run", m->h.programs[PROGRAM_EVAL].waits.at[0].distance = 1)                    \
    WRONG(steps, "at least one step", m->h.plan.steps = 0)                                                   \
    WRONG(devices, "0 devices", m->h.plan.n_devices = 0)                                                     \
    WRONG(layers, "the model has 3", m->h.plan.n_layers = 2)

#define WRONG(name, words, ...)                                                                              \
    static void spoil_##name(struct maker *m)                                                                \
    {                                                                                                        \
        __VA_ARGS__;                                                                                         \
    }
WRONGS(WRONG)
#undef WRONG

static const struct {
    const char *name;
    void (*spoil)(struct maker *m);
    const char *words;
} wrongs[] = {
#define WRONG(name, words, ...) {#name, spoil_##name, words},
    WRONGS(WRONG)
#undef WRONG
};

static void test_plans_that_cannot_be_executed_are_refused(void **state)
{
    const struct scenario *sc = &scenarios[4];
    struct devset *devices = open_devices(sc->n_devices, 0);
    (void)state;

    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        struct err err = {0};
        struct store *store;
        struct exec *e = NULL;
        struct maker m;
        char text[1200];

        make_plan(&m, sc);
        assert_int_equal(store_create(devices, &m.h.plan, &store, &err), 0);
        wrongs[i].spoil(&m);
        hm_finish(&m.h);
        const struct exec_config config = {&m.h.plan, &model, sc->optimizer, devices, store};
        const int r = exec_create(&config, &e, &err);
        if (r != -EINVAL || err.code != -EINVAL ||
            !strstr(err_text(&err, text, sizeof text), wrongs[i].words))
            fail_msg("%s: %d, expected \"%s\", got \"%s\"", wrongs[i].name, r, wrongs[i].words,
                     err_text(&err, text, sizeof text));
        assert_null(e);
        assert_int_equal(exec_create(&config, &e, NULL), -EINVAL); /* nobody need read it */
        store_destroy(store);
        hm_free(&m.h);
    }
    devset_close(devices);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans_that_cannot_be_executed_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
