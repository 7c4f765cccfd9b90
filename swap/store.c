/* Implements the host store: one allocation of plan->host_bytes, and the arithmetic that turns a tensor and a
 * step into an address in it.
 *
 * There is only one allocation, because the planner has already placed every host copy. Page-locking memory
 * is slow, and one block is locked only once. The store has its own copy of the tensor table, so it does not
 * depend on the plan after creation. An index of the table, sorted by (kind, layer, micro, id), makes lookups
 * fast: a checkpoint looks up every layer, and a plan may have a hundred thousand tensors.
 *
 * Order of calls: store_create after devset_open; store_destroy when the devices are drained, before
 * devset_close. In between, store_ptr and store_find may be called from any thread, because they only read.
 */
#include "swap/store.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/checked.h"

struct store {
    struct devset *devices;
    char *pool; /* NULL when bytes is 0 */
    uint64_t bytes;
    struct plan_tensor *tensors;
    tensor_id *index; /* sorted by (kind, layer, micro, id) */
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

static int check_tensors(const struct plan *plan, struct err *err)
{
    for (uint32_t i = 0; i < plan->n_tensors; i++) {
        const struct plan_tensor *t = &plan->tensors[i];
        if (!has_host_copy(t))
            continue;
        if (t->host_offset % PLAN_ALIGN != 0)
            return err_set(err, -EINVAL,
                           "tensor %" PRIu32 ": host offset %" PRIu64 " is not a multiple of %d", i,
                           t->host_offset, PLAN_ALIGN);
        if (!tensor_fits(t, plan->host_bytes))
            return err_set(err, -EINVAL,
                           "tensor %" PRIu32 ": %" PRIu32 " host slots of %" PRIu64 " bytes at %" PRIu64
                           " do not fit in a host pool of %" PRIu64 " bytes",
                           i, t->host_slots, t->bytes, t->host_offset, plan->host_bytes);
    }
    return 0;
}

/* Compares a tensor with a search key of kind, layer and micro-batch. Returns a negative number if the tensor
 * sorts before the key, 0 if both are equal, and a positive number if it sorts after the key. */
static int compare_key(const struct plan_tensor *t, enum tensor_kind kind, uint32_t layer, uint32_t micro)
{
    if (t->kind != kind)
        return t->kind < kind ? -1 : 1;
    if (t->layer != layer)
        return t->layer < layer ? -1 : 1;
    if (t->micro != micro)
        return t->micro < micro ? -1 : 1;
    return 0;
}

static int compare_ids(const void *a, const void *b, void *tensors)
{
    const tensor_id x = *(const tensor_id *)a, y = *(const tensor_id *)b;
    const struct plan_tensor *u = &((const struct plan_tensor *)tensors)[y];
    const int r = compare_key(&((const struct plan_tensor *)tensors)[x], u->kind, u->layer, u->micro);

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

int store_create(struct devset *devices, const struct plan *plan, struct store **ret, struct err *err)
{
    struct arena *arena;
    struct store *s;
    void *pool = NULL;
    int r;

    assert(devices && plan && ret);
    r = check_tensors(plan, err);
    if (r < 0)
        return r;
    if (plan->host_bytes > 0) {
        struct err why = {0};
        r = devset_host_alloc(devices, plan->host_bytes, &pool, &why);
        if (r < 0)
            return err_set(err, r, "cannot get %" PRIu64 " bytes of host memory for tensors: %s",
                           plan->host_bytes, why.msg);
    }

    arena = arena_create();
    s = arena_alloc(arena, sizeof *s);
    *s = (struct store){.devices = devices, .pool = pool, .bytes = plan->host_bytes, .arena = arena};
    build_tables(s, plan);
    *ret = s;
    return 0;
}

void store_destroy(struct store *s)
{
    if (!s)
        return;
    if (s->pool)
        devset_host_free(s->devices, s->pool, s->bytes);
    arena_destroy(s->arena);
}

void *store_ptr(const struct store *s, tensor_id tensor, uint64_t step)
{
    const struct plan_tensor *t;

    if (tensor >= s->n_tensors || !s->pool)
        return NULL;
    t = &s->tensors[tensor];
    if (!has_host_copy(t))
        return NULL;
    return s->pool + t->host_offset + step % t->host_slots * slot_bytes(t);
}

tensor_id store_find(const struct store *s, enum tensor_kind kind, uint32_t layer, uint32_t micro)
{
    /* Binary search. The wanted index, that of the first tensor that does not sort before the key, is always
     * in the range from lo to hi. */
    uint32_t lo = 0, hi = s->n_tensors;

    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2;
        if (compare_key(&s->tensors[s->index[mid]], kind, layer, micro) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == s->n_tensors || compare_key(&s->tensors[s->index[lo]], kind, layer, micro) != 0)
        return PLAN_NONE;
    return s->index[lo];
}
