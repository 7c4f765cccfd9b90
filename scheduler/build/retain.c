/* Retention: chooses which copies stay in the memory that a draft leaves free.
 *
 * For a fixed order of tasks it is known when each copy is dropped and fetched again. Such a gap is an
 * interval of positions; across the boundary of the cycle it wraps around. Retaining the copy takes its bytes
 * at every position of the interval, and saves a fetch and often a spill. The problem is to choose the gaps
 * that save most bytes, while no position uses more memory than is free there. This is interval packing.
 *
 * First, a sweep over the positions starts with all gaps retained. Where they do not fit, it gives up the gap
 * that saves least per byte and, of equals, the gap that ends last. This is Belady's rule, which is exact if
 * all copies have the same size and gain. Then every gap that still fits is added. At last, gaps that were
 * left out push others out as long as this saves more.
 *
 * Each device is a problem of its own. Positions between two neighbouring ends of gaps behave alike, so they
 * are treated as one stretch.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/bounded.h"
#include "base/checked.h"
#include "base/sort.h"
#include "scheduler/build/build.h"

/* Maximum number of rounds in which intervals that were left out may push out other intervals. */
#define PUSH_ROUNDS 4

/* A gap as an interval of stretches. */
struct interval {
    /* The gap covers the stretches (ranges of positions) from number `from` to number to - 1. If to <= from,
     * the gap crosses the end of the cycle. */
    uint32_t from, to;
    uint64_t bytes, gain;
    uint32_t gap; /* index in the caller's list */
    bool retain;
};

/* The search for copies that should stay in the free memory of one device. `tree` and `less` form a binary
 * tree over the stretches (ranges of positions). */
struct packing {
    struct interval *intervals;
    uint32_t n_intervals, n_stretches;
    /* free_bytes[i] is the number of free bytes in stretch i before any copy is retained. */
    uint64_t *free_bytes;
    /* tree[node] is the smallest number of free bytes in the stretches below the node. */
    uint64_t *tree;
    /* less[node] is the number of bytes taken from every stretch below the node. The values of the node's
     * children in `tree` and `less` do not include these bytes. */
    uint64_t *less;
    uint32_t leaves;
};

/* ---- tree of minimum free bytes ---- */

static uint64_t least_child(const struct packing *p, size_t node)
{
    uint64_t a = p->tree[2 * node], b = p->tree[2 * node + 1];
    return a < b ? a : b;
}

static void tree_build(struct packing *p)
{
    for (uint32_t i = 0; i < p->leaves; i++)
        p->tree[p->leaves + i] = i < p->n_stretches ? p->free_bytes[i] : UINT64_MAX / 2;
    for (uint32_t i = p->leaves - 1; i >= 1; i--)
        p->tree[i] = least_child(p, i);
    memset(p->less, 0, 2 * (size_t)p->leaves * sizeof *p->less);
}

/* Returns the smallest number of free bytes in the stretches [from, to), which are ranges of positions.
 * Searches only below `node`, which covers the stretches [low, high). */
static uint64_t node_least(const struct packing *p, uint32_t node, uint32_t low, uint32_t high, uint32_t from,
                           uint32_t to)
{
    if (to <= low || high <= from)
        return UINT64_MAX / 2;
    if (from <= low && high <= to)
        return p->tree[node];
    uint32_t mid = (low + high) / 2;
    uint64_t a = node_least(p, 2 * node, low, mid, from, to),
             b = node_least(p, 2 * node + 1, mid, high, from, to);
    return (a < b ? a : b) - p->less[node];
}

/* Subtracts `bytes` from the free memory of each stretch (range of positions) in [from, to). To give n bytes
 * back, pass 0 - n. */
static void node_take(struct packing *p, uint32_t node, uint32_t low, uint32_t high, uint32_t from,
                      uint32_t to, uint64_t bytes)
{
    if (to <= low || high <= from)
        return;
    if (from <= low && high <= to) {
        p->tree[node] -= bytes;
        p->less[node] += bytes;
        return;
    }
    uint32_t mid = (low + high) / 2;
    node_take(p, 2 * node, low, mid, from, to, bytes);
    node_take(p, 2 * node + 1, mid, high, from, to, bytes);
    uint64_t a = p->tree[2 * (size_t)node], b = p->tree[2 * (size_t)node + 1];
    p->tree[node] = (a < b ? a : b) - p->less[node];
}

static bool across(const struct interval *it)
{
    return it->to <= it->from;
}

/* Returns whether an interval still fits. */
static bool has_space(const struct packing *p, const struct interval *it)
{
    if (!across(it))
        return node_least(p, 1, 0, p->leaves, it->from, it->to) >= it->bytes;
    return node_least(p, 1, 0, p->leaves, it->from, p->n_stretches) >= it->bytes &&
           (it->to == 0 || node_least(p, 1, 0, p->leaves, 0, it->to) >= it->bytes);
}

/* Retains the copy of an interval or, if `retain` is false, gives the copy up. Updates the free bytes of all
 * stretches of the interval. */
static void set_retain(struct packing *p, struct interval *it, bool retain)
{
    uint64_t bytes = retain ? it->bytes : 0 - it->bytes;
    assert(it->retain != retain);
    it->retain = retain;
    if (!across(it)) {
        node_take(p, 1, 0, p->leaves, it->from, it->to, bytes);
        return;
    }
    node_take(p, 1, 0, p->leaves, it->from, p->n_stretches, bytes);
    if (it->to > 0)
        node_take(p, 1, 0, p->leaves, 0, it->to, bytes);
}

static bool covers(const struct interval *it, uint32_t stretch)
{
    return across(it) ? stretch >= it->from || stretch < it->to : stretch >= it->from && stretch < it->to;
}

/* ---- the sweep ---- */

/* Returns the stretch at which interval `it` ends. The interval must cover stretch number `stretch`. If the
 * interval ends in the next cycle, n_stretches is added to the result. */
static uint32_t end_from(const struct packing *p, const struct interval *it, uint32_t stretch)
{
    return across(it) && stretch >= it->from ? p->n_stretches + it->to : it->to;
}

/* Returns whether interval `a` should be given up before `b`: it saves less per byte of memory or, if both
 * save the same, ends later. */
static bool worth_less(const struct packing *p, const struct interval *a, const struct interval *b,
                       uint32_t stretch)
{
    unsigned __int128 x = (unsigned __int128)a->gain * b->bytes, y = (unsigned __int128)b->gain * a->bytes;
    if (x != y)
        return x < y;
    uint32_t ea = end_from(p, a, stretch), eb = end_from(p, b, stretch);
    if (ea != eb)
        return ea > eb;
    return a->bytes != b->bytes ? a->bytes < b->bytes : a->gap > b->gap;
}

static int compare_starts(const void *pa, const void *pb)
{
    const struct interval *a = pa, *b = pb;
    if (a->from != b->from)
        return a->from < b->from ? -1 : 1;
    return a->gap < b->gap ? -1 : a->gap > b->gap;
}

static void sweep(struct packing *p)
{
    VEC(struct interval *) active = {0};
    uint64_t load = 0;
    uint32_t next = 0;
    for (uint32_t i = 0; i < p->n_intervals; i++) {
        p->intervals[i].retain = true;
        if (across(&p->intervals[i]) && p->intervals[i].to > 0) {
            vec_push(&active, &p->intervals[i]);
            load += p->intervals[i].bytes;
        }
    }
    for (uint32_t stretch = 0; stretch < p->n_stretches; stretch++) {
        bounded_poll_steps(1 + active.n);
        for (size_t i = 0; i < active.n;) {
            if (active.at[i]->retain && covers(active.at[i], stretch)) {
                i++;
                continue;
            }
            load -= active.at[i]->retain ? active.at[i]->bytes : 0;
            active.at[i] = active.at[--active.n];
        }
        for (; next < p->n_intervals && p->intervals[next].from == stretch; next++) {
            if (!p->intervals[next].retain)
                continue;
            vec_push(&active, &p->intervals[next]);
            load += p->intervals[next].bytes;
        }
        while (load > p->free_bytes[stretch]) {
            size_t least = 0;
            bounded_poll_steps(active.n);
            for (size_t i = 1; i < active.n; i++)
                if (worth_less(p, active.at[i], active.at[least], stretch))
                    least = i;
            active.at[least]->retain = false;
            load -= active.at[least]->bytes;
            active.at[least] = active.at[--active.n];
        }
    }
    vec_free(&active);
    for (uint32_t i = 0; i < p->n_intervals; i++) {
        if (!p->intervals[i].retain)
            continue;
        p->intervals[i].retain = false;
        set_retain(p, &p->intervals[i], true);
    }
}

static int compare_worth(const void *pa, const void *pb)
{
    const struct interval *a = *(struct interval *const *)pa, *b = *(struct interval *const *)pb;
    unsigned __int128 x = (unsigned __int128)a->gain * b->bytes, y = (unsigned __int128)b->gain * a->bytes;
    if (x != y)
        return x > y ? -1 : 1;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return a->gap < b->gap ? -1 : a->gap > b->gap;
}

/* Retains the copy of every interval that still fits. Tries the intervals that save most per byte of memory
 * first. */
static void fill(struct packing *p, struct interval **by_worth)
{
    for (uint32_t i = 0; i < p->n_intervals; i++) {
        bounded_poll();
        if (!by_worth[i]->retain && has_space(p, by_worth[i]))
            set_retain(p, by_worth[i], true);
    }
}

/* ---- pushing out ---- */

/* Gives up intervals that overlap `it`, if `it` saves more than all of them together. Returns whether `it` is
 * now retained. */
static bool push(struct packing *p, struct interval *it, struct interval **by_worth)
{
    VEC(struct interval *) out = {0};
    uint64_t lost = 0;
    bool fits = has_space(p, it);
    for (uint32_t i = p->n_intervals; i-- > 0 && lost < it->gain && !fits;) {
        struct interval *o = by_worth[i];
        bounded_poll();
        if (!o->retain || !(covers(it, o->from) || covers(o, it->from)))
            continue;
        set_retain(p, o, false);
        lost += o->gain;
        vec_push(&out, o);
        fits = has_space(p, it);
    }
    bool better = lost < it->gain && fits;
    if (better)
        set_retain(p, it, true);
    for (size_t i = out.n; i-- > 0;) /* retain again those that still fit */
        if (has_space(p, out.at[i]))
            set_retain(p, out.at[i], true);
    vec_free(&out);
    return better;
}

static void push_all(struct packing *p, struct interval **by_worth)
{
    bool better = true;
    for (int round = 0; round < PUSH_ROUNDS && better; round++) {
        better = false;
        for (uint32_t i = 0; i < p->n_intervals; i++)
            if (!by_worth[i]->retain)
                better |= push(p, by_worth[i], by_worth);
        fill(p, by_worth);
    }
}

/* ---- one device ---- */

static int compare_u32(const void *pa, const void *pb)
{
    uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;
    return a < b ? -1 : a > b;
}

/* Returns the stretch that contains a position. */
static uint32_t stretch_of(const uint32_t *starts, uint32_t n, uint32_t position)
{
    uint32_t low = 0, high = n;
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if (starts[mid] <= position)
            low = mid;
        else
            high = mid;
    }
    return low;
}

void retain_pack(struct gap *gaps, uint32_t n_gaps, const uint64_t *free_bytes, uint32_t n_positions)
{
    if (n_gaps == 0)
        return;
    struct arena *a = arena_create();
    /* Stretch i consists of the positions from starts[i] to starts[i + 1] - 1. A gap covers the positions
     * after its drop and before its fetch. */
    uint32_t *starts = arena_alloc_array(a, 2 * (size_t)n_gaps + 1, sizeof *starts), n_starts = 1, n = 0;
    for (uint32_t i = 0; i < n_gaps; i++) {
        if (gaps[i].from + 1 < n_positions)
            starts[n_starts++] = gaps[i].from + 1;
        starts[n_starts++] = gaps[i].to;
    }
    sort_array(starts, n_starts, sizeof *starts, compare_u32);
    for (uint32_t i = 0; i < n_starts; i++)
        if (i == 0 || starts[i] != starts[n - 1])
            starts[n++] = starts[i];
    struct packing p = {.n_intervals = 0, .n_stretches = n, .leaves = 1};
    while (p.leaves < n)
        p.leaves *= 2;
    p.intervals = arena_alloc_array(a, n_gaps, sizeof *p.intervals);
    p.free_bytes = arena_alloc_array(a, n, sizeof *p.free_bytes);
    p.tree = arena_alloc_array(a, 2 * (size_t)p.leaves, sizeof *p.tree);
    p.less = arena_alloc_array(a, 2 * (size_t)p.leaves, sizeof *p.less);
    for (uint32_t i = 0; i < n; i++) {
        p.free_bytes[i] = UINT64_MAX / 4;
        for (uint32_t at = starts[i]; at < (i + 1 < n ? starts[i + 1] : n_positions); at++)
            if (free_bytes[at] < p.free_bytes[i])
                p.free_bytes[i] = free_bytes[at];
    }
    for (uint32_t i = 0; i < n_gaps; i++) {
        gaps[i].retain = gaps[i].from + 1 == gaps[i].to; /* it takes no memory */
        if (gaps[i].retain || gaps[i].gain == 0)
            continue;
        uint32_t from = gaps[i].from + 1 < n_positions ? stretch_of(starts, n, gaps[i].from + 1) : 0;
        uint32_t to = stretch_of(starts, n, gaps[i].to);
        if (gaps[i].from > gaps[i].to && gaps[i].from + 1 == n_positions && gaps[i].to == 0) {
            gaps[i].retain = true;
            continue;
        }
        p.intervals[p.n_intervals++] = (struct interval){from, to, gaps[i].bytes, gaps[i].gain, i, false};
    }
    sort_array(p.intervals, p.n_intervals, sizeof *p.intervals, compare_starts);
    struct interval **by_worth = arena_alloc_array(a, p.n_intervals + 1, sizeof *by_worth);
    for (uint32_t i = 0; i < p.n_intervals; i++)
        by_worth[i] = &p.intervals[i];
    sort_array(by_worth, p.n_intervals, sizeof *by_worth, compare_worth);
    tree_build(&p);
    sweep(&p);
    fill(&p, by_worth);
    push_all(&p, by_worth);
    for (uint32_t i = 0; i < p.n_intervals; i++)
        gaps[p.intervals[i].gap].retain = p.intervals[i].retain;
    arena_destroy(a);
}

/* ---- drafts ---- */

/* Sets ret[p] to the number of bytes in use on `device` at position p. `ret` must have space for one number
 * more than there are positions. */
static void live_bytes(const struct draft *d, uint32_t device, uint64_t *ret)
{
    uint32_t n = (uint32_t)d->instrs.n;
    memset(ret, 0, ((size_t)n + 1) * sizeof *ret);
    bounded_poll_steps(d->segments.n + n);
    for (size_t i = 0; i < d->segments.n; i++) {
        const struct segment *s = &d->segments.at[i];
        uint64_t bytes = segment_bytes(s);
        if (s->device != device)
            continue;
        /* First store in ret[p] the change at position p, and add up the changes below. A negative change
         * wraps around, but the sums are right. */
        ret[s->start] += bytes;
        ret[s->end + 1] -= bytes;
        if (s->start > s->end)
            ret[0] += bytes;
    }
    for (uint32_t i = 1; i < n; i++)
        ret[i] += ret[i - 1];
}

uint64_t draft_live_peak(const struct draft *d, uint32_t device)
{
    uint64_t *live = xcalloc(d->instrs.n + 1, sizeof *live), peak = 0;
    live_bytes(d, device, live);
    for (size_t i = 0; i < d->instrs.n; i++)
        if (live[i] > peak)
            peak = live[i];
    xfree(live);
    return peak;
}

void draft_retain(const struct draft *d, const uint64_t *capacity, gap_list *gaps)
{
    uint32_t n = (uint32_t)d->instrs.n;
    uint64_t *free_bytes = xcalloc((size_t)n + 1, sizeof *free_bytes);
    struct gap *mine = xcalloc(gaps->n + 1, sizeof *mine);
    uint32_t *at = xcalloc(gaps->n + 1, sizeof *at);
    for (uint32_t device = 0; device < d->n_devices; device++) {
        uint32_t k = 0;
        for (size_t i = 0; i < gaps->n; i++) {
            if (gaps->at[i].device != device)
                continue;
            at[k] = (uint32_t)i;
            mine[k++] = gaps->at[i];
        }
        if (k == 0)
            continue;
        live_bytes(d, device, free_bytes);
        for (uint32_t i = 0; i < n; i++)
            free_bytes[i] = capacity[device] > free_bytes[i] ? capacity[device] - free_bytes[i] : 0;
        retain_pack(mine, k, free_bytes, n);
        for (uint32_t i = 0; i < k; i++)
            gaps->at[at[i]].retain = mine[i].retain;
    }
    xfree(at);
    xfree(mine);
    xfree(free_bytes);
}
