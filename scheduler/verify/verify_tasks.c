/* Checks two invariants without executing the plan. Invariant 6: every task of the graph runs exactly
 * once per run, and sums are added in the fixed order. Invariant 8: waits point backwards.
 *
 * These checks use v->task_of, which verify_agree sets. Sums are checked in issue order. This is
 * sufficient because invariant 4 ensures that accesses to one tensor also happen in issue order.
 */
#include "base/bounded.h"
#include "base/sort.h"
#include "scheduler/verify/verify_internal.h"

/* ---- tasks that are not allowed ---- */

static void tasks_none(struct verify *v, enum program_kind k)
{
    const struct plan_program *prog = &v->plan->programs[k];
    for (uint32_t i = 0; i < prog->n_instrs; i++)
        if (prog->instrs[i].kind < INSTR_FETCH)
            refuse(v, INVARIANT_TASKS, k, i, "%s: the %s program must not contain tasks",
                   name_instr(v, k, i).s, program_kind_names[k]);
}

/* Checks that a recomputation (REC) writes only tensors that live within one training step and are not used
 * outside the plan. */
static void tasks_rec(struct verify *v, enum program_kind k, uint32_t i)
{
    const struct plan_program *prog = &v->plan->programs[k];
    const struct plan_instr *in = &prog->instrs[i];
    const struct graph *g = verify_graph(v, k);
    for (uint32_t j = 0; j < in->n_operands; j++) {
        const struct plan_operand *o = &prog->operands[in->operand + j];
        const struct graph_tensor *t = &g->tensors[o->tensor];
        if (o->access != ACCESS_READ && (t->persistent || t->external))
            refuse(v, INVARIANT_TASKS, k, i, "%s: a recomputation must not write %s", name_instr(v, k, i).s,
                   name_tensor(v, o->tensor).s);
    }
}

/* ---- shares of RED and UPD ---- */

/* An instruction that does only the bytes begin..end of its task. Such a part of a task is called a share. */
struct share {
    uint32_t task, instr;
    uint64_t begin, end;
};

typedef VEC(struct share) share_vec;

static int compare_numbers(const uint64_t *x, const uint64_t *y, int n)
{
    for (int i = 0; i < n; i++)
        if (x[i] != y[i])
            return x[i] < y[i] ? -1 : 1;
    return 0;
}

static int compare_shares(const void *a, const void *b)
{
    const struct share *x = a, *y = b;
    const uint64_t xs[3] = {x->task, x->begin, x->instr}, ys[3] = {y->task, y->begin, y->instr};
    return compare_numbers(xs, ys, 3);
}

/* If instruction `i` does only a share of its task, sets *ret to this share and returns true. Returns false
 * if the instruction does the whole task. */
static bool tasks_share(const struct verify *v, enum program_kind k, uint32_t i, struct share *ret)
{
    const struct plan_operand *o = share_operand(v, k, i);
    if (o == NULL || operand_bytes(o) == v->plan->tensors[o->tensor].bytes)
        return false;
    *ret = (struct share){v->task_of[k][i], i, o->begin, o->end};
    return true;
}

static void tasks_report_bytes(struct verify *v, enum program_kind k, const struct share *s, uint64_t begin,
                               uint64_t end, bool twice)
{
    const struct graph_task *t = &verify_graph(v, k)->tasks[s->task];
    const char *done = t->kind == INSTR_RED ? "added" : "updated";
    if (twice)
        refuse(v, INVARIANT_TASKS, k, s->instr, "%s: bytes %llu..%llu are %s twice", name_task(t).s,
               (unsigned long long)begin, (unsigned long long)end, done);
    else
        refuse(v, INVARIANT_TASKS, k, PLAN_NONE, "%s: bytes %llu..%llu are never %s", name_task(t).s,
               (unsigned long long)begin, (unsigned long long)end, done);
}

/* Checks that the `n` shares of one task together cover every byte exactly once. The shares must be sorted by
 * byte range. */
static void tasks_whole(struct verify *v, enum program_kind k, const struct share *s, size_t n)
{
    const struct plan_operand *o = share_operand(v, k, s->instr);
    uint64_t bytes = v->plan->tensors[o->tensor].bytes, done = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i].begin > done)
            tasks_report_bytes(v, k, &s[i], done, s[i].begin, false);
        else if (s[i].begin < done)
            tasks_report_bytes(v, k, &s[i], s[i].begin, s[i].end < done ? s[i].end : done, true);
        if (s[i].end > done)
            done = s[i].end;
    }
    if (done < bytes)
        tasks_report_bytes(v, k, s, done, bytes, false);
}

/* Checks the tasks that are done in shares. Before the call, seen[task] must be true for the tasks that a
 * single instruction does as a whole. */
static void tasks_shares(struct verify *v, enum program_kind k, share_vec *shares, bool *seen)
{
    if (shares->n > 1)
        sort_array(shares->at, shares->n, sizeof *shares->at, compare_shares);
    for (size_t i = 0, end; i < shares->n; i = end) {
        struct share *s = &shares->at[i];
        bool *all = &seen[s->task];
        for (end = i + 1; end < shares->n && s->task == shares->at[end].task;)
            end++;
        if (*all)
            tasks_report_bytes(v, k, s, s->begin, s->end, true);
        else
            tasks_whole(v, k, s, end - i);
        *all = true;
    }
}

/* ---- each task exactly once per run ---- */

static void tasks_once(struct verify *v, enum program_kind k)
{
    const struct plan_program *prog = &v->plan->programs[k];
    const struct graph *g = verify_graph(v, k);
    bool *seen = xcalloc((size_t)g->n_tasks + 1, sizeof *seen);
    share_vec shares = {0};
    for (uint32_t i = 0; i < prog->n_instrs; i++) {
        uint32_t task = v->task_of[k][i];
        struct share share;
        bounded_poll();
        if (task == PLAN_NONE || prog->instrs[i].kind == INSTR_REC)
            continue;
        if (tasks_share(v, k, i, &share)) {
            vec_push(&shares, share);
            continue;
        }
        if (seen[task])
            refuse(v, INVARIANT_TASKS, k, i, "%s: the same task runs a second time in one step",
                   name_instr(v, k, i).s);
        seen[task] = true;
    }
    tasks_shares(v, k, &shares, seen);
    for (uint32_t j = 0; j < g->n_tasks; j++)
        if (!seen[j])
            refuse(v, INVARIANT_TASKS, k, PLAN_NONE, "%s: there is no %s", program_kind_names[k],
                   name_task(&g->tasks[j]).s);
    vec_free(&shares);
    xfree(seen);
}

/* ---- the order of writes ---- */

/* One write by a task to the bytes begin..end of a tensor. `version` is the version that these bytes have
 * after the write. */
struct tensor_write {
    tensor_id tensor;
    uint32_t instr, version;
    uint64_t begin, end;
};

typedef VEC(struct tensor_write) write_vec;

static int compare_writes(const void *a, const void *b)
{
    const struct tensor_write *x = a, *y = b;
    const uint64_t xs[3] = {x->tensor, x->instr, x->begin}, ys[3] = {y->tensor, y->instr, y->begin};
    return compare_numbers(xs, ys, 3);
}

static void tasks_report_order(struct verify *v, enum program_kind k, const struct tensor_write *w,
                               uint32_t after)
{
    refuse(v, INVARIANT_TASKS, k, w->instr,
           "%s makes write %u of %s in this cycle, but is issued after write %u",
           name_instr(v, k, w->instr).s, w->version, name_range(v, w->tensor, w->begin, w->end).s, after);
}

typedef void write_fn(struct verify *v, enum program_kind k, struct tensor_write w, void *ctx);

/* Calls `fn` for every write of every task, in issue order. Recomputations are left out, because they repeat
 * an earlier write. */
static void tasks_each_write(struct verify *v, enum program_kind k, write_fn *fn, void *ctx)
{
    const struct plan_program *prog = &v->plan->programs[k];
    const struct graph *g = verify_graph(v, k);
    for (uint32_t i = 0; i < prog->n_instrs; i++) {
        const struct plan_instr *in = &prog->instrs[i];
        const struct plan_operand *ops = &prog->operands[in->operand];
        if (v->task_of[k][i] == PLAN_NONE || in->kind == INSTR_REC)
            continue;
        const struct graph_task *task = &g->tasks[v->task_of[k][i]];
        for (uint32_t j = 0, n = 0; j < task->n_operands; j++) {
            const struct graph_operand *go = &g->operands[task->operand + j];
            for (uint32_t end = n + operands_for(&ops[n], in->n_operands - n, go); n < end; n++)
                if (go->access != ACCESS_READ)
                    fn(v, k,
                       (struct tensor_write){go->tensor, i, go->write_version, ops[n].begin, ops[n].end},
                       ctx);
        }
    }
}

/* The state of the check of the order of writes. Writes to a tensor that is written in parts are first
 * collected, and then checked byte by byte. */
struct writers {
    /* in_parts[t] is true if some task writes only a part of tensor t. */
    bool *in_parts;
    /* All writes to those tensors that are written in parts. */
    write_vec writes;
    uint32_t *last; /* per tensor: version of the last write */
};

static void note_parts(struct verify *v, enum program_kind k, struct tensor_write w, void *ctx)
{
    struct writers *o = ctx;
    (void)k;
    o->in_parts[w.tensor] |= w.end - w.begin != v->plan->tensors[w.tensor].bytes;
}

static void check_write(struct verify *v, enum program_kind k, struct tensor_write w, void *ctx)
{
    struct writers *o = ctx;
    uint32_t *last = &o->last[w.tensor];
    if (o->in_parts[w.tensor]) {
        vec_push(&o->writes, w);
        return;
    }
    if (w.version <= *last)
        tasks_report_order(v, k, &w, *last);
    *last = w.version;
}

/* Checks the order of the `n` writes to one tensor, byte by byte. Each write must raise the version of all
 * bytes that it writes. */
static void check_bytes(struct verify *v, enum program_kind k, const struct tensor_write *w, size_t n)
{
    struct verify_copy bytes = {.loc = PLAN_HOST, .home = true};
    for (size_t i = 0; i < n; i++) {
        for (size_t j = copy_seek(&bytes, w[i].begin);
             j < bytes.segments.n && bytes.segments.at[j].begin < w[i].end; j++)
            if (bytes.segments.at[j].version >= w[i].version)
                tasks_report_order(v, k, &w[i], (uint32_t)bytes.segments.at[j].version);
        copy_fill(NULL, &bytes, w[i].begin, w[i].end, w[i].version);
    }
    copy_forget(NULL, &bytes, 0, UINT64_MAX);
    vec_free(&bytes.segments);
}

static void tasks_ordered(struct verify *v, enum program_kind k)
{
    const struct graph *g = verify_graph(v, k);
    struct writers o = {.in_parts = xcalloc((size_t)g->n_tensors + 1, sizeof *o.in_parts),
                        .last = xcalloc((size_t)g->n_tensors + 1, sizeof *o.last)};
    tasks_each_write(v, k, note_parts, &o);
    tasks_each_write(v, k, check_write, &o);
    if (o.writes.n > 1)
        sort_array(o.writes.at, o.writes.n, sizeof *o.writes.at, compare_writes);
    for (size_t i = 0, end; i < o.writes.n; i = end) {
        const struct tensor_write *w = &o.writes.at[i];
        for (end = i + 1; end < o.writes.n && o.writes.at[end].tensor == w->tensor;)
            end++;
        check_bytes(v, k, w, end - i);
    }
    vec_free(&o.writes);
    xfree(o.in_parts);
    xfree(o.last);
}

static void tasks_program(struct verify *v, enum program_kind k)
{
    for (uint32_t i = 0; i < v->plan->programs[k].n_instrs; i++)
        if (v->plan->programs[k].instrs[i].kind == INSTR_REC)
            tasks_rec(v, k, i);
    tasks_once(v, k);
    if (!v->stop)
        tasks_ordered(v, k);
}

void verify_tasks(struct verify *v)
{
    tasks_none(v, PROGRAM_ENTRY);
    tasks_none(v, PROGRAM_FLUSH);
    tasks_none(v, PROGRAM_EXIT);
    tasks_program(v, PROGRAM_CYCLE);
    if (v->eval != NULL)
        tasks_program(v, PROGRAM_EVAL);
}

/* ---- waits ---- */

void verify_waits(struct verify *v)
{
    for (int k = 0; k < PROGRAM_COUNT; k++) {
        const struct plan_program *prog = &v->plan->programs[k];
        for (uint32_t i = 0; i < prog->n_instrs; i++)
            for (uint32_t j = 0; j < prog->instrs[i].n_waits; j++) {
                const struct plan_wait *w = &prog->waits[prog->instrs[i].wait + j];
                if (w->distance == 0 && w->instr >= i)
                    refuse(v, INVARIANT_DEADLOCK, (enum program_kind)k, i,
                           "%s waits for #%u, which is not issued before it",
                           name_instr(v, (enum program_kind)k, i).s, w->instr);
                else if (w->distance > 0 && k != PROGRAM_CYCLE)
                    refuse(v, INVARIANT_DEADLOCK, (enum program_kind)k, i,
                           "%s waits for #%u of an earlier run, which is allowed in the cycle only",
                           name_instr(v, (enum program_kind)k, i).s, w->instr);
                else if (w->distance > v->max_distance)
                    v->max_distance = w->distance;
            }
    }
}
