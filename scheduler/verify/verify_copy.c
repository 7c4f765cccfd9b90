/* Copies of tensors during the abstract execution: which bytes of which version are where, and which
 * instructions accessed them.
 *
 * Instructions are executed in issue order, although on a machine they may run in many other orders. Every
 * other order gives the same state if any two conflicting accesses are ordered by happens-before (invariant
 * 4), and if no address is given to a copy before the previous copy there is dropped (invariant 2). Both
 * conditions are checked here at every access, so the result about versions holds for every order.
 *
 * Happens-before is tracked with one vector clock per stream. An event (stream, seq) is known to be done
 * when the clock of the current stream has reached seq for that stream. For a segment it is enough to
 * remember the last write and the reads since then that are not ordered before one another. For an address
 * it is enough to remember the last drop.
 *
 * Host memory has no drops. There, a copy loses its bytes when another copy is written over them. This write
 * must be ordered after all accesses to the bytes. If the old copy is read later, it has been overwritten too
 * early.
 */
#include <string.h>

#include "base/arena.h"
#include "scheduler/verify/verify_internal.h"

/* ---- segments ---- */

size_t copy_seek(const struct verify_copy *c, uint64_t at)
{
    size_t lo = 0, hi = c->segments.n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (c->segments.at[mid].end > at)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

bool copy_gap(const struct verify_copy *c, uint64_t begin, uint64_t end, uint64_t *ret_begin,
              uint64_t *ret_end)
{
    uint64_t at = begin;
    for (size_t i = copy_seek(c, begin); at < end; i++) {
        uint64_t next = i < c->segments.n ? c->segments.at[i].begin : end;
        if (next > at) {
            *ret_begin = at;
            *ret_end = next < end ? next : end;
            return true;
        }
        at = c->segments.at[i].end;
    }
    return false;
}

uint64_t copy_bytes(const struct verify_copy *c)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < c->segments.n; i++)
        sum += c->segments.at[i].end - c->segments.at[i].begin;
    return sum;
}

static void insert_segment(struct verify_copy *c, size_t at, struct verify_segment s)
{
    vec_push(&c->segments, s);
    memmove(&c->segments.at[at + 1], &c->segments.at[at], (c->segments.n - 1 - at) * sizeof s);
    c->segments.at[at] = s;
}

static void remove_segments(struct verify_copy *c, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++)
        vec_free(&c->segments.at[i].readers);
    if (end > first)
        memmove(&c->segments.at[first], &c->segments.at[end], (c->segments.n - end) * sizeof *c->segments.at);
    c->segments.n -= end - first;
}

static void cut_segment(struct verify_copy *c, uint64_t at)
{
    size_t i = copy_seek(c, at);
    if (i == c->segments.n || c->segments.at[i].begin >= at)
        return;
    struct verify_segment upper = c->segments.at[i];
    memset(&upper.readers, 0, sizeof upper.readers);
    for (size_t j = 0; j < c->segments.at[i].readers.n; j++)
        vec_push(&upper.readers, c->segments.at[i].readers.at[j]);
    c->segments.at[i].end = upper.begin = at;
    insert_segment(c, i + 1, upper);
}

size_t copy_slice(struct verify_copy *c, uint64_t begin, uint64_t end, size_t *ret_end)
{
    cut_segment(c, begin);
    cut_segment(c, end);
    size_t first = copy_seek(c, begin), i = first;
    while (i < c->segments.n && c->segments.at[i].begin < end)
        i++;
    *ret_end = i;
    return first;
}

/* ---- copies ---- */

void state_init(struct verify_state *st, struct verify *v, const struct graph *g)
{
    *st = (struct verify_state){.v = v, .plan = v->plan, .graph = g, .n_streams = plan_n_streams(v->plan)};
    st->clocks = xcalloc((size_t)st->n_streams * st->n_streams, sizeof *st->clocks);
    st->clock = st->clocks;
    st->newest = xcalloc((size_t)g->n_tensors + 1, sizeof *st->newest);
    st->away = xcalloc((size_t)g->n_tensors + 1, sizeof *st->away);
    st->home = xcalloc((size_t)g->n_tensors + 1, sizeof *st->home);
    st->overwritten = xcalloc((size_t)g->n_tensors + 1, sizeof *st->overwritten);
    for (tensor_id t = 0; t < g->n_tensors; t++)
        st->home[t] = (struct verify_copy){
            .tensor = t, .loc = PLAN_HOST, .home = true, .base = v->plan->tensors[t].host_offset};
}

static void finish_copy(struct verify_copy *c)
{
    remove_segments(c, 0, c->segments.n);
    vec_free(&c->segments);
}

void state_finish(struct verify_state *st)
{
    for (uint32_t i = 0; i < st->graph->n_tensors; i++)
        finish_copy(&st->home[i]);
    for (size_t i = 0; i < st->live.n; i++) {
        finish_copy(st->live.at[i]);
        xfree(st->live.at[i]);
    }
    for (uint32_t d = 0; d <= DEVICE_MAX; d++)
        space_finish(&st->spaces[d]);
    vec_free(&st->live);
    xfree(st->clocks);
    xfree(st->newest);
    xfree(st->away);
    xfree(st->home);
    xfree(st->overwritten);
}

struct verify_copy *copy_home(struct verify_state *st, tensor_id t)
{
    const struct graph_tensor *gt = &st->graph->tensors[t];
    return gt->persistent || gt->external ? &st->home[t] : NULL;
}

struct verify_copy *copy_find(struct verify_state *st, tensor_id t, uint32_t loc, uint64_t base)
{
    struct verify_copy *c = st->away[t];
    while (c != NULL && (c->loc != loc || c->base != base))
        c = c->next;
    return c;
}

struct verify_copy *copy_create(struct verify_state *st, tensor_id t, uint32_t loc, uint64_t base)
{
    struct verify_copy *c = xcalloc(1, sizeof *c);
    c->tensor = t;
    c->loc = loc;
    c->base = base;
    c->next = st->away[t];
    st->away[t] = c;
    c->index = st->live.n;
    vec_push(&st->live, c);
    return c;
}

static void destroy_copy(struct verify_state *st, struct verify_copy *c)
{
    struct verify_copy **link = &st->away[c->tensor];
    while (*link != c)
        link = &(*link)->next;
    *link = c->next;
    struct verify_copy *last = st->live.at[--st->live.n];
    st->live.at[c->index] = last;
    last->index = c->index;
    finish_copy(c);
    xfree(c);
}

/* ---- order ---- */

#define NOBODY ((struct verify_event){0}) /* an event that is ordered before everything */

static const char *which_run(const struct verify_event *e, const struct verify_event *now)
{
    return e->program == now->program && e->run != now->run ? " of an earlier cycle" : "";
}

static void report_race(struct verify_state *st, const struct verify_copy *c, const struct verify_segment *s,
                        const struct verify_event *e, const char *now_does, const char *e_does)
{
    struct verify *v = st->v;
    violate(v, INVARIANT_ORDERED, (enum program_kind)st->now.program, st->now.instr,
            "%s %s %s at %s, but is not ordered after %s%s, which %s it",
            name_instr(v, (enum program_kind)st->now.program, st->now.instr).s, now_does,
            name_range(v, c->tensor, s->begin, s->end).s, name_place(c->loc, c->base + s->begin).s,
            name_instr(v, (enum program_kind)e->program, e->instr).s, which_run(e, &st->now), e_does);
}

/* Adds the current instruction to the readers of a segment. Removes those readers that are certainly done
 * before the current instruction starts. */
static void add_reader(struct verify_state *st, struct verify_segment *s)
{
    size_t kept = 0;
    for (size_t i = 0; i < s->readers.n; i++)
        if (!event_ordered(st, &s->readers.at[i]))
            s->readers.at[kept++] = s->readers.at[i];
    s->readers.n = kept;
    vec_push(&s->readers, st->now);
}

/* Reports every access to segment `s` that may still be running when the current instruction writes or drops
 * the segment. */
static void order_write(struct verify_state *st, const struct verify_copy *c, const struct verify_segment *s,
                        const char *does)
{
    if (!event_ordered(st, &s->writer))
        report_race(st, c, s, &s->writer, does, "writes");
    for (size_t i = 0; i < s->readers.n; i++)
        if (!event_ordered(st, &s->readers.at[i]))
            report_race(st, c, s, &s->readers.at[i], does, "reads");
}

/* ---- addresses ---- */

/* The arguments of claim_extent. */
struct address_claim {
    struct verify_state *st;
    struct verify_copy *copy; /* the copy that gets the addresses */
    bool quiet;               /* report nothing */
};

static struct verify_space *space_of(struct verify_state *st, uint32_t loc)
{
    return &st->spaces[loc == PLAN_HOST ? DEVICE_MAX : loc];
}

/* Reports a conflict on the host: the current instruction overwrites segment `s` of copy `old`, but access
 * `e` to the segment may still be running. */
static void report_overwrite(const struct address_claim *cl, const struct verify_copy *old,
                             const struct verify_segment *s, const struct verify_event *e)
{
    struct verify_state *st = cl->st;
    struct verify *v = st->v;
    enum program_kind k = (enum program_kind)st->now.program;
    violate(v, old->tensor == cl->copy->tensor ? INVARIANT_ORDERED : INVARIANT_OVERLAP, k, st->now.instr,
            "%s puts %s at %s, but is not ordered after %s%s, which uses %s there",
            name_instr(v, k, st->now.instr).s, name_tensor(v, cl->copy->tensor).s,
            name_place(PLAN_HOST, old->base + s->begin).s,
            name_instr(v, (enum program_kind)e->program, e->instr).s, which_run(e, &st->now),
            name_range(v, old->tensor, s->begin, s->end).s);
}

/* The current instruction writes another copy to the host addresses [lo, hi). Removes these bytes from copy
 * `old`, and reports accesses to them that may still be running. */
static void overwrite(const struct address_claim *cl, struct verify_copy *old, uint64_t lo, uint64_t hi)
{
    struct verify_state *st = cl->st;
    size_t last, first = copy_slice(old, lo - old->base, hi - old->base, &last);
    for (size_t i = first; i < last; i++) {
        const struct verify_segment *s = &old->segments.at[i];
        if (!event_ordered(st, &s->writer))
            report_overwrite(cl, old, s, &s->writer);
        for (size_t j = 0; j < s->readers.n; j++)
            if (!event_ordered(st, &s->readers.at[j]))
                report_overwrite(cl, old, s, &s->readers.at[j]);
        if (s->writer.program == st->now.program && s->writer.run == st->now.run)
            st->overwritten[old->tensor] = st->now;
    }
    remove_segments(old, first, last);
    if (old->segments.n == 0)
        destroy_copy(st, old);
}

/* Checks an address range that a new copy is going to use. On a device, any earlier copy at these addresses
 * must certainly have been dropped. */
static void claim_extent(struct verify_extent *e, void *ctx)
{
    const struct address_claim *cl = ctx;
    struct verify_state *st = cl->st;
    struct verify *v = st->v;
    enum program_kind k = (enum program_kind)st->now.program;
    if (cl->copy->loc == PLAN_HOST) {
        overwrite(cl, e->owner, e->lo, e->hi);
        return;
    }
    bool known = e->owner != NULL ? e->owner->clobbered : event_ordered(st, &e->dropped);
    if (e->owner != NULL)
        e->owner->clobbered = true;
    if (cl->quiet || known)
        return;
    cl->copy->clobbered |= e->owner != NULL;
    if (e->owner != NULL)
        violate(v, INVARIANT_OVERLAP, k, st->now.instr,
                "%s puts %s at %s, where a copy of %s is alive, up to address %llu",
                name_instr(v, k, st->now.instr).s, name_tensor(v, cl->copy->tensor).s,
                name_place(cl->copy->loc, e->lo).s, name_tensor(v, e->tensor).s, (unsigned long long)e->hi);
    else
        violate(v, e->tensor == cl->copy->tensor ? INVARIANT_ORDERED : INVARIANT_OVERLAP, k, st->now.instr,
                "%s puts %s at %s, but is not ordered after %s%s, which frees that address",
                name_instr(v, k, st->now.instr).s, name_tensor(v, cl->copy->tensor).s,
                name_place(cl->copy->loc, e->lo).s,
                name_instr(v, (enum program_kind)e->dropped.program, e->dropped.instr).s,
                which_run(&e->dropped, &st->now));
}

/* Reserves addresses for those of the bytes begin..end that copy `c` does not have yet. Returns true if there
 * are such bytes. */
static bool claim_addresses(struct verify_state *st, struct verify_copy *c, uint64_t begin, uint64_t end,
                            bool quiet)
{
    struct address_claim cl = {st, c, quiet};
    uint64_t b, e;
    bool any = false;
    while (!c->home && copy_gap(c, begin, end, &b, &e)) {
        space_visit(space_of(st, c->loc), c->base + b, c->base + e, claim_extent, &cl);
        space_replace(space_of(st, c->loc), c->base + b, c->base + e, c, c->tensor);
        begin = e;
        any = true;
    }
    return any;
}

/* Checks the alignment of a copy that got new bytes. Either its first byte or byte 0 of the tensor must be at
 * a multiple of PLAN_ALIGN. */
static void check_aligned(struct verify_state *st, const struct verify_copy *c)
{
    const struct verify_segment *s = &c->segments.at[0];
    enum program_kind k = (enum program_kind)st->now.program;
    if (c->base % PLAN_ALIGN != 0 && (c->base + s->begin) % PLAN_ALIGN != 0)
        violate(st->v, INVARIANT_LEASE, k, st->now.instr, "%s puts %s at %s, which is not aligned",
                name_instr(st->v, k, st->now.instr).s, name_range(st->v, c->tensor, s->begin, s->end).s,
                name_place(c->loc, c->base + s->begin).s);
}

/* The arguments of release_extent. */
struct address_release {
    const struct verify_copy *copy; /* the copy that loses the addresses */
    struct verify_event by;         /* the drop */
};

static void release_extent(struct verify_extent *e, void *ctx)
{
    const struct address_release *r = ctx;
    if (e->owner == r->copy) {
        e->owner = NULL;
        e->dropped = r->by;
    }
}

/* Drops the bytes begin..end of a copy and frees their addresses. If the copy has no bytes left, frees the
 * copy too. */
static void release_addresses(struct verify_state *st, struct verify_copy *c, uint64_t begin, uint64_t end,
                              struct verify_event by)
{
    struct address_release r = {c, c->clobbered ? NOBODY : by};
    size_t last, first = copy_slice(c, begin, end, &last);
    for (size_t i = first; i < last; i++)
        if (!c->home)
            space_visit(space_of(st, c->loc), c->base + c->segments.at[i].begin,
                        c->base + c->segments.at[i].end, release_extent, &r);
    remove_segments(c, first, last);
    if (c->segments.n == 0 && !c->home)
        destroy_copy(st, c);
}

/* ---- accesses ---- */

void copy_read(struct verify_state *st, struct verify_copy *c, uint64_t begin, uint64_t end)
{
    size_t last, first = copy_slice(c, begin, end, &last);
    for (size_t i = first; i < last; i++) {
        struct verify_segment *s = &c->segments.at[i];
        if (!event_ordered(st, &s->writer))
            report_race(st, c, s, &s->writer, "reads", "writes");
        add_reader(st, s);
    }
}

/* Replaces the segments in begin..end of a copy by a single segment with the given version and writer. */
static void put_segment(struct verify_copy *c, uint64_t begin, uint64_t end, uint64_t version,
                        struct verify_event writer)
{
    size_t last, first = copy_slice(c, begin, end, &last);
    if (last == first) {
        insert_segment(c, first, (struct verify_segment){.begin = begin, .end = end});
    } else { /* reuse the first segment and its readers */
        remove_segments(c, first + 1, last);
        c->segments.at[first].readers.n = 0;
    }
    struct verify_segment *s = &c->segments.at[first];
    s->begin = begin;
    s->end = end;
    s->version = version;
    s->writer = writer;
}

void copy_write(struct verify_state *st, struct verify_copy *c, uint64_t begin, uint64_t end,
                uint64_t version)
{
    size_t last, first = copy_slice(c, begin, end, &last);
    for (size_t i = first; i < last; i++)
        order_write(st, c, &c->segments.at[i], "writes");
    bool grows = claim_addresses(st, c, begin, end, false);
    put_segment(c, begin, end, version, st->now);
    if (grows)
        check_aligned(st, c);
}

void copy_drop(struct verify_state *st, struct verify_copy *c, uint64_t begin, uint64_t end)
{
    size_t last, first = copy_slice(c, begin, end, &last);
    for (size_t i = first; i < last; i++)
        order_write(st, c, &c->segments.at[i], "drops");
    release_addresses(st, c, begin, end, st->now);
}

void copy_fill(struct verify_state *st, struct verify_copy *c, uint64_t begin, uint64_t end, uint64_t version)
{
    if (c->loc != PLAN_HOST)
        claim_addresses(st, c, begin, end, true);
    put_segment(c, begin, end, version, NOBODY);
}

void copy_forget(struct verify_state *st, struct verify_copy *c, uint64_t begin, uint64_t end)
{
    release_addresses(st, c, begin, end, NOBODY);
}
