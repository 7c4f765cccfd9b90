/* The daemon's durable state: jobs, their status, and the events that are kept. Stored in SQLite (WAL,
 * synchronous=FULL).
 *
 * Changes are collected in units: state_begin, then state_put_*, then state_commit. All units of one turn of
 * the loop go into one transaction, which a thread of the pool writes (group commit). When the transaction is
 * on disk, the callback of each unit is called on the loop thread, in order. Nobody may be told about a
 * change before that.
 *
 * When the disk is full or memory has run out, `optional` units are given up, and their callbacks get -ENOSPC
 * or -ENOMEM. All other units are tried again every second. Any other failure to write is final, because
 * nobody knows what a failed fsync has left on disk. `die` is called in that case.
 *
 * Every row has a CRC-32C of its content. Every transaction has a number. The newest number is also kept in a
 * separate file (state_mark.h), so that a database that lost acknowledged transactions is refused.
 * state_guard.c explains how.
 *
 * Ended jobs stay in the database until the rule in struct state_keep removes them. Work on the loop thread
 * never depends on their number. The check of the history and pruning run in the pool, in small pieces.
 */
#ifndef DAEMON_STATE_H
#define DAEMON_STATE_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/err.h"

struct state;
struct state_unit;

/* Limits for keeping ended jobs. While a limit is exceeded, the jobs that ended first are removed. */
struct state_keep {
    uint64_t ms;    /* time since the end; 0: unlimited */
    uint64_t jobs;  /* ended jobs of all users; 0: unlimited */
    uint64_t bytes; /* bytes of one user; 0: unlimited */
};

/* The arguments of state_open. */
struct state_config {
    uv_loop_t *loop;
    /* The path of the state directory. The text must stay valid while the state is open. */
    const char *dir;
    /* Called when the database is damaged or cannot be written. The callback must end the process. */
    void (*die)(void *ctx, const char *why);
    void *ctx;         /* passed to all callbacks */
    bool accept_older; /* start even if acknowledged data is missing */
    struct state_keep keep;
    /* Returns the number of ended jobs that must not be removed yet, and stores an array of their ids in
     * *ret_ids. The state frees the array. Called on the loop thread. May be NULL. */
    size_t (*in_use)(void *ctx, uint64_t **ret_ids);
    /* Called on a pool thread when a job is removed from the database. This callback removes what the job has
     * outside the database, such as its log file. May be NULL. */
    void (*pruning)(void *ctx, uint64_t id);
};

/* One job as it is on disk. */
struct state_job {
    uint64_t id;
    const char *key;  /* NULL: none */
    const char *body; /* JSON: what never changes, without the spec */
    /* The JSON text of the spec. NULL if several jobs are read at once, because specs can be large. */
    const char *spec;
    const char *status; /* JSON: what changes */
    uint64_t ended_ms;  /* wall clock; 0: not ended */
    uint64_t uid;       /* the user who submitted the job */
    /* Number of bytes in all texts of the job, without its events. state_put_job computes this number. */
    uint64_t bytes;
};

struct state_event {
    uint64_t seq, job; /* event number; id of its job */
    const char *body;  /* the line that watchers get */
};

/* Opens the database, or creates it if the directory is empty. Blocks. Returns -EBADMSG if the database is
 * damaged or has lost acknowledged transactions. The error message says what to do. */
int state_open(const struct state_config *config, struct state **ret, struct err *err);

/* Commits the waiting units, calls their callbacks, and closes the database. Blocks. `s` may be NULL. The
 * struct is freed in the next turn of the loop. */
void state_close(struct state *s);

/* Calls `each` for every live job, in ascending order of ids. The rows of a job are checked before `each` is
 * called for the job. Stops if `each` fails. Called once at start. Blocks. This function checks a small
 * database completely. A large database is checked later in the thread pool, and if the database is damaged,
 * `die` is called. */
int state_load(struct state *s, int (*each)(void *ctx, const struct state_job *job, struct err *err),
               void *ctx, struct err *err);

/* Returns the highest job id that was ever confirmed to a client. Called only at start. */
uint64_t state_last_id(const struct state *s);

/* Reserves the next `ahead` event numbers, and stores the first of them in *ret_first. Called only at start.
 * Blocks. */
int state_reserve_seq(struct state *s, uint64_t ahead, uint64_t *ret_first, struct err *err);

/* Begins a unit, which is a group of changes that are committed together. If memory runs out while changes
 * are added, state_failed returns true. The caller must then discard the unit. */
struct state_unit *state_begin(struct state *s);

/* Adds a new job and its status to the unit. If another job already has the same key, no change of the unit
 * is written, and the unit's callback gets the status -EEXIST. */
void state_put_job(struct state_unit *u, const struct state_job *job);

/* Adds the new status of a job to the unit. Of `job`, only the fields id, status, ended_ms, uid and bytes are
 * used. */
void state_put_status(struct state_unit *u, const struct state_job *job);

/* Adds an event to the unit. */
void state_put_event(struct state_unit *u, const struct state_event *e);

/* Records in the unit that all event numbers below `limit` may already be in use. After a restart, the daemon
 * continues with the number `limit`. */
void state_put_seq(struct state_unit *u, uint64_t limit);

/* Marks the unit as failed. The caller does this when it has no memory for something that belongs to the
 * unit. */
void state_fail(struct state_unit *u);

/* Returns whether the unit has failed. */
bool state_failed(const struct state_unit *u);

/* Frees a unit that is not committed. */
void state_discard(struct state_unit *u);

/* Commits a unit that has not failed. When the unit is on disk, `done` is called with the status 0. If the
 * unit is given up, `done` is called with another status. -EEXIST means that the key of the new job is
 * already taken. An optional unit can also get -ENOSPC or -ENOMEM. `done` may be NULL. */
void state_commit(struct state_unit *u, bool optional, void (*done)(void *ctx, int status), void *ctx);

/* Returns true if no write, read or backup is waiting or being done. */
bool state_idle(const struct state *s);

/* Tells state_read_jobs which jobs to read. */
struct state_query {
    /* The id of the job to read. 0 if other fields choose the jobs. */
    uint64_t id;
    /* The key of the job to read. state_read_jobs copies this text. NULL if other fields choose the jobs. */
    const char *key;
    /* If neither id nor key is set, the jobs whose id is greater than `after` are read, in ascending order
     * and without their specs. */
    uint64_t after;
    /* Used together with `after`. Jobs that ended before this wall-clock time are left out. With 0, no job is
     * left out. */
    uint64_t ended_after_ms;
    uint32_t limit; /* most jobs to read */
};

/* Reads jobs on a pool thread and calls `each` there for every job. If `each` returns a number other than 0,
 * the reading ends. If this number is negative, it becomes the status of `done`. `done` is always called, on
 * the loop thread. It is no error if no job is found. */
void state_read_jobs(struct state *s, const struct state_query *query,
                     int (*each)(void *ctx, const struct state_job *job), void (*done)(void *ctx, int status),
                     void *ctx);

/* Reads one job and its spec on a pool thread. `done` is always called, on the loop thread. The job that
 * `done` gets is valid only during the call. The status is -ENOENT if no job has this id. */
void state_read_job(struct state *s, uint64_t id,
                    void (*done)(void *ctx, int status, const struct state_job *job), void *ctx);

/* Reads at most `limit` events with first <= seq < end, in ascending order, on a pool thread. If `job` is 0,
 * reads the events of all jobs, otherwise only those of this job. `done` is always called, on the loop
 * thread. The events are valid only during that call. */
void state_read_events(struct state *s, uint64_t job, uint64_t first, uint64_t end, uint32_t limit,
                       void (*done)(void *ctx, int status, const struct state_event *events, size_t n),
                       void *ctx);

/* Makes a copy of the database on a pool thread while commits continue. `done` is called on the loop thread
 * and must close `fd`. `fd` is a file without a name, or -1 if the status is negative. If another copy is
 * being made, returns -EBUSY and never calls `done`. */
int state_backup(struct state *s, void (*done)(void *ctx, int status, int fd, uint64_t bytes), void *ctx);

#endif
