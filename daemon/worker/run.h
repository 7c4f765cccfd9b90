/* Trains a job in its output directory, from the newest checkpoint where there is one. --run and --serve
 * share this code.
 *
 * Order of calls: run_job, then read the result, then run_finish. All calls come from one thread.
 *
 * While the job trains, SIGHUP, SIGINT and SIGTERM stop it after a checkpoint. Before training nothing is
 * written, and a signal ends the process at once. train_request_stop (train.h) works at any time: a job
 * that is stopped before its first step trains no step.
 */
#ifndef WORKER_RUN_H
#define WORKER_RUN_H

#include "base/err.h"
#include "daemon/worker/job.h"
#include "daemon/worker/train.h"

struct run_options {
    const struct job_options *job;
    uint32_t trace_steps;  /* steps to measure for trace.json; 0: write no trace */
    uint64_t lock_wait_ns; /* how long to wait for another worker to release the output; 0: do not wait */
    bool check_output;     /* check the output before planning, and report a bad output as the spec's fault */
    /* Called before planning begins. May be NULL. */
    void (*planning)(void *ctx, const struct job_planning *p);
    /* Called when the plan is made and the output is locked. May be NULL. */
    void (*planned)(void *ctx, const struct prepared_job *j, const struct outdir *out);
    /* Called as in struct train_options. May be NULL. */
    void (*progress)(void *ctx, const struct train_progress *p);
    void *ctx;
};

/* How a run ended. run_job fills it in; run_finish frees it. */
struct run_result {
    int code;   /* 0: done or stopped; otherwise a negative errno, explained by err */
    int exit;   /* the exit code of the process */
    bool early; /* failed before anything ran: the spec or its files are to blame, and nothing was written */
    struct err err;
    struct prepared_job job;    /* the job; its least_bytes is set when it does not fit */
    struct train_report report; /* after a failure only steps_done is valid */
    bool untrained; /* stopped before this run trained a step; of the report only `stopped` is valid */
    char *result;   /* the content of result.json; NULL after a failure, and when nothing was trained */
};

/* Prepares the job, locks its output, trains it, and writes result.json and trace.json. Returns ret->code.
 * run_finish must be called in any case. */
int run_job(const struct run_options *o, struct run_result *ret);

/* Frees everything in *r. Accepts a zeroed result. */
void run_finish(struct run_result *r);

#endif
