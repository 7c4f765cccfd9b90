/* Makes profiles from formulas and from tables.
 *
 * The formulas are a roofline model: a task takes as long as the slower of its arithmetic and its memory
 * traffic, plus the cost of a launch. All arithmetic is in integers and rounds up, so that the same graph and
 * machine give the same nanoseconds on every computer.
 *
 * UPD, NORM and RED do little arithmetic per byte, so memory traffic determines their time. An UPD reads dW
 * and reads and writes W and K. A NORM reads dW. A RED reads two dW and writes one. Each has a time for the
 * device and one for the host, because a plan may put it on either.
 */
#include "scheduler/profile.h"

#include "base/arena.h"
#include "scheduler/rate.h"

static uint64_t roofline_ns(const struct machine *m, uint64_t flops, uint64_t bytes)
{
    uint64_t busy = ns_max(rate_ns(flops, m->device_flops_per_s), rate_ns(bytes, m->device_bytes_per_s));
    return ns_add(busy, m->launch_ns);
}

static void profile_state(const struct graph_layer *l, const struct machine *m, struct profile_layer *ret)
{
    if (l->size.w == 0)
        return;
    uint64_t dw = l->dw_bytes;
    uint64_t upd = 2 * l->size.w + dw + 2 * l->k_bytes; /* cannot overflow: sizes are below 2^53 */
    ret->red_device_ns = ns_add(rate_ns(3 * dw, m->device_bytes_per_s), m->launch_ns);
    ret->red_host_ns = ns_add(rate_ns(3 * dw, m->host_bytes_per_s), m->launch_ns);
    ret->norm_device_ns = ns_add(rate_ns(dw, m->device_bytes_per_s), m->launch_ns);
    ret->norm_host_ns = ns_add(rate_ns(dw, m->host_bytes_per_s), m->launch_ns);
    ret->upd_device_ns = ns_add(rate_ns(upd, m->device_bytes_per_s), m->launch_ns);
    ret->upd_host_ns = ns_add(rate_ns(upd, m->host_bytes_per_s), m->launch_ns);
}

static struct profile *new_profile(const struct graph *g, const struct machine *m)
{
    struct arena *arena = arena_create();
    struct profile *p = arena_alloc(arena, sizeof *p);

    p->arena = arena;
    p->n_layers = g->n_layers;
    p->layers = arena_alloc_array(arena, g->n_layers, sizeof *p->layers);
    for (uint32_t l = 0; l < g->n_layers; l++)
        profile_state(&g->layers[l], m, &p->layers[l]);
    /* DECIDE reads only one double for each layer, so nearly all of its time is the fixed cost of a
     * launch. */
    p->decide_ns = ns_add(rate_ns(g->n_layers * sizeof(double), m->host_bytes_per_s), m->launch_ns);
    return p;
}

struct profile *profile_analytic(const struct graph *g, const struct machine *m)
{
    struct profile *p = new_profile(g, m);
    for (uint32_t l = 0; l < g->n_layers; l++) {
        const struct layer_cost *cost = &g->layers[l].cost;
        p->layers[l].fwd_ns = roofline_ns(m, cost->fwd_flops, cost->fwd_bytes);
        p->layers[l].bwd_ns = roofline_ns(m, cost->bwd_flops, cost->bwd_bytes);
    }
    return p;
}

struct profile *profile_from_table(const struct table *t, const struct graph *g, const struct machine *m)
{
    struct profile *p = new_profile(g, m);
    for (uint32_t l = 0; l < g->n_layers && l < t->n_layers; l++) {
        struct table_point at;
        table_at(t, l, g->layers[l].rows, &at);
        p->layers[l].fwd_ns = at.fwd_ns;
        p->layers[l].bwd_ns = at.bwd_ns;
        if (at.upd_host_ns > 0)
            p->layers[l].upd_host_ns = at.upd_host_ns;
        if (at.upd_device_ns > 0)
            p->layers[l].upd_device_ns = at.upd_device_ns;
    }
    return p;
}

void profile_destroy(struct profile *p)
{
    if (p)
        arena_destroy(p->arena);
}

uint64_t profile_task_ns(const struct profile *p, enum instr_kind kind, uint32_t layer, bool on_host)
{
    if (kind == INSTR_DECIDE)
        return p->decide_ns;
    /* In a plan that was not verified, `layer` may be any number, even one that is too large. */
    if (layer >= p->n_layers)
        return 0;

    const struct profile_layer *l = &p->layers[layer];
    switch (kind) {
    case INSTR_FWD:
    case INSTR_REC:
        return l->fwd_ns;
    case INSTR_BWD:
        return l->bwd_ns;
    case INSTR_RED:
        return on_host ? l->red_host_ns : l->red_device_ns;
    case INSTR_NORM:
        return on_host ? l->norm_host_ns : l->norm_device_ns;
    case INSTR_UPD:
        return on_host ? l->upd_host_ns : l->upd_device_ns;
    default:
        return 0;
    }
}
