/* Trains a job in its output directory. Starts at the newest checkpoint if there is one. --run and --serve
 * share this code.
 *
 * Order of calls: run_job, then read the result, then run_finish. All calls come from one thread.
 *
 * While the job trains, SIGHUP, SIGINT and SIGTERM stop it after a checkpoint. Before training, nothing is
 * written, and a signal ends the process at once. train_request_stop (train.h) works at any time. A job that
 * is stopped before its first step trains no step.
 */
#ifndef WORKER_RUN_H
#define WORKER_RUN_H

#include "base/err.h"
#include "daemon/worker/job.h"
#include "daemon/worker/train.h"

struct run_options {
    const struct job_options *job;
    /* Number of steps to measure for trace.json. 0 to write no trace. */
    uint32_t trace_steps;
    /* How long to wait for another worker to release the output. 0 to return at once. */
    uint64_t lock_wait_ns;
    /* Whether to check the output before planning. A bad output is reported as an error in the spec. */
    bool check_output;
    /* Called before planning begins. May be NULL. */
    void (*planning)(void *ctx, const struct job_planning *p);
    /* Called when the plan is ready and the output is locked. May be NULL. */
    void (*planned)(void *ctx, const struct prepared_job *j, const struct outdir *out);
    /* Called for every event of training; struct train_options describes the calls. May be NULL. */
    void (*progress)(void *ctx, const struct train_progress *p);
    void *ctx;
};

/* How a run ended. run_job fills it in, and run_finish frees it. */
struct run_result {
    /* 0 if the job is done or was stopped. Otherwise a negative errno, and `err` has the message. */
    int code;
    int exit; /* the exit code of the process */
    /* The run failed before anything was written. The spec or its files are the cause. */
    bool early;
    struct err err;
    /* The prepared job. If it does not fit, job.least_bytes is set. */
    struct prepared_job job;
    struct train_report report; /* after a failure only steps_done is valid */
    /* The run was stopped before it trained a step. In the report, only `stopped` is valid. */
    bool untrained;
    /* The content of result.json. NULL after a failure, or if nothing was trained. */
    char *result;
};

/* Prepares the job, locks its output, trains it, and writes result.json and trace.json. Returns ret->code.
 * Call run_finish even after a failure. */
int run_job(const struct run_options *o, struct run_result *ret);

/* Frees everything in *r. Also accepts a struct of zeros. */
void run_finish(struct run_result *r);

#endif
