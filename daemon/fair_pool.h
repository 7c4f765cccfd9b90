/* Long work for requests, done in libuv's pool a few tasks at a time, with users taking turns.
 *
 * The next task to start is the oldest task of the user whose last task started longest ago. So a user with
 * six busy clients delays another user's request by one task, not by six.
 *
 * The caller embeds a struct fair_pool_task in its own structure and calls fair_pool_add. `run` is then
 * called in the pool, and `done` on the loop thread. `done` is always called; it may free the task or add it
 * again. All functions belong to the loop thread.
 */
#ifndef DAEMON_FAIR_POOL_H
#define DAEMON_FAIR_POOL_H

#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "base/vec.h"

/* One piece of work. The caller fills in the first three fields and owns the memory until `done` is called.
 */
struct fair_pool_task {
    uid_t uid;                              /* the user who asked for the work */
    void (*run)(struct fair_pool_task *t);  /* called in the pool */
    void (*done)(struct fair_pool_task *t); /* called on the loop thread */

    /* fair_pool.c */
    struct fair_pool *pool;
    uv_work_t work;
    struct fair_pool_task *next;
};

/* When a user last had a turn. */
struct fair_pool_turn {
    uid_t uid;
    /* Number of the user's newest start. Starts are numbered from 1. */
    uint64_t last;
};

struct fair_pool {
    uv_loop_t *loop;
    uint32_t most;                       /* tasks that may run at once */
    uint32_t running;                    /* tasks that run now */
    struct fair_pool_task *first, **end; /* tasks that wait, oldest first */
    /* One for each user who ever added a task. */
    VEC(struct fair_pool_turn) turns;
    uint64_t starts; /* number of tasks that were started */
};

/* `most` is the number of tasks that may run at once. It should be less than the number of threads in libuv's
 * pool, so that reads and writes of the state go on meanwhile. */
void fair_pool_init(struct fair_pool *p, uv_loop_t *loop, uint32_t most);

/* Frees what the pool holds. Called after the last `done`. */
void fair_pool_finish(struct fair_pool *p);

/* Adds a task, and starts it at once if fewer than `most` tasks run. */
void fair_pool_add(struct fair_pool *p, struct fair_pool_task *t);

#endif
