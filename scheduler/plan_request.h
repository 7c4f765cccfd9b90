/* What a caller of the planner asks for: the graphs, the machine and the wishes of a job.
 *
 * Every stage of planning reads the request: the policies (scheduler/policy/) and the stages that build a
 * plan (scheduler/build/). The job file (daemon/spec/) uses the enums and their names.
 */
#ifndef SCHEDULER_PLAN_REQUEST_H
#define SCHEDULER_PLAN_REQUEST_H

#include "scheduler/graph.h"
#include "scheduler/machine.h"
#include "scheduler/table.h"

/* The policies, which are rules that propose plans. policies.def has one row for each of them.
 * scheduler/policy/candidate.h says what a policy is. */
enum policy_id {
#define POLICY(id, name) POLICY_##id,
#include "scheduler/policies.def"
#undef POLICY
    POLICY_COUNT
};
extern const char *const policy_names[POLICY_COUNT + 1]; /* NULL-terminated */

/* Where the weights of the layers are updated. With UPDATE_AUTO, the policy decides. */
enum update_place { UPDATE_AUTO, UPDATE_HOST, UPDATE_DEVICE, UPDATE_PLACE_COUNT };
extern const char *const update_place_names[UPDATE_PLACE_COUNT + 1]; /* "auto", "host", "device", NULL */

/* What makes a plan the best. */
enum plan_objective {
    /* The fewest bytes among the plans that are at most 2 percent slower than the fastest plan. This is the
     * default. */
    OBJECTIVE_BALANCED,
    /* The shortest time of a training step. Of equally fast plans, the one that moves the fewest bytes. */
    OBJECTIVE_TIME,
    /* The fewest bytes moved from and to the host. Of plans that move equally many, the fastest. */
    OBJECTIVE_BYTES,
    OBJECTIVE_COUNT
};
extern const char *const plan_objective_names[OBJECTIVE_COUNT + 1]; /* "balanced", "time", "bytes", NULL */

struct plan_report; /* scheduler/policy/policy.h */

/* The input of plan_make. The caller fills it in. Everything that the request points to belongs to the
 * caller, and must live as long as the planner works. */
struct plan_request {
    /* The graphs for training and for evaluation. If `eval` is NULL, the plan has an empty eval program. */
    const struct graph *train, *eval;
    const struct machine *machine;
    /* The policy to use. POLICY_auto also tries some of the other policies and takes the best plan. */
    enum policy_id policy;
    enum update_place update;
    /* Measured durations of tasks at the graph's micro-batch size. If NULL, durations are computed with
     * formulas. */
    const struct table *table;
    enum plan_objective objective;
    /* Limit on the work of the search: the number of instructions in all plans that it builds. 0 means
     * PLAN_WORK. */
    uint64_t most_work;
    /* The time of a plan that the caller already has, or 0. plan_make then makes no plan that computes for
     * as long on some device, and returns -ENOSPC without a message if it finds none. The plan that it
     * returns may still take longer than this, because its devices also wait. */
    uint64_t to_beat_ns;
    /* Where plan_make stores the other results of the search, beside the plan. May be NULL. */
    struct plan_report *report;
};

#endif
