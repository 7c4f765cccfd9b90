/* Checks a plan independently of the verifier: executes the plan on a memory of tags, in a random order that
 * the streams and waits allow, and checks every byte that an instruction reads.
 *
 * The memory holds one tag for each 8 bytes, and ranges begin at multiples of 8. A tag is a hash of (tensor,
 * version, position), or garbage. An instruction starts and ends at different moments. When it starts, its
 * inputs are compared with the tags that the graph requires, and its outputs become garbage. When it ends,
 * its inputs must be unchanged, and its outputs get their tags. Moves carry tags along, and a drop leaves
 * garbage. Some streams are slow and some are fast, so that a missing wait shows soon.
 *
 * A correct plan passes with every seed. An incorrect plan may pass with some seeds.
 */
#ifndef TESTS_PLAN_SHAKE_H
#define TESTS_PLAN_SHAKE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/checked.h"
#include "base/rng.h"
#include "scheduler/graph.h"
#include "scheduler/plan.h"

#define SHAKE_UNIT 8
#define SHAKE_RUNS 3 /* cycles that may overlap */

struct shake {
    const struct plan *plan;
    const struct graph *graph;
    struct rng rng;
    uint64_t *mem[DEVICE_MAX + 1]; /* tags; the host's last */
    uint64_t garbage;              /* counts down: no hash of anything */
    uint64_t cycles;               /* before the batch */
    bool *output;                  /* external tensors that tasks write */
    char why[256];
};

struct shake_lane {   /* a stream during a batch */
    uint32_t run, at; /* head: instruction `at` of run `run`; run == n_runs: at its end */
    bool busy;
    uint32_t weight;
    uint64_t *source; /* what a move read */
};

static inline uint64_t shake_tag(tensor_id t, uint64_t version, uint64_t unit)
{
    struct rng_block b = rng_philox(0x7ac5, t, (uint32_t)version, (uint32_t)unit, 1);
    return ((uint64_t)b.v[0] << 32 | b.v[1]) >> 1; /* garbage has the highest bit */
}

static inline uint64_t *shake_at(struct shake *s, const struct plan_operand *o, uint64_t cycle)
{
    const struct plan_tensor *t = &s->plan->tensors[o->tensor];
    uint64_t addr = o->addr;
    if (o->loc != PLAN_HOST)
        return s->mem[o->loc] + addr / SHAKE_UNIT;
    if (t->host_slots > 0)
        addr += cycle % t->host_slots * round_up(t->bytes, PLAN_ALIGN);
    return s->mem[DEVICE_MAX] + addr / SHAKE_UNIT;
}

static inline uint64_t shake_units(const struct plan_operand *o)
{
    return (o->end + SHAKE_UNIT - 1) / SHAKE_UNIT - o->begin / SHAKE_UNIT;
}

static inline void shake_spoil(struct shake *s, uint64_t *at, uint64_t units)
{
    for (uint64_t i = 0; i < units; i++)
        at[i] = --s->garbage;
}

static inline void shake_put(uint64_t *at, tensor_id t, uint64_t version, uint64_t first, uint64_t units)
{
    for (uint64_t i = 0; i < units; i++)
        at[i] = shake_tag(t, version, first + i);
}

static inline bool shake_same(const uint64_t *at, tensor_id t, uint64_t version, uint64_t first,
                              uint64_t units)
{
    for (uint64_t i = 0; i < units; i++)
        if (at[i] != shake_tag(t, version, first + i))
            return false;
    return true;
}

/* ---- one instruction ---- */

static inline const struct graph_task *shake_task(const struct shake *s, const struct plan_instr *in)
{
    uint32_t which = in->kind == INSTR_RED ? in->replica : in->micro;
    return &s->graph->tasks[graph_task_find(
        s->graph, in->kind, in->kind == INSTR_DECIDE ? in->group : in->layer, which, in->step)];
}

static inline bool shake_operand(struct shake *s, const struct plan_operand *o,
                                 const struct graph_operand *go, uint64_t cycle, bool end)
{
    uint64_t base = cycle * s->graph->tensors[o->tensor].writes_per_cycle, *at = shake_at(s, o, cycle),
             first = o->begin / SHAKE_UNIT;
    if ((o->access == ACCESS_READ || (o->access == ACCESS_RW && !end)) &&
        !shake_same(at, o->tensor, base + go->read_version, first, shake_units(o)))
        return false;
    if (o->access != ACCESS_READ && end)
        shake_put(at, o->tensor, base + go->write_version, first, shake_units(o));
    else if (o->access != ACCESS_READ)
        shake_spoil(s, at, shake_units(o));
    return true;
}

/* Performs the start (end = false) or the end of a task. Returns false when the task sees a wrong tag. An
 * update in shares has several operands for K. */
static inline bool shake_do_task(struct shake *s, const struct plan_program *p, const struct plan_instr *in,
                                 uint64_t cycle, bool end)
{
    const struct graph_task *task = shake_task(s, in);
    uint32_t n = 0;
    for (uint32_t j = 0; j < task->n_operands && n < in->n_operands; j++) {
        const struct graph_operand *go = &s->graph->operands[task->operand + j];
        for (; n < in->n_operands && p->operands[in->operand + n].tensor == go->tensor; n++)
            if (!shake_operand(s, &p->operands[in->operand + n], go, cycle, end))
                return false;
    }
    return true;
}

static inline bool shake_do_move(struct shake *s, const struct plan_program *p, const struct plan_instr *in,
                                 uint64_t cycle, bool end, struct shake_lane *lane)
{
    const struct plan_operand *from = &p->operands[in->operand], *to = from + 1;
    uint64_t units = shake_units(from), *src = shake_at(s, from, cycle), *dst = shake_at(s, to, cycle);
    if (!end) {
        lane->source = memcpy(xmalloc(units * sizeof *src), src, units * sizeof *src);
        shake_spoil(s, dst, units);
        return true;
    }
    for (uint64_t i = 0; i < units; i++) /* what changed during the copy arrives as garbage */
        dst[i] = src[i] == lane->source[i] ? src[i] : --s->garbage;
    free(lane->source);
    lane->source = NULL;
    return true;
}

static inline bool shake_do(struct shake *s, const struct plan_program *p, const struct plan_instr *in,
                            uint64_t cycle, bool end, struct shake_lane *lane)
{
    if (in->kind == INSTR_DROP) {
        const struct plan_operand *o = &p->operands[in->operand];
        shake_spoil(s, shake_at(s, o, cycle), shake_units(o));
        return true;
    }
    if (instr_is_move(in->kind))
        return shake_do_move(s, p, in, cycle, end, lane);
    return shake_do_task(s, p, in, cycle, end);
}

/* ---- a batch: runs of one program that may overlap ---- */

struct shake_batch {
    enum program_kind k;
    const struct plan_program *prog;
    uint32_t n_runs, n_open; /* runs; how many have begun */
    bool *done;              /* [run][instr] */
    uint32_t *left;          /* per run: instructions not done */
    struct shake_lane *lanes;
};

static inline void shake_next(const struct shake_batch *b, uint32_t stream)
{
    struct shake_lane *l = &b->lanes[stream];
    for (; l->run < b->n_runs; l->run++, l->at = 0)
        for (; l->at < b->prog->n_instrs; l->at++)
            if (b->prog->instrs[l->at].stream == stream)
                return;
}

static inline bool shake_ready(const struct shake_batch *b, const struct shake_lane *l)
{
    if (l->run >= b->n_open)
        return false;
    const struct plan_instr *in = &b->prog->instrs[l->at];
    for (uint32_t j = 0; j < in->n_waits; j++) {
        const struct plan_wait *w = &b->prog->waits[in->wait + j];
        if (w->distance <= l->run && !b->done[(size_t)(l->run - w->distance) * b->prog->n_instrs + w->instr])
            return false;
    }
    return true;
}

/* The loader fills the slots of a run, and results of old are gone. */
static inline void shake_load(struct shake *s, uint32_t run)
{
    for (tensor_id t = 0; t < s->graph->n_tensors; t++) {
        const struct graph_tensor *g = &s->graph->tensors[t];
        if (!g->external)
            continue;
        struct plan_operand o = {t, PLAN_HOST, 0, g->bytes, s->plan->tensors[t].host_offset, ACCESS_WRITE};
        uint64_t cycle = s->cycles + run;
        if (s->output[t])
            shake_spoil(s, shake_at(s, &o, cycle), shake_units(&o));
        else
            shake_put(shake_at(s, &o, cycle), t, cycle * g->writes_per_cycle + 1, 0, shake_units(&o));
    }
}

static inline bool shake_results(struct shake *s, uint32_t run)
{
    for (tensor_id t = 0; t < s->graph->n_tensors; t++) {
        const struct graph_tensor *g = &s->graph->tensors[t];
        struct plan_operand o = {t, PLAN_HOST, 0, g->bytes, s->plan->tensors[t].host_offset, ACCESS_READ};
        uint64_t cycle = s->cycles + run;
        if (s->output[t] &&
            !shake_same(shake_at(s, &o, cycle), t, (cycle + 1) * g->writes_per_cycle, 0, shake_units(&o))) {
            snprintf(s->why, sizeof s->why, "result %u of cycle %llu", t, (unsigned long long)cycle);
            return false;
        }
    }
    return true;
}

/* Starts or ends the instruction of one stream, chosen at random; false when none can go or something is
 * wrong. */
static inline bool shake_step(struct shake *s, struct shake_batch *b)
{
    uint32_t n = plan_n_streams(s->plan), total = 0, at = 0;
    for (uint32_t i = 0; i < n; i++)
        if (b->lanes[i].run < b->n_runs && (b->lanes[i].busy || shake_ready(b, &b->lanes[i])))
            total += b->lanes[i].weight;
    if (total == 0)
        return snprintf(s->why, sizeof s->why, "%s is stuck", program_kind_names[b->k]), false;
    uint32_t pick = rng_below(&s->rng, total);
    for (;; at++) {
        struct shake_lane *l = &b->lanes[at];
        if (l->run >= b->n_runs || (!l->busy && !shake_ready(b, l)))
            continue;
        if (pick < l->weight)
            break;
        pick -= l->weight;
    }
    struct shake_lane *l = &b->lanes[at];
    if (!shake_do(s, b->prog, &b->prog->instrs[l->at], s->cycles + l->run, l->busy, l)) {
        snprintf(s->why, sizeof s->why, "run %u of %s#%u", l->run, program_kind_names[b->k], l->at);
        return false;
    }
    l->busy = !l->busy;
    if (l->busy)
        return true;
    b->done[(size_t)l->run * b->prog->n_instrs + l->at] = true;
    b->left[l->run]--;
    l->at++;
    shake_next(b, at);
    return true;
}

static inline bool shake_batch(struct shake *s, enum program_kind k, uint32_t n_runs)
{
    const struct plan_program *p = &s->plan->programs[k];
    uint32_t n = plan_n_streams(s->plan), closed = 0;
    struct shake_batch b = {k,
                            p,
                            n_runs,
                            0,
                            xcalloc((size_t)p->n_instrs * n_runs + 1, sizeof(bool)),
                            xcalloc(n_runs, sizeof(uint32_t)),
                            xcalloc(n, sizeof(struct shake_lane))};
    bool ok = true, steps = k == PROGRAM_CYCLE || k == PROGRAM_EVAL;
    for (uint32_t i = 0; i < n; i++) {
        b.lanes[i].weight = 1u << rng_below(&s->rng, 12);
        shake_next(&b, i);
    }
    while (ok && closed < n_runs) {
        while (b.n_open < n_runs && b.n_open < closed + PLAN_RING) {
            b.left[b.n_open] = p->n_instrs;
            if (steps)
                shake_load(s, b.n_open);
            b.n_open++;
        }
        while (ok && b.left[closed] > 0)
            ok = shake_step(s, &b);
        ok = ok && (!steps || shake_results(s, closed));
        closed++;
    }
    s->cycles += k == PROGRAM_CYCLE ? n_runs : 0;
    for (uint32_t i = 0; i < n; i++)
        free(b.lanes[i].source);
    free(b.done);
    free(b.left);
    free(b.lanes);
    return ok;
}

/* ---- a plan ---- */

static inline bool shake_home(struct shake *s, const char *after)
{
    for (tensor_id t = 0; t < s->graph->n_tensors; t++) {
        const struct graph_tensor *g = &s->graph->tensors[t];
        struct plan_operand o = {t, PLAN_HOST, 0, g->bytes, s->plan->tensors[t].host_offset, ACCESS_READ};
        if (g->persistent &&
            !shake_same(shake_at(s, &o, 0), t, s->cycles * g->writes_per_cycle, 0, shake_units(&o))) {
            snprintf(s->why, sizeof s->why, "host copy of tensor %u after %s", t, after);
            return false;
        }
    }
    return true;
}

static inline void shake_init(struct shake *s)
{
    const struct graph *g = s->graph;
    s->output = xcalloc(g->n_tensors, sizeof *s->output);
    for (uint32_t i = 0; i < g->n_operands; i++)
        if (g->operands[i].access != ACCESS_READ && g->tensors[g->operands[i].tensor].external)
            s->output[g->operands[i].tensor] = true;
    for (uint32_t d = 0; d <= DEVICE_MAX; d++) {
        if (d >= s->plan->n_devices && d != DEVICE_MAX)
            continue;
        uint64_t units =
            (d == DEVICE_MAX ? s->plan->host_bytes : s->plan->devices[d].peak_bytes) / SHAKE_UNIT + 32;
        s->mem[d] = xcalloc(units, sizeof *s->mem[d]);
        shake_spoil(s, s->mem[d], units);
    }
    for (tensor_id t = 0; t < g->n_tensors; t++)
        if (g->tensors[t].persistent)
            shake_put(s->mem[DEVICE_MAX] + s->plan->tensors[t].host_offset / SHAKE_UNIT, t, 0, 0,
                      (g->tensors[t].bytes + SHAKE_UNIT - 1) / SHAKE_UNIT);
}

/* Executes a plan that is at least well-formed (invariants 3, 6, 8, 10). */
static inline bool plan_shake(const struct plan *p, const struct graph *train, const struct graph *eval,
                              uint64_t seed, char why[256])
{
    bool ok = true;
    for (int pass = 0; ok && pass < (eval != NULL ? 2 : 1); pass++) {
        struct shake s = {.plan = p, .graph = pass ? eval : train, .rng = {.seed = seed + (uint64_t)pass}};
        shake_init(&s);
        if (pass == 0)
            ok = shake_batch(&s, PROGRAM_ENTRY, 1) && shake_batch(&s, PROGRAM_CYCLE, SHAKE_RUNS) &&
                 shake_batch(&s, PROGRAM_FLUSH, 1) && shake_home(&s, "flush") &&
                 shake_batch(&s, PROGRAM_CYCLE, 2) && shake_batch(&s, PROGRAM_EXIT, 1) &&
                 shake_home(&s, "exit");
        else
            ok = shake_batch(&s, PROGRAM_EVAL, 1);
        for (uint32_t d = 0; d <= DEVICE_MAX; d++)
            free(s.mem[d]);
        free(s.output);
        memcpy(why, s.why, sizeof s.why);
    }
    return ok;
}

#endif
