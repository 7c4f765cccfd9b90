/* The end of an attempt: what becomes of a job when its worker has ended. An attempt is one run of a job by
 * one worker.
 *
 * Each function that ends an attempt sets the job's new state, writes it to the state with an event, and
 * calls `done` (may be NULL) when both are on disk. worker_msgs.c calls these functions when a worker reports
 * its outcome, workers.c when a worker dies without one. Loop thread only.
 */
#ifndef DAEMON_ATTEMPT_H
#define DAEMON_ATTEMPT_H

#include "daemon/jobs.h"

/* How many failures in a row a job may have. The next failure without a new checkpoint ends the job. */
#define ATTEMPT_MOST_FAILURES 3

/* Ends the job with this state, exit code and error. `error` is a JSON object, or NULL. */
void attempt_end_job(struct daemon *d, struct job *j, enum job_state state, int exit, const char *error,
                     void (*done)(void *ctx, int status), void *ctx);

/* Puts the job back into the queue. `why` is shown to people while the job waits. */
void attempt_requeue(struct daemon *d, struct job *j, const char *why, void (*done)(void *ctx, int status),
                     void *ctx);

/* Puts the job back into the queue because its disk is full. The job waits before it restarts. The attempt
 * does not count as a failure. */
void attempt_pause(struct daemon *d, struct job *j, const char *why, void (*done)(void *ctx, int status),
                   void *ctx);

/* Counts a failed attempt and puts the job back into the queue. The delay before the restart doubles with
 * every failure. Too many failures without a new checkpoint end the job. `why` says how the worker ended,
 * such as "was killed by signal 9". */
void attempt_failed(struct daemon *d, struct job *j, const char *why, void (*done)(void *ctx, int status),
                    void *ctx);

/* Ends the attempt of a worker that was asked to stop. Returns false and does nothing if nobody asked the
 * worker to stop. */
bool attempt_stopped(struct daemon *d, struct job *j, void (*done)(void *ctx, int status), void *ctx);

/* Returns whether the job has used up its time limit. */
bool attempt_over_limit(const struct job *j);

/* Adds the running time of the current attempt to job->used_ms. Call it once per attempt, before the end
 * is saved. */
void attempt_count_time(struct job *j);

#endif
