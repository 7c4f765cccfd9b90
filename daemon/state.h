/* What is durable: jobs, their status, and the events that are kept; in SQLite (WAL, synchronous=FULL).
 *
 * Changes are collected in units: state_begin, state_put_*, state_commit. All units of one turn of the loop go into one
 * transaction in the pool (group commit). When the transaction is on disk, each unit's callback is called on the loop
 * thread, in order. Nothing may be told to anyone before.
 *
 * When the disk is full or memory has run out, units that are `optional` are given up and told -ENOSPC or -ENOMEM; the others
 * are tried again every second. Any other failure to write is final: `die` is called, since what a failed fsync left is unknown.
 *
 * Every row carries a CRC-32C of its content. Each transaction has a number. The newest number is also kept in a file of its
 * own (state_mark.h), so that a database which lost acknowledged transactions is refused. state_guard.c says how.
 *
 * Jobs that have ended stay in the database until the rule in struct state_keep removes them. Nothing here costs by their
 * number, except a check and a prune that run in small pieces in the pool.
 */
#ifndef DAEMON_STATE_H
#define DAEMON_STATE_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/err.h"

struct state;
struct state_unit;

/* How long ended jobs are kept. A job that exceeds any of the three limits goes, the longest ended first. */
struct state_keep {
    uint64_t ms;    /* since its end; 0: for ever */
    uint64_t jobs;  /* ended jobs of all users; 0: any number */
    uint64_t bytes; /* of the ended jobs of one user; 0: any number */
};

struct state_config {
    uv_loop_t *loop;
    const char *dir;
    void (*die)(void *ctx, const char *why);
    void *ctx;
    bool accept_older; /* go on although acknowledged transactions are gone */
    struct state_keep keep;
    /* Both may be NULL. `in_use`, on the loop thread: the number of ended jobs that must not be pruned yet, and their ids
     * in memory that the caller frees. `pruning`, in the pool: the job is about to be removed; what else belongs to it can
     * go. */
    size_t (*in_use)(void *ctx, uint64_t **ret_ids);
    void (*pruning)(void *ctx, uint64_t id);
};

/* One job as it is on disk. */
struct state_job {
    uint64_t id;
    const char *key;    /* NULL: none */
    const char *body;   /* JSON: what never changes, the spec aside */
    const char *spec;   /* JSON, frozen; NULL when many jobs are read at once */
    const char *status; /* JSON: what changes */
    uint64_t ended_ms;  /* wall clock; 0: it has not ended */
    uint64_t uid;       /* whose it is */
    uint64_t bytes;     /* of all its texts, events aside. Filled in by reads; state_put_job computes it */
};

struct state_event {
    uint64_t seq, job;
    const char *body; /* the event's line */
};

/* Blocks. -EBADMSG: damaged, or something acknowledged is gone; the message says where and what to do. */
int state_open(const struct state_config *config, struct state **ret, struct err *err);
/* Blocks: finishes what is under way, and commits the rest. Callbacks of the rest are called. */
void state_close(struct state *s); /* takes NULL; its memory is gone when the loop has run once more */

/* At start only, blocks: every job that has not ended, in ascending id; the callback's failure ends it. Checks the rows that
 * it reads, and all others too when the database is small. A large one is checked in the pool afterwards; damage found
 * there is told to `die`. */
int state_load(struct state *s, int (*each)(void *ctx, const struct state_job *job, struct err *err),
               void *ctx, struct err *err);
uint64_t state_last_id(const struct state *s); /* at start only: the highest id that was ever acknowledged */
/* The first event number that was never given out. The following `ahead` numbers may be given out afterwards; at start,
 * blocks. */
int state_reserve_seq(struct state *s, uint64_t ahead, uint64_t *ret_first, struct err *err);

/* A unit in which a text could not be copied for want of memory has failed: state_commit then refuses it. */
struct state_unit *state_begin(struct state *s);
/* With its status. When another job has its key, nothing of the unit is written, and its callback gets -EEXIST. */
void state_put_job(struct state_unit *u, const struct state_job *job);
void state_put_status(struct state_unit *u,
                      const struct state_job *job); /* needs id, status, ended_ms, uid, bytes */
void state_put_event(struct state_unit *u, const struct state_event *e);
void state_put_seq(struct state_unit *u, uint64_t limit); /* numbers below may have been given out */
void state_fail(struct state_unit *u); /* for a caller whose own memory for the unit ran out */
bool state_failed(const struct state_unit *u);
void state_discard(struct state_unit *u); /* in place of state_commit */
/* `done` may be NULL; status: 0, -EEXIST as above, or for an optional unit -ENOSPC (the disk is full) or -ENOMEM. A unit that
 * has failed is discarded by the caller, not committed. */
void state_commit(struct state_unit *u, bool optional, void (*done)(void *ctx, int status), void *ctx);
bool state_idle(const struct state *s); /* nothing waits for the disk */

/* Which jobs to read. */
struct state_query {
    uint64_t id;     /* this one; 0: not by id */
    const char *key; /* the one with this key; NULL: not by key. Copied */
    uint64_t after;  /* otherwise: those with greater ids, ascending; without their specs */
    uint64_t
        ended_after_ms; /* and of these only those that have not ended, or not before this time; 0: all */
    uint32_t limit;
};

/* Reads in the pool, `each` is called there for every job; a positive value ends the reading, a negative one ends it
 * with that status. `done` is called on the loop thread and always comes; status 0 also when there was no such job. */
void state_read_jobs(struct state *s, const struct state_query *query,
                     int (*each)(void *ctx, const struct state_job *job), void (*done)(void *ctx, int status),
                     void *ctx);
/* Reads in the pool; the callback is on the loop thread and always comes. What it gets is valid during the call. */
void state_read_job(struct state *s, uint64_t id,
                    void (*done)(void *ctx, int status, const struct state_job *job), void *ctx);
/* Kept events with first <= seq < end of `job` (0: all), ascending, at most `limit`. */
void state_read_events(struct state *s, uint64_t job, uint64_t first, uint64_t end, uint32_t limit,
                       void (*done)(void *ctx, int status, const struct state_event *events, size_t n),
                       void *ctx);

/* A consistent copy of the database, made in the pool while commits go on. `done` is called on the loop thread and owns the
 * descriptor, which belongs to a file without a name; -1 when status is negative. -EBUSY: another copy is being made; then
 * `done` is not called. */
int state_backup(struct state *s, void (*done)(void *ctx, int status, int fd, uint64_t bytes), void *ctx);

#endif
