/* Search for the best plan of a model that is known only by its profile table.
 *
 * Unlike sizes_choose (sizes.h), which chooses one micro-batch size for all layers, this search may choose a
 * different size for each layer. Jobs cannot use this search, because a job has one size.
 *
 * The search lists outlines of data-parallel plans (outline.h), then builds and simulates the best few. It
 * does not look at pipelines, because a pipeline computes no less than data-parallel devices do. The caller
 * tries pipelines with sizes_choose only if the result leaves something to gain: if the devices wait or, for
 * the fewest bytes, if state or stash still moves.
 */
#ifndef SCHEDULER_POLICY_PROFILE_SEARCH_H
#define SCHEDULER_POLICY_PROFILE_SEARCH_H

#include "base/err.h"
#include "scheduler/policy/policy.h"

/* The input of profile_search_outlines. Everything that the request points to belongs to the caller. */
struct profile_search_request {
    const struct table *table;
    const struct machine *machine;
    uint32_t batch; /* rows of a step */
    /* Number of rows in a micro-batch, for all layers. If 0, the search chooses a size for each layer. */
    uint32_t micro_batch;
    enum update_place update;
    enum plan_objective objective;
    /* The score of a plan that the caller already has, or NULL. Outlines that seem slower are not built. */
    const struct score *to_beat;
    /* Whether to build only the first plan of each kind that fits. */
    bool brief;
};

/* The plan that was found, and its graph. profile_search_result_finish frees both. */
struct profile_search_result {
    struct graph *graph;
    struct plan *plan;
    struct score score;
    bool moves_data_only; /* the plan moves neither state nor stash */
    /* Whether a training step takes clearly longer than a device computes, or whether some device is not
     * used. */
    bool waits;
};

/* Finds the best data-parallel plan. If no such plan fits, returns 0 and sets *ret to zeros. In this case,
 * plan_make may still find a pipeline, or it tells which memory is too small. */
int profile_search_outlines(const struct profile_search_request *q, struct profile_search_result *ret,
                            struct err *err);
void profile_search_result_finish(struct profile_search_result *r);

#endif
