/* Residency: decides which device copies exist when, and which moves create them.
 *
 * Each tensor is planned separately, over its uses in issue order. If the device still has a copy under the
 * policy's keep rule, a use continues that copy. Otherwise a new copy begins: the task itself writes it, or
 * the device that produced the value sends it, or it is fetched from the host. Before the first fetch of a
 * value, its producer spills it, once. Every copy ends with a drop.
 *
 * A write creates a new value and makes all other copies stale. A REC is different: it writes a value that
 * already exists, so it only adds a copy.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/bounded.h"
#include "base/checked.h"
#include "base/sort.h"
#include "scheduler/build/residency_private.h"

/* Maximum number of activations that a device may receive directly and not have used yet. The limit keeps a
 * fast sender from filling the receiver's memory. */
#define DIRECT_BUFFERS 2

/* ---- units ---- */

/* Returns whether copies of this kind stay on the device for a whole span, which is one pass of a pack. All
 * other copies stay only for an item, which is one micro-batch's pass. */
static bool by_span(enum tensor_kind k)
{
    return k == TENSOR_W || k == TENSOR_DW || k == TENSOR_B;
}

/* Lists the spans or the items of a device and renumbers them without gaps. The numbers of an eval order have
 * gaps, because its backward tasks were removed. */
static void collect_units(struct residency *r, struct units *units, uint32_t device, bool spans)
{
    uint32_t most = 0, n = 0, current = PLAN_NONE;
    for (uint32_t p = 0; p < r->n; p++)
        most += r->todos[p].loc == device;
    uint32_t *first = arena_alloc_array(r->arena, most, sizeof *first);
    uint32_t *last = arena_alloc_array(r->arena, most, sizeof *last);
    for (uint32_t p = 0; p < r->n; p++) {
        struct todo *t = &r->todos[p];
        bounded_poll();
        if (t->loc != device)
            continue;
        uint32_t *unit = spans ? &t->span : &t->item;
        if (*unit != current || n == 0) {
            current = *unit;
            first[n++] = p;
        }
        *unit = n - 1;
        last[n - 1] = p;
    }
    *units = (struct units){first, last, n};
}

static uint32_t unit_of(const struct todo *t, bool span)
{
    return span ? t->span : t->item;
}

static const struct units *units_for(const struct residency *r, uint32_t device, bool span)
{
    return span ? &r->spans[device] : &r->items[device];
}

static uint32_t lead_for(const struct residency *r, bool span)
{
    return span ? r->knobs->lead_state : r->knobs->lead_items;
}

uint32_t residency_fetch_slot(const struct residency *r, tensor_id tensor, uint32_t pos)
{
    bool span = by_span(r->g->tensors[tensor].kind);
    uint32_t lead = lead_for(r, span);
    const struct todo *t = &r->todos[pos];
    if (lead == 0)
        return slot_before(pos);
    uint32_t unit = unit_of(t, span);
    return unit < lead ? 0 : slot_before(units_for(r, t->loc, span)->first[unit - lead]);
}

/* Returns the slot where a segment should be dropped. If the segment's value is spilled or sent, the drop
 * comes some spans or items later, so that no task has to wait for this move. */
static uint32_t wanted_drop_slot(const struct residency *r, uint32_t seg)
{
    const struct segment *s = &r->d->segments.at[seg];
    const struct life *life = &r->lives.at[seg];
    uint32_t slot = slot_after(life->last);
    bool span = by_span(r->g->tensors[s->tensor].kind);
    uint32_t lead = lead_for(r, span);
    if (life->produced == PLAN_NONE || lead == 0)
        return slot;
    const struct units *units = units_for(r, s->device, span);
    uint32_t unit = unit_of(&r->todos[life->produced], span) + lead;
    uint32_t held = unit < units->n ? slot_after(units->last[unit]) : 3 * r->n;
    return held > slot ? held : slot;
}

static uint32_t drop_slot(const struct residency *r, uint32_t seg)
{
    uint32_t slot = wanted_drop_slot(r, seg), limit = r->lives.at[seg].limit;
    return slot < limit ? slot : limit;
}

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
                /* Skip an empty extent. If K is smaller than W, a share of K can have no bytes. */
                if (of.begin < of.end)
                    vec_push(&r->uses, (struct use){op, op->tensor, op->access, p, of, SEGMENT_NONE});
            }
        }
    }
    r->use_first[r->n] = (uint32_t)r->uses.n;
}

/* Returns the indices of all uses, sorted by tensor and then by issue order. In the returned array, the uses
 * of tensor t start at index (*ret_first)[t]. */
static uint32_t *sort_uses(struct residency *r, uint32_t **ret_first)
{
    uint32_t n_tensors = r->g->n_tensors;
    uint32_t *first = arena_alloc_array(r->arena, (size_t)n_tensors + 2, sizeof *first);
    uint32_t *sorted = arena_alloc_array(r->arena, r->uses.n + 1, sizeof *sorted);
    for (size_t i = 0; i < r->uses.n; i++)
        first[r->uses.at[i].tensor + 2]++;
    for (uint32_t t = 1; t <= n_tensors; t++)
        first[t + 1] += first[t];
    for (size_t i = 0; i < r->uses.n; i++)
        sorted[first[r->uses.at[i].tensor + 1]++] = (uint32_t)i;
    *ret_first = first;
    return sorted;
}

/* ---- segments and moves ---- */

uint32_t residency_segment(struct residency *r, tensor_id tensor, uint32_t device, uint32_t pos,
                           struct extent of)
{
    vec_push(&r->d->segments,
             (struct segment){
                 .tensor = tensor, .device = device, .of = of, .start = SEGMENT_UNBORN, .end = NO_END});
    vec_push(&r->lives, (struct life){.last = pos, .produced = PLAN_NONE, .limit = UINT32_MAX});
    return (uint32_t)r->d->segments.n - 1;
}

static struct extent whole_extent(const struct residency *r, tensor_id tensor)
{
    return extent_whole(r->g, r->o->n_shares, tensor);
}

static uint32_t new_segment(struct residency *r, tensor_id tensor, uint32_t device, uint32_t pos)
{
    return residency_segment(r, tensor, device, pos, whole_extent(r, tensor));
}

/* Records that the value in segment `seg` is spilled or sent. `produced` is the position of the task that
 * wrote the value. */
static void mark_leaving(struct residency *r, uint32_t seg, uint32_t produced)
{
    struct life *life = &r->lives.at[seg];
    if (life->produced == PLAN_NONE || life->produced < produced)
        life->produced = produced;
}

void residency_spill(struct residency *r, uint32_t seg, uint32_t produced, struct extent of)
{
    tensor_id tensor = r->d->segments.at[seg].tensor;
    vec_push(&r->entries, (struct entry){slot_after(produced), ENTRY_SPILL, tensor, seg, SEGMENT_NONE, of});
    mark_leaving(r, seg, produced);
    r->lives.at[seg].spilled = true;
}

/* Spills the newest value of a tensor to the host, unless the host already has this value. */
static void bring_home(struct residency *r, struct value *v)
{
    if (v->at_host)
        return;
    assert(v->producer != SEGMENT_NONE);
    residency_spill(r, v->producer, v->produced, whole_extent(r, v->tensor));
    v->at_host = true;
}

/* Makes the previous copy of the tensor on `device` end at `slot` or earlier, because a device has at most
 * one copy of an unshared tensor. */
static void end_previous(struct residency *r, const struct value *v, uint32_t device, uint32_t slot)
{
    if (v->previous[device] != SEGMENT_NONE)
        r->lives.at[v->previous[device]].limit = slot;
}

static uint32_t later(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Records that a device fetches a value that it held earlier. The fetch could be avoided if the device had
 * more memory. */
static void note_reload(struct residency *r, struct value *v, uint32_t use, uint32_t from, uint32_t to)
{
    v->reload = (uint32_t)r->reloads.n;
    v->reloads++;
    vec_push(&r->reloads, (struct reload){use, from, to, 1});
}

/* Ends the bookkeeping for a value that is overwritten or not read any more. If the value was spilled only
 * for fetches that retention can avoid, records that retention also avoids the spill. */
static void settle_value(struct residency *r, const struct value *v)
{
    if (v->producer != SEGMENT_NONE && !v->home && v->reloads > 0 && v->reloads == v->fetches)
        r->reloads.at[v->reload].saves++;
}

/* Adds the fetch that creates segment `seg` in time for the task at position `pos`. */
static void fetch_value(struct residency *r, struct value *v, uint32_t seg, uint32_t pos)
{
    uint32_t device = r->todos[pos].loc, previous = v->previous[device];
    bring_home(r, v);
    v->fetches++;
    uint32_t slot = residency_fetch_slot(r, v->tensor, pos);
    if (v->produced != PLAN_NONE)
        slot = later(slot, slot_after(v->produced));
    if (previous != SEGMENT_NONE)
        slot = later(slot, slot_after(r->lives.at[previous].last));
    end_previous(r, v, device, slot);
    vec_push(&r->entries,
             (struct entry){slot, ENTRY_FETCH, pos, SEGMENT_NONE, seg, whole_extent(r, v->tensor)});
}

/* Returns whether the producer of an activation may send it directly to `device`. The receiver must have a
 * free buffer, because otherwise a fast producer could fill the receiver's memory. */
static bool can_send(struct residency *r, const struct value *v, uint32_t device, uint32_t pos)
{
    const struct graph_tensor *t = &r->g->tensors[v->tensor];
    if (v->producer == SEGMENT_NONE || r->d->segments.at[v->producer].device == device)
        return false;
    if (t->kind != TENSOR_X && t->kind != TENSOR_DX)
        return false;
    if (r->knobs->keep == KEEP_ALL)
        return true;
    /* A value that was already read is kept for the backward pass. Sent directly, it would occupy the
     * receiver's memory until then. */
    if (v->read)
        return false;
    tensor_id base = v->tensor - t->micro;
    if (base != r->direct_base) {
        r->direct_base = base;
        r->direct.n = 0;
    }
    uint32_t pending = 0;
    bounded_poll_steps(r->direct.n / 8);
    for (size_t i = 0; i < r->direct.n; i++)
        pending += r->direct.at[i].produced < v->produced && r->direct.at[i].read > v->produced;
    if (pending >= DIRECT_BUFFERS)
        return false;
    vec_push(&r->direct, (struct direct_send){v->produced, pos});
    return true;
}

static void send_value(struct residency *r, struct value *v, uint32_t seg, uint32_t device)
{
    end_previous(r, v, device, slot_before(v->produced));
    vec_push(&r->entries, (struct entry){slot_after(v->produced), ENTRY_SEND, v->tensor, v->producer, seg,
                                         whole_extent(r, v->tensor)});
    mark_leaving(r, v->producer, v->produced);
    r->lives.at[v->producer].sent = true;
}

/* Returns whether retention closes the gap before the operand `use`. If so, the device's copy stays until
 * this use. */
static bool gap_is_retained(const struct residency *r, uint32_t use)
{
    if (r->retained == NULL)
        return false;
    size_t low = 0, high = r->retained->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (r->retained->at[mid].use < use)
            low = mid + 1;
        else
            high = mid;
    }
    return low < r->retained->n && r->retained->at[low].use == use && r->retained->at[low].retain;
}

/* Returns whether a copy stays until the use at `pos`: if the keep rule says so, or if the copy would
 * otherwise be fetched again before it is dropped. The group state is tiny and always stays. */
bool residency_keeps(const struct residency *r, uint32_t seg, uint32_t pos)
{
    const struct todo *from = &r->todos[r->lives.at[seg].last], *to = &r->todos[pos];
    tensor_id tensor = r->d->segments.at[seg].tensor;
    if (r->knobs->keep == KEEP_ALL || r->g->tensors[tensor].kind == TENSOR_GROUP)
        return true;
    if (residency_fetch_slot(r, tensor, pos) <= wanted_drop_slot(r, seg))
        return true;
    if (by_span(r->g->tensors[tensor].kind))
        return from->span == to->span;
    return to->item <= from->item + 1;
}

void residency_new_value(struct value *v, uint32_t producer, uint32_t pos)
{
    v->producer = producer;
    v->produced = pos;
    v->pieces = 0;
    v->at_host = producer == SEGMENT_NONE;
    v->read = v->home = false;
    v->fetches = v->reloads = 0;
    v->reload = PLAN_NONE;
    for (uint32_t i = 0; i < DEVICE_MAX; i++)
        v->current[i] = SEGMENT_NONE;
}

static void use_on_host(struct residency *r, struct value *v, const struct use *u)
{
    if (u->access & ACCESS_READ) {
        bring_home(r, v);
        v->home = true;
    }
    if (u->access & ACCESS_WRITE) {
        settle_value(r, v);
        residency_new_value(v, SEGMENT_NONE, u->pos);
    }
}

/* Returns whether `u` writes the next piece of a value that tasks write piece by piece. All pieces of such a
 * value go into the same segment. */
static bool is_next_piece(const struct residency *r, const struct value *v, const struct use *u)
{
    uint32_t pieces = r->d->segments.at[v->producer].of.n_pieces;
    return u->access == ACCESS_WRITE && u->of.n_pieces < pieces && v->pieces % pieces != 0;
}

void residency_use(struct residency *r, struct value *v, struct use *u)
{
    const struct todo *t = &r->todos[u->pos];
    if (v->pieces > 0 && is_next_piece(r, v, u)) {
        assert(r->d->segments.at[v->producer].device == t->loc);
        u->segment = v->producer;
        r->lives.at[v->producer].last = v->produced = u->pos;
        v->pieces += u->of.n_pieces;
        return;
    }
    uint32_t had = v->current[t->loc], seg = had, use = (uint32_t)(u - r->uses.at);
    bool reads = u->access & ACCESS_READ;
    bool joins = reads && had != SEGMENT_NONE && (residency_keeps(r, had, u->pos) || gap_is_retained(r, use));
    if (!joins) {
        seg = new_segment(r, u->tensor, t->loc, u->pos);
        if (!reads) {
            end_previous(r, v, t->loc, slot_before(u->pos));
        } else if (can_send(r, v, t->loc, u->pos)) {
            send_value(r, v, seg, t->loc);
        } else {
            fetch_value(r, v, seg, u->pos);
            if (had != SEGMENT_NONE)
                note_reload(r, v, use, had, seg);
        }
        v->previous[t->loc] = seg;
    }
    u->segment = seg;
    r->lives.at[seg].last = u->pos;
    v->read |= reads;
    if ((u->access & ACCESS_WRITE) && t->kind != INSTR_REC) {
        settle_value(r, v);
        residency_new_value(v, seg, u->pos);
        v->pieces = u->of.n_pieces;
    }
    v->current[t->loc] = seg;
}

void residency_end(struct residency *r, uint32_t seg)
{
    const struct life *life = &r->lives.at[seg];
    uint32_t slot = drop_slot(r, seg);
    bool gone = life->produced == PLAN_NONE || slot > slot_after(life->produced);
    vec_push(&r->entries, (struct entry){slot, gone ? ENTRY_FREE : ENTRY_DROP, seg, seg, SEGMENT_NONE,
                                         r->d->segments.at[seg].of});
}

static bool all_on_one_device(const struct residency *r, const uint32_t *sorted, uint32_t n)
{
    uint32_t loc = r->todos[r->uses.at[sorted[0]].pos].loc;
    for (uint32_t i = 1; i < n; i++)
        if (r->todos[r->uses.at[sorted[i]].pos].loc != loc)
            return false;
    return loc != PLAN_HOST;
}

/* Assigns all uses of a persistent tensor to one segment, which stays on its device and is never dropped. */
static void stay_resident(struct residency *r, tensor_id tensor, const uint32_t *sorted, uint32_t n)
{
    const struct use *first = &r->uses.at[sorted[0]];
    uint32_t seg = new_segment(r, tensor, r->todos[first->pos].loc, first->pos);
    struct segment *s = &r->d->segments.at[seg];
    s->boundary = true;
    for (uint32_t i = 0; i < n; i++) {
        struct use *u = &r->uses.at[sorted[i]];
        u->segment = seg;
        s->dirty |= (u->access & ACCESS_WRITE) != 0;
    }
}

/* Returns whether a tensor of a layer's state never leaves its device. Must not be called for GROUP, which
 * has no layer, nor for a tensor that several devices use. */
static bool stays_on_device(const struct residency *r, const struct graph_tensor *t)
{
    return r->knobs->keep == KEEP_ALL || (r->knobs->pinned != NULL && r->knobs->pinned[t->layer]);
}

/* Starts the cycle with a copy that the previous cycle left on the device. Returns the number of the copy's
 * segment. */
static uint32_t begin_across(struct residency *r, struct value *v, const struct use *first)
{
    uint32_t device = r->todos[first->pos].loc;
    uint32_t seg = new_segment(r, v->tensor, device, first->pos);
    r->d->segments.at[seg].boundary = true;
    v->current[device] = v->previous[device] = seg;
    return seg;
}

/* Joins the last copy of the cycle with `seg`, the copy with which the next cycle starts. Returns true if
 * both are the same segment already. */
static bool end_across(struct residency *r, const struct value *v, uint32_t seg)
{
    uint32_t last = v->current[r->d->segments.at[seg].device];
    assert(last != SEGMENT_NONE);
    if (last == seg) {
        r->d->segments.at[seg].dirty = v->produced != PLAN_NONE;
        return true;
    }
    vec_push(&r->merged, last);
    vec_push(&r->merged, seg);
    return false;
}

/* Records a reload if the first fetch of the cycle gets a value that the device still had at the end of the
 * previous cycle. */
static void note_across(struct residency *r, const struct value *v, uint32_t use, uint32_t first_segment)
{
    uint32_t device = r->todos[r->uses.at[use].pos].loc;
    uint32_t last = device == PLAN_HOST ? SEGMENT_NONE : v->current[device];
    if (last == SEGMENT_NONE || !(r->uses.at[use].access & ACCESS_READ))
        return;
    bool all_the_time = last == first_segment;
    vec_push(&r->reloads,
             (struct reload){use, last, first_segment, all_the_time && v->produced != PLAN_NONE ? 2 : 1});
}

/* Plans all uses of one tensor. */
static void plan_tensor(struct residency *r, tensor_id tensor, const uint32_t *sorted, uint32_t n)
{
    const struct graph_tensor *t = &r->g->tensors[tensor];
    bounded_poll_steps(1 + n);
    if (n == 0)
        return;
    bool state = t->kind == TENSOR_W || t->kind == TENSOR_DW || t->kind == TENSOR_K || t->kind == TENSOR_B;
    if (r->o->n_shares > 1 && state) {
        residency_shared(r, tensor, sorted, n);
        return;
    }
    if (r->d->cyclic && t->persistent && all_on_one_device(r, sorted, n) && stays_on_device(r, t)) {
        stay_resident(r, tensor, sorted, n);
        return;
    }
    size_t first_segment = r->d->segments.n;
    struct value v = {.tensor = tensor};
    residency_new_value(&v, SEGMENT_NONE, PLAN_NONE);
    for (uint32_t i = 0; i < DEVICE_MAX; i++)
        v.previous[i] = SEGMENT_NONE;
    bool may_wrap = r->d->cyclic && t->persistent, across = may_wrap && gap_is_retained(r, sorted[0]);
    uint32_t wrapped = across ? begin_across(r, &v, &r->uses.at[sorted[0]]) : SEGMENT_NONE;
    for (uint32_t i = 0; i < n; i++) {
        struct use *u = &r->uses.at[sorted[i]];
        if (r->todos[u->pos].loc == PLAN_HOST)
            use_on_host(r, &v, u);
        else
            residency_use(r, &v, u);
    }
    v.home |= t->persistent || trainer_reads(t);
    settle_value(r, &v);
    if (may_wrap && !across)
        note_across(r, &v, sorted[0], (uint32_t)first_segment);
    bool for_good = across && end_across(r, &v, wrapped);
    bool others_read = for_good && !all_on_one_device(r, sorted, n); /* others fetch it from the host */
    if ((t->persistent && (!for_good || others_read)) || trainer_reads(t))
        bring_home(r, &v);
    if (others_read)
        r->d->segments.at[wrapped].dirty = false;
    for (uint32_t s = (uint32_t)first_segment; s < r->d->segments.n; s++) {
        bool goes_on = across && (for_good ? s == wrapped : s == r->merged.at[r->merged.n - 2]);
        if (!goes_on)
            residency_end(r, s);
    }
}

/* ---- the program ---- */

static int compare_entries(const void *pa, const void *pb)
{
    const struct entry *a = pa, *b = pb;
    if (a->slot != b->slot)
        return a->slot < b->slot ? -1 : 1;
    if (a->cls != b->cls)
        return a->cls < b->cls ? -1 : 1;
    if (a->seq != b->seq)
        return a->seq < b->seq ? -1 : 1;
    uint32_t ka = a->from != SEGMENT_NONE ? a->from : a->to, kb = b->from != SEGMENT_NONE ? b->from : b->to;
    return ka < kb ? -1 : ka > kb;
}

static void put_task(struct residency *r, uint32_t pos)
{
    draft_put_task(r->d, &r->todos[pos]);
    for (uint32_t i = r->use_first[pos]; i < r->use_first[pos + 1]; i++)
        draft_put_use(r->d, r->uses.at[i].op, r->uses.at[i].segment, r->uses.at[i].of);
}

/* Returns the lane on which a copy is dropped. This is usually the lane that uses the copy last, so that the
 * compute lane does not wait for a move. */
static enum lane drop_lane(const struct residency *r, const struct life *life)
{
    const struct todo *last = &r->todos[life->last];
    bool moved = life->spilled || life->sent;
    if (!moved || (life->produced != PLAN_NONE && last->loc == r->todos[life->produced].loc &&
                   last->item > r->todos[life->produced].item + 1))
        return LANE_COMPUTE;
    return life->spilled ? LANE_OUT : LANE_PEER;
}

static void put_entry(struct residency *r, const struct entry *e)
{
    switch (e->cls) {
    case ENTRY_SPILL:
        draft_put_spill(r->d, e->from, e->of);
        break;
    case ENTRY_SEND:
    case ENTRY_GATHER:
        draft_put_send(r->d, e->from, e->to, e->of);
        break;
    case ENTRY_FREE:
    case ENTRY_DROP:
        draft_put_drop(r->d, e->from, drop_lane(r, &r->lives.at[e->from]));
        break;
    case ENTRY_FETCH:
        draft_put_fetch(r->d, e->to, e->of);
        break;
    case ENTRY_TASK:
        put_task(r, e->from);
        break;
    }
}

static void write_program(struct residency *r)
{
    for (uint32_t p = 0; p < r->n; p++)
        vec_push(
            &r->entries,
            (struct entry){.slot = 3 * p + 1, .cls = ENTRY_TASK, .seq = p, .from = p, .to = SEGMENT_NONE});
    sort_array(r->entries.at, r->entries.n, sizeof *r->entries.at, compare_entries);
    for (size_t i = 0; i < r->entries.n; i++) {
        bounded_poll();
        put_entry(r, &r->entries.at[i]);
    }
    for (size_t i = 0; i < r->d->segments.n; i++) {
        struct segment *s = &r->d->segments.at[i];
        if (s->boundary && s->start == SEGMENT_UNBORN)
            s->start = 0;
        if (s->boundary && s->end == NO_END)
            s->end = (uint32_t)r->d->instrs.n - 1;
    }
}

/* Merges the pairs of segments in r->merged. Both segments of a pair are the same copy, before and after the
 * end of the cycle. Then renumbers the remaining segments without gaps. */
static void merge_segments(struct residency *r)
{
    uint32_t n = (uint32_t)r->d->segments.n, next = 0;
    if (r->merged.n == 0)
        return;
    uint32_t *becomes = arena_alloc_array(r->arena, n, sizeof *becomes);
    for (uint32_t s = 0; s < n; s++)
        becomes[s] = s;
    for (size_t i = 0; i < r->merged.n; i += 2)
        becomes[r->merged.at[i]] = r->merged.at[i + 1];
    uint32_t *number = arena_alloc_array(r->arena, n, sizeof *number);
    for (uint32_t s = 0; s < n; s++) {
        if (becomes[s] != s)
            continue;
        r->d->segments.at[next] = r->d->segments.at[s];
        r->lives.at[next] = r->lives.at[s];
        number[s] = next++;
    }
    for (uint32_t s = 0; s < n; s++)
        number[s] = number[becomes[s]];
    r->d->segments.n = r->lives.n = next;
    for (size_t i = 0; i < r->uses.n; i++)
        if (r->uses.at[i].segment != SEGMENT_NONE)
            r->uses.at[i].segment = number[r->uses.at[i].segment];
    for (size_t i = 0; i < r->reloads.n; i++) {
        r->reloads.at[i].from = number[r->reloads.at[i].from];
        r->reloads.at[i].to = number[r->reloads.at[i].to];
    }
    for (size_t i = 0; i < r->entries.n; i++) {
        struct entry *e = &r->entries.at[i];
        bool task = e->cls == ENTRY_TASK;
        if (!task && e->from != SEGMENT_NONE)
            e->from = number[e->from];
        if (!task && e->to != SEGMENT_NONE)
            e->to = number[e->to];
    }
}

static int compare_gaps(const void *pa, const void *pb)
{
    const struct gap *a = pa, *b = pb;
    return a->use < b->use ? -1 : a->use > b->use;
}

/* Converts the reloads into gaps. This has to wait until the program is complete, because only then are all
 * positions known. */
static void list_gaps(const struct residency *r, gap_list *ret)
{
    ret->n = 0;
    for (size_t i = 0; i < r->reloads.n; i++) {
        const struct reload *l = &r->reloads.at[i];
        const struct segment *from = &r->d->segments.at[l->from], *to = &r->d->segments.at[l->to];
        uint64_t bytes = segment_bytes(from);
        vec_push(ret, (struct gap){.use = l->use,
                                   .device = from->device,
                                   .from = from->end,
                                   .to = to->start,
                                   .bytes = bytes,
                                   .gain = l->saves * bytes});
    }
    if (ret->n > 1)
        sort_array(ret->at, ret->n, sizeof *ret->at, compare_gaps);
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
    r.spans = arena_alloc_array(r.arena, o->n_devices, sizeof *r.spans);
    r.items = arena_alloc_array(r.arena, o->n_devices, sizeof *r.items);
    for (uint32_t dev = 0; dev < o->n_devices; dev++) {
        collect_units(&r, &r.spans[dev], dev, true);
        collect_units(&r, &r.items[dev], dev, false);
    }
    collect_uses(&r);
    uint32_t *first, *sorted = sort_uses(&r, &first);
    for (uint32_t t = 0; t < r.g->n_tensors; t++)
        plan_tensor(&r, t, sorted + first[t], first[t + 1] - first[t]);
    merge_segments(&r);
    write_program(&r);
    if (ret_gaps != NULL)
        list_gaps(&r, ret_gaps);
    vec_free(&r.reloads);
    vec_free(&r.merged);
    vec_free(&r.uses);
    vec_free(&r.lives);
    vec_free(&r.entries);
    vec_free(&r.direct);
    arena_destroy(r.arena);
}
