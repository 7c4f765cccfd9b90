/* Implements the pool: threads that share the pieces of one op and the machine's cores.
 *
 * A run lives on its caller's stack and is in a list while pieces are left. So a run allocates nothing,
 * and several streams can run ops at the same time. An atomic counter hands out pieces one by one. A
 * thread that shares its core with another process simply takes fewer pieces. Any thread may run any
 * piece, because each piece writes its own part of the output. Idle workers look for work for a moment and
 * then sleep on a condition variable. The caller of an op always works on its own run, so an op makes
 * progress even when every worker is busy.
 *
 * Background runs are those of pool_background: copies and updates on the host. If they always ran on their
 * callers' threads next to the ops, the kernel would take the core from some thread in the middle of a
 * piece, and the whole op would wait for that piece. So the caller of a background run works only while
 * fewer threads are working than there are cores. Otherwise it sleeps. Then a worker runs its pieces
 * between two ops, or the caller of an op runs them while it waits for its last helpers.
 *
 * Threads: one thread calls pool_create and pool_destroy. Any thread may call pool_run, even from a piece
 * of a run that is not a background run.
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

/* A call of pool_run that is in progress. This file calls it a run. The struct lives on the stack of the
 * calling thread. */
struct pool_run_state {
    void (*fn)(void *ctx, uint32_t i);
    void *ctx;
    uint32_t n;
    bool background;
    /* The number of the next piece to hand out. Each idle thread adds 1 even if no piece is left, so the
     * number may exceed `n`. With 64 bits, the number never wraps around. */
    _Atomic uint64_t next;
    /* The number of threads that work on this run, not counting its caller. This number changes only under
     * crew.mutex. */
    _Atomic uint32_t helpers;
    struct pool_run_state *next_run; /* guarded by crew.mutex */
};

/* A handle of a pool. Each pool has two handles. Runs that are started through the background handle use only
 * cores that ops do not need. */
struct pool {
    struct crew *crew;
    bool background;
};

/* The threads of a pool and the list of its runs. pool_create allocates this struct and pool_destroy frees
 * it. */
struct crew {
    struct pool ops, background; /* the two handles; const */
    pthread_mutex_t mutex;
    /* Signalled when a run is added to the list or `stop` is set. Idle workers wait for this condition
     * variable. */
    pthread_cond_t work;
    /* This condition variable is signalled when the last helper leaves a run, and when a worker thread has
     * started. */
    pthread_cond_t done;
    /* The list of runs that workers can help with. The oldest run is first. Guarded by mutex. */
    struct pool_run_state *runs;
    /* The number of background runs in the list. This number changes only under the mutex. Any thread may
     * read it. */
    _Atomic uint32_t n_background;
    /* The number of runs that have been added so far. A thread that spins without the mutex notices a new run
     * when this number changes. */
    _Atomic uint32_t posted;
    uint32_t working; /* threads inside a run; guarded by mutex */
    /* The number of cores that this process may use, but at least the number of threads. This number never
     * changes. */
    uint32_t cores;
    uint32_t sleepers;  /* workers waiting for `work`; guarded by mutex */
    uint32_t ready;     /* workers that have started; guarded by mutex */
    bool stop;          /* guarded by mutex */
    uint32_t n_workers; /* const once created */
    pthread_t workers[];
};

/* ---- runs ---- */

static bool has_pieces(const struct pool_run_state *r)
{
    return atomic_load_explicit(&r->next, memory_order_relaxed) < r->n;
}

/* Takes the next piece of run `r` and executes it. Returns false if no piece was left. */
static bool take_piece(struct pool_run_state *r)
{
    uint64_t i = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed);
    if (i >= r->n)
        return false;
    r->fn(r->ctx, (uint32_t)i);
    return true;
}

/* Returns the oldest run that has pieces left, or NULL if there is none. If `only_background` is true, only
 * background runs are considered. The caller must hold the mutex. */
static struct pool_run_state *find_run(const struct crew *c, bool only_background)
{
    struct pool_run_state *r = c->runs;
    while (r && (!has_pieces(r) || (only_background && !r->background)))
        r = r->next_run;
    return r;
}

static void join(struct pool_run_state *r)
{
    atomic_fetch_add_explicit(&r->helpers, 1, memory_order_relaxed);
}

/* Ends the calling thread's work on run `r`. The caller holds the mutex. When the caller has released the
 * mutex, it must not use *r any more, because *r is on the stack of another thread, which may return. */
static void leave(struct crew *c, struct pool_run_state *r)
{
    if (atomic_fetch_sub_explicit(&r->helpers, 1, memory_order_release) == 1)
        pthread_cond_broadcast(&c->done);
}

/* An idle thread spins for this number of cycles, about 0.1 ms, before it sleeps. In a training step, the
 * next op usually arrives before a thread could fall asleep and wake up again. */
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

/* Spins until a run is added or LOOK_CYCLES have passed. `seen` is the value of `posted` when the caller last
 * looked for runs. */
static void look_for_work(const struct crew *c, uint32_t seen)
{
    uint64_t begin = cycles();
    while (atomic_load_explicit(&c->posted, memory_order_relaxed) == seen && cycles() - begin < LOOK_CYCLES)
        relax();
}

/* Spins until no helper works on run `r` any more, or until LOOK_CYCLES have passed. */
static void look_for_end(const struct pool_run_state *r)
{
    uint64_t begin = cycles();
    while (atomic_load_explicit(&r->helpers, memory_order_acquire) > 0 && cycles() - begin < LOOK_CYCLES)
        relax();
}

/* ---- workers ---- */

/* Waits for work. The thread first spins and then sleeps. The caller holds the mutex before and after the
 * call. The function may return although there is no work. */
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
        struct pool_run_state *r = find_run(c, false);
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

static void add_run(struct crew *c, struct pool_run_state *r)
{
    struct pool_run_state **at = &c->runs;
    while (*at)
        at = &(*at)->next_run;
    *at = r;
    if (r->background)
        atomic_fetch_add_explicit(&c->n_background, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->posted, 1, memory_order_relaxed);
}

static void remove_run(struct crew *c, struct pool_run_state *r)
{
    struct pool_run_state **at = &c->runs;
    while (*at != r)
        at = &(*at)->next_run;
    *at = r->next_run;
    if (r->background)
        atomic_fetch_sub_explicit(&c->n_background, 1, memory_order_relaxed);
}

/* Adds run `r` to the list and wakes workers for it. The caller holds the mutex, and this function releases
 * it. `joins` is true if the caller will work on the run too. */
static void post(struct crew *c, struct pool_run_state *r, bool joins)
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

/* Works on background runs until the helpers of run `own` have finished. All pieces of `own` have been handed
 * out, so the calling thread would otherwise be idle. */
static void help_background(struct crew *c, const struct pool_run_state *own)
{
    struct pool_run_state *r;

    while (atomic_load_explicit(&c->n_background, memory_order_relaxed) > 0 &&
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

static void run_op(struct crew *c, struct pool_run_state *r)
{
    pthread_mutex_lock(&c->mutex);
    post(c, r, true);
    while (take_piece(r))
        ;

    /* No piece of `r` is left to hand out, but helpers may still work on their last pieces. When the helpers
     * have left, all pieces are done, and no other thread uses `r`. */
    pthread_mutex_lock(&c->mutex);
    remove_run(c, r);
    pthread_mutex_unlock(&c->mutex);
    help_background(c, r);
    look_for_end(r);
    pthread_mutex_lock(&c->mutex);
    c->working--;
    while (atomic_load_explicit(&r->helpers, memory_order_relaxed) > 0)
        pthread_cond_wait(&c->done, &c->mutex);
    pthread_mutex_unlock(&c->mutex);
}

static void run_background(struct crew *c, struct pool_run_state *r)
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
    struct pool_run_state r = {.fn = fn, .ctx = ctx, .n = n, .background = p->background};

    if (n <= 1) {
        if (n == 1)
            fn(ctx, 0);
    } else if (p->background) {
        run_background(p->crew, &r);
    } else {
        run_op(p->crew, &r);
    }
}

struct pool *pool_background(struct pool *p)
{
    return &p->crew->background;
}

/* ---- create and destroy ---- */

/* Starts `n` workers with all signals blocked. Other threads of the process then handle the signals. */
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

/* Waits until all workers have started. A starting thread allocates memory, which must not happen during a
 * training step. */
static void await_workers(struct crew *c)
{
    pthread_mutex_lock(&c->mutex);
    while (c->ready < c->n_workers)
        pthread_cond_wait(&c->done, &c->mutex);
    pthread_mutex_unlock(&c->mutex);
}

/* Returns the number of cores that this process may use. If this number is less than `threads`, returns
 * `threads`. */
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
    c->background = (struct pool){c, true};
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
