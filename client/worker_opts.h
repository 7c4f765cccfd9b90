/* Shared parts of the commands that tutti-worker carries out: check, plan, profile, export and sample. For
 * these commands, the worker program replaces this process. */
#ifndef CLIENT_WORKER_OPTS_H
#define CLIENT_WORKER_OPTS_H

#include "client/job_file.h"

#define WORKER_OPTS                                                                                          \
    JOB_FILE_OPTS, JOB_FILE_OPT("delay-seed", "N", "delay every stream by random times, for tests"),         \
        JOB_FILE_OPT("link", "SIZE", "limit host copies to SIZE bytes per second"),                          \
        JOB_FILE_OPT("peer", "SIZE", "limit copies between devices to SIZE bytes per second"),               \
        JOB_FILE_OPT("threads", "N", "threads that share one operation")

/* Replaces this process by tutti-worker, and passes on the option --json if the user gave it. Returns only if
 * the replacement fails. It then frees `args`, reports the failure and returns the exit code. */
int worker_become(const struct client *c, struct spawn_args *args);
/* Replaces this process by `tutti-worker MODE JOB`. Passes on the options of the command, and the words in
 * `more`, which may be NULL. Returns only on failure, with the exit code. */
int worker_exec(const struct client *c, const char *mode, const char *job, const struct args *a,
                struct spawn_args *more);

#endif
