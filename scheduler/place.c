/* Offline placement: every segment gets an address such that segments that live at the same time do not
 * overlap.
 *
 * Largest first, each at the lowest gap that is free over its whole life: simple, and close to the sum of
 * live bytes for the few sizes that chains have. Placement does not depend on the capacity: whether the peak
 * fits is decided by the caller.
 *
 * Most of the work is to find who lives at the same time. The issue order is cut into blocks, at several
 * levels of coarseness; a placed segment is listed in the few blocks that it touches at the level that suits
 * its length, each list sorted by address. The lowest gap is then found by merging the lists of the blocks
 * that the new segment touches, up to the first gap that is large enough.
 */
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "scheduler/build.h"

#define FINEST       64 /* positions per block at level 0 */
#define LEVEL_FACTOR 8  /* blocks of a level per block of the next */
#define LEVELS       8

struct placed {
    uint64_t from, to;   /* addresses */
    uint32_t start, end; /* positions */
};

typedef VEC(struct placed) placed_list; /* sorted by `from` */

struct level {
    placed_list *blocks;
    uint32_t n_blocks;
    uint64_t width; /* positions */
};

struct index { /* of one device */
    struct level levels[LEVELS];
};

struct merge_head {
    const struct placed *at, *end;
};

struct placer {
    struct draft *d;
    struct index *devices;
    VEC(struct merge_head) heads; /* scratch: lists of the blocks that a segment touches */
};

static uint64_t segment_bytes(const struct draft *d, const struct segment *s)
{
    return round_up(d->graph->tensors[s->tensor].bytes, PLAN_ALIGN);
}

static bool wraps(const struct segment *s)
{
    return s->start > s->end;
}

/* A segment that wraps is placed in two pieces, at one address: pieces themselves never wrap. */
static bool alive(const struct placed *p, const struct segment *s)
{
    return wraps(s) ? p->start <= s->end || s->start <= p->end : p->start <= s->end && s->start <= p->end;
}

/* ---- the index ---- */

static void index_init(struct index *ix, size_t positions)
{
    uint64_t width = FINEST;
    for (int k = 0; k < LEVELS; k++, width *= LEVEL_FACTOR) {
        ix->levels[k].width = width;
        ix->levels[k].n_blocks = (uint32_t)(positions / width + 1);
        ix->levels[k].blocks = xcalloc(ix->levels[k].n_blocks, sizeof *ix->levels[k].blocks);
    }
}

static void index_finish(struct index *ix)
{
    for (int k = 0; k < LEVELS; k++) {
        for (uint32_t b = 0; b < ix->levels[k].n_blocks; b++)
            vec_free(&ix->levels[k].blocks[b]);
        free(ix->levels[k].blocks);
    }
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
    vec_push(list, *p);
    memmove(list->at + low + 1, list->at + low, (list->n - 1 - low) * sizeof *list->at);
    list->at[low] = *p;
}

static void index_add(struct index *ix, const struct placed *p)
{
    int k = 0;
    while (k < LEVELS - 1 && p->end / ix->levels[k].width - p->start / ix->levels[k].width >= LEVEL_FACTOR)
        k++;
    const struct level *lv = &ix->levels[k];
    for (uint64_t b = p->start / lv->width; b <= p->end / lv->width; b++)
        list_insert(&lv->blocks[b], p);
}

/* ---- the lowest gap ---- */

static void touch_range(struct placer *p, const struct index *ix, uint32_t start, uint32_t end)
{
    for (int k = 0; k < LEVELS; k++) {
        const struct level *lv = &ix->levels[k];
        for (uint64_t b = start / lv->width; b <= end / lv->width; b++)
            if (lv->blocks[b].n > 0)
                vec_push(&p->heads,
                         (struct merge_head){lv->blocks[b].at, lv->blocks[b].at + lv->blocks[b].n});
    }
}

static void touch_lists(struct placer *p, const struct segment *s)
{
    const struct index *ix = &p->devices[s->device];
    p->heads.n = 0;
    if (!wraps(s)) {
        touch_range(p, ix, s->start, s->end);
        return;
    }
    touch_range(p, ix, 0, s->end);
    touch_range(p, ix, s->start, (uint32_t)p->d->instrs.n - 1);
}

/* True when what is at `q` leaves room below it; otherwise *at moves behind it. */
static bool gap_before(const struct placed *q, uint64_t bytes, uint64_t *at)
{
    if (q->from >= *at && q->from - *at >= bytes)
        return true;
    if (q->to > *at)
        *at = q->to;
    return false;
}

/* Puts the head at i where it belongs among those below it: the list whose next piece is lowest is at 0. */
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

static uint64_t lowest_gap(struct placer *p, const struct segment *s, uint64_t bytes)
{
    struct merge_head *h = p->heads.at;
    uint64_t at = 0;
    for (size_t i = p->heads.n / 2; i-- > 0;)
        sift_down(h, p->heads.n, i);
    while (p->heads.n > 0) {
        if (alive(h->at, s) && gap_before(h->at, bytes, &at))
            break;
        if (++h->at == h->end)
            *h = h[--p->heads.n];
        if (p->heads.n > 0)
            sift_down(h, p->heads.n, 0);
    }
    return at;
}

static void place_segment(struct placer *p, uint32_t id)
{
    struct segment *s = &p->d->segments.at[id];
    uint64_t bytes = segment_bytes(p->d, s);
    touch_lists(p, s);
    s->addr = lowest_gap(p, s, bytes);
    if (s->addr + bytes > p->d->peak[s->device])
        p->d->peak[s->device] = s->addr + bytes;
    struct placed whole = {s->addr, s->addr + bytes, s->start, s->end};
    if (!wraps(s)) {
        index_add(&p->devices[s->device], &whole);
        return;
    }
    struct placed head = whole, tail = whole;
    head.start = 0;
    tail.end = (uint32_t)p->d->instrs.n - 1;
    index_add(&p->devices[s->device], &head);
    index_add(&p->devices[s->device], &tail);
}

/* ---- the order ---- */

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

void draft_place(struct draft *d)
{
    uint32_t n = (uint32_t)d->segments.n;
    struct placer p = {.d = d, .devices = xcalloc(d->n_devices, sizeof *p.devices)};
    for (uint32_t i = 0; i < d->n_devices; i++)
        index_init(&p.devices[i], d->instrs.n);
    struct rank *ranks = xcalloc(n ? n : 1, sizeof *ranks);
    for (uint32_t i = 0; i < n; i++) {
        const struct segment *s = &d->segments.at[i];
        uint32_t life = wraps(s) ? (uint32_t)d->instrs.n - (s->start - s->end) : s->end - s->start;
        ranks[i] = (struct rank){segment_bytes(d, s), life, s->start, i};
    }
    qsort(ranks, n, sizeof *ranks, compare_ranks);
    for (uint32_t i = 0; i < n; i++)
        place_segment(&p, ranks[i].id);
    free(ranks);
    for (uint32_t i = 0; i < d->n_devices; i++)
        index_finish(&p.devices[i]);
    free(p.devices);
    vec_free(&p.heads);
}
