/* Tests the clock: the time of the system, and a time that the test controls through hooks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

#include "base/clock.h"

struct fake {
    uint64_t now, wall, slept;
};

static uint64_t fake_now(void *ctx)
{
    return ((struct fake *)ctx)->now;
}

static uint64_t fake_wall(void *ctx)
{
    return ((struct fake *)ctx)->wall;
}

static void fake_sleep(void *ctx, uint64_t ns)
{
    struct fake *f = ctx;

    f->now += ns;
    f->slept += ns;
}

static int restore(void **state)
{
    (void)state;
    clock_set_hooks(NULL);
    return 0;
}

static void test_clock_hooks_own_time(void **state)
{
    struct fake f = {.now = 5, .wall = 77};

    (void)state;
    clock_set_hooks(&(struct clock_hooks){fake_now, fake_wall, fake_sleep, &f});
    assert_int_equal(clock_now_ns(), 5);
    assert_int_equal(clock_wall_ns(), 77);
    clock_sleep_ns(UINT64_C(3600) * 1000000000);
    assert_true(clock_now_ns() == 5 + UINT64_C(3600) * 1000000000);
    assert_true(f.slept == UINT64_C(3600) * 1000000000);
}

static void test_clock_missing_hook_falls_back_to_the_system(void **state)
{
    struct fake f = {.now = 5};

    (void)state;
    clock_set_hooks(&(struct clock_hooks){.monotonic_ns = fake_now, .ctx = &f});
    assert_int_equal(clock_now_ns(), 5);
    assert_true(clock_wall_ns() / 1000000000 >= 1700000000); /* after November 2023 */
}

static void test_clock_null_restores_the_system(void **state)
{
    struct fake f = {.now = 5};
    struct timespec t;

    (void)state;
    clock_set_hooks(&(struct clock_hooks){fake_now, fake_wall, fake_sleep, &f});
    clock_set_hooks(NULL);
    clock_gettime(CLOCK_MONOTONIC, &t);
    assert_true(clock_now_ns() >= (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec);
}

static void test_clock_is_monotonic(void **state)
{
    uint64_t last = clock_now_ns();

    (void)state;
    for (int i = 0; i < 1000; i++) {
        uint64_t now = clock_now_ns();
        assert_true(now >= last);
        last = now;
    }
}

static void ignore_signal(int sig)
{
    (void)sig;
}

static void test_clock_sleep_survives_signals(void **state)
{
    struct sigaction action = {.sa_handler = ignore_signal}, old;
    struct itimerval often = {{0, 2000}, {0, 2000}}, off = {{0, 0}, {0, 0}};
    uint64_t start;

    (void)state;
    sigaction(SIGALRM, &action, &old);
    setitimer(ITIMER_REAL, &often, NULL);
    start = clock_now_ns();
    clock_sleep_ns(20000000);
    assert_true(clock_now_ns() - start >= 20000000);
    setitimer(ITIMER_REAL, &off, NULL);
    sigaction(SIGALRM, &old, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_clock_hooks_own_time, restore),
        cmocka_unit_test_teardown(test_clock_missing_hook_falls_back_to_the_system, restore),
        cmocka_unit_test_teardown(test_clock_null_restores_the_system, restore),
        cmocka_unit_test(test_clock_is_monotonic),
        cmocka_unit_test(test_clock_sleep_survives_signals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
