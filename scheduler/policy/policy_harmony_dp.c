/* Policy `harmony-dp`: Harmony's data-parallel form (Li et al., VLDB'22). Every device runs all packs on its
 * part of the batch, as `harmony-pp` does on one device, and fetches all weights itself. When a pack is done,
 * its gradients are reduced: each device adds up its share. The host updates the weights.
 *
 * Only as many devices work as divide the replicas evenly; with one replica that is one device.
 */
#include "scheduler/policy/candidate.h"

static int harmony_dp_search(const struct plan_request *r, struct trial *t)
{
    return policy_harmony_pp.search(r, t);
}

static void harmony_dp_leanest(const struct plan_request *r, struct candidate *ret)
{
    policy_harmony_pp.leanest(r, ret);
}

static void harmony_dp_order(const struct plan_request *r, const struct profile *prof,
                             const struct candidate *c, struct order *ret)
{
    const struct graph *g = r->train;
    uint32_t devices = order_replica_devices(g->n_replicas, r->machine->n_devices);
    uint32_t rows = g->n_micro / devices * g->rows;
    struct passes p;
    order_init(ret, g, r->machine->n_devices);
    if (devices > 1) {
        order_own(ret, devices);
        ret->alone = true;
        for (uint32_t l = 0; l < g->n_layers; l++)
            for (uint32_t s = 0; s < devices; s++)
                ret->owners[l * devices + s] = s;
    }
    passes_begin(&p, ret, r, prof);
    for (uint32_t d = 0; d < devices; d++)
        harmony_passes(&p, c, d * rows, (d + 1) * rows, d, 1);
    passes_end(&p);
}

const struct policy policy_harmony_dp = {
    .name = "harmony-dp",
    .default_update = UPDATE_HOST,
    .search = harmony_dp_search,
    .leanest = harmony_dp_leanest,
    .order = harmony_dp_order,
};
