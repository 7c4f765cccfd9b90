/* Residency of state that several devices share, in data-parallel orders: n devices compute a layer, and each
 * owns one share of its state (struct order).
 *
 * W and B come in rounds. A round is the set of copies that all devices have for one pass. Each owner fetches
 * its share into its own copy and sends it to the other copies, so the host is read only once. If the layer
 * is pinned, nothing is fetched: each owner holds its share all the time, in a segment besides the copy for
 * the pass.
 *
 * dW of a replica is written as a whole on the device that computes the replica. When it is complete, the
 * device sends each share to the share's owner. The owner adds up all replicas, in the memory of replica 0's
 * share. Then it spills the sum, or updates its shares of W and K with it.
 *
 * K is only used by updates. The owner fetches its share for the update and spills it afterwards, unless the
 * layer is pinned.
 */
#include <assert.h>

#include "base/arena.h"
#include "scheduler/build/residency_private.h"

/* The tensor being planned. */
struct shared_tensor {
    struct residency *r;
    tensor_id tensor;
    uint32_t layer;
    uint32_t n;             /* number of shares */
    const uint32_t *owners; /* by share: the device that owns it */
};

/* Returns the share that `device` owns. */
static uint32_t share_of(const struct shared_tensor *s, uint32_t device)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->owners[i] == device)
            return i;
    assert(!"a device that does not compute the layer");
    return 0;
}

static struct extent piece_of(const struct shared_tensor *s, uint32_t piece)
{
    return extent_piece(s->r->g, s->n, s->tensor, piece);
}

static bool is_empty(struct extent e)
{
    return e.begin == e.end;
}

static bool is_pinned(const struct shared_tensor *s)
{
    const bool *pinned = s->r->knobs->pinned;
    return s->r->d->cyclic && pinned != NULL && pinned[s->layer];
}

/* Adds an entry with these values to the list of future instructions. Does nothing if `of` has no bytes. */
static void put(struct residency *r, uint32_t slot, enum entry_class cls, uint32_t seq, uint32_t from,
                uint32_t to, struct extent of)
{
    if (!is_empty(of))
        vec_push(&r->entries, (struct entry){slot, cls, seq, from, to, of});
}

/* Adds a segment for a piece of state that never leaves its device. Returns the number of the segment. */
static uint32_t pin_piece(struct shared_tensor *s, uint32_t device, struct extent of, bool dirty)
{
    uint32_t seg = residency_segment(s->r, s->tensor, device, 0, of);
    s->r->d->segments.at[seg].boundary = true;
    s->r->d->segments.at[seg].dirty = dirty;
    return seg;
}

static void fetch_piece(struct shared_tensor *s, uint32_t seg, uint32_t pos, struct extent of)
{
    put(s->r, residency_fetch_slot(s->r, s->tensor, pos), ENTRY_FETCH, pos, SEGMENT_NONE, seg, of);
}

/* ---- W and B ---- */

/* A round: the copies of W or B that all devices have for one pass. Element i of each array belongs to the
 * device that owns share i. */
struct round {
    /* The device's copy of W or B in this pass, or SEGMENT_NONE if the device has none. */
    uint32_t *segment;
    uint32_t *pos;  /* position of its first use */
    uint32_t *slot; /* slot at which it is created */
    /* The same device's copy of W or B in the pass before, or SEGMENT_NONE if it had none. */
    uint32_t *before;
};

/* All rounds of a cycle. */
struct rounds {
    VEC(struct round) at;
    uint32_t *count; /* by share: number of rounds begun */
    /* By share: the copy (segment) that the share's owner has in its latest pass. */
    uint32_t *current;
    /* By share: the segment of the piece that stays on its owner. NULL if the layer is not pinned. */
    uint32_t *pinned;
};

/* Returns the next round, which is the set of copies for one pass, of the device that owns `share`. Each
 * device counts its rounds separately, because devices reach a pass at different times. */
static struct round *next_round(struct shared_tensor *s, struct rounds *rs, uint32_t share)
{
    uint32_t k = rs->count[share]++;
    if (k == rs->at.n) {
        struct arena *a = s->r->arena;
        struct round new = {
            arena_alloc_array(a, s->n, sizeof *new.segment), arena_alloc_array(a, s->n, sizeof *new.pos),
            arena_alloc_array(a, s->n, sizeof *new.slot), arena_alloc_array(a, s->n, sizeof *new.before)};
        for (uint32_t i = 0; i < s->n; i++)
            new.segment[i] = SEGMENT_NONE;
        vec_push(&rs->at, new);
    }
    return &rs->at.at[k];
}

/* Plans a read of W or B by a task. The task uses the device's current copy. If that copy has been dropped,
 * the device gets a new copy, together with the other devices. */
static void read_weights(struct shared_tensor *s, struct rounds *rs, struct use *u)
{
    struct residency *r = s->r;
    uint32_t device = r->todos[u->pos].loc, share = share_of(s, device), seg = rs->current[share];
    if (seg == SEGMENT_NONE || !residency_keeps(r, seg, u->pos)) {
        struct round *round = next_round(s, rs, share);
        uint32_t slot = residency_fetch_slot(r, s->tensor, u->pos);
        round->before[share] = seg;
        if (seg != SEGMENT_NONE) {
            uint32_t gone = slot_after(r->lives.at[seg].last);
            slot = slot > gone ? slot : gone;
            r->lives.at[seg].limit = slot;
        }
        seg = residency_segment(r, s->tensor, device, u->pos, extent_whole(r->g, s->n, s->tensor));
        round->segment[share] = rs->current[share] = seg;
        round->pos[share] = u->pos;
        round->slot[share] = slot;
    }
    u->segment = seg;
    r->lives.at[seg].last = u->pos;
}

/* Plans the update of one share of W by its owner. The update uses the pinned piece of W or the device's
 * current copy. If the device has neither, the piece is fetched. */
static void update_weights(struct shared_tensor *s, struct rounds *rs, struct use *u)
{
    struct residency *r = s->r;
    uint32_t device = r->todos[u->pos].loc, share = share_of(s, device), seg = rs->current[share];
    if (rs->pinned != NULL) {
        u->segment = rs->pinned[share];
        return;
    }
    if (seg == SEGMENT_NONE || !residency_keeps(r, seg, u->pos)) {
        seg = residency_segment(r, s->tensor, device, u->pos, u->of);
        fetch_piece(s, seg, u->pos, u->of);
    }
    u->segment = seg;
    r->lives.at[seg].last = u->pos;
    residency_spill(r, seg, u->pos, u->of);
}

/* Makes all devices create their copies for a pass as early as the first device needs its copy, so that they
 * can send pieces to each other. A device that still uses its previous copy starts later. */
static void begin_together(struct shared_tensor *s, struct round *round)
{
    uint32_t need = UINT32_MAX;
    for (uint32_t i = 0; i < s->n; i++)
        if (slot_before(round->pos[i]) < need)
            need = slot_before(round->pos[i]);
    for (uint32_t i = 0; i < s->n; i++) {
        struct life *before = round->before[i] != SEGMENT_NONE ? &s->r->lives.at[round->before[i]] : NULL;
        uint32_t least = before != NULL && slot_after(before->last) > need ? slot_after(before->last) : need;
        if (round->slot[i] <= least)
            continue;
        round->slot[i] = least;
        if (before != NULL)
            before->limit = least;
    }
}

/* Adds the moves for one pass: each owner sends its piece of the tensor to all other devices. A device that
 * would get a piece too late fetches the piece from the host instead. */
static void gather(struct shared_tensor *s, const struct rounds *rs, const struct round *round)
{
    struct residency *r = s->r;
    for (uint32_t from = 0; from < s->n; from++) {
        struct extent of = piece_of(s, from);
        uint32_t source = rs->pinned != NULL ? rs->pinned[from] : round->segment[from];
        if (rs->pinned == NULL)
            put(r, round->slot[from], ENTRY_FETCH, round->pos[from], SEGMENT_NONE, source, of);
        /* Each owner starts with a different receiver, so that not all owners send to the same device at
         * once. */
        for (uint32_t i = 1; i <= s->n; i++) {
            uint32_t to = (from + i) % s->n, slot = round->slot[to];
            if (rs->pinned == NULL && slot < round->slot[from])
                slot = round->slot[from];
            if ((rs->pinned == NULL && to == from) || round->segment[to] == SEGMENT_NONE)
                continue;
            if (rs->pinned == NULL &&
                (slot > slot_before(round->pos[to]) || slot >= r->lives.at[source].limit)) {
                put(r, round->slot[to], ENTRY_FETCH, round->pos[to], SEGMENT_NONE, round->segment[to], of);
                continue;
            }
            put(r, slot, ENTRY_GATHER, round->pos[to], source, round->segment[to], of);
            if (rs->pinned == NULL && (slot + 2) / 3 > r->lives.at[source].last)
                r->lives.at[source].last = (slot + 2) / 3; /* it must live until then */
        }
    }
}

/* Adds fetches by which every device gets the whole tensor from the host. This is necessary if some device
 * has no copy for this pass, because then it cannot send its piece. */
static void fetch_alone(struct shared_tensor *s, const struct round *round)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (round->segment[i] != SEGMENT_NONE)
            put(s->r, round->slot[i], ENTRY_FETCH, round->pos[i], SEGMENT_NONE, round->segment[i],
                extent_whole(s->r->g, s->n, s->tensor));
}

static bool has_all(const struct shared_tensor *s, const struct round *round)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (round->segment[i] == SEGMENT_NONE)
            return false;
    return true;
}

/* Plans all uses of W or B. */
static void plan_weights(struct shared_tensor *s, const uint32_t *sorted, uint32_t n)
{
    struct residency *r = s->r;
    struct rounds rs = {.count = arena_alloc_array(r->arena, s->n, sizeof *rs.count),
                        .current = arena_alloc_array(r->arena, s->n, sizeof *rs.current)};
    uint32_t first = (uint32_t)r->d->segments.n;
    if (is_pinned(s)) {
        rs.pinned = arena_alloc_array(r->arena, s->n, sizeof *rs.pinned);
        for (uint32_t i = 0; i < s->n; i++)
            rs.pinned[i] = is_empty(piece_of(s, i)) ? SEGMENT_NONE
                                                    : pin_piece(s, s->owners[i], piece_of(s, i),
                                                                r->g->tensors[s->tensor].writes_per_step > 0);
    }
    for (uint32_t i = 0; i < s->n; i++)
        rs.current[i] = SEGMENT_NONE;
    for (uint32_t i = 0; i < n; i++) {
        struct use *u = &r->uses.at[sorted[i]];
        if (r->todos[u->pos].loc == PLAN_HOST)
            /* The host updates these weights itself, so it has their newest value and needs no move. */
            continue;
        if (u->access & ACCESS_WRITE)
            update_weights(s, &rs, u);
        else
            read_weights(s, &rs, u);
    }
    for (size_t k = 0; k < rs.at.n; k++)
        if (!r->o->alone && has_all(s, &rs.at.at[k]))
            begin_together(s, &rs.at.at[k]);
    for (size_t k = 0; k < rs.at.n; k++) {
        bool alone = r->o->alone || !has_all(s, &rs.at.at[k]);
        if (alone && rs.pinned == NULL)
            fetch_alone(s, &rs.at.at[k]);
        else
            gather(s, &rs, &rs.at.at[k]);
    }
    for (uint32_t seg = first; seg < r->d->segments.n; seg++)
        if (!r->d->segments.at[seg].boundary)
            residency_end(r, seg);
    vec_free(&rs.at);
}

/* ---- dW ---- */

/* The sum of all replicas' gradients, but only the share of one owner. The sum is on that owner's device. */
struct share_sum {
    /* The segment with the sum. SEGMENT_NONE if the owner does not have the sum yet. */
    uint32_t segment;
    uint32_t produced; /* position of its last write */
    bool at_host;
};

/* Brings a share of the gradient to its owner. No send is needed if the owner computed this gradient
 * itself. */
static void settle_sum(struct shared_tensor *s, const struct value *v, struct share_sum *sum,
                       const struct use *u)
{
    struct residency *r = s->r;
    uint32_t device = r->todos[u->pos].loc;
    if (sum->segment != SEGMENT_NONE)
        return;
    assert(v->producer != SEGMENT_NONE);
    sum->produced = v->produced;
    if (r->d->segments.at[v->producer].device == device) {
        sum->segment = v->producer;
        return;
    }
    sum->segment = residency_segment(r, s->tensor, device, u->pos, u->of);
    put(r, slot_after(v->produced), ENTRY_SEND, s->tensor, v->producer, sum->segment, u->of);
    /* The sender's copy must stay until the send is done. Setting life->produced makes the drop of this copy
     * wait for the send. */
    struct life *life = &r->lives.at[v->producer];
    if (life->produced == PLAN_NONE || life->produced < v->produced)
        life->produced = v->produced;
}

static void bring_sums_home(struct shared_tensor *s, struct share_sum *sums)
{
    for (uint32_t i = 0; i < s->n; i++) {
        struct extent of = piece_of(s, i);
        if (is_empty(of) || sums[i].at_host)
            continue;
        residency_spill(s->r, sums[i].segment, sums[i].produced, of);
        sums[i].at_host = true;
    }
}

/* Plans all uses of the gradient dW of one replica: its writes, the sends of its shares, and the sums. */
static void plan_gradient(struct shared_tensor *s, const uint32_t *sorted, uint32_t n)
{
    struct residency *r = s->r;
    uint32_t first = (uint32_t)r->d->segments.n;
    struct share_sum *sums = arena_alloc_array(r->arena, s->n, sizeof *sums);
    struct value v = {.tensor = s->tensor};
    residency_new_value(&v, SEGMENT_NONE, PLAN_NONE);
    for (uint32_t i = 0; i < DEVICE_MAX; i++)
        v.previous[i] = SEGMENT_NONE;
    for (uint32_t i = 0; i < s->n; i++)
        sums[i].segment = SEGMENT_NONE;
    for (uint32_t i = 0; i < n; i++) {
        struct use *u = &r->uses.at[sorted[i]];
        const struct todo *t = &r->todos[u->pos];
        if (t->loc == PLAN_HOST) {
            bring_sums_home(s, sums);
            continue;
        }
        if (t->share == SHARE_ALL) {
            residency_use(r, &v, u);
            continue;
        }
        struct share_sum *sum = &sums[t->share];
        settle_sum(s, &v, sum, u);
        u->segment = sum->segment;
        r->lives.at[sum->segment].last = u->pos;
        if (u->access & ACCESS_WRITE)
            sum->produced = u->pos;
    }
    for (uint32_t seg = first; seg < r->d->segments.n; seg++)
        residency_end(r, seg);
}

/* ---- K ---- */

/* Plans all uses of the optimizer state K. Only updates use K, and each update handles one share. */
static void plan_moments(struct shared_tensor *s, const uint32_t *sorted, uint32_t n)
{
    struct residency *r = s->r;
    for (uint32_t i = 0; i < n; i++) {
        struct use *u = &r->uses.at[sorted[i]];
        uint32_t device = r->todos[u->pos].loc;
        if (device == PLAN_HOST)
            continue;
        if (is_pinned(s)) {
            u->segment = pin_piece(s, device, u->of, true);
            continue;
        }
        u->segment = residency_segment(r, s->tensor, device, u->pos, u->of);
        fetch_piece(s, u->segment, u->pos, u->of);
        residency_spill(r, u->segment, u->pos, u->of);
        residency_end(r, u->segment);
    }
}

void residency_shared(struct residency *r, tensor_id tensor, const uint32_t *sorted, uint32_t n)
{
    const struct graph_tensor *t = &r->g->tensors[tensor];
    struct shared_tensor s = {r, tensor, t->layer, r->o->n_shares,
                              r->o->owners + (size_t)t->layer * r->o->n_shares};
    if (t->kind == TENSOR_DW)
        plan_gradient(&s, sorted, n);
    else if (t->kind == TENSOR_K)
        plan_moments(&s, sorted, n);
    else
        plan_weights(&s, sorted, n);
}
