/* Runs long work for requests in libuv's pool. A few tasks run at a time, and users take turns.
 *
 * The next task to start is the oldest task of the user whose last task started longest ago. So a user with
 * six busy clients delays another user's request by one task, not by six.
 *
 * The caller embeds a struct fair_pool_task in its own structure and calls fair_pool_add. `run` is then
 * called in the pool, and `done` on the loop thread. `done` is always called, and may free the task or add it
 * again. All functions must be called on the loop thread.
 */
#ifndef DAEMON_FAIR_POOL_H
#define DAEMON_FAIR_POOL_H

#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "base/vec.h"

/* One task for the thread pool. The caller fills in the first three fields. The memory must stay valid until
 * `done` is called. */
struct fair_pool_task {
    uid_t uid;                              /* the user who asked for the work */
    void (*run)(struct fair_pool_task *t);  /* called in the pool */
    void (*done)(struct fair_pool_task *t); /* called on the loop thread */

    /* fair_pool.c */
    struct fair_pool *pool;
    uv_work_t work;
    struct fair_pool_task *next;
};

/* Remembers which task of a user was started last, so that users can take turns. */
struct fair_pool_turn {
    uid_t uid;
    /* The number of the last task that was started for this user. The pool numbers the tasks of all users
     * together, from 1, in the order in which the tasks start. */
    uint64_t last;
};

struct fair_pool {
    uv_loop_t *loop;
    uint32_t most;                       /* tasks that may run at once */
    uint32_t running;                    /* tasks that run now */
    struct fair_pool_task *first, **end; /* tasks that wait, oldest first */
    /* One entry for each user who has ever added a task. */
    VEC(struct fair_pool_turn) turns;
    uint64_t starts; /* number of tasks that were started */
};

/* Prepares a pool that runs at most `most` tasks at the same time. `most` should be less than the number of
 * libuv's threads, so that a thread is always free to write to the database. */
void fair_pool_init(struct fair_pool *p, uv_loop_t *loop, uint32_t most);

/* Frees the memory of the pool. Call this function after the `done` callback of the last task. */
void fair_pool_finish(struct fair_pool *p);

/* Adds a task to the pool. The task starts at once if fewer than `most` tasks are running. */
void fair_pool_add(struct fair_pool *p, struct fair_pool_task *t);

#endif
