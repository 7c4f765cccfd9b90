/* The profile: how long each task of a graph takes on a machine.
 *
 * A profile is made for one graph, either from a table of measurements (table.h) or from formulas. The
 * planner and the simulator read it. It has no durations of moves: the simulator computes these from the
 * bandwidths of the machine.
 */
#ifndef SCHEDULER_PROFILE_H
#define SCHEDULER_PROFILE_H

#include "scheduler/graph.h"
#include "scheduler/machine.h"
#include "scheduler/table.h"

/* How long each task of a layer takes. A layer without weights has no RED, NORM and UPD tasks, so the times
 * of these tasks are 0. */
struct profile_layer {
    uint64_t fwd_ns, bwd_ns;               /* one micro-batch */
    uint64_t red_device_ns, red_host_ns;   /* RED of one replica */
    uint64_t norm_device_ns, norm_host_ns; /* NORM */
    uint64_t upd_device_ns, upd_host_ns;   /* UPD */
};

struct profile {
    uint32_t n_layers;
    struct profile_layer *layers;
    uint64_t decide_ns;  /* DECIDE, which runs on the host */
    struct arena *arena; /* owns the array, and this struct */
};

/* Makes a profile from formulas. A task takes as long as its arithmetic or as its memory traffic, whichever
 * is longer, plus the fixed cost of a launch. */
struct profile *profile_analytic(const struct graph *g, const struct machine *m);

/* Makes a profile from a table of measurements, which must have as many layers as the graph. Times that the
 * table lacks are estimated from the memory traffic. */
struct profile *profile_from_table(const struct table *t, const struct graph *g, const struct machine *m);

/* Frees a profile and everything in it. Does nothing if `p` is NULL. */
void profile_destroy(struct profile *p);

/* Returns the duration of a task on the host or on a device. Returns 0 for moves and drops. */
uint64_t profile_task_ns(const struct profile *p, enum instr_kind kind, uint32_t layer, bool on_host);

#endif
