/* Implements shared_plan.h.
 *
 * A spot is the address range of one copy on a device. The copy is either a whole tensor or a part of a
 * tensor that has its own address. Spots never overlap, and every run uses the same spots. At its end a
 * program drops every copy that it put on a device, except the pinned ones.
 */
#include "tests/engine/shared_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

struct spot {
    uint32_t device;
    tensor_id tensor;
    bool part; /* of the tensor: bytes begin..end; else all of it */
    uint64_t begin, end, addr;
    bool used; /* in the program that is being made */
};

/* Where an operand is. */
struct at {
    uint32_t loc;
    bool part;
};
#define HOST     ((struct at){PLAN_HOST, false})
#define WHOLE(d) ((struct at){(d), false})
#define PART(d)  ((struct at){(d), true})

/* The elements begin..end of a layer's W and dW, and the device that owns them. */
struct share {
    uint32_t owner;
    uint64_t begin, end;
};

struct maker {
    const struct graph *g;
    const struct shared_form *form;
    struct handmade *h;
    VEC(struct spot) spots;
    uint64_t used[DEVICE_MAX];
};

static uint32_t device_of(const struct maker *m, uint32_t replica)
{
    return replica / (m->form->n_replicas / m->form->n_devices);
}

static uint64_t w_bytes(const struct maker *m, uint32_t l)
{
    return m->g->layers[l].size.w;
}

static uint32_t n_parts(const struct maker *m, uint32_t l)
{
    return m->g->layers[l].n_parts;
}

/* Cuts the weights of a layer at multiples of PLAN_ALIGN bytes, as evenly as that allows. False: share i of
 * the layer is empty. */
static bool share_of(const struct maker *m, uint32_t l, uint32_t i, struct share *ret)
{
    const uint64_t bytes = w_bytes(m, l), blocks = round_up(bytes, PLAN_ALIGN) / PLAN_ALIGN,
                   n = m->form->cuts;
    const uint64_t begin = i * blocks / n * PLAN_ALIGN, end = (i + 1) * blocks / n * PLAN_ALIGN;
    const uint64_t each = dtype_size(m->g->layers[l].size.w_dtype);

    *ret = (struct share){i % m->form->n_devices, begin / each, (end < bytes ? end : bytes) / each};
    return ret->begin < ret->end;
}

#define FOR_EACH_SHARE(m, l, s)                                                                              \
    for (uint32_t i_ = 0; i_ < (m)->form->cuts; i_++)                                                        \
        if (share_of((m), (l), i_, &(s)))

/* ---- spots, operands, moves ---- */

static struct spot *spot_of(struct maker *m, tensor_id t, uint32_t device, bool part, uint64_t begin,
                            uint64_t end)
{
    for (size_t i = 0; i < m->spots.n; i++) {
        struct spot *s = &m->spots.at[i];
        if (s->tensor == t && s->device == device && s->part == part && (!part || s->begin == begin))
            return s;
    }
    const uint64_t bytes = part ? end - begin : m->h->tensors.at[t].bytes;
    vec_push(&m->spots, (struct spot){.device = device,
                                      .tensor = t,
                                      .part = part,
                                      .begin = part ? begin : 0,
                                      .end = part ? end : bytes,
                                      .addr = m->used[device]});
    m->used[device] += round_up(bytes, PLAN_ALIGN);
    return &m->spots.at[m->spots.n - 1];
}

static void operand(struct maker *m, tensor_id t, uint64_t begin, uint64_t end, struct at at,
                    enum access access)
{
    uint64_t addr = 0;
    if (at.loc != PLAN_HOST) {
        struct spot *s = spot_of(m, t, at.loc, at.part, begin, end);
        s->used = true;
        addr = s->addr + (begin - s->begin);
    }
    hm_operand_range(m->h, t, begin, end, at.loc, addr, access);
}

static void whole(struct maker *m, tensor_id t, struct at at, enum access access)
{
    operand(m, t, 0, m->h->tensors.at[t].bytes, at, access);
}

static void move(struct maker *m, tensor_id t, uint64_t begin, uint64_t end, struct at from, struct at to)
{
    const enum instr_kind kind = from.loc == PLAN_HOST ? INSTR_FETCH
                                 : to.loc == PLAN_HOST ? INSTR_SPILL
                                 : from.loc == to.loc  ? INSTR_COPY
                                                       : INSTR_SEND;
    const uint32_t stream = kind == INSTR_FETCH   ? plan_stream(to.loc, LANE_IN)
                            : kind == INSTR_SPILL ? plan_stream(from.loc, LANE_OUT)
                                                  : plan_stream(from.loc, LANE_PEER);
    hm_instr(m->h, kind, stream, PLAN_NONE, PLAN_NONE, 0);
    operand(m, t, begin, end, from, ACCESS_READ);
    operand(m, t, begin, end, to, ACCESS_WRITE);
}

/* The same for a share of a tensor W or dW. */
static void operand_share(struct maker *m, tensor_id t, const struct share *s, struct at at,
                          enum access access)
{
    const uint64_t each = dtype_size(m->h->tensors.at[t].dtype);
    operand(m, t, s->begin * each, s->end * each, at, access);
}

static void move_share(struct maker *m, tensor_id t, const struct share *s, struct at from, struct at to)
{
    const uint64_t each = dtype_size(m->h->tensors.at[t].dtype);
    move(m, t, s->begin * each, s->end * each, from, to);
}

static void move_whole(struct maker *m, tensor_id t, struct at from, struct at to)
{
    if (t != PLAN_NONE)
        move(m, t, 0, m->h->tensors.at[t].bytes, from, to);
}

static void task(struct maker *m, enum instr_kind kind, uint32_t loc, uint32_t layer)
{
    hm_instr(m->h, kind, loc == PLAN_HOST ? plan_host_stream(&m->h->plan) : plan_stream(loc, LANE_COMPUTE),
             layer, PLAN_NONE, 0);
}

static tensor_id find(const struct maker *m, enum tensor_kind kind, uint32_t layer, uint32_t which)
{
    const bool of_loss = kind == TENSOR_TARGET || kind == TENSOR_RESULT; /* the others have group 0 */
    const uint32_t of = layer != PLAN_NONE ? layer : of_loss ? m->g->n_layers - 1 : 0;
    return graph_tensor_find(m->g, kind, of, which, 0);
}

static bool is_pinned(const struct maker *m, const struct spot *s)
{
    const enum tensor_kind kind = m->h->tensors.at[s->tensor].kind;
    return m->form->pinned && s->part && (kind == TENSOR_W || kind == TENSOR_K);
}

static void drop(struct maker *m, const struct spot *s)
{
    hm_instr(m->h, INSTR_DROP, plan_stream(s->device, LANE_COMPUTE), PLAN_NONE, PLAN_NONE, 0);
    hm_operand_range(m->h, s->tensor, s->begin, s->end, s->device, s->addr, ACCESS_DROP);
}

static void begin_program(struct maker *m, enum program_kind k)
{
    m->h->now = k;
    for (size_t i = 0; i < m->spots.n; i++)
        m->spots.at[i].used = false;
}

static void drop_all(struct maker *m, bool pinned_too)
{
    for (size_t i = 0; i < m->spots.n; i++)
        if (m->spots.at[i].used && (pinned_too || !is_pinned(m, &m->spots.at[i])))
            drop(m, &m->spots.at[i]);
}

/* ---- weights ---- */

static void get_shared_weights(struct maker *m, uint32_t l, bool pinned)
{
    const tensor_id w = find(m, TENSOR_W, l, PLAN_NONE);
    struct share s;

    FOR_EACH_SHARE(m, l, s)
    {
        if (pinned)
            move_share(m, w, &s, PART(s.owner), WHOLE(s.owner));
        else
            move_share(m, w, &s, HOST, WHOLE(s.owner));
        for (uint32_t d = 0; d < m->form->n_devices; d++)
            if (d != s.owner)
                move_share(m, w, &s, pinned ? PART(s.owner) : WHOLE(s.owner), WHOLE(d));
    }
}

static void get_weights(struct maker *m, bool pinned)
{
    for (uint32_t l = 0; l < m->g->n_layers; l++) {
        if (w_bytes(m, l) == 0)
            continue;
        if (m->form->share_fetches || pinned)
            get_shared_weights(m, l, pinned);
        else
            for (uint32_t d = 0; d < m->form->n_devices; d++)
                move_whole(m, find(m, TENSOR_W, l, PLAN_NONE), HOST, WHOLE(d));
    }
}

/* ---- forward and backward ---- */

static void add_layer_task(struct maker *m, const struct graph *g, const struct graph_task *t)
{
    const uint32_t d = device_of(m, t->replica), last = m->g->n_layers - 1;

    if (t->kind == INSTR_FWD && t->layer == 0) {
        move_whole(m, find(m, TENSOR_X, 0, t->micro), HOST, WHOLE(d));
        move_whole(m, find(m, TENSOR_TARGET, PLAN_NONE, t->micro), HOST, WHOLE(d));
    }
    hm_instr(m->h, t->kind, plan_stream(d, LANE_COMPUTE), t->layer, t->micro, 0);
    for (uint32_t i = 0; i < t->n_operands; i++) {
        const struct graph_operand *o = &g->operands[t->operand + i];
        const enum tensor_kind kind = g->tensors[o->tensor].kind;
        if (kind != TENSOR_WORK &&
            !(o->optional && !g->training)) /* S is kept; nobody wants it in an evaluation */
            operand(m, o->tensor, o->begin, o->end, WHOLE(d), o->access);
    }
    if (t->kind == INSTR_FWD && t->layer == last)
        move_whole(m, find(m, TENSOR_RESULT, PLAN_NONE, t->micro), WHOLE(d), HOST);
}

static void add_layer_tasks(struct maker *m, const struct graph *g)
{
    for (uint32_t i = 0; i < g->n_tasks; i++)
        if (g->tasks[i].kind == INSTR_FWD || g->tasks[i].kind == INSTR_BWD)
            add_layer_task(m, g, &g->tasks[i]);
}

/* ---- gradients ---- */

/* Where a share of a replica's dW is, once its owner has it. */
static struct at gradient_at(const struct maker *m, uint32_t replica, uint32_t owner)
{
    if (m->form->host_reduction)
        return HOST;
    return device_of(m, replica) == owner ? WHOLE(owner) : PART(owner);
}

static void reduce_share(struct maker *m, uint32_t l, const struct share *s)
{
    const tensor_id sum = find(m, TENSOR_DW, l, 0);
    const struct at sum_at = gradient_at(m, 0, s->owner);

    for (uint32_t r = 0; r < m->form->n_replicas; r++) {
        const struct at there = gradient_at(m, r, s->owner);
        if (there.loc == PLAN_HOST || there.part)
            move_share(m, find(m, TENSOR_DW, l, r), s, WHOLE(device_of(m, r)), there);
    }
    for (uint32_t r = 1; r < m->form->n_replicas; r++) {
        task(m, INSTR_RED, sum_at.loc, l);
        struct hm_program *p = &m->h->programs[m->h->now];
        p->instrs.at[p->instrs.n - 1].replica = r;
        operand_share(m, sum, s, sum_at, ACCESS_RW);
        operand_share(m, find(m, TENSOR_DW, l, r), s, gradient_at(m, r, s->owner), ACCESS_READ);
    }
    if (m->form->host_update && !m->form->host_reduction)
        move_share(m, sum, s, sum_at, HOST);
}

/* On one device: its own shares may be there already, in the dW of replica 0. */
static void gather_gradient(struct maker *m, uint32_t l, uint32_t device)
{
    struct share s;
    FOR_EACH_SHARE(m, l, s)
    {
        const struct at from = gradient_at(m, 0, s.owner);
        if (from.loc != device || from.part)
            move_share(m, find(m, TENSOR_DW, l, 0), &s, from, WHOLE(device));
    }
}

static void add_norm(struct maker *m, uint32_t l)
{
    const struct at at = m->form->host_update ? HOST : WHOLE(l % m->form->n_devices);
    const tensor_id sumsq = find(m, TENSOR_SUMSQ, l, PLAN_NONE);

    if (!m->form->host_update)
        gather_gradient(m, l, at.loc);
    task(m, INSTR_NORM, at.loc, l);
    whole(m, find(m, TENSOR_DW, l, 0), at, ACCESS_READ);
    whole(m, sumsq, at, ACCESS_WRITE);
    if (at.loc != PLAN_HOST)
        move_whole(m, sumsq, at, HOST);
}

static void add_decision(struct maker *m)
{
    const tensor_id group = find(m, TENSOR_GROUP, PLAN_NONE, PLAN_NONE);

    if (m->g->groups[0].state_bytes == 0)
        return;
    for (uint32_t l = 0; m->g->groups[0].decision && l < m->g->n_layers; l++)
        if (w_bytes(m, l) > 0)
            add_norm(m, l);
    task(m, INSTR_DECIDE, PLAN_HOST, PLAN_NONE);
    for (uint32_t l = 0; m->g->groups[0].decision && l < m->g->n_layers; l++)
        if (w_bytes(m, l) > 0)
            whole(m, find(m, TENSOR_SUMSQ, l, PLAN_NONE), HOST, ACCESS_READ);
    if (m->g->groups[0].decision)
        whole(m, find(m, TENSOR_DECISION, PLAN_NONE, PLAN_NONE), HOST, ACCESS_WRITE);
    whole(m, group, HOST, ACCESS_RW);
    for (uint32_t d = 0; !m->form->host_update && d < m->form->n_devices; d++)
        move_whole(m, group, HOST, WHOLE(d));
}

/* ---- updates ---- */

/* Operands of K of a share: all of it where there are no shares, else its parts. */
static uint32_t k_operands(const struct maker *m, uint32_t l)
{
    const uint32_t parts = n_parts(m, l);
    return m->form->cuts == 1 && parts > 0 ? 1 : parts;
}

static void k_range(const struct maker *m, uint32_t l, const struct share *s, uint32_t part,
                    uint64_t *ret_begin, uint64_t *ret_end)
{
    const bool all = m->form->cuts == 1;
    const struct state_part *p = all ? NULL : &m->g->layers[l].parts[part];
    *ret_begin = all ? 0 : p->begin + s->begin * dtype_size(p->dtype);
    *ret_end = all ? m->g->layers[l].k_bytes : p->begin + s->end * dtype_size(p->dtype);
}

static void move_k(struct maker *m, uint32_t l, const struct share *s, bool in)
{
    for (uint32_t p = 0; p < k_operands(m, l); p++) {
        uint64_t begin, end;
        k_range(m, l, s, p, &begin, &end);
        move(m, find(m, TENSOR_K, l, PLAN_NONE), begin, end, in ? HOST : PART(s->owner),
             in ? PART(s->owner) : HOST);
    }
}

static void add_update(struct maker *m, uint32_t l, const struct share *s)
{
    const bool host = m->form->host_update;
    const tensor_id w = find(m, TENSOR_W, l, PLAN_NONE);
    const struct at w_at = host ? HOST : m->form->pinned ? PART(s->owner) : WHOLE(s->owner);

    if (!host && !m->form->pinned)
        move_k(m, l, s, true);
    task(m, INSTR_UPD, w_at.loc, l);
    operand_share(m, find(m, TENSOR_DW, l, 0), s, host ? HOST : gradient_at(m, 0, s->owner), ACCESS_READ);
    if (m->g->groups[0].state_bytes > 0)
        whole(m, find(m, TENSOR_GROUP, PLAN_NONE, PLAN_NONE), host ? HOST : WHOLE(s->owner), ACCESS_READ);
    operand_share(m, w, s, w_at, ACCESS_RW);
    for (uint32_t p = 0; p < k_operands(m, l); p++) {
        uint64_t begin, end;
        k_range(m, l, s, p, &begin, &end);
        operand(m, find(m, TENSOR_K, l, PLAN_NONE), begin, end, host ? HOST : PART(s->owner), ACCESS_RW);
    }
    if (host || m->form->pinned)
        return;
    move_share(m, w, s, w_at, HOST);
    move_k(m, l, s, false);
}

/* ---- programs ---- */

static void make_cycle(struct maker *m)
{
    struct share s;

    begin_program(m, PROGRAM_CYCLE);
    get_weights(m, m->form->pinned);
    add_layer_tasks(m, m->g);
    for (uint32_t l = 0; l < m->g->n_layers; l++)
        FOR_EACH_SHARE(m, l, s)
    reduce_share(m, l, &s);
    add_decision(m);
    for (uint32_t l = 0; l < m->g->n_layers; l++)
        FOR_EACH_SHARE(m, l, s)
    add_update(m, l, &s);
    drop_all(m, false);
}

/* What is pinned, in or out. */
static void make_state_moves(struct maker *m, enum program_kind k)
{
    const bool in = k == PROGRAM_ENTRY;
    struct share s;

    begin_program(m, k);
    for (uint32_t l = 0; m->form->pinned && l < m->g->n_layers; l++)
        FOR_EACH_SHARE(m, l, s)
        {
            move_share(m, find(m, TENSOR_W, l, PLAN_NONE), &s, in ? HOST : PART(s.owner),
                       in ? PART(s.owner) : HOST);
            move_k(m, l, &s, in);
        }
    if (k == PROGRAM_EXIT)
        drop_all(m, true);
}

static void make_eval(struct maker *m, const struct graph *eval)
{
    begin_program(m, PROGRAM_EVAL);
    get_weights(m, false);
    add_layer_tasks(m, eval);
    drop_all(m, true);
}

/* ---- the plan ---- */

static void make_tensors(struct maker *m)
{
    for (uint32_t t = 0; t < m->g->n_tensors; t++) {
        const struct graph_tensor *gt = &m->g->tensors[t];
        const bool at_home = gt->persistent || gt->kind == TENSOR_DW || gt->kind == TENSOR_SUMSQ;
        hm_tensor(m->h, gt->kind, gt->layer, gt->micro, gt->bytes,
                  gt->external ? PLAN_RING
                  : at_home    ? 1
                               : 0);
        m->h->tensors.at[t].replica = gt->replica;
        m->h->tensors.at[t].dtype = gt->dtype;
    }
}

/* Of the waits for one stream, the last is enough. */
static void thin_waits(struct hm_program *p)
{
    size_t n = 0;
    for (size_t i = 0; i < p->instrs.n; i++) {
        struct plan_instr *in = &p->instrs.at[i];
        const size_t begin = n;
        for (uint32_t k = 0; k < in->n_waits; k++) {
            const struct plan_wait w = p->waits.at[in->wait + k];
            bool last = p->instrs.at[w.instr].stream != in->stream;
            for (uint32_t other = 0; other < in->n_waits; other++) {
                const struct plan_wait *v = &p->waits.at[in->wait + other];
                last &= v->distance != w.distance || v->instr <= w.instr ||
                        p->instrs.at[v->instr].stream != p->instrs.at[w.instr].stream;
            }
            if (last)
                p->waits.at[n++] = w; /* over one that is copied already, or not the last of its stream */
        }
        in->wait = (uint32_t)begin;
        in->n_waits = (uint32_t)(n - begin);
    }
    p->waits.n = n;
}

static void make_boundary(struct maker *m)
{
    for (uint32_t d = 0; d < m->form->n_devices; d++)
        for (size_t i = 0; i < m->spots.n; i++) {
            const struct spot *s = &m->spots.at[i];
            if (s->device == d && is_pinned(m, s))
                vec_push(&m->h->boundary, (struct plan_copy){s->tensor, d, s->begin, s->end, s->addr});
        }
}

void shared_plan(const struct graph *train, const struct graph *eval, const struct shared_form *form,
                 struct handmade *ret)
{
    struct maker m = {.g = train, .form = form, .h = ret};

    assert_true(form->n_replicas % form->n_devices == 0 && form->n_replicas == train->n_replicas);
    assert_true(!(form->pinned && form->host_update) && (form->host_update || !form->host_reduction));
    hm_init(ret, form->n_devices, 0);
    snprintf(ret->plan.policy, sizeof ret->plan.policy, "by-rule");
    ret->plan.n_layers = train->n_layers;
    ret->plan.n_micro = train->n_micro;
    ret->plan.n_replicas = train->n_replicas;
    ret->plan.rows = train->rows;
    make_tensors(&m);
    make_state_moves(&m, PROGRAM_ENTRY);
    make_cycle(&m);
    make_state_moves(&m, PROGRAM_FLUSH);
    make_state_moves(&m, PROGRAM_EXIT);
    make_eval(&m, eval);
    for (uint32_t k = 0; k < PROGRAM_COUNT; k++) {
        hm_derive_waits(ret, k);
        thin_waits(&ret->programs[k]);
    }
    make_boundary(&m);
    hm_finish(ret);
    ret->plan.host_lease_bytes = ret->plan.host_bytes;
    for (uint32_t d = 0; d < form->n_devices; d++)
        ret->plan.devices[d] = (struct plan_device){m.used[d], m.used[d]};
    vec_free(&m.spots);
}
