/* Prints plans as text for people or as JSON for programs. Prints one plan in full, or the plans of
 * several policies side by side. --plan and --plan-profile share this code. */
#ifndef DAEMON_WORKER_PLAN_PRINT_H
#define DAEMON_WORKER_PLAN_PRINT_H

#include "base/err.h"
#include "base/strbuf.h"
#include "daemon/worker/verbs.h"
#include "scheduler/graph.h"
#include "scheduler/plan.h"
#include "scheduler/predict/simulate.h"
#include "scheduler/predict/why.h"

/* A plan with everything that is printed about it, or why there is none. The verb fills it in, except for
 * `sim` and a part of `why`. plan_print_simulate sets these. plan_print_finish frees the plan and the
 * simulation. */
struct printed_plan {
    /* The policy that was asked for. With "auto", the plan has another policy. */
    const char *policy;
    /* The verified plan. If there is no plan, this is NULL, and `code` and `err` say why. */
    struct plan *plan;
    const struct graph *graph; /* the graph of the plan */
    struct sim_result *sim;
    /* What limits the speed. The verb adds the gain from more memory or more devices. */
    struct why_report why;
    double plan_s; /* seconds that planning and verifying took */
    int code;      /* 0, or the negative errno of planning */
    struct err err;
    /* Bytes per device that would be enough. 0 if device memory is not the problem. */
    uint64_t least_bytes;
};

/* Simulates the plan with these task durations and finds out what limits its speed. */
void plan_print_simulate(struct printed_plan *p, const struct profile *times, const struct machine *m);

/* Destroys the plan and its simulation. Also accepts a struct of zeros. */
void plan_print_finish(struct printed_plan *p);

/* Prints one plan and writes the files of --out, --trace and --svg. Returns the exit code. `head` is text
 * above the page. `times` says where the durations come from. `members` has more JSON members, each with a
 * comma before it. */
int plan_print_one(const struct verb_options *o, const struct printed_plan *p, const char *head,
                   const char *times, const char *members);

/* Prints `n` plans as a table or a JSON array. In the array, a plan that does not fit has an "error".
 * Returns the exit code, EXIT_MISFIT if no plan fits. */
int plan_print_all(const struct verb_options *o, const struct printed_plan *list, uint32_t n,
                   const char *head, const char *members);

#endif
