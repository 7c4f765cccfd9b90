/* Hand-made plans for the verifier's tests, with nothing in them that comes from the builder.
 *
 * The model is one layer with weights (0) and a loss (1), two micro-batches. Plan `one` keeps W on one device
 * and streams K through addresses that S uses before; plan `two` computes the layers on two devices,
 * recomputes S and updates on the host. Addresses and waits are written out.
 */
#ifndef TESTS_TOY_PLANS_H
#define TESTS_TOY_PLANS_H

#include "scheduler/graph.h"
#include "scheduler/machine.h"
#include "tests/unit/plan_edit.h"

/* ---- the graph ---- */

enum { W, K, DW, X0_0, X0_1, X1_0, X1_1, S_0, S_1, DX_0, DX_1, T_0, T_1, R_0, R_1, N_TENSORS };
#define MICROS 2

static struct graph_tensor tensors[N_TENSORS];
static struct graph_operand operands[64];
static struct graph_task tasks[16];
static const struct state_part parts[] = {{"v", DTYPE_F32, 128, 0, 512}};
static struct graph_layer layers[2] = {{.type = "layer",
                                        .rows = 4,
                                        .size = {.w = 512},
                                        .dw_bytes = 512,
                                        .k_bytes = 512,
                                        .parts = parts,
                                        .n_parts = 1},
                                       {.type = "loss", .rows = 4}};
static struct graph train_graph, eval_graph;
static struct graph_group groups[1];
/* The same graphs with two training steps in a cycle. Tensor t of step 1 has the id N_TENSORS + t. */
static struct graph_tensor tensors_twice[2 * N_TENSORS];
static struct graph_operand operands_twice[128];
static struct graph_task tasks_twice[32];
static struct graph train_twice, eval_twice;

static void set_tensor(tensor_id t, enum tensor_kind kind, uint32_t layer, uint32_t micro, uint64_t bytes,
                       uint32_t writes)
{
    tensors[t] = (struct graph_tensor){
        .kind = kind,
        .layer = layer,
        .micro = micro,
        .replica = kind == TENSOR_W || kind == TENSOR_K ? PLAN_NONE : 0,
        .dtype = kind == TENSOR_K || kind == TENSOR_S || kind == TENSOR_RESULT ? DTYPE_U8 : DTYPE_F32,
        .bytes = bytes,
        .pieces = 1,
        .writes_per_cycle = writes,
        .persistent = kind == TENSOR_W || kind == TENSOR_K,
        .step = kind == TENSOR_W || kind == TENSOR_K ? PLAN_NONE : 0,
        .group = PLAN_NONE,
        .external = kind == TENSOR_TARGET || kind == TENSOR_RESULT || kind == TENSOR_X,
    };
}

static void set_tensors(void)
{
    set_tensor(W, TENSOR_W, 0, PLAN_NONE, 512, 1);
    set_tensor(K, TENSOR_K, 0, PLAN_NONE, 512, 1);
    set_tensor(DW, TENSOR_DW, 0, PLAN_NONE, 512, MICROS);
    for (uint32_t j = 0; j < MICROS; j++) {
        set_tensor(X0_0 + j, TENSOR_X, 0, j, 256, 1);
        set_tensor(X1_0 + j, TENSOR_Y, 0, j, 200, 1);
        set_tensor(S_0 + j, TENSOR_S, 0, j, 256, 1);
        set_tensor(DX_0 + j, TENSOR_DX, 1, j, 200, 1);
        set_tensor(T_0 + j, TENSOR_TARGET, 1, j, 256, 1);
        set_tensor(R_0 + j, TENSOR_RESULT, 1, j, 16, 1);
    }
}

static void begin_task(struct graph *g, enum instr_kind kind, uint32_t layer, uint32_t micro,
                       enum task_place place)
{
    g->tasks[g->n_tasks++] = (struct graph_task){
        kind, layer, micro, micro == PLAN_NONE ? PLAN_NONE : 0, 0, 0, place, g->n_operands, 0};
}

/* Returns the role of tensor t in the last task. */
static enum role toy_role(const struct graph *g, tensor_id t)
{
    const bool own = g->tensors[t].layer == g->tasks[g->n_tasks - 1].layer;
    switch (g->tensors[t].kind) {
    case TENSOR_W:
        return ROLE_W;
    case TENSOR_DW:
        return ROLE_DW;
    case TENSOR_K:
        return ROLE_K;
    case TENSOR_X:
        return ROLE_X;
    case TENSOR_Y:
        return own ? ROLE_Y : ROLE_X;
    case TENSOR_DX:
        return own ? ROLE_DX : ROLE_DY;
    case TENSOR_S:
        return ROLE_S;
    case TENSOR_TARGET:
        return ROLE_TARGET;
    default:
        return ROLE_RESULT;
    }
}

static void use(struct graph *g, tensor_id t, enum access access, uint32_t reads, uint32_t writes)
{
    bool optional = g->tensors[t].kind == TENSOR_S && access == ACCESS_WRITE;
    g->operands[g->n_operands++] =
        (struct graph_operand){t, access, toy_role(g, t), optional, reads, writes, 0, g->tensors[t].bytes};
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

/* Returns the tensor of training step `step` that stands for tensor t of step 0. */
static tensor_id toy_of_step(tensor_id t, uint32_t step)
{
    return tensors[t].persistent ? t : t + step * N_TENSORS;
}

/* Fills in the graphs with two steps. Persistent tensors have twice as many writes in a cycle. */
static void set_graphs_twice(void)
{
    train_twice = train_graph;
    train_twice.steps = 2;
    train_twice.tensors = tensors_twice;
    train_twice.tasks = tasks_twice;
    train_twice.operands = operands_twice;
    train_twice.n_tensors *= 2;
    train_twice.n_tasks *= 2;
    train_twice.n_operands *= 2;
    for (tensor_id t = 0; t < 2 * N_TENSORS; t++) {
        tensors_twice[t] = tensors[t % N_TENSORS];
        if (tensors_twice[t].persistent)
            tensors_twice[t].writes_per_cycle *= 2;
        else
            tensors_twice[t].step = t / N_TENSORS;
    }
    for (uint32_t i = 0; i < train_twice.n_tasks; i++) {
        const uint32_t step = i / train_graph.n_tasks;
        tasks_twice[i] = tasks[i % train_graph.n_tasks];
        tasks_twice[i].step = step;
        tasks_twice[i].operand += step * train_graph.n_operands;
    }
    for (uint32_t i = 0; i < train_twice.n_operands; i++) {
        const uint32_t step = i / train_graph.n_operands;
        struct graph_operand *o = &operands_twice[i];
        *o = operands[i % train_graph.n_operands];
        const bool persistent = tensors[o->tensor].persistent;
        o->read_version += persistent && o->access != ACCESS_WRITE ? step : 0;
        o->write_version += persistent && o->access != ACCESS_READ ? step : 0;
        o->tensor = toy_of_step(o->tensor, step);
    }
    eval_twice = train_twice;
    eval_twice.training = false;
    eval_twice.n_tasks = eval_graph.n_tasks;
    eval_twice.n_operands = eval_graph.n_operands;
}

/* The evaluation graph uses the head of the same lists: forward tasks come first here. */
static int set_graphs(void **state)
{
    (void)state;
    struct graph g = {.n_layers = 2,
                      .n_micro = MICROS,
                      .n_replicas = 1,
                      .n_groups = 1,
                      .groups = groups,
                      .rows = 4,
                      .steps = 1,
                      .layers = layers,
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
    set_graphs_twice();
    return 0;
}

/* ---- writing plans ---- */

struct writer {
    struct edit e;
    enum program_kind k;
    uint64_t addr[2][N_TENSORS], host[N_TENSORS];
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
                                    .n_groups = 1,
                                    .rows = 4,
                                    .steps = 1,
                                    .host_lease_bytes = 1 << 20}};
    uint64_t at = 0;
    for (tensor_id t = 0; t < N_TENSORS; t++) {
        const struct graph_tensor *g = &tensors[t];
        uint32_t slots = g->external ? PLAN_RING : g->persistent ? 1 : 0;
        vec_push(&w.e.tensors,
                 (struct plan_tensor){g->kind, g->layer, g->micro, g->replica, g->step, g->group, g->dtype,
                                      g->bytes, slots > 0 ? at : PLAN_NO_HOST, slots});
        w.host[t] = at;
        at += (slots > 0 ? slots : 1) * 512;
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
    uint64_t addr = loc == PLAN_HOST ? w->host[t] : w->addr[loc][t];
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

static struct plan_operand with_role(struct plan_operand o, enum role role)
{
    o.role = role;
    return o;
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
                vec_push(&i.ops, with_role(operand(w, o->tensor, loc, o->access), o->role));
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

/* The same with two steps in a cycle, for train_twice and eval_twice: the program twice, waits of distance 1
 * going to the other half. The tensors of both steps use the same addresses. */
static struct edit plan_one_twice(void)
{
    struct edit e = plan_one();
    struct edit_program *p = &e.programs[PROGRAM_CYCLE];
    uint32_t n = (uint32_t)p->at.n;
    e.header.steps = 2;
    for (tensor_id t = 0; t < N_TENSORS; t++) {
        struct plan_tensor copy = e.tensors.at[t];
        if (tensors[t].persistent) /* it has no second tensor; the graph has one that nothing uses */
            copy.host_slots = 1;
        else
            copy.step = 1;
        if (copy.host_slots > 0)
            copy.host_offset = e.header.host_bytes;
        e.header.host_bytes += 2 * 512;
        vec_push(&e.tensors, copy);
    }
    for (uint32_t i = 0; i < n; i++) {
        edit_insert(p, n + i, &p->at.at[i]);
        struct edit_instr *in = &p->at.at[n + i];
        in->in.step = in->in.kind <= INSTR_UPD ? 1 : 0;
        for (size_t j = 0; j < in->ops.n; j++) {
            struct plan_operand *o = &in->ops.at[j];
            o->tensor = toy_of_step(o->tensor, 1);
            if (o->loc == PLAN_HOST && e.tensors.at[o->tensor].host_slots > 0)
                o->addr = e.tensors.at[o->tensor].host_offset + o->begin;
        }
    }
    for (uint32_t i = 0; i < n; i++)
        for (size_t j = 0; j < p->at.at[i].waits.n; j++) {
            struct plan_wait *w = &p->at.at[i].waits.at[j];
            edit_wait(p, n + i, w->distance ? w->instr : n + w->instr, 0);
            w->instr += w->distance ? n : 0;
        }
    return e;
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
    /* X1 at 1536 was dropped on d0.peer, dW on d0.out, before UPD's spill. On d1: T by compute, R by out. */
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

#endif
