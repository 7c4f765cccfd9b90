/* An ordered map of disjoint address ranges, for one device: which bytes belong to which live copy, and where
 * the last copy to be there was dropped by whom.
 *
 * A treap: a plan with everything resident keeps tens of thousands of ranges, created and dropped in any
 * order, so a sorted array would move too much, and a table of pages would be as large as the device.
 * Priorities come from a fixed sequence: the same plan always takes the same time.
 */
#include "base/arena.h"
#include "scheduler/verify/verify_internal.h"

static uint32_t next_priority(struct space *s)
{
    uint32_t x = s->random ? s->random : 2463534242u; /* xorshift */
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return s->random = x;
}

/* Those that begin before `at` go left. */
static void split(struct extent *e, uint64_t at, struct extent **ret_left, struct extent **ret_right)
{
    if (e == NULL) {
        *ret_left = *ret_right = NULL;
    } else if (e->lo < at) {
        split(e->right, at, &e->right, ret_right);
        *ret_left = e;
    } else {
        split(e->left, at, ret_left, &e->left);
        *ret_right = e;
    }
}

static struct extent *merge(struct extent *a, struct extent *b)
{
    if (a == NULL || b == NULL)
        return a != NULL ? a : b;
    if (a->priority >= b->priority) {
        a->right = merge(a->right, b);
        return a;
    }
    b->left = merge(a, b->left);
    return b;
}

static void destroy(struct extent *e)
{
    if (e == NULL)
        return;
    destroy(e->left);
    destroy(e->right);
    xfree(e);
}

/* The extent that has `at` strictly inside becomes two. */
static void cut(struct space *s, uint64_t at)
{
    struct extent *e = s->root;
    while (e != NULL && !(e->lo < at && at < e->hi))
        e = at <= e->lo ? e->left : e->right;
    if (e == NULL)
        return;
    struct extent *upper = xmalloc(sizeof *upper), *left, *right;
    *upper = *e;
    upper->lo = at;
    upper->left = upper->right = NULL;
    upper->priority = next_priority(s);
    e->hi = at;
    split(s->root, at, &left, &right);
    s->root = merge(merge(left, upper), right);
}

/* Takes the tree apart into what is below lo, inside, and from hi on. */
static void take_apart(struct space *s, uint64_t lo, uint64_t hi, struct extent *parts[3])
{
    struct extent *rest;
    cut(s, lo);
    cut(s, hi);
    split(s->root, lo, &parts[0], &rest);
    split(rest, hi, &parts[1], &parts[2]);
    s->root = NULL;
}

static void visit(struct extent *e, extent_fn *fn, void *ctx)
{
    if (e == NULL)
        return;
    visit(e->left, fn, ctx);
    fn(e, ctx);
    visit(e->right, fn, ctx);
}

void space_visit(struct space *s, uint64_t lo, uint64_t hi, extent_fn *fn, void *ctx)
{
    struct extent *parts[3];
    take_apart(s, lo, hi, parts);
    visit(parts[1], fn, ctx);
    s->root = merge(merge(parts[0], parts[1]), parts[2]);
}

void space_replace(struct space *s, uint64_t lo, uint64_t hi, struct copy *owner, tensor_id tensor)
{
    struct extent *parts[3], *e = xmalloc(sizeof *e);
    take_apart(s, lo, hi, parts);
    destroy(parts[1]);
    *e = (struct extent){.lo = lo, .hi = hi, .owner = owner, .tensor = tensor, .priority = next_priority(s)};
    s->root = merge(merge(parts[0], e), parts[2]);
}

void space_finish(struct space *s)
{
    destroy(s->root);
    s->root = NULL;
}
