/* Implements the formula that planning_size.h explains. */
#include "scheduler/policy/planning_size.h"

#define BASE_BYTES    (4ull << 20)
#define OPERAND_BYTES 1500 /* per operand */
#define DEVICE_BYTES  60   /* per operand and device */
/* Estimated number of operands for the exchange of a layer's state, for each pair of devices that share the
 * state. */
#define SHARE_OPERANDS 2
/* Maximum number of operands that the NORM and the UPD of a layer have together, without the gradients that
 * they read. */
#define UPDATE_OPERANDS 8

/* Returns the number of operands of one forward task of layer l. */
static uint64_t forward_operands(const struct graph *g, uint32_t l)
{
    const struct layer_sizes *s = &g->layers[l].size;
    const struct graph_layer *gl = &g->layers[l];
    if (gl->loss_in_bwd)
        return 1;
    return (s->w > 0) + (gl->b_bytes > 0) + 1 + (gl->is_loss ? 2 : 1) + (s->s > 0) + (s->scratch_fwd > 0) +
           (s->room > 0) + gl->folds;
}

/* Returns the number of operands of one backward task of layer l. */
static uint64_t backward_operands(const struct graph *g, uint32_t l)
{
    const struct layer_sizes *s = &g->layers[l].size;
    const struct layer_sizes *original = &g->layers[g->layers[l].original].size;
    return 2 * (s->w > 0) + (g->layers[l].b_bytes > 0) + 1 + (original->s > 0) + 1 + g->layers[l].returns +
           g->layers[l].loss_in_bwd + (s->scratch_bwd > 0);
}

/* Adds the number of tasks of layer `l`, and the number of their operands, to *size. */
static void add_layer(const struct graph *g, uint32_t l, struct planning_size *size)
{
    uint64_t micros = graph_micros(g, l);
    if (graph_has_fwd(g, l)) {
        size->tasks += micros;
        size->operands += micros * forward_operands(g, l);
    }
    if (g->layers[l].backward) {
        size->tasks += micros;
        size->operands += micros * backward_operands(g, l);
    }
    if (g->layers[l].folds)
        size->operands += micros; /* UPD reads the statistics of every micro-batch */
    if (g->layers[l].size.w == 0)
        return;
    size->tasks += g->n_replicas - 1 + 2; /* RED, NORM and UPD */
    size->operands += 2 * (uint64_t)(g->n_replicas - 1) + 2 + UPDATE_OPERANDS;
}

int planning_measure(const struct graph_config *config, struct planning_size *ret, struct err *err)
{
    struct graph *g;
    int r = graph_describe(config, &g, err);
    if (r < 0)
        return r;
    *ret =
        (struct planning_size){.n_layers = g->n_layers, .n_micro = g->n_micro, .n_replicas = g->n_replicas};
    ret->tasks = g->n_groups; /* DECIDE */
    for (uint32_t l = 0; l < g->n_layers; l++)
        add_layer(g, l, ret);
    ret->tasks *= g->steps;
    ret->operands *= g->steps;
    graph_destroy(g);
    return 0;
}

uint64_t planning_bytes(const struct planning_size *s, enum policy_id policy, uint32_t n_devices)
{
    uint64_t shares = s->n_replicas < n_devices ? s->n_replicas : n_devices;
    uint64_t exchanged = shares > 1 ? SHARE_OPERANDS * (uint64_t)s->n_layers * shares * shares : 0;
    uint64_t bytes = (s->operands + exchanged) * (OPERAND_BYTES + DEVICE_BYTES * (uint64_t)n_devices);
    return BASE_BYTES + (policy == POLICY_resident ? bytes / 2 : bytes);
}

uint64_t planning_kept_bytes(uint64_t planning_bytes)
{
    return planning_bytes > PLANNING_FREE_BYTES ? planning_bytes / 2 : 0;
}
