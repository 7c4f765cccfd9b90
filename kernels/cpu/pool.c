/* The pool: threads that share the pieces of one op.
 *
 * Why this way: a run lives on its caller's stack and hangs in a list while pieces are left, so nothing is
 * allocated per run and several streams may run ops at once. Pieces are handed out one by one by an atomic
 * counter: a thread that shares its core with somebody else simply takes fewer. Who ran a piece never
 * matters, because a piece writes its own part of the output. Idle workers look for work for some
 * microseconds, then sleep on a condition variable; the caller always works on its own run, so a run makes
 * progress even when every worker is busy elsewhere.
 *
 * Threads: pool_create and pool_destroy from one thread; pool_run from any, also from inside a piece.
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "kernels/cpu/cpu.h"

struct run {
    void (*fn)(void *ctx, uint32_t i);
    void *ctx;
    uint32_t n;
    _Atomic uint64_t next; /* first piece nobody has taken; passes n (64 bits: never wraps) */
    _Atomic uint32_t helpers; /* workers inside this run; written under pool.mutex */
    struct run *next_run;     /* guarded by pool.mutex */
};

struct pool {
    pthread_mutex_t mutex;
    pthread_cond_t work; /* a run was added, or stop was set */
    pthread_cond_t done; /* the last helper left some run, or a worker has started */
    struct run *runs;    /* with pieces left, oldest first; guarded by mutex */
    _Atomic uint32_t posted; /* runs ever added: who looks for work without the mutex sees it change */
    uint32_t sleepers;       /* workers in a wait for `work`; guarded by mutex */
    uint32_t ready;      /* workers that have started; guarded by mutex */
    bool stop;           /* guarded by mutex */
    uint32_t n_workers;  /* constant once created */
    pthread_t workers[];
};

static void take_pieces(struct run *r)
{
    for (;;) {
        uint64_t i = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed);
        if (i >= r->n)
            return;
        r->fn(r->ctx, (uint32_t)i);
    }
}

/* The oldest run with pieces left, or NULL. Caller holds the mutex. */
static struct run *find_run(const struct pool *p)
{
    struct run *r = p->runs;
    while (r && atomic_load_explicit(&r->next, memory_order_relaxed) >= r->n)
        r = r->next_run;
    return r;
}

/* Work comes every few microseconds while a step computes, and a sleep takes longer than that to begin and to end. So a
 * thread first looks for a while, short enough not to matter where cores are shared. */
#define LOOKS 500

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void look_for_work(const struct pool *p, uint32_t seen)
{
    for (int i = 0; i < LOOKS && atomic_load_explicit(&p->posted, memory_order_relaxed) == seen; i++)
        relax();
}

static void look_for_end(const struct run *r)
{
    for (int i = 0; i < LOOKS && atomic_load_explicit(&r->helpers, memory_order_acquire) > 0; i++)
        relax();
}

/* Called and returns with the mutex held; there may be work afterwards. */
static void idle(struct pool *p)
{
    uint32_t seen = atomic_load_explicit(&p->posted, memory_order_relaxed);

    pthread_mutex_unlock(&p->mutex);
    look_for_work(p, seen);
    pthread_mutex_lock(&p->mutex);
    if (p->stop || atomic_load_explicit(&p->posted, memory_order_relaxed) != seen)
        return;
    p->sleepers++;
    pthread_cond_wait(&p->work, &p->mutex);
    p->sleepers--;
}

static void *worker_main(void *arg)
{
    struct pool *p = arg;

    cpu_thread_init();
    pthread_mutex_lock(&p->mutex);
    p->ready++;
    pthread_cond_broadcast(&p->done);
    while (!p->stop) {
        struct run *r = find_run(p);
        if (!r) {
            idle(p);
            continue;
        }
        atomic_fetch_add_explicit(&r->helpers, 1, memory_order_relaxed);
        pthread_mutex_unlock(&p->mutex);
        take_pieces(r);
        pthread_mutex_lock(&p->mutex);
        if (atomic_fetch_sub_explicit(&r->helpers, 1, memory_order_release) == 1)
            pthread_cond_broadcast(&p->done);
    }
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

static void add_run(struct pool *p, struct run *r)
{
    struct run **at = &p->runs;
    while (*at)
        at = &(*at)->next_run;
    *at = r;
    atomic_fetch_add_explicit(&p->posted, 1, memory_order_relaxed);
}

static void remove_run(struct pool *p, struct run *r)
{
    struct run **at = &p->runs;
    while (*at != r)
        at = &(*at)->next_run;
    *at = r->next_run;
}

void pool_run(struct pool *p, void (*fn)(void *ctx, uint32_t i), void *ctx, uint32_t n)
{
    if (n <= 1 || p->n_workers == 0) {
        for (uint32_t i = 0; i < n; i++)
            fn(ctx, i);
        return;
    }

    struct run r = {.fn = fn, .ctx = ctx, .n = n};
    pthread_mutex_lock(&p->mutex);
    add_run(p, &r);
    uint32_t wake = n - 1 < p->sleepers ? n - 1 : p->sleepers;
    pthread_mutex_unlock(&p->mutex);
    for (uint32_t i = 0; i < wake; i++)
        pthread_cond_signal(&p->work);

    take_pieces(&r);

    /* Every piece is taken; once the helpers have left, every piece is done, and nobody knows r any more. */
    pthread_mutex_lock(&p->mutex);
    remove_run(p, &r);
    pthread_mutex_unlock(&p->mutex);
    look_for_end(&r);
    pthread_mutex_lock(&p->mutex);
    while (atomic_load_explicit(&r.helpers, memory_order_relaxed) > 0)
        pthread_cond_wait(&p->done, &p->mutex);
    pthread_mutex_unlock(&p->mutex);
}

/* Workers take no signals: those belong to the threads that expect them. */
static int start_workers(struct pool *p, uint32_t n)
{
    sigset_t all, before;
    int r = 0;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (p->n_workers < n) {
        r = pthread_create(&p->workers[p->n_workers], NULL, worker_main, p);
        if (r)
            break;
        pthread_setname_np(p->workers[p->n_workers], "tutti-pool");
        p->n_workers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -r;
}

/* What a thread allocates when it starts (cpu_thread_init does) happens before a step, not in the middle of one. */
static void await_workers(struct pool *p)
{
    pthread_mutex_lock(&p->mutex);
    while (p->ready < p->n_workers)
        pthread_cond_wait(&p->done, &p->mutex);
    pthread_mutex_unlock(&p->mutex);
}

int pool_create(uint32_t threads, struct pool **ret)
{
    assert(threads >= 1);
    struct pool *p = calloc(1, sizeof *p + (threads - 1) * sizeof p->workers[0]);
    if (!p)
        return -ENOMEM;
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);

    int r = start_workers(p, threads - 1);
    if (r) {
        pool_destroy(p);
        return r;
    }
    await_workers(p);
    *ret = p;
    return 0;
}

void pool_destroy(struct pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->mutex);
    assert(!p->runs);
    p->stop = true;
    pthread_mutex_unlock(&p->mutex);
    pthread_cond_broadcast(&p->work);
    for (uint32_t i = 0; i < p->n_workers; i++)
        pthread_join(p->workers[i], NULL);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->mutex);
    free(p);
}
