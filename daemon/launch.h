/* Workers as processes: started, adopted after a restart of the daemon, signalled, reaped. Loop thread only.
 *
 * A worker lives on when the daemon dies. Own children are reaped by libuv; an adopted one is watched through a pidfd, and
 * known by pid, start time and boot, so that a pid that was given to another process is never taken for it.
 */
#ifndef DAEMON_LAUNCH_H
#define DAEMON_LAUNCH_H

#include <stdbool.h>
#include <uv.h>

#include "daemon/jobs.h"

enum worker_phase {
    WORKER_SPAWNED,  /* has not said hello */
    WORKER_STARTING, /* said hello; its start is being written */
    WORKER_RUNNING,  /* has its job, or may have it */
    WORKER_ENDED,    /* its outcome is taken; it exits */
};

struct worker {
    struct daemon *daemon;
    struct job *job;
    enum worker_phase phase;
    pid_t pid;
    bool adopted;
    union {
        uv_process_t process; /* own child */
        uv_poll_t poll;       /* adopted: of pidfd */
    } handle;
    int pidfd;                     /* adopted */
    struct connection *connection; /* NULL: not connected */
    uint64_t heard_ms;             /* when it last said something */
    uint64_t moved_ms;             /* when it last told of a step, an evaluation, a checkpoint */
    uint64_t kill_at_ms;           /* 0: not; then it gets SIGKILL */
    bool stop_sent;
    const char *killed_for; /* why it was killed by us; NULL: it was not */
};

/* Opens the log that takes the output of the job's workers. Returns a descriptor, or a negative errno. */
int launch_open_log(const struct daemon *d, const struct job *j, struct err *err);
#define LAUNCH_SECRET_CHARS 32

/* Spawns the worker of a job that has its lease and attempt, and sets job->worker. `log` stays the caller's. `secret`
 * is what the worker has to say in its hello.
 * A failure says nothing about the job: every worker is started in the same way. job->worker stays NULL then. */
int launch_start(struct daemon *d, struct job *j, const char *secret, int log, struct err *err);
/* The worker that job->process names, if it is alive; job->worker is set. False: it is dead. */
bool launch_adopt(struct daemon *d, struct job *j);
void launch_signal(struct worker *w, int sig); /* does nothing when it is dead */

/* Called by launch.c when the process is gone and its handle closed; `how`: "was killed by signal 9 (Killed)". The worker
 * is freed after it returns. */
void workers_gone(struct worker *w, const char *how);

int launch_identify(pid_t pid, struct job_process *ret);
uint64_t launch_age_ms(const struct job_process *p); /* since it started; 0 when that is not known */
void launch_log_path(const struct config *c, uint64_t job, char *buf, size_t size);

#endif
