/* trace.json in the output: how a few steps of the run really went, and how the plan said they would, in one
 * Chrome trace (scheduler/explain/explain.h: plan_trace).
 *
 * Order of calls:
 *     run_trace_start     executor and first step are known; chooses the steps
 *     the training loop   which does not know of it
 *     run_trace_end       the devices are drained and the executor is still there
 *     run_trace_stall     where the devices do not count themselves
 *     run_trace_write     when all that matters more is written
 *     run_trace_finish    after exec_destroy
 * run_trace_stall, run_trace_write and run_trace_finish take one that was never started. One thread.
 */
#ifndef WORKER_RUN_TRACE_H
#define WORKER_RUN_TRACE_H

#include "base/fs.h"
#include "daemon/worker/job.h"
#include "swap/exec.h"

#define RUN_TRACE_FILE  "trace.json"
#define RUN_TRACE_STEPS 3 /* unless the command line asks for others */

struct run_trace {
    uint32_t max_steps;      /* set by the owner; 0: no trace */
    uint64_t first_step;     /* of the window */
    uint32_t steps;          /* in the window; a run of the cycle is one step */
    uint32_t warm_up;        /* steps before it, since the devices were empty, as far as it matters */
    struct plan_span *spans; /* NULL: no window */
    bool complete;
};

/* Opens a window of at most max_steps steps and RUN_TRACE_INSTRS (run_trace.c) instructions. `step`: steps
 * done when the run starts. Leaves no window where there is no step to make. */
void run_trace_start(struct run_trace *t, const struct prepared_job *j, struct exec *e, uint64_t step);
void run_trace_end(struct run_trace *t, const struct exec *e);

/* The part of the window in which the devices' compute streams waited: of each from the beginning of its first task to the end
 * of its last, what lies between tasks. NaN without a complete window. */
double run_trace_stall(const struct run_trace *t, const struct plan *plan);

/* Writes the trace of a complete window; without one it leaves that of an earlier run. */
int run_trace_write(const struct run_trace *t, const struct prepared_job *j, const struct outdir *out,
                    struct err *err);
void run_trace_finish(struct run_trace *t);

#endif
