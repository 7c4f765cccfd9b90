/* Tests the thread pool. Each piece of work must run exactly once, with many callers at a time and any number
 * of threads. Background runs must leave the cores to ops. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"

#define PIECES 1000

static void count_piece(void *ctx, uint32_t i)
{
    ((unsigned char *)ctx)[i]++; /* not atomic on purpose: a piece that ran twice at once is a race */
}

static void run_and_check(struct pool *p, uint32_t n)
{
    unsigned char ran[PIECES + 1] = {0};

    pool_run(p, count_piece, ran, n);
    for (uint32_t i = 0; i < n; i++)
        if (ran[i] != 1)
            fail_msg("piece %u of %u ran %u times", i, n, ran[i]);
    assert_int_equal(ran[n], 0);
}

static void test_every_piece_runs_once(void **state)
{
    (void)state;
    for (uint32_t threads = 1; threads <= 5; threads++) {
        struct pool *p;
        assert_int_equal(pool_create(threads, &p), 0);
        for (uint32_t n = 0; n < 40; n++) {
            run_and_check(p, n);
            run_and_check(pool_background(p), n);
        }
        run_and_check(p, PIECES);
        run_and_check(pool_background(p), PIECES);
        pool_destroy(p);
    }
}

static void test_many_short_runs_finish(void **state)
{
    struct pool *p;
    (void)state;
    assert_int_equal(pool_create(3, &p), 0);
    for (int i = 0; i < 5000; i++)
        run_and_check(p, 1 + (uint32_t)i % 7);
    pool_destroy(p);
}

static void test_create_and_destroy_repeat(void **state)
{
    (void)state;
    pool_destroy(NULL);
    for (int i = 0; i < 50; i++) {
        struct pool *p;
        assert_int_equal(pool_create(1 + (uint32_t)i % 4, &p), 0);
        if (i % 2)
            run_and_check(p, 10);
        pool_destroy(p);
    }
}

struct caller {
    pthread_t thread;
    struct pool *pool;
    uint64_t sum;
};

static void add_piece(void *ctx, uint32_t i)
{
    atomic_fetch_add((_Atomic uint64_t *)ctx, i);
}

static void *caller_main(void *arg)
{
    struct caller *c = arg;
    for (uint32_t i = 0; i < 500; i++) {
        _Atomic uint64_t sum = 0;
        pool_run(c->pool, add_piece, &sum, 100);
        c->sum += sum;
    }
    return NULL;
}

static void test_concurrent_callers_get_their_own_pieces(void **state)
{
    struct caller callers[4];
    struct pool *p;
    (void)state;

    assert_int_equal(pool_create(3, &p), 0);
    for (int i = 0; i < 4; i++) {
        callers[i] = (struct caller){.pool = i % 2 ? pool_background(p) : p};
        assert_int_equal(pthread_create(&callers[i].thread, NULL, caller_main, &callers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(callers[i].thread, NULL);
        assert_int_equal(callers[i].sum, 500 * 4950);
    }
    pool_destroy(p);
}

struct outer {
    struct pool *pool;
    _Atomic uint64_t sum;
};

static void outer_piece(void *ctx, uint32_t i)
{
    struct outer *o = ctx;
    (void)i;
    pool_run(o->pool, add_piece, &o->sum, 10);
}

static void test_run_inside_a_piece_finishes(void **state)
{
    struct outer o = {0};
    (void)state;

    assert_int_equal(pool_create(3, &o.pool), 0);
    pool_run(o.pool, outer_piece, &o, 50);
    assert_int_equal(o.sum, 50 * 45);
    pool_destroy(o.pool);
}

/* ---- seats ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t arrived;
    bool open;
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void wait_at_gate(void *ctx, uint32_t i)
{
    (void)ctx, (void)i;
    pthread_mutex_lock(&gate.lock);
    gate.arrived++;
    pthread_cond_broadcast(&gate.changed);
    while (!gate.open)
        pthread_cond_wait(&gate.changed, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

struct background {
    struct pool *pool;
    pthread_t thread;
    _Atomic long tid; /* once it is about to run */
    _Atomic uint32_t by_itself, by_others;
};

static void see_who(void *ctx, uint32_t i)
{
    struct background *a = ctx;
    (void)i;
    atomic_fetch_add(pthread_equal(pthread_self(), a->thread) ? &a->by_itself : &a->by_others, 1);
}

static void *background_main(void *arg)
{
    struct background *a = arg;
    a->thread = pthread_self();
    a->tid = syscall(SYS_gettid);
    pool_run(pool_background(a->pool), see_who, a, 20);
    return NULL;
}

static bool sleeps(long tid)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/self/task/%ld/stat", tid);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_true(fread(text, 1, sizeof text - 1, f) > 0);
    fclose(f);
    return strncmp(strrchr(text, ')'), ") S", 3) == 0;
}

static void *op_main(void *arg)
{
    struct caller *c = arg;
    pool_run(c->pool, wait_at_gate, NULL, (uint32_t)c->sum);
    return NULL;
}

/* As many threads as there are cores are inside an op. A background run must wait, and the threads of
 * the op then do its work. */
static void test_background_run_leaves_the_cores_to_ops(void **state)
{
    cpu_set_t cores;
    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof cores, &cores), 0);
    uint32_t threads = CPU_COUNT(&cores) > 2 ? (uint32_t)CPU_COUNT(&cores) : 2;
    struct caller op = {.sum = threads};
    assert_int_equal(pool_create(threads, &op.pool), 0);
    assert_int_equal(pthread_create(&op.thread, NULL, op_main, &op), 0);
    pthread_mutex_lock(&gate.lock);
    while (gate.arrived < threads)
        pthread_cond_wait(&gate.changed, &gate.lock);
    pthread_mutex_unlock(&gate.lock);

    struct background a = {.pool = op.pool};
    pthread_t background;
    assert_int_equal(pthread_create(&background, NULL, background_main, &a), 0);
    while (a.tid == 0 || !sleeps(a.tid))
        sched_yield();
    assert_int_equal(a.by_itself + a.by_others, 0);

    pthread_mutex_lock(&gate.lock);
    gate.open = true;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
    pthread_join(op.thread, NULL);
    pthread_join(background, NULL);
    assert_int_equal(a.by_itself, 0);
    assert_int_equal(a.by_others, 20);
    pool_destroy(op.pool);
}

/* Each of the two pieces waits for the other, so the run needs both threads, including the caller. If a
 * thread were still counted as working after an earlier run, the caller would not take part, and the test
 * would hang. */
static void meet(void *ctx, uint32_t i)
{
    (void)i;
    pthread_barrier_wait(ctx);
}

static void test_background_run_has_its_caller_where_cores_are_free(void **state)
{
    enum { RUNS = 5000 }; /* more than any machine has cores */
    pthread_barrier_t all;
    struct pool *p;
    (void)state;

    assert_int_equal(pool_create(2, &p), 0);
    for (int i = 0; i < RUNS; i++) {
        run_and_check(p, 3);
        run_and_check(pool_background(p), 3);
    }
    assert_int_equal(pthread_barrier_init(&all, NULL, 2), 0);
    alarm(3600); /* ends a test that hangs; no load on the machine comes near it */
    pool_run(pool_background(p), meet, &all, 2);
    alarm(0);
    pthread_barrier_destroy(&all);
    pool_destroy(p);
}

static _Atomic bool enough;

static void *busy_main(void *arg)
{
    struct caller *c = arg;
    while (!enough) {
        _Atomic uint64_t sum = 0;
        pool_run(c->pool, add_piece, &sum, 100);
    }
    return NULL;
}

/* More callers than cores run ops without a pause. A background run must still end: either the callers
 * leave a core free for it, or they do its work themselves. */
static void test_background_run_ends_beside_endless_ops(void **state)
{
    struct caller callers[8];
    struct pool *p;
    (void)state;

    assert_int_equal(pool_create(2, &p), 0);
    for (int i = 0; i < 8; i++) {
        callers[i] = (struct caller){.pool = p};
        assert_int_equal(pthread_create(&callers[i].thread, NULL, busy_main, &callers[i]), 0);
    }
    for (int i = 0; i < 50; i++)
        run_and_check(pool_background(p), PIECES);
    enough = true;
    for (int i = 0; i < 8; i++)
        pthread_join(callers[i].thread, NULL);
    pool_destroy(p);
}

/* ---- memory of threads ---- */

static void *take_memory(void *arg)
{
    size_t sizes[] = {100, 300000, 5, 1000000, 300000};
    uint8_t *largest = NULL;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint8_t *p = cpu_thread_memory(sizes[i]);
        if ((uintptr_t)p % 64 != 0)
            return NULL;
        memset(p, *(uint8_t *)arg, sizes[i]); /* a sanitizer sees where it is less */
        if (i == 3)
            largest = p;
        if (i == 4 && p != largest) /* less than there was is where that was */
            return NULL;
    }
    return largest;
}

/* The memory of a thread must be aligned to a cache line, have the requested size, and belong to that thread
 * alone. It is freed when the thread ends, which the sanitizer checks. */
static void test_thread_memory_is_the_threads_own(void **state)
{
    uint8_t mine = 1, other = 2, *p = take_memory(&mine);
    pthread_t thread;
    void *theirs;

    (void)state;
    assert_non_null(p);
    assert_int_equal(pthread_create(&thread, NULL, take_memory, &other), 0);
    assert_int_equal(pthread_join(thread, &theirs), 0);
    assert_non_null(theirs);
    for (size_t i = 0; i < 300000; i++)
        assert_int_equal(p[i], mine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_piece_runs_once),
        cmocka_unit_test(test_many_short_runs_finish),
        cmocka_unit_test(test_create_and_destroy_repeat),
        cmocka_unit_test(test_concurrent_callers_get_their_own_pieces),
        cmocka_unit_test(test_run_inside_a_piece_finishes),
        cmocka_unit_test(test_background_run_leaves_the_cores_to_ops),
        cmocka_unit_test(test_background_run_has_its_caller_where_cores_are_free),
        cmocka_unit_test(test_background_run_ends_beside_endless_ops),
        cmocka_unit_test(test_thread_memory_is_the_threads_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
