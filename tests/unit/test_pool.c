/* The pool: every piece once, many callers at a time, no matter how many threads. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

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
        for (uint32_t n = 0; n < 40; n++)
            run_and_check(p, n);
        run_and_check(p, PIECES);
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
        callers[i] = (struct caller){.pool = p};
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_piece_runs_once),
        cmocka_unit_test(test_many_short_runs_finish),
        cmocka_unit_test(test_create_and_destroy_repeat),
        cmocka_unit_test(test_concurrent_callers_get_their_own_pieces),
        cmocka_unit_test(test_run_inside_a_piece_finishes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
