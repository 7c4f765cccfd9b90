/* The event loop of the timeline.
 *
 * Time goes from instant to instant. What ends at an instant is taken off, what can begin then begins (and may end at
 * once, when it takes no time), and only when nothing more happens at the instant are the shares computed. So the order
 * in which things of one instant are handled is not seen in the result.
 *
 * - A stream has one operation under way, or is blocked by one unfinished operation that it waits for, or is at its end.
 *   A blocked stream hangs in a list at that operation (stream.next_blocked), so that whoever ends wakes whom it blocks
 *   and nobody is looked at in vain: time is linear in operations and waits.
 * - A resource that only one stream uses is never shared: it is a limit of that stream's operations. Where an operation
 *   uses no other, its end is known when it begins.
 * - A flow is bytes under way through resources that are shared. Resources that operations use together form a pool.
 *   Pools do not influence each other, and only one in which a flow started or ended is computed anew.
 * - The next event is the top of a heap of sources: streams (the end of what is known to last so long) and pools (the
 *   first of its flows to end). A source has one place in the heap for good and only its time changes, so the heap stays
 *   as small as the machine, however long the program is.
 *
 * Arithmetic. Bytes are counted in units of 1e-9/1024 bytes and rates in 1/1024 bytes per second, so that a rate is the
 * number of units in a nanosecond, and both are integers: what a flow has left is exact and its end is a ceiling. Shares
 * are rounded up by less than 1/1024 byte per second, so that three times a third ends with the whole and not a nanosecond
 * later.
 */
#include "scheduler/predict/timeline.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/arena.h"
#include "base/bounded.h"
#include "scheduler/rate.h"

#define NONE       UINT32_MAX
#define SHARED     (UINT32_MAX - 1) /* as an owner: several streams */
#define IDLE_NS    UINT64_MAX       /* of a source: nothing is going to happen */
#define LAST_NS    (UINT64_MAX - 1) /* times beyond end here */
#define RATE_SHIFT 10
#define RATE_MAX   (1ull << 53) /* bytes per second; more counts as that */

typedef unsigned __int128 units;

struct resource {
    uint64_t rate;
    uint32_t owner; /* the only stream that uses it, SHARED, or NONE */
    uint32_t pool;  /* of one that is shared */
    uint64_t users; /* weights of the flows under way */
    bool bound;     /* since bound_since it is what somebody's share ends at */
    uint64_t bound_since;
    /* while shares are computed */
    uint64_t left, share; /* of what is left, for each without a share */
    uint64_t open;        /* weights of the flows without a share */
    bool binds;
};

struct flow {
    uint32_t stream;
    uint32_t uses[TIMELINE_MAX_USES], n_uses; /* shared resources */
    uint32_t weights[TIMELINE_MAX_USES];
    units left;    /* at since_ns */
    uint64_t most; /* rate that its own limits allow */
    uint64_t rate, since_ns, end_ns;
    uint64_t offer; /* while shares are computed */
};

struct stream {
    uint32_t first, n; /* range in order[] */
    uint32_t at, run;  /* the operation that is next, or under way */
    uint32_t checked;  /* of its waits, these are known to be done */
    uint32_t next_blocked;
    bool flows_next; /* the part that is under way is fixed_ns, and bytes follow */
    uint64_t begun_ns;
};

struct pool {
    struct flow *flows; /* under way; there is room for all that can be */
    uint32_t n;
    uint32_t *resources, n_resources;
    bool dirty;
};

struct engine {
    const struct timeline *t;
    uint32_t runs;
    uint64_t now;
    struct timeline_result *result;
    uint32_t *order;         /* operations by stream */
    uint32_t *first_blocked; /* of each operation of each run: the first of the streams that it blocks */
    struct stream *streams;
    struct resource *resources;
    struct pool *pools;
    uint32_t n_pools;
    uint32_t *todo, n_todo;   /* streams that may begin something */
    uint32_t *dirty, n_dirty; /* pools whose flows changed */
    struct flow **open;       /* while shares are computed */
    uint64_t *source_ns;      /* streams, then pools */
    uint32_t *heap, *place;
    uint32_t n_sources;
};

static uint64_t later(uint64_t now, uint64_t ns)
{
    return ns >= LAST_NS - now ? LAST_NS : now + ns;
}

static uint64_t rate_of(uint64_t per_s)
{
    return (per_s < RATE_MAX ? per_s : RATE_MAX) << RATE_SHIFT;
}

static units units_of(uint64_t bytes)
{
    return ((units)bytes * 1000000000u) << RATE_SHIFT;
}

static uint64_t ns_at(units left, uint64_t rate)
{
    units ns = (left + rate - 1) / rate;
    return ns > LAST_NS ? LAST_NS : (uint64_t)ns;
}

/* ---- the heap of sources ---- */

/* Equal times: by number, so that the order is one. */
static bool before(const struct engine *e, uint32_t a, uint32_t b)
{
    return e->source_ns[a] < e->source_ns[b] || (e->source_ns[a] == e->source_ns[b] && a < b);
}

static void put(struct engine *e, uint32_t at, uint32_t source)
{
    e->heap[at] = source;
    e->place[source] = at;
}

static void set_source(struct engine *e, uint32_t source, uint64_t ns)
{
    uint32_t at = e->place[source];
    e->source_ns[source] = ns;
    while (at > 0 && before(e, source, e->heap[(at - 1) / 2])) {
        put(e, at, e->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (uint32_t child = 2 * at + 1; child < e->n_sources; child = 2 * at + 1) {
        if (child + 1 < e->n_sources && before(e, e->heap[child + 1], e->heap[child]))
            child++;
        if (!before(e, e->heap[child], source))
            break;
        put(e, at, e->heap[child]);
        at = child;
    }
    put(e, at, source);
}

/* ---- shares ---- */

static void pool_changed(struct engine *e, uint32_t pool)
{
    if (e->pools[pool].dirty)
        return;
    e->pools[pool].dirty = true;
    e->dirty[e->n_dirty++] = pool;
}

static void flow_join(struct engine *e, const struct flow *f)
{
    uint32_t pool = e->resources[f->uses[0]].pool;
    e->pools[pool].flows[e->pools[pool].n++] = *f;
    for (uint32_t i = 0; i < f->n_uses; i++)
        e->resources[f->uses[i]].users += f->weights[i];
    pool_changed(e, pool);
}

static void flow_leave(struct engine *e, struct pool *p, uint32_t at)
{
    for (uint32_t i = 0; i < p->flows[at].n_uses; i++)
        e->resources[p->flows[at].uses[i]].users -= p->flows[at].weights[i];
    p->flows[at] = p->flows[--p->n];
}

/* Changes the rate of a flow, and with it its end. */
static void set_rate(struct engine *e, struct flow *f, uint64_t rate)
{
    if (rate == f->rate)
        return;
    f->left -= (units)f->rate * (e->now - f->since_ns);
    f->since_ns = e->now;
    f->rate = rate;
    f->end_ns = later(e->now, ns_at(f->left, rate));
}

static void begin_shares(struct engine *e, const struct pool *p)
{
    for (uint32_t i = 0; i < p->n_resources; i++) {
        struct resource *r = &e->resources[p->resources[i]];
        r->left = r->rate;
        r->open = r->users;
        r->binds = false;
    }
    for (uint32_t i = 0; i < p->n; i++)
        e->open[i] = &p->flows[i];
}

/* What each without a share gets if all that is left is divided equally, by weight: rounded up, and not nothing. */
static void divide(struct engine *e, const struct pool *p)
{
    for (uint32_t i = 0; i < p->n_resources; i++) {
        struct resource *r = &e->resources[p->resources[i]];
        if (r->open > 0)
            r->share = r->left > r->open ? (r->left + r->open - 1) / r->open : 1;
    }
}

static uint64_t least_offer(struct engine *e, uint32_t n)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        struct flow *f = e->open[i];
        f->offer = f->most;
        for (uint32_t k = 0; k < f->n_uses; k++) {
            uint64_t share = e->resources[f->uses[k]].share;
            f->offer = share < f->offer ? share : f->offer;
        }
        least = f->offer < least ? f->offer : least;
    }
    return least;
}

/* Gives a flow its share. */
static void settle(struct engine *e, struct flow *f)
{
    for (uint32_t i = 0; i < f->n_uses; i++) {
        struct resource *r = &e->resources[f->uses[i]];
        r->binds = r->binds || (r->share == f->offer && f->offer < f->most);
        units taken = (units)f->offer * f->weights[i];
        r->left = r->left > taken ? r->left - (uint64_t)taken : 0;
        r->open -= f->weights[i];
    }
    set_rate(e, f, f->offer);
}

static void end_shares(struct engine *e, const struct pool *p)
{
    for (uint32_t i = 0; i < p->n_resources; i++) {
        struct resource *r = &e->resources[p->resources[i]];
        if (r->bound == r->binds)
            continue;
        if (r->bound)
            e->result->bound_ns[p->resources[i]] += e->now - r->bound_since;
        r->bound_since = e->now;
        r->bound = r->binds;
    }
}

/* Max-min by filling: in every round the flows with the least offer take it, and what they leave is divided again among
 * the others, whose offers can only grow. */
static void share(struct engine *e, uint32_t pool)
{
    struct pool *p = &e->pools[pool];
    uint64_t first_end = IDLE_NS;
    p->dirty = false;
    bounded_poll_steps(p->n);
    begin_shares(e, p);
    for (uint32_t n = p->n, left; n > 0; n = left) {
        divide(e, p);
        uint64_t least = least_offer(e, n);
        left = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (e->open[i]->offer > least) {
                e->open[left++] = e->open[i];
                continue;
            }
            settle(e, e->open[i]);
            first_end = e->open[i]->end_ns < first_end ? e->open[i]->end_ns : first_end;
        }
    }
    end_shares(e, p);
    set_source(e, e->t->n_streams + pool, first_end);
}

/* ---- streams ---- */

/* The operation that is next, or under way. */
static uint32_t current(const struct engine *e, const struct stream *s)
{
    return e->order[s->first + s->at];
}

static bool is_done(const struct engine *e, size_t at)
{
    return e->result->spans[at].end_ns != TIMELINE_NEVER;
}

/* Whether all waits of the stream's next operation are done. If not, the stream hangs at the first that is not, and is
 * woken by it. */
static bool may_begin(struct engine *e, uint32_t id, const struct timeline_op *op)
{
    struct stream *s = &e->streams[id];
    for (; s->checked < op->n_waits; s->checked++) {
        const struct plan_wait *w = &e->t->waits[op->wait + s->checked];
        if (w->distance > s->run)
            continue;
        size_t at = (size_t)(s->run - w->distance) * e->t->n_ops + w->instr;
        if (is_done(e, at))
            continue;
        s->next_blocked = e->first_blocked[at];
        e->first_blocked[at] = id;
        return false;
    }
    return true;
}

/* The operation under way is done: records it, wakes whom it blocks, and moves the stream on. */
static void finish(struct engine *e, uint32_t id)
{
    struct stream *s = &e->streams[id];
    size_t at = (size_t)s->run * e->t->n_ops + current(e, s);
    bounded_poll();
    e->result->spans[at] = (struct plan_span){.start_ns = s->begun_ns, .end_ns = e->now};
    e->result->stream_ns[id] += e->now - s->begun_ns;
    if (s->run == 0)
        e->result->first_ns = e->now;
    for (uint32_t b = e->first_blocked[at]; b != NONE; b = e->streams[b].next_blocked)
        e->todo[e->n_todo++] = b;
    s->checked = 0;
    if (++s->at == s->n) {
        s->at = 0;
        s->run++;
    }
}

/* The bytes of an operation as a flow: its shared resources, and the least of its other limits. */
static struct flow make_flow(const struct engine *e, uint32_t id, const struct timeline_op *op)
{
    struct flow f = {.stream = id,
                     .left = units_of(op->bytes),
                     .most = UINT64_MAX,
                     .since_ns = e->now,
                     .end_ns = IDLE_NS}; /* not known before the shares of the instant */
    if (op->most_per_s > 0)
        f.most = rate_of(op->most_per_s);
    for (uint32_t i = 0; i < op->n_uses; i++) {
        const struct resource *r = &e->resources[op->uses[i]];
        uint32_t weight = op->weights[i] > 0 ? op->weights[i] : 1;
        uint64_t alone = (r->rate + weight - 1) / weight; /* a share: rounded up */
        if (r->owner == SHARED) {
            f.uses[f.n_uses] = op->uses[i];
            f.weights[f.n_uses++] = weight;
        } else if (alone < f.most) {
            f.most = alone;
        }
    }
    return f;
}

/* Begins an operation; false when it takes no time. */
static bool begin(struct engine *e, uint32_t id, const struct timeline_op *op)
{
    struct stream *s = &e->streams[id];
    struct flow f = make_flow(e, id, op);
    uint64_t ns = op->fixed_ns;
    s->begun_ns = e->now;
    s->flows_next = f.n_uses > 0 && op->bytes > 0;
    if (f.n_uses == 0 && f.most < UINT64_MAX)
        ns = ns_add(ns, ns_at(f.left, f.most));
    if (ns > 0)
        set_source(e, id, later(e->now, ns));
    else if (s->flows_next)
        flow_join(e, &f);
    return ns > 0 || s->flows_next;
}

/* Begins what the stream can begin; operations that take no time pass. */
static void advance(struct engine *e, uint32_t id)
{
    struct stream *s = &e->streams[id];
    while (s->run < e->runs) {
        const struct timeline_op *op = &e->t->ops[current(e, s)];
        if (!may_begin(e, id, op) || begin(e, id, op))
            return;
        finish(e, id);
    }
}

/* ---- events ---- */

static void stream_event(struct engine *e, uint32_t id)
{
    struct stream *s = &e->streams[id];
    set_source(e, id, IDLE_NS);
    if (s->flows_next) {
        struct flow f = make_flow(e, id, &e->t->ops[current(e, s)]);
        flow_join(e, &f);
        return;
    }
    finish(e, id);
    e->todo[e->n_todo++] = id;
}

static void pool_event(struct engine *e, uint32_t id)
{
    struct pool *p = &e->pools[id];
    set_source(e, e->t->n_streams + id, IDLE_NS);
    for (uint32_t i = p->n; i-- > 0;) { /* downwards: who leaves is replaced by the last */
        uint32_t stream = p->flows[i].stream;
        if (p->flows[i].end_ns > e->now)
            continue;
        flow_leave(e, p, i);
        finish(e, stream);
        e->todo[e->n_todo++] = stream;
    }
    pool_changed(e, id);
}

static void run(struct engine *e)
{
    for (uint32_t s = e->t->n_streams; s-- > 0;)
        if (e->streams[s].n > 0)
            e->todo[e->n_todo++] = s;
    for (;;) {
        while (e->n_todo > 0)
            advance(e, e->todo[--e->n_todo]);
        while (e->n_dirty > 0)
            share(e, e->dirty[--e->n_dirty]);
        if (e->n_sources == 0 || e->source_ns[e->heap[0]] == IDLE_NS)
            return;
        e->now = e->source_ns[e->heap[0]];
        while (e->source_ns[e->heap[0]] == e->now) {
            uint32_t source = e->heap[0];
            if (source < e->t->n_streams)
                stream_event(e, source);
            else
                pool_event(e, source - e->t->n_streams);
        }
    }
}

/* ---- setting up ---- */

static void sort_by_stream(struct engine *e, struct arena *scratch)
{
    const struct timeline *t = e->t;
    uint32_t first = 0;
    e->order = arena_alloc_array(scratch, t->n_ops, sizeof *e->order);
    for (uint32_t i = 0; i < t->n_ops; i++)
        e->streams[t->ops[i].stream].n++;
    for (uint32_t s = 0; s < t->n_streams; s++) {
        e->streams[s].first = first;
        first += e->streams[s].n;
        e->streams[s].n = 0;
    }
    for (uint32_t i = 0; i < t->n_ops; i++) {
        struct stream *s = &e->streams[t->ops[i].stream];
        e->order[s->first + s->n++] = i;
    }
}

static void find_owners(struct engine *e)
{
    const struct timeline *t = e->t;
    for (uint32_t r = 0; r < t->n_resources; r++) {
        assert(t->per_s[r] > 0);
        e->resources[r] = (struct resource){.rate = rate_of(t->per_s[r]), .owner = NONE, .pool = r};
    }
    for (uint32_t i = 0; i < t->n_ops; i++) {
        const struct timeline_op *op = &t->ops[i];
        for (uint32_t k = 0; k < op->n_uses; k++) {
            uint32_t *owner = &e->resources[op->uses[k]].owner;
            if (*owner != op->stream)
                *owner = *owner == NONE ? op->stream : SHARED;
        }
    }
}

/* While pools are found a resource names another of the same pool in `pool`, or itself. The least of a pool names
 * itself. */
static uint32_t pool_root(struct resource *r, uint32_t at)
{
    while (r[at].pool != at)
        at = r[at].pool = r[r[at].pool].pool;
    return at;
}

static void join_pools(struct engine *e)
{
    struct resource *r = e->resources;
    for (uint32_t i = 0; i < e->t->n_ops; i++) {
        const struct timeline_op *op = &e->t->ops[i];
        uint32_t root = NONE;
        for (uint32_t k = 0; k < op->n_uses; k++) {
            if (r[op->uses[k]].owner != SHARED)
                continue;
            uint32_t other = pool_root(r, op->uses[k]);
            uint32_t least = other < root ? other : root;
            if (root != NONE)
                r[other < root ? root : other].pool = least;
            root = least;
        }
    }
}

/* Pools get numbers, and lists of their resources. */
static void number_pools(struct engine *e, struct arena *scratch)
{
    uint32_t n = e->t->n_resources;
    uint32_t *number = arena_alloc_array(scratch, n, sizeof *number);
    e->pools = arena_alloc_array(scratch, n, sizeof *e->pools);
    e->dirty = arena_alloc_array(scratch, n, sizeof *e->dirty);
    for (uint32_t r = 0; r < n; r++) {
        if (e->resources[r].owner != SHARED)
            continue;
        uint32_t root = pool_root(e->resources, r);
        number[r] = root == r ? e->n_pools++ : number[root];
        e->pools[number[r]].n_resources++;
    }
    for (uint32_t p = 0; p < e->n_pools; p++) {
        e->pools[p].resources =
            arena_alloc_array(scratch, e->pools[p].n_resources, sizeof *e->pools[p].resources);
        e->pools[p].n_resources = 0;
    }
    for (uint32_t r = 0; r < n; r++) {
        if (e->resources[r].owner != SHARED)
            continue;
        e->resources[r].pool = number[r];
        e->pools[number[r]].resources[e->pools[number[r]].n_resources++] = r;
    }
}

static uint32_t pool_of_op(const struct engine *e, const struct timeline_op *op)
{
    for (uint32_t k = 0; k < op->n_uses; k++)
        if (e->resources[op->uses[k]].owner == SHARED)
            return e->resources[op->uses[k]].pool;
    return NONE;
}

static void make_pools(struct engine *e, struct arena *scratch)
{
    const struct timeline *t = e->t;
    find_owners(e);
    join_pools(e);
    number_pools(e, scratch);
    for (uint32_t i = 0; i < t->n_ops; i++) {
        uint32_t pool = pool_of_op(e, &t->ops[i]);
        if (pool != NONE)
            e->pools[pool].n++;
    }
    for (uint32_t p = 0; p < e->n_pools; p++) {
        uint32_t most = e->pools[p].n < t->n_streams ? e->pools[p].n : t->n_streams;
        e->pools[p].flows = arena_alloc_array(scratch, most, sizeof *e->pools[p].flows);
        e->pools[p].n = 0;
    }
}

static void make_heap(struct engine *e, struct arena *scratch)
{
    e->n_sources = e->t->n_streams + e->n_pools;
    e->source_ns = arena_alloc_array(scratch, e->n_sources, sizeof *e->source_ns);
    e->heap = arena_alloc_array(scratch, e->n_sources, sizeof *e->heap);
    e->place = arena_alloc_array(scratch, e->n_sources, sizeof *e->place);
    for (uint32_t i = 0; i < e->n_sources; i++) {
        e->source_ns[i] = IDLE_NS;
        put(e, i, i);
    }
}

static void make_engine(struct engine *e, struct arena *scratch)
{
    const struct timeline *t = e->t;
    size_t n = (size_t)t->n_ops * e->runs;
    e->streams = arena_alloc_array(scratch, t->n_streams, sizeof *e->streams);
    e->resources = arena_alloc_array(scratch, t->n_resources, sizeof *e->resources);
    e->todo = arena_alloc_array(scratch, t->n_streams, sizeof *e->todo);
    e->open = arena_alloc_array(scratch, t->n_streams, sizeof *e->open);
    e->first_blocked = arena_alloc_array(scratch, n, sizeof *e->first_blocked);
    memset(e->first_blocked, 0xff, n * sizeof *e->first_blocked); /* NONE */
    sort_by_stream(e, scratch);
    make_pools(e, scratch);
    make_heap(e, scratch);
}

int timeline_run(const struct timeline *t, uint32_t runs, struct arena *arena, struct timeline_result *ret)
{
    struct arena *scratch = arena_create();
    size_t n = (size_t)t->n_ops * runs;
    struct engine e = {.t = t, .runs = runs, .result = ret};
    int r = 0;
    *ret = (struct timeline_result){
        .spans = arena_alloc_array(arena, n, sizeof *ret->spans),
        .stream_ns = arena_alloc_array(arena, t->n_streams, sizeof *ret->stream_ns),
        .bound_ns = arena_alloc_array(arena, t->n_resources, sizeof *ret->bound_ns),
    };
    memset(ret->spans, 0xff, n * sizeof *ret->spans); /* TIMELINE_NEVER */
    make_engine(&e, scratch);
    run(&e);
    ret->total_ns = e.now;
    for (uint32_t s = 0; s < t->n_streams; s++)
        if (e.streams[s].n > 0 && e.streams[s].run < runs)
            r = -EDEADLK;
    arena_destroy(scratch);
    return r;
}
