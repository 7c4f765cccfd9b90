/* The table of live jobs, and every change of a job's state. Loop thread only.
 *
 * To change a job, alter its record and call jobs_save with the event that reports the change. Watchers see
 * the event when the change is on disk. Facts that matter only while the worker runs (progress, the plan, the
 * curve) stay in memory, and the worker sends them again to a new daemon.
 *
 * A job leaves the table when it has ended, its end is on disk, and its worker is gone. From then on the job
 * exists only in the state. request_find (request_find.h) looks in both places. So memory and every loop over
 * the table depend on the number of live jobs, not on the length of the history.
 */
#ifndef DAEMON_JOBS_H
#define DAEMON_JOBS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/vec.h"
#include "daemon/daemon.h"
#include "daemon/job_record.h"

struct jobs {
    struct daemon *daemon;
    /* The live jobs in ascending order of their ids. An ended job stays here until its end is on disk and its
     * worker is gone. */
    VEC(struct job *) live;
    uint64_t n_in[JOB_STATE_COUNT]; /* number of jobs in `live`, by state */
    uint64_t next_id;               /* id of the next submitted job */
};

struct jobs *jobs_create(struct daemon *d);

/* Frees the table and its jobs. `jobs` may be NULL. Only tests call this function. */
void jobs_destroy(struct jobs *jobs);

/* Loads all jobs that have not ended from the database into the table. Called once when the daemon starts.
 * Blocks. */
int jobs_load(struct jobs *jobs, struct err *err);

/* Returns the live job with this id, or NULL. */
struct job *jobs_find(const struct jobs *jobs, uint64_t id);

/* Returns the live job that this user submitted with this key, or NULL if there is none. */
struct job *jobs_find_key(const struct jobs *jobs, uid_t uid, const char *key);

/* Returns the index in jobs->live of the first job whose id is greater than `id`. If there is no such job,
 * returns jobs->live.n. */
size_t jobs_after(const struct jobs *jobs, uint64_t id);

/* Returns the number of jobs in the table that are in the given state. */
uint64_t jobs_count(const struct jobs *jobs, enum job_state state);

/* Returns the number of ended jobs that are still in the table, and stores an array of their ids in *ret_ids.
 * The caller frees the array. */
size_t jobs_ended(const struct jobs *jobs, uint64_t **ret_ids);

/* Describes a new job for jobs_add. jobs_add makes copies of the texts, and the caller keeps the
 * originals. */
struct job_new {
    uid_t uid;
    const char *key, *name, *user, *dir, *output; /* key may be NULL */
    const char *spec;                             /* JSON text that was checked */
    uint64_t spec_hash;                           /* job_spec_hash(spec, dir) */
    struct job_ask ask;
    struct job_needs needs; /* n_devices is 0 if they are not known */
};

/* Adds a queued job and writes it to the state. *ret_id is the id of the new job.
 *
 * The job is in the table at once, but clients cannot see it (on_disk is false) until `done` is called with
 * status 0. Any other status means that the job was not stored, and the job is removed when `done` returns.
 * The status is then -ENOSPC, -ENOMEM, or -EEXIST when an ended job of this user has the same key.
 *
 * Returns -ENOMEM, or -EAGAIN when the job would exceed its user's quota (quota.h). On failure nothing has
 * changed, and `done` is never called.
 */
int jobs_add(struct jobs *jobs, const struct job_new *n, void (*done)(void *ctx, int status), void *ctx,
             uint64_t *ret_id, struct err *err);

#define JOB_KEY_CHARS 320 /* size of a buffer for jobs_state_key */

/* Writes the key under which the database stores the job to `ret`. It consists of the user's number, a colon
 * and `key`, for example "1000:nightly". */
void jobs_state_key(uid_t uid, const char *key, char ret[JOB_KEY_CHARS]);

/* Sets the job's state and the reason why the job waits, in memory only. The caller must save the job
 * afterwards. */
void job_set_state(struct job *j, enum job_state state, const char *reason);

/* Updates the table's counts of jobs in each state. Called after the caller has changed j->state directly.
 * `before` is the job's state before this change. */
void jobs_recount(const struct job *j, enum job_state before);

/* Writes the job's status to the database. If `event` is not NULL, also adds an event with the name `event`.
 * `members` is the JSON text of the event's fields, such as "\"attempt\":1". When everything is on disk,
 * `done` is called, unless `done` is NULL. If memory runs out, this function ends the daemon. */
void jobs_save(struct jobs *jobs, struct job *j, const char *event, const char *members,
               void (*done)(void *ctx, int status), void *ctx);

/* Saves a job like jobs_save, after a change that the caller can undo. Returns -ENOMEM when memory runs out.
 * In that case nothing is written, and `done` is never called. */
int jobs_try_save(struct jobs *jobs, struct job *j, const char *event, const char *members,
                  void (*done)(void *ctx, int status), void *ctx);

/* Frees the record of an ended job if nothing uses the record any longer. Call this function whenever
 * something stops using the record. */
void jobs_let_go(struct jobs *jobs, struct job *j);

#endif
