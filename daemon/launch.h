/* Worker processes: starting them, adopting them after a restart of the daemon, signalling and reaping them.
 * Loop thread only.
 *
 * A worker lives on when the daemon dies. libuv reaps the workers that this daemon started. A worker of an
 * earlier daemon is watched through a pidfd. It is known by pid, start time and boot, so that another process
 * with a reused pid is never taken for the worker.
 *
 * This module decides nothing about jobs. It tells its caller through struct worker_ops that a process has
 * ended.
 */
#ifndef DAEMON_LAUNCH_H
#define DAEMON_LAUNCH_H

#include <stdbool.h>
#include <uv.h>

#include "base/err.h"
#include "daemon/daemon.h"
#include "daemon/job_record.h"

enum worker_phase {
    WORKER_SPAWNED, /* spawned; hello has not come yet */
    /* Hello has come. The start is being written to the state. */
    WORKER_STARTING,
    /* The worker has its job, or the answer with the job is on the way. */
    WORKER_RUNNING,
    /* The daemon has the outcome. The process is about to exit. */
    WORKER_ENDED,
};

/* Callbacks that report the progress of a worker to its owner, workers.c. */
struct worker_ops {
    /* Called when the worker's first hello has come: the worker was started successfully. */
    void (*took_job)(struct worker *w);
    /* Called when the worker's outcome has come, before the job's new state is set. */
    void (*took_outcome)(struct worker *w);
    /* Called when the process is gone and its handle is closed. `how` says how the worker ended, such as "was
     * killed by signal 9 (Killed)". The worker is freed when this returns. */
    void (*gone)(struct worker *w, const char *how);
};

/* One worker process. Made by launch_start or launch_adopt, and freed after its `gone` callback. */
struct worker {
    struct daemon *daemon;
    struct job *job;
    const struct worker_ops *ops;
    enum worker_phase phase;
    pid_t pid;
    bool adopted; /* started by an earlier daemon */
    union {
        uv_process_t process; /* of an own child */
        uv_poll_t poll;       /* of an adopted worker: watches pidfd */
    } handle;
    /* Descriptor of an adopted worker's process; -1 for a child of this daemon. */
    int pidfd;
    struct connection *connection; /* NULL: not connected */
    uint64_t heard_ms;             /* loop clock: when the last message came */
    /* Loop clock: when the last step, evaluation or checkpoint was reported. */
    uint64_t moved_ms;
    /* Loop clock: when the worker gets SIGKILL; 0: no deadline. */
    uint64_t kill_at_ms;
    bool stop_sent; /* the worker was asked to stop */
    /* Why the daemon killed the worker; NULL if it did not. */
    const char *killed_for;
};

#define LAUNCH_SECRET_CHARS 32

/* Opens the log file that takes the output of the job's workers. Returns a descriptor, or a negative errno.
 */
int launch_open_log(const struct daemon *d, const struct job *j, struct err *err);

/* Starts a worker for a job whose lease and attempt are set, and sets job->worker. `secret` is what the
 * worker has to present in its hello. The worker inherits `log`; the descriptor stays the caller's.
 *
 * On failure job->worker stays NULL. A failure says nothing about the job, because every worker is started in
 * the same way.
 */
int launch_start(struct daemon *d, struct job *j, const struct worker_ops *ops, const char *secret, int log,
                 struct err *err);

/* Finds the worker process that job->process names and sets job->worker. Returns false when that process is
 * dead. */
bool launch_adopt(struct daemon *d, struct job *j, const struct worker_ops *ops);

/* Sends a signal to the worker's process. Does nothing when the process is dead. */
void launch_signal(struct worker *w, int sig);

/* Fills *ret with the identity of a running process. */
int launch_identify(pid_t pid, struct job_process *ret);

/* Returns the milliseconds since the process started, or 0 when its start is not known. */
uint64_t launch_age_ms(const struct job_process *p);

/* Writes the path of the log file of job number `job` to `buf`. */
void launch_log_path(const struct config *c, uint64_t job, char *buf, size_t size);

#endif
