/* Copies of tensors during the unrolled execution: which bytes of which version are where, and who touched
 * them since.
 *
 * Instructions are executed in issue order. That order is only one of those that can happen, but every other
 * one gives the same state as long as any two conflicting accesses are ordered by happens-before [4] and no
 * address is given to a copy before the drop of the one that was there [2]. Both are checked here at every
 * access, so what the execution finds out about versions holds in every order.
 *
 * Happens-before is one vector clock per stream: an event (stream, seq) is known to be done when the current
 * stream's clock has reached seq at that stream. For a segment it is enough to remember its last writer and
 * the readers since that are not ordered before one another; for an address, who dropped the last copy there.
 */
#include <string.h>

#include "base/arena.h"
#include "scheduler/verify/verify_internal.h"

/* ---- segments ---- */

size_t copy_seek(const struct copy *c, uint64_t at)
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

bool copy_gap(const struct copy *c, uint64_t begin, uint64_t end, uint64_t *ret_begin, uint64_t *ret_end)
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

uint64_t copy_bytes(const struct copy *c)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < c->segments.n; i++)
        sum += c->segments.at[i].end - c->segments.at[i].begin;
    return sum;
}

static void insert_segment(struct copy *c, size_t at, struct segment s)
{
    vec_push(&c->segments, s);
    memmove(&c->segments.at[at + 1], &c->segments.at[at], (c->segments.n - 1 - at) * sizeof s);
    c->segments.at[at] = s;
}

static void remove_segments(struct copy *c, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++)
        vec_free(&c->segments.at[i].readers);
    if (end > first)
        memmove(&c->segments.at[first], &c->segments.at[end], (c->segments.n - end) * sizeof *c->segments.at);
    c->segments.n -= end - first;
}

static void cut_segment(struct copy *c, uint64_t at)
{
    size_t i = copy_seek(c, at);
    if (i == c->segments.n || c->segments.at[i].begin >= at)
        return;
    struct segment upper = c->segments.at[i];
    memset(&upper.readers, 0, sizeof upper.readers);
    for (size_t j = 0; j < c->segments.at[i].readers.n; j++)
        vec_push(&upper.readers, c->segments.at[i].readers.at[j]);
    c->segments.at[i].end = upper.begin = at;
    insert_segment(c, i + 1, upper);
}

size_t copy_slice(struct copy *c, uint64_t begin, uint64_t end, size_t *ret_end)
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

void state_init(struct state *st, struct verify *v, const struct graph *g, uint32_t steps)
{
    *st = (struct state){
        .v = v, .plan = v->plan, .graph = g, .steps = steps, .n_streams = plan_n_streams(v->plan)};
    st->clocks = xcalloc((size_t)st->n_streams * st->n_streams, sizeof *st->clocks);
    st->clock = st->clocks;
    st->newest = xcalloc((size_t)g->n_tensors + 1, sizeof *st->newest);
    st->on_devices = xcalloc((size_t)g->n_tensors + 1, sizeof *st->on_devices);
    st->home_first = xcalloc((size_t)g->n_tensors + 1, sizeof *st->home_first);
    for (tensor_id t = 0; t < g->n_tensors; t++) {
        st->home_first[t] = st->n_home;
        st->n_home += g->tensors[t].external ? steps : 1;
    }
    st->home = xcalloc((size_t)st->n_home + 1, sizeof *st->home);
    for (tensor_id t = 0; t < g->n_tensors; t++)
        for (uint32_t i = st->home_first[t]; i < (t + 1 < g->n_tensors ? st->home_first[t + 1] : st->n_home);
             i++) {
            st->home[i].tensor = t;
            st->home[i].loc = PLAN_HOST;
        }
}

static void finish_copy(struct copy *c)
{
    remove_segments(c, 0, c->segments.n);
    vec_free(&c->segments);
}

void state_finish(struct state *st)
{
    for (uint32_t i = 0; i < st->n_home; i++)
        finish_copy(&st->home[i]);
    for (size_t i = 0; i < st->live.n; i++) {
        finish_copy(st->live.at[i]);
        xfree(st->live.at[i]);
    }
    for (uint32_t d = 0; d < st->plan->n_devices; d++)
        space_finish(&st->spaces[d]);
    vec_free(&st->live);
    xfree(st->clocks);
    xfree(st->newest);
    xfree(st->on_devices);
    xfree(st->home_first);
    xfree(st->home);
}

struct copy *copy_home(struct state *st, tensor_id t, uint32_t step)
{
    return &st->home[st->home_first[t] + (st->graph->tensors[t].external ? step : 0)];
}

struct copy *copy_find(struct state *st, tensor_id t, uint32_t device, uint64_t base)
{
    struct copy *c = st->on_devices[t];
    while (c != NULL && (c->loc != device || c->base != base))
        c = c->next;
    return c;
}

struct copy *copy_create(struct state *st, tensor_id t, uint32_t device, uint64_t base)
{
    struct copy *c = xcalloc(1, sizeof *c);
    c->tensor = t;
    c->loc = device;
    c->base = base;
    c->next = st->on_devices[t];
    st->on_devices[t] = c;
    c->index = st->live.n;
    vec_push(&st->live, c);
    return c;
}

static void destroy_copy(struct state *st, struct copy *c)
{
    struct copy **link = &st->on_devices[c->tensor];
    while (*link != c)
        link = &(*link)->next;
    *link = c->next;
    struct copy *last = st->live.at[--st->live.n];
    st->live.at[c->index] = last;
    last->index = c->index;
    finish_copy(c);
    xfree(c);
}

/* ---- order ---- */

#define NOBODY ((struct event){0}) /* before everything: ordered before all */

static const char *which_run(const struct event *e, const struct event *now)
{
    return e->program == now->program && e->run != now->run ? " of an earlier cycle" : "";
}

static void report_race(struct state *st, const struct copy *c, const struct segment *s,
                        const struct event *e, const char *now_does, const char *e_does)
{
    struct verify *v = st->v;
    violate(v, INVARIANT_ORDERED, (enum program_kind)st->now.program, st->now.instr,
            "%s %s %s at %s; not ordered after %s%s, which %s it",
            name_instr(v, (enum program_kind)st->now.program, st->now.instr).s, now_does,
            name_range(v, c->tensor, s->begin, s->end).s, name_place(c->loc, c->base + s->begin).s,
            name_instr(v, (enum program_kind)e->program, e->instr).s, which_run(e, &st->now), e_does);
}

/* A reader that is ordered before the new one needs no remembering: who is ordered after the new one is after
 * both. */
static void add_reader(struct state *st, struct segment *s)
{
    size_t kept = 0;
    for (size_t i = 0; i < s->readers.n; i++)
        if (!event_ordered(st, &s->readers.at[i]))
            s->readers.at[kept++] = s->readers.at[i];
    s->readers.n = kept;
    vec_push(&s->readers, st->now);
}

static void order_write(struct state *st, const struct copy *c, const struct segment *s, const char *does)
{
    if (!event_ordered(st, &s->writer))
        report_race(st, c, s, &s->writer, does, "writes");
    for (size_t i = 0; i < s->readers.n; i++)
        if (!event_ordered(st, &s->readers.at[i]))
            report_race(st, c, s, &s->readers.at[i], does, "reads");
}

/* ---- addresses ---- */

struct claim {
    struct state *st;
    struct copy *copy;
    bool quiet;
};

static void claim_extent(struct extent *e, void *ctx)
{
    const struct claim *cl = ctx;
    struct state *st = cl->st;
    struct verify *v = st->v;
    enum program_kind k = (enum program_kind)st->now.program;
    bool known = e->owner != NULL ? e->owner->clobbered : event_ordered(st, &e->dropped);
    if (e->owner != NULL)
        e->owner->clobbered = true;
    if (cl->quiet || known)
        return;
    cl->copy->clobbered |= e->owner != NULL;
    if (e->owner != NULL)
        violate(v, INVARIANT_OVERLAP, k, st->now.instr, "%s puts %s at %s, where %s lives until %llu",
                name_instr(v, k, st->now.instr).s, name_tensor(v, cl->copy->tensor).s,
                name_place(cl->copy->loc, e->lo).s, name_tensor(v, e->tensor).s, (unsigned long long)e->hi);
    else
        violate(v, e->tensor == cl->copy->tensor ? INVARIANT_ORDERED : INVARIANT_OVERLAP, k, st->now.instr,
                "%s puts %s at %s; not ordered after %s%s, which leaves there",
                name_instr(v, k, st->now.instr).s, name_tensor(v, cl->copy->tensor).s,
                name_place(cl->copy->loc, e->lo).s,
                name_instr(v, (enum program_kind)e->dropped.program, e->dropped.instr).s,
                which_run(&e->dropped, &st->now));
}

/* Takes the addresses of what is not yet valid in begin..end; true when there is any. */
static bool claim(struct state *st, struct copy *c, uint64_t begin, uint64_t end, bool quiet)
{
    struct claim cl = {st, c, quiet};
    uint64_t b, e;
    bool any = false;
    while (c->loc != PLAN_HOST && copy_gap(c, begin, end, &b, &e)) {
        space_visit(&st->spaces[c->loc], c->base + b, c->base + e, claim_extent, &cl);
        space_replace(&st->spaces[c->loc], c->base + b, c->base + e, c, c->tensor);
        begin = e;
        any = true;
    }
    return any;
}

/* What has grown is aligned where the whole tensor would begin, or, a part that lies elsewhere, where it begins itself. */
static void check_aligned(struct state *st, const struct copy *c)
{
    const struct segment *s = &c->segments.at[0];
    enum program_kind k = (enum program_kind)st->now.program;
    if (c->base % PLAN_ALIGN != 0 && (c->base + s->begin) % PLAN_ALIGN != 0)
        violate(st->v, INVARIANT_LEASE, k, st->now.instr, "%s puts %s at %s, which is not aligned",
                name_instr(st->v, k, st->now.instr).s, name_range(st->v, c->tensor, s->begin, s->end).s,
                name_place(c->loc, c->base + s->begin).s);
}

struct release {
    const struct copy *copy;
    struct event by;
};

static void release_extent(struct extent *e, void *ctx)
{
    const struct release *r = ctx;
    if (e->owner == r->copy) {
        e->owner = NULL;
        e->dropped = r->by;
    }
}

static void release(struct state *st, struct copy *c, uint64_t begin, uint64_t end, struct event by)
{
    struct release r = {c, c->clobbered ? NOBODY : by};
    size_t last, first = copy_slice(c, begin, end, &last);
    for (size_t i = first; i < last; i++)
        if (c->loc != PLAN_HOST)
            space_visit(&st->spaces[c->loc], c->base + c->segments.at[i].begin,
                        c->base + c->segments.at[i].end, release_extent, &r);
    remove_segments(c, first, last);
    if (c->segments.n == 0 && c->loc != PLAN_HOST)
        destroy_copy(st, c);
}

/* ---- accesses ---- */

void copy_read(struct state *st, struct copy *c, uint64_t begin, uint64_t end)
{
    size_t last, first = copy_slice(c, begin, end, &last);
    for (size_t i = first; i < last; i++) {
        struct segment *s = &c->segments.at[i];
        if (!event_ordered(st, &s->writer))
            report_race(st, c, s, &s->writer, "reads", "writes");
        add_reader(st, s);
    }
}

static void put_segment(struct copy *c, uint64_t begin, uint64_t end, uint64_t version, struct event writer)
{
    size_t last, first = copy_slice(c, begin, end, &last);
    if (last == first) {
        insert_segment(c, first, (struct segment){.begin = begin, .end = end});
    } else { /* keep the first, and the memory of its readers */
        remove_segments(c, first + 1, last);
        c->segments.at[first].readers.n = 0;
    }
    struct segment *s = &c->segments.at[first];
    s->begin = begin;
    s->end = end;
    s->version = version;
    s->writer = writer;
}

void copy_write(struct state *st, struct copy *c, uint64_t begin, uint64_t end, uint64_t version)
{
    size_t last, first = copy_slice(c, begin, end, &last);
    for (size_t i = first; i < last; i++)
        order_write(st, c, &c->segments.at[i], "writes");
    bool grows = claim(st, c, begin, end, false);
    put_segment(c, begin, end, version, st->now);
    if (grows)
        check_aligned(st, c);
}

void copy_drop(struct state *st, struct copy *c, uint64_t begin, uint64_t end)
{
    size_t last, first = copy_slice(c, begin, end, &last);
    for (size_t i = first; i < last; i++)
        order_write(st, c, &c->segments.at[i], "drops");
    release(st, c, begin, end, st->now);
}

void copy_fill(struct state *st, struct copy *c, uint64_t begin, uint64_t end, uint64_t version)
{
    claim(st, c, begin, end, true);
    put_segment(c, begin, end, version, NOBODY);
}

void copy_forget(struct state *st, struct copy *c, uint64_t begin, uint64_t end)
{
    release(st, c, begin, end, NOBODY);
}
