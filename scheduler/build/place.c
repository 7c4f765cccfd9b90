/* Placement: gives every segment an address, so that segments that are alive at the same time do not overlap.
 * All lifetimes are known in advance, so this is an offline problem.
 *
 * Placement tries a quick method first. It walks the issue order once and puts long-lived segments at the low
 * end of the memory and short-lived ones at the high end. The memory it may use is exactly the most bytes
 * that are ever alive; in large programs it retries with a little more. Chains have few different sizes, so
 * this often succeeds.
 *
 * Otherwise segments are placed one by one, the largest first, each at the lowest address that is free during
 * its whole life. Most of the work is to find the segments that are alive at the same time. For this, the
 * issue order is cut into blocks, at several levels of coarseness. A placed segment is listed in the few
 * blocks that it touches at the level that suits its length, and each list is sorted by address. Merging the
 * lists of all blocks that a new segment touches yields its neighbours by ascending address, up to the first
 * gap that is large enough.
 *
 * The result does not depend on the capacity: the caller decides whether the peak fits.
 */
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/bounded.h"
#include "base/checked.h"
#include "base/sort.h"
#include "scheduler/build/build.h"

#define FINEST 64 /* positions per block at level 0 */
/* Number of blocks that together form one block of the next coarser level. */
#define LEVEL_FACTOR 8
#define LEVELS       8
/* A draft with more instructions than this is large. In a large draft, the quick method may waste a little
 * memory. */
#define LARGE 8192
/* How much memory the quick method may waste in a large draft without a memory limit, in units of half a
 * percent of the bytes in use. */
#define MOST_WASTE 5
/* How much memory the quick method may waste in a large draft with a memory limit, in units of half a percent
 * of the bytes in use. */
#define SWEEPS 8
/* A draft with a memory limit and more instructions than this is placed only with the quick method. The other
 * method would take too long. */
#define HUGE 20000

/* A segment that already has an address, or several with the same life that are next to each other. A
 * segment that lives across the end of the cycle is stored as two entries. */
struct placed {
    uint64_t from, to;   /* addresses */
    uint32_t start, end; /* positions */
};

typedef VEC(struct placed) placed_list; /* sorted by `from` */

/* One level of the index over the segments that have addresses. The level divides the issue order into blocks
 * of `width` positions. */
struct index_level {
    placed_list *blocks;
    uint32_t n_blocks;
    uint64_t width;
};

/* Index of all segments of one device that already have an address. */
struct placement_index {
    struct index_level levels[LEVELS];
};

/* A sorted list that is being merged with other lists: the entries that are still left in the list. */
struct merge_head {
    const struct placed *at, *end;
};

/* The state while the segments of one device get their addresses, the largest segment first. */
struct placer {
    struct draft *d;
    struct placement_index index;
    /* Working memory while one segment gets its address. Each index block that the segment touches has a list
     * of segments. `heads` is a heap of these lists. */
    VEC(struct merge_head) heads;
};

static bool wraps(const struct segment *s)
{
    return s->start > s->end;
}

/* Returns whether `p` and `s` are ever in memory at the same time. Only `s` may live across the end of the
 * cycle. */
static bool alive(const struct placed *p, const struct segment *s)
{
    return wraps(s) ? p->start <= s->end || s->start <= p->end : p->start <= s->end && s->start <= p->end;
}

/* ---- the index ---- */

static void index_init(struct placement_index *ix, size_t positions)
{
    uint64_t width = FINEST;
    for (int k = 0; k < LEVELS; k++, width *= LEVEL_FACTOR) {
        ix->levels[k].width = width;
        ix->levels[k].n_blocks = (uint32_t)(positions / width + 1);
        ix->levels[k].blocks = xcalloc(ix->levels[k].n_blocks, sizeof *ix->levels[k].blocks);
    }
}

static void index_finish(struct placement_index *ix)
{
    for (int k = 0; k < LEVELS; k++) {
        for (uint32_t b = 0; b < ix->levels[k].n_blocks; b++)
            vec_free(&ix->levels[k].blocks[b]);
        xfree(ix->levels[k].blocks);
    }
}

/* Returns whether two entries with the same life are next to each other, so that one entry can stand for
 * both. */
static bool joins(const struct placed *a, const struct placed *b)
{
    return a->to == b->from && a->start == b->start && a->end == b->end;
}

static void list_insert(placed_list *list, const struct placed *p)
{
    size_t low = 0, high = list->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (list->at[mid].from <= p->from)
            low = mid + 1;
        else
            high = mid;
    }
    /* State that never leaves the device would fill the lists. It usually lies in one piece. */
    if (low > 0 && joins(&list->at[low - 1], p)) {
        list->at[low - 1].to = p->to;
        return;
    }
    vec_push(list, *p);
    memmove(list->at + low + 1, list->at + low, (list->n - 1 - low) * sizeof *list->at);
    list->at[low] = *p;
}

static void index_add(struct placement_index *ix, const struct placed *p)
{
    int k = 0;
    while (k < LEVELS - 1 && p->end / ix->levels[k].width - p->start / ix->levels[k].width >= LEVEL_FACTOR)
        k++;
    const struct index_level *lv = &ix->levels[k];
    for (uint64_t b = p->start / lv->width; b <= p->end / lv->width; b++)
        list_insert(&lv->blocks[b], p);
}

/* ---- the lowest gap ---- */

/* Adds to p->heads the lists of all index blocks that overlap positions `start` to `end`. */
static void touch_range(struct placer *p, const struct placement_index *ix, uint32_t start, uint32_t end)
{
    for (int k = 0; k < LEVELS; k++) {
        const struct index_level *lv = &ix->levels[k];
        for (uint64_t b = start / lv->width; b <= end / lv->width; b++)
            if (lv->blocks[b].n > 0)
                vec_push(&p->heads,
                         (struct merge_head){lv->blocks[b].at, lv->blocks[b].at + lv->blocks[b].n});
    }
}

static void touch_lists(struct placer *p, const struct segment *s)
{
    const struct placement_index *ix = &p->index;
    p->heads.n = 0;
    if (!wraps(s)) {
        touch_range(p, ix, s->start, s->end);
        return;
    }
    touch_range(p, ix, 0, s->end);
    touch_range(p, ix, s->start, (uint32_t)p->d->instrs.n - 1);
}

/* Returns whether at least `bytes` bytes are free between address *at and segment `q`. If not, sets *at to
 * the end of `q`, from where the search continues. */
static bool gap_before(const struct placed *q, uint64_t bytes, uint64_t *at)
{
    if (q->from >= *at && q->from - *at >= bytes)
        return true;
    if (q->to > *at)
        *at = q->to;
    return false;
}

/* Restores the heap order below index `i`. h[0] is the list whose next segment has the lowest address. */
static void sift_down(struct merge_head *h, size_t n, size_t i)
{
    struct merge_head moved = h[i];
    for (size_t child = 2 * i + 1; child < n; i = child, child = 2 * i + 1) {
        if (child + 1 < n && h[child + 1].at->from < h[child].at->from)
            child++;
        if (moved.at->from <= h[child].at->from)
            break;
        h[i] = h[child];
    }
    h[i] = moved;
}

/* Returns the lowest address at which `bytes` bytes are free during the whole lifetime of segment `s`. */
static uint64_t lowest_gap(struct placer *p, const struct segment *s, uint64_t bytes)
{
    struct merge_head *h = p->heads.at;
    uint64_t at = 0;
    for (size_t i = p->heads.n / 2; i-- > 0;)
        sift_down(h, p->heads.n, i);
    while (p->heads.n > 0) {
        bounded_poll();
        if (alive(h->at, s) && gap_before(h->at, bytes, &at))
            break;
        if (++h->at == h->end)
            *h = h[--p->heads.n];
        if (p->heads.n > 0)
            sift_down(h, p->heads.n, 0);
    }
    return at;
}

/* Returns a pointer to the peak of a device or of host memory, which is the highest address in use. */
static uint64_t *peak_of(struct draft *d, uint32_t device)
{
    return device == PLAN_HOST ? &d->host_peak : &d->peak[device];
}

static void place_segment(struct placer *p, uint32_t id)
{
    struct segment *s = &p->d->segments.at[id];
    uint64_t bytes = segment_bytes(s), *peak = peak_of(p->d, s->device);
    bounded_poll();
    touch_lists(p, s);
    s->addr = lowest_gap(p, s, bytes);
    if (s->addr + bytes > *peak)
        *peak = s->addr + bytes;
    struct placed whole = {s->addr, s->addr + bytes, s->start, s->end};
    if (!wraps(s)) {
        index_add(&p->index, &whole);
        return;
    }
    struct placed head = whole, tail = whole;
    head.start = 0;
    tail.end = (uint32_t)p->d->instrs.n - 1;
    index_add(&p->index, &head);
    index_add(&p->index, &tail);
}

/* ---- largest first ---- */

/* Sort key of a segment. The segments get their addresses in this order, the largest first. */
struct rank {
    uint64_t bytes;
    uint32_t life, start, id;
};

static int compare_ranks(const void *pa, const void *pb)
{
    const struct rank *a = pa, *b = pb;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    if (a->life != b->life)
        return a->life > b->life ? -1 : 1;
    if (a->start != b->start)
        return a->start < b->start ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static uint32_t life_of(const struct draft *d, const struct segment *s)
{
    return wraps(s) ? (uint32_t)d->instrs.n - (s->start - s->end) : s->end - s->start;
}

static void place_largest_first(struct draft *d, uint32_t device)
{
    uint32_t n = 0;
    struct placer p = {.d = d};
    struct rank *ranks = xcalloc(d->segments.n + 1, sizeof *ranks);
    index_init(&p.index, d->instrs.n);
    *peak_of(d, device) = 0;
    for (uint32_t i = 0; i < d->segments.n; i++) {
        const struct segment *s = &d->segments.at[i];
        if (s->device == device)
            ranks[n++] = (struct rank){segment_bytes(s), life_of(d, s), s->start, i};
    }
    sort_array(ranks, n, sizeof *ranks, compare_ranks);
    for (uint32_t i = 0; i < n; i++)
        place_segment(&p, ranks[i].id);
    xfree(ranks);
    index_finish(&p.index);
    vec_free(&p.heads);
}

/* ---- the quick method: from both ends ---- */

/* A free address range. */
struct vacant {
    uint64_t from, to;
};

/* The state of the quick method while it goes through the issue order once. */
struct sweep {
    struct draft *d;
    VEC(struct vacant) free; /* sorted by address */
    /* Per position: the first segment that ends at this position, or SEGMENT_NONE. More segments with the
     * same end are linked by `next`. */
    uint32_t *ends_at;
    /* next[i] is the next segment that ends at the same position as segment i, or SEGMENT_NONE. */
    uint32_t *next;
};

static void remove_free(struct sweep *w, size_t i)
{
    memmove(w->free.at + i, w->free.at + i + 1, (--w->free.n - i) * sizeof *w->free.at);
}

static void insert_free(struct sweep *w, size_t i, struct vacant v)
{
    vec_push(&w->free, v);
    memmove(w->free.at + i + 1, w->free.at + i, (w->free.n - 1 - i) * sizeof *w->free.at);
    w->free.at[i] = v;
}

/* Takes `bytes` bytes from the start of the lowest free range that is large enough. Returns false if no range
 * is large enough. */
static bool take_low(struct sweep *w, uint64_t bytes, uint64_t *ret)
{
    for (size_t i = 0; i < w->free.n; i++) {
        struct vacant *v = &w->free.at[i];
        if (v->to - v->from < bytes)
            continue;
        *ret = v->from;
        v->from += bytes;
        if (v->from == v->to)
            remove_free(w, i);
        return true;
    }
    return false;
}

/* Takes `bytes` bytes from the end of the highest free range that is large enough. Returns false if no range
 * is large enough. */
static bool take_high(struct sweep *w, uint64_t bytes, uint64_t *ret)
{
    for (size_t i = w->free.n; i-- > 0;) {
        struct vacant *v = &w->free.at[i];
        if (v->to - v->from < bytes)
            continue;
        v->to -= bytes;
        *ret = v->to;
        if (v->from == v->to)
            remove_free(w, i);
        return true;
    }
    return false;
}

/* Frees the addresses [from, to) and merges them with the free ranges next to them. */
static void give_back(struct sweep *w, uint64_t from, uint64_t to)
{
    size_t low = 0, high = w->free.n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (w->free.at[mid].from < from)
            low = mid + 1;
        else
            high = mid;
    }
    bool joins_before = low > 0 && w->free.at[low - 1].to == from;
    bool joins_behind = low < w->free.n && w->free.at[low].from == to;
    if (joins_before && joins_behind) {
        w->free.at[low - 1].to = w->free.at[low].to;
        remove_free(w, low);
    } else if (joins_before) {
        w->free.at[low - 1].to = to;
    } else if (joins_behind) {
        w->free.at[low].from = from;
    } else {
        insert_free(w, low, (struct vacant){from, to});
    }
}

/* Gives all segments addresses, in the order in which they start. Long-lived segments get low addresses.
 * Returns false if the segments do not fit into `top` bytes. */
static bool sweep_within(struct sweep *w, const uint32_t *by_start, uint32_t n, uint64_t top,
                         uint32_t long_life)
{
    struct draft *d = w->d;
    uint64_t bottom = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct segment *s = &d->segments.at[by_start[i]];
        if (!s->boundary)
            continue;
        s->addr = bottom;
        bottom += segment_bytes(s);
    }
    if (bottom > top)
        return false;
    w->free.n = 0;
    if (bottom < top)
        vec_push(&w->free, (struct vacant){bottom, top});
    /* The memory of segments that end before position `given` is already free again. */
    uint32_t given = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct segment *s = &d->segments.at[by_start[i]];
        bounded_poll_steps(1 + w->free.n / 8);
        if (s->boundary)
            continue;
        for (; given < s->start; given++)
            for (uint32_t k = w->ends_at[given]; k != SEGMENT_NONE; k = w->next[k])
                give_back(w, d->segments.at[k].addr,
                          d->segments.at[k].addr + segment_bytes(&d->segments.at[k]));
        uint64_t bytes = segment_bytes(s);
        if (!(s->end - s->start > long_life ? take_low(w, bytes, &s->addr) : take_high(w, bytes, &s->addr)))
            return false;
    }
    return true;
}

/* Returns how much memory the quick method may waste, in units of half a percent of `live`. `live` is the
 * number of bytes in use. */
static uint32_t most_waste(uint32_t positions, uint64_t live, uint64_t limit)
{
    if (positions <= LARGE)
        return 0;
    if (limit == 0 || limit <= live)
        return MOST_WASTE;
    uint64_t steps = (limit - live) / (live / 200 + 1);
    return steps < SWEEPS ? (uint32_t)steps : SWEEPS;
}

/* Places the segments of a device with the quick method. Tries again with a little more memory each time.
 * Returns false if no attempt succeeded. */
static bool place_both_ends(struct draft *d, uint32_t device, uint64_t limit)
{
    uint32_t positions = (uint32_t)d->instrs.n, n = 0;
    uint64_t live = draft_live_peak(d, device);
    struct arena *a = arena_create();
    struct sweep w = {.d = d};
    uint32_t *by_start = arena_alloc_array(a, d->segments.n + 1, sizeof *by_start);
    uint32_t *starts_at = arena_alloc_array(a, (size_t)positions + 1, sizeof *starts_at);
    uint32_t *next_start = arena_alloc_array(a, d->segments.n + 1, sizeof *next_start);
    w.ends_at = arena_alloc_array(a, (size_t)positions + 1, sizeof *w.ends_at);
    w.next = arena_alloc_array(a, d->segments.n + 1, sizeof *w.next);
    memset(starts_at, 0xff, ((size_t)positions + 1) * sizeof *starts_at);
    memset(w.ends_at, 0xff, ((size_t)positions + 1) * sizeof *w.ends_at);
    for (uint32_t i = (uint32_t)d->segments.n; i-- > 0;) {
        const struct segment *s = &d->segments.at[i];
        if (s->device != device)
            continue;
        next_start[i] = starts_at[s->start];
        starts_at[s->start] = i;
        if (s->boundary)
            continue;
        w.next[i] = w.ends_at[s->end];
        w.ends_at[s->end] = i;
    }
    for (uint32_t at = 0; at < positions; at++)
        for (uint32_t i = starts_at[at]; i != SEGMENT_NONE; i = next_start[i])
            by_start[n++] = i;
    bool ok = false;
    uint32_t most = most_waste(positions, live, limit);
    for (uint32_t more = 0; more <= most && !ok; more++)
        for (uint32_t k = 4; k <= 256 && !ok; k *= 8) {
            uint64_t top = *peak_of(d, device) = round_up(live + live * more / 200, PLAN_ALIGN);
            ok = sweep_within(&w, by_start, n, top, positions / k);
        }
    vec_free(&w.free);
    arena_destroy(a);
    return ok;
}

void draft_place(struct draft *d, const uint64_t *limits)
{
    for (uint32_t device = 0; device < d->n_devices; device++) {
        uint64_t limit = limits != NULL ? limits[device] : 0;
        if (place_both_ends(d, device, limit))
            continue;
        if (limit > 0 && d->instrs.n > HUGE)
            /* No placement within the limit was found. Report a peak above the limit, so that the caller
             * tries again with fewer bytes. */
            d->peak[device] = limit + limit / 100;
        else
            place_largest_first(d, device);
    }
}

void draft_place_host(struct draft *d)
{
    if (!place_both_ends(d, PLAN_HOST, 0))
        place_largest_first(d, PLAN_HOST);
}
