/* Prints plans as text for people or as JSON for programs: one plan in full, or the plans of several policies
 * side by side. The verbs --plan and --plan-profile share this code. */
#ifndef DAEMON_WORKER_PLAN_PRINT_H
#define DAEMON_WORKER_PLAN_PRINT_H

#include "base/err.h"
#include "base/strbuf.h"
#include "daemon/worker/verbs.h"
#include "scheduler/graph.h"
#include "scheduler/plan.h"
#include "scheduler/predict/simulate.h"
#include "scheduler/predict/time_bound.h"
#include "scheduler/predict/why.h"

/* A plan with everything that is printed about it, or the reason why there is no plan. The verb fills the
 * struct in, but plan_print_simulate sets `sim`, `bound` and a part of `why`. plan_print_finish frees the
 * plan and the simulation. */
struct printed_plan {
    /* The policy that the user asked for. If this is "auto", plan->policy is the policy that `auto`
     * selected. */
    const char *policy;
    /* The verified plan. It is NULL if there is no plan, and then `code` and `err` say why. */
    struct plan *plan;
    const struct graph *graph; /* the graph of the plan */
    struct sim_result *sim;
    struct time_bound bound; /* the least time of a training step */
    /* What limits the speed of the plan. The verb adds how much more memory or more devices would gain. */
    struct why_report why;
    double plan_s; /* seconds that planning and verifying took */
    /* What the job needs of a machine. n_devices is 0 if the plan is not that of a job. */
    struct job_needs needs;
    int code; /* 0, or the negative errno of planning */
    struct err err;
    /* If there is no plan, the number of bytes per device that would be enough. It is 0 if device memory is
     * not the problem. */
    uint64_t least_bytes;
};

/* Simulates p->plan with the task durations `times`, finds out what limits its speed, and computes the bound
 * on the time of any plan of p->graph. */
void plan_print_simulate(struct printed_plan *p, const struct profile *times, const struct machine *m);

/* Destroys the plan and its simulation. A zero-initialized struct is also allowed. */
void plan_print_finish(struct printed_plan *p);

/* Prints one plan and writes the files of --out, --trace and --svg. `head` is printed above the page. `times`
 * names the source of the task durations. `members` is appended to the JSON object and must begin with a
 * comma. Returns the exit code. */
int plan_print_one(const struct verb_options *o, const struct printed_plan *p, const char *head,
                   const char *times, const char *members);

/* Prints `n` plans as a table or as a JSON array. If a plan does not fit, its element of the array has a
 * member "error". Returns the exit code, which is EXIT_MISFIT if no plan fits. */
int plan_print_all(const struct verb_options *o, const struct printed_plan *list, uint32_t n,
                   const char *head, const char *members);

#endif
