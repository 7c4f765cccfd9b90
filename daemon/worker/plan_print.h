/* Prints plans as text for people or as JSON for programs: one plan in full, or the plans of several
 * policies side by side. --plan and --plan-profile share this code, so that both print the same page, the
 * same JSON and the same table. */
#ifndef DAEMON_WORKER_PLAN_PRINT_H
#define DAEMON_WORKER_PLAN_PRINT_H

#include "base/err.h"
#include "base/strbuf.h"
#include "daemon/worker/verbs.h"
#include "scheduler/graph.h"
#include "scheduler/plan.h"
#include "scheduler/predict/simulate.h"
#include "scheduler/predict/why.h"

/* A plan with everything that is printed about it, or the reason why there is none. The verb fills in all
 * members but `sim` and part of `why`, which plan_print_simulate sets. plan_print_finish frees plan and
 * sim. */
struct printed_plan {
    const char *policy;        /* the policy that was asked for; the plan's own policy differs with "auto" */
    struct plan *plan;         /* the verified plan; NULL: there is none, and code and err say why */
    const struct graph *graph; /* the graph of the plan */
    struct sim_result *sim;
    struct why_report why; /* what limits the speed; the verb adds what more memory or devices would bring */
    double plan_s;         /* seconds that planning and verifying took */
    int code;              /* 0, or the negative errno of planning */
    struct err err;
    uint64_t least_bytes; /* bytes of each device that would be enough; 0: device memory is not the reason */
};

/* Simulates the plan with these task durations and finds what limits its speed. */
void plan_print_simulate(struct printed_plan *p, const struct profile *times, const struct machine *m);

/* Destroys the plan and its simulation. Accepts a zeroed struct. */
void plan_print_finish(struct printed_plan *p);

/* Writes the files of --out, --trace and --svg if they were asked for, then prints the plan. `head` is
 * text to print above the page. `times` says where the durations come from, as in plan_summary. `members`
 * are further members of the JSON object, each with a comma before it. Returns the exit code. */
int plan_print_one(const struct verb_options *o, const struct printed_plan *p, const char *head,
                   const char *times, const char *members);

/* Prints n plans as a table, or as a JSON array in which a plan that does not fit has an "error". Returns
 * the exit code, which is EXIT_MISFIT when no plan fits. */
int plan_print_all(const struct verb_options *o, const struct printed_plan *list, uint32_t n,
                   const char *head, const char *members);

#endif
