/* Helps tests of the executor to make plans by hand. A test adds tensors, instructions, operands and waits,
 * and hm_finish turns them into a struct plan. hm_derive_waits adds all waits that data and addresses
 * require, by comparing every pair of accesses in two consecutive runs. It adds many more waits than a
 * planner would, but misses none. */
#ifndef TESTS_HANDMADE_PLAN_H
#define TESTS_HANDMADE_PLAN_H

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/checked.h"
#include "base/vec.h"
#include "scheduler/plan.h"

struct hm_program {
    VEC(struct plan_instr) instrs;
    VEC(struct plan_operand) operands;
    VEC(struct plan_wait) waits;
};

struct handmade {
    struct plan plan;
    VEC(struct plan_tensor) tensors;
    VEC(uint64_t) host; /* per tensor: its address in host memory, at home or not */
    VEC(struct plan_copy) boundary;
    struct hm_program programs[PROGRAM_COUNT];
    enum program_kind now; /* the program that instructions go to */
};

static inline void hm_init(struct handmade *h, uint32_t n_devices, uint64_t lease_bytes)
{
    memset(h, 0, sizeof *h);
    h->plan.n_devices = n_devices;
    h->plan.n_replicas = h->plan.n_micro = h->plan.n_groups = h->plan.rows = h->plan.steps = 1;
    for (uint32_t d = 0; d < n_devices; d++)
        h->plan.devices[d].lease_bytes = lease_bytes;
}

/* Returns the type of a tensor in a chain of layers that compute in F32. The caller changes the type of token
 * ids and of targets that are classes. */
static inline enum dtype hm_dtype(enum tensor_kind kind)
{
    switch (kind) {
    case TENSOR_W:
    case TENSOR_DW:
    case TENSOR_X:
    case TENSOR_Y:
    case TENSOR_DX:
    case TENSOR_TARGET:
        return DTYPE_F32;
    case TENSOR_SUMSQ:
        return DTYPE_F64;
    default:
        return DTYPE_U8;
    }
}

/* Returns whether tensors of this kind have no home: with one slot, they are on the host for a while. */
static inline bool hm_homeless(enum tensor_kind kind)
{
    return kind == TENSOR_DW || kind == TENSOR_SUMSQ;
}

/* slots 0: never on the host. */
static inline tensor_id hm_tensor(struct handmade *h, enum tensor_kind kind, uint32_t layer, uint32_t micro,
                                  uint64_t bytes, uint32_t slots)
{
    const bool state = kind == TENSOR_W || kind == TENSOR_K || kind == TENSOR_GROUP;
    const bool home = slots > 0 && !hm_homeless(kind);
    vec_push(&h->host, h->plan.host_bytes);
    vec_push(&h->tensors,
             (struct plan_tensor){.kind = kind,
                                  .layer = layer,
                                  .step = state ? PLAN_NONE : 0,
                                  .group = kind == TENSOR_GROUP || kind == TENSOR_DECISION ? 0 : PLAN_NONE,
                                  .micro = micro,
                                  .replica = kind == TENSOR_DW ? 0 : PLAN_NONE,
                                  .dtype = hm_dtype(kind),
                                  .bytes = bytes,
                                  .host_offset = home ? h->plan.host_bytes : PLAN_NO_HOST,
                                  .host_slots = home ? slots : 0});
    h->plan.host_bytes += slots * round_up(bytes, PLAN_ALIGN);
    return (tensor_id)(h->tensors.n - 1);
}

/* Tasks of a micro-batch are of its replica. */
static inline uint32_t hm_instr(struct handmade *h, enum instr_kind kind, uint32_t stream, uint32_t layer,
                                uint32_t micro, uint32_t step)
{
    struct hm_program *p = &h->programs[h->now];
    const uint32_t of_each = h->plan.n_micro / h->plan.n_replicas;
    vec_push(&p->instrs, (struct plan_instr){.kind = kind,
                                             .stream = stream,
                                             .layer = layer,
                                             .micro = micro,
                                             .replica = micro == PLAN_NONE ? PLAN_NONE : micro / of_each,
                                             .step = step,
                                             .operand = (uint32_t)p->operands.n,
                                             .wait = (uint32_t)p->waits.n});
    return (uint32_t)(p->instrs.n - 1);
}

/* Returns the role of a tensor in a task of a chain of layers: what the layer's kernels call it. Written
 * without looking at graph.c, so that tests can compare both. */
static inline enum role hm_role(const struct plan_instr *in, const struct plan_tensor *t)
{
    const bool own = t->layer == in->layer;

    if (in->kind > INSTR_UPD)
        return ROLE_NONE;
    switch (t->kind) {
    case TENSOR_W:
        return ROLE_W;
    case TENSOR_DW:
        return in->kind == INSTR_RED && t->replica != 0 ? ROLE_DW_OTHER : ROLE_DW;
    case TENSOR_K:
        return ROLE_K;
    case TENSOR_B:
        return ROLE_B;
    case TENSOR_X:
        return ROLE_X;
    case TENSOR_Y:
        return own ? ROLE_Y : ROLE_X;
    case TENSOR_STAT:
        return ROLE_STAT;
    case TENSOR_DX:
        return own ? ROLE_DX : ROLE_DY;
    case TENSOR_S:
        return ROLE_S;
    case TENSOR_WORK:
    case TENSOR_SCRATCH:
        return ROLE_SCRATCH;
    case TENSOR_ROOM:
        return ROLE_SAVE_WORK;
    case TENSOR_TARGET:
        return ROLE_TARGET;
    case TENSOR_RESULT:
        return ROLE_RESULT;
    case TENSOR_SUMSQ:
        return ROLE_SUMSQ;
    case TENSOR_DECISION:
        return ROLE_DECISION;
    case TENSOR_GROUP:
        return ROLE_GROUP;
    case TENSOR_KIND_COUNT:
        break;
    }
    return ROLE_COUNT;
}

/* Adds bytes begin..end of tensor t as an operand of the last instruction. `addr` is the address of byte
 * `begin` on a device; it is ignored for the host, whose address follows from the tensor. */
static inline void hm_operand_range(struct handmade *h, tensor_id t, uint64_t begin, uint64_t end,
                                    uint32_t loc, uint64_t addr, enum access access)
{
    struct hm_program *p = &h->programs[h->now];
    const struct plan_tensor *tensor = &h->tensors.at[t];
    vec_push(&p->operands, (struct plan_operand){.tensor = t,
                                                 .loc = loc,
                                                 .begin = begin,
                                                 .end = end,
                                                 .addr = loc == PLAN_HOST ? h->host.at[t] + begin : addr,
                                                 .access = access,
                                                 .role = hm_role(&p->instrs.at[p->instrs.n - 1], tensor)});
    p->instrs.at[p->instrs.n - 1].n_operands++;
}

/* The whole tensor. */
static inline void hm_operand(struct handmade *h, tensor_id t, uint32_t loc, uint64_t addr,
                              enum access access)
{
    hm_operand_range(h, t, 0, h->tensors.at[t].bytes, loc, addr, access);
}

/* To the last instruction. */
static inline void hm_wait(struct handmade *h, uint32_t instr, uint32_t distance)
{
    struct hm_program *p = &h->programs[h->now];
    vec_push(&p->waits, (struct plan_wait){instr, distance});
    p->instrs.at[p->instrs.n - 1].n_waits++;
}

static inline bool hm_operands_conflict(const struct handmade *h, const struct plan_operand *a,
                                        const struct plan_operand *b, bool same_run)
{
    if (a->loc != b->loc || a->addr >= b->addr + operand_bytes(b) || b->addr >= a->addr + operand_bytes(a))
        return false;
    if (a->access == ACCESS_READ && b->access == ACCESS_READ)
        return false;
    /* Runs that may overlap use different slots of a ring. */
    return same_run || a->loc != PLAN_HOST || h->tensors.at[a->tensor].host_slots <= 1;
}

static inline bool hm_conflict(const struct handmade *h, const struct hm_program *p, uint32_t i, uint32_t j,
                               bool same_run)
{
    const struct plan_instr *a = &p->instrs.at[i], *b = &p->instrs.at[j];
    for (uint32_t x = 0; x < a->n_operands; x++)
        for (uint32_t y = 0; y < b->n_operands; y++)
            if (hm_operands_conflict(h, &p->operands.at[a->operand + x], &p->operands.at[b->operand + y],
                                     same_run))
                return true;
    return false;
}

/* Instead of the waits that were pushed. */
static inline void hm_derive_waits(struct handmade *h, enum program_kind k)
{
    struct hm_program *p = &h->programs[k];
    const uint32_t n = (uint32_t)p->instrs.n;
    p->waits.n = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct plan_instr *in = &p->instrs.at[i];
        in->wait = (uint32_t)p->waits.n;
        for (uint32_t j = 0; j < n; j++) {
            if (j < i && hm_conflict(h, p, i, j, p->instrs.at[j].step == in->step))
                vec_push(&p->waits, (struct plan_wait){j, 0});
            if (k == PROGRAM_CYCLE && hm_conflict(h, p, i, j, false))
                vec_push(&p->waits, (struct plan_wait){j, 1});
        }
        in->n_waits = (uint32_t)p->waits.n - in->wait;
    }
}

/* The arrays stay the handmade's. */
static inline struct plan *hm_finish(struct handmade *h)
{
    h->plan.tensors = h->tensors.at;
    h->plan.n_tensors = (uint32_t)h->tensors.n;
    h->plan.boundary = h->boundary.at;
    h->plan.n_boundary = (uint32_t)h->boundary.n;
    for (uint32_t k = 0; k < PROGRAM_COUNT; k++) {
        struct hm_program *p = &h->programs[k];
        h->plan.programs[k] = (struct plan_program){.instrs = p->instrs.at,
                                                    .operands = p->operands.at,
                                                    .waits = p->waits.at,
                                                    .n_instrs = (uint32_t)p->instrs.n,
                                                    .n_operands = (uint32_t)p->operands.n,
                                                    .n_waits = (uint32_t)p->waits.n};
    }
    return &h->plan;
}

static inline void hm_free(struct handmade *h)
{
    vec_free(&h->tensors);
    vec_free(&h->host);
    vec_free(&h->boundary);
    for (uint32_t k = 0; k < PROGRAM_COUNT; k++) {
        vec_free(&h->programs[k].instrs);
        vec_free(&h->programs[k].operands);
        vec_free(&h->programs[k].waits);
    }
}

#endif
