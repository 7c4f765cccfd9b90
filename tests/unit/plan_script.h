/* Lets a test write a plan by hand without writing addresses and waits. A script lists moves and tasks in
 * issue order.
 *
 * A spot is an address range on a device that holds, or will hold, a range of a tensor. Addresses are
 * assigned in ascending order, and start again from 0 where the script says so. The waits are derived at the
 * end, from bytes alone. Two instructions are ordered if they touch the same bytes of a memory and one of
 * them writes, also across runs of the cycle. A wait that other waits imply is left out, so every wait is
 * needed. Nothing here uses the builder or the verifier.
 */
#ifndef TESTS_PLAN_SCRIPT_H
#define TESTS_PLAN_SCRIPT_H

#include <assert.h>

#include "base/checked.h"
#include "scheduler/graph.h"
#include "scheduler/machine.h"
#include "tests/unit/plan_edit.h"

struct spot {
    tensor_id tensor;
    uint32_t device;
    uint64_t begin, end, addr; /* addr: of byte `begin` */
    bool live;
};

typedef uint32_t spot_id;

struct script {
    const struct graph *g;
    struct edit e;
    enum program_kind k;
    VEC(struct spot) spots;
    uint64_t next[DEVICE_MAX]; /* address that is handed out next */
    VEC(uint64_t) host;        /* per tensor: its address in host memory */
};

#define SCRIPT_LEASE (1u << 18)

static inline struct script script_begin(const struct graph *g, const char *name, uint32_t n_devices)
{
    struct script s = {.g = g,
                       .e.header = {.n_devices = n_devices,
                                    .n_layers = g->n_layers,
                                    .n_micro = g->n_micro,
                                    .n_replicas = g->n_replicas,
                                    .n_groups = g->n_groups,
                                    .rows = g->rows,
                                    .steps = g->steps,
                                    .host_lease_bytes = 1 << 20}};
    uint64_t at = 0;
    strncpy(s.e.header.policy, name, sizeof s.e.header.policy - 1);
    for (tensor_id t = 0; t < g->n_tensors; t++) {
        const struct graph_tensor *gt = &g->tensors[t];
        uint32_t slots = gt->external ? PLAN_RING : gt->persistent ? 1 : 0;
        vec_push(&s.e.tensors,
                 (struct plan_tensor){gt->kind, gt->layer, gt->micro, gt->replica, gt->step, gt->group,
                                      gt->dtype, gt->bytes, slots > 0 ? at : PLAN_NO_HOST, slots});
        vec_push(&s.host, at);
        at += (slots > 0 ? slots : 1) * round_up(gt->bytes, PLAN_ALIGN);
    }
    s.e.header.host_bytes = at;
    return s;
}

static inline uint64_t script_bytes(const struct script *s, tensor_id t)
{
    return s->g->tensors[t].bytes;
}

static inline tensor_id script_tensor(const struct script *s, enum tensor_kind kind, uint32_t layer,
                                      uint32_t which)
{
    tensor_id t = graph_tensor_find(s->g, kind, layer == PLAN_NONE ? 0 : layer, which, 0);
    assert(t != PLAN_NONE);
    return t;
}

/* ---- spots ---- */

static inline spot_id script_spot(struct script *s, tensor_id t, uint32_t device, uint64_t begin,
                                  uint64_t end)
{
    vec_push(&s->spots, (struct spot){t, device, begin, end, s->next[device], true});
    s->next[device] += round_up(end - begin, PLAN_ALIGN);
    if (s->next[device] > s->e.header.devices[device].peak_bytes)
        s->e.header.devices[device] = (struct plan_device){s->next[device], s->next[device]};
    return (spot_id)s->spots.n - 1;
}

static inline spot_id script_all(struct script *s, tensor_id t, uint32_t device)
{
    return script_spot(s, t, device, 0, script_bytes(s, t));
}

/* Returns the smallest live spot that contains bytes begin..end of the tensor, or PLAN_NONE when there is
 * none. */
static inline spot_id script_find(const struct script *s, tensor_id t, uint32_t device, uint64_t begin,
                                  uint64_t end)
{
    spot_id best = PLAN_NONE;
    for (spot_id i = 0; i < s->spots.n; i++) {
        const struct spot *p = &s->spots.at[i];
        bool fits = p->live && p->tensor == t && p->device == device && p->begin <= begin && p->end >= end;
        if (fits &&
            (best == PLAN_NONE || p->end - p->begin < s->spots.at[best].end - s->spots.at[best].begin))
            best = i;
    }
    return best;
}

static inline struct plan_operand script_at(const struct script *s, spot_id i, uint64_t begin, uint64_t end,
                                            enum access access)
{
    const struct spot *p = &s->spots.at[i];
    assert(p->live && p->begin <= begin && p->end >= end);
    return (struct plan_operand){p->tensor, p->device, begin, end, p->addr + (begin - p->begin), access};
}

static inline struct plan_operand script_home(const struct script *s, tensor_id t, uint64_t begin,
                                              uint64_t end, enum access access)
{
    return (struct plan_operand){t, PLAN_HOST, begin, end, s->host.at[t] + begin, access};
}

/* ---- moves ---- */

static inline void script_move(struct script *s, enum instr_kind kind, uint32_t stream,
                               struct plan_operand from, const struct plan_operand *to)
{
    struct edit_instr i = {
        .in = {.kind = kind, .stream = stream, .layer = PLAN_NONE, .micro = PLAN_NONE, .replica = PLAN_NONE}};
    vec_push(&i.ops, from);
    if (to != NULL)
        vec_push(&i.ops, *to);
    vec_push(&s->e.programs[s->k].at, i);
}

static inline void script_fetch(struct script *s, spot_id i, uint64_t begin, uint64_t end)
{
    struct plan_operand to = script_at(s, i, begin, end, ACCESS_WRITE);
    script_move(s, INSTR_FETCH, plan_stream(to.loc, LANE_IN),
                script_home(s, to.tensor, begin, end, ACCESS_READ), &to);
}

static inline void script_spill(struct script *s, spot_id i, uint64_t begin, uint64_t end)
{
    struct plan_operand from = script_at(s, i, begin, end, ACCESS_READ),
                        to = script_home(s, from.tensor, begin, end, ACCESS_WRITE);
    script_move(s, INSTR_SPILL, plan_stream(from.loc, LANE_OUT), from, &to);
}

/* A send, or a copy within the device. */
static inline void script_send(struct script *s, spot_id i, spot_id j, uint64_t begin, uint64_t end)
{
    struct plan_operand from = script_at(s, i, begin, end, ACCESS_READ),
                        to = script_at(s, j, begin, end, ACCESS_WRITE);
    script_move(s, from.loc == to.loc ? INSTR_COPY : INSTR_SEND, plan_stream(from.loc, LANE_PEER), from, &to);
}

static inline void script_drop(struct script *s, spot_id i, enum lane lane)
{
    struct spot *p = &s->spots.at[i];
    script_move(s, INSTR_DROP, plan_stream(p->device, lane), script_at(s, i, p->begin, p->end, ACCESS_DROP),
                NULL);
    p->live = false;
}

/* Everything on the device that is not in the boundary. */
static inline void script_drop_all(struct script *s, uint32_t device)
{
    for (spot_id i = 0; i < s->spots.n; i++) {
        const struct spot *p = &s->spots.at[i];
        bool keep = !p->live || p->device != device;
        for (size_t j = 0; j < s->e.boundary.n; j++)
            keep |= s->e.boundary.at[j].device == device && s->e.boundary.at[j].addr == p->addr;
        if (!keep)
            script_drop(s, i, LANE_COMPUTE);
    }
}

/* In ascending order of devices. */
static inline void script_keep(struct script *s, spot_id i)
{
    const struct spot *p = &s->spots.at[i];
    vec_push(&s->e.boundary, (struct plan_copy){p->tensor, p->device, p->begin, p->end, p->addr});
}

/* ---- tasks ---- */

static inline struct plan_operand script_operand(struct script *s, tensor_id t, uint32_t loc, uint64_t begin,
                                                 uint64_t end, enum access access)
{
    if (loc == PLAN_HOST)
        return script_home(s, t, begin, end, access);
    spot_id i = script_find(s, t, loc, begin, end);
    if (i == PLAN_NONE && access == ACCESS_WRITE) /* a piece goes where the whole will be */
        i = script_all(s, t, loc);
    assert(i != PLAN_NONE);
    return script_at(s, i, begin, end, access);
}

static inline void script_add(struct script *s, struct edit_instr *in, enum role role, tensor_id t,
                              uint32_t loc, uint64_t begin, uint64_t end, enum access access)
{
    struct plan_operand o = script_operand(s, t, loc, begin, end, access);
    o.role = role;
    vec_push(&in->ops, o);
}

/* Returns the byte of K that matches byte `at` of W in part `p`: the same element if the part has as many
 * elements as W, otherwise an element in proportion, rounded down. */
static inline uint64_t script_state(const struct graph_layer *l, const struct state_part *p, uint64_t at)
{
    uint64_t w = layer_w_elements(&l->size), element = dtype_elements(l->size.w_dtype, at),
             unit = PLAN_ALIGN / dtype_size(p->dtype);
    if (at == l->size.w)
        return p->end;
    if (p->elements != w)
        element = element * p->elements / w / unit * unit;
    return p->begin + element * dtype_size(p->dtype);
}

static inline void script_state_operands(struct script *s, struct edit_instr *in, tensor_id t, uint32_t loc,
                                         uint64_t from, uint64_t to)
{
    const struct graph_layer *l = &s->g->layers[in->in.layer];
    for (uint32_t p = 0; p < l->n_parts; p++) {
        uint64_t begin = script_state(l, &l->parts[p], from), end = script_state(l, &l->parts[p], to);
        if (begin < end)
            script_add(s, in, ROLE_K, t, loc, begin, end, ACCESS_RW);
    }
}

/* Returns the byte of tensor `t`, a W or dW, that matches byte `at` of W. */
static inline uint64_t script_share(const struct script *s, tensor_id t, uint64_t at)
{
    const struct graph_tensor *gt = &s->g->tensors[t];
    return at / dtype_size(s->g->layers[gt->layer].size.w_dtype) * dtype_size(gt->dtype);
}

/* Adds a task to the program. With end > 0 the task is the share begin..end of a RED or UPD, in bytes of W;
 * with 0, 0 it is a whole task of any kind. `which` is the micro-batch or the replica. Operands use the
 * existing spots, and a tensor that the task writes gets a new spot if it has none. */
static inline void script_task(struct script *s, enum instr_kind kind, uint32_t layer, uint32_t which,
                               uint32_t loc, uint64_t begin, uint64_t end)
{
    const struct graph_task *t =
        &s->g->tasks[graph_task_find(s->g, kind, layer == PLAN_NONE ? 0 : layer, which, 0)];
    struct edit_instr i = {
        .in = {.kind = kind,
               .stream = loc == PLAN_HOST ? plan_host_stream(&s->e.header) : plan_stream(loc, LANE_COMPUTE),
               .layer = t->layer,
               .micro = t->micro,
               .replica = t->replica}};
    for (uint32_t j = 0; j < t->n_operands; j++) {
        const struct graph_operand *o = &s->g->operands[t->operand + j];
        enum tensor_kind tensor = s->g->tensors[o->tensor].kind;
        bool share = end > 0 && (tensor == TENSOR_W || tensor == TENSOR_DW);
        if (tensor == TENSOR_WORK && o->optional)
            continue; /* S is saved */
        if (end > 0 && tensor == TENSOR_K)
            script_state_operands(s, &i, o->tensor, loc, begin, end);
        else
            script_add(s, &i, o->role, o->tensor, loc, share ? script_share(s, o->tensor, begin) : o->begin,
                       share ? script_share(s, o->tensor, end) : o->end, o->access);
    }
    vec_push(&s->e.programs[s->k].at, i);
}

/* ---- waits ---- */

struct script_wait {
    uint32_t from, distance;
};

static inline bool script_touch(const struct script *s, const struct plan_operand *a,
                                const struct plan_operand *b, uint32_t distance)
{
    if (a->loc != b->loc || (a->access == ACCESS_READ && b->access == ACCESS_READ))
        return false;
    if (a->loc == PLAN_HOST && s->g->tensors[a->tensor].external && distance > 0)
        return false; /* another slot, or one that the executor has given back */
    return a->addr < b->addr + operand_bytes(b) && b->addr < a->addr + operand_bytes(a);
}

static inline bool script_conflict(const struct script *s, const struct edit_instr *a,
                                   const struct edit_instr *b, uint32_t distance)
{
    for (size_t i = 0; i < a->ops.n; i++)
        for (size_t j = 0; j < b->ops.n; j++)
            if (script_touch(s, &a->ops.at[i], &b->ops.at[j], distance))
                return true;
    return false;
}

/* Events (run, instruction) of a program that is run `runs` times, and which of them are before which. */
struct script_order {
    uint32_t n, runs;
    bool *before;                   /* [event][event] */
    VEC(struct script_wait) * from; /* per instruction: what it must come after, in other streams */
};

/* Fills `preds` with the events right before one: in its stream, and those that it must come after. */
static inline uint32_t script_preds(const struct edit_program *p, const struct script_order *o,
                                    uint32_t event, uint32_t *preds)
{
    uint32_t run = event / o->n, i = event % o->n, n = 0;
    for (uint32_t e = event; e-- > 0;)
        if (p->at.at[e % o->n].in.stream == p->at.at[i].in.stream) {
            preds[n++] = e;
            break;
        }
    for (size_t j = 0; j < o->from[i].n; j++)
        if (o->from[i].at[j].distance <= run)
            preds[n++] = (run - o->from[i].at[j].distance) * o->n + o->from[i].at[j].from;
    return n;
}

static inline void script_order_program(struct script *s, enum program_kind k)
{
    struct edit_program *p = &s->e.programs[k];
    struct script_order o = {.n = (uint32_t)p->at.n, .runs = k == PROGRAM_CYCLE ? 5 : 1};
    uint32_t events = o.n * o.runs, far = k == PROGRAM_CYCLE ? 2 : 0;
    uint32_t *preds = xcalloc((size_t)3 * o.n + 1, sizeof *preds);
    o.before = xcalloc((size_t)events * events + 1, sizeof *o.before);
    o.from = xcalloc((size_t)o.n + 1, sizeof *o.from);
    for (uint32_t i = 0; i < o.n; i++)
        for (uint32_t d = 0; d <= far; d++)
            for (uint32_t j = 0; j < (d ? o.n : i); j++)
                if (p->at.at[j].in.stream != p->at.at[i].in.stream &&
                    script_conflict(s, &p->at.at[j], &p->at.at[i], d))
                    vec_push(&o.from[i], (struct script_wait){j, d});
    for (uint32_t e = 0; e < events; e++)
        for (uint32_t n = script_preds(p, &o, e, preds); n-- > 0;) {
            o.before[(size_t)e * events + preds[n]] = true;
            for (uint32_t x = 0; x < preds[n]; x++)
                o.before[(size_t)e * events + x] |= o.before[(size_t)preds[n] * events + x];
        }
    for (uint32_t i = 0; i < o.n; i++) { /* what is before another that is right before is implied */
        uint32_t event = events - o.n + i, n = script_preds(p, &o, event, preds);
        for (size_t j = 0; j < o.from[i].n; j++) {
            const struct script_wait *w = &o.from[i].at[j];
            uint32_t from = events - o.n - w->distance * o.n + w->from;
            bool implied = false;
            for (uint32_t x = 0; x < n; x++)
                implied |= o.before[(size_t)preds[x] * events + from];
            if (!implied)
                edit_wait(p, i, w->from, w->distance);
        }
    }
    for (uint32_t i = 0; i < o.n; i++)
        vec_free(&o.from[i]);
    free(o.from);
    free(o.before);
    free(preds);
}

/* The plan; the script is done with. */
static inline struct edit script_end(struct script *s)
{
    for (int k = 0; k < PROGRAM_COUNT; k++)
        script_order_program(s, (enum program_kind)k);
    vec_free(&s->spots);
    vec_free(&s->host);
    return s->e;
}

#endif
