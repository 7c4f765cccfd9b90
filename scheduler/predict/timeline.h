/* The timeline: an event-driven engine that says when each operation of a program begins and ends. It knows streams,
 * operations, waits and shared resources, and nothing of plans, tensors or devices; simulate.c and harmony_rules.c
 * translate into it.
 *
 * A stream runs its operations one after another, in the order in which they stand in `ops`. An operation begins when
 * the one before it in its stream is done and all its waits are done. First `fixed_ns` pass, whatever else happens; then
 * its bytes go through all the resources that it uses at once (in no time, where nothing limits them). What is under way
 * through a resource shares it fairly (max-min: nobody could be given more bytes a second except by taking from somebody
 * who has no more), and the shares are computed anew whenever something starts or ends. An operation may take more than one
 * byte of a resource for a byte of its own: its weight there.
 *
 * A program may run several times back to back without draining. A wait of distance 0 names an operation of the same run,
 * which may stand before or behind; of distance d >= 1 that of the d-th run before; runs before the first are done.
 *
 * Pure and deterministic: integers only, whole nanoseconds, rounded up where the bytes of an operation end. So the same
 * program has the same times on every computer, and bytes alone on a resource take ceil(bytes * 1e9 / rate).
 */
#ifndef SCHEDULER_PREDICT_TIMELINE_H
#define SCHEDULER_PREDICT_TIMELINE_H

#include "scheduler/plan.h"

struct arena;

#define TIMELINE_MAX_USES 5          /* resources of one operation */
#define TIMELINE_NEVER    UINT64_MAX /* the span of what never began, in a program that waits for itself */

struct timeline_op {
    uint32_t stream;
    uint64_t fixed_ns;
    uint64_t bytes;
    uint64_t most_per_s; /* no more of its bytes in a second, even alone; 0: no such limit */
    uint32_t uses[TIMELINE_MAX_USES], n_uses; /* different resources */
    uint32_t weights[TIMELINE_MAX_USES];      /* bytes of the resource that one byte of this takes; 0: one */
    uint32_t wait, n_waits;                   /* range in timeline.waits */
};

struct timeline {
    const struct timeline_op *ops;
    const struct plan_wait *waits;
    const uint64_t *per_s; /* of each resource, more than 0: what is unlimited is no resource */
    uint32_t n_ops, n_streams, n_resources;
};

struct timeline_result {
    struct plan_span *spans; /* runs * n_ops */
    uint64_t *stream_ns;     /* how long each stream was in operations, in all runs */
    uint64_t
        *bound_ns; /* how long each resource was what held somebody up; 0 of one that only one stream uses */
    uint64_t first_ns, total_ns; /* end of the first run, of all */
};

/* Everything in the result is the arena's. -EDEADLK: some operations wait for each other; these have spans of
 * TIMELINE_NEVER, and the rest of the result holds for the others. */
int timeline_run(const struct timeline *t, uint32_t runs, struct arena *arena, struct timeline_result *ret);

#endif
