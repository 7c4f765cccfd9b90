/* The daemon's durable state: jobs, their status, and the events that are kept. Stored in SQLite (WAL,
 * synchronous=FULL).
 *
 * Changes are collected in units: state_begin, then state_put_*, then state_commit. All units of one turn of
 * the loop go into one transaction, which a thread of the pool writes (group commit). When the transaction is
 * on disk, the callback of each unit is called on the loop thread, in order. Nothing may be told to anyone
 * before that.
 *
 * When the disk is full or memory has run out, `optional` units are given up, and their callbacks get -ENOSPC
 * or -ENOMEM. All other units are tried again every second. Any other failure to write is final: `die` is
 * called, because nobody knows what a failed fsync has left on disk.
 *
 * Every row carries a CRC-32C of its content. Every transaction has a number, and the newest number is also
 * kept in a file of its own (state_mark.h), so that a database that lost acknowledged transactions is
 * refused. state_guard.c explains how.
 *
 * Ended jobs stay in the database until the rule in struct state_keep removes them. No cost on the loop
 * thread depends on their number. The check of the history and pruning run in the pool, in small pieces.
 */
#ifndef DAEMON_STATE_H
#define DAEMON_STATE_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/err.h"

struct state;
struct state_unit;

/* How long ended jobs are kept. A job that exceeds any of the three limits is removed; the jobs that ended
 * first go first. */
struct state_keep {
    uint64_t ms;    /* time since the end; 0: unlimited */
    uint64_t jobs;  /* ended jobs of all users; 0: unlimited */
    uint64_t bytes; /* bytes of one user; 0: unlimited */
};

/* The arguments of state_open. */
struct state_config {
    uv_loop_t *loop;
    /* Path of the state directory. The caller keeps the text valid. */
    const char *dir;
    /* Ends the process, because the state cannot be written or is damaged. */
    void (*die)(void *ctx, const char *why);
    void *ctx;         /* passed to all callbacks */
    bool accept_older; /* go on although acknowledged transactions are missing */
    struct state_keep keep;
    /* Returns the number of ended jobs that must not be pruned yet, and their ids in *ret_ids, which the
     * caller frees. Called on the loop thread. May be NULL. */
    size_t (*in_use)(void *ctx, uint64_t **ret_ids);
    /* Removes whatever belongs to a job outside of the database, because the job is about to be pruned.
     * Called in the pool. May be NULL. */
    void (*pruning)(void *ctx, uint64_t id);
};

/* One job as it is on disk. */
struct state_job {
    uint64_t id;
    const char *key;  /* NULL: none */
    const char *body; /* JSON: what never changes, without the spec */
    /* JSON text of the spec; NULL when many jobs are read at once. */
    const char *spec;
    const char *status; /* JSON: what changes */
    uint64_t ended_ms;  /* wall clock; 0: not ended */
    uint64_t uid;       /* the user who submitted the job */
    /* Bytes of all texts of the job, without its events. state_put_job computes them. */
    uint64_t bytes;
};

struct state_event {
    uint64_t seq, job; /* event number; id of its job */
    const char *body;  /* the line that watchers get */
};

/* Opens the state, or creates it in an empty directory. Blocks. Returns -EBADMSG when the state is damaged or
 * acknowledged transactions are missing; the message says where, and what to do. */
int state_open(const struct state_config *config, struct state **ret, struct err *err);

/* Commits the waiting units, calls their callbacks, and closes the database. Blocks. Takes NULL. The memory
 * is freed when the loop has run once more. */
void state_close(struct state *s);

/* Calls `each` for every job that has not ended, in ascending id; a failure of `each` ends the loading.
 * Called once at start. Blocks. Checks the rows that it reads, and in a small database all other rows too. A
 * large database is checked in the pool afterwards; `die` is called if damage is found there. */
int state_load(struct state *s, int (*each)(void *ctx, const struct state_job *job, struct err *err),
               void *ctx, struct err *err);

/* Returns the highest job id that was ever acknowledged. At start only. */
uint64_t state_last_id(const struct state *s);

/* Reserves `ahead` event numbers. *ret_first is the first event number that was never given out. At start
 * only. Blocks. */
int state_reserve_seq(struct state *s, uint64_t ahead, uint64_t *ret_first, struct err *err);

/* Begins a unit. A unit in which a text could not be copied for want of memory has failed (state_failed). It
 * must be discarded, not committed. */
struct state_unit *state_begin(struct state *s);

/* Adds a new job with its status to the unit. If another job has the same key, nothing of the unit is
 * written, and the unit's callback gets -EEXIST. */
void state_put_job(struct state_unit *u, const struct state_job *job);

/* Adds the status of a job to the unit. Uses id, status, ended_ms, uid and bytes of `job`. */
void state_put_status(struct state_unit *u, const struct state_job *job);

/* Adds an event to the unit. */
void state_put_event(struct state_unit *u, const struct state_event *e);

/* Makes the unit record that event numbers below `limit` may have been given out. */
void state_put_seq(struct state_unit *u, uint64_t limit);

/* Marks the unit as failed, because the caller has no memory for something that belongs to it. */
void state_fail(struct state_unit *u);

/* Returns whether the unit has failed. */
bool state_failed(const struct state_unit *u);

/* Frees a unit that is not committed. */
void state_discard(struct state_unit *u);

/* Commits a unit that has not failed. `done` (may be NULL) is called when the unit is on disk. Its status is
 * 0, or -EEXIST when the key of the unit's job is taken. An optional unit may also get -ENOSPC (the disk is
 * full) or -ENOMEM. */
void state_commit(struct state_unit *u, bool optional, void (*done)(void *ctx, int status), void *ctx);

/* Returns whether no write, read or backup is waiting or under way. */
bool state_idle(const struct state *s);

/* Which jobs to read. */
struct state_query {
    /* Id of the job to read; 0 to choose jobs by the other fields. */
    uint64_t id;
    /* Key of the job to read; NULL to choose jobs by the other fields. The text is copied. */
    const char *key;
    /* If neither id nor key is set, all jobs with a greater id than this one are read, in ascending order and
     * without their specs. */
    uint64_t after;
    /* Together with `after`, leaves out jobs that ended before this time (wall clock); 0 to leave out
     * none. */
    uint64_t ended_after_ms;
    uint32_t limit; /* most jobs to read */
};

/* Reads jobs in the pool. `each` is called there for every job. A positive result of `each` ends the reading,
 * a negative one ends it with that status. `done` is always called, on the loop thread; its status is 0 also
 * when no job was found. */
void state_read_jobs(struct state *s, const struct state_query *query,
                     int (*each)(void *ctx, const struct state_job *job), void (*done)(void *ctx, int status),
                     void *ctx);

/* Reads one job with its spec in the pool. `done` is always called, on the loop thread; the job is valid
 * during the call. Its status is -ENOENT when no job has this id. */
void state_read_job(struct state *s, uint64_t id,
                    void (*done)(void *ctx, int status, const struct state_job *job), void *ctx);

/* Reads events from disk in the pool: those of one job, or of all jobs (0), with first <= seq < end, in
 * ascending order, at most `limit`. `done` is always called, on the loop thread; the events are valid during
 * the call. */
void state_read_events(struct state *s, uint64_t job, uint64_t first, uint64_t end, uint32_t limit,
                       void (*done)(void *ctx, int status, const struct state_event *events, size_t n),
                       void *ctx);

/* Makes a consistent copy of the database in the pool, while commits go on. `done` is called on the loop
 * thread. It owns `fd`, a descriptor of a file without a name; `fd` is -1 when status is negative. Returns
 * -EBUSY while another copy is being made; then `done` is never called. */
int state_backup(struct state *s, void (*done)(void *ctx, int status, int fd, uint64_t bytes), void *ctx);

#endif
