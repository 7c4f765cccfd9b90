/* Tests of daemon/worker/offer.h: which lease a job is checked with. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "daemon/worker/offer.h"
#include "daemon/worker/probe/discover.h"

#define VIRTUAL                                                                                              \
    "{\"backend\":\"cpu\",\"auto\":false,\"host_memory_bytes\":1000,\"host_bytes_each\":250,\"devices\":["   \
    "{\"memory_bytes\":200},{\"memory_bytes\":0},{\"memory_bytes\":100},{\"memory_bytes\":300}]}"

/* Reads the offer and makes the lease for a job with this demand. */
static int lease_of(const char *text, const struct spec_demand *d, struct job_options *ret, struct err *err)
{
    struct offer f;
    *ret = (struct job_options){0};
    *err = (struct err){0};
    assert_int_equal(offer_read(text, &f, err), 0);
    int r = offer_lease(&f, d, ret, err);
    offer_finish(&f);
    return r;
}

static void test_lease_has_the_largest_devices(void **state)
{
    const struct spec_demand one = {1, 1, 0, 0}, two = {1, 2, 0, 0}, all = {1, 8, 0, 0};
    struct job_options o;
    struct err err;
    (void)state;
    assert_int_equal(lease_of(VIRTUAL, &one, &o, &err), 0);
    assert_true(o.leased);
    assert_int_equal(o.backend, CHOICE_CPU);
    assert_int_equal(o.devices, 1);
    assert_int_equal(o.device_bytes, 300);
    assert_int_equal(o.host_bytes, 250);
    assert_int_equal(o.host_bytes_each, 250);
    assert_int_equal(o.all_devices, 4);
    assert_int_equal(lease_of(VIRTUAL, &two, &o, &err), 0);
    assert_int_equal(o.device_bytes, 200);
    assert_int_equal(o.host_bytes, 500);
    /* The device without memory is not counted. */
    assert_int_equal(lease_of(VIRTUAL, &all, &o, &err), 0);
    assert_int_equal(o.devices, 3);
    assert_int_equal(o.device_bytes, 100);
}

static void test_lease_grants_what_the_job_asks_for(void **state)
{
    const struct spec_demand d = {1, 4, 150, 900};
    struct job_options o;
    struct err err;
    (void)state;
    assert_int_equal(lease_of(VIRTUAL, &d, &o, &err), 0);
    assert_int_equal(o.devices, 2);
    assert_int_equal(o.device_bytes, 150);
    assert_int_equal(o.host_bytes, 900);
    assert_int_equal(o.host_bytes_each, 0);
}

static void test_job_that_could_never_start_is_refused(void **state)
{
    const struct spec_demand many = {4, 4, 0, 0}, large = {2, 2, 250, 0}, host = {1, 1, 0, 1001};
    struct job_options o;
    struct err err;
    (void)state;
    assert_int_equal(lease_of(VIRTUAL, &many, &o, &err), -ENOSPC);
    assert_string_equal(err.path, "resources.devices");
    assert_string_equal(err.msg, "asks for 4 devices; the daemon has 3");
    assert_int_equal(lease_of(VIRTUAL, &large, &o, &err), -ENOSPC);
    assert_string_equal(err.msg, "asks for 2 devices with 250 bytes each; the daemon has 1 such devices");
    assert_int_equal(lease_of(VIRTUAL, &host, &o, &err), -ENOSPC);
    assert_string_equal(err.path, "resources.host_memory");
}

static void test_unlimited_virtual_devices_leave_their_numbers_to_the_spec(void **state)
{
    static const char text[] =
        "{\"backend\":\"cpu\",\"auto\":true,\"host_memory_bytes\":1000,\"devices\":[]}";
    const struct spec_demand d = {2, 8, 64, 0}, host = {2, 8, 64, 300};
    struct job_options o;
    struct err err;
    (void)state;
    assert_int_equal(lease_of(text, &d, &o, &err), 0);
    assert_false(o.leased);
    assert_int_equal(o.devices, 0);
    assert_int_equal(o.device_bytes, 0);
    assert_int_equal(o.host_bytes, 1000); /* all that the daemon has */
    assert_int_equal(lease_of(text, &host, &o, &err), 0);
    assert_int_equal(o.host_bytes, 300);
}

static void test_real_devices_come_from_the_topology(void **state)
{
    static const char text[] =
        "{\"backend\":\"cpu\",\"host_memory_bytes\":1000,\"devices\":[{\"memory_bytes\":0}],\"machine\":"
        "{\"schema\":\"machine/v1\",\"backend\":\"cpu\","
        "\"devices\":[{\"memory_bytes\":4096,\"free_bytes\":2048}]}}";
    const struct spec_demand d = {1, 1, 0, 0};
    struct job_options o = {0};
    struct offer f;
    struct err err = {0};
    (void)state;
    assert_int_equal(offer_read(text, &f, &err), 0);
    assert_int_equal(offer_lease(&f, &d, &o, &err), 0);
    assert_ptr_equal(o.machine, f.machine);
    assert_int_equal(o.devices, 1);
    assert_int_equal(o.device_bytes, 2048);
    assert_int_equal(o.host_bytes, 1000);
    offer_finish(&f);
}

static void test_text_that_is_no_offer_is_refused(void **state)
{
    static const char *const wrong[] = {"",
                                        "[]",
                                        "{",
                                        "{}",
                                        "{\"backend\":\"abacus\",\"devices\":[]}",
                                        "{\"backend\":\"cpu\"}",
                                        "{\"backend\":\"cpu\",\"machine\":{\"schema\":\"job/v1\"}}"};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct offer f;
        struct err err = {0};
        assert_int_equal(offer_read(wrong[i], &f, &err), -EINVAL);
        assert_true(err.code < 0);
        offer_finish(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lease_has_the_largest_devices),
        cmocka_unit_test(test_lease_grants_what_the_job_asks_for),
        cmocka_unit_test(test_job_that_could_never_start_is_refused),
        cmocka_unit_test(test_unlimited_virtual_devices_leave_their_numbers_to_the_spec),
        cmocka_unit_test(test_real_devices_come_from_the_topology),
        cmocka_unit_test(test_text_that_is_no_offer_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
