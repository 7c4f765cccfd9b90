/* worker.sock: what workers say and are told (docs/protocol.md, "Workers"). Between this and workers.c only. */
#ifndef DAEMON_WORKER_MSGS_H
#define DAEMON_WORKER_MSGS_H

#include "base/wire.h"
#include "daemon/launch.h"

void worker_msgs_accept(struct daemon *d, uv_stream_t *listening);
void worker_msgs_stop(struct worker *w, const char *reason); /* it is connected */
void worker_msgs_hang_up(struct worker *w); /* the worker is gone; its connection may be there yet */

/* In workers.c: the ways an attempt ends. Each writes the state; `done` (may be NULL) is called when it is on disk. */
void workers_end_job(struct daemon *d, struct job *j, enum job_state state, int exit, const char *error,
                     void (*done)(void *ctx, int status), void *ctx);
void workers_requeue(struct daemon *d, struct job *j, const char *why, void (*done)(void *ctx, int status),
                     void *ctx);
void workers_failed(struct daemon *d, struct job *j, const char *why, void (*done)(void *ctx, int status),
                    void *ctx);
/* The worker said hello for the first time: workers can be started. */
void workers_took_job(struct worker *w);
/* The end of a worker that was asked to stop. False: nobody asked it. */
bool workers_stopped(struct worker *w, void (*done)(void *ctx, int status), void *ctx);
/* Back to the queue for a while, without counting as a failure: its disk is full. */
void workers_pause(struct daemon *d, struct job *j, const char *why, void (*done)(void *ctx, int status),
                   void *ctx);
void workers_took_outcome(struct worker *w);
bool workers_over_limit(const struct job *j); /* its time is up */

#endif
