/* Work of requests that takes too long for the loop's thread: it is done in libuv's pool, a few pieces at a time.
 *
 * Users take turns. Next comes the user whose last piece started longest ago, with the oldest piece of theirs. So a user with six busy clients delays another user's request by one piece, not by six.
 *
 * A piece is a struct heavy_task inside of the caller's own structure. heavy_add, then `run` in the pool, then `done` on the
 * loop's thread; `done` always comes, and may free the task or add it again. Loop thread only, `run` apart.
 */
#ifndef DAEMON_HEAVY_H
#define DAEMON_HEAVY_H

#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "base/vec.h"

struct heavy_task {
    uid_t uid;
    void (*run)(struct heavy_task *t);  /* in the pool */
    void (*done)(struct heavy_task *t); /* on the loop's thread */
    /* heavy.c */
    struct heavy *heavy;
    uv_work_t work;
    struct heavy_task *next;
};

struct heavy_turn {
    uid_t uid;
    uint64_t last; /* the number of this user's newest start; starts are numbered from 1 */
};

struct heavy {
    uv_loop_t *loop;
    uint32_t most, running;          /* pieces in the pool: the limit, and now */
    struct heavy_task *first, **end; /* waiting, oldest first */
    VEC(struct heavy_turn) turns;    /* of each user who ever had a piece */
    uint64_t starts;
};

/* `most`: pieces in the pool at once. Less than the pool's threads, so that the disk is served meanwhile. */
void heavy_init(struct heavy *h, uv_loop_t *loop, uint32_t most);
void heavy_finish(struct heavy *h); /* after the last `done` */
void heavy_add(struct heavy *h, struct heavy_task *t);

#endif
