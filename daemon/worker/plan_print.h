/* Plans that were made, told to people and to programs: one in full, or several side by side. What --plan prints of a job
 * and --plan-profile of a profile is the same page, the same JSON and the same table. */
#ifndef DAEMON_WORKER_PLAN_PRINT_H
#define DAEMON_WORKER_PLAN_PRINT_H

#include "base/err.h"
#include "base/strbuf.h"
#include "daemon/worker/verbs.h"
#include "scheduler/graph.h"
#include "scheduler/plan.h"
#include "scheduler/predict/simulate.h"
#include "scheduler/predict/why.h"

struct printed_plan {
    const char *policy;        /* as it was asked for: "auto" becomes the plan's own */
    struct plan *plan;         /* verified; NULL: there is none, and why is in code and err */
    const struct graph *graph; /* the plan's */
    struct sim_result *sim;
    struct why_report why; /* what would be is left to who made the plan */
    double plan_s;         /* planning and verifying took */
    int code;
    struct err err;
    uint64_t least_bytes; /* of each device, with which it would fit; 0: something else is wrong */
};

/* Simulates the plan with these times, and finds what binds. */
void plan_print_simulate(struct printed_plan *p, const struct profile *times, const struct machine *m);
void plan_print_finish(struct printed_plan *p); /* plan and simulation; takes a zeroed one */

/* Writes --out, --trace and --svg where they were asked for, then prints one plan. `head`: a line or more above the page;
 * `times`: as in plan_summary; `members`: further members of the JSON object, each with a comma before it. Returns the
 * exit code. */
int plan_print_one(const struct verb_options *o, const struct printed_plan *p, const char *head,
                   const char *times, const char *members);

/* All of them: a table, or an array in which those that do not fit have an "error". EXIT_MISFIT when none fits. */
int plan_print_all(const struct verb_options *o, const struct printed_plan *list, uint32_t n,
                   const char *head, const char *members);

#endif
