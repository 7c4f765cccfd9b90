/* Search: the best plan for a model of which a profile is known, over micro-batch sizes, also such that differ from layer
 * to layer, and over forms. (A job's sizes are frozen: plan_make, policy.h, searches within one graph.)
 *
 * Outlines (outline.h) say which data parallel plans are worth building; of these a few are built and simulated. A pipeline
 * computes no less than they do, so it is looked at only where they are kept waiting by something else.
 */
#ifndef SCHEDULER_POLICY_PROFILE_SEARCH_H
#define SCHEDULER_POLICY_PROFILE_SEARCH_H

#include "base/err.h"
#include "scheduler/policy/policy.h"

struct profile_search_request {
    const struct table *table;
    const struct machine *machine;
    uint32_t batch;
    uint32_t micro_batch; /* the one size of all layers; 0: whichever are best */
    enum update_place update;
    enum plan_objective objective;
};

/* A plan with the graph that it is of. */
struct profile_search_result {
    struct graph *graph;
    struct plan *plan;
    uint64_t ns, bytes;   /* of an iteration; to and from the host */
    bool moves_data_only; /* neither state nor stash */
    bool waits;           /* it takes notably longer than its devices compute, or not all of them work */
};

/* 0 with *ret all zero when no outline fits: then plan_make may find a way, and says what lacks. */
int profile_search_outlines(const struct profile_search_request *q, struct profile_search_result *ret,
                            struct err *err);
void profile_search_result_finish(struct profile_search_result *r);

#endif
