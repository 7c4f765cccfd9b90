/* Training a job in its output directory, from its newest checkpoint where there is one: what --run and --serve share.
 *
 * Order of calls: run_job, read the result, run_finish. One thread. While the job trains, SIGHUP, SIGINT and SIGTERM stop it
 * after a checkpoint. Before that nothing is written, and a signal ends the process at once. train_request_stop (train.h)
 * works at any time: a job that is stopped before its first step trains none.
 */
#ifndef WORKER_RUN_H
#define WORKER_RUN_H

#include "base/err.h"
#include "daemon/worker/job.h"
#include "daemon/worker/train.h"

struct run_options {
    const struct job_options *job;
    uint32_t trace_steps;  /* measured for trace.json; 0: none is written */
    uint64_t lock_wait_ns; /* how long to wait for another worker to leave the output; 0: not at all */
    bool check_output;     /* before planning: an output that cannot be used is then the spec's fault */
    /* Called before planning begins; may be NULL. */
    void (*planning)(void *ctx, const struct job_planning *p);
    /* Called when the plan is there and the output is locked; may be NULL. */
    void (*planned)(void *ctx, const struct prepared_job *j, const struct outdir *out);
    void (*progress)(void *ctx, const struct train_progress *p); /* as in train.h; may be NULL */
    void *ctx;
};

struct run_result {
    int code;   /* 0: done or stopped; else a negative errno, and err */
    int exit;   /* for the shell */
    bool early; /* failed before anything ran: the spec or its files are to blame; nothing was written */
    struct err err;
    struct prepared_job job;    /* job.least_bytes for a job that does not fit */
    struct train_report report; /* of a failure: steps_done */
    bool
        untrained; /* stopped before this run had trained a step: there is no report but that it was stopped */
    char *result;  /* the content of result.json; NULL after a failure, and when nothing was trained */
};

int run_job(const struct run_options *o, struct run_result *ret);
void run_finish(struct run_result *r); /* takes a zeroed one */

int run_signal(void); /* that asked to stop; 0 when none did */

#endif
