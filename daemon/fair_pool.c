/* Implements fair_pool.h. A plain list of waiting tasks is fast enough, because there are at most a thousand
 * connections with a few tasks each. */
#include "daemon/fair_pool.h"

#include <stdlib.h>

void fair_pool_init(struct fair_pool *p, uv_loop_t *loop, uint32_t most)
{
    *p = (struct fair_pool){.loop = loop, .most = most};
    p->end = &p->first;
}

void fair_pool_finish(struct fair_pool *p)
{
    vec_free(&p->turns);
}

static struct fair_pool_turn *turn_of(struct fair_pool *p, uid_t uid)
{
    for (size_t i = 0; i < p->turns.n; i++)
        if (p->turns.at[i].uid == uid)
            return &p->turns.at[i];
    vec_push(&p->turns, (struct fair_pool_turn){.uid = uid});
    return &p->turns.at[p->turns.n - 1];
}

/* Chooses the waiting task that starts next, and removes this task from the list. Of all users with waiting
 * tasks, the next user is the one whose last task started longest ago. The oldest task of this user is
 * chosen. The list must not be empty. */
static struct fair_pool_task *take_next(struct fair_pool *p)
{
    struct fair_pool_task **best = &p->first;
    for (struct fair_pool_task **at = &p->first; *at != NULL; at = &(*at)->next)
        if (turn_of(p, (*at)->uid)->last < turn_of(p, (*best)->uid)->last)
            best = at;
    struct fair_pool_task *t = *best;
    *best = t->next;
    if (t->next == NULL)
        p->end = best;
    turn_of(p, t->uid)->last = ++p->starts;
    return t;
}

static void run_task(uv_work_t *work)
{
    struct fair_pool_task *t = work->data;
    t->run(t);
}

static void start_some(struct fair_pool *p);

static void task_done(uv_work_t *work, int status)
{
    struct fair_pool_task *t = work->data;
    struct fair_pool *p = t->pool;
    (void)status; /* never cancelled */
    p->running--;
    t->done(t);
    start_some(p);
}

static void start_some(struct fair_pool *p)
{
    while (p->running < p->most && p->first != NULL) {
        struct fair_pool_task *t = take_next(p);
        p->running++;
        t->work.data = t;
        uv_queue_work(p->loop, &t->work, run_task, task_done);
    }
}

void fair_pool_add(struct fair_pool *p, struct fair_pool_task *t)
{
    t->pool = p;
    t->next = NULL;
    *p->end = t;
    p->end = &t->next;
    start_some(p);
}
