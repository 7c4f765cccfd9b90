/* The pool: threads that share the pieces of one op, and the machine's cores.
 *
 * Why this way: a run lives on its caller's stack and hangs in a list while pieces are left, so nothing is
 * allocated per run and several streams may run ops at once. Pieces are handed out one by one by an atomic
 * counter: a thread that shares its core with somebody else simply takes fewer. Who ran a piece never
 * matters, because a piece writes its own part of the output. Idle workers look for work for a
 * moment, then sleep on a condition variable; the caller of an op always works on its own run, so an op makes
 * progress even when every worker is busy elsewhere.
 *
 * Runs aside: if copies and the host's updates always ran on their callers' threads, beside the ops, the kernel would take the core
 * from some thread in the middle of a piece, and the whole op would wait for that piece. So a caller aside works only while fewer
 * threads than there are cores do. Else it sleeps, and its pieces are done by a worker between two ops and by the callers of ops
 * while they wait for their last helpers.
 *
 * Threads: pool_create and pool_destroy from one thread; pool_run from any, also from inside a piece of a run that is not aside.
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "kernels/cpu/cpu.h"

struct run {
    void (*fn)(void *ctx, uint32_t i);
    void *ctx;
    uint32_t n;
    bool aside;
    _Atomic uint64_t next;    /* first piece nobody has taken; passes n (64 bits: never wraps) */
    _Atomic uint32_t helpers; /* threads inside this run beside its caller; written under crew.mutex */
    struct run *next_run;     /* guarded by crew.mutex */
};

struct pool {
    struct crew *crew;
    bool aside;
};

struct crew {
    struct pool ops, aside; /* what callers hold: const */
    pthread_mutex_t mutex;
    pthread_cond_t work;      /* for workers: a run was added, or stop was set */
    pthread_cond_t done;      /* the last helper left some run, or a worker has started */
    struct run *runs;         /* with pieces left, oldest first; guarded by mutex */
    _Atomic uint32_t n_aside; /* of these runs; written under mutex */
    _Atomic uint32_t posted;  /* runs ever added: who looks for work without the mutex sees it change */
    uint32_t working;         /* threads inside a run; guarded by mutex */
    uint32_t cores;           /* constant: as many as threads, or more */
    uint32_t sleepers;        /* workers in a wait for `work`; guarded by mutex */
    uint32_t ready;           /* workers that have started; guarded by mutex */
    bool stop;                /* guarded by mutex */
    uint32_t n_workers;       /* constant once created */
    pthread_t workers[];
};

/* ---- runs ---- */

static bool has_pieces(const struct run *r)
{
    return atomic_load_explicit(&r->next, memory_order_relaxed) < r->n;
}

static bool take_piece(struct run *r)
{
    uint64_t i = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed);
    if (i >= r->n)
        return false;
    r->fn(r->ctx, (uint32_t)i);
    return true;
}

/* The oldest run with pieces left, or NULL. Caller holds the mutex. */
static struct run *find_run(const struct crew *c, bool only_aside)
{
    struct run *r = c->runs;
    while (r && (!has_pieces(r) || (only_aside && !r->aside)))
        r = r->next_run;
    return r;
}

static void join(struct run *r)
{
    atomic_fetch_add_explicit(&r->helpers, 1, memory_order_relaxed);
}

/* With the mutex held. Its caller may be gone with the run as soon as the mutex is. */
static void leave(struct crew *c, struct run *r)
{
    if (atomic_fetch_sub_explicit(&r->helpers, 1, memory_order_release) == 1)
        pthread_cond_broadcast(&c->done);
}

/* Work comes every few microseconds while a step computes, and a sleep takes longer than that to begin and to end. So a
 * thread first looks for a while, short enough not to matter where cores are shared: about 0.1 ms, by the processor's counter, for
 * a pause is as long as a processor likes. */
#define LOOK_CYCLES 250000u

#if defined(__x86_64__)
static uint64_t cycles(void)
{
    return __builtin_ia32_rdtsc();
}

static void relax(void)
{
    __builtin_ia32_pause();
}
#else
static uint64_t cycles(void)
{
    static _Thread_local uint64_t calls;
    return calls += 100;
}

static void relax(void)
{
}
#endif

static void look_for_work(const struct crew *c, uint32_t seen)
{
    uint64_t begin = cycles();
    while (atomic_load_explicit(&c->posted, memory_order_relaxed) == seen && cycles() - begin < LOOK_CYCLES)
        relax();
}

static void look_for_end(const struct run *r)
{
    uint64_t begin = cycles();
    while (atomic_load_explicit(&r->helpers, memory_order_acquire) > 0 && cycles() - begin < LOOK_CYCLES)
        relax();
}

/* ---- workers ---- */

/* Called and returns with the mutex held; there may be work afterwards. */
static void idle(struct crew *c)
{
    uint32_t seen = atomic_load_explicit(&c->posted, memory_order_relaxed);

    pthread_mutex_unlock(&c->mutex);
    look_for_work(c, seen);
    pthread_mutex_lock(&c->mutex);
    if (c->stop || atomic_load_explicit(&c->posted, memory_order_relaxed) != seen)
        return;
    c->sleepers++;
    pthread_cond_wait(&c->work, &c->mutex);
    c->sleepers--;
}

static void *worker_main(void *arg)
{
    struct crew *c = arg;

    cpu_thread_init();
    pthread_mutex_lock(&c->mutex);
    c->ready++;
    pthread_cond_broadcast(&c->done);
    while (!c->stop) {
        struct run *r = find_run(c, false);
        if (!r) {
            idle(c);
            continue;
        }
        join(r);
        c->working++;
        pthread_mutex_unlock(&c->mutex);
        while (take_piece(r))
            ;
        pthread_mutex_lock(&c->mutex);
        c->working--;
        leave(c, r);
    }
    pthread_mutex_unlock(&c->mutex);
    return NULL;
}

/* ---- callers ---- */

static void add_run(struct crew *c, struct run *r)
{
    struct run **at = &c->runs;
    while (*at)
        at = &(*at)->next_run;
    *at = r;
    if (r->aside)
        atomic_fetch_add_explicit(&c->n_aside, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->posted, 1, memory_order_relaxed);
}

static void remove_run(struct crew *c, struct run *r)
{
    struct run **at = &c->runs;
    while (*at != r)
        at = &(*at)->next_run;
    *at = r->next_run;
    if (r->aside)
        atomic_fetch_sub_explicit(&c->n_aside, 1, memory_order_relaxed);
}

/* With the mutex held, which it gives up. `joins`: the caller will work on it. */
static void post(struct crew *c, struct run *r, bool joins)
{
    uint32_t wake = joins ? r->n - 1 : r->n;

    add_run(c, r);
    c->working += joins;
    if (wake > c->sleepers)
        wake = c->sleepers;
    pthread_mutex_unlock(&c->mutex);
    while (wake-- > 0)
        pthread_cond_signal(&c->work);
}

/* The caller of an op, out of pieces of its own, works on runs aside until its helpers are done. */
static void help_aside(struct crew *c, const struct run *own)
{
    struct run *r;

    while (atomic_load_explicit(&c->n_aside, memory_order_relaxed) > 0 &&
           atomic_load_explicit(&own->helpers, memory_order_acquire) > 0) {
        pthread_mutex_lock(&c->mutex);
        r = find_run(c, true);
        if (r)
            join(r);
        pthread_mutex_unlock(&c->mutex);
        if (!r)
            return;
        take_piece(r);
        pthread_mutex_lock(&c->mutex);
        leave(c, r);
        pthread_mutex_unlock(&c->mutex);
    }
}

static void run_op(struct crew *c, struct run *r)
{
    pthread_mutex_lock(&c->mutex);
    post(c, r, true);
    while (take_piece(r))
        ;

    /* Every piece is taken; once the helpers have left, every piece is done, and nobody knows r any more. */
    pthread_mutex_lock(&c->mutex);
    remove_run(c, r);
    pthread_mutex_unlock(&c->mutex);
    help_aside(c, r);
    look_for_end(r);
    pthread_mutex_lock(&c->mutex);
    c->working--;
    while (atomic_load_explicit(&r->helpers, memory_order_relaxed) > 0)
        pthread_cond_wait(&c->done, &c->mutex);
    pthread_mutex_unlock(&c->mutex);
}

static void run_aside(struct crew *c, struct run *r)
{
    bool joins;

    pthread_mutex_lock(&c->mutex);
    joins = c->n_workers == 0 || c->working < c->cores;
    post(c, r, joins);
    while (joins && take_piece(r))
        ;
    pthread_mutex_lock(&c->mutex);
    c->working -= joins;
    while (has_pieces(r) || atomic_load_explicit(&r->helpers, memory_order_relaxed) > 0)
        pthread_cond_wait(&c->done, &c->mutex);
    remove_run(c, r);
    pthread_mutex_unlock(&c->mutex);
}

void pool_run(struct pool *p, void (*fn)(void *ctx, uint32_t i), void *ctx, uint32_t n)
{
    struct run r = {.fn = fn, .ctx = ctx, .n = n, .aside = p->aside};

    if (n <= 1) {
        if (n == 1)
            fn(ctx, 0);
    } else if (p->aside) {
        run_aside(p->crew, &r);
    } else {
        run_op(p->crew, &r);
    }
}

struct pool *pool_aside(struct pool *p)
{
    return &p->crew->aside;
}

/* ---- create and destroy ---- */

/* Workers take no signals: those belong to the threads that expect them. */
static int start_workers(struct crew *c, uint32_t n)
{
    sigset_t all, before;
    int r = 0;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (c->n_workers < n) {
        r = pthread_create(&c->workers[c->n_workers], NULL, worker_main, c);
        if (r)
            break;
        pthread_setname_np(c->workers[c->n_workers], "tutti-pool");
        c->n_workers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -r;
}

/* What a thread allocates when it starts (cpu_thread_init does) happens before a step, not in the middle of one. */
static void await_workers(struct crew *c)
{
    pthread_mutex_lock(&c->mutex);
    while (c->ready < c->n_workers)
        pthread_cond_wait(&c->done, &c->mutex);
    pthread_mutex_unlock(&c->mutex);
}

/* Cores that this process may use. */
static uint32_t count_cores(uint32_t threads)
{
    cpu_set_t cores;
    uint32_t n = sched_getaffinity(0, sizeof cores, &cores) == 0 ? (uint32_t)CPU_COUNT(&cores) : 0;

    return n > threads ? n : threads;
}

int pool_create(uint32_t threads, struct pool **ret)
{
    assert(threads >= 1);
    struct crew *c = calloc(1, sizeof *c + (threads - 1) * sizeof c->workers[0]);
    if (!c)
        return -ENOMEM;
    c->ops = (struct pool){c, false};
    c->aside = (struct pool){c, true};
    c->cores = count_cores(threads);
    pthread_mutex_init(&c->mutex, NULL);
    pthread_cond_init(&c->work, NULL);
    pthread_cond_init(&c->done, NULL);

    int r = start_workers(c, threads - 1);
    if (r) {
        pool_destroy(&c->ops);
        return r;
    }
    await_workers(c);
    *ret = &c->ops;
    return 0;
}

void pool_destroy(struct pool *p)
{
    if (!p)
        return;
    struct crew *c = p->crew;
    pthread_mutex_lock(&c->mutex);
    assert(!c->runs);
    c->stop = true;
    pthread_mutex_unlock(&c->mutex);
    pthread_cond_broadcast(&c->work);
    for (uint32_t i = 0; i < c->n_workers; i++)
        pthread_join(c->workers[i], NULL);
    pthread_cond_destroy(&c->done);
    pthread_cond_destroy(&c->work);
    pthread_mutex_destroy(&c->mutex);
    free(c);
}
