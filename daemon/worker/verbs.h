/* The verbs of tutti-worker, one file each, and how they end for the shell. */
#ifndef WORKER_VERBS_H
#define WORKER_VERBS_H

#include <stdbool.h>

#include "base/err.h"
#include "daemon/worker/job.h"

/* FORMATS: 0 done, 1 the job failed, 2 usage or invalid spec, 5 cannot fit. A job stopped by a signal ends
 * with 128 + its number, as shells expect. */
enum exit_code { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_INVALID = 2, EXIT_MISFIT = 5 };

struct verb_options {
    struct job_options job;
    bool json;             /* the result as JSON on stdout, nothing else there */
    bool quiet;            /* no progress */
    bool dump;             /* --plan: every instruction */
    const char *plan_path; /* --plan: the plan as JSON, NULL: not written */
    const char *trace_path;
};

/* Each prints its result on stdout, progress and errors on stderr, and returns the exit code. */
int verb_check(const struct verb_options *o);
int verb_plan(const struct verb_options *o);
int verb_run(const struct verb_options *o);

#endif
