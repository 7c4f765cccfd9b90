/* Declarations that job_plan.c and job_cycle.c share. No other file includes this header. */
#ifndef WORKER_JOB_PLAN_PRIVATE_H
#define WORKER_JOB_PLAN_PRIVATE_H

#include "daemon/worker/job.h"

/* How the work of a phase is divided in a graph: the micro-batch size, and the number of training steps in a
 * cycle. */
struct division {
    uint32_t rows, steps;
    /* True to try only the policy `blocks` if the job leaves the policy to the planner. This saves time when
     * several numbers of steps are tried. */
    bool by_blocks;
};

/* Plans phase `p` with the division `d`: resolves the spec, builds the graphs and makes a plan. `most_work`
 * and `report` are passed to the planner in struct plan_request. Defined in job_plan.c. */
int job_plan_with(const struct job_options *o, struct prepared_job *j, struct phase *p, struct division d,
                  uint64_t most_work, struct plan_report *report, struct err *err);

/* Chooses the number of training steps in a cycle of a phase whose cycle_auto is true. The phase must have
 * the plan of one step. If more steps are better, this plan becomes p->single, and the phase gets the plan
 * of the chosen number of steps. Never fails because more steps do not fit. Defined in job_cycle.c. */
int job_choose_cycle(const struct job_options *o, struct prepared_job *j, struct phase *p, struct err *err);

#endif
