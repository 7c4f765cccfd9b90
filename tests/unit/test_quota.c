/* Tests of quotas: a token bucket fills with time up to its burst, bytes are charged and released, and users
 * do not affect each other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "daemon/quota.h"

static struct quota *make(uint64_t bytes, uint64_t per_s, uint64_t burst)
{
    return quota_create(&(struct quota_limits){bytes, per_s, burst});
}

/* How many of `n` submits pass at that time. */
static int take(struct quota *q, uid_t uid, uint64_t now_ms, int n)
{
    int passed = 0;
    for (int i = 0; i < n; i++)
        passed += quota_take_submit(q, uid, now_ms, NULL) == 0;
    return passed;
}

static void test_a_burst_passes_and_then_the_rate_counts(void **state)
{
    struct quota *q = make(0, 2000, 10000);
    (void)state;
    assert_int_equal(take(q, 1, 5000, 12000), 10000);
    assert_int_equal(take(q, 1, 5000, 1), 0);
    assert_int_equal(take(q, 1, 5001, 10), 2); /* a millisecond later */
    assert_int_equal(take(q, 1, 5501, 2000), 1000);
    assert_int_equal(take(q, 1, 6501, 5000), 2000);
    assert_int_equal(take(q, 1, 86400000, 20000), 10000); /* never more than the burst */
    quota_destroy(q);
}

static void test_a_slow_rate_is_not_rounded_away(void **state)
{
    struct quota *q = make(0, 1, 1);
    (void)state;
    assert_int_equal(take(q, 1, 0, 2), 1);
    for (uint64_t ms = 1; ms < 1000; ms++)
        assert_int_equal(take(q, 1, ms, 1), 0);
    assert_int_equal(take(q, 1, 1000, 2), 1);
    quota_destroy(q);
}

static void test_a_refusal_names_the_limit_and_when_to_try_again(void **state)
{
    struct quota *q = make(0, 4, 2);
    struct err err = {0};
    (void)state;
    assert_int_equal(take(q, 7, 100, 2), 2);
    assert_int_equal(quota_take_submit(q, 7, 150, &err), -EAGAIN);
    assert_non_null(strstr(err.msg, "user 7"));
    assert_non_null(strstr(err.msg, "4 jobs a second"));
    assert_non_null(strstr(err.msg, "burst of 2"));
    assert_non_null(strstr(err.msg, "in 200 ms"));
    assert_int_equal(take(q, 7, 349, 1), 0);
    assert_int_equal(take(q, 7, 350, 1), 1);
    quota_destroy(q);
}

static void test_users_do_not_share(void **state)
{
    struct quota *q = make(100, 10, 3);
    (void)state;
    assert_int_equal(take(q, 1, 0, 5), 3);
    assert_int_equal(take(q, 2, 0, 5), 3);
    quota_charge(q, 1, 100);
    assert_int_equal(quota_check_bytes(q, 1, 1, NULL), -EAGAIN);
    assert_int_equal(quota_check_bytes(q, 2, 100, NULL), 0);
    assert_int_equal(quota_bytes(q, 2), 0);
    quota_destroy(q);
}

static void test_bytes_are_charged_and_released(void **state)
{
    struct quota *q = make(1000, 0, 0);
    struct err err = {0};
    (void)state;
    assert_int_equal(quota_check_bytes(q, 1, 1000, &err), 0);
    assert_int_equal(quota_check_bytes(q, 1, 1001, &err), -EAGAIN);
    quota_charge(q, 1, 600);
    assert_int_equal(quota_check_bytes(q, 1, 400, &err), 0);
    assert_int_equal(quota_check_bytes(q, 1, 401, &err), -EAGAIN);
    assert_non_null(strstr(err.msg, "600 B of 1000 B"));
    assert_non_null(strstr(err.msg, "401 bytes more"));
    assert_non_null(strstr(err.msg, "--user-state-bytes"));
    assert_int_equal(quota_check_bytes(q, 1, UINT64_MAX, &err), -EAGAIN);
    quota_charge(q, 1, 900); /* more than the limit: a restart with a smaller one */
    assert_int_equal(quota_check_bytes(q, 1, 0, &err), -EAGAIN);
    quota_release(q, 1, 600);
    assert_int_equal(quota_bytes(q, 1), 900);
    assert_int_equal(quota_check_bytes(q, 1, 100, &err), 0);
    quota_destroy(q);
}

static void test_zero_means_no_limit(void **state)
{
    struct quota *q = make(0, 0, 10);
    (void)state;
    quota_charge(q, 1, UINT64_MAX / 2);
    assert_int_equal(quota_check_bytes(q, 1, UINT64_MAX, NULL), 0);
    assert_int_equal(take(q, 1, 0, 100000), 100000);
    quota_destroy(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_burst_passes_and_then_the_rate_counts),
        cmocka_unit_test(test_a_slow_rate_is_not_rounded_away),
        cmocka_unit_test(test_a_refusal_names_the_limit_and_when_to_try_again),
        cmocka_unit_test(test_users_do_not_share),
        cmocka_unit_test(test_bytes_are_charged_and_released),
        cmocka_unit_test(test_zero_means_no_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
