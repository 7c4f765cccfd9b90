/* Lets tests edit plans: a plan is copied, changed and packed again, so that one good plan gives many bad
 * ones.
 *
 * In a `struct edit` every instruction has its own lists. A wait keeps pointing to the same instruction when
 * other instructions are removed, inserted or moved. Removing an instruction removes the waits for it.
 */
#ifndef TESTS_PLAN_EDIT_H
#define TESTS_PLAN_EDIT_H

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/vec.h"
#include "scheduler/plan.h"

struct edit_instr {
    struct plan_instr in;
    VEC(struct plan_operand) ops;
    VEC(struct plan_wait) waits;
};

struct edit_program {
    VEC(struct edit_instr) at;
};

struct edit {
    struct plan header; /* all but the programs; tensors and boundary are the edit's own */
    VEC(struct plan_tensor) tensors;
    VEC(struct plan_copy) boundary;
    struct edit_program programs[PROGRAM_COUNT];
};

static inline void edit_unpack_program(struct edit_program *e, const struct plan_program *p)
{
    for (uint32_t i = 0; i < p->n_instrs; i++) {
        struct edit_instr ei = {.in = p->instrs[i]};
        for (uint32_t j = 0; j < ei.in.n_operands; j++)
            vec_push(&ei.ops, p->operands[ei.in.operand + j]);
        for (uint32_t j = 0; j < ei.in.n_waits; j++)
            vec_push(&ei.waits, p->waits[ei.in.wait + j]);
        vec_push(&e->at, ei);
    }
}

static inline struct edit edit_begin(const struct plan *p)
{
    struct edit e = {.header = *p};
    for (uint32_t i = 0; i < p->n_tensors; i++)
        vec_push(&e.tensors, p->tensors[i]);
    for (uint32_t i = 0; i < p->n_boundary; i++)
        vec_push(&e.boundary, p->boundary[i]);
    for (int k = 0; k < PROGRAM_COUNT; k++)
        edit_unpack_program(&e.programs[k], &p->programs[k]);
    return e;
}

static inline void edit_free_instr(struct edit_instr *i)
{
    vec_free(&i->ops);
    vec_free(&i->waits);
}

static inline void edit_finish(struct edit *e)
{
    for (int k = 0; k < PROGRAM_COUNT; k++) {
        for (size_t i = 0; i < e->programs[k].at.n; i++)
            edit_free_instr(&e->programs[k].at.at[i]);
        vec_free(&e->programs[k].at);
    }
    vec_free(&e->tensors);
    vec_free(&e->boundary);
}

static inline void edit_pack_program(struct arena *a, const struct edit_program *e, struct plan_program *p)
{
    uint32_t ops = 0, waits = 0;
    for (size_t i = 0; i < e->at.n; i++) {
        ops += (uint32_t)e->at.at[i].ops.n;
        waits += (uint32_t)e->at.at[i].waits.n;
    }
    *p = (struct plan_program){
        .instrs = arena_alloc_array(a, e->at.n + 1, sizeof *p->instrs),
        .operands = arena_alloc_array(a, ops + 1, sizeof *p->operands),
        .waits = arena_alloc_array(a, waits + 1, sizeof *p->waits),
        .n_instrs = (uint32_t)e->at.n,
    };
    for (size_t i = 0; i < e->at.n; i++) {
        const struct edit_instr *ei = &e->at.at[i];
        struct plan_instr *in = &p->instrs[i];
        *in = ei->in;
        in->operand = p->n_operands;
        in->n_operands = (uint32_t)ei->ops.n;
        in->wait = p->n_waits;
        in->n_waits = (uint32_t)ei->waits.n;
        for (size_t j = 0; j < ei->ops.n; j++)
            p->operands[p->n_operands++] = ei->ops.at[j];
        for (size_t j = 0; j < ei->waits.n; j++)
            p->waits[p->n_waits++] = ei->waits.at[j];
    }
}

/* Returns a new plan made from the edit. The edit stays unchanged. */
static inline struct plan *edit_pack(const struct edit *e)
{
    struct arena *a = arena_create();
    struct plan *p = arena_alloc(a, sizeof *p);
    *p = e->header;
    p->arena = a;
    p->n_tensors = (uint32_t)e->tensors.n;
    p->tensors = arena_memdup(a, e->tensors.at, e->tensors.n * sizeof *e->tensors.at);
    p->n_boundary = (uint32_t)e->boundary.n;
    p->boundary =
        e->boundary.n ? arena_memdup(a, e->boundary.at, e->boundary.n * sizeof *e->boundary.at) : NULL;
    for (int k = 0; k < PROGRAM_COUNT; k++)
        edit_pack_program(a, &e->programs[k], &p->programs[k]);
    return p;
}

/* Renames the targets of all waits: from index i to map[i]; PLAN_NONE removes the wait. */
static inline void edit_retarget(struct edit_program *p, const uint32_t *map)
{
    for (size_t i = 0; i < p->at.n; i++) {
        struct edit_instr *in = &p->at.at[i];
        size_t kept = 0;
        for (size_t j = 0; j < in->waits.n; j++)
            if (map[in->waits.at[j].instr] != PLAN_NONE) {
                in->waits.at[kept] = in->waits.at[j];
                in->waits.at[kept++].instr = map[in->waits.at[j].instr];
            }
        in->waits.n = kept;
    }
}

static inline void edit_remove(struct edit_program *p, uint32_t i)
{
    uint32_t n = (uint32_t)p->at.n, *map = xcalloc(n, sizeof *map);
    for (uint32_t j = 0; j < n; j++)
        map[j] = j < i ? j : j == i ? PLAN_NONE : j - 1;
    edit_free_instr(&p->at.at[i]);
    memmove(&p->at.at[i], &p->at.at[i + 1], (n - i - 1) * sizeof *p->at.at);
    p->at.n--;
    edit_retarget(p, map);
    free(map);
}

/* Moves the instruction at `from` to `to`. The instructions between them shift by one. */
static inline void edit_move(struct edit_program *p, uint32_t from, uint32_t to)
{
    uint32_t n = (uint32_t)p->at.n, *map = xcalloc(n, sizeof *map);
    for (uint32_t j = 0; j < n; j++)
        map[j] = j == from                          ? to
                 : from < to && j > from && j <= to ? j - 1
                 : from > to && j < from && j >= to ? j + 1
                                                    : j;
    struct edit_instr moved = p->at.at[from];
    if (from < to)
        memmove(&p->at.at[from], &p->at.at[from + 1], (to - from) * sizeof moved);
    else
        memmove(&p->at.at[to + 1], &p->at.at[to], (from - to) * sizeof moved);
    p->at.at[to] = moved;
    edit_retarget(p, map);
    free(map);
}

/* Inserts a copy of instruction `what`, which may come from another program, at `to`. The copy has no
 * waits. */
static inline void edit_insert(struct edit_program *p, uint32_t to, const struct edit_instr *what)
{
    struct edit_instr fresh = {.in = what->in};
    for (size_t j = 0; j < what->ops.n; j++)
        vec_push(&fresh.ops, what->ops.at[j]);
    vec_push(&p->at, fresh);
    edit_move(p, (uint32_t)p->at.n - 1, to);
}

static inline void edit_wait(struct edit_program *p, uint32_t i, uint32_t on, uint32_t distance)
{
    vec_push(&p->at.at[i].waits, (struct plan_wait){on, distance});
}

/* The nearest other instruction of the same stream before (step -1) or after (1) `i`, going round the end;
 * *ret_around when it did. PLAN_NONE when the stream has no other. */
static inline uint32_t edit_neighbour(const struct edit_program *p, uint32_t i, int step, bool *ret_around)
{
    uint32_t n = (uint32_t)p->at.n, j = i;
    *ret_around = false;
    for (;;) {
        *ret_around |= step < 0 ? j == 0 : j == n - 1;
        j = step < 0 ? (j + n - 1) % n : (j + 1) % n;
        if (j == i)
            return PLAN_NONE;
        if (p->at.at[j].in.stream == p->at.at[i].in.stream)
            return j;
    }
}

/* Adds the waits of `from` to those of `to`, each with its distance increased by `distance` runs. */
static inline void edit_inherit(struct edit_program *p, uint32_t to, uint32_t from, uint32_t distance)
{
    for (size_t j = 0, n = p->at.at[from].waits.n; j < n; j++)
        edit_wait(p, to, p->at.at[from].waits.at[j].instr, p->at.at[from].waits.at[j].distance + distance);
}

/* Removes the instruction but keeps the order that it gave to others: every instruction that waited for it
 * now waits for the instructions that it waited for. */
static inline void edit_vanish(struct edit *e, enum program_kind k, uint32_t i)
{
    struct edit_program *p = &e->programs[k];
    bool cyclic = k == PROGRAM_CYCLE, around;
    uint32_t prev = edit_neighbour(p, i, -1, &around);
    bool prev_around = around;
    uint32_t next = edit_neighbour(p, i, 1, &around);
    if (next != PLAN_NONE && (cyclic || !around))
        edit_inherit(p, next, i, around);
    for (uint32_t j = 0; j < p->at.n; j++)
        for (size_t w = 0, n = p->at.at[j].waits.n; j != i && w < n; w++) {
            struct plan_wait wait = p->at.at[j].waits.at[w];
            if (wait.instr != i)
                continue;
            edit_inherit(p, j, i, wait.distance);
            if (prev != PLAN_NONE && (cyclic || !prev_around))
                edit_wait(p, j, prev, wait.distance + prev_around);
        }
    edit_remove(p, i);
}

/* The nth instruction (from 0) of a kind that names the tensor; PLAN_NONE for any tensor. Aborts when there
 * is none. */
static inline uint32_t edit_find(const struct edit_program *p, enum instr_kind kind, tensor_id t,
                                 uint32_t nth)
{
    for (uint32_t i = 0; i < p->at.n; i++) {
        const struct edit_instr *in = &p->at.at[i];
        bool names = t == PLAN_NONE;
        for (size_t j = 0; j < in->ops.n; j++)
            names |= in->ops.at[j].tensor == t;
        if (in->in.kind == kind && names && nth-- == 0)
            return i;
    }
    abort();
}

#endif
