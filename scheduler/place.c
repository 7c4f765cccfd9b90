/* Offline placement: every segment gets an address such that segments that live at the same time do not overlap.
 *
 * Largest first, each at the lowest gap that is free over its whole life: simple, and close to the sum of live bytes
 * for the few sizes that chains have. To find who lives at the same time without comparing all pairs, the issue order
 * is cut into blocks; a segment is listed in each block it touches, long-lived ones in one list of their own.
 * Placement does not depend on the capacity: whether the peak fits is decided by the caller.
 */
#include <stdlib.h>

#include "base/checked.h"
#include "scheduler/build.h"

#define BLOCK 64      /* positions */
#define LONG_BLOCKS 16 /* a segment that touches more blocks goes to the long list */

struct span {
    uint64_t from, to; /* addresses */
};

typedef VEC(uint32_t) id_list;

struct placer {
    struct draft *d;
    id_list *blocks;
    uint32_t n_blocks;
    id_list longs;
    VEC(struct span) taken; /* scratch: address ranges of those that live at the same time */
};

static uint64_t segment_bytes(const struct draft *d, const struct segment *s)
{
    return round_up(d->graph->tensors[s->tensor].bytes, PLAN_ALIGN);
}

static bool overlap_in_time(const struct segment *a, const struct segment *b)
{
    return a->start <= b->end && b->start <= a->end;
}

static void collect(struct placer *p, const id_list *ids, const struct segment *s)
{
    for (size_t i = 0; i < ids->n; i++) {
        const struct segment *o = &p->d->segments.at[ids->at[i]];
        if (o->device == s->device && overlap_in_time(o, s))
            vec_push(&p->taken, (struct span){o->addr, o->addr + segment_bytes(p->d, o)});
    }
}

static int compare_spans(const void *pa, const void *pb)
{
    const struct span *a = pa, *b = pb;
    return a->from < b->from ? -1 : a->from > b->from;
}

static uint64_t lowest_gap(struct placer *p, uint64_t bytes)
{
    uint64_t at = 0;
    if (p->taken.n > 0)
        qsort(p->taken.at, p->taken.n, sizeof *p->taken.at, compare_spans);
    for (size_t i = 0; i < p->taken.n; i++) {
        if (p->taken.at[i].from >= at && p->taken.at[i].from - at >= bytes)
            break;
        if (p->taken.at[i].to > at)
            at = p->taken.at[i].to;
    }
    return at;
}

static void place_segment(struct placer *p, uint32_t id)
{
    struct segment *s = &p->d->segments.at[id];
    uint32_t first = s->start / BLOCK, last = s->end / BLOCK;
    p->taken.n = 0;
    collect(p, &p->longs, s);
    for (uint32_t b = first; b <= last; b++)
        collect(p, &p->blocks[b], s);
    uint64_t bytes = segment_bytes(p->d, s);
    s->addr = lowest_gap(p, bytes);
    if (s->addr + bytes > p->d->peak[s->device])
        p->d->peak[s->device] = s->addr + bytes;
    if (last - first >= LONG_BLOCKS) {
        vec_push(&p->longs, id);
        return;
    }
    for (uint32_t b = first; b <= last; b++)
        vec_push(&p->blocks[b], id);
}

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
    struct placer p = {.d = d, .n_blocks = (uint32_t)(d->instrs.n / BLOCK + 1)};
    p.blocks = xcalloc(p.n_blocks, sizeof *p.blocks);
    struct rank *ranks = xcalloc(n ? n : 1, sizeof *ranks);
    for (uint32_t i = 0; i < n; i++) {
        const struct segment *s = &d->segments.at[i];
        ranks[i] = (struct rank){segment_bytes(d, s), s->end - s->start, s->start, i};
    }
    qsort(ranks, n, sizeof *ranks, compare_ranks);
    for (uint32_t i = 0; i < n; i++)
        place_segment(&p, ranks[i].id);
    free(ranks);
    for (uint32_t b = 0; b < p.n_blocks; b++)
        vec_free(&p.blocks[b]);
    free(p.blocks);
    vec_free(&p.longs);
    vec_free(&p.taken);
}
