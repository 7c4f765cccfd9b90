/* Work of requests that takes too long for the loop's thread: it is done in libuv's pool, a few pieces at a time.
 *
 * Users take turns. Next comes the user whose last piece started longest ago, with the oldest piece of theirs. So a user with six busy clients delays another user's request by one piece, not by six.
 *
 * A piece is a struct fair_pool_task inside of the caller's own structure. fair_pool_add, then `run` in the pool, then `done` on the
 * loop's thread; `done` always comes, and may free the task or add it again. Loop thread only, `run` apart.
 */
#ifndef DAEMON_FAIR_POOL_H
#define DAEMON_FAIR_POOL_H

#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "base/vec.h"

struct fair_pool_task {
    uid_t uid;
    void (*run)(struct fair_pool_task *t);  /* in the pool */
    void (*done)(struct fair_pool_task *t); /* on the loop's thread */
    /* fair_pool.c */
    struct fair_pool *pool;
    uv_work_t work;
    struct fair_pool_task *next;
};

struct fair_pool_turn {
    uid_t uid;
    uint64_t last; /* the number of this user's newest start; starts are numbered from 1 */
};

struct fair_pool {
    uv_loop_t *loop;
    uint32_t most, running;              /* pieces in the pool: the limit, and now */
    struct fair_pool_task *first, **end; /* waiting, oldest first */
    VEC(struct fair_pool_turn) turns;    /* of each user who ever had a piece */
    uint64_t starts;
};

/* `most`: pieces in the pool at once. Less than the pool's threads, so that the disk is served meanwhile. */
void fair_pool_init(struct fair_pool *p, uv_loop_t *loop, uint32_t most);
void fair_pool_finish(struct fair_pool *p); /* after the last `done` */
void fair_pool_add(struct fair_pool *p, struct fair_pool_task *t);

#endif
