/* What is durable: jobs, their status, and the events that are kept; in SQLite (WAL, synchronous=FULL).
 *
 * Changes are collected in units: state_begin, state_put_*, state_commit. All units of one turn of the loop go into one
 * transaction in the pool (group commit); when it is on disk, each unit's callback is called on the loop thread, in order.
 * Nothing may be told to anyone before.
 *
 * When the disk is full or memory has run out, units that are `optional` are given up and told -ENOSPC or -ENOMEM; the others
 * are tried again every second. Any other failure to write is final: `die` is called, since what a failed fsync left is unknown.
 *
 * Every row carries a CRC-32C of its content. state_open checks the whole file and refuses damage.
 */
#ifndef DAEMON_STATE_H
#define DAEMON_STATE_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/err.h"

struct state;
struct state_unit;

struct state_config {
    uv_loop_t *loop;
    const char *dir;
    void (*die)(void *ctx, const char *why);
    void *ctx;
};

/* One job as it is on disk. */
struct state_job {
    uint64_t id;
    const char *key;    /* NULL: none */
    const char *body;   /* JSON: what never changes, the spec aside */
    const char *spec;   /* JSON, frozen */
    const char *status; /* JSON: what changes */
};

struct state_event {
    uint64_t seq, job;
    const char *body; /* the event's line */
};

/* Blocks. -EBADMSG: damaged; the message says where and what to do. */
int state_open(const struct state_config *config, struct state **ret, struct err *err);
/* Blocks: finishes what is under way, and commits the rest. Callbacks of the rest are called. */
void state_close(struct state *s); /* takes NULL; its memory is gone when the loop has run once more */

/* At start only, blocks: every job in ascending id; the callback's failure ends it. */
int state_load(struct state *s, int (*each)(void *ctx, const struct state_job *job, struct err *err),
               void *ctx, struct err *err);
/* The first event number that was never given out. The following `ahead` numbers may be given out afterwards; at start,
 * blocks. */
int state_reserve_seq(struct state *s, uint64_t ahead, uint64_t *ret_first, struct err *err);

/* A unit in which a text could not be copied for want of memory has failed: state_commit then refuses it. */
struct state_unit *state_begin(struct state *s);
void state_put_job(struct state_unit *u, const struct state_job *job); /* with its status */
void state_put_status(struct state_unit *u, uint64_t id, const char *status);
void state_put_event(struct state_unit *u, const struct state_event *e);
void state_put_seq(struct state_unit *u, uint64_t limit); /* numbers below may have been given out */
void state_fail(struct state_unit *u); /* for a caller whose own memory for the unit ran out */
bool state_failed(const struct state_unit *u);
void state_discard(struct state_unit *u); /* in place of state_commit */
/* `done` may be NULL; status: 0, or for an optional unit -ENOSPC (the disk is full) or -ENOMEM. A unit that has failed is
 * discarded by the caller, not committed. */
void state_commit(struct state_unit *u, bool optional, void (*done)(void *ctx, int status), void *ctx);
bool state_idle(const struct state *s); /* nothing waits for the disk */

/* Reads in the pool; the callback is on the loop thread and always comes. What it gets is valid during the call. */
void state_read_job(struct state *s, uint64_t id,
                    void (*done)(void *ctx, int status, const struct state_job *job), void *ctx);
/* Kept events with first <= seq < end of `job` (0: all), ascending, at most `limit`. */
void state_read_events(struct state *s, uint64_t job, uint64_t first, uint64_t end, uint32_t limit,
                       void (*done)(void *ctx, int status, const struct state_event *events, size_t n),
                       void *ctx);

#endif
