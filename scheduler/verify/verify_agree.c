/* Checks invariants 10 and 3 without executing the plan: compares the plan with the
 * graph, the leases and itself.
 *
 * A number that is merely too large (host bytes, leases, peaks) is reported, and the plan can still be
 * executed. An instruction with the wrong form is refused: the plan is not executed, because the execution
 * would report the same defect in other words.
 */
#include "base/bounded.h"
#include "base/checked.h"
#include "base/sort.h"
#include "scheduler/verify/verify_internal.h"

#define NOTE(v, ...) violate(v, INVARIANT_AGREES, PROGRAM_ENTRY, PLAN_NONE, __VA_ARGS__)

/* ---- memory: leases and the host pool ---- */

static void agree_leases(struct verify *v)
{
    const struct plan *p = v->plan;
    if (p->host_bytes > p->host_lease_bytes)
        NOTE(v, "the host pool has %llu bytes, but the host lease has %llu",
             (unsigned long long)p->host_bytes, (unsigned long long)p->host_lease_bytes);
    if (p->host_lease_bytes > v->machine->host_bytes)
        NOTE(v, "the host lease has %llu bytes, but the machine provides %llu",
             (unsigned long long)p->host_lease_bytes, (unsigned long long)v->machine->host_bytes);
    for (uint32_t d = 0; d < p->n_devices; d++)
        if (p->devices[d].lease_bytes > v->machine->capacity_bytes[d])
            NOTE(v, "the lease of d%u has %llu bytes, but the machine provides %llu", d,
                 (unsigned long long)p->devices[d].lease_bytes,
                 (unsigned long long)v->machine->capacity_bytes[d]);
}

static int compare_slots(const void *a, const void *b)
{
    const struct host_range *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Checks the home of a tensor: the place in host memory that only this tensor uses. Returns true and sets
 * *ret to the home if the home is right. */
static bool agree_slot(struct verify *v, tensor_id t, struct host_range *ret)
{
    const struct plan_tensor *pt = &v->plan->tensors[t];
    const struct graph_tensor *gt = &v->train->tensors[t];
    bool none = pt->host_offset == PLAN_NO_HOST;
    uint32_t slots = gt->external ? PLAN_RING : gt->persistent ? 1 : 0;
    uint64_t length, end;
    if (none != (pt->host_slots == 0))
        NOTE(v, "%s has %u host slots, but %s in the host pool", name_tensor(v, t).s, pt->host_slots,
             none ? "no offset" : "an offset");
    else if (pt->host_slots != slots)
        NOTE(v, "%s has %u host slots instead of %u", name_tensor(v, t).s, pt->host_slots, slots);
    else if (!none && pt->host_offset % PLAN_ALIGN != 0)
        NOTE(v, "%s has the host offset %llu, which is not aligned", name_tensor(v, t).s,
             (unsigned long long)pt->host_offset);
    else if (!none && (!checked_mul(round_up(pt->bytes, PLAN_ALIGN), pt->host_slots, &length) ||
                       !checked_add(pt->host_offset, length, &end) || end > v->plan->host_bytes))
        NOTE(v, "the host slot of %s at %llu does not fit in the pool of %llu bytes", name_tensor(v, t).s,
             (unsigned long long)pt->host_offset, (unsigned long long)v->plan->host_bytes);
    else if (!none) {
        *ret = (struct host_range){pt->host_offset, end, t};
        return true;
    }
    return false;
}

/* Checks the homes of all tensors, that is, their own places in host memory. Lists the homes in v->homes. */
static void agree_homes(struct verify *v)
{
    for (tensor_id t = 0; t < v->plan->n_tensors; t++) {
        struct host_range s;
        if (agree_slot(v, t, &s))
            vec_push(&v->homes, s);
    }
    if (v->homes.n > 1)
        sort_array(v->homes.at, v->homes.n, sizeof *v->homes.at, compare_slots);
    for (size_t i = 1; i < v->homes.n; i++)
        if (v->homes.at[i].offset < v->homes.at[i - 1].end)
            NOTE(v, "the host slots of %s and %s overlap at %llu",
                 name_tensor(v, v->homes.at[i - 1].tensor).s, name_tensor(v, v->homes.at[i].tensor).s,
                 (unsigned long long)v->homes.at[i].offset);
}

static void agree_boundary(struct verify *v)
{
    for (uint32_t i = 1; i < v->plan->n_boundary; i++) {
        const struct plan_copy *a = &v->plan->boundary[i - 1], *b = a + 1;
        bool sorted = a->device < b->device || (a->device == b->device && a->addr < b->addr);
        if (!sorted)
            refuse(v, INVARIANT_AGREES, PROGRAM_CYCLE, PLAN_NONE,
                   "the boundary is not sorted: %s at %s is after %s at %s", name_tensor(v, b->tensor).s,
                   name_place(b->device, b->addr).s, name_tensor(v, a->tensor).s,
                   name_place(a->device, a->addr).s);
        else if (a->device == b->device && b->addr - a->addr < a->end - a->begin)
            refuse(v, INVARIANT_OVERLAP, PROGRAM_CYCLE, PLAN_NONE, "%s and %s overlap in the boundary, at %s",
                   name_tensor(v, a->tensor).s, name_tensor(v, b->tensor).s,
                   name_place(b->device, b->addr).s);
    }
}

/* ---- instructions ---- */

/* An instruction that is being checked. */
struct checked_instr {
    struct verify *v;
    enum program_kind k;
    uint32_t i;
    const struct plan_instr *in;
    const struct plan_operand *ops;
};

#define BAD(a, ...) refuse((a)->v, INVARIANT_AGREES, (a)->k, (a)->i, __VA_ARGS__)

static struct name name_checked(const struct checked_instr *a)
{
    return name_instr(a->v, a->k, a->i);
}

/* Searches the places in host memory that belong to single tensors (homes). Returns the first home that
 * overlaps the addresses [begin, end), or NULL if there is none. */
static const struct host_range *home_between(const struct verify *v, uint64_t begin, uint64_t end)
{
    size_t lo = 0, hi = v->homes.n;
    while (lo < hi) { /* the first home that ends after `begin` */
        size_t mid = (lo + hi) / 2;
        if (v->homes.at[mid].end > begin)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo < v->homes.n && v->homes.at[lo].offset < end ? &v->homes.at[lo] : NULL;
}

/* Checks that the host address of operand `o` is inside the host pool and outside the homes of all tensors.
 * The tensor of `o` must have no home. */
static void agree_host_place(const struct checked_instr *a, const struct plan_operand *o)
{
    uint64_t end = o->addr + operand_bytes(o);
    const struct host_range *home = home_between(a->v, o->addr, end);
    if (end > a->v->plan->host_bytes)
        BAD(a, "%s: %s at %s is outside the host pool of %llu bytes", name_checked(a).s,
            name_range(a->v, o->tensor, o->begin, o->end).s, name_place(PLAN_HOST, o->addr).s,
            (unsigned long long)a->v->plan->host_bytes);
    else if (home != NULL)
        BAD(a, "%s: %s at %s overlaps the host slot of %s", name_checked(a).s,
            name_range(a->v, o->tensor, o->begin, o->end).s, name_place(PLAN_HOST, o->addr).s,
            name_tensor(a->v, home->tensor).s);
}

static void agree_host_operand(const struct checked_instr *a, const struct plan_operand *o)
{
    const struct plan_tensor *t = &a->v->plan->tensors[o->tensor];
    if (o->loc != PLAN_HOST)
        return;
    if (t->host_offset == PLAN_NO_HOST)
        agree_host_place(a, o);
    else if (o->addr != t->host_offset + o->begin)
        BAD(a, "%s: %s is at offset %llu of the host pool, not at %llu", name_checked(a).s,
            name_range(a->v, o->tensor, o->begin, o->end).s, (unsigned long long)(t->host_offset + o->begin),
            (unsigned long long)o->addr);
}

/* The required form of each kind of move: where the source and the destination are, and which stream runs the
 * move. */
static const struct move_shape {
    bool from_host; /* the source is the host */
    bool to_host;   /* the destination is the host */
    bool within;    /* both are on the same device */
    enum lane lane; /* lane of the stream */
    /* Index of one of the two operands: 0 for the source, 1 for the destination. The move runs on a stream of
     * the device of this operand. */
    int of;
} move_shapes[INSTR_KIND_COUNT] = {
    [INSTR_FETCH] = {true, false, false, LANE_IN, 1},
    [INSTR_SPILL] = {false, true, false, LANE_OUT, 0},
    [INSTR_SEND] = {false, false, false, LANE_PEER, 0},
    [INSTR_COPY] = {false, false, true, LANE_PEER, 0},
};

static bool is_move_of(const struct move_shape *s, const struct plan_operand *src,
                       const struct plan_operand *dst)
{
    return src->access == ACCESS_READ && dst->access == ACCESS_WRITE && src->role == ROLE_NONE &&
           dst->role == ROLE_NONE && (src->loc == dst->loc) == s->within &&
           (src->loc == PLAN_HOST) == s->from_host && (dst->loc == PLAN_HOST) == s->to_host;
}

static void agree_copy_move(const struct checked_instr *a)
{
    const struct move_shape *s = &move_shapes[a->in->kind];
    if (a->in->n_operands != 2 || !is_move_of(s, &a->ops[0], &a->ops[1])) {
        BAD(a, "%s: its operands do not fit this kind of move", name_checked(a).s);
        return;
    }
    const struct plan_operand *src = &a->ops[0], *dst = &a->ops[1];
    if (src->tensor != dst->tensor || src->begin != dst->begin || src->end != dst->end)
        BAD(a, "%s: its source is %s, but its destination is %s", name_checked(a).s,
            name_range(a->v, src->tensor, src->begin, src->end).s,
            name_range(a->v, dst->tensor, dst->begin, dst->end).s);
    else if (s->within && src->addr == dst->addr)
        BAD(a, "%s: copies %s at %s onto itself", name_checked(a).s,
            name_range(a->v, src->tensor, src->begin, src->end).s, name_place(src->loc, src->addr).s);
    else if (a->in->stream != plan_stream(a->ops[s->of].loc, s->lane))
        BAD(a, "%s: must be on stream d%u.%s", name_checked(a).s, a->ops[s->of].loc, lane_names[s->lane]);
}

static void agree_drop(const struct checked_instr *a)
{
    if (a->in->n_operands != 1 || a->ops[0].access != ACCESS_DROP || a->ops[0].role != ROLE_NONE ||
        a->ops[0].loc == PLAN_HOST)
        BAD(a, "%s: its operand does not fit a drop", name_checked(a).s);
    else if (a->in->stream / LANE_COUNT != a->ops[0].loc)
        BAD(a, "%s: must be on a stream of d%u", name_checked(a).s, a->ops[0].loc);
}

static void agree_move(const struct checked_instr *a)
{
    if (a->in->layer != PLAN_NONE || a->in->micro != PLAN_NONE || a->in->replica != PLAN_NONE ||
        a->in->step != 0 || a->in->group != 0)
        BAD(a, "%s: a move or drop must not name a layer, micro-batch, replica, step or group",
            name_checked(a).s);
    else if (a->in->kind == INSTR_DROP)
        agree_drop(a);
    else
        agree_copy_move(a);
}

/* Checks that an instruction's stream may run the task. If so, returns true and sets *ret to the location
 * where all operands of the task must be. */
static bool agree_place(const struct checked_instr *a, const struct graph_task *task, uint32_t *ret)
{
    bool host = a->in->stream == plan_host_stream(a->v->plan);
    if (!host && a->in->stream % LANE_COUNT != LANE_COMPUTE)
        BAD(a, "%s: a task must be on a compute lane", name_checked(a).s);
    else if (host && task->place == PLACE_DEVICE)
        BAD(a, "%s: this task cannot run on the host", name_checked(a).s);
    else {
        *ret = host ? PLAN_HOST : a->in->stream / LANE_COUNT;
        return true;
    }
    return false;
}

/* The numbers that identify a task of the graph. The keys are sorted, so that a task can be found by binary
 * search. */
struct task_key {
    uint32_t kind, layer, micro, replica, step, group, task;
};

static int compare_task_keys(const void *a, const void *b)
{
    const struct task_key *x = a, *y = b;
    const uint32_t xs[6] = {x->kind, x->layer, x->micro, x->replica, x->step, x->group},
                   ys[6] = {y->kind, y->layer, y->micro, y->replica, y->step, y->group};
    for (int i = 0; i < 6; i++)
        if (xs[i] != ys[i])
            return xs[i] < ys[i] ? -1 : 1;
    return 0;
}

static struct task_key *sort_tasks(const struct graph *g)
{
    struct task_key *keys = xcalloc((size_t)g->n_tasks + 1, sizeof *keys);
    for (uint32_t t = 0; t < g->n_tasks; t++) {
        const struct graph_task *gt = &g->tasks[t];
        keys[t] = (struct task_key){gt->kind, gt->layer, gt->micro, gt->replica, gt->step, gt->group, t};
    }
    sort_array(keys, g->n_tasks, sizeof *keys, compare_task_keys);
    return keys;
}

static void agree_task(const struct checked_instr *a, const struct graph *g, const struct task_key *keys)
{
    enum instr_kind kind = a->in->kind == INSTR_REC ? INSTR_FWD : a->in->kind;
    struct task_key want = {kind, a->in->layer, a->in->micro, a->in->replica, a->in->step, a->in->group, 0};
    const struct task_key *found = bsearch(&want, keys, g->n_tasks, sizeof *keys, compare_task_keys);
    if (found == NULL) {
        BAD(a, "%s: the graph has no such task", name_checked(a).s);
        return;
    }
    a->v->task_of[a->k][a->i] = found->task;
    uint32_t loc;
    if (agree_place(a, &g->tasks[found->task], &loc))
        verify_operands(a->v, a->k, a->i, &g->tasks[found->task], loc);
}

static void agree_program(struct verify *v, enum program_kind k)
{
    const struct plan_program *prog = &v->plan->programs[k];
    const struct graph *g = verify_graph(v, k);
    struct task_key *keys = g != NULL ? sort_tasks(g) : NULL;
    /* verify_tasks reports tasks in other programs. */
    bool tasks_allowed = k == PROGRAM_CYCLE || k == PROGRAM_EVAL;
    for (uint32_t i = 0; i < prog->n_instrs; i++) {
        const struct plan_instr *in = &prog->instrs[i];
        struct checked_instr a = {v, k, i, in, prog->operands + in->operand};
        bounded_poll();
        if (in->kind >= INSTR_FETCH)
            agree_move(&a);
        else if (tasks_allowed)
            agree_task(&a, g, keys);
        for (uint32_t j = 0; j < in->n_operands; j++)
            agree_host_operand(&a, &a.ops[j]);
    }
    xfree(keys);
}

void verify_agree(struct verify *v)
{
    agree_leases(v);
    agree_homes(v);
    agree_boundary(v);
    for (int k = 0; k < PROGRAM_COUNT; k++)
        agree_program(v, (enum program_kind)k);
}

/* ---- leases ---- */

/* Checks that every device address in a program is inside the job's lease. Raises highest[d] to the end of
 * the highest range that the program uses on device d. */
static void lease_program(struct verify *v, enum program_kind k, uint64_t *highest)
{
    const struct plan_program *prog = &v->plan->programs[k];
    for (uint32_t i = 0; i < prog->n_instrs; i++) {
        const struct plan_instr *in = &prog->instrs[i];
        bounded_poll();
        for (uint32_t j = 0; j < in->n_operands; j++) {
            const struct plan_operand *o = &prog->operands[in->operand + j];
            if (o->loc == PLAN_HOST)
                continue;
            uint64_t end = o->addr + operand_bytes(o), lease = v->plan->devices[o->loc].lease_bytes;
            if (end > lease)
                violate(v, INVARIANT_LEASE, k, i, "%s: %s at %s is outside the lease (%llu bytes)",
                        name_instr(v, k, i).s, name_range(v, o->tensor, o->begin, o->end).s,
                        name_place(o->loc, o->addr).s, (unsigned long long)lease);
            else if (end > highest[o->loc])
                highest[o->loc] = end;
        }
    }
}

/* Checks that all addresses are inside the leases and below the peaks that the plan states. */
void verify_lease(struct verify *v)
{
    const struct plan *p = v->plan;
    uint64_t highest[DEVICE_MAX] = {0};
    for (int k = 0; k < PROGRAM_COUNT; k++)
        lease_program(v, (enum program_kind)k, highest);
    for (uint32_t i = 0; i < p->n_boundary; i++) {
        const struct plan_copy *c = &p->boundary[i];
        if (c->addr + (c->end - c->begin) > p->devices[c->device].lease_bytes)
            violate_tensor(v, INVARIANT_LEASE, PROGRAM_CYCLE, c->tensor,
                           "the boundary copy of %s at %s is outside the lease",
                           name_range(v, c->tensor, c->begin, c->end).s, name_place(c->device, c->addr).s);
    }
    for (uint32_t d = 0; d < p->n_devices; d++) {
        if (p->devices[d].peak_bytes > p->devices[d].lease_bytes)
            violate(v, INVARIANT_LEASE, PROGRAM_ENTRY, PLAN_NONE,
                    "the peak of d%u is %llu bytes, but its lease has %llu", d,
                    (unsigned long long)p->devices[d].peak_bytes,
                    (unsigned long long)p->devices[d].lease_bytes);
        if (p->devices[d].peak_bytes < highest[d])
            NOTE(v, "the plan gives the peak of d%u as %llu bytes, but its instructions use %llu", d,
                 (unsigned long long)p->devices[d].peak_bytes, (unsigned long long)highest[d]);
    }
}
