/* Implements the event loop of the timeline.
 *
 * Time advances from instant to instant. At each instant, operations that end are finished, and
 * operations that can start are started; an operation that takes no time ends at once. Rates are computed
 * only when nothing more happens at the instant. Therefore the order in which events of one instant are
 * handled does not affect the result.
 *
 * Streams. A stream runs one operation, or is blocked by one unfinished operation, or has reached its end.
 * Each operation has a list of the streams that it blocks and wakes them when it ends. Thus the total time is
 * linear in the number of operations and waits.
 *
 * Resources. A resource that only one stream uses is never shared: it only limits the rate of that stream's
 * operations. If an operation uses no other resources, its end is known when it starts.
 *
 * Flows and pools. A flow is an operation whose bytes move through shared resources. Resources that some
 * operation uses together belong to one pool. Pools do not influence each other, so only pools in which a
 * flow started or ended are computed anew.
 *
 * Heap. The next event is the top of a heap of sources. A source is a stream (the known end of its operation)
 * or a pool (the first end of its flows). The heap always holds every source once, and only their times
 * change. Its size depends on the machine and not on the length of the program.
 *
 * Arithmetic. Bytes are counted in units of 1e-9/1024 bytes, and rates in 1/1024 bytes per second. A rate is
 * thus the number of units per nanosecond, both are integers, the remainder of a flow is exact, and its end
 * is rounded up to a nanosecond. Rates are rounded up, by less than 1/1024 byte per second, so that three
 * flows with a third of the rate each do not end a nanosecond late.
 */
#include "scheduler/predict/timeline.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/arena.h"
#include "base/bounded.h"
#include "scheduler/rate.h"

#define NONE   UINT32_MAX
#define SHARED (UINT32_MAX - 1) /* owner of a resource with several streams */
/* Time of the next event for a stream or pool that has no next event. */
#define IDLE_NS    UINT64_MAX
#define LAST_NS    (UINT64_MAX - 1) /* largest time; later times become this one */
#define RATE_SHIFT 10
/* Highest rate of a resource, in bytes per second. Higher rates are lowered to this one. */
#define RATE_MAX (1ull << 53)

typedef unsigned __int128 units;

/* A resource that carries a limited number of bytes per second, such as a link. */
struct timeline_resource {
    uint64_t rate;
    /* The stream whose operations use the resource. SHARED if several streams use it, and NONE if no stream
     * does. */
    uint32_t owner;
    uint32_t pool;  /* its pool, if it is shared */
    uint64_t users; /* sum of the weights of its flows */
    bool bound;     /* it has limited some flow since bound_since */
    uint64_t bound_since;

    /* Used only while rates are computed: */
    /* The part of the resource's rate that no flow has got yet. */
    uint64_t left;
    uint64_t share; /* equal part of `left` per open flow */
    /* Sum of the weights of those flows through the resource that have no rate yet. */
    uint64_t open;
    bool binds; /* new value of `bound` */
};

/* An operation whose bytes are moving through shared resources. */
struct timeline_flow {
    uint32_t stream;
    uint32_t uses[TIMELINE_MAX_USES], n_uses; /* shared resources */
    uint32_t weights[TIMELINE_MAX_USES];
    units left; /* units left to move at since_ns */
    /* Highest rate that the flow can have: the lesser of its own limit and the rates of resources that only
     * its stream uses. */
    uint64_t most;
    uint64_t rate;     /* current rate */
    uint64_t since_ns; /* when the current rate began */
    uint64_t end_ns;   /* end of the flow at this rate */
    /* The rate that the flow could get next. Used only while rates are computed. */
    uint64_t offer;
};

/* The progress of one stream. */
struct timeline_stream {
    uint32_t first, n; /* first operation and count, in timeline_engine.order */
    /* Index of the current operation, counted from `first`, and number of the current run of the program. */
    uint32_t at, run;
    /* Number of waits of the current operation that are already known to be done. */
    uint32_t checked;
    /* The next stream in a linked list. All streams of the list wait for the same operation. */
    uint32_t next_blocked;
    bool flows_next;   /* fixed_ns is passing, and bytes follow */
    uint64_t begun_ns; /* when the current operation started */
};

/* A group of shared resources, and the flows through them. Two resources are in the same pool if some
 * operation uses both. */
struct sharing_pool {
    /* The flows that are under way. The array has space for one flow of each stream that can have a flow in
     * this pool. */
    struct timeline_flow *flows;
    uint32_t n;
    uint32_t *resources, n_resources;
    bool dirty; /* the rates must be computed anew */
};

/* The state of one timeline_run. */
struct timeline_engine {
    const struct timeline *t;
    uint32_t runs;
    uint64_t now;
    struct timeline_result *result;
    uint32_t *order; /* operations, sorted by stream */
    /* Indexed by [run][operation]: the first stream that waits for the operation, or NONE. */
    uint32_t *first_blocked;
    struct timeline_stream *streams;
    struct timeline_resource *resources;
    struct sharing_pool *pools;
    uint32_t n_pools;
    uint32_t *todo, n_todo;      /* streams that may start an operation */
    uint32_t *dirty, n_dirty;    /* pools whose flows changed */
    struct timeline_flow **open; /* flows that have no rate yet */
    /* Time of the next event of each source. The sources are first all streams and then all pools. */
    uint64_t *source_ns;
    uint32_t *heap;    /* sources, as a binary heap by source_ns */
    uint32_t *heap_at; /* per source: its index in `heap` */
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

/* Returns whether the next event of source `a` comes before the next event of source `b`. At the same time,
 * the lower number comes first. */
static bool before(const struct timeline_engine *e, uint32_t a, uint32_t b)
{
    return e->source_ns[a] < e->source_ns[b] || (e->source_ns[a] == e->source_ns[b] && a < b);
}

static void put(struct timeline_engine *e, uint32_t at, uint32_t source)
{
    e->heap[at] = source;
    e->heap_at[source] = at;
}

/* Sets the time of a source's next event, and restores the order of the heap. */
static void set_source(struct timeline_engine *e, uint32_t source, uint64_t ns)
{
    uint32_t at = e->heap_at[source];
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

/* ---- rates ---- */

static void pool_changed(struct timeline_engine *e, uint32_t pool)
{
    if (e->pools[pool].dirty)
        return;
    e->pools[pool].dirty = true;
    e->dirty[e->n_dirty++] = pool;
}

static void flow_join(struct timeline_engine *e, const struct timeline_flow *f)
{
    uint32_t pool = e->resources[f->uses[0]].pool;
    e->pools[pool].flows[e->pools[pool].n++] = *f;
    for (uint32_t i = 0; i < f->n_uses; i++)
        e->resources[f->uses[i]].users += f->weights[i];
    pool_changed(e, pool);
}

static void flow_leave(struct timeline_engine *e, struct sharing_pool *p, uint32_t at)
{
    for (uint32_t i = 0; i < p->flows[at].n_uses; i++)
        e->resources[p->flows[at].uses[i]].users -= p->flows[at].weights[i];
    p->flows[at] = p->flows[--p->n];
}

/* Changes the rate of a flow from now on. Subtracts the bytes that the flow has moved at its old rate, and
 * computes its new end time. */
static void set_rate(struct timeline_engine *e, struct timeline_flow *f, uint64_t rate)
{
    if (rate == f->rate)
        return;
    f->left -= (units)f->rate * (e->now - f->since_ns);
    f->since_ns = e->now;
    f->rate = rate;
    f->end_ns = later(e->now, ns_at(f->left, rate));
}

static void begin_shares(struct timeline_engine *e, const struct sharing_pool *p)
{
    for (uint32_t i = 0; i < p->n_resources; i++) {
        struct timeline_resource *r = &e->resources[p->resources[i]];
        r->left = r->rate;
        r->open = r->users;
        r->binds = false;
    }
    for (uint32_t i = 0; i < p->n; i++)
        e->open[i] = &p->flows[i];
}

/* Computes r->share for each resource of the pool: the remaining rate divided by the remaining weight,
 * rounded up and at least 1. */
static void divide(struct timeline_engine *e, const struct sharing_pool *p)
{
    for (uint32_t i = 0; i < p->n_resources; i++) {
        struct timeline_resource *r = &e->resources[p->resources[i]];
        if (r->open > 0)
            r->share = r->left > r->open ? (r->left + r->open - 1) / r->open : 1;
    }
}

/* Computes f->offer for each of the first `n` flows in e->open: the highest rate that the flow may have now.
 * Returns the smallest offer. */
static uint64_t least_offer(struct timeline_engine *e, uint32_t n)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        struct timeline_flow *f = e->open[i];
        f->offer = f->most;
        for (uint32_t k = 0; k < f->n_uses; k++) {
            uint64_t share = e->resources[f->uses[k]].share;
            f->offer = share < f->offer ? share : f->offer;
        }
        least = f->offer < least ? f->offer : least;
    }
    return least;
}

/* Gives flow `f` the rate f->offer. Subtracts this rate from the remaining rate of each resource that the
 * flow uses. */
static void settle(struct timeline_engine *e, struct timeline_flow *f)
{
    for (uint32_t i = 0; i < f->n_uses; i++) {
        struct timeline_resource *r = &e->resources[f->uses[i]];
        r->binds = r->binds || (r->share == f->offer && f->offer < f->most);
        units taken = (units)f->offer * f->weights[i];
        r->left = r->left > taken ? r->left - (uint64_t)taken : 0;
        r->open -= f->weights[i];
    }
    set_rate(e, f, f->offer);
}

/* Updates, for each resource of the pool, how long the resource has limited the rate of some flow. */
static void end_shares(struct timeline_engine *e, const struct sharing_pool *p)
{
    for (uint32_t i = 0; i < p->n_resources; i++) {
        struct timeline_resource *r = &e->resources[p->resources[i]];
        if (r->bound == r->binds)
            continue;
        if (r->bound)
            e->result->bound_ns[p->resources[i]] += e->now - r->bound_since;
        r->bound_since = e->now;
        r->bound = r->binds;
    }
}

/* Computes the rates of all flows of a pool by progressive filling: in each round, the flows with the
 * smallest offer get this offer as their rate. */
static void share_pool(struct timeline_engine *e, uint32_t pool)
{
    struct sharing_pool *p = &e->pools[pool];
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

/* Returns the current operation of a stream: the running operation or, if none is running, the next one. */
static uint32_t current(const struct timeline_engine *e, const struct timeline_stream *s)
{
    return e->order[s->first + s->at];
}

static bool is_done(const struct timeline_engine *e, size_t at)
{
    return e->result->spans[at].end_ns != TIMELINE_NEVER;
}

/* Returns whether all waits of the stream's next operation are done. If not, the operation that the stream
 * waits for will wake the stream. */
static bool may_begin(struct timeline_engine *e, uint32_t id, const struct timeline_op *op)
{
    struct timeline_stream *s = &e->streams[id];
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

/* Ends the current operation of a stream and moves on to the next. Wakes the streams that waited for the
 * operation that ended. */
static void finish(struct timeline_engine *e, uint32_t id)
{
    struct timeline_stream *s = &e->streams[id];
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

/* Makes the flow of an operation. Two things limit the flow's rate: op->most_per_s, and the resources that
 * only the stream of the operation uses. */
static struct timeline_flow make_flow(const struct timeline_engine *e, uint32_t id,
                                      const struct timeline_op *op)
{
    struct timeline_flow f = {.stream = id,
                              .left = units_of(op->bytes),
                              .most = UINT64_MAX,
                              .since_ns = e->now,
                              /* The end of the flow is unknown until its rate has been computed. */
                              .end_ns = IDLE_NS};
    if (op->most_per_s > 0)
        f.most = rate_of(op->most_per_s);
    for (uint32_t i = 0; i < op->n_uses; i++) {
        const struct timeline_resource *r = &e->resources[op->uses[i]];
        uint32_t weight = op->weights[i] > 0 ? op->weights[i] : 1;
        uint64_t alone = (r->rate + weight - 1) / weight; /* rounded up, like shared rates */
        if (r->owner == SHARED) {
            f.uses[f.n_uses] = op->uses[i];
            f.weights[f.n_uses++] = weight;
        } else if (alone < f.most) {
            f.most = alone;
        }
    }
    return f;
}

/* Starts the next operation of a stream. Returns false if the operation takes no time. The caller must then
 * end it at once. */
static bool begin(struct timeline_engine *e, uint32_t id, const struct timeline_op *op)
{
    struct timeline_stream *s = &e->streams[id];
    struct timeline_flow f = make_flow(e, id, op);
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

/* Starts the next operation of a stream if all its waits are done, and then the following operations as long
 * as they take no time. */
static void advance(struct timeline_engine *e, uint32_t id)
{
    struct timeline_stream *s = &e->streams[id];
    while (s->run < e->runs) {
        const struct timeline_op *op = &e->t->ops[current(e, s)];
        if (!may_begin(e, id, op) || begin(e, id, op))
            return;
        finish(e, id);
    }
}

/* ---- events ---- */

static void stream_event(struct timeline_engine *e, uint32_t id)
{
    struct timeline_stream *s = &e->streams[id];
    set_source(e, id, IDLE_NS);
    if (s->flows_next) {
        struct timeline_flow f = make_flow(e, id, &e->t->ops[current(e, s)]);
        flow_join(e, &f);
        return;
    }
    finish(e, id);
    e->todo[e->n_todo++] = id;
}

static void pool_event(struct timeline_engine *e, uint32_t id)
{
    struct sharing_pool *p = &e->pools[id];
    set_source(e, e->t->n_streams + id, IDLE_NS);
    /* Go through the flows from last to first, because the last flow takes the place of a removed flow. */
    for (uint32_t i = p->n; i-- > 0;) {
        uint32_t stream = p->flows[i].stream;
        if (p->flows[i].end_ns > e->now)
            continue;
        flow_leave(e, p, i);
        finish(e, stream);
        e->todo[e->n_todo++] = stream;
    }
    pool_changed(e, id);
}

static void run_events(struct timeline_engine *e)
{
    for (uint32_t s = e->t->n_streams; s-- > 0;)
        if (e->streams[s].n > 0)
            e->todo[e->n_todo++] = s;
    for (;;) {
        while (e->n_todo > 0)
            advance(e, e->todo[--e->n_todo]);
        while (e->n_dirty > 0)
            share_pool(e, e->dirty[--e->n_dirty]);
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

static void sort_by_stream(struct timeline_engine *e, struct arena *scratch)
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
        struct timeline_stream *s = &e->streams[t->ops[i].stream];
        e->order[s->first + s->n++] = i;
    }
}

/* Finds out for each resource whether no stream, one stream or several streams use it. */
static void find_owners(struct timeline_engine *e)
{
    const struct timeline *t = e->t;
    for (uint32_t r = 0; r < t->n_resources; r++) {
        assert(t->per_s[r] > 0);
        e->resources[r] = (struct timeline_resource){.rate = rate_of(t->per_s[r]), .owner = NONE, .pool = r};
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

/* Returns the first resource of the pool that contains resource `at`. The pools are a union-find structure,
 * linked by the `pool` fields. */
static uint32_t pool_root(struct timeline_resource *r, uint32_t at)
{
    while (r[at].pool != at)
        at = r[at].pool = r[r[at].pool].pool;
    return at;
}

/* Puts shared resources that one operation uses together into the same pool, because their rates depend on
 * each other. */
static void join_pools(struct timeline_engine *e)
{
    struct timeline_resource *r = e->resources;
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

/* Gives every pool a number, and lists the resources that belong to each pool. */
static void number_pools(struct timeline_engine *e, struct arena *scratch)
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

static uint32_t pool_of_op(const struct timeline_engine *e, const struct timeline_op *op)
{
    for (uint32_t k = 0; k < op->n_uses; k++)
        if (e->resources[op->uses[k]].owner == SHARED)
            return e->resources[op->uses[k]].pool;
    return NONE;
}

/* Allocates the pools and the arrays for their flows. A stream runs one operation at a time, so it has at
 * most one flow. */
static void make_pools(struct timeline_engine *e, struct arena *scratch)
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

static void make_heap(struct timeline_engine *e, struct arena *scratch)
{
    e->n_sources = e->t->n_streams + e->n_pools;
    e->source_ns = arena_alloc_array(scratch, e->n_sources, sizeof *e->source_ns);
    e->heap = arena_alloc_array(scratch, e->n_sources, sizeof *e->heap);
    e->heap_at = arena_alloc_array(scratch, e->n_sources, sizeof *e->heap_at);
    for (uint32_t i = 0; i < e->n_sources; i++) {
        e->source_ns[i] = IDLE_NS;
        put(e, i, i);
    }
}

static void make_engine(struct timeline_engine *e, struct arena *scratch)
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
    struct timeline_engine e = {.t = t, .runs = runs, .result = ret};
    int r = 0;
    *ret = (struct timeline_result){
        .spans = arena_alloc_array(arena, n, sizeof *ret->spans),
        .stream_ns = arena_alloc_array(arena, t->n_streams, sizeof *ret->stream_ns),
        .bound_ns = arena_alloc_array(arena, t->n_resources, sizeof *ret->bound_ns),
    };
    memset(ret->spans, 0xff, n * sizeof *ret->spans); /* TIMELINE_NEVER */
    make_engine(&e, scratch);
    run_events(&e);
    ret->total_ns = e.now;
    for (uint32_t s = 0; s < t->n_streams; s++)
        if (e.streams[s].n > 0 && e.streams[s].run < runs)
            r = -EDEADLK;
    arena_destroy(scratch);
    return r;
}
