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

/* The largest number of failures in a row after which a job is restarted. With the value 3, a job is
 * restarted after its first, second and third failure, and the fourth failure ends the job. A new checkpoint
 * makes the count start again. */
#define ATTEMPT_MOST_FAILURES 3

/* Ends the job with the given state, exit code and error. `error` is the text of a JSON object that is shown
 * to clients, or NULL if there was no error. */
void attempt_end_job(struct daemon *d, struct job *j, enum job_state state, int exit, const char *error,
                     void (*done)(void *ctx, int status), void *ctx);

/* Puts the job back into the queue. The attempt does not count as a failure. `why` is a text that people see
 * while the job waits. */
void attempt_requeue(struct daemon *d, struct job *j, const char *why, void (*done)(void *ctx, int status),
                     void *ctx);

/* Puts the job back into the queue because the disk for the job's output is full. The job restarts only after
 * a delay, so that somebody can free some space. The attempt does not count as a failure. */
void attempt_pause(struct daemon *d, struct job *j, const char *why, void (*done)(void *ctx, int status),
                   void *ctx);

/* Counts a failed attempt. Then puts the job back into the queue, or ends the job after too many failures
 * without a new checkpoint. The delay before a restart doubles with every failure. `why` says how the worker
 * ended, such as "was killed by signal 9". */
void attempt_failed(struct daemon *d, struct job *j, const char *why, void (*done)(void *ctx, int status),
                    void *ctx);

/* Ends the current attempt and returns true if the worker was asked to stop. The reason for stopping may be a
 * cancel, the job's time limit or a shutdown. If the worker was not asked to stop, changes nothing and
 * returns false. The caller then treats the end of the worker as a failure. */
bool attempt_stopped(struct daemon *d, struct job *j, void (*done)(void *ctx, int status), void *ctx);

/* Returns true if the job has used up the time limit of its spec. The time of all attempts counts, including
 * the current one. */
bool attempt_over_limit(const struct job *j);

/* Adds the running time of the current attempt to job->used_ms. Call this function exactly once for each
 * attempt, before the end of the attempt is saved. */
void attempt_count_time(struct job *j);

#endif
