/* Planning: answers a request (scheduler/plan_request.h) with a plan, under a policy.
 *
 * A policy decides the order of the tasks and what stays in device memory. All later stages are common to
 * every policy: residency, addresses, waits, and the programs other than the cycle (scheduler/build/build.h).
 * A new policy is one new file and one row in scheduler/policies.def.
 *
 * Everything here is pure: it reads its arguments and allocates memory, but asks no system and keeps no
 * state.
 */
#ifndef SCHEDULER_POLICY_POLICY_H
#define SCHEDULER_POLICY_POLICY_H

#include "base/err.h"
#include "scheduler/plan.h"
#include "scheduler/plan_request.h"
#include "scheduler/policy/front.h"
#include "scheduler/profile.h"

/* What plan_make found out besides the plan. */
struct plan_report {
    struct score score; /* of the plan that was returned */
    /* The scores of the plans that no other plan of the search beats in both time and bytes, in ascending
     * order of time. */
    uint32_t n_front;
    struct score front[FRONT_MAX];
    /* A time that no plan for this graph and machine can beat (predict/time_bound.h). */
    uint64_t floor_ns;
    uint64_t work; /* instructions that the search built */
};

/* Limits on the length of a search, in instructions built. Building one takes a few microseconds. A limit in
 * seconds would make the plan depend on the computer that plans.
 *
 * A search that has found a plan stops after PLAN_WORK instructions. A search without a plan may build
 * PLAN_WORK_IN_VAIN times as many. The lean candidates (lean.h) are tried before the limit counts, so a
 * search that is cut short still finds a plan if a lean candidate fits. */
#define PLAN_WORK         400000
#define PLAN_WORK_IN_VAIN 10

/* Makes the best plan that fits the machine. The plan is not verified yet, and the caller destroys it.
 * Returns -ENOSPC when no plan fits. If device memory is too small, `err` names the least capacity per device
 * that would suffice and the layer that needs most memory, and *ret_least (may be NULL) gets that capacity.
 * If only host memory is too small, `err` names the bytes needed. If no capacity would suffice with this host
 * memory, `err` names both memories. In these two cases *ret_least is left unchanged. */
int plan_make(const struct plan_request *request, struct plan **ret, uint64_t *ret_least, struct err *err);

/* Finds out whether plan_make would find a plan, without searching for a good one. Returns 0, or -ENOSPC with
 * the message of plan_make. */
int plan_fits(const struct plan_request *request, struct err *err);

/* Returns the durations of all tasks that plan_make would use for this request. The caller frees them with
 * profile_destroy. */
struct profile *plan_profile(const struct plan_request *request);

/* Finds the smallest number of bytes per device with which plan_make succeeds, if all devices have the same
 * memory. Ignores capacity_bytes of the machine. Sets *ret_bytes to UINT64_MAX if the host memory is too
 * small for every lean candidate, so that the number is not known. */
int plan_least_capacity(const struct plan_request *request, uint64_t *ret_bytes, struct err *err);

/* Returns the number of bytes that the largest task on a device needs. No plan can use less device memory
 * than this task. Sets *ret to the task, or to NULL if there is none. */
uint64_t plan_largest_task(const struct graph *g, const struct graph_task **ret);

#endif
