/* A lower bound on the time of a training step, for a graph on a machine, before there is a plan.
 *
 * No plan of this graph trains faster on this machine, whatever its order, its packs, and what it keeps,
 * moves or computes again. Reports show the bound beside the predicted time of a plan. A search can compare
 * with the bound to see that nothing is left to gain. docs/bound.md has the statement and its proof.
 *
 * The bound is for the micro-batch sizes and the replicas of the graph. A graph with other sizes has another
 * bound.
 */
#ifndef SCHEDULER_PREDICT_TIME_BOUND_H
#define SCHEDULER_PREDICT_TIME_BOUND_H

#include "scheduler/graph.h"
#include "scheduler/machine.h"
#include "scheduler/profile.h"

/* What makes the bound as long as it is. The kinds before TIME_BOUND_SHARED are resources that the tasks and
 * moves of a step have to share. */
enum time_bound_kind {
    TIME_BOUND_COMPUTE,     /* compute streams of all devices */
    TIME_BOUND_LINK_IN,     /* links from host to devices */
    TIME_BOUND_LINK_OUT,    /* links from devices to host */
    TIME_BOUND_HOST,        /* the stream of the host */
    TIME_BOUND_HOST_MEMORY, /* the bandwidth of host memory */
    TIME_BOUND_CORES,       /* the cores that virtual devices share */
    /* The memory of all devices. A step uses bytes of it for some time, so the unit is byte times second. */
    TIME_BOUND_MEMORY,
    TIME_BOUND_SHARED,
    /* A chain of tasks, each of which needs the result of the task before. */
    TIME_BOUND_CHAIN = TIME_BOUND_SHARED,
    TIME_BOUND_KIND_COUNT
};
extern const char *const time_bound_names[TIME_BOUND_KIND_COUNT]; /* "compute", "link in", ... */

struct time_bound {
    uint64_t ns; /* of one training step */
    /* What limits the time. If several resources limit it together, the one with the largest weight. */
    enum time_bound_kind kind;
    /* Whether several resources limit the time together. Then bytes that do not fit on a device must move
     * over a link or be computed again. */
    bool traded;
};

/* Computes a lower bound on the time of a training step. The computation takes time in proportion to the
 * number of layers. */
void time_bound(const struct graph *g, const struct machine *m, const struct profile *prof,
                struct time_bound *ret);

/* Returns only the nanoseconds of the bound. */
uint64_t time_bound_ns(const struct graph *g, const struct machine *m, const struct profile *prof);

#endif
