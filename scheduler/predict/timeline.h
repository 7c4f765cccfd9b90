/* The timeline: an event-driven engine that computes when each operation of a program starts and ends.
 *
 * The engine knows streams, operations, waits and shared resources, and nothing of plans, tensors or devices.
 * simulate.c translates plans into operations, and harmony_rules.c translates Harmony's schedules.
 *
 * A stream runs its operations one after another, in the order in which they stand in `ops`. An operation
 * starts when its predecessor in the stream and all its waits are done. It first takes `fixed_ns`. Then its
 * bytes flow through all of its resources at the same time; without resources this takes no time. An
 * operation may use more than one byte of a resource for each byte of its own: this is its weight there.
 *
 * Flows that use the same resource share it fairly (max-min fairness): the rate of a flow can only
 * be raised by lowering the rate of a flow that is not faster. The rates are computed anew
 * whenever a flow starts or ends.
 *
 * A program may run several times, with runs overlapping. A wait of distance 0 names an operation of the same
 * run, which may come before or after the waiting one in `ops`. A wait of distance d >= 1 names an operation
 * d runs earlier; runs before the first count as done.
 *
 * The result is deterministic: all arithmetic is in integers and in whole nanoseconds, rounded up where an
 * operation ends. The same program has the same times on every computer. An operation that has a resource for
 * itself takes ceil(bytes * 1e9 / rate) for its bytes.
 */
#ifndef SCHEDULER_PREDICT_TIMELINE_H
#define SCHEDULER_PREDICT_TIMELINE_H

#include "scheduler/plan.h"

struct arena;

#define TIMELINE_MAX_USES 5 /* most resources of one operation */
/* Start and end time of an operation that never starts, because it is part of a deadlock. */
#define TIMELINE_NEVER UINT64_MAX

/* One operation of a program. */
struct timeline_op {
    uint32_t stream;
    uint64_t fixed_ns; /* time before the bytes flow */
    uint64_t bytes;    /* bytes that flow through the resources */
    /* Highest rate at which the operation moves bytes, in bytes per second. 0 if only the resources limit the
     * rate. */
    uint64_t most_per_s;
    uint32_t uses[TIMELINE_MAX_USES], n_uses; /* resources, all different */
    /* Number of bytes that each resource has to carry for one byte of the operation. 0 means 1. */
    uint32_t weights[TIMELINE_MAX_USES];
    uint32_t wait, n_waits; /* first wait and count, in timeline.waits */
};

/* A program for timeline_run: its operations, their waits, and the rates of the resources. The caller owns
 * the arrays. */
struct timeline {
    const struct timeline_op *ops;
    const struct plan_wait *waits;
    /* per_s[r] is the rate of resource r in bytes per second, which must be greater than 0. */
    const uint64_t *per_s;
    uint32_t n_ops, n_streams, n_resources;
};

/* The times that timeline_run computes. */
struct timeline_result {
    /* Start and end time of each operation. Operation i of run r is at index r * n_ops + i. */
    struct plan_span *spans;
    /* stream_ns[s] is the time during which stream s was busy, summed over all runs of the program. */
    uint64_t *stream_ns;
    /* bound_ns[r] is the time during which resource r limited the rate of some flow. Only resources that
     * several streams use are measured. */
    uint64_t *bound_ns;
    uint64_t first_ns; /* end of the first run */
    uint64_t total_ns; /* end of all runs */
};

/* Runs a program `runs` times. If some operations wait for each other forever, returns -EDEADLK, and sets the
 * times of these operations to TIMELINE_NEVER. */
int timeline_run(const struct timeline *t, uint32_t runs, struct arena *arena, struct timeline_result *ret);

#endif
