/* Work of requests in the pool. See heavy.h. What waits is kept in a plain list: at most a thousand connections, each with
 * one line to parse and a few trees to free. */
#include "daemon/heavy.h"

#include <stdlib.h>

void heavy_init(struct heavy *h, uv_loop_t *loop, uint32_t most)
{
    *h = (struct heavy){.loop = loop, .most = most};
    h->end = &h->first;
}

void heavy_finish(struct heavy *h)
{
    vec_free(&h->turns);
}

static struct heavy_turn *turn_of(struct heavy *h, uid_t uid)
{
    for (size_t i = 0; i < h->turns.n; i++)
        if (h->turns.at[i].uid == uid)
            return &h->turns.at[i];
    vec_push(&h->turns, (struct heavy_turn){.uid = uid});
    return &h->turns.at[h->turns.n - 1];
}

/* Takes the oldest task of the user who has waited longest out of the list. There is one. */
static struct heavy_task *take_next(struct heavy *h)
{
    struct heavy_task **best = &h->first;
    for (struct heavy_task **at = &h->first; *at != NULL; at = &(*at)->next)
        if (turn_of(h, (*at)->uid)->last < turn_of(h, (*best)->uid)->last)
            best = at;
    struct heavy_task *t = *best;
    *best = t->next;
    if (t->next == NULL)
        h->end = best;
    turn_of(h, t->uid)->last = ++h->starts;
    return t;
}

static void run_task(uv_work_t *work)
{
    struct heavy_task *t = work->data;
    t->run(t);
}

static void start_some(struct heavy *h);

static void task_done(uv_work_t *work, int status)
{
    struct heavy_task *t = work->data;
    struct heavy *h = t->heavy;
    (void)status; /* never cancelled */
    h->running--;
    t->done(t);
    start_some(h);
}

static void start_some(struct heavy *h)
{
    while (h->running < h->most && h->first != NULL) {
        struct heavy_task *t = take_next(h);
        h->running++;
        t->work.data = t;
        uv_queue_work(h->loop, &t->work, run_task, task_done);
    }
}

void heavy_add(struct heavy *h, struct heavy_task *t)
{
    t->heavy = h;
    t->next = NULL;
    *h->end = t;
    h->end = &t->next;
    start_some(h);
}
