/* Measures a few steps of a run and writes them to trace.json in the output, beside the plan's prediction of
 * the same steps. The file is a Chrome trace (plan_trace in scheduler/explain/explain.h).
 *
 * Order of calls:
 *     run_trace_start     once the executor exists and the first step is known; chooses the steps to measure
 *     the training loop   runs as usual and does not know of the trace
 *     run_trace_end       when the devices are drained and the executor still exists
 *     run_trace_stall     for devices that do not count their own waiting time
 *     run_trace_write     after result.json, which matters more
 *     run_trace_finish    after exec_destroy
 * run_trace_stall, run_trace_write and run_trace_finish accept a trace that was never started. All calls
 * come from one thread.
 */
#ifndef WORKER_RUN_TRACE_H
#define WORKER_RUN_TRACE_H

#include "base/fs.h"
#include "daemon/worker/job.h"
#include "swap/exec.h"

#define RUN_TRACE_FILE  "trace.json"
#define RUN_TRACE_STEPS 3 /* steps to measure unless the command line says otherwise */

/* The steps of a run that are measured: a window of consecutive steps. */
struct run_trace {
    uint32_t max_steps;  /* longest window; set by the owner; 0: no trace */
    uint64_t first_step; /* first step of the window */
    uint32_t steps;      /* steps in the window; one run of the cycle is one step */
    uint32_t warm_up;    /* steps between the last time the devices were drained and the window; 2 at most */
    struct plan_span *spans; /* start and end of every instruction of the window; NULL: no window */
    bool complete;           /* every step of the window was measured */
};

/* Chooses a window of at most max_steps steps and RUN_TRACE_INSTRS (run_trace.c) instructions, and tells
 * the executor to measure it. `step` is the number of steps done when the run starts. Chooses no window
 * when no step is left. */
void run_trace_start(struct run_trace *t, const struct prepared_job *j, struct exec *e, uint64_t step);

/* Notes whether the executor measured the whole window. */
void run_trace_end(struct run_trace *t, const struct exec *e);

/* Returns the share of time in which the compute streams waited: for each device, the gaps between tasks
 * from the start of its first task to the end of its last task in the window. Returns NaN without a
 * complete window. */
double run_trace_stall(const struct run_trace *t, const struct plan *plan);

/* Writes trace.json. Without a complete window it leaves the trace of an earlier run in place. */
int run_trace_write(const struct run_trace *t, const struct prepared_job *j, const struct outdir *out,
                    struct err *err);
void run_trace_finish(struct run_trace *t);

#endif
