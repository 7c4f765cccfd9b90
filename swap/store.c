/* Implements the host store: one allocation of plan->host_bytes, and the arithmetic that turns a tensor and a
 * run of the cycle into an address in it.
 *
 * There is only one allocation, because the planner has already placed every host copy. Page-locking memory
 * is slow, and one block is locked only once. The store has its own copy of the tensor table, so it does not
 * depend on the plan after creation. An index of the table, sorted by struct tensor_key, makes lookups
 * fast: a checkpoint looks up every layer, and a plan may have a hundred thousand tensors.
 *
 * Order of calls: store_create after devset_open, then store_share; store_destroy when the devices are
 * drained, before devset_close, and for the owner of the memory last. In between, store_ptr and store_find
 * may be called from any thread, because they only read.
 */
#include "swap/store.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/checked.h"

struct store {
    struct devset *devices;
    char *pool; /* NULL when bytes is 0 */
    uint64_t bytes;
    bool shares_pool; /* another store owns the pool */
    struct plan_tensor *tensors;
    tensor_id *index; /* sorted by key, then by id */
    uint32_t n_tensors;
    struct arena *arena; /* owns this struct and the tables */
};

static bool has_host_copy(const struct plan_tensor *t)
{
    return t->host_offset != PLAN_NO_HOST && t->host_slots > 0;
}

static uint64_t slot_bytes(const struct plan_tensor *t)
{
    return round_up(t->bytes, PLAN_ALIGN);
}

/* Returns true if all host slots of a tensor lie inside a pool of pool_bytes bytes. */
static bool tensor_fits(const struct plan_tensor *t, uint64_t pool_bytes)
{
    uint64_t span, end;

    return t->bytes <= pool_bytes && checked_mul(slot_bytes(t), t->host_slots, &span) &&
           checked_add(t->host_offset, span, &end) && end <= pool_bytes;
}

/* Checks that all tensors with a place in host memory lie inside a pool of pool_bytes bytes. */
static int check_tensors(const struct plan *plan, uint64_t pool_bytes, struct err *err)
{
    for (uint32_t i = 0; i < plan->n_tensors; i++) {
        const struct plan_tensor *t = &plan->tensors[i];
        if (!has_host_copy(t))
            continue;
        if (t->host_offset % PLAN_ALIGN != 0)
            return err_set(err, -EINVAL,
                           "tensor %" PRIu32 ": host offset %" PRIu64 " is not a multiple of %d", i,
                           t->host_offset, PLAN_ALIGN);
        if (!tensor_fits(t, pool_bytes))
            return err_set(err, -EINVAL,
                           "tensor %" PRIu32 ": %" PRIu32 " host slots of %" PRIu64 " bytes at %" PRIu64
                           " do not fit in a host pool of %" PRIu64 " bytes",
                           i, t->host_slots, t->bytes, t->host_offset, pool_bytes);
    }
    return 0;
}

/* What store_find looks for. */
struct tensor_key {
    uint32_t kind, of, micro, step;
};

static struct tensor_key key_of(const struct plan_tensor *t)
{
    return (struct tensor_key){t->kind, t->group != PLAN_NONE ? t->group : t->layer, t->micro,
                               t->step != PLAN_NONE ? t->step : 0};
}

static int compare_keys(const struct tensor_key *a, const struct tensor_key *b)
{
    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    if (a->of != b->of)
        return a->of < b->of ? -1 : 1;
    if (a->micro != b->micro)
        return a->micro < b->micro ? -1 : 1;
    return a->step < b->step ? -1 : a->step > b->step;
}

static int compare_ids(const void *a, const void *b, void *tensors)
{
    const tensor_id x = *(const tensor_id *)a, y = *(const tensor_id *)b;
    const struct tensor_key kx = key_of(&((const struct plan_tensor *)tensors)[x]),
                            ky = key_of(&((const struct plan_tensor *)tensors)[y]);
    const int r = compare_keys(&kx, &ky);

    return r != 0 ? r : x < y ? -1 : x > y;
}

static void build_tables(struct store *s, const struct plan *plan)
{
    s->n_tensors = plan->n_tensors;
    if (s->n_tensors == 0)
        return;
    s->tensors = arena_memdup(s->arena, plan->tensors, (size_t)plan->n_tensors * sizeof *plan->tensors);
    s->index = arena_alloc_array(s->arena, plan->n_tensors, sizeof *s->index);
    for (uint32_t i = 0; i < plan->n_tensors; i++)
        s->index[i] = i;
    qsort_r(s->index, s->n_tensors, sizeof *s->index, compare_ids, s->tensors);
}

/* Makes the store of a plan. The store uses the memory pool of `with`. */
static struct store *make_store(const struct store *with, const struct plan *plan)
{
    struct arena *arena = arena_create();
    struct store *s = arena_alloc(arena, sizeof *s);

    *s = (struct store){.devices = with->devices,
                        .pool = with->pool,
                        .bytes = with->bytes,
                        .shares_pool = with->shares_pool,
                        .arena = arena};
    build_tables(s, plan);
    return s;
}

int store_create(struct devset *devices, const struct plan *plan, struct store **ret, struct err *err)
{
    void *pool = NULL;
    int r;

    assert(devices && plan && ret);
    r = check_tensors(plan, plan->host_bytes, err);
    if (r < 0)
        return r;
    if (plan->host_bytes > 0) {
        struct err why = {0};
        r = devset_host_alloc(devices, plan->host_bytes, &pool, &why);
        if (r < 0)
            return err_set(err, r, "cannot get %" PRIu64 " bytes of host memory for tensors: %s",
                           plan->host_bytes, why.msg);
    }
    *ret = make_store(&(struct store){.devices = devices, .pool = pool, .bytes = plan->host_bytes}, plan);
    return 0;
}

int store_share(const struct store *owner, const struct plan *plan, struct store **ret, struct err *err)
{
    struct store with = *owner;
    const int r = check_tensors(plan, owner->bytes, err);

    if (r < 0)
        return r;
    with.shares_pool = true;
    *ret = make_store(&with, plan);
    return 0;
}

void store_destroy(struct store *s)
{
    if (!s)
        return;
    if (s->pool && !s->shares_pool)
        devset_host_free(s->devices, s->pool, s->bytes);
    arena_destroy(s->arena);
}

void *store_ptr(const struct store *s, tensor_id tensor, uint64_t run)
{
    const struct plan_tensor *t;

    if (tensor >= s->n_tensors || !s->pool)
        return NULL;
    t = &s->tensors[tensor];
    if (!has_host_copy(t))
        return NULL;
    return s->pool + t->host_offset + run % t->host_slots * slot_bytes(t);
}

void *store_at(const struct store *s, uint64_t offset, uint64_t bytes)
{
    uint64_t end;

    return s->pool && checked_add(offset, bytes, &end) && end <= s->bytes ? s->pool + offset : NULL;
}

tensor_id store_find(const struct store *s, enum tensor_kind kind, uint32_t of, uint32_t micro, uint32_t step)
{
    const struct tensor_key want = {kind, of, micro, step};
    /* Search for the first tensor whose key is not less than `want`. The index of this tensor is always in
     * the range from lo to hi. */
    uint32_t lo = 0, hi = s->n_tensors;

    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2;
        const struct tensor_key key = key_of(&s->tensors[s->index[mid]]);
        if (compare_keys(&key, &want) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == s->n_tensors)
        return PLAN_NONE;
    const struct tensor_key found = key_of(&s->tensors[s->index[lo]]);
    return compare_keys(&found, &want) == 0 ? s->index[lo] : PLAN_NONE;
}

/* Returns the address in `to` to which tensor `t` of `from` must be moved. Returns NULL if the bytes of the
 * tensor need not be moved. */
static char *new_place(const struct store *from, const struct store *to, const struct plan_tensor *t)
{
    const struct tensor_key key = key_of(t);
    tensor_id id;
    char *at;

    if (t->step != PLAN_NONE || !has_host_copy(t))
        return NULL;
    id = store_find(to, (enum tensor_kind)key.kind, key.of, key.micro, key.step);
    at = store_ptr(to, id, 0);
    assert(at && to->tensors[id].bytes == t->bytes);
    return at == from->pool + t->host_offset ? NULL : at;
}

void store_move(const struct store *from, const struct store *to)
{
    uint64_t bytes = 0, done = 0;
    char *moved;

    assert(from->pool == to->pool);
    for (uint32_t i = 0; i < from->n_tensors; i++)
        bytes += new_place(from, to, &from->tensors[i]) ? from->tensors[i].bytes : 0;
    if (bytes == 0)
        return;
    /* The new place of one tensor may be the old place of another. Therefore all tensors are first copied to
     * a buffer, and from there to their new places. */
    moved = xcalloc(bytes, 1);
    for (uint32_t i = 0; i < from->n_tensors; i++) {
        const struct plan_tensor *t = &from->tensors[i];
        if (!new_place(from, to, t))
            continue;
        memcpy(moved + done, from->pool + t->host_offset, t->bytes);
        done += t->bytes;
    }
    done = 0;
    for (uint32_t i = 0; i < from->n_tensors; i++) {
        char *at = new_place(from, to, &from->tensors[i]);
        if (!at)
            continue;
        memcpy(at, moved + done, from->tensors[i].bytes);
        done += from->tensors[i].bytes;
    }
    xfree(moved);
}
