/* The jobs' workers: who is started, what they say, what happens when they end. Loop thread only.
 *
 * A launch goes: lease and secret are drawn, the process is spawned, it says hello on worker.sock, its start is written to
 * the state, and only then it gets its job. So a daemon that dies in between leaves either a worker that the next daemon
 * knows, or one that has no job and goes away; no job runs twice.
 */
#ifndef DAEMON_WORKERS_H
#define DAEMON_WORKERS_H

#include "daemon/jobs.h"

int workers_open(struct daemon *d, struct workers **ret, struct err *err); /* listens, adopts, starts */

void workers_schedule(struct daemon *d);                        /* starts what can be started */
void workers_cancel(struct daemon *d, struct job *j, bool now); /* a job with a worker; job->cancel is set */
void workers_stop_all(struct daemon *d);                        /* the daemon shuts down */
size_t workers_count(const struct daemon *d);

#endif
