/* An ordered map of disjoint address ranges of one device, or of the host. For each range it knows the live
 * copy there or, if the range is free, the instruction that dropped the last copy there.
 *
 * The map is a treap (a search tree by address that is also a heap by random priority). A plan that keeps
 * everything on the device has tens of thousands of ranges, created and dropped in any order. A sorted array
 * would move too many elements, and a page table would be as large as the device. The priorities come from a
 * fixed sequence, so that the same plan always takes the same time.
 */
#include "base/arena.h"
#include "scheduler/verify/verify_internal.h"

static uint32_t next_priority(struct verify_space *s)
{
    uint32_t x = s->random ? s->random : 2463534242u; /* xorshift */
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return s->random = x;
}

/* Splits a treap in two: *ret_left gets the extents that begin before address `at`, and *ret_right gets all
 * others. */
static void split_extents(struct verify_extent *e, uint64_t at, struct verify_extent **ret_left,
                          struct verify_extent **ret_right)
{
    if (e == NULL) {
        *ret_left = *ret_right = NULL;
    } else if (e->lo < at) {
        split_extents(e->right, at, &e->right, ret_right);
        *ret_left = e;
    } else {
        split_extents(e->left, at, ret_left, &e->left);
        *ret_right = e;
    }
}

/* Joins two treaps into one. Every extent of `a` must have lower addresses than every extent of `b`. */
static struct verify_extent *merge_extents(struct verify_extent *a, struct verify_extent *b)
{
    if (a == NULL || b == NULL)
        return a != NULL ? a : b;
    if (a->priority >= b->priority) {
        a->right = merge_extents(a->right, b);
        return a;
    }
    b->left = merge_extents(a, b->left);
    return b;
}

static void destroy_extents(struct verify_extent *e)
{
    if (e == NULL)
        return;
    destroy_extents(e->left);
    destroy_extents(e->right);
    xfree(e);
}

/* If address `at` is in the middle of an extent, splits the extent there. Otherwise does nothing. */
static void cut_extent(struct verify_space *s, uint64_t at)
{
    struct verify_extent *e = s->root;
    while (e != NULL && !(e->lo < at && at < e->hi))
        e = at <= e->lo ? e->left : e->right;
    if (e == NULL)
        return;
    struct verify_extent *upper = xmalloc(sizeof *upper), *left, *right;
    *upper = *e;
    upper->lo = at;
    upper->left = upper->right = NULL;
    upper->priority = next_priority(s);
    e->hi = at;
    split_extents(s->root, at, &left, &right);
    s->root = merge_extents(merge_extents(left, upper), right);
}

/* Splits the map into three: the extents below address `lo`, the extents between `lo` and `hi`, and the
 * extents from `hi` on. */
static void take_apart(struct verify_space *s, uint64_t lo, uint64_t hi, struct verify_extent *parts[3])
{
    struct verify_extent *rest;
    cut_extent(s, lo);
    cut_extent(s, hi);
    split_extents(s->root, lo, &parts[0], &rest);
    split_extents(rest, hi, &parts[1], &parts[2]);
    s->root = NULL;
}

static void visit_extents(struct verify_extent *e, extent_fn *fn, void *ctx)
{
    if (e == NULL)
        return;
    visit_extents(e->left, fn, ctx);
    fn(e, ctx);
    visit_extents(e->right, fn, ctx);
}

void space_visit(struct verify_space *s, uint64_t lo, uint64_t hi, extent_fn *fn, void *ctx)
{
    struct verify_extent *parts[3];
    take_apart(s, lo, hi, parts);
    visit_extents(parts[1], fn, ctx);
    s->root = merge_extents(merge_extents(parts[0], parts[1]), parts[2]);
}

void space_replace(struct verify_space *s, uint64_t lo, uint64_t hi, struct verify_copy *owner,
                   tensor_id tensor)
{
    struct verify_extent *parts[3], *e = xmalloc(sizeof *e);
    take_apart(s, lo, hi, parts);
    destroy_extents(parts[1]);
    *e = (struct verify_extent){
        .lo = lo, .hi = hi, .owner = owner, .tensor = tensor, .priority = next_priority(s)};
    s->root = merge_extents(merge_extents(parts[0], e), parts[2]);
}

void space_finish(struct verify_space *s)
{
    destroy_extents(s->root);
    s->root = NULL;
}
