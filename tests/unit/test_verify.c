/* The verifier on hand-made plans: two that are right, and each invariant broken in them by hand.
 *
 * The model is one layer with weights (0) and a loss (1), two micro-batches. Plan `one` keeps W on one device
 * and streams K through addresses that S uses before; plan `two` computes the layers on two devices,
 * recomputes S and updates on the host. Addresses and waits are written out, so that nothing here comes from
 * the builder.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "scheduler/verify.h"
#include "tests/unit/plan_edit.h"

/* ---- the graph ---- */

enum { W, K, DW, X0_0, X0_1, X1_0, X1_1, S_0, S_1, DX_0, DX_1, T_0, T_1, R_0, R_1, N_TENSORS };
#define MICROS 2

static struct graph_tensor tensors[N_TENSORS];
static struct graph_operand operands[64];
static struct graph_task tasks[16];
static struct graph train_graph, eval_graph;

static void set_tensor(tensor_id t, enum tensor_kind kind, uint32_t layer, uint32_t micro, uint64_t bytes,
                       uint32_t writes)
{
    tensors[t] = (struct graph_tensor){
        .kind = kind,
        .layer = layer,
        .micro = micro,
        .replica = kind == TENSOR_W || kind == TENSOR_K ? PLAN_NONE : 0,
        .bytes = bytes,
        .writes_per_step = writes,
        .persistent = kind == TENSOR_W || kind == TENSOR_K,
        .external = layer == PLAN_NONE || (kind == TENSOR_X && layer == 0),
    };
}

static void set_tensors(void)
{
    set_tensor(W, TENSOR_W, 0, PLAN_NONE, 512, 1);
    set_tensor(K, TENSOR_K, 0, PLAN_NONE, 512, 1);
    set_tensor(DW, TENSOR_DW, 0, PLAN_NONE, 512, MICROS);
    for (uint32_t j = 0; j < MICROS; j++) {
        set_tensor(X0_0 + j, TENSOR_X, 0, j, 256, 1);
        set_tensor(X1_0 + j, TENSOR_X, 1, j, 200, 1);
        set_tensor(S_0 + j, TENSOR_S, 0, j, 256, 1);
        set_tensor(DX_0 + j, TENSOR_DX, 1, j, 200, 1);
        set_tensor(T_0 + j, TENSOR_TARGET, PLAN_NONE, j, 256, 1);
        set_tensor(R_0 + j, TENSOR_RESULT, PLAN_NONE, j, 16, 1);
    }
}

static void begin_task(struct graph *g, enum instr_kind kind, uint32_t layer, uint32_t micro,
                       enum task_place place)
{
    g->tasks[g->n_tasks++] =
        (struct graph_task){kind, layer, micro, micro == PLAN_NONE ? PLAN_NONE : 0, place, g->n_operands, 0};
}

static void use(struct graph *g, tensor_id t, enum access access, uint32_t reads, uint32_t writes)
{
    bool optional = g->tensors[t].kind == TENSOR_S && access == ACCESS_WRITE;
    g->operands[g->n_operands++] = (struct graph_operand){t, access, optional, reads, writes};
    g->tasks[g->n_tasks - 1].n_operands++;
}

static void set_forward(struct graph *g, uint32_t j)
{
    begin_task(g, INSTR_FWD, 0, j, PLACE_DEVICE);
    use(g, W, ACCESS_READ, 0, 0);
    use(g, X0_0 + j, ACCESS_READ, 1, 0);
    use(g, X1_0 + j, ACCESS_WRITE, 0, 1);
    use(g, S_0 + j, ACCESS_WRITE, 0, 1);
    begin_task(g, INSTR_FWD, 1, j, PLACE_DEVICE);
    use(g, X1_0 + j, ACCESS_READ, 1, 0);
    use(g, T_0 + j, ACCESS_READ, 1, 0);
    use(g, R_0 + j, ACCESS_WRITE, 0, 1);
}

static void set_backward(struct graph *g, uint32_t j)
{
    begin_task(g, INSTR_BWD, 1, j, PLACE_DEVICE);
    use(g, X1_0 + j, ACCESS_READ, 1, 0);
    use(g, T_0 + j, ACCESS_READ, 1, 0);
    use(g, DX_0 + j, ACCESS_WRITE, 0, 1);
    begin_task(g, INSTR_BWD, 0, j, PLACE_DEVICE);
    use(g, W, ACCESS_READ, 0, 0);
    use(g, X0_0 + j, ACCESS_READ, 1, 0);
    use(g, S_0 + j, ACCESS_READ, 1, 0);
    use(g, DX_0 + j, ACCESS_READ, 1, 0);
    use(g, DW, j == 0 ? ACCESS_WRITE : ACCESS_RW, j, j + 1);
}

/* The evaluation graph uses the head of the same lists: forward tasks come first here. */
static int set_graphs(void **state)
{
    (void)state;
    struct graph g = {.n_layers = 2,
                      .n_micro = MICROS,
                      .n_replicas = 1,
                      .rows = 4,
                      .tensors = tensors,
                      .tasks = tasks,
                      .operands = operands,
                      .n_tensors = N_TENSORS};
    set_tensors();
    for (uint32_t j = 0; j < MICROS; j++)
        set_forward(&g, j);
    eval_graph = g;
    for (uint32_t j = 0; j < MICROS; j++)
        set_backward(&g, j);
    begin_task(&g, INSTR_UPD, 0, PLAN_NONE, PLACE_ANY);
    use(&g, DW, ACCESS_READ, MICROS, 0);
    use(&g, W, ACCESS_RW, 0, 1);
    use(&g, K, ACCESS_RW, 0, 1);
    g.training = true;
    train_graph = g;
    return 0;
}

/* ---- writing plans ---- */

struct writer {
    struct edit e;
    enum program_kind k;
    uint64_t addr[2][N_TENSORS];
};

#define LEASE 8192u

static struct machine machine = {.n_devices = 2, .capacity_bytes = {LEASE, LEASE}, .host_bytes = 1 << 20};

static struct writer begin_plan(uint32_t n_devices)
{
    struct writer w = {.e.header = {.policy = "hand",
                                    .n_devices = n_devices,
                                    .n_layers = 2,
                                    .n_micro = MICROS,
                                    .n_replicas = 1,
                                    .rows = 4,
                                    .steps = 1,
                                    .host_lease_bytes = 1 << 20}};
    uint64_t at = 0;
    for (tensor_id t = 0; t < N_TENSORS; t++) {
        const struct graph_tensor *g = &tensors[t];
        uint32_t slots = g->external ? PLAN_RING : 1;
        vec_push(&w.e.tensors,
                 (struct plan_tensor){g->kind, g->layer, g->micro, g->replica, g->bytes, at, slots});
        at += slots * 512;
    }
    w.e.header.host_bytes = at;
    for (uint32_t d = 0; d < n_devices; d++)
        w.e.header.devices[d] = (struct plan_device){LEASE, LEASE};
    return w;
}

static struct edit_program *program(struct writer *w)
{
    return &w->e.programs[w->k];
}

static uint32_t last_instr(struct writer *w)
{
    return (uint32_t)program(w)->at.n - 1;
}

static struct plan_operand operand(struct writer *w, tensor_id t, uint32_t loc, enum access access)
{
    uint64_t addr = loc == PLAN_HOST ? w->e.tensors.at[t].host_offset : w->addr[loc][t];
    return (struct plan_operand){t, loc, 0, tensors[t].bytes, addr, access};
}

static void add_move(struct writer *w, enum instr_kind kind, uint32_t stream, tensor_id t, uint32_t from,
                     uint32_t to)
{
    struct edit_instr i = {
        .in = {.kind = kind, .stream = stream, .layer = PLAN_NONE, .micro = PLAN_NONE, .replica = PLAN_NONE}};
    vec_push(&i.ops, operand(w, t, from, kind == INSTR_DROP ? ACCESS_DROP : ACCESS_READ));
    if (kind != INSTR_DROP)
        vec_push(&i.ops, operand(w, t, to, ACCESS_WRITE));
    vec_push(&program(w)->at, i);
}

static void fetch(struct writer *w, tensor_id t, uint32_t d)
{
    add_move(w, INSTR_FETCH, plan_stream(d, LANE_IN), t, PLAN_HOST, d);
}
static void spill(struct writer *w, tensor_id t, uint32_t d)
{
    add_move(w, INSTR_SPILL, plan_stream(d, LANE_OUT), t, d, PLAN_HOST);
}
static void send(struct writer *w, tensor_id t, uint32_t from, uint32_t to)
{
    add_move(w, INSTR_SEND, plan_stream(from, LANE_PEER), t, from, to);
}
static void drop(struct writer *w, tensor_id t, uint32_t d, enum lane lane)
{
    add_move(w, INSTR_DROP, plan_stream(d, lane), t, d, PLAN_NONE);
}

/* A task with all its operands, less `without`, at the addresses of the device. */
static void task(struct writer *w, enum instr_kind kind, uint32_t layer, uint32_t micro, uint32_t loc,
                 tensor_id without, tensor_id without2)
{
    uint32_t stream = loc == PLAN_HOST ? plan_host_stream(&w->e.header) : plan_stream(loc, LANE_COMPUTE);
    struct edit_instr i = {.in = {.kind = kind,
                                  .stream = stream,
                                  .layer = layer,
                                  .micro = micro,
                                  .replica = micro == PLAN_NONE ? PLAN_NONE : 0}};
    for (uint32_t t = 0; t < train_graph.n_tasks; t++) {
        const struct graph_task *gt = &tasks[t];
        if (gt->kind != (kind == INSTR_REC ? INSTR_FWD : kind) || gt->layer != layer || gt->micro != micro)
            continue;
        for (uint32_t j = 0; j < gt->n_operands; j++) {
            const struct graph_operand *o = &operands[gt->operand + j];
            if (o->tensor != without && o->tensor != without2)
                vec_push(&i.ops, operand(w, o->tensor, loc, o->access));
        }
    }
    vec_push(&program(w)->at, i);
}

/* Of the last instruction. */
static void after(struct writer *w, enum instr_kind kind, tensor_id t)
{
    edit_wait(program(w), last_instr(w), edit_find(program(w), kind, t, 0), 0);
}

static void keep(struct writer *w, tensor_id t, uint32_t d)
{
    vec_push(&w->e.boundary, (struct plan_copy){t, d, 0, tensors[t].bytes, w->addr[d][t]});
}

/* ---- plan one: one device, W stays ---- */

static const uint64_t addresses_one[N_TENSORS] = {
    [W] = 0,       [K] = 512,     [S_0] = 512,   [S_1] = 768,   [DW] = 1024,
    [X0_0] = 1536, [X0_1] = 1792, [X1_0] = 2048, [X1_1] = 2304, [DX_0] = 2560,
    [DX_1] = 2560, [T_0] = 2816,  [T_1] = 3072,  [R_0] = 3328,  [R_1] = 3584,
};

static void micro_one(struct writer *w, uint32_t j)
{
    task(w, INSTR_FWD, 0, j, 0, PLAN_NONE, PLAN_NONE);
    after(w, INSTR_FETCH, X0_0 + j);
    task(w, INSTR_FWD, 1, j, 0, PLAN_NONE, PLAN_NONE);
    after(w, INSTR_FETCH, T_0 + j);
    spill(w, R_0 + j, 0);
    edit_wait(program(w), last_instr(w), last_instr(w) - 1, 0);
    drop(w, R_0 + j, 0, LANE_OUT);
    if (w->k == PROGRAM_CYCLE) {
        task(w, INSTR_BWD, 1, j, 0, PLAN_NONE, PLAN_NONE);
        task(w, INSTR_BWD, 0, j, 0, PLAN_NONE, PLAN_NONE);
        drop(w, DX_0 + j, 0, LANE_COMPUTE);
    }
    drop(w, X0_0 + j, 0, LANE_COMPUTE);
    drop(w, X1_0 + j, 0, LANE_COMPUTE);
    drop(w, T_0 + j, 0, LANE_COMPUTE);
    drop(w, S_0 + j, 0, LANE_COMPUTE);
}

static void cycle_one(struct writer *w)
{
    w->k = PROGRAM_CYCLE;
    for (uint32_t j = 0; j < MICROS; j++) { /* ordered after the last cycle's drops by the fetch of K there */
        fetch(w, X0_0 + j, 0);
        fetch(w, T_0 + j, 0);
    }
    for (uint32_t j = 0; j < MICROS; j++)
        micro_one(w, j);
    fetch(w, K, 0);
    after(w, INSTR_DROP, S_1);
    task(w, INSTR_UPD, 0, PLAN_NONE, 0, PLAN_NONE, PLAN_NONE);
    after(w, INSTR_FETCH, K);
    spill(w, K, 0);
    after(w, INSTR_UPD, K);
    drop(w, K, 0, LANE_OUT);
    drop(w, DW, 0, LANE_COMPUTE);
    /* S of the next cycle takes the place of K. */
    edit_wait(program(w), edit_find(program(w), INSTR_FWD, S_0, 0), edit_find(program(w), INSTR_DROP, K, 0),
              1);
}

static struct edit plan_one(void)
{
    struct writer w = begin_plan(1);
    memcpy(w.addr[0], addresses_one, sizeof addresses_one);
    keep(&w, W, 0);
    w.k = PROGRAM_ENTRY;
    fetch(&w, W, 0);
    cycle_one(&w);
    w.k = PROGRAM_FLUSH;
    spill(&w, W, 0);
    w.k = PROGRAM_EXIT;
    spill(&w, W, 0);
    drop(&w, W, 0, LANE_OUT);
    w.k = PROGRAM_EVAL;
    fetch(&w, W, 0);
    for (uint32_t j = 0; j < MICROS; j++) {
        fetch(&w, X0_0 + j, 0);
        fetch(&w, T_0 + j, 0);
        micro_one(&w, j);
    }
    drop(&w, W, 0, LANE_COMPUTE);
    return w.e;
}

/* ---- plan two: two devices, recomputation, update on the host ---- */

static const uint64_t addresses_two[2][N_TENSORS] = {
    {[W] = 0,
     [DW] = 512,
     [X0_0] = 1024,
     [X0_1] = 1280,
     [X1_0] = 1536,
     [X1_1] = 1536,
     [S_0] = 1792,
     [S_1] = 1792,
     [DX_0] = 2048,
     [DX_1] = 2304},
    {[X1_0] = 0,
     [X1_1] = 256,
     [T_0] = 512,
     [T_1] = 768,
     [R_0] = 1024,
     [R_1] = 1280,
     [DX_0] = 1536,
     [DX_1] = 1792},
};

static void forward_two(struct writer *w, uint32_t j)
{
    fetch(w, X0_0 + j, 0);
    task(w, INSTR_FWD, 0, j, 0, S_0 + j, PLAN_NONE);
    after(w, INSTR_FETCH, X0_0 + j);
    if (j > 0) /* same address */
        after(w, INSTR_DROP, X1_0);
    send(w, X1_0 + j, 0, 1);
    after(w, INSTR_FWD, X0_0 + j);
    drop(w, X1_0 + j, 0, LANE_PEER);
    fetch(w, T_0 + j, 1);
    task(w, INSTR_FWD, 1, j, 1, PLAN_NONE, PLAN_NONE);
    after(w, INSTR_FETCH, T_0 + j);
    after(w, INSTR_SEND, X1_0 + j);
    spill(w, R_0 + j, 1);
    after(w, INSTR_FWD, R_0 + j);
    drop(w, R_0 + j, 1, LANE_OUT);
}

static void backward_two(struct writer *w, uint32_t j)
{
    task(w, INSTR_BWD, 1, j, 1, PLAN_NONE, PLAN_NONE);
    drop(w, X1_0 + j, 1, LANE_COMPUTE);
    drop(w, T_0 + j, 1, LANE_COMPUTE);
    send(w, DX_0 + j, 1, 0);
    after(w, INSTR_BWD, DX_0 + j);
    drop(w, DX_0 + j, 1, LANE_PEER);
    task(w, INSTR_REC, 0, j, 0, X1_0 + j, PLAN_NONE);
    task(w, INSTR_BWD, 0, j, 0, PLAN_NONE, PLAN_NONE);
    after(w, INSTR_SEND, DX_0 + j);
    drop(w, X0_0 + j, 0, LANE_COMPUTE);
    drop(w, S_0 + j, 0, LANE_COMPUTE);
    drop(w, DX_0 + j, 0, LANE_COMPUTE);
}

static void cycle_two(struct writer *w)
{
    struct edit_program *p = program(w);
    fetch(w, W, 0);
    for (uint32_t j = 0; j < MICROS; j++)
        forward_two(w, j);
    after(w, INSTR_FETCH, T_1); /* the last drop of a result; a wait that is not needed is allowed */
    edit_wait(p, edit_find(p, INSTR_FWD, W, 0), edit_find(p, INSTR_FETCH, W, 0), 0);
    for (uint32_t j = 0; j < MICROS; j++)
        backward_two(w, j);
    drop(w, W, 0, LANE_COMPUTE);
    uint32_t end = last_instr(w);
    spill(w, DW, 0);
    after(w, INSTR_BWD, X0_1);
    drop(w, DW, 0, LANE_OUT);
    task(w, INSTR_UPD, 0, PLAN_NONE, PLAN_HOST, PLAN_NONE, PLAN_NONE);
    after(w, INSTR_SPILL, DW);
    /* The next cycle. On d0: everything that compute dropped, then the host's W; the host's dW goes out after
     * UPD. */
    edit_wait(p, edit_find(p, INSTR_FETCH, W, 0), end, 1);
    edit_wait(p, edit_find(p, INSTR_FETCH, W, 0), edit_find(p, INSTR_UPD, DW, 0), 1);
    /* X1 at 1536 was dropped on d0.peer, and dW on d0.out, before UPD's spill. On d1: T by compute, R by out.
     */
    edit_wait(p, edit_find(p, INSTR_FETCH, T_0, 0), edit_find(p, INSTR_DROP, T_1, 0), 1);
    edit_wait(p, edit_find(p, INSTR_FWD, R_0, 0), edit_find(p, INSTR_DROP, R_1, 0), 1);
    /* The sends to d1 write where compute dropped; dX there was dropped on d1.peer. */
    edit_wait(p, edit_find(p, INSTR_SEND, X1_0, 0), edit_find(p, INSTR_DROP, T_1, 0), 1);
    edit_wait(p, edit_find(p, INSTR_BWD, DX_0, 0), edit_find(p, INSTR_DROP, DX_1, 0), 1);
    edit_wait(p, edit_find(p, INSTR_BWD, X0_0, 0), edit_find(p, INSTR_DROP, DW, 0), 1);
    edit_wait(p, edit_find(p, INSTR_FWD, W, 0), edit_find(p, INSTR_DROP, X1_1, 0), 1);
    edit_wait(p, edit_find(p, INSTR_SEND, DX_0, 0), edit_find(p, INSTR_DROP, W, 0), 1);
}

static struct edit plan_two(void)
{
    struct writer w = begin_plan(2);
    memcpy(w.addr, addresses_two, sizeof addresses_two);
    w.k = PROGRAM_CYCLE;
    cycle_two(&w);
    return w.e;
}

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
    assert_non_null(strstr(v[0].text, "T.1"));
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

static void test_second_copy_breaks_2(void **state)
{
    (void)state;
    struct edit e = plan_one();
    struct edit_program *p = &e.programs[PROGRAM_CYCLE];
    uint32_t i = edit_find(p, INSTR_FETCH, X0_0, 0);
    edit_insert(p, i, &p->at.at[i]);
    p->at.at[i].ops.at[1].addr = 4096;
    expect_edit(&e, ONLY(2));
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

static void test_more_steps_than_instructions_break_6(void **state)
{
    (void)state;
    struct edit e = plan_one();
    e.header.steps = 2;
    expect_edit(&e, ONLY(6));
    e = plan_one();
    e.header.steps = UINT32_MAX;
    expect_edit(&e, ONLY(6));
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
    for (enum instr_kind kind = INSTR_SPILL; kind <= INSTR_DROP; kind++) /* W goes home and away */
        if (kind != INSTR_SEND) {
            struct edit_program *exit = &e.programs[PROGRAM_EXIT];
            edit_insert(p, (uint32_t)p->at.n, &exit->at.at[edit_find(exit, kind, W, 0)]);
        }
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
EDIT(fewer_tensors, e->tensors.n--)
EDIT(bad_tensor_kind, e->tensors.at[W].kind = TENSOR_K)
EDIT(wild_tensor_kind, e->tensors.at[W].kind = (enum tensor_kind)77)
EDIT(bad_tensor_layer, e->tensors.at[W].layer = 1)
EDIT(bad_tensor_bytes, e->tensors.at[W].bytes = UINT64_MAX)
EDIT(unaligned_slot, e->tensors.at[S_0].host_offset += 1)
EDIT(overlapping_slots, e->tensors.at[S_0].host_offset += 1024)
EDIT(slots_missing, e->tensors.at[X0_0].host_slots = 1)
EDIT(slots_too_many, e->tensors.at[W].host_slots = 2)
EDIT(slots_wild, e->tensors.at[X0_0].host_slots = UINT32_MAX)
EDIT(offset_without_slots, e->tensors.at[S_0].host_slots = 0)
EDIT(slot_outside_pool, e->tensors.at[S_0].host_offset = e->header.host_bytes)
EDIT(slot_wraps_around, e->tensors.at[S_0].host_offset = UINT64_MAX - 255)
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
        cmocka_unit_test(test_report_may_be_absent),
        cmocka_unit_test(test_violation_names_program_instruction_and_tensor),
        cmocka_unit_test(test_missing_fetch_breaks_1),
        cmocka_unit_test(test_partial_fetch_breaks_1),
        cmocka_unit_test(test_split_fetch_holds),
        cmocka_unit_test(test_read_at_wrong_address_breaks_1),
        cmocka_unit_test(test_early_update_breaks_1),
        cmocka_unit_test(test_drop_of_what_is_not_there_breaks_1),
        cmocka_unit_test(test_spill_of_what_is_not_there_breaks_1),
        cmocka_unit_test(test_overlapping_addresses_break_2),
        cmocka_unit_test(test_second_copy_breaks_2),
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
        cmocka_unit_test(test_more_steps_than_instructions_break_6),
        cmocka_unit_test(test_copy_left_over_breaks_7),
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
        cmocka_unit_test(test_disagreement_breaks_10),
        cmocka_unit_test(test_eval_without_graph_breaks_10),
        cmocka_unit_test(test_recomputation_of_nothing_breaks_10),
        cmocka_unit_test(test_lists_out_of_range_break_10),
    };
    return cmocka_run_group_tests(tests, set_graphs, NULL);
}
