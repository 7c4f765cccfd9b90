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
    /* Number of training steps to measure for trace.json. With 0, no trace is written. */
    uint32_t trace_steps;
    /* How long to wait until another worker releases the output directory, in nanoseconds. With 0, run_job
     * does not wait. */
    uint64_t lock_wait_ns;
    /* True to check the output directory before planning. A problem with it is then reported like a mistake
     * in the spec. */
    bool check_output;
    /* Called before planning begins. May be NULL. */
    void (*planning)(void *ctx, const struct job_planning *p);
    /* A function that is called when the plan is ready and the output directory is locked. May be NULL. */
    void (*planned)(void *ctx, const struct prepared_job *j, const struct outdir *out);
    /* A function that is called for every event of training; struct train_options describes the calls. May be
     * NULL. */
    void (*progress)(void *ctx, const struct train_progress *p);
    void *ctx;
};

/* How a run of a job ended. run_job fills the struct in, and run_finish frees it. */
struct run_result {
    /* 0 if the job is done or was stopped. Otherwise it is a negative errno, and `err` has the message. */
    int code;
    int exit; /* the exit code of the process */
    /* True if the run failed before it wrote anything, so that the spec or its files are the cause. */
    bool early;
    struct err err;
    /* The prepared job. If the job does not fit the devices, job.least_bytes is the memory that would be
     * enough. */
    struct prepared_job job;
    struct train_report report; /* after a failure only steps_done is valid */
    /* True if the run was stopped before its first training step. In `report`, only `stopped` is then
     * valid. */
    bool untrained;
    /* The content of result.json. It is NULL after a failure, or if the run did no training step. */
    char *result;
};

/* Prepares the job, locks its output directory, trains the job, and writes result.json and trace.json.
 * Returns ret->code. Call run_finish even after a failure. */
int run_job(const struct run_options *o, struct run_result *ret);

/* Frees everything in *r. A zero-initialized struct is also allowed. */
void run_finish(struct run_result *r);

#endif
