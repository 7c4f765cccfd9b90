/* Policy `lru`: what unified memory does, for comparison. The tasks run in the method's own order,
 * micro-batch by micro-batch over the whole chain, updates last; nobody plans what is where. Each device is a
 * cache with LRU eviction (paging.c): what a task needs and does not find is brought in when the task comes
 * up. Several devices share the chain in contiguous parts, balanced by time, and page each for itself;
 * activations go from one to the next directly.
 *
 * Never chosen by `auto`. There is one candidate: the cache is as large as the device.
 */
#include <stdlib.h>

#include "scheduler/build/build.h"

static int lru_search(const struct plan_request *r, struct trial *t)
{
    (void)r;
    int e = t->run(t, &(struct candidate){.knobs = {.keep = KEEP_LRU}});
    return e < 0 ? e : 0;
}

static void lru_leanest(const struct plan_request *r, struct candidate *ret)
{
    (void)r;
    *ret = (struct candidate){.knobs = {.keep = KEEP_LRU, .least_cache = true}};
}

/* NORM and UPD follow the request, DECIDE is the host's, the rest runs where its layer is. */
static uint32_t location_of(const struct plan_request *r, const struct graph_task *t, const uint32_t *device)
{
    bool on_host = t->place == PLACE_HOST || (t->place == PLACE_ANY && r->update == UPDATE_HOST);
    return on_host ? PLAN_HOST : device[t->layer];
}

static void lru_order(const struct plan_request *r, const struct profile *prof, const struct candidate *c,
                      struct order *ret)
{
    const struct graph *g = r->train;
    uint32_t n_parts = r->machine->n_devices < g->n_layers ? r->machine->n_devices : g->n_layers;
    uint32_t starts[DEVICE_MAX + 1], *device = xcalloc(g->n_layers, sizeof *device);
    (void)c;
    partition_layers(prof, 1, 0, g->n_layers, n_parts, starts);
    for (uint32_t k = 0; k < n_parts; k++)
        for (uint32_t l = starts[k]; l < starts[k + 1]; l++)
            device[l] = k;
    order_init(ret, g, r->machine->n_devices);
    for (uint32_t i = 0; i < g->n_tasks; i++) {
        const struct graph_task *t = &g->tasks[i];
        order_add(ret, (struct todo){.kind = t->kind,
                                     .layer = t->layer,
                                     .micro = t->micro,
                                     .replica = t->replica,
                                     .loc = location_of(r, t, device),
                                     .save = t->layer >= g->first_trained,
                                     .output = true});
    }
    xfree(device);
}

const struct policy policy_lru = {
    .name = "lru",
    .default_update = UPDATE_DEVICE,
    .search = lru_search,
    .leanest = lru_leanest,
    .order = lru_order,
};
