/* Implements streams: each has one thread, one ring of commands and one lock.
 *
 * It uses a lock rather than a lock-free ring, because enqueueing and starting a command costs little
 * compared to the op or copy itself. With a lock, one sentence per field is enough to say who may touch
 * it.
 *
 * It uses a list of waiters rather than one condition for all. A plan has thousands of waits per second,
 * in which several streams wait for different positions of one stream. Each waiter sleeps on a condition
 * of its own, on its own stack, and is woken only when its position is reached. That is one wake-up for
 * each wait that really blocks, and none otherwise. Waiting for a free slot in a full queue, a drain and
 * an event_sync are waits for a position too.
 *
 * No thread spins. A stream usually waits longer than a spin would be worth, and on a small machine the
 * ops of another stream make better use of the core. A wait that blocks costs a wake-up and, if its core
 * had gone to sleep, the time that the machine takes to wake the core.
 *
 * Threads: stream_push and stream_pushed belong to the one enqueueing thread. Any thread may call
 * stream_await. The stream's thread calls run. Locks: no thread holds a stream's lock while it takes
 * another or while a command runs.
 */
#include "kernels/cpu/stream.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "base/arena.h"
#include "kernels/cpu/cpu.h"

/* A thread that sleeps until a stream reaches a position. The struct is on the stack of this thread. */
struct stream_waiter {
    uint64_t position;
    pthread_cond_t reached;
    struct stream_waiter *next;
};

struct stream {
    stream_run_fn *run; /* const */
    void *ctx;          /* const */
    pthread_t thread;   /* const */

    pthread_mutex_t lock;
    /* Signalled when a command is enqueued and when `closing` is set. The stream's thread waits for this
     * condition variable. */
    pthread_cond_t work;
    /* The number of commands that have been enqueued so far. Only the enqueueing thread changes this number,
     * and it holds the lock when it does. */
    uint64_t pushed;
    uint64_t done; /* position reached; guarded by lock */
    /* A list of the waiters whose position has not been reached yet, in no particular order. Guarded by
     * lock. */
    struct stream_waiter *waiters;
    pthread_cond_t started; /* signalled when `running` is set */
    /* True once the stream's thread has started and has allocated all memory that it needs. Guarded by
     * lock. */
    bool running;
    bool closing; /* guarded by lock */

    /* Command number i is in slot i % STREAM_QUEUE. The slot belongs to the enqueueing thread until `pushed`
     * is larger than i. From then on, the slot belongs to the stream's thread until `done` is larger than
     * i. */
    struct stream_command queue[STREAM_QUEUE];
};

/* Wakes the waiters whose position has been reached, and removes them from the list. The caller must hold the
 * lock, which keeps the waiters' structs alive. These structs are on the stacks of the waiting threads. */
static void wake_waiters(struct stream *s)
{
    struct stream_waiter **at = &s->waiters;

    while (*at) {
        struct stream_waiter *w = *at;
        if (w->position <= s->done) {
            *at = w->next;
            pthread_cond_signal(&w->reached);
        } else {
            at = &w->next;
        }
    }
}

static void *stream_main(void *arg)
{
    struct stream *s = arg;

    cpu_thread_init();
    /* A copy with a speed limit ends with a short sleep, which must be precise. By default, Linux may wake a
     * thread 50 microseconds late, which is longer than a small copy takes. */
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);

    pthread_mutex_lock(&s->lock);
    s->running = true;
    pthread_cond_signal(&s->started);
    for (;;) {
        while (s->done == s->pushed && !s->closing)
            pthread_cond_wait(&s->work, &s->lock);
        if (s->done == s->pushed)
            break;
        const struct stream_command *c = &s->queue[s->done % STREAM_QUEUE];
        pthread_mutex_unlock(&s->lock);
        s->run(s->ctx, c);
        pthread_mutex_lock(&s->lock);
        s->done++;
        wake_waiters(s);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Starts the stream's thread with all signals blocked. Other threads of the process then handle the
 * signals. */
static int start_thread(struct stream *s)
{
    sigset_t all, before;
    int r;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    r = pthread_create(&s->thread, NULL, stream_main, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -r;
}

int stream_create(const char *name, stream_run_fn *run, void *ctx, struct stream **ret)
{
    struct stream *s = xcalloc(1, sizeof *s);
    int r;

    s->run = run;
    s->ctx = ctx;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->started, NULL);
    r = start_thread(s);
    if (r < 0) {
        pthread_cond_destroy(&s->started);
        pthread_cond_destroy(&s->work);
        pthread_mutex_destroy(&s->lock);
        free(s);
        return r;
    }
    pthread_setname_np(s->thread, name);
    pthread_mutex_lock(&s->lock);
    while (!s->running)
        pthread_cond_wait(&s->started, &s->lock);
    pthread_mutex_unlock(&s->lock);
    *ret = s;
    return 0;
}

void stream_destroy(struct stream *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_mutex_unlock(&s->lock);
    pthread_cond_signal(&s->work);
    pthread_join(s->thread, NULL);
    assert(!s->waiters);
    pthread_cond_destroy(&s->started);
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* Sleeps until the stream has reached `position`. The caller holds the lock before and after the call. */
static void await_locked(struct stream *s, uint64_t position)
{
    struct stream_waiter w = {.position = position, .reached = PTHREAD_COND_INITIALIZER, .next = s->waiters};

    assert(position <= s->pushed);
    if (s->done >= position)
        return;
    s->waiters = &w;
    while (s->done < position)
        pthread_cond_wait(&w.reached, &s->lock);
    pthread_cond_destroy(&w.reached);
}

void stream_await(struct stream *s, uint64_t position)
{
    pthread_mutex_lock(&s->lock);
    await_locked(s, position);
    pthread_mutex_unlock(&s->lock);
}

void stream_push(struct stream *s, const struct stream_command *c)
{
    bool was_empty;

    pthread_mutex_lock(&s->lock);
    /* If the queue is full, sleep until half of it is free. Waking up after each command would take longer
     * than the commands themselves. */
    if (s->pushed - s->done == STREAM_QUEUE)
        await_locked(s, s->pushed - STREAM_QUEUE / 2);
    was_empty = s->done == s->pushed;
    s->queue[s->pushed % STREAM_QUEUE] = *c;
    s->pushed++;
    pthread_mutex_unlock(&s->lock);
    if (was_empty)
        pthread_cond_signal(&s->work);
}

uint64_t stream_pushed(const struct stream *s)
{
    return s->pushed;
}
