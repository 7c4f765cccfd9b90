/* Residency, the program: writes the draft from the tasks and from the moves and drops that were collected.
 *
 * The entries are sorted by slot. Within a slot, memory is freed before memory is needed: drops and spills
 * come before fetches, and the task comes last. Only now do instructions have positions, so the gaps, which
 * name positions, are listed at the end.
 */
#include "base/arena.h"
#include "base/bounded.h"
#include "base/sort.h"
#include "scheduler/build/residency_private.h"

/* ---- segments that are one copy ---- */

/* Turns each pair in r->joined into one segment, and closes the gaps in the numbers. Sets number[i] to the
 * new number of segment i. */
static void renumber_segments(struct residency *r, uint32_t *number)
{
    uint32_t n = (uint32_t)r->d->segments.n, next = 0;
    uint32_t *becomes = arena_alloc_array(r->arena, n, sizeof *becomes);
    for (uint32_t s = 0; s < n; s++)
        becomes[s] = s;
    for (size_t i = 0; i < r->joined.n; i++)
        becomes[r->joined.at[i].last] = r->joined.at[i].first;
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
}

static void renumber(const uint32_t *number, uint32_t *segment)
{
    if (*segment != SEGMENT_NONE)
        *segment = number[*segment];
}

/* Merges the two segments of each pair in r->joined into one segment. */
static void merge_segments(struct residency *r)
{
    if (r->joined.n == 0)
        return;
    uint32_t *number = arena_alloc_array(r->arena, r->d->segments.n, sizeof *number);
    renumber_segments(r, number);
    for (size_t i = 0; i < r->uses.n; i++)
        renumber(number, &r->uses.at[i].segment);
    for (size_t i = 0; i < r->reloads.n; i++) {
        renumber(number, &r->reloads.at[i].from);
        renumber(number, &r->reloads.at[i].to);
    }
    for (size_t i = 0; i < r->entries.n; i++) {
        renumber(number, &r->entries.at[i].from);
        renumber(number, &r->entries.at[i].to);
    }
}

/* ---- instructions ---- */

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

/* Returns whether entry `e` drops a copy so late that the move of the copy has surely ended: more than one
 * item lies between the task that wrote the copy and the drop. */
static bool drops_late(const struct residency *r, const struct entry *e, const struct life *life)
{
    if (life->produced == PLAN_NONE)
        return false;
    const struct segment *s = &r->d->segments.at[e->from];
    const struct units *items = &r->items[s->device];
    uint32_t item = r->todos[life->produced].item;
    if (r->todos[life->last].loc == s->device && r->todos[life->last].item > item + 1)
        return true;
    return !residency_by_span(r, s->tensor, life->produced) && item + 2 < items->n &&
           e->slot > slot_before(items->first[item + 2]);
}

/* Returns the lane (stream of the device) on which entry `e` drops a copy: a lane on which the drop does not
 * make the compute lane wait for a move. On the lane of its own move, a late drop would come after all moves
 * that were added since, and the next user of the memory would wait for them. */
static enum lane drop_lane(const struct residency *r, const struct entry *e)
{
    const struct life *life = &r->lives.at[e->from];
    bool moved = life->spilled || life->sent;
    if (!moved || drops_late(r, e, life))
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
        draft_put_drop(r->d, e->from, drop_lane(r, e));
        break;
    case ENTRY_FETCH:
        draft_put_fetch(r->d, e->to, e->of);
        break;
    case ENTRY_TASK:
        put_task(r, e->from);
        break;
    }
}

void residency_write(struct residency *r)
{
    merge_segments(r);
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

/* ---- gaps ---- */

static int compare_gaps(const void *pa, const void *pb)
{
    const struct gap *a = pa, *b = pb;
    return a->use < b->use ? -1 : a->use > b->use;
}

/* Makes a gap from each reload. A gap names positions of instructions, so the program must be complete before
 * this call. */
void residency_gaps(const struct residency *r, gap_list *ret)
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
