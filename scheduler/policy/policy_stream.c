/* Policy `stream`: one layer at a time, micro-batch by micro-batch, like ZeRO-3 with offload. It needs the
 * least memory of all policies and moves the most bytes, so it is the baseline for comparisons.
 *
 * W is fetched for every pass of every micro-batch. Unfinished gradients are spilled and fetched again
 * between micro-batches. The input of every layer is stashed on the host, and its S is recomputed. Layer l
 * runs on device l mod N.
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

static int stream_search(const struct plan_request *r, struct trial *t)
{
    (void)r;
    for (size_t i = 0; i < N_VARIANTS; i++) {
        struct candidate c = {.knobs = variants[i]};
        int e = t->run(t, &c);
        if (e < 0)
            return e;
    }
    return 0;
}

static void stream_leanest(const struct plan_request *r, struct candidate *ret)
{
    (void)r;
    *ret = (struct candidate){.knobs = variants[N_VARIANTS - 1]};
}

/* The order that is being written, and the next free numbers of spans and items. */
struct unit_cursor {
    struct order *o;
    /* next[d] is the number of the next span on device d. Every pass of a layer is one span, with one item of
     * the same number. */
    uint32_t next[DEVICE_MAX];
};

/* Returns whether a micro-batch turns from the forward to the backward pass at this layer. */
static bool turns_at(const struct graph *g, uint32_t layer)
{
    return layer == g->n_layers - 1 && g->training && g->layers[layer].backward;
}

/* Appends the task of kind `kind` that computes micro-batch `micro` of layer `layer`. The task becomes part
 * of the pass that the order is writing, which is a pass of layer `unit_of`. So the task runs on the device
 * of `unit_of`, and what it uses stays on the device until the pass ends (end_unit).
 *
 * `layer` and `unit_of` differ only if `unit_of` is a twin: its backward pass begins with a recompute (REC)
 * of the original, on the device of the twin. */
static void add_task(struct unit_cursor *c, enum instr_kind kind, uint32_t layer, uint32_t micro,
                     uint32_t unit_of)
{
    uint32_t d = unit_of % c->o->n_devices, unit = c->next[d];
    order_add(c->o, (struct todo){.kind = kind,
                                  .layer = layer,
                                  .micro = micro,
                                  .loc = d,
                                  .span = unit,
                                  .item = unit,
                                  .save = kind == INSTR_REC || turns_at(c->o->graph, layer),
                                  .output = kind == INSTR_FWD});
}

/* Ends the current pass of layer `layer`. The next task on the device of this layer begins a new pass. */
static void end_unit(struct unit_cursor *c, uint32_t layer)
{
    c->next[layer % c->o->n_devices]++;
}

static void stream_order(const struct plan_request *r, const struct profile *prof,
                         const struct candidate *cand, struct order *ret)
{
    const struct graph *g = r->train;
    uint32_t n_devices = r->machine->n_devices;
    (void)prof;
    (void)cand;
    order_init(ret, g, n_devices);
    order_begin(ret);
    struct unit_cursor c = {.o = ret};
    uint32_t *bwd_device = xcalloc(g->n_layers, sizeof *bwd_device);
    for (uint32_t l = 0; l < g->n_layers; l++)
        bwd_device[l] = l % n_devices;
    for (uint32_t j = 0; j < g->n_micro; j++) {
        for (uint32_t l = 0; l < g->n_layers; l++) {
            if (!graph_has_fwd(g, l))
                continue;
            add_task(&c, INSTR_FWD, l, j, l);
            if (!turns_at(g, l))
                /* The last loss is an exception: its forward and backward pass form one span, which ends
                 * after the backward pass. */
                end_unit(&c, l);
        }
        for (uint32_t l = g->n_layers; g->training && l-- > 0;) {
            const struct graph_layer *original = &g->layers[g->layers[l].original];
            if (!g->layers[l].backward && !graph_updates(g, l))
                continue;
            if (g->layers[l].backward && !turns_at(g, l) && original->size.s > 0)
                add_task(&c, INSTR_REC, g->layers[l].original, j, l);
            if (g->layers[l].backward)
                add_task(&c, INSTR_BWD, l, j, l);
            uint32_t d = l % n_devices;
            order_gradients_done(ret, r, l, l + 1, j, d, c.next[d], &c.next[d]);
            end_unit(&c, l);
        }
    }
    order_updates(ret, r, bwd_device, c.next, c.next);
    xfree(bwd_device);
}

const struct policy policy_stream = {
    .name = "stream",
    .default_update = UPDATE_HOST,
    .search = stream_search,
    .leanest = stream_leanest,
    .order = stream_order,
};
