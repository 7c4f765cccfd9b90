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

/* What makes the bound as long as it is. The first TIME_BOUND_SHARED kinds are resources that the whole step
 * has to share. */
enum time_bound_kind {
    TIME_BOUND_COMPUTE,     /* the compute streams of all devices */
    TIME_BOUND_LINK_IN,     /* all links from the host to the devices */
    TIME_BOUND_LINK_OUT,    /* all links from the devices to the host */
    TIME_BOUND_HOST,        /* the stream of the host */
    TIME_BOUND_HOST_MEMORY, /* the bandwidth of host memory */
    TIME_BOUND_CORES,       /* the cores that virtual devices share */
    TIME_BOUND_MEMORY,      /* the memory of all devices, in bytes times seconds */
    TIME_BOUND_SHARED,
    TIME_BOUND_CHAIN = TIME_BOUND_SHARED, /* tasks of one step that must follow one another */
    TIME_BOUND_KIND_COUNT
};
extern const char *const time_bound_names[TIME_BOUND_KIND_COUNT]; /* "compute", "link in", ... */

struct time_bound {
    uint64_t ns; /* of one training step */
    /* The resource that binds or, if the bound follows from several resources together, the one that counts
     * most. */
    enum time_bound_kind kind;
    /* Whether the bound follows from several resources together: bytes that find no room on a device must
     * cross a link or be computed again. */
    bool traded;
};

/* Computes the bound. Takes time in proportion to the number of layers. */
void time_bound(const struct graph *g, const struct machine *m, const struct profile *prof,
                struct time_bound *ret);

/* Returns only the nanoseconds of the bound. */
uint64_t time_bound_ns(const struct graph *g, const struct machine *m, const struct profile *prof);

#endif
