/* The lifecycle of workers: which jobs are started, when a worker is stopped or killed, and what happens when
 * a worker ends. Loop thread only.
 *
 * A launch has these steps. The daemon chooses a lease, draws a secret and spawns the process. The worker
 * sends hello on worker.sock. The daemon writes the start to the state, and only then sends the worker its
 * job. So a daemon that dies in between leaves either a worker that the next daemon knows, or a worker
 * without a job, which exits. No job runs twice.
 */
#ifndef DAEMON_WORKERS_H
#define DAEMON_WORKERS_H

#include "daemon/jobs.h"

/* Listens on worker.sock, adopts the workers that an earlier daemon left, and starts the jobs that can
 * start. */
int workers_open(struct daemon *d, struct workers **ret, struct err *err);

/* Starts all queued jobs that can start now. Called after each change that may let a job start. */
void workers_schedule(struct daemon *d);

/* Stops the worker of a cancelled job. If `now` is set, the worker is killed. Otherwise the worker first
 * writes a checkpoint. The job must have a worker, and job->cancel must be set. */
void workers_cancel(struct daemon *d, struct job *j, bool now);

/* Asks every worker to write a checkpoint and stop. Called when the daemon shuts down. */
void workers_stop_all(struct daemon *d);

/* Ends the loop if the daemon is stopping and no worker and no disk write is left to wait for. */
void workers_maybe_finished(struct daemon *d);

#endif
