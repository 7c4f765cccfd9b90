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

/* A job is restarted after up to this many failures in a row. One more failure without a new checkpoint ends
 * the job. */
#define ATTEMPT_MOST_FAILURES 3

/* Ends the job with the given state, exit code and error. `error` is the text of a JSON object that clients
 * see, or NULL if there was no error. */
void attempt_end_job(struct daemon *d, struct job *j, enum job_state state, int exit, const char *error,
                     void (*done)(void *ctx, int status), void *ctx);

/* Puts the job back into the queue without counting a failure. `why` is a text that people see while the job
 * waits. */
void attempt_requeue(struct daemon *d, struct job *j, const char *why, void (*done)(void *ctx, int status),
                     void *ctx);

/* Puts the job back into the queue because the disk for its output is full. The job waits a while before it
 * restarts, so that somebody can make space. The attempt does not count as a failure. */
void attempt_pause(struct daemon *d, struct job *j, const char *why, void (*done)(void *ctx, int status),
                   void *ctx);

/* Counts a failed attempt and puts the job back into the queue. The delay before the restart doubles with
 * every failure. Too many failures without a new checkpoint end the job. `why` says how the worker ended,
 * such as "was killed by signal 9". */
void attempt_failed(struct daemon *d, struct job *j, const char *why, void (*done)(void *ctx, int status),
                    void *ctx);

/* Ends the attempt if somebody asked the worker to stop: a user, the time limit or a shutdown. Returns false
 * and changes nothing if nobody asked, so that the caller can treat the end as a failure. */
bool attempt_stopped(struct daemon *d, struct job *j, void (*done)(void *ctx, int status), void *ctx);

/* Returns whether the job has used up the time limit of its spec. All its attempts count, including the
 * current one. */
bool attempt_over_limit(const struct job *j);

/* Adds the running time of the current attempt to job->used_ms. Call this function once per attempt, before
 * the end of the attempt is saved. */
void attempt_count_time(struct job *j);

#endif
