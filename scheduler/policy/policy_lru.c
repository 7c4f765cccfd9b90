/* Policy `lru`: demand paging as in unified memory, for comparison. `auto` never chooses it.
 *
 * The tasks run in the order of the graph: micro-batch by micro-batch over the whole chain, updates last.
 * Each device is a cache with LRU eviction (paging.c), which brings in a missing operand when its task comes
 * up. With several devices, each runs a contiguous part of the chain, balanced by time, and has its own
 * cache. Activations go directly from one device to the next.
 *
 * There is one candidate: the cache is as large as the device.
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

/* Returns where a task runs. DECIDE runs on the host. NORM, RED and UPD also run there if the request says
 * so. All other tasks run on the device of their layer. */
static uint32_t location_of(const struct plan_request *r, const struct graph_task *t, const uint32_t *device)
{
    bool on_host = t->kind == INSTR_DECIDE || (t->place == PLACE_ANY && r->update == UPDATE_HOST);
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
        if (t->step > 0)
            break; /* order_repeat adds the further steps */
        order_add(ret, (struct todo){.kind = t->kind,
                                     .layer = t->layer,
                                     .micro = t->micro,
                                     .replica = t->replica,
                                     .group = t->group,
                                     .loc = location_of(r, t, device),
                                     .save = t->kind == INSTR_FWD && graph_saves(g, t->layer),
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
