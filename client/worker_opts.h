/* What the commands that tutti-worker does have in common: becoming it, and, of those about a job file, the same options
 * under the same names. */
#ifndef CLIENT_WORKER_OPTS_H
#define CLIENT_WORKER_OPTS_H

#include "client/job_file.h"

#define WORKER_OPTS                                                                                          \
    JOB_FILE_OPTS, JOB_FILE_OPT("delay-seed", "N", "delay every stream at random"),                          \
        JOB_FILE_OPT("link", "SIZE", "pace host copies to SIZE bytes per second"),                           \
        JOB_FILE_OPT("peer", "SIZE", "pace copies between devices"),                                         \
        JOB_FILE_OPT("threads", "N", "threads that share one operation")

/* Becomes tutti-worker with these arguments, and --json where the client has it. When that fails they are freed, the failure
 * is reported, and an exit code returned. */
int worker_become(const struct client *c, struct spawn_args *args);
/* The same as `tutti-worker MODE JOB` with the options given. */
int worker_exec(const struct client *c, const char *mode, const char *job, const struct args *a,
                struct spawn_args *more);

#endif
