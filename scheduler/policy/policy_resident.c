/* Policy `resident`: for models that fit into device memory. The chain is cut into one stage per device,
 * balanced by time. State never leaves its device, and activations stay from the forward to the backward
 * pass.
 *
 * Each stage follows the one-forward-one-backward schedule. It first runs as many forward passes as there are
 * stages from it to the end, and then alternates backward and forward passes. This keeps the pipeline full
 * and holds the fewest activations. On one device, each micro-batch runs forward and then backward before the
 * next starts.
 */
#include <stdlib.h>

#include "scheduler/policy/candidate.h"

static int resident_search(const struct plan_request *r, struct trial *t)
{
    struct candidate c;
    policy_resident.leanest(r, &c);
    int e = t->run(t, &c);
    return e < 0 ? e : 0;
}

static void resident_leanest(const struct plan_request *r, struct candidate *ret)
{
    (void)r;
    *ret = (struct candidate){.knobs = {.keep = KEEP_ALL, .lead_state = 1, .lead_items = 1}};
}

/* The part of the chain that one device computes, in a pipeline. */
struct stage {
    uint32_t device, first, last; /* layers [first, last) */
    uint32_t item;                /* number of the device's next item */
};

static void forward(struct order *o, struct stage *s, uint32_t micro)
{
    for (uint32_t l = s->first; l < s->last; l++)
        if (graph_has_fwd(o->graph, l))
            order_add(o, (struct todo){.kind = INSTR_FWD,
                                       .layer = l,
                                       .micro = micro,
                                       .loc = s->device,
                                       .item = s->item,
                                       .save = o->graph->training,
                                       .output = true});
    s->item++;
}

static void backward(struct order *o, const struct plan_request *r, struct stage *s, uint32_t micro)
{
    if (!o->graph->training)
        return;
    for (uint32_t l = s->last; l-- > s->first;)
        if (o->graph->layers[l].backward)
            order_add(o,
                      (struct todo){
                          .kind = INSTR_BWD, .layer = l, .micro = micro, .loc = s->device, .item = s->item});
    order_gradients_done(o, r, s->first, s->last, micro, s->device, 0, &s->item);
    s->item++;
}

static void resident_order(const struct plan_request *r, const struct profile *prof,
                           const struct candidate *c, struct order *ret)
{
    const struct graph *g = r->train;
    uint32_t n_layers = g->n_layers, m = g->n_micro;
    uint32_t n_stages = r->machine->n_devices < n_layers ? r->machine->n_devices : n_layers;
    uint32_t starts[DEVICE_MAX + 1], next_span[DEVICE_MAX] = {0}, next_item[DEVICE_MAX] = {0};
    (void)c;
    order_init(ret, g, r->machine->n_devices);
    order_begin(ret);
    uint32_t *bwd_device = xcalloc(n_layers, sizeof *bwd_device);
    partition_layers(prof, 1, 0, n_layers, n_stages, starts);
    for (uint32_t k = 0; k < n_stages; k++) {
        struct stage s = {k, starts[k], starts[k + 1], 0};
        uint32_t ahead = n_stages - k < m ? n_stages - k : m;
        for (uint32_t j = 0; j < ahead; j++)
            forward(ret, &s, j);
        for (uint32_t j = 0; j < m; j++) {
            backward(ret, r, &s, j);
            if (j + ahead < m)
                forward(ret, &s, j + ahead);
        }
        for (uint32_t l = s.first; l < s.last; l++)
            bwd_device[l] = k;
        next_item[k] = s.item;
    }
    order_updates(ret, r, bwd_device, next_span, next_item);
    xfree(bwd_device);
}

const struct policy policy_resident = {
    .name = "resident",
    .default_update = UPDATE_DEVICE,
    .search = resident_search,
    .leanest = resident_leanest,
    .order = resident_order,
};
