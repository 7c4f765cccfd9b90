/* Tests of device health: how errors and successes change the state of a device, and when the device is used
 * again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "daemon/health.h"

#define REST 1000

static void error(struct health *h, uint64_t now)
{
    health_error(h, 7, "why", now, 5000 + now, REST);
}

static void test_nothing_is_wrong_at_first(void **state)
{
    const struct health h = {0};
    struct strbuf b = {0};
    (void)state;
    assert_int_equal(health_state(&h), HEALTH_OK);
    assert_false(health_rests(&h, 0));
    health_add_json(&h, &b);
    assert_string_equal(
        b.at, ",\"state\":\"ok\",\"errors\":0,\"since_ms\":null,\"error_job\":null,\"reason\":\"\"");
    strbuf_finish(&b);
}

static void test_each_error_rests_twice_as_long(void **state)
{
    struct health h = {0};
    (void)state;
    error(&h, 100);
    assert_int_equal(health_state(&h), HEALTH_SUSPECT);
    assert_true(health_rests(&h, 100 + REST - 1));
    assert_false(health_rests(&h, 100 + REST));
    error(&h, 5000);
    assert_int_equal(health_state(&h), HEALTH_SUSPECT);
    assert_true(health_rests(&h, 5000 + 2 * REST - 1));
    assert_false(health_rests(&h, 5000 + 2 * REST));
}

static void test_third_error_takes_it_out_until_a_probe_after_its_rest(void **state)
{
    struct health h = {0};
    struct strbuf b = {0};
    (void)state;
    for (uint64_t i = 1; i <= HEALTH_MOST_ERRORS; i++) {
        assert_false(health_may_return(&h, UINT64_MAX));
        error(&h, i);
    }
    assert_int_equal(health_state(&h), HEALTH_FAILED);
    assert_false(health_may_return(&h, HEALTH_MOST_ERRORS + HEALTH_RETRY_RESTS * REST - 1));
    assert_true(health_may_return(&h, HEALTH_MOST_ERRORS + HEALTH_RETRY_RESTS * REST));
    health_add_json(&h, &b);
    assert_string_equal(
        b.at, ",\"state\":\"failed\",\"errors\":3,\"since_ms\":5001,\"error_job\":7,\"reason\":\"why\"");
    strbuf_finish(&b);
    health_return(&h);
    assert_int_equal(health_state(&h), HEALTH_SUSPECT);
    error(&h, 9);
    assert_int_equal(health_state(&h), HEALTH_FAILED); /* it had one chance */
}

static void test_success_forgets_everything(void **state)
{
    const struct health none = {0};
    struct health h = {0};
    (void)state;
    for (int i = 0; i < 5; i++)
        error(&h, 1);
    health_success(&h);
    assert_memory_equal(&h, &none, sizeof h);
}

static void test_reason_is_cut_and_never_empty(void **state)
{
    struct health h = {0};
    char text[1000];
    (void)state;
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    health_error(&h, 1, text, 0, 0, REST);
    assert_true(strlen(h.reason) < sizeof h.reason);
    health_error(&h, 1, "", 0, 0, REST);
    assert_string_equal(h.reason, "it failed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_error_rests_twice_as_long),
        cmocka_unit_test(test_nothing_is_wrong_at_first),
        cmocka_unit_test(test_reason_is_cut_and_never_empty),
        cmocka_unit_test(test_success_forgets_everything),
        cmocka_unit_test(test_third_error_takes_it_out_until_a_probe_after_its_rest),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
