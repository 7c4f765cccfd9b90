/* The profile: how long each task of one graph takes on one machine. From a table of measurements (table.h), or, where
 * there is none, analytic: the larger of FLOPs over the device's rate and bytes over its memory bandwidth, plus the
 * launch cost. */
#ifndef SCHEDULER_PROFILE_H
#define SCHEDULER_PROFILE_H

#include "scheduler/graph.h"
#include "scheduler/machine.h"
#include "scheduler/table.h"

struct profile_layer {
    uint64_t fwd_ns, bwd_ns;             /* one micro-batch */
    uint64_t red_device_ns, red_host_ns; /* of one replica */
    uint64_t norm_device_ns, norm_host_ns;
    uint64_t upd_device_ns, upd_host_ns;
};

struct profile {
    uint32_t n_layers;
    struct profile_layer *layers;
    uint64_t decide_ns;
    struct arena *arena;
};

struct profile *profile_analytic(const struct graph *g, const struct machine *m);
/* What the table says at the graph's micro-batch size. Updates on the device and norms that nobody measured (0) take
 * their memory traffic's time. The table has as many layers as the graph. */
struct profile *profile_from_table(const struct table *t, const struct graph *g, const struct machine *m);
void profile_destroy(struct profile *p);

/* Duration of a task instruction; on_host where it runs on the host's stream. Moves are the machine's
 * business. */
uint64_t profile_task_ns(const struct profile *p, enum instr_kind kind, uint32_t layer, bool on_host);

#endif
