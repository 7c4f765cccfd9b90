/* Streams: one thread, one ring of commands, one lock each.
 *
 * Why a lock and not a lock-free ring: to enqueue and run a command costs little beside the ops and copies
 * that it starts, and one sentence per field says who may touch it.
 *
 * Why a list of waiters and not one condition for all: a plan has thousands of waits a second, of several
 * streams on different positions of one stream. Each waiter sleeps on a condition of its own, on its own
 * stack, and is woken when its position is reached and not before: one wake-up per wait that really blocks,
 * none otherwise. The room in a full queue, a drain and an event_sync are waits for a position like any
 * other.
 *
 * Nobody spins: what a stream waits for takes longer than a spin worth its name, and on a small machine the
 * core is better used by the ops of another stream. A wait that blocks costs a wake-up, and on a core that
 * had gone to sleep what the machine takes to wake it.
 *
 * Threads: push and pushed belong to the one enqueueing thread; await is for any thread; run is called in the
 * stream's. Locks: a stream's lock is never held while another is taken, nor while a command runs.
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

struct waiter {
    uint64_t position;
    pthread_cond_t reached;
    struct waiter *next;
};

struct stream {
    stream_run_fn *run; /* const */
    void *ctx;          /* const */
    pthread_t thread;   /* const */

    pthread_mutex_t lock;
    pthread_cond_t work;    /* the queue is no longer empty, or closing; the stream's thread waits */
    uint64_t pushed;        /* commands ever enqueued: written under lock by the enqueueing thread alone */
    uint64_t done;          /* the position reached: guarded by lock */
    struct waiter *waiters; /* those whose position is not reached, in no order: guarded by lock */
    pthread_cond_t started; /* `running` was set */
    bool running;           /* the thread has started, with all that allocates: guarded by lock */
    bool closing;           /* guarded by lock */

    /* Command i is in slot i % STREAM_QUEUE: the enqueueing thread's until `pushed` passes i, the stream's
     * until `done` passes it. */
    struct command queue[STREAM_QUEUE];
};

/* Takes out and wakes those whose position is reached. Under lock: the waiter is on the stack of a thread
 * that leaves as soon as it has the lock. */
static void wake_waiters(struct stream *s)
{
    struct waiter **at = &s->waiters;

    while (*at) {
        struct waiter *w = *at;
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
    /* Sleeps that pace copies should end on time: the default slack of 50 us is longer than a small copy. */
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);

    pthread_mutex_lock(&s->lock);
    s->running = true;
    pthread_cond_signal(&s->started);
    for (;;) {
        while (s->done == s->pushed && !s->closing)
            pthread_cond_wait(&s->work, &s->lock);
        if (s->done == s->pushed)
            break;
        const struct command *c = &s->queue[s->done % STREAM_QUEUE];
        pthread_mutex_unlock(&s->lock);
        s->run(s->ctx, c);
        pthread_mutex_lock(&s->lock);
        s->done++;
        wake_waiters(s);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* The thread takes no signals: those belong to the threads that expect them. */
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

/* Called and returns with the lock held. */
static void await_locked(struct stream *s, uint64_t position)
{
    struct waiter w = {.position = position, .reached = PTHREAD_COND_INITIALIZER, .next = s->waiters};

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

void stream_push(struct stream *s, const struct command *c)
{
    bool was_empty;

    pthread_mutex_lock(&s->lock);
    /* Once full, sleep until half of it is free: a wake-up for each command would cost more than the
     * commands. */
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
