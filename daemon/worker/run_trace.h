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
#define RUN_TRACE_STEPS 3 /* default number of steps to measure */

/* The training steps of a run that are measured for trace.json. They form a window of consecutive steps. */
struct run_trace {
    /* The largest number of training steps in the window, rounded up to whole runs of the cycle. The owner of
     * this struct sets it. 0 means that no trace is made. */
    uint32_t max_steps;
    /* The first training step of the window. Steps are counted from the start of the phase. */
    uint64_t first_step;
    /* The number of runs of the cycle in the window. A run has phase.cycle_steps training steps. */
    uint32_t runs;
    /* The number of runs of the cycle between the last moment at which all streams were empty and the start
     * of the window, at most 2. The simulation in trace.json starts with the same number of runs. */
    uint32_t warm_up;
    /* Start and end time of every instruction in the window. NULL if there is no window. */
    struct plan_span *spans;
    bool complete; /* every run of the window was measured */
};

/* Chooses a window in phase `p`, the largest phase of the job, and tells the phase's executor `e` to measure
 * it. `step` is the number of steps of the phase done so far. The window has as many whole runs of the cycle
 * as max_steps training steps need, but at most RUN_TRACE_INSTRS instructions. Nothing is measured if no such
 * run is left. */
void run_trace_start(struct run_trace *t, const struct prepared_job *j, const struct phase *p, struct exec *e,
                     uint64_t step);

/* Asks the executor whether it has measured the whole window, and stores the answer in `t`. */
void run_trace_end(struct run_trace *t, const struct exec *e);

/* Returns the fraction of time in which the compute streams waited between tasks, such as 0.1. The time of
 * each device is counted from the start of its first task to the end of its last task. Returns NaN if the
 * window is not complete. */
double run_trace_stall(const struct run_trace *t, const struct plan *plan);

/* Writes the measured window to trace.json. If the window is not complete, the trace of an earlier run is
 * kept. */
int run_trace_write(const struct run_trace *t, const struct prepared_job *j, const struct outdir *out,
                    struct err *err);
void run_trace_finish(struct run_trace *t);

#endif
