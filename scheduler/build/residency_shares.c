/* Residency of state that several devices share, in data-parallel orders: n devices compute a layer, and each
 * owns one share of its state (struct order).
 *
 * W and B come in rounds. A round is the set of copies that all devices have for one pass. Each owner fetches
 * its share into its own copy and sends it to the other copies, so the host is read only once. An update
 * makes a new version of W, and the passes of the next training step need new rounds. If the layer
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
#include <string.h>

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

/* Returns whether each device keeps its share of the layer's state all the time. A layer with statistics is
 * never pinned here, because the host updates its whole state. */
static bool is_pinned(const struct shared_tensor *s)
{
    const bool *pinned = s->r->knobs->pinned;
    return s->r->d->cyclic && pinned != NULL && pinned[s->layer] && !s->r->g->layers[s->layer].folds;
}

/* Plans a move or a drop by adding an entry. The arguments are the fields of the entry. Does nothing if the
 * extent `of` has no bytes. */
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

/* ---- W and B ---- */

/* One round: the copies of W or B for the same pass on all devices. In each array, element i belongs to the
 * device that owns share i. */
struct round {
    /* The version of the tensor in these copies. Among the rounds of this version, this is number `nth`,
     * counted from 0. */
    uint32_t version, nth;
    /* The device's copy of W or B for this pass. SEGMENT_NONE if it has none. */
    uint32_t *segment;
    uint32_t *pos;  /* position of its first use */
    uint32_t *slot; /* slot at which it is created */
    /* The copy of W or B that the device had for its previous pass. SEGMENT_NONE if the device had no such
     * copy. */
    uint32_t *before;
};

/* All rounds of a cycle. */
struct rounds {
    VEC(struct round) at;
    /* count[i] is the number of rounds that the owner of share i has begun with the current version. */
    uint32_t *count;
    uint32_t *version; /* by share: version of the current copy */
    /* Position of the last update so far, or PLAN_NONE. The update makes a new version, so copies of this
     * version are created after it. */
    uint32_t updated;
    /* current[i] is the newest copy of the tensor on the owner of share i, as a segment. */
    uint32_t *current;
    /* pinned[i] is the segment that holds share i on its owner all the time. NULL if the layer is not
     * pinned. */
    uint32_t *pinned;
};

/* Returns the next round of the device that owns `share`. Each device counts its own rounds, because devices
 * reach a pass at different times. */
static struct round *next_round(struct shared_tensor *s, struct rounds *rs, uint32_t share, uint32_t version)
{
    if (rs->version[share] != version)
        rs->count[share] = 0;
    rs->version[share] = version;
    const uint32_t nth = rs->count[share]++;
    for (size_t k = 0; k < rs->at.n; k++)
        if (rs->at.at[k].version == version && rs->at.at[k].nth == nth)
            return &rs->at.at[k];
    struct arena *a = s->r->arena;
    struct round new = {version,
                        nth,
                        arena_alloc_array(a, s->n, sizeof *new.segment),
                        arena_alloc_array(a, s->n, sizeof *new.pos),
                        arena_alloc_array(a, s->n, sizeof *new.slot),
                        arena_alloc_array(a, s->n, sizeof *new.before)};
    for (uint32_t i = 0; i < s->n; i++)
        new.segment[i] = SEGMENT_NONE;
    vec_push(&rs->at, new);
    return &rs->at.at[rs->at.n - 1];
}

/* Returns the slot in which to create a copy for the use at `pos`: early, but not before the last update of
 * the weights is done. */
static uint32_t creation_slot(const struct shared_tensor *s, const struct rounds *rs, uint32_t pos)
{
    uint32_t slot = residency_fetch_slot(s->r, s->tensor, pos);
    uint32_t least = rs->updated != PLAN_NONE ? slot_after(rs->updated) : 0;
    return slot > least ? slot : least;
}

/* Plans a read of W or B. The task uses the device's current copy if this copy still exists and has the right
 * version. */
static void read_weights(struct shared_tensor *s, struct rounds *rs, struct operand_use *u)
{
    struct residency *r = s->r;
    uint32_t device = r->todos[u->pos].loc, share = share_of(s, device), seg = rs->current[share];
    if (seg == SEGMENT_NONE || rs->version[share] != u->op->read_version ||
        !residency_keeps(r, seg, u->pos)) {
        struct round *round = next_round(s, rs, share, u->op->read_version);
        uint32_t slot = creation_slot(s, rs, u->pos);
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

/* Plans the update of one share of W on the device that owns the share. The device fetches the share if it
 * has no usable copy. */
static void update_weights(struct shared_tensor *s, struct rounds *rs, struct operand_use *u)
{
    struct residency *r = s->r;
    uint32_t device = r->todos[u->pos].loc, share = share_of(s, device), seg = rs->current[share];
    if (rs->pinned != NULL) {
        u->segment = rs->pinned[share];
        return;
    }
    if (seg == SEGMENT_NONE || rs->version[share] != u->op->read_version ||
        !residency_keeps(r, seg, u->pos)) {
        seg = residency_segment(r, s->tensor, device, u->pos, u->of);
        put(r, creation_slot(s, rs, u->pos), ENTRY_FETCH, u->pos, SEGMENT_NONE, seg, u->of);
    }
    u->segment = seg;
    r->lives.at[seg].last = u->pos;
    residency_spill(r, seg, u->pos, u->of);
}

/* Lets all devices create their copies for a pass at the same time if possible, so that they can send pieces
 * to each other. */
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

/* Plans the moves for one pass of a pinned layer. Each owner sends its piece to every copy for the pass,
 * including its own. */
static void gather_pinned(struct shared_tensor *s, const struct rounds *rs, const struct round *round)
{
    for (uint32_t from = 0; from < s->n; from++) {
        /* Each owner starts with a different receiver, so that not all owners send to the same device at
         * once. */
        for (uint32_t i = 1; i <= s->n; i++) {
            uint32_t to = (from + i) % s->n;
            if (round->segment[to] != SEGMENT_NONE)
                put(s->r, round->slot[to], ENTRY_GATHER, round->pos[to], rs->pinned[from], round->segment[to],
                    piece_of(s, from));
        }
    }
}

/* Plans how the piece of owner `from` gets into the copy of owner `to`: by a send or, if that would come too
 * late, by a fetch from the host. */
static void send_piece(struct shared_tensor *s, const struct round *round, uint32_t from, uint32_t to)
{
    struct residency *r = s->r;
    struct life *source = &r->lives.at[round->segment[from]];
    uint32_t slot = round->slot[to] > round->slot[from] ? round->slot[to] : round->slot[from];
    if (slot > slot_before(round->pos[to]) || slot >= source->limit) {
        put(r, round->slot[to], ENTRY_FETCH, round->pos[to], SEGMENT_NONE, round->segment[to],
            piece_of(s, from));
        return;
    }
    put(r, slot, ENTRY_GATHER, round->pos[to], round->segment[from], round->segment[to], piece_of(s, from));
    if ((slot + 2) / 3 > source->last)
        source->last = (slot + 2) / 3; /* it must live until then */
}

/* Plans the moves for one pass. All devices must have a copy for the pass. */
static void gather(struct shared_tensor *s, const struct round *round)
{
    for (uint32_t from = 0; from < s->n; from++) {
        put(s->r, round->slot[from], ENTRY_FETCH, round->pos[from], SEGMENT_NONE, round->segment[from],
            piece_of(s, from));
        /* Each owner starts with a different receiver, so that not all owners send to the same device at
         * once. */
        for (uint32_t i = 1; i < s->n; i++)
            send_piece(s, round, from, (from + i) % s->n);
    }
}

/* Plans the moves for one pass in which each device fetches the whole tensor from the host. */
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

/* Adds a segment for each piece that stays on its owner. Does nothing if the layer is not pinned. */
static void pin_pieces(struct shared_tensor *s, struct rounds *rs)
{
    bool dirty = s->r->g->tensors[s->tensor].writes_per_cycle > 0;
    if (!is_pinned(s))
        return;
    rs->pinned = arena_alloc_array(s->r->arena, s->n, sizeof *rs->pinned);
    for (uint32_t i = 0; i < s->n; i++) {
        struct extent of = piece_of(s, i);
        rs->pinned[i] = is_empty(of) ? SEGMENT_NONE : pin_piece(s, s->owners[i], of, dirty);
    }
}

/* Adds the moves of all rounds. */
static void move_rounds(struct shared_tensor *s, const struct rounds *rs)
{
    bool alone = s->r->o->alone;
    for (size_t k = 0; k < rs->at.n; k++)
        if (!alone && has_all(s, &rs->at.at[k]))
            begin_together(s, &rs->at.at[k]);
    for (size_t k = 0; k < rs->at.n; k++) {
        struct round *round = &rs->at.at[k];
        if (rs->pinned != NULL)
            gather_pinned(s, rs, round);
        else if (alone || !has_all(s, round))
            fetch_alone(s, round);
        else
            gather(s, round);
    }
}

/* Plans all uses of W or B. */
static void plan_weights(struct shared_tensor *s, const struct tensor_uses *uses)
{
    struct residency *r = s->r;
    struct rounds rs = {.count = arena_alloc_array(r->arena, s->n, sizeof *rs.count),
                        .version = arena_alloc_array(r->arena, s->n, sizeof *rs.version),
                        .current = arena_alloc_array(r->arena, s->n, sizeof *rs.current),
                        .updated = PLAN_NONE};
    uint32_t first = (uint32_t)r->d->segments.n;
    pin_pieces(s, &rs);
    for (uint32_t i = 0; i < s->n; i++)
        rs.current[i] = SEGMENT_NONE;
    for (uint32_t i = 0; i < uses->n; i++) {
        struct operand_use *u = uses->at[i];
        bool writes = (u->access & ACCESS_WRITE) != 0;
        /* An update on the host needs no move, because it writes the newest weights to host memory. */
        if (r->todos[u->pos].loc != PLAN_HOST && writes)
            update_weights(s, &rs, u);
        else if (r->todos[u->pos].loc != PLAN_HOST)
            read_weights(s, &rs, u);
        if (writes)
            rs.updated = u->pos;
    }
    move_rounds(s, &rs);
    for (uint32_t seg = first; seg < r->d->segments.n; seg++)
        if (!r->d->segments.at[seg].boundary)
            residency_end(r, seg);
    vec_free(&rs.at);
}

/* ---- dW ---- */

/* The sum of all replicas' gradients, for one share of the layer. It is on the device that owns the share. */
struct share_sum {
    /* The segment with the sum, or SEGMENT_NONE if the owner does not have it yet. */
    uint32_t segment;
    uint32_t produced; /* position of its last write */
    bool at_host;
};

/* Makes sure that the owner of a share has the sum of this share on its device, by a send if another device
 * computed the sum. */
static void settle_sum(struct shared_tensor *s, const struct value *v, struct share_sum *sum,
                       const struct operand_use *u)
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
    residency_leaves(r, v->producer, v->produced);
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

/* Plans all uses of one replica's gradient dW: the tasks that write it, the sends of its shares to their
 * owners, and the sums. */
static void plan_gradient(struct shared_tensor *s, const struct tensor_uses *uses)
{
    struct residency *r = s->r;
    uint32_t first = (uint32_t)r->d->segments.n;
    struct share_sum *sums = arena_alloc_array(r->arena, s->n, sizeof *sums);
    struct value v = residency_first_value(s->tensor, extent_whole(r->g, s->n, s->tensor));
    for (uint32_t i = 0; i < s->n; i++)
        sums[i].segment = SEGMENT_NONE;
    for (uint32_t i = 0; i < uses->n; i++) {
        struct operand_use *u = uses->at[i];
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

/* Plans all uses of the optimizer state K of a pinned layer. Each piece has one segment, which never leaves
 * its device. */
static void plan_pinned_moments(struct shared_tensor *s, const struct tensor_uses *uses)
{
    uint32_t *segment =
        arena_alloc_array(s->r->arena, tensor_pieces(s->r->g, s->n, s->tensor), sizeof *segment);
    memset(segment, 0xff, tensor_pieces(s->r->g, s->n, s->tensor) * sizeof *segment);
    for (uint32_t i = 0; i < uses->n; i++) {
        struct operand_use *u = uses->at[i];
        uint32_t device = s->r->todos[u->pos].loc;
        if (device == PLAN_HOST)
            continue;
        if (segment[u->of.piece] == SEGMENT_NONE)
            segment[u->of.piece] = pin_piece(s, device, u->of, true);
        u->segment = segment[u->of.piece];
    }
}

/* Plans all uses of the optimizer state K. Only updates use K, and each update uses one share. So each piece
 * of K can be planned on its own. */
static void plan_moments(struct shared_tensor *s, const struct tensor_uses *uses)
{
    struct residency *r = s->r;
    uint32_t first = (uint32_t)r->d->segments.n, n = tensor_pieces(r->g, s->n, s->tensor);
    struct value *values = arena_alloc_array(r->arena, n, sizeof *values);
    for (uint32_t i = 0; i < n; i++)
        values[i] = residency_first_value(s->tensor, piece_of(s, i));
    for (uint32_t i = 0; i < uses->n; i++) {
        struct operand_use *u = uses->at[i];
        if (r->todos[u->pos].loc != PLAN_HOST)
            residency_use(r, &values[u->of.piece], u);
    }
    for (uint32_t i = 0; i < n; i++)
        residency_bring_home(r, &values[i]);
    for (uint32_t seg = first; seg < r->d->segments.n; seg++)
        residency_end(r, seg);
}

void residency_shared(struct residency *r, const struct tensor_uses *uses)
{
    const struct graph_tensor *t = &r->g->tensors[uses->tensor];
    struct shared_tensor s = {r, uses->tensor, t->layer, r->o->n_shares,
                              r->o->owners + (size_t)t->layer * r->o->n_shares};
    if (t->kind == TENSOR_DW)
        plan_gradient(&s, uses);
    else if (t->kind == TENSOR_K && is_pinned(&s))
        plan_pinned_moments(&s, uses);
    else if (t->kind == TENSOR_K)
        plan_moments(&s, uses);
    else
        plan_weights(&s, uses);
}
