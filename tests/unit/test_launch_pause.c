/* Tests the launch pause: when the daemon may start workers again after failures that no job caused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "daemon/launch_pause.h"

#define DELAY 1000

static bool failed(struct launch_pause *p, uint64_t job, const char *reason, uint64_t now)
{
    return launch_pause_failed(p, job, reason, now, 1000000 + now, DELAY);
}

static void test_nothing_is_held_up_without_a_failure(void **state)
{
    struct launch_pause p = {0};
    struct strbuf b = {0};
    (void)state;
    launch_pause_started(&p, 1);
    launch_pause_started(&p, 2);
    assert_false(launch_paused(&p));
    assert_true(launch_pause_allows(&p, 0)); /* any number at a time */
    assert_false(launch_pause_worked(&p, 1));
    launch_pause_dropped(&p, 2);
    assert_true(launch_pause_allows(&p, 0));
    launch_pause_add_json(&p, &b);
    assert_string_equal(b.at, "null");
    strbuf_finish(&b);
}

static void test_delays_double_up_to_the_longest(void **state)
{
    struct launch_pause p = {0};
    uint64_t now = 50, expected = DELAY;
    (void)state;
    assert_true(failed(&p, 7, "why", now));
    for (int i = 0; i < 100; i++) {
        assert_false(launch_pause_allows(&p, now + expected - 1));
        now += expected;
        assert_true(launch_pause_allows(&p, now));
        launch_pause_started(&p, 7);
        assert_false(launch_pause_allows(&p, now + 1000000)); /* one try at a time */
        assert_false(failed(&p, 7, "why", now));              /* told once */
        expected = 2 * expected < LAUNCH_PAUSE_MOST_MS ? 2 * expected : LAUNCH_PAUSE_MOST_MS;
    }
    assert_int_equal(p.failures, 101);
    assert_int_equal(p.since_ms, 1000050);
}

static void test_any_first_delay_is_bounded(void **state)
{
    static const uint64_t delays[] = {0, 1, LAUNCH_PAUSE_MOST_MS, 3600000, UINT64_MAX};
    (void)state;
    for (size_t i = 0; i < sizeof delays / sizeof delays[0]; i++) {
        struct launch_pause p = {0};
        for (int k = 0; k < 100; k++) {
            launch_pause_failed(&p, 0, "why", 5, 5, delays[i]);
            assert_true(p.until_ms > 5 && p.until_ms <= 5 + LAUNCH_PAUSE_MOST_MS);
            assert_false(launch_pause_allows(&p, 5)); /* not in the same turn of the loop */
        }
        assert_int_equal(p.until_ms, 5 + LAUNCH_PAUSE_MOST_MS);
    }
}

static void test_a_try_that_works_ends_the_pause(void **state)
{
    struct launch_pause p = {0};
    (void)state;
    failed(&p, 7, "why", 0);
    failed(&p, 0, "why", 0);
    launch_pause_started(&p, 8);
    assert_false(launch_pause_worked(&p, 7)); /* started before the pause: tells nothing about now */
    assert_true(launch_paused(&p));
    assert_true(launch_pause_worked(&p, 8));
    assert_false(launch_paused(&p));
    assert_true(launch_pause_allows(&p, 0));
    assert_true(failed(&p, 9, "why", 0)); /* a new pause, told again, from the first delay */
    assert_int_equal(p.until_ms, DELAY);
    assert_int_equal(p.failures, 1);
}

static void test_workers_of_before_do_not_lengthen_it(void **state)
{
    struct launch_pause p = {0};
    (void)state;
    assert_true(failed(&p, 7, "why", 0));
    assert_false(failed(&p, 8, "another", 1)); /* they were started together */
    assert_false(failed(&p, 9, "another", 2));
    assert_int_equal(p.failures, 1);
    assert_int_equal(p.until_ms, DELAY);
    launch_pause_started(&p, 7);
    assert_false(failed(&p, 8, "another", 3)); /* and this one takes its time */
    assert_false(launch_pause_allows(&p, 1000000));
    assert_string_equal(p.reason, "why");
}

static void test_a_change_of_the_reason_is_told(void **state)
{
    struct launch_pause p = {0};
    (void)state;
    assert_true(failed(&p, 7, "one", 0));
    launch_pause_started(&p, 7);
    assert_true(failed(&p, 7, "two", 0));
    launch_pause_started(&p, 7);
    assert_false(failed(&p, 7, "two", 0));
    assert_int_equal(p.failures, 3);
}

static void test_a_try_that_was_cancelled_makes_room_for_another(void **state)
{
    struct launch_pause p = {0};
    (void)state;
    failed(&p, 7, "why", 0);
    launch_pause_started(&p, 7);
    launch_pause_dropped(&p, 8); /* of another job */
    assert_false(launch_pause_allows(&p, DELAY));
    launch_pause_dropped(&p, 7);
    assert_true(launch_pause_allows(&p, DELAY));
    assert_true(launch_paused(&p));
    assert_int_equal(p.failures, 1);
}

static void test_json_has_the_reason_whatever_is_in_it(void **state)
{
    struct launch_pause p = {0};
    struct strbuf b = {0};
    char longest[2000];
    (void)state;
    failed(&p, 7, "a \"name\"", 3);
    launch_pause_add_json(&p, &b);
    assert_string_equal(b.at, "{\"reason\":\"a \\\"name\\\"\",\"failures\":1,\"since_ms\":1000003}");
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    launch_pause_started(&p, 7);
    assert_true(failed(&p, 7, longest, 3));
    assert_int_equal(strlen(p.reason), sizeof p.reason - 1);
    launch_pause_started(&p, 7);
    assert_false(failed(&p, 7, longest, 3));
    strbuf_finish(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_held_up_without_a_failure),
        cmocka_unit_test(test_delays_double_up_to_the_longest),
        cmocka_unit_test(test_any_first_delay_is_bounded),
        cmocka_unit_test(test_a_try_that_works_ends_the_pause),
        cmocka_unit_test(test_workers_of_before_do_not_lengthen_it),
        cmocka_unit_test(test_a_change_of_the_reason_is_told),
        cmocka_unit_test(test_a_try_that_was_cancelled_makes_room_for_another),
        cmocka_unit_test(test_json_has_the_reason_whatever_is_in_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
