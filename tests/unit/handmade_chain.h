/* A small chain and plans for it, made by hand, for tests of the executor. The chain is dense (relu, dropout)
 * - dense - softmax_xent, with three micro-batches in one or three replicas, on one or two devices, with
 * updates on the host or on devices.
 *
 * With shares, each reduction and each update is two instructions. Where W stays on a device, it is pinned at
 * one address and copied to another address for the forward and backward passes. Each part of each share of K
 * then has its own address.
 *
 * make_plan uses handmade_plan.h to write the instructions of a scenario in the method's order. The waits are
 * derived.
 */
#ifndef TESTS_HANDMADE_CHAIN_H
#define TESTS_HANDMADE_CHAIN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/device.h"
#include "kernels/layer.h"
#include "tests/unit/handmade_plan.h"

/* ---- the model ---- */

enum { LAYERS = 3, LOSS = LAYERS - 1, MICROS = 3, ROWS = 4, IN = 12, CLASSES = 10 };
enum { MAX_DEVICES = 2, MAX_TENSORS = 64, LEASE = 1 << 20, SHARES = 2, SHARE_BYTES = 512 };

static struct layer layers[LAYERS] = {
    {.type = &layer_dense,
     .id = 0,
     .in = {1, {IN}},
     .out = {1, {20}},
     .dense = {.bias = true, .act = ACT_RELU, .dropout = 0.25f}},
    {.type = &layer_dense, .id = 1, .in = {1, {20}}, .out = {1, {CLASSES}}, .dense = {.bias = true}},
    {.type = &layer_softmax_xent, .id = 2, .in = {1, {CLASSES}}},
};
static const struct model model = {layers, LAYERS};

static const struct optimizer adamw = {
    .kind = OPTIMIZER_ADAMW, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .weight_decay = 0.01f, .clip = 0.5};
static const struct optimizer sgd = {.kind = OPTIMIZER_SGD, .momentum = 0.9f};
static const struct optimizer plain_sgd = {.kind = OPTIMIZER_SGD};

struct scenario {
    const char *name;
    uint32_t n_devices; /* 2: the first layer on one, the rest on the other */
    bool host_update;   /* else W and K stay on the devices */
    bool decision;
    bool recompute; /* FWD of layer 0 saves nothing, a REC before its BWD does */
    uint32_t steps; /* per cycle */
    const struct optimizer *optimizer;
    uint64_t nan_step; /* whose input is not a number; UINT64_MAX: none */
    uint32_t replicas; /* 1 or MICROS */
    bool shares;
};

static inline bool has_group(const struct scenario *sc)
{
    return optimizer_group_bytes(sc->optimizer, sc->decision) > 0;
}

static inline struct layer_sizes sizes_of(uint32_t l)
{
    struct layer_sizes size;
    layer_type(&layers[l])->sizes(&layers[l], ROWS, &size);
    return size;
}

#define NO_NAN UINT64_MAX
enum { TWO_DEVICES = 4, NAN_ON_DEVICES = 8, SHARES_OF_REPLICAS = 12 }; /* numbers that tests use */
static const struct scenario scenarios[] = {
    {"device update", 1, false, true, false, 1, &adamw, NO_NAN, 1, false},
    {"device update, no decision", 1, false, false, false, 1, &sgd, NO_NAN, 1, false},
    {"host update", 1, true, true, false, 1, &adamw, NO_NAN, 1, false},
    {"host update, no state", 1, true, false, true, 1, &plain_sgd, NO_NAN, 1, false},
    {"two devices, device update", 2, false, true, true, 1, &adamw, NO_NAN, 1, false},
    {"two devices, host update", 2, true, true, false, 1, &sgd, NO_NAN, 1, false},
    {"two steps per cycle, device update", 2, false, true, false, 2, &adamw, NO_NAN, 1, false},
    {"two steps per cycle, host update", 1, true, true, true, 2, &adamw, NO_NAN, 1, false},
    {"not a number, device update", 2, false, true, false, 1, &adamw, 3, 1, false},
    {"not a number, host update", 1, true, true, false, 1, &sgd, 3, 1, false},
    {"replicas, device update", 1, false, true, false, 1, &adamw, NO_NAN, MICROS, false},
    {"replicas, two devices, host update", 2, true, true, true, 1, &sgd, NO_NAN, MICROS, false},
    {"replicas in shares, two devices, device update", 2, false, true, false, 1, &adamw, NO_NAN, MICROS,
     true},
    {"replicas in shares, two steps per cycle", 1, false, false, true, 2, &sgd, NO_NAN, MICROS, true},
    {"replicas in shares, no state", 2, false, false, false, 1, &plain_sgd, NO_NAN, MICROS, true},
    {"replicas in shares, host update", 1, true, true, false, 1, &adamw, NO_NAN, MICROS, true},
    {"shares, not a number", 2, false, true, false, 1, &adamw, 3, 1, true},
};

/* ---- the plan ---- */

#define CYCLE_STEPS 2 /* of a cycle */

struct maker {
    const struct scenario *sc;
    struct handmade h;
    tensor_id w[LAYERS], dw[LAYERS][MICROS], k[LAYERS], sumsq[LAYERS]; /* dw: [layer][replica] */
    tensor_id group;
    /* x: inputs of the layers after the first, which are outputs of other layers */
    tensor_id x[LAYERS][MICROS], dx[LAYERS][MICROS], s[LAYERS][MICROS], scratch[LAYERS][MICROS];
    /* What loader and trainer use: [step of the cycle][micro-batch] */
    tensor_id x0[CYCLE_STEPS][MICROS], target[CYCLE_STEPS][MICROS], result[CYCLE_STEPS][MICROS];
    tensor_id decisions[CYCLE_STEPS];
    uint64_t addr[MAX_DEVICES][MAX_TENSORS]; /* + 1; 0: not placed yet */
    uint64_t used[MAX_DEVICES];
    uint64_t work[LAYERS];                          /* shares: address + 1 of the W that tasks read */
    uint64_t part[LAYERS][SHARES][OPTIMIZER_PARTS]; /* shares: address + 1 of a part of K */
    uint32_t step;                                  /* that instructions belong to */
};

static inline tensor_id make_tensor(struct maker *m, enum tensor_kind kind, uint32_t layer, uint32_t micro,
                                    uint64_t bytes, uint32_t slots)
{
    assert_true(m->h.tensors.n < MAX_TENSORS);
    return bytes ? hm_tensor(&m->h, kind, layer, micro, bytes, slots) : PLAN_NONE;
}

/* A tensor of one training step that loader or trainer use. */
static inline tensor_id make_step_tensor(struct maker *m, uint32_t step, enum tensor_kind kind,
                                         uint32_t layer, uint32_t micro, uint64_t bytes)
{
    const tensor_id t = make_tensor(m, kind, layer, micro, bytes, PLAN_RING);
    m->h.tensors.at[t].step = step;
    return t;
}

static inline void make_tensors(struct maker *m)
{
    for (uint32_t l = 0; l < LAYERS; l++) {
        const struct layer_sizes size = sizes_of(l);
        const uint64_t k = size.w ? optimizer_k_bytes(m->sc->optimizer, layer_w_elements(&size)) : 0;
        m->w[l] = make_tensor(m, TENSOR_W, l, PLAN_NONE, size.w, 1);
        m->k[l] = make_tensor(m, TENSOR_K, l, PLAN_NONE, k, 1);
        for (uint32_t r = 0; r < m->sc->replicas; r++) {
            m->dw[l][r] = make_tensor(m, TENSOR_DW, l, PLAN_NONE, size.w, 1);
            if (size.w)
                m->h.tensors.at[m->dw[l][r]].replica = r;
        }
        m->sumsq[l] = make_tensor(m, TENSOR_SUMSQ, l, PLAN_NONE, size.w ? sizeof(double) : 0, 1);
        for (uint32_t j = 0; j < MICROS; j++) {
            m->x[l][j] = make_tensor(m, TENSOR_Y, l - 1, j, l > 0 ? size.x : 0, 0);
            m->dx[l][j] = make_tensor(m, TENSOR_DX, l, j, l > 0 ? size.x : 0, 0);
            m->s[l][j] = make_tensor(m, TENSOR_S, l, j, size.s, 0);
            m->scratch[l][j] = make_tensor(m, TENSOR_SCRATCH, l, j, size.scratch_bwd, 0);
        }
    }
    for (uint32_t s = 0; s < m->sc->steps; s++) {
        for (uint32_t j = 0; j < MICROS; j++) {
            m->x0[s][j] = make_step_tensor(m, s, TENSOR_X, 0, j, sizes_of(0).x);
            m->target[s][j] = make_step_tensor(m, s, TENSOR_TARGET, LOSS, j, sizes_of(LOSS).target);
            m->h.tensors.at[m->target[s][j]].dtype = sizes_of(LOSS).target_dtype;
            m->result[s][j] = make_step_tensor(m, s, TENSOR_RESULT, LOSS, j, sizes_of(LOSS).result);
        }
        m->decisions[s] =
            make_step_tensor(m, s, TENSOR_DECISION, PLAN_NONE, PLAN_NONE, sizeof(struct step_decision));
    }
    m->group = make_tensor(m, TENSOR_GROUP, PLAN_NONE, PLAN_NONE,
                           optimizer_group_bytes(m->sc->optimizer, m->sc->decision), 1);
}

static inline uint32_t device_of(const struct maker *m, uint32_t layer)
{
    return layer == 0 ? 0 : m->sc->n_devices - 1;
}

/* Tensors that live inside one micro-batch get the same address in every micro-batch, so that addresses are
 * used again. */
static inline tensor_id place_of(const struct maker *m, tensor_id t)
{
    const struct plan_tensor *tensor = &m->h.tensors.at[t];
    switch (tensor->kind) {
    case TENSOR_DX:
        return m->dx[tensor->layer][0];
    case TENSOR_S:
        return m->s[tensor->layer][0];
    case TENSOR_SCRATCH:
        return m->scratch[tensor->layer][0];
    case TENSOR_RESULT:
        return m->result[0][0];
    default:
        return t;
    }
}

/* Room for one more copy, at an address that is kept + 1 in *addr. */
static inline uint64_t take_address(struct maker *m, uint32_t device, uint64_t bytes, uint64_t *addr)
{
    if (*addr == 0) {
        *addr = m->used[device] + 1;
        m->used[device] += round_up(bytes, PLAN_ALIGN);
        assert_true(m->used[device] <= LEASE);
    }
    return *addr - 1;
}

static inline uint64_t address_of(struct maker *m, uint32_t device, tensor_id t)
{
    return take_address(m, device, m->h.tensors.at[t].bytes, &m->addr[device][place_of(m, t)]);
}

/* Adds an operand to the last instruction. Does nothing when the layer has no such block. */
static inline void operand(struct maker *m, tensor_id t, uint32_t loc, enum access access)
{
    if (t != PLAN_NONE)
        hm_operand(&m->h, t, loc, loc == PLAN_HOST ? 0 : address_of(m, loc, t), access);
}

static inline void operand_range(struct maker *m, tensor_id t, uint64_t begin, uint64_t end, uint32_t loc,
                                 enum access access)
{
    hm_operand_range(&m->h, t, begin, end, loc, loc == PLAN_HOST ? 0 : address_of(m, loc, t) + begin, access);
}

/* Whether W and K stay on the devices in shares. */
static inline bool is_pinned(const struct maker *m)
{
    return m->sc->shares && !m->sc->host_update;
}

/* Bytes of W as forward and backward read it. */
static inline void work_operand(struct maker *m, uint32_t l, uint64_t begin, uint64_t end, enum access access)
{
    const uint32_t d = device_of(m, l);
    if (m->w[l] == PLAN_NONE)
        return;
    if (!is_pinned(m))
        operand_range(m, m->w[l], begin, end, d, access);
    else
        hm_operand_range(&m->h, m->w[l], begin, end, d,
                         take_address(m, d, sizes_of(l).w, &m->work[l]) + begin, access);
}

/* ---- shares ---- */

static inline uint32_t n_shares(const struct maker *m)
{
    return m->sc->shares ? SHARES : 1;
}

/* Bytes of W and dW. */
static inline uint64_t share_begin(uint32_t share)
{
    return share * SHARE_BYTES;
}

static inline uint64_t share_end(const struct maker *m, uint32_t l, uint32_t share)
{
    return share + 1 < n_shares(m) ? SHARE_BYTES : sizes_of(l).w;
}

/* Operands of K. */
static inline uint32_t n_parts(const struct maker *m)
{
    struct state_part at[OPTIMIZER_PARTS];
    const uint32_t parts = optimizer_parts(m->sc->optimizer, 0, at);
    return m->sc->shares || parts == 0 ? parts : 1;
}

/* Adds an operand of K: all of K, or one part of one share. On a device each part gets an address that does
 * not adjoin other memory in use. */
static inline void k_operand(struct maker *m, uint32_t l, uint32_t share, uint32_t part, uint32_t loc,
                             enum access access)
{
    const uint64_t begin = part * sizes_of(l).w + share_begin(share),
                   end = part * sizes_of(l).w + share_end(m, l, share);
    if (!m->sc->shares)
        operand(m, m->k[l], loc, access);
    else if (loc == PLAN_HOST)
        operand_range(m, m->k[l], begin, end, loc, access);
    else
        hm_operand_range(&m->h, m->k[l], begin, end, loc,
                         take_address(m, loc, end - begin + PLAN_ALIGN, &m->part[l][share][part]), access);
}

/* ---- moves ---- */

static inline uint32_t move_stream(enum instr_kind kind, uint32_t src, uint32_t dst)
{
    return kind == INSTR_FETCH   ? plan_stream(dst, LANE_IN)
           : kind == INSTR_SPILL ? plan_stream(src, LANE_OUT)
                                 : plan_stream(src, LANE_PEER);
}

static inline void move(struct maker *m, enum instr_kind kind, tensor_id t, uint32_t src, uint32_t dst)
{
    if (t == PLAN_NONE || src == dst)
        return;
    hm_instr(&m->h, kind, move_stream(kind, src, dst), PLAN_NONE, PLAN_NONE, 0);
    operand(m, t, src, ACCESS_READ);
    operand(m, t, dst, ACCESS_WRITE);
}

static inline void fetch(struct maker *m, tensor_id t, uint32_t device)
{
    move(m, INSTR_FETCH, t, PLAN_HOST, device);
}

static inline void spill(struct maker *m, tensor_id t, uint32_t device)
{
    move(m, INSTR_SPILL, t, device, PLAN_HOST);
}

static inline uint32_t task_stream(const struct maker *m, uint32_t loc)
{
    return loc == PLAN_HOST ? plan_host_stream(&m->h.plan) : plan_stream(loc, LANE_COMPUTE);
}

static inline void make_fwd(struct maker *m, enum instr_kind kind, uint32_t l, uint32_t j, bool save)
{
    const uint32_t d = device_of(m, l);

    hm_instr(&m->h, kind, task_stream(m, d), l, j, m->step);
    work_operand(m, l, 0, sizes_of(l).w, ACCESS_READ);
    operand(m, l == 0 ? m->x0[m->step][j] : m->x[l][j], d, ACCESS_READ);
    if (l == LOSS) {
        operand(m, m->target[m->step][j], d, ACCESS_READ);
        operand(m, m->result[m->step][j], d, ACCESS_WRITE);
    } else if (kind == INSTR_FWD) {
        operand(m, m->x[l + 1][j], d, ACCESS_WRITE);
    }
    if (save)
        operand(m, m->s[l][j], d, ACCESS_WRITE);
}

static inline void make_bwd(struct maker *m, uint32_t l, uint32_t j)
{
    const uint32_t d = device_of(m, l), of_each = MICROS / m->sc->replicas;

    hm_instr(&m->h, INSTR_BWD, task_stream(m, d), l, j, m->step);
    work_operand(m, l, 0, sizes_of(l).w, ACCESS_READ);
    operand(m, l == 0 ? m->x0[m->step][j] : m->x[l][j], d, ACCESS_READ);
    operand(m, m->s[l][j], d, ACCESS_READ);
    operand(m, l == LOSS ? m->target[m->step][j] : m->dx[l + 1][j], d, ACCESS_READ);
    operand(m, m->dw[l][j / of_each], d, j % of_each == 0 ? ACCESS_WRITE : ACCESS_RW);
    operand(m, m->dx[l][j], d, ACCESS_WRITE);
    operand(m, m->scratch[l][j], d, ACCESS_WRITE);
}

static inline void make_forward(struct maker *m, uint32_t j, bool save)
{
    fetch(m, m->x0[m->step][j], device_of(m, 0));
    fetch(m, m->target[m->step][j], device_of(m, LOSS));
    for (uint32_t l = 0; l < LAYERS; l++) {
        make_fwd(m, INSTR_FWD, l, j, save && !(l == 0 && m->sc->recompute));
        if (l < LOSS)
            move(m, INSTR_SEND, m->x[l + 1][j], device_of(m, l), device_of(m, l + 1));
    }
    spill(m, m->result[m->step][j], device_of(m, LOSS));
}

static inline void make_backward(struct maker *m, uint32_t j)
{
    for (uint32_t l = LAYERS; l-- > 0;) {
        if (l < LOSS)
            move(m, INSTR_SEND, m->dx[l + 1][j], device_of(m, l + 1), device_of(m, l));
        if (l == 0 && m->sc->recompute)
            make_fwd(m, INSTR_REC, l, j, true);
        make_bwd(m, l, j);
    }
}

/* Where gradients are reduced, normed and applied. */
static inline uint32_t update_place(const struct maker *m, uint32_t l)
{
    return m->sc->host_update ? PLAN_HOST : device_of(m, l);
}

static inline void make_reductions(struct maker *m)
{
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t r = 1; m->w[l] != PLAN_NONE && r < m->sc->replicas; r++)
            for (uint32_t i = n_shares(m); i-- > 0;) {
                const uint32_t d = update_place(m, l);
                const uint64_t begin = share_begin(i), end = share_end(m, l, i);
                const uint32_t at = hm_instr(&m->h, INSTR_RED, task_stream(m, d), l, PLAN_NONE, m->step);
                m->h.programs[m->h.now].instrs.at[at].replica = r;
                operand_range(m, m->dw[l][0], begin, end, d, ACCESS_RW);
                operand_range(m, m->dw[l][r], begin, end, d, ACCESS_READ);
            }
}

static inline void make_decision(struct maker *m)
{
    for (uint32_t l = 0; m->sc->decision && l < LAYERS; l++) {
        const uint32_t d = update_place(m, l);
        if (m->w[l] == PLAN_NONE)
            continue;
        hm_instr(&m->h, INSTR_NORM, task_stream(m, d), l, PLAN_NONE, m->step);
        operand(m, m->dw[l][0], d, ACCESS_READ);
        operand(m, m->sumsq[l], d, ACCESS_WRITE);
        spill(m, m->sumsq[l], d);
    }
    hm_instr(&m->h, INSTR_DECIDE, task_stream(m, PLAN_HOST), PLAN_NONE, PLAN_NONE, m->step);
    for (uint32_t l = 0; m->sc->decision && l < LAYERS; l++)
        operand(m, m->sumsq[l], PLAN_HOST, ACCESS_READ);
    if (m->sc->decision)
        operand(m, m->decisions[m->step], PLAN_HOST, ACCESS_WRITE);
    operand(m, m->group, PLAN_HOST, ACCESS_RW);
    for (uint32_t d = 0; !m->sc->host_update && d < m->sc->n_devices; d++)
        fetch(m, m->group, d);
}

static inline void make_update(struct maker *m, uint32_t l, uint32_t share)
{
    const uint32_t d = update_place(m, l);

    hm_instr(&m->h, INSTR_UPD, task_stream(m, d), l, PLAN_NONE, m->step);
    operand_range(m, m->dw[l][0], share_begin(share), share_end(m, l, share), d, ACCESS_READ);
    operand(m, m->group, d, ACCESS_READ);
    operand_range(m, m->w[l], share_begin(share), share_end(m, l, share), d, ACCESS_RW);
    for (uint32_t p = 0; p < n_parts(m); p++)
        k_operand(m, l, share, p, d, ACCESS_RW);
}

static inline void make_updates(struct maker *m)
{
    for (uint32_t l = 0; m->sc->host_update && l < LAYERS; l++)
        for (uint32_t r = 0; r < m->sc->replicas; r++)
            spill(m, m->dw[l][r], device_of(m, l));
    make_reductions(m);
    if (m->group != PLAN_NONE)
        make_decision(m);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t i = 0; m->w[l] != PLAN_NONE && i < n_shares(m); i++)
            make_update(m, l, i);
}

/* Copies the pinned W to the addresses where the forward and backward tasks read it. */
static inline void make_copies(struct maker *m)
{
    for (uint32_t l = 0; is_pinned(m) && l < LAYERS; l++)
        for (uint32_t i = 0; m->w[l] != PLAN_NONE && i < SHARES; i++) {
            const uint64_t begin = share_begin(i), end = share_end(m, l, i);
            hm_instr(&m->h, INSTR_COPY, plan_stream(device_of(m, l), LANE_PEER), PLAN_NONE, PLAN_NONE, 0);
            operand_range(m, m->w[l], begin, end, device_of(m, l), ACCESS_READ);
            work_operand(m, l, begin, end, ACCESS_WRITE);
        }
}

static inline void make_cycle(struct maker *m)
{
    m->h.now = PROGRAM_CYCLE;
    for (m->step = 0; m->step < m->sc->steps; m->step++) {
        for (uint32_t l = 0; m->sc->host_update && l < LAYERS; l++)
            fetch(m, m->w[l], device_of(m, l));
        make_copies(m);
        for (uint32_t j = 0; j < MICROS; j++) {
            make_forward(m, j, true);
            make_backward(m, j);
        }
        make_updates(m);
    }
    m->step = 0;
}

static inline void make_k_move(struct maker *m, enum instr_kind kind, uint32_t l, uint32_t share,
                               uint32_t part)
{
    const uint32_t d = device_of(m, l);
    const bool in = kind == INSTR_FETCH;

    hm_instr(&m->h, kind, plan_stream(d, in ? LANE_IN : LANE_OUT), PLAN_NONE, PLAN_NONE, 0);
    k_operand(m, l, share, part, in ? PLAN_HOST : d, ACCESS_READ);
    k_operand(m, l, share, part, in ? d : PLAN_HOST, ACCESS_WRITE);
}

/* W and K of all layers, and nothing when they live on the host anyway. */
static inline void make_state_moves(struct maker *m, enum program_kind k, enum instr_kind kind)
{
    m->h.now = k;
    for (uint32_t l = 0; !m->sc->host_update && l < LAYERS; l++) {
        const uint32_t d = device_of(m, l);
        if (m->w[l] == PLAN_NONE)
            continue;
        move(m, kind, m->w[l], kind == INSTR_FETCH ? PLAN_HOST : d, kind == INSTR_FETCH ? d : PLAN_HOST);
        for (uint32_t i = 0; i < n_shares(m); i++)
            for (uint32_t p = 0; p < n_parts(m); p++)
                make_k_move(m, kind, l, i, p);
        if (k == PROGRAM_EXIT) {
            hm_instr(&m->h, INSTR_DROP, plan_stream(d, LANE_OUT), PLAN_NONE, PLAN_NONE, 0);
            operand(m, m->w[l], d, ACCESS_DROP);
        }
    }
}

static inline void make_eval(struct maker *m)
{
    m->h.now = PROGRAM_EVAL;
    for (uint32_t l = 0; l < LAYERS; l++) {
        if (m->w[l] == PLAN_NONE)
            continue;
        hm_instr(&m->h, INSTR_FETCH, plan_stream(device_of(m, l), LANE_IN), PLAN_NONE, PLAN_NONE, 0);
        operand(m, m->w[l], PLAN_HOST, ACCESS_READ);
        work_operand(m, l, 0, sizes_of(l).w, ACCESS_WRITE);
    }
    for (uint32_t j = 0; j < MICROS; j++)
        make_forward(m, j, false);
}

static inline void make_plan(struct maker *m, const struct scenario *sc)
{
    memset(m, 0, sizeof *m);
    m->sc = sc;
    hm_init(&m->h, sc->n_devices, LEASE);
    m->h.plan.n_layers = LAYERS;
    m->h.plan.n_micro = MICROS;
    m->h.plan.n_replicas = sc->replicas;
    m->h.plan.rows = ROWS;
    m->h.plan.steps = sc->steps;
    make_tensors(m);
    make_cycle(m);
    make_state_moves(m, PROGRAM_ENTRY, INSTR_FETCH);
    make_state_moves(m, PROGRAM_FLUSH, INSTR_SPILL);
    make_state_moves(m, PROGRAM_EXIT, INSTR_SPILL);
    make_eval(m);
    for (uint32_t k = 0; k < PROGRAM_COUNT; k++)
        hm_derive_waits(&m->h, k);
    hm_finish(&m->h);
}

/* ---- the devices ---- */

static inline struct devset *open_devices(uint32_t n, uint64_t delay_seed)
{
    struct devset_config config = {.backend = "cpu", .n_devices = n, .threads = 2, .delay_seed = delay_seed};
    struct devset *devices;
    struct err err = {0};

    for (uint32_t d = 0; d < n; d++)
        config.capacity_bytes[d] = LEASE;
    if (devset_open(&config, &devices, &err) != 0)
        fail_msg("%s", err.msg);
    return devices;
}

#endif
