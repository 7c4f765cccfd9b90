/* Policy `harmony-pp`: Harmony's wrap-around pipeline (Li et al., VLDB'22) on N devices, or on one.
 *
 * The chain is cut into forward packs and backward packs. A device runs all micro-batches through one pack
 * before it starts the next, so W is fetched once per pass. The packs go round robin over the devices. The
 * last backward pack has no separate forward pass: it runs forward, loss and backward for one micro-batch
 * after another. The other backward packs recompute their inside from their stashed input. A layer is updated
 * as soon as its last backward pass is done. Activations go directly to the next device. Nothing stays on a
 * device across cycles.
 *
 * The search finds the fewest backward packs that fit, then the fewest forward packs. It takes knobs with
 * less overlap only if they allow fewer packs than knobs with more overlap.
 */
#include <stdlib.h>

#include "scheduler/policy/candidate.h"

/* The settings to try. The first lets the most moves overlap with compute, and the last needs the least
 * memory. */
static const struct knobs variants[] = {
    {.keep = KEEP_UNIT, .lead_state = 1, .lead_items = 1},
    {.keep = KEEP_UNIT, .lead_state = 0, .lead_items = 1},
    {.keep = KEEP_UNIT, .lead_state = 0, .lead_items = 0},
};
#define N_VARIANTS (sizeof variants / sizeof variants[0])

/* Finds the smallest value of *count, at least `low`, with which the candidate fits into memory. `count`
 * points to a field of *c. The candidate must fit with the value that *count has at the call. */
static int fewest(struct trial *t, struct candidate *c, uint32_t *count, uint32_t low)
{
    uint32_t high = *count;
    while (low < high) {
        *count = low + (high - low) / 2;
        int e = t->run(t, c);
        if (e < 0)
            return e;
        if (e > 0)
            high = *count;
        else
            low = *count + 1;
    }
    *count = high;
    return 0;
}

int harmony_search(const struct plan_request *r, struct trial *t, bool retain)
{
    /* The number of packs that the best variant so far needs. A variant with less overlap is worth trying
     * only with fewer packs. */
    uint32_t packs = r->train->n_layers + 1;
    for (size_t i = 0; i < N_VARIANTS && packs > 1; i++) {
        struct candidate c;
        policy_harmony_pp.leanest(r, &c);
        c.knobs = variants[i];
        c.knobs.retain = retain;
        c.packs_bwd = packs - 1;
        int e = t->run(t, &c);
        if (e == 0)
            continue;
        if (e > 0)
            e = fewest(t, &c, &c.packs_bwd, 1);
        /* A single backward pack covers the whole chain, with its own forward pass. There are then no forward
         * packs to choose. */
        if (e == 0 && c.packs_bwd > 1)
            e = fewest(t, &c, &c.packs_fwd, 1);
        if (e < 0)
            return e;
        packs = c.packs_bwd;
    }
    return 0;
}

static int harmony_pp_search(const struct plan_request *r, struct trial *t)
{
    return harmony_search(r, t, false);
}

static void harmony_pp_leanest(const struct plan_request *r, struct candidate *ret)
{
    *ret = (struct candidate){
        .packs_fwd = r->train->n_layers, .packs_bwd = r->train->n_layers, .knobs = variants[N_VARIANTS - 1]};
}

void harmony_passes(struct passes *p, const struct candidate *c, uint32_t from, uint32_t to, uint32_t device,
                    uint32_t n)
{
    const struct graph *g = p->o->graph;
    uint32_t *fwd = xcalloc(g->n_layers + 1, sizeof *fwd), *bwd = xcalloc(g->n_layers + 1, sizeof *bwd);
    uint32_t task = 0;

    partition_layers(p->prof, 1, 0, g->n_layers, c->packs_bwd, bwd);
    uint32_t fused = bwd[c->packs_bwd - 1];
    uint32_t packs_fwd = c->packs_fwd < fused ? c->packs_fwd : fused;
    if (packs_fwd > 0)
        partition_layers(p->prof, 1, 0, fused, packs_fwd, fwd);
    for (uint32_t i = 0; i < packs_fwd; i++)
        pass_forward(p, fwd[i], fwd[i + 1], from, to, device + task++ % n);
    pass_fused(p, fused, g->n_layers, from, to, device + task++ % n);
    for (uint32_t k = c->packs_bwd - 1; k-- > 0;)
        pass_backward(p, bwd[k], bwd[k + 1], from, to, device + task++ % n);
    xfree(fwd);
    xfree(bwd);
}

static void harmony_pp_order(const struct plan_request *r, const struct profile *prof,
                             const struct candidate *c, struct order *ret)
{
    struct passes p;
    order_init(ret, r->train, r->machine->n_devices);
    passes_begin(&p, ret, r, prof);
    harmony_passes(&p, c, 0, r->train->rows * r->train->n_micro, 0, r->machine->n_devices);
    passes_end(&p);
}

const struct policy policy_harmony_pp = {
    .name = "harmony-pp",
    .default_update = UPDATE_HOST,
    .search = harmony_pp_search,
    .leanest = harmony_pp_leanest,
    .order = harmony_pp_order,
};
