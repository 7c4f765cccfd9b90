/* Policy `lru`: demand paging as in unified memory, for comparison. `auto` never chooses it.
 *
 * The tasks run in the order of the graph: micro-batch by micro-batch over the whole chain, updates last.
 * Each device is a cache with LRU eviction (paging.c), which brings in a missing operand when its task comes
 * up. With several devices, the policy has one of two forms:
 *
 *     pipeline        One replica. Each device runs a contiguous part of the chain, balanced by time.
 *                     Activations go directly from one device to the next.
 *     data parallel   Several replicas. Each device runs the whole chain on its own replicas, and fetches all
 *                     weights from the host itself. Each layer has an owner, the device that adds up the
 *                     replicas' gradients of the layer and updates its weights.
 *
 * As with `harmony-dp`, only as many devices work as divide the replicas evenly.
 *
 * There is one candidate: the cache is as large as the device.
 */
#include <stdlib.h>

#include "scheduler/policy/candidate.h"

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

/* Divides the chain of layers into a pipeline over `n` devices. Sets device[l] to the device of layer l. */
static void divide_chain(const struct profile *prof, uint32_t n_layers, uint32_t n, uint32_t *device)
{
    uint32_t starts[DEVICE_MAX + 1], n_parts = n < n_layers ? n : n_layers;
    partition_layers(prof, 1, 0, n_layers, n_parts, starts);
    for (uint32_t k = 0; k < n_parts; k++)
        for (uint32_t l = starts[k]; l < starts[k + 1]; l++)
            device[l] = k;
}

/* Used only in the data-parallel form. Sets device[l] to the device, from 0 to n - 1, that adds up the
 * gradients of layer l and updates the layer. Each layer goes to the device that has the fewest bytes of
 * weights so far. */
static void deal_layers(const struct graph *g, uint32_t n, uint32_t *device)
{
    uint64_t bytes[DEVICE_MAX] = {0};
    for (uint32_t l = 0; l < g->n_layers; l++) {
        for (uint32_t d = 1; d < n; d++)
            if (bytes[d] < bytes[device[l]])
                device[l] = d;
        bytes[device[l]] += g->layers[l].size.w;
    }
}

/* Returns where a task runs. DECIDE runs on the host, and so do NORM, RED and UPD if the request asks for
 * updates there. In the data-parallel form (n_dp > 1), FWD and BWD run on the device of their replica. All
 * other tasks run on the device of their layer. */
static uint32_t location_of(const struct plan_request *r, const struct graph_task *t, uint32_t n_dp,
                            const uint32_t *device)
{
    if (t->kind == INSTR_DECIDE || (t->place == PLACE_ANY && r->update == UPDATE_HOST))
        return PLAN_HOST;
    if (n_dp > 1 && t->place == PLACE_DEVICE)
        return t->replica / (r->train->n_replicas / n_dp);
    return device[t->layer];
}

static void lru_order(const struct plan_request *r, const struct profile *prof, const struct candidate *c,
                      struct order *ret)
{
    const struct graph *g = r->train;
    uint32_t n_dp = order_replica_devices(g->n_replicas, r->machine->n_devices);
    uint32_t *device = xcalloc(g->n_layers, sizeof *device);
    (void)c;
    order_init(ret, g, r->machine->n_devices);
    ret->alone = n_dp > 1;
    if (n_dp > 1)
        deal_layers(g, n_dp, device);
    else
        divide_chain(prof, g->n_layers, r->machine->n_devices, device);
    for (uint32_t i = 0; i < g->n_tasks; i++) {
        const struct graph_task *t = &g->tasks[i];
        if (t->step > 0)
            break; /* order_repeat adds the further steps */
        order_add(ret, (struct todo){.kind = t->kind,
                                     .layer = t->layer,
                                     .micro = t->micro,
                                     .replica = t->replica,
                                     .group = t->group,
                                     .loc = location_of(r, t, n_dp, device),
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
