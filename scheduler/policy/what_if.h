/* Predicts how fast a job would be under other conditions: with more memory, or with another device. The
 * worker prints the answers below a plan (struct why_report).
 */
#ifndef SCHEDULER_POLICY_WHAT_IF_H
#define SCHEDULER_POLICY_WHAT_IF_H

#include "scheduler/policy/policy.h"
#include "scheduler/predict/why.h"

/* Sets *ret to a machine like `m`, but with `more_bytes` more memory on each device, and with `more_devices`
 * more devices. The new devices are like the last device of `m`. Returns -ERANGE if there would be more than
 * DEVICE_MAX devices. */
int what_if_machine(const struct machine *m, uint64_t more_bytes, uint32_t more_devices, struct machine *ret);

/* Limit on the work of the search that answers a what-if question (plan_request.most_work). An answer is
 * marked as estimated if the search was cut short. */
#define WHAT_IF_WORK (PLAN_WORK / 4)

/* Makes a plan for the request and simulates it. Sets ret->fits to false if there is no plan. */
void what_if_plan(const struct plan_request *request, struct what_if *ret);

/* Replaces the answer *w with *at_hand if *w is worse. *at_hand is the prediction for the plan in use. That
 * plan would also work with more memory or more devices. So an answer that is worse only means that the
 * search has missed a better plan. */
void what_if_keep(struct what_if *w, const struct what_if *at_hand, enum plan_objective objective);

#endif
