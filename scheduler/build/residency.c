/* Residency: decides when each device has a copy of which tensor, and adds the moves and drops for these
 * copies.
 *
 * The stage gets the tasks in issue order and writes a draft: the same tasks, with fetches, spills, sends and
 * drops between them. Memory is not limited here; retention, placement and the policy see to that. Tensors
 * therefore do not influence each other, and each tensor is planned alone, from the list of its uses. How it
 * is planned depends on the class of its lifetime:
 *
 *   shared   the state of a layer that several devices compute, one share each (residency_shares.c)
 *   pinned   one copy, which never leaves its device
 *   across   state whose copy retention keeps over the end of the cycle: the next cycle starts with the copy
 *   plain    all others: each copy begins and ends within the program
 *
 * Example: W of layer 1 is plain. Device 0 runs FWD of micro-batches 0 and 1 in span 0, other layers in span
 * 1, and BWD of both in span 2. The host then updates W. A span keeps W, so device 0 has two copies of W:
 *
 *     position    0    1    2 ...    7    8         9
 *     task        FWD  FWD  others   BWD  BWD       UPD (host)
 *     copies      [-------]          [-------]
 *     moves      fetch    drop      fetch    drop
 *
 * With lead_state = 1 the second fetch stands at the start of span 1 and overlaps with that span. The drop
 * after position 1 and the second fetch are a gap: retention may close it, and then both copies are one.
 */
#include <assert.h>

#include "base/arena.h"
#include "base/bounded.h"
#include "scheduler/build/residency_private.h"

/* ---- uses ---- */

static void collect_uses(struct residency *r)
{
    r->use_first = arena_alloc_array(r->arena, r->n + 1, sizeof *r->use_first);
    for (uint32_t p = 0; p < r->n; p++) {
        const struct todo *t = &r->todos[p];
        const struct graph_task *task = &r->g->tasks[t->task];
        r->use_first[p] = (uint32_t)r->uses.n;
        bounded_poll();
        for (uint32_t i = 0; i < task->n_operands; i++) {
            const struct graph_operand *op = &r->g->operands[task->operand + i];
            bool used = todo_uses(t, &r->g->tensors[op->tensor], op);
            for (uint32_t part = 0; used && part < todo_extents(r->o, t, op); part++) {
                struct extent of = todo_extent(r->o, t, op, part);
                /* A share of K can be empty if K is smaller than W. Skip it. */
                if (of.begin < of.end)
                    vec_push(&r->uses, (struct operand_use){op, op->tensor, op->access, p, of, SEGMENT_NONE});
            }
        }
    }
    r->use_first[r->n] = (uint32_t)r->uses.n;
}

/* Sorts all uses by tensor, and the uses of one tensor by issue order. The uses of tensor t start at index
 * (*ret_first)[t] of the returned array. */
static struct operand_use **sort_uses(struct residency *r, uint32_t **ret_first)
{
    uint32_t n_tensors = r->g->n_tensors;
    uint32_t *first = arena_alloc_array(r->arena, (size_t)n_tensors + 2, sizeof *first);
    struct operand_use **sorted = arena_alloc_array(r->arena, r->uses.n + 1, sizeof *sorted);
    for (size_t i = 0; i < r->uses.n; i++)
        first[r->uses.at[i].tensor + 2]++;
    for (uint32_t t = 1; t <= n_tensors; t++)
        first[t + 1] += first[t];
    for (size_t i = 0; i < r->uses.n; i++)
        sorted[first[r->uses.at[i].tensor + 1]++] = &r->uses.at[i];
    *ret_first = first;
    return sorted;
}

/* ---- the classes of lifetimes ---- */

static uint32_t location_of(const struct residency *r, const struct operand_use *u)
{
    return r->todos[u->pos].loc;
}

/* Returns whether all uses of a tensor are on the same device, and none on the host. */
static bool all_on_one_device(const struct residency *r, const struct tensor_uses *uses)
{
    uint32_t loc = location_of(r, uses->at[0]);
    for (uint32_t i = 1; i < uses->n; i++)
        if (location_of(r, uses->at[i]) != loc)
            return false;
    return loc != PLAN_HOST;
}

/* Plans all uses of a tensor in issue order. Afterwards, *v describes the value that the tensor has at the
 * end of the program. */
static void plan_uses(struct residency *r, struct value *v, const struct tensor_uses *uses)
{
    for (uint32_t i = 0; i < uses->n; i++) {
        struct operand_use *u = uses->at[i];
        if (location_of(r, u) == PLAN_HOST)
            residency_use_on_host(r, v, u);
        else
            residency_use(r, v, u);
    }
}

/* Adds the drops of all segments from number `first` on. The segment `stays` gets no drop. */
static void end_segments(struct residency *r, uint32_t first, uint32_t stays)
{
    for (uint32_t s = first; s < r->d->segments.n; s++)
        if (s != stays)
            residency_end(r, s);
}

/* Plans a tensor that never leaves its device. It has a single segment, which is never dropped. */
static void plan_pinned(struct residency *r, const struct tensor_uses *uses)
{
    const struct operand_use *first = uses->at[0];
    struct extent whole = extent_whole(r->g, r->o->n_shares, uses->tensor);
    uint32_t seg = residency_segment(r, uses->tensor, location_of(r, first), first->pos, whole);
    struct segment *s = &r->d->segments.at[seg];
    s->boundary = true;
    for (uint32_t i = 0; i < uses->n; i++) {
        uses->at[i]->segment = seg;
        s->dirty |= (uses->at[i]->access & ACCESS_WRITE) != 0;
    }
}

/* Plans a persistent tensor whose copy stays on the device of the first use from one cycle to the next.
 * `first` is the copy at the start of the cycle, and `last` is the copy at its end. If both are the same
 * segment, the copy is never dropped. Otherwise the two are joined into one segment, which is created late in
 * the cycle and dropped early in the next cycle.
 *
 * The host gets the newest value, unless the copy is never dropped and no other location uses the tensor. */
static void plan_across(struct residency *r, const struct tensor_uses *uses)
{
    uint32_t device = location_of(r, uses->at[0]);
    struct value v = residency_first_value(uses->tensor, extent_whole(r->g, r->o->n_shares, uses->tensor));
    uint32_t first = residency_segment(r, uses->tensor, device, uses->at[0]->pos, v.of);
    r->d->segments.at[first].boundary = true;
    v.current[device] = v.previous[device] = first;
    plan_uses(r, &v, uses);
    v.home = true;
    residency_settle(r, &v);
    uint32_t last = v.current[device];
    assert(last != SEGMENT_NONE);
    if (last != first)
        vec_push(&r->joined, (struct joined){last, first});
    if (last == first && all_on_one_device(r, uses))
        r->d->segments.at[first].dirty = v.produced != PLAN_NONE;
    else
        residency_bring_home(r, &v);
    end_segments(r, first, last);
}

/* If the first fetch of the cycle brings back *v, the last value of the previous cycle, records this fetch as
 * a reload. */
static void note_reload_across(struct residency *r, const struct value *v, const struct operand_use *first,
                               uint32_t first_segment)
{
    uint32_t device = location_of(r, first);
    uint32_t last = device == PLAN_HOST ? SEGMENT_NONE : v->current[device];
    if (last == SEGMENT_NONE || !(first->access & ACCESS_READ))
        return;
    bool saves_spill = last == first_segment && v->produced != PLAN_NONE;
    vec_push(&r->reloads,
             (struct reload){(uint32_t)(first - r->uses.at), last, first_segment, saves_spill ? 2 : 1});
}

/* Plans a tensor that has no copy on any device between two runs of the program. */
static void plan_plain(struct residency *r, const struct tensor_uses *uses)
{
    const struct graph_tensor *t = &r->g->tensors[uses->tensor];
    uint32_t first = (uint32_t)r->d->segments.n;
    bool needed_at_home = t->persistent || trainer_reads(t);
    struct value v = residency_first_value(uses->tensor, extent_whole(r->g, r->o->n_shares, uses->tensor));
    plan_uses(r, &v, uses);
    v.home |= needed_at_home;
    residency_settle(r, &v);
    if (r->d->cyclic && t->persistent)
        note_reload_across(r, &v, uses->at[0], first);
    if (needed_at_home)
        residency_bring_home(r, &v);
    end_segments(r, first, SEGMENT_NONE);
}

enum lifetime { LIFETIME_SHARED, LIFETIME_PINNED, LIFETIME_ACROSS, LIFETIME_PLAIN };

/* Returns whether the tensor belongs to the state of a layer: W, dW, K or B. */
static bool is_state(const struct graph_tensor *t)
{
    return t->kind == TENSOR_W || t->kind == TENSOR_DW || t->kind == TENSOR_K || t->kind == TENSOR_B;
}

/* Returns whether the settings ask that a persistent tensor stays on its device all the time. This is only
 * possible if no other location uses the tensor. */
static bool never_leaves(const struct residency *r, const struct graph_tensor *t)
{
    const bool *pinned = r->knobs->pinned;
    return r->knobs->keep == KEEP_ALL || (pinned != NULL && t->layer != PLAN_NONE && pinned[t->layer]);
}

static enum lifetime lifetime_of(const struct residency *r, const struct tensor_uses *uses)
{
    const struct graph_tensor *t = &r->g->tensors[uses->tensor];
    if (r->o->n_shares > 1 && is_state(t))
        return LIFETIME_SHARED;
    if (!r->d->cyclic || !t->persistent)
        return LIFETIME_PLAIN;
    if (never_leaves(r, t) && all_on_one_device(r, uses))
        return LIFETIME_PINNED;
    return residency_retains(r, uses->at[0]) ? LIFETIME_ACROSS : LIFETIME_PLAIN;
}

static void plan_tensor(struct residency *r, const struct tensor_uses *uses)
{
    bounded_poll_steps(1 + uses->n);
    if (uses->n == 0)
        return;
    switch (lifetime_of(r, uses)) {
    case LIFETIME_SHARED:
        residency_shared(r, uses);
        break;
    case LIFETIME_PINNED:
        plan_pinned(r, uses);
        break;
    case LIFETIME_ACROSS:
        plan_across(r, uses);
        break;
    case LIFETIME_PLAIN:
        plan_plain(r, uses);
        break;
    }
}

/* ---- the stage ---- */

static void finish(struct residency *r)
{
    vec_free(&r->reloads);
    vec_free(&r->joined);
    vec_free(&r->uses);
    vec_free(&r->lives);
    vec_free(&r->entries);
    vec_free(&r->direct);
    arena_destroy(r->arena);
}

void draft_residency(struct draft *d, const struct order *o, const struct knobs *knobs, bool cyclic,
                     const gap_list *retained, gap_list *ret_gaps)
{
    *d = (struct draft){
        .graph = o->graph, .n_devices = o->n_devices, .n_shares = o->n_shares, .cyclic = cyclic};
    struct residency r = {
        .d = d,
        .o = o,
        .g = o->graph,
        .knobs = knobs,
        .n = (uint32_t)o->todos.n,
        .direct_base = PLAN_NONE,
        .retained = retained,
        .arena = arena_create(),
    };
    r.todos = arena_memdup(r.arena, o->todos.at, o->todos.n * sizeof *o->todos.at); /* to be renumbered */
    residency_units(&r);
    collect_uses(&r);
    uint32_t *first;
    struct operand_use **sorted = sort_uses(&r, &first);
    for (uint32_t t = 0; t < r.g->n_tensors; t++)
        plan_tensor(&r, &(struct tensor_uses){t, sorted + first[t], first[t + 1] - first[t]});
    residency_write(&r);
    if (ret_gaps != NULL)
        residency_gaps(&r, ret_gaps);
    finish(&r);
}
