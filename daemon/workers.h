/* The lifecycle of workers: which jobs are started, when a worker is stopped or killed, and what follows when
 * it ends. Loop thread only.
 *
 * A launch has these steps. The daemon chooses a lease, draws a secret and spawns the process. The worker
 * sends hello on worker.sock. The daemon writes the start to the state, and only then sends the worker its
 * job. So a daemon that dies in between leaves either a worker that the next daemon knows, or a worker
 * without a job, which exits. No job runs twice.
 */
#ifndef DAEMON_WORKERS_H
#define DAEMON_WORKERS_H

#include "daemon/jobs.h"

/* Listens on worker.sock, adopts the workers of an earlier daemon, and starts the jobs that can start. */
int workers_open(struct daemon *d, struct workers **ret, struct err *err);

/* Starts every job that can start now. Called after each change that may let a job start. */
void workers_schedule(struct daemon *d);

/* Stops the worker of a cancelled job: with SIGKILL if `now` is set, otherwise after a checkpoint. The job
 * has a worker, and job->cancel is set. */
void workers_cancel(struct daemon *d, struct job *j, bool now);

/* Asks every worker to write a checkpoint and stop, because the daemon shuts down. */
void workers_stop_all(struct daemon *d);

/* Stops the loop if the daemon is stopping, nothing waits for the disk, and no worker has to be waited for.
 */
void workers_maybe_finished(struct daemon *d);

#endif
