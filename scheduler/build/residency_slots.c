/* Residency, when: in which slot a copy is fetched, how long it stays, and in which slot it is dropped.
 *
 * A copy belongs to a unit of its device: a span (one pass of a pack) or an item (one micro-batch's pass).
 * The copy stays from use to use within its unit. A fetch stands `lead` units before the use, and the drop of
 * a copy that is spilled or sent stands `lead` units after the write. So the moves overlap with the tasks of
 * these units.
 *
 * Example: device 0 runs span 0 (positions 0 to 3), span 1 (4 to 7) and span 2 (8 to 11), and lead_state is
 * 1. W that is first used at position 9 is fetched in slot 12, which is before position 4, where span 1
 * begins. dW that is complete at position 5 and then spilled is dropped in slot 35, which is after position
 * 11, where span 2 ends.
 */
#include "base/arena.h"
#include "base/bounded.h"
#include "scheduler/build/residency_private.h"

/* ---- units ---- */

/* Lists the spans or the items of a device, and renumbers them 0, 1, 2, .... In an eval order, the old
 * numbers have gaps. */
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

void residency_units(struct residency *r)
{
    uint32_t n = r->o->n_devices;
    r->spans = arena_alloc_array(r->arena, n, sizeof *r->spans);
    r->items = arena_alloc_array(r->arena, n, sizeof *r->items);
    for (uint32_t device = 0; device < n; device++) {
        collect_units(r, &r->spans[device], device, true);
        collect_units(r, &r->items[device], device, false);
    }
}

bool residency_by_span(const struct residency *r, tensor_id tensor, uint32_t pos)
{
    enum tensor_kind k = r->g->tensors[tensor].kind;
    if (k == TENSOR_K)
        return r->todos[pos].keep_k;
    return k == TENSOR_W || k == TENSOR_DW || k == TENSOR_B;
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

/* ---- slots ---- */

uint32_t residency_fetch_slot(const struct residency *r, tensor_id tensor, uint32_t pos)
{
    bool span = residency_by_span(r, tensor, pos);
    uint32_t lead = lead_for(r, span);
    const struct todo *t = &r->todos[pos];
    if (lead == 0)
        return slot_before(pos);
    uint32_t unit = unit_of(t, span);
    return unit < lead ? 0 : slot_before(units_for(r, t->loc, span)->first[unit - lead]);
}

/* Returns the slot in which a segment should be dropped. If its value is spilled or sent, the slot leaves
 * enough time for the move. */
static uint32_t wanted_drop_slot(const struct residency *r, uint32_t seg)
{
    const struct segment *s = &r->d->segments.at[seg];
    const struct life *life = &r->lives.at[seg];
    uint32_t slot = slot_after(life->last);
    bool span = residency_by_span(r, s->tensor, life->last);
    uint32_t lead = lead_for(r, span);
    if (life->produced == PLAN_NONE || lead == 0)
        return slot;
    const struct units *units = units_for(r, s->device, span);
    uint32_t unit = unit_of(&r->todos[life->produced], span) + lead;
    uint32_t held = unit < units->n ? slot_after(units->last[unit]) : 3 * r->n;
    return held > slot ? held : slot;
}

uint32_t residency_drop_slot(const struct residency *r, uint32_t seg)
{
    uint32_t slot = wanted_drop_slot(r, seg), limit = r->lives.at[seg].limit;
    return slot < limit ? slot : limit;
}

/* ---- how long a copy stays ---- */

/* The copy also stays if the next fetch would come before the drop. The state of a decision group is tiny, so
 * it always stays. */
bool residency_keeps(const struct residency *r, uint32_t seg, uint32_t pos)
{
    const struct todo *from = &r->todos[r->lives.at[seg].last], *to = &r->todos[pos];
    tensor_id tensor = r->d->segments.at[seg].tensor;
    if (r->knobs->keep == KEEP_ALL || r->g->tensors[tensor].kind == TENSOR_GROUP)
        return true;
    if (residency_fetch_slot(r, tensor, pos) <= wanted_drop_slot(r, seg))
        return true;
    if (residency_by_span(r, tensor, pos))
        return from->span == to->span;
    return to->item <= from->item + 1;
}

bool residency_retains(const struct residency *r, const struct operand_use *u)
{
    if (r->retained == NULL)
        return false;
    uint32_t use = (uint32_t)(u - r->uses.at);
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
