/* Residency, which: the copy that a task uses, and the move that creates this copy.
 *
 * The uses of a tensor are planned in issue order, and a struct value follows the newest value of the tensor
 * from use to use. A use on a device continues the device's copy if the copy still has the newest value and
 * stays until then. Otherwise a new copy begins in one of three ways:
 *
 *   the task itself writes the copy, without reading it
 *   the device that wrote the value sends it, if the tensor is an activation that goes to the next device
 *   the device fetches the value from the host; before the first fetch, the writer spills the value, once
 *
 * A write creates a new value and makes all other copies stale. A REC is different: it writes a value that
 * already exists, so it only adds a copy.
 */
#include <assert.h>

#include "base/bounded.h"
#include "scheduler/build/residency_private.h"

/* Maximum number of directly sent activations that wait at a device until a task uses them. Without this
 * limit, a fast sender would fill the memory of the receiver. */
#define DIRECT_BUFFERS 2

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

void residency_leaves(struct residency *r, uint32_t seg, uint32_t produced)
{
    struct life *life = &r->lives.at[seg];
    if (life->produced == PLAN_NONE || life->produced < produced)
        life->produced = produced;
}

void residency_spill(struct residency *r, uint32_t seg, uint32_t produced, struct extent of)
{
    tensor_id tensor = r->d->segments.at[seg].tensor;
    vec_push(&r->entries, (struct entry){slot_after(produced), ENTRY_SPILL, tensor, seg, SEGMENT_NONE, of});
    residency_leaves(r, seg, produced);
    r->lives.at[seg].spilled = true;
}

void residency_end(struct residency *r, uint32_t seg)
{
    const struct life *life = &r->lives.at[seg];
    uint32_t slot = residency_drop_slot(r, seg);
    bool gone = life->produced == PLAN_NONE || slot > slot_after(life->produced);
    vec_push(&r->entries, (struct entry){slot, gone ? ENTRY_FREE : ENTRY_DROP, seg, seg, SEGMENT_NONE,
                                         r->d->segments.at[seg].of});
}

/* ---- values ---- */

/* Starts a new value: the task at position `pos` writes it into segment `producer`. All other copies of the
 * tensor are now out of date. */
static void start_value(struct value *v, uint32_t producer, uint32_t pos)
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

struct value residency_first_value(tensor_id tensor, struct extent of)
{
    struct value v = {.tensor = tensor, .of = of};
    start_value(&v, SEGMENT_NONE, PLAN_NONE);
    for (uint32_t i = 0; i < DEVICE_MAX; i++)
        v.previous[i] = SEGMENT_NONE;
    return v;
}

void residency_bring_home(struct residency *r, struct value *v)
{
    if (v->at_host)
        return;
    assert(v->producer != SEGMENT_NONE);
    residency_spill(r, v->producer, v->produced, v->of);
    v->at_host = true;
}

void residency_settle(struct residency *r, const struct value *v)
{
    if (v->producer != SEGMENT_NONE && !v->home && v->reloads > 0 && v->reloads == v->fetches)
        r->reloads.at[v->reload].saves++;
}

void residency_use_on_host(struct residency *r, struct value *v, const struct operand_use *u)
{
    if (u->access & ACCESS_READ) {
        residency_bring_home(r, v);
        v->home = true;
    }
    if (u->access & ACCESS_WRITE) {
        residency_settle(r, v);
        start_value(v, SEGMENT_NONE, u->pos);
    }
}

/* ---- a new copy ---- */

/* Makes sure that the previous copy of the tensor on `device` is dropped in `slot` or earlier, because a
 * device has at most one copy. */
static void end_previous(struct residency *r, const struct value *v, uint32_t device, uint32_t slot)
{
    if (v->previous[device] != SEGMENT_NONE)
        r->lives.at[v->previous[device]].limit = slot;
}

/* Plans the fetch that creates segment `seg` for use `u`. The device's earlier copy of the tensor is dropped
 * before the fetch. */
static void fetch_value(struct residency *r, struct value *v, uint32_t seg, const struct operand_use *u)
{
    residency_bring_home(r, v);
    v->fetches++;
    uint32_t slot = residency_fetch_slot(r, v->tensor, u->pos);
    if (v->produced != PLAN_NONE && slot < slot_after(v->produced))
        slot = slot_after(v->produced);
    end_previous(r, v, r->todos[u->pos].loc, slot);
    vec_push(&r->entries, (struct entry){slot, ENTRY_FETCH, u->pos, SEGMENT_NONE, seg, v->of});
}

/* Records a reload: a device fetches a value into segment `to`, although it held the same value earlier in
 * segment `from`. */
static void note_reload(struct residency *r, struct value *v, const struct operand_use *u, uint32_t from,
                        uint32_t to)
{
    v->reload = (uint32_t)r->reloads.n;
    v->reloads++;
    vec_push(&r->reloads, (struct reload){(uint32_t)(u - r->uses.at), from, to, 1});
}

/* Reserves a buffer of the receiver for a direct send, from the write of the activation until the use at
 * `pos`. Returns false if all buffers are in use. */
static bool take_buffer(struct residency *r, const struct value *v, uint32_t pos)
{
    tensor_id base = v->tensor - r->g->tensors[v->tensor].micro;
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

/* Returns whether an activation may be sent directly to `device`, from the device that wrote it, for the use
 * at `pos`. */
static bool can_send(struct residency *r, const struct value *v, uint32_t device, uint32_t pos)
{
    enum tensor_kind kind = r->g->tensors[v->tensor].kind;
    if (v->producer == SEGMENT_NONE || r->d->segments.at[v->producer].device == device)
        return false;
    if (kind != TENSOR_Y && kind != TENSOR_DX)
        return false;
    if (r->knobs->keep == KEEP_ALL)
        return true;
    /* If some task has already read the value, the use at `pos` is much later, in the backward pass. A direct
     * send would occupy the receiver's memory until then. */
    return !v->read && take_buffer(r, v, pos);
}

static void send_value(struct residency *r, struct value *v, uint32_t seg, uint32_t device)
{
    end_previous(r, v, device, slot_before(v->produced));
    vec_push(&r->entries,
             (struct entry){slot_after(v->produced), ENTRY_SEND, v->tensor, v->producer, seg, v->of});
    residency_leaves(r, v->producer, v->produced);
    r->lives.at[v->producer].sent = true;
}

/* Creates and returns a segment for use `u`, and plans how it gets its value. `had` is an earlier segment
 * with the same value on this device, or SEGMENT_NONE. */
static uint32_t begin_copy(struct residency *r, struct value *v, const struct operand_use *u, uint32_t had)
{
    uint32_t device = r->todos[u->pos].loc;
    uint32_t seg = residency_segment(r, v->tensor, device, u->pos, v->of);
    if (!(u->access & ACCESS_READ)) {
        end_previous(r, v, device, slot_before(u->pos));
    } else if (can_send(r, v, device, u->pos)) {
        send_value(r, v, seg, device);
    } else {
        fetch_value(r, v, seg, u);
        if (had != SEGMENT_NONE)
            note_reload(r, v, u, had, seg);
    }
    v->previous[device] = seg;
    return seg;
}

/* ---- uses on a device ---- */

/* Returns whether `u` writes the next piece of a value that several tasks write piece by piece into one
 * segment. */
static bool is_next_piece(const struct residency *r, const struct value *v, const struct operand_use *u)
{
    if (v->pieces == 0)
        return false;
    uint32_t pieces = r->d->segments.at[v->producer].of.n_pieces;
    return u->access == ACCESS_WRITE && u->of.n_pieces < pieces && v->pieces % pieces != 0;
}

static void write_next_piece(struct residency *r, struct value *v, struct operand_use *u)
{
    assert(r->d->segments.at[v->producer].device == r->todos[u->pos].loc);
    u->segment = v->producer;
    r->lives.at[v->producer].last = v->produced = u->pos;
    v->pieces += u->of.n_pieces;
}

/* Returns whether use `u` can read the device's copy in segment `seg`, because the copy stays on the device
 * until then. */
static bool continues(const struct residency *r, uint32_t seg, const struct operand_use *u)
{
    return (u->access & ACCESS_READ) && seg != SEGMENT_NONE &&
           (residency_keeps(r, seg, u->pos) || residency_retains(r, u));
}

void residency_use(struct residency *r, struct value *v, struct operand_use *u)
{
    const struct todo *t = &r->todos[u->pos];
    if (is_next_piece(r, v, u)) {
        write_next_piece(r, v, u);
        return;
    }
    uint32_t had = v->current[t->loc];
    uint32_t seg = continues(r, had, u) ? had : begin_copy(r, v, u, had);
    u->segment = seg;
    r->lives.at[seg].last = u->pos;
    v->read |= (u->access & ACCESS_READ) != 0;
    if ((u->access & ACCESS_WRITE) && t->kind != INSTR_REC) {
        residency_settle(r, v);
        start_value(v, seg, u->pos);
        v->pieces = u->of.n_pieces;
    }
    v->current[t->loc] = seg;
}
