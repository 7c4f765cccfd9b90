/* The abstract execution of a plan: entry, max(distance) + 2 cycles, flush, one more cycle,
 * exit; and separately eval.
 *
 * That number of cycles is enough. Happens-before leads from a run only to the same run or to later ones, so
 * the waits between two runs decide how they are ordered. In the last cycle before the flush, no wait reaches
 * back beyond the first cycle, so its waits are those of any later cycle.
 *
 * Each instruction acts on the state in verify_copy.c. A read must find the version that the graph asks for
 * (invariant 1). A write creates a version, and a move carries one. A drop must not lose the newest version
 * of W or K (invariant 5). Between programs the device copies are compared with the boundary (invariants 7
 * and 9), and the host copies with the newest versions (invariant 9).
 *
 * A ring tensor has one host copy, empty at the start of every run. The verifier does not check when slots
 * are reused: the executor, the loader and the trainer ensure that the run that used a slot is done
 * (swap/exec.h).
 */
#include <string.h>

#include "base/arena.h"
#include "base/bounded.h"
#include "scheduler/verify/verify_internal.h"

/* Vector clocks of the instructions that other instructions wait for, saved when an instruction ends. Only as
 * many runs are kept as the waits reach back. */
struct trail {
    size_t *first;    /* per instruction: index of its first clock */
    uint32_t *count;  /* per instruction: number of its clocks */
    uint32_t *clocks; /* [clock][stream] */
};

/* One run of a program that is being executed. All runs of the cycle use the same struct, one after
 * another. */
struct program_run {
    struct verify_state *st;
    enum program_kind k;
    const struct plan_program *prog;
    struct trail trail;
    uint32_t run; /* number of this run, from 0 */
};

/* ---- clocks ---- */

static void trail_init(struct trail *t, const struct plan_program *prog, uint32_t n_streams)
{
    size_t n = 0;
    t->first = xcalloc((size_t)prog->n_instrs + 1, sizeof *t->first);
    t->count = xcalloc((size_t)prog->n_instrs + 1, sizeof *t->count);
    for (uint32_t i = 0; i < prog->n_instrs; i++)
        for (uint32_t j = 0; j < prog->instrs[i].n_waits; j++) {
            const struct plan_wait *w = &prog->waits[prog->instrs[i].wait + j];
            if (t->count[w->instr] < w->distance + 1)
                t->count[w->instr] = w->distance + 1;
        }
    for (uint32_t i = 0; i < prog->n_instrs; i++) {
        t->first[i] = n;
        n += t->count[i];
    }
    t->clocks = xcalloc(n + 1, n_streams * sizeof *t->clocks);
}

static void trail_finish(struct trail *t)
{
    xfree(t->first);
    xfree(t->count);
    xfree(t->clocks);
}

static uint32_t *trail_clock(const struct program_run *r, uint32_t instr, uint32_t run)
{
    const struct trail *t = &r->trail;
    return t->clocks + (t->first[instr] + run % t->count[instr]) * r->st->n_streams;
}

/* Sets each element of `into` to the maximum of itself and the element of `from` with the same index. */
static void join(uint32_t *into, const uint32_t *from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (from[i] > into[i])
            into[i] = from[i];
}

/* Makes every stream wait for all other streams, as the executor does between programs. The next instruction
 * of any stream then starts only after all earlier instructions are done. */
static void drain(struct verify_state *st)
{
    for (uint32_t s = 1; s < st->n_streams; s++)
        join(st->clocks, st->clocks + (size_t)s * st->n_streams, st->n_streams);
    for (uint32_t s = 1; s < st->n_streams; s++)
        memcpy(st->clocks + (size_t)s * st->n_streams, st->clocks, st->n_streams * sizeof *st->clocks);
}

/* Makes instruction `i` the current instruction. Raises the clock of its stream, which then counts
 * instruction `i` and everything that this instruction waits for. */
static void begin_instr(struct program_run *r, uint32_t i)
{
    struct verify_state *st = r->st;
    const struct plan_instr *in = &r->prog->instrs[i];
    st->clock = st->clocks + (size_t)in->stream * st->n_streams;
    for (uint32_t j = 0; j < in->n_waits; j++) {
        const struct plan_wait *w = &r->prog->waits[in->wait + j];
        if (w->distance <= r->run)
            join(st->clock, trail_clock(r, w->instr, r->run - w->distance), st->n_streams);
    }
    st->now = (struct verify_event){in->stream, ++st->clock[in->stream], i, (uint16_t)r->k, (uint16_t)r->run};
}

static void end_instr(struct program_run *r, uint32_t i)
{
    if (r->trail.count[i] > 0)
        memcpy(trail_clock(r, i, r->run), r->st->clock, r->st->n_streams * sizeof *r->st->clock);
}

/* ---- one instruction ---- */

#define ANY_VERSION UINT64_MAX /* a move may carry any version */

#define FOUND(r, invariant, ...) violate((r)->st->v, invariant, (r)->k, (r)->st->now.instr, __VA_ARGS__)

static struct name name_current(const struct program_run *r)
{
    return name_instr(r->st->v, r->k, r->st->now.instr);
}

static uint64_t base_of(const struct plan_operand *o)
{
    return o->addr - o->begin;
}

static void raise_newest(struct verify_state *st, tensor_id t, uint64_t version)
{
    if (version > st->newest[t])
        st->newest[t] = version;
}

static void check_versions(struct program_run *r, struct verify_copy *c, const struct plan_operand *o,
                           uint64_t version)
{
    size_t last, first = copy_slice(c, o->begin, o->end, &last);
    for (size_t i = first; i < last; i++) {
        struct verify_segment *s = &c->segments.at[i];
        if (s->version != version)
            FOUND(r, INVARIANT_RESIDENT, "%s needs version %llu of %s, but the copy at %s has version %llu",
                  name_current(r).s, (unsigned long long)version,
                  name_range(r->st->v, o->tensor, s->begin, s->end).s, name_place(o->loc, o->addr).s,
                  (unsigned long long)s->version);
        /* Keep a version that is newer than expected. Otherwise a later check would not notice when this
         * newer value is lost. */
        if (s->version < version)
            s->version = version;
    }
}

/* Returns the copy at the operand's address, or NULL if the tensor has no copy there. */
static struct verify_copy *named(struct program_run *r, const struct plan_operand *o)
{
    struct verify_copy *home = o->loc == PLAN_HOST ? copy_home(r->st, o->tensor) : NULL;
    return home != NULL ? home : copy_find(r->st, o->tensor, o->loc, base_of(o));
}

/* Looks for a copy at the same location that has all bytes of the operand, but at another address. */
static struct verify_copy *misplaced(struct verify_state *st, const struct plan_operand *o)
{
    uint64_t begin, end;
    for (struct verify_copy *c = st->away[o->tensor]; c != NULL; c = c->next)
        if (c->loc == o->loc && !copy_gap(c, o->begin, o->end, &begin, &end))
            return c;
    return NULL;
}

/* Returns true if the operand's tensor was overwritten in host memory by other data, after it had been
 * written there in the same run. */
static bool was_overwritten(const struct program_run *r, const struct plan_operand *o)
{
    const struct verify_event *e = &r->st->overwritten[o->tensor], *now = &r->st->now;
    return o->loc == PLAN_HOST && e->seq > 0 && e->program == now->program && e->run == now->run;
}

/* Reports that bytes begin..end of an operand's tensor are not at the operand's address. */
static void report_gap(struct program_run *r, const struct plan_operand *o, uint64_t begin, uint64_t end)
{
    struct verify *v = r->st->v;
    struct name bytes = name_range(v, o->tensor, begin, end),
                place = name_place(o->loc, o->addr + (begin - o->begin));
    if (was_overwritten(r, o))
        FOUND(r, INVARIANT_OVERLAP, "%s: %s is no longer at %s, because %s has written over it",
              name_current(r).s, bytes.s, place.s,
              name_instr(v, r->k, r->st->overwritten[o->tensor].instr).s);
    else
        FOUND(r, INVARIANT_RESIDENT, "%s: %s is not at %s", name_current(r).s, bytes.s, place.s);
}

/* Reports that bytes of an operand are not at its address. Returns the repaired copy, or NULL if another copy
 * at the location has all of the bytes. */
static struct verify_copy *report_missing(struct program_run *r, struct verify_copy *c,
                                          const struct plan_operand *o, uint64_t version)
{
    struct verify_state *st = r->st;
    const struct verify_copy *other = misplaced(st, o);
    uint64_t begin, end;
    if (other != NULL) {
        FOUND(r, INVARIANT_RESIDENT, "%s expects %s at %s, but it is at %s", name_current(r).s,
              name_range(st->v, o->tensor, o->begin, o->end).s, name_place(o->loc, o->addr).s,
              name_place(o->loc, other->base + o->begin).s);
        return NULL;
    }
    if (c == NULL)
        c = copy_create(st, o->tensor, o->loc, base_of(o));
    while (copy_gap(c, o->begin, o->end, &begin, &end)) {
        report_gap(r, o, begin, end);
        copy_fill(st, c, begin, end, version);
    }
    return c;
}

/* Checks that all bytes of an operand are at its address and have version `version`, which may be
 * ANY_VERSION. Returns the copy, or NULL if the bytes are elsewhere. */
static struct verify_copy *resident(struct program_run *r, const struct plan_operand *o, uint64_t version)
{
    struct verify_state *st = r->st;
    struct verify_copy *c = named(r, o);
    uint64_t begin, end;
    if (c == NULL || copy_gap(c, o->begin, o->end, &begin, &end)) {
        c = report_missing(r, c, o, version == ANY_VERSION ? st->newest[o->tensor] : version);
        if (c == NULL)
            return NULL;
    }
    if (version != ANY_VERSION)
        check_versions(r, c, o, version);
    return c;
}

/* Returns the copy into which an operand is written. Creates this copy if the tensor has none at the
 * operand's address. */
static struct verify_copy *destination(struct program_run *r, const struct plan_operand *o)
{
    struct verify_copy *c = named(r, o);
    return c != NULL ? c : copy_create(r->st, o->tensor, o->loc, base_of(o));
}

/* Returns the version of a tensor after `count` writes in the current run. Runs count from 0: with 2 writes
 * per run, run 3 begins with version 6. */
static uint64_t version_of(const struct program_run *r, tensor_id t, uint32_t count)
{
    return (uint64_t)r->run * r->st->graph->tensors[t].writes_per_cycle + count;
}

static void task_read(struct program_run *r, const struct plan_operand *o, const struct graph_operand *go)
{
    struct verify_copy *c = resident(r, o, version_of(r, o->tensor, go->read_version));
    if (c != NULL && o->access == ACCESS_READ) /* for RW, the write is checked instead */
        copy_read(r->st, c, o->begin, o->end);
}

static void task_write(struct program_run *r, const struct plan_operand *o, const struct graph_operand *go)
{
    struct verify_state *st = r->st;
    uint64_t version = version_of(r, o->tensor, go->write_version);
    struct verify_copy *other = o->access == ACCESS_RW && named(r, o) == NULL ? misplaced(st, o) : NULL;
    raise_newest(st, o->tensor, version);
    /* The bytes are at another address than the operand says. The read of this operand has already reported
     * this, so write to the address where the bytes are. */
    if (other != NULL)
        copy_fill(st, other, o->begin, o->end, version);
    else
        copy_write(st, destination(r, o), o->begin, o->end, version);
}

/* Executes a task: first all its reads, then all its writes. verify_agree has already checked that the
 * operands are the right ones. */
static void run_task(struct program_run *r, const struct plan_operand *ops, uint32_t n_ops,
                     const struct graph_task *task)
{
    const struct graph_operand *gops = &r->st->graph->operands[task->operand];
    for (int pass = 0; pass < 2; pass++) {
        uint32_t n = 0;
        for (uint32_t j = 0; j < task->n_operands && n < n_ops; j++)
            for (uint32_t end = n + operands_for(&ops[n], n_ops - n, &gops[j]); n < end; n++) {
                if (pass == 0 && (ops[n].access & ACCESS_READ))
                    task_read(r, &ops[n], &gops[j]);
                if (pass == 1 && (ops[n].access & ACCESS_WRITE))
                    task_write(r, &ops[n], &gops[j]);
            }
    }
}

/* Returns the version that the bytes have at `dst` after `piece` has been moved there. Reports a move that
 * would replace a newer version. */
static uint64_t moved_version(struct program_run *r, struct verify_copy *dst,
                              const struct verify_segment *piece)
{
    uint64_t version = piece->version;
    for (size_t i = copy_seek(dst, piece->begin); i < dst->segments.n; i++) {
        const struct verify_segment *s = &dst->segments.at[i];
        if (s->begin >= piece->end)
            break;
        if (s->version <= version)
            continue;
        FOUND(r, INVARIANT_DIRTY, "%s overwrites version %llu of %s at %s with version %llu",
              name_current(r).s, (unsigned long long)s->version, name_tensor(r->st->v, dst->tensor).s,
              name_place(dst->loc, dst->base + s->begin).s, (unsigned long long)piece->version);
        version = s->version;
    }
    return version;
}

static void run_move(struct program_run *r, const struct plan_operand *from, const struct plan_operand *to)
{
    struct verify_state *st = r->st;
    struct verify_copy *src = resident(r, from, ANY_VERSION);
    struct verify_copy *dst = destination(r, to);
    /* The source copy does not exist. This was already reported, so go on as if the newest version had been
     * moved. */
    if (src == NULL) {
        copy_write(st, dst, to->begin, to->end, st->newest[to->tensor]);
        return;
    }
    copy_read(st, src, from->begin, from->end);
    size_t last, first = copy_slice(src, from->begin, from->end, &last);
    for (size_t i = first; i < last; i++) {
        const struct verify_segment *s = &src->segments.at[i];
        uint64_t version = st->graph->tensors[to->tensor].persistent ? moved_version(r, dst, s) : s->version;
        copy_write(st, dst, s->begin, s->end, version);
    }
}

/* Tells how far copy `c` is up to date, starting at byte `at`. If the segment of the copy that contains this
 * byte has version `version` or a newer one, returns the end of the segment. Otherwise returns `at`. */
static uint64_t covers(const struct verify_copy *c, uint64_t at, uint64_t version)
{
    size_t i = copy_seek(c, at);
    if (i == c->segments.n || c->segments.at[i].begin > at || c->segments.at[i].version < version)
        return at;
    return c->segments.at[i].end;
}

/* Returns whether segment `s` of copy `c` has a byte whose value no other copy has, in the same version or a
 * newer one. */
static bool is_last(struct verify_state *st, const struct verify_copy *c, const struct verify_segment *s)
{
    uint64_t at = s->begin;
    while (at < s->end) {
        uint64_t next = covers(copy_home(st, c->tensor), at, s->version);
        for (const struct verify_copy *o = st->away[c->tensor]; o != NULL && next == at; o = o->next)
            if (o != c)
                next = covers(o, at, s->version);
        if (next == at)
            return true;
        at = next;
    }
    return false;
}

static void check_not_last(struct program_run *r, struct verify_copy *c, uint64_t begin, uint64_t end)
{
    struct verify_state *st = r->st;
    size_t last, first = copy_slice(c, begin, end, &last);
    for (size_t i = first; i < last; i++) {
        const struct verify_segment *s = &c->segments.at[i];
        if (!is_last(st, c, s))
            continue;
        FOUND(r, INVARIANT_DIRTY, "%s drops the only copy of %s in version %llu, at %s", name_current(r).s,
              name_range(st->v, c->tensor, s->begin, s->end).s, (unsigned long long)s->version,
              name_place(c->loc, c->base + s->begin).s);
        copy_fill(st, copy_home(st, c->tensor), s->begin, s->end, s->version);
    }
}

static void run_drop(struct program_run *r, const struct plan_operand *o)
{
    struct verify_state *st = r->st;
    struct verify_copy *c = named(r, o);
    uint64_t begin, end;
    if (c == NULL || copy_gap(c, o->begin, o->end, &begin, &end))
        FOUND(r, INVARIANT_RESIDENT, "%s: %s is not at %s", name_current(r).s,
              name_range(st->v, o->tensor, o->begin, o->end).s, name_place(o->loc, o->addr).s);
    if (c == NULL && (c = misplaced(st, o)) == NULL)
        return;
    if (st->graph->tensors[o->tensor].persistent)
        check_not_last(r, c, o->begin, o->end);
    copy_drop(st, c, o->begin, o->end);
}

static void run_instrs(struct program_run *r)
{
    for (uint32_t i = 0; i < r->prog->n_instrs; i++) {
        const struct plan_instr *in = &r->prog->instrs[i];
        const struct plan_operand *ops = &r->prog->operands[in->operand];
        bounded_poll();
        begin_instr(r, i);
        if (in->kind == INSTR_DROP)
            run_drop(r, ops);
        else if (instr_is_move(in->kind))
            run_move(r, &ops[0], &ops[1]);
        else
            run_task(r, ops, in->n_operands, &r->st->graph->tasks[r->st->v->task_of[r->k][i]]);
        end_instr(r, i);
    }
}

/* ---- between programs ---- */

static bool copy_newest(const struct verify_state *st, const struct verify_copy *c, uint64_t begin,
                        uint64_t end)
{
    uint64_t b, e;
    if (copy_gap(c, begin, end, &b, &e))
        return false;
    for (size_t i = copy_seek(c, begin); i < c->segments.n && c->segments.at[i].begin < end; i++)
        if (c->segments.at[i].version != st->newest[c->tensor])
            return false;
    return true;
}

/* Checks that the devices have exactly the copies in the list `copies`, all with the newest version. */
static void check_copies(struct program_run *r, const struct plan_copy *copies, uint32_t n, int invariant)
{
    struct verify_state *st = r->st;
    bounded_poll_steps(st->live.n + n);
    /* wanted[i] is the number of bytes of copy st->live.at[i] that are in the list. */
    uint64_t *wanted = xcalloc(st->live.n + n + 1, sizeof *wanted);
    for (uint32_t i = 0; i < n; i++) {
        const struct plan_copy *b = &copies[i];
        struct verify_copy *c = copy_find(st, b->tensor, b->device, b->addr - b->begin);
        if (c == NULL || !copy_newest(st, c, b->begin, b->end)) {
            violate_tensor(st->v, invariant, r->k, b->tensor,
                           "after %s the newest %s must be at %s, as the boundary says, but is not",
                           program_kind_names[r->k], name_range(st->v, b->tensor, b->begin, b->end).s,
                           name_place(b->device, b->addr).s);
            if (c == NULL)
                c = copy_create(st, b->tensor, b->device, b->addr - b->begin);
            copy_fill(st, c, b->begin, b->end, st->newest[b->tensor]);
        }
        wanted[c->index] += b->end - b->begin;
    }
    for (size_t i = 0; i < st->live.n; i++) {
        struct verify_copy *c = st->live.at[i];
        if (c->loc == PLAN_HOST || copy_bytes(c) == wanted[i] || c->clobbered)
            continue;
        violate_tensor(st->v, invariant, r->k, c->tensor, "after %s a copy of %s is left at %s",
                       program_kind_names[r->k], name_tensor(st->v, c->tensor).s,
                       name_place(c->loc, c->base + c->segments.at[0].begin).s);
        /* Report this copy only once. It stays in the state, because the list may be wrong. */
        c->clobbered = true;
    }
    xfree(wanted);
}

/* Checks that the host has the newest version of every persistent tensor, such as weights. */
static void check_home(struct program_run *r)
{
    struct verify_state *st = r->st;
    for (tensor_id t = 0; t < st->graph->n_tensors; t++) {
        struct verify_copy *c = copy_home(st, t);
        uint64_t bytes = st->graph->tensors[t].bytes;
        if (!st->graph->tensors[t].persistent || copy_newest(st, c, 0, bytes))
            continue;
        violate_tensor(st->v, INVARIANT_HOME, r->k, t,
                       "after %s the host copy of %s does not have the newest version, %llu",
                       program_kind_names[r->k], name_tensor(st->v, t).s, (unsigned long long)st->newest[t]);
        copy_fill(st, c, 0, bytes, st->newest[t]);
    }
}

/* Empties the host copies of the tensors that the loader writes or the trainer reads. If `loaded` is true,
 * then fills the inputs, as the loader does. */
static void reset_ring(struct program_run *r, const bool *output, bool loaded)
{
    struct verify_state *st = r->st;
    for (tensor_id t = 0; t < st->graph->n_tensors; t++) {
        const struct graph_tensor *gt = &st->graph->tensors[t];
        bounded_poll();
        if (!gt->external)
            continue;
        struct verify_copy *c = copy_home(st, t);
        uint64_t version = version_of(r, t, 1);
        copy_forget(st, c, 0, UINT64_MAX);
        if (!loaded || output[t])
            continue;
        copy_fill(st, c, 0, gt->bytes, version);
        raise_newest(st, t, version);
    }
}

/* Checks that the host has the results of the run, because the trainer reads them there. */
static void check_results(struct program_run *r, const bool *output)
{
    struct verify_state *st = r->st;
    for (tensor_id t = 0; t < st->graph->n_tensors; t++) {
        const struct graph_tensor *gt = &st->graph->tensors[t];
        if (!output[t])
            continue;
        const struct verify_copy *c = copy_home(st, t);
        uint64_t version = version_of(r, t, gt->writes_per_cycle), b, e;
        bool there = !copy_gap(c, 0, gt->bytes, &b, &e);
        for (size_t i = 0; there && i < c->segments.n; i++)
            there = c->segments.at[i].version == version;
        if (!there)
            violate_tensor(st->v, INVARIANT_HOME, r->k, t, "after %s the %s is not on the host",
                           program_kind_names[r->k], name_tensor(st->v, t).s);
    }
}

/* Returns an array of flags: element t is true if a task writes tensor t for a reader outside the plan. The
 * caller frees the array. */
static bool *find_outputs(const struct graph *g)
{
    bool *output = xcalloc((size_t)g->n_tensors + 1, sizeof *output);
    for (uint32_t i = 0; i < g->n_tasks; i++)
        for (uint32_t j = 0; j < g->tasks[i].n_operands; j++) {
            const struct graph_operand *o = &g->operands[g->tasks[i].operand + j];
            if (o->access != ACCESS_READ && g->tensors[o->tensor].external)
                output[o->tensor] = true;
        }
    return output;
}

/* ---- the programs in order ---- */

static void run_init(struct program_run *r, struct verify_state *st, enum program_kind k)
{
    *r = (struct program_run){.st = st, .k = k, .prog = &st->plan->programs[k]};
    trail_init(&r->trail, r->prog, st->n_streams);
}

/* Gives version 0 to the host copies of all persistent tensors. Version 0 is the state before training. */
static void fill_home(struct verify_state *st)
{
    for (tensor_id t = 0; t < st->graph->n_tensors; t++)
        if (st->graph->tensors[t].persistent)
            copy_fill(st, copy_home(st, t), 0, st->graph->tensors[t].bytes, 0);
}

/* Executes a program and then checks the state. All streams wait for each other before and after the
 * program. */
static void run_drained(struct verify_state *st, enum program_kind k, const bool *output)
{
    const struct plan *p = st->plan;
    struct program_run r;
    run_init(&r, st, k);
    drain(st);
    reset_ring(&r, output, k == PROGRAM_EVAL);
    run_instrs(&r);
    drain(st);
    if (k == PROGRAM_EVAL)
        check_results(&r, output);
    if (k != PROGRAM_ENTRY)
        check_home(&r);
    bool empty = k == PROGRAM_EXIT || k == PROGRAM_EVAL;
    check_copies(&r, p->boundary, empty ? 0 : p->n_boundary, INVARIANT_HOME);
    trail_finish(&r.trail);
}

static void run_cycle(struct program_run *r, const bool *output)
{
    reset_ring(r, output, true);
    run_instrs(r);
    check_results(r, output);
    check_copies(r, r->st->plan->boundary, r->st->plan->n_boundary, INVARIANT_BOUNDARY);
    r->run++;
}

static void run_training(struct verify *v)
{
    struct verify_state st;
    struct program_run cycle;
    bool *output = find_outputs(v->train);
    state_init(&st, v, v->train);
    run_init(&cycle, &st, PROGRAM_CYCLE);
    fill_home(&st);
    run_drained(&st, PROGRAM_ENTRY, output);
    for (uint32_t i = 0; i < v->max_distance + 2; i++)
        run_cycle(&cycle, output);
    run_drained(&st, PROGRAM_FLUSH, output);
    run_cycle(&cycle, output);
    run_drained(&st, PROGRAM_EXIT, output);
    trail_finish(&cycle.trail);
    state_finish(&st);
    xfree(output);
}

static void run_evaluation(struct verify *v)
{
    struct verify_state st;
    bool *output = find_outputs(v->eval);
    state_init(&st, v, v->eval);
    fill_home(&st);
    run_drained(&st, PROGRAM_EVAL, output);
    state_finish(&st);
    xfree(output);
}

void verify_run(struct verify *v)
{
    run_training(v);
    if (v->eval != NULL)
        run_evaluation(v);
}
