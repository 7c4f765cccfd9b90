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

/* Listens on the socket worker.sock, takes over the workers that an earlier daemon left running, and starts
 * the jobs that can start. */
int workers_open(struct daemon *d, struct workers **ret, struct err *err);

/* Starts all queued jobs that can start now. Must be called after each change that may allow a job to
 * start. */
void workers_schedule(struct daemon *d);

/* Stops the worker of a cancelled job. If `now` is true, the worker is killed. Otherwise the worker writes a
 * checkpoint before it stops. The job must have a worker, and job->cancel must be set. */
void workers_cancel(struct daemon *d, struct job *j, bool now);

/* Asks every worker to write a checkpoint and stop. Called when the daemon shuts down. */
void workers_stop_all(struct daemon *d);

/* Ends the event loop if the daemon is stopping and there is no worker and no disk write left to wait for. */
void workers_maybe_finished(struct daemon *d);

#endif
