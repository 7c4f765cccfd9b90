/* Worker processes: starting them, adopting them after a restart of the daemon, signalling and reaping them.
 * Loop thread only.
 *
 * A worker keeps running when the daemon dies. libuv reaps the workers that this daemon started. A worker of
 * an earlier daemon is watched through a pidfd. It is identified by its pid, start time and boot, so that
 * another process with a reused pid is never mistaken for the worker.
 *
 * This module makes no decisions about jobs. When a process has ended, it tells its caller through struct
 * worker_ops.
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
    /* The worker's first hello has come. The daemon is writing the start of the attempt to the state. */
    WORKER_STARTING,
    /* The daemon has sent the job to the worker, or is sending the job now. The job is the answer to the
     * worker's first hello. */
    WORKER_RUNNING,
    /* The worker has reported how its run ended, and the worker process is about to exit. */
    WORKER_ENDED,
};

/* The callbacks that tell workers.c about the progress of a worker. */
struct worker_ops {
    /* Called when the worker's first hello message arrives. The hello shows that the worker program could be
     * started. */
    void (*took_job)(struct worker *w);
    /* Called when the worker has reported how its run ended, before the job gets its new state. */
    void (*took_outcome)(struct worker *w);
    /* Called when the worker process no longer exists. `how` says how the process ended, such as "was killed
     * by signal 9 (Killed)". The struct worker is freed when this callback returns. */
    void (*gone)(struct worker *w, const char *how);
};

/* One worker process. launch_start or launch_adopt creates the struct, and the struct is freed after the
 * `gone` callback. */
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
    /* A pidfd for the process of a worker that an earlier daemon started. -1 if the worker is a child process
     * of this daemon. */
    int pidfd;
    struct connection *connection; /* NULL: not connected */
    uint64_t heard_ms;             /* loop clock: when the last message came */
    /* The time on the loop's clock when the worker last reported a step, an evaluation or a checkpoint. */
    uint64_t moved_ms;
    /* The time on the loop's clock when the daemon will kill the worker with SIGKILL. 0 if no kill is
     * planned. */
    uint64_t kill_at_ms;
    bool stop_sent; /* the worker was asked to stop */
    /* The reason why the daemon killed the worker. NULL if the daemon did not kill it. */
    const char *killed_for;
};

#define LAUNCH_SECRET_CHARS 32

/* Opens the job's log file, which receives the output of its workers. Returns a file descriptor or a negative
 * errno. */
int launch_open_log(const struct daemon *d, const struct job *j, struct err *err);

/* Starts a worker for a job and sets job->worker. The job's lease and attempt must be set. The worker must
 * send `secret` in its hello. The worker inherits a copy of the descriptor `log`, so the caller must still
 * close `log`.
 *
 * On failure job->worker stays NULL. A failure says nothing about the job, because all workers are started in
 * the same way.
 */
int launch_start(struct daemon *d, struct job *j, const struct worker_ops *ops, const char *secret, int log,
                 struct err *err);

/* Checks whether the worker process that job->process identifies is still alive. If so, sets job->worker.
 * Returns false if the process is dead. */
bool launch_adopt(struct daemon *d, struct job *j, const struct worker_ops *ops);

/* Sends the signal `sig` to the worker's process. Does nothing if the process is dead. */
void launch_signal(struct worker *w, int sig);

/* Fills *ret with the pid, the start time and the boot id of a running process. */
int launch_identify(pid_t pid, struct job_process *ret);

/* Returns the number of milliseconds since the process started, or 0 if the start time is not known. */
uint64_t launch_age_ms(const struct job_process *p);

/* Writes to `buf` the path of the log file of the job with the id `job`. */
void launch_log_path(const struct config *c, uint64_t job, char *buf, size_t size);

#endif
