/* Planning: a graph and a machine become a plan under a policy. A policy decides the task order and what is
 * kept; everything after that (residency, addresses, waits, the other programs) is common. A new policy is
 * one file and one row in policies.def.
 */
#ifndef SCHEDULER_POLICY_POLICY_H
#define SCHEDULER_POLICY_POLICY_H

#include "base/err.h"
#include "scheduler/graph.h"
#include "scheduler/machine.h"
#include "scheduler/plan.h"
#include "scheduler/profile.h"

enum policy_id {
#define POLICY(id, name) POLICY_##id,
#include "scheduler/policy/policies.def"
#undef POLICY
    POLICY_COUNT
};
extern const char *const policy_names[POLICY_COUNT + 1]; /* NULL-terminated */

enum update_place { UPDATE_AUTO, UPDATE_HOST, UPDATE_DEVICE, UPDATE_PLACE_COUNT };
extern const char *const update_place_names[UPDATE_PLACE_COUNT + 1];

/* What the best plan is: the fastest, or the one that moves fewest bytes to and from the host; ties by the other. */
enum plan_objective { OBJECTIVE_TIME, OBJECTIVE_BYTES, OBJECTIVE_COUNT };
extern const char *const plan_objective_names[OBJECTIVE_COUNT + 1];

struct plan_request {
    const struct graph *train, *eval; /* eval may be NULL: no eval program */
    const struct machine *machine;
    enum policy_id policy; /* POLICY_auto: its own search, and the others where they are better */
    enum update_place update;
    const struct table *table; /* measured times, for graphs of its micro-batch size; NULL: analytic ones */
    enum plan_objective objective; /* the least time, of equals the fewest bytes; or the other way round */
    uint64_t most_work;            /* instructions of candidates that are built, about; 0: PLAN_WORK */
    uint64_t *used_work;           /* plan_make adds what it has built; may be NULL */
};

/* How long a search may take, in instructions that are built (some microseconds each) and never by a clock, so that the plan
 * does not depend on the computer that plans. A search that has a plan stops after PLAN_WORK instructions.
 * A search that has none yet may build PLAN_WORK_IN_VAIN times as many; after that, only the leanest candidates are tried. */
#define PLAN_WORK         4000000
#define PLAN_WORK_IN_VAIN 2

/* The best plan of the policy that fits, not yet verified. -ENOSPC when none fits: err says the least
 * capacity per device that would do, and the layer that needs most; *ret_least, where given, gets it. When only host memory lacks, err says
 * how much, and *ret_least stays as it was. */
int plan_make(const struct plan_request *request, struct plan **ret, uint64_t *ret_least, struct err *err);

/* The times that plan_make goes by; the caller destroys them. */
struct profile *plan_profile(const struct plan_request *request);

/* The least capacity (the same for each device) that plan_make accepts for this request;
 * machine->capacity_bytes is ignored. */
int plan_least_capacity(const struct plan_request *request, uint64_t *ret_bytes, struct err *err);

/* The task for devices that needs most bytes at once, each operand rounded up to PLAN_ALIGN: no plan does with less. Of
 * equals that of the first layer; *ret is NULL when there is none. */
uint64_t plan_largest_task(const struct graph *g, const struct graph_task **ret);

#endif
