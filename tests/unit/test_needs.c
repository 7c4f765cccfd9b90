/* Tests of daemon/spec/needs.h: the needs of a job survive the way through JSON, and wrong JSON is
 * refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/spec/needs.h"

#define HOST "\"host_bytes\":{\"planning\":1,\"loading\":2,\"running\":3,\"saving\":4}"

static int read_text(const char *text, struct job_needs *ret, struct err *err)
{
    struct json *doc;
    *err = (struct err){0};
    assert_int_equal(json_parse(text, strlen(text), "test", false, &doc, err), 0);
    int r = needs_read(doc, "needs", ret, err);
    json_free(doc);
    return r;
}

static void check_round_trip(const struct job_needs *n, const char *want)
{
    struct strbuf b = {0};
    struct job_needs back;
    struct err err;
    needs_to_json(n, &b);
    if (want != NULL)
        assert_string_equal(b.at, want);
    assert_int_equal(read_text(b.at, &back, &err), 0);
    assert_int_equal(back.steps, n->steps);
    assert_int_equal(back.step_ns, n->step_ns);
    assert_int_equal(back.times, n->times);
    assert_int_equal(back.n_devices, n->n_devices);
    assert_memory_equal(back.device_bytes, n->device_bytes, sizeof back.device_bytes);
    assert_memory_equal(&back.host, &n->host, sizeof back.host);
    strbuf_finish(&b);
}

static void test_needs_survive_json(void **state)
{
    const struct job_needs two = {.steps = 300,
                                  .step_ns = 12000000,
                                  .times = JOB_MEASURED,
                                  .n_devices = 2,
                                  .device_bytes = {50, 40},
                                  .host = {1, 2, 3, 4}};
    (void)state;
    check_round_trip(
        &two,
        "{\"steps\":300,\"step_ns\":12000000,\"times\":\"measured\",\"device_bytes\":[50,40]," HOST "}");
    /* The largest numbers that JSON can hold exactly, on the most devices. */
    struct job_needs most = {.times = JOB_FILE, .n_devices = DEVICE_MAX};
    for (uint32_t i = 0; i < DEVICE_MAX; i++)
        most.device_bytes[i] = (1ull << 53) - 1 - i;
    most.steps = most.step_ns = most.host.planning = most.host.saving = (1ull << 53) - 1;
    check_round_trip(&most, NULL);
    check_round_trip(&(const struct job_needs){.n_devices = 1}, NULL);
}

static void test_wrong_needs_are_refused_with_their_path(void **state)
{
    static const struct {
        const char *text, *path;
    } wrong[] = {
        {"[]", "needs"},
        {"{}", "needs.steps"},
        {"{\"steps\":-1,\"step_ns\":1,\"times\":\"file\",\"device_bytes\":[1]," HOST "}", "needs.steps"},
        {"{\"steps\":1,\"step_ns\":1.5,\"times\":\"file\",\"device_bytes\":[1]," HOST "}", "needs.step_ns"},
        {"{\"steps\":1,\"step_ns\":1e300,\"times\":\"file\",\"device_bytes\":[1]," HOST "}", "needs.step_ns"},
        {"{\"steps\":1,\"step_ns\":1,\"times\":\"guessed\",\"device_bytes\":[1]," HOST "}", "needs.times"},
        {"{\"steps\":1,\"step_ns\":1,\"times\":\"file\",\"device_bytes\":[]," HOST "}", "needs.device_bytes"},
        {"{\"steps\":1,\"step_ns\":1,\"times\":\"file\",\"device_bytes\":3," HOST "}", "needs.device_bytes"},
        {"{\"steps\":1,\"step_ns\":1,\"times\":\"file\",\"device_bytes\":[1,\"2\"]," HOST "}",
         "needs.device_bytes[1]"},
        {"{\"steps\":1,\"step_ns\":1,\"times\":\"file\",\"device_bytes\":[1],\"host_bytes\":7}",
         "needs.host_bytes"},
        {"{\"steps\":1,\"step_ns\":1,\"times\":\"file\",\"device_bytes\":[1],\"host_bytes\":"
         "{\"planning\":1,\"loading\":2,\"running\":3,\"saving\":\"4\"}}",
         "needs.host_bytes.saving"},
        {"{\"steps\":1,\"step_ns\":1,\"times\":\"file\",\"device_bytes\":[1],\"host_bytes\":"
         "{\"planning\":1,\"loading\":2,\"running\":3,\"saving\":4,\"sleeping\":5}}",
         "needs.host_bytes.sleeping"},
        {"{\"steps\":1,\"step_ns\":1,\"times\":\"file\",\"device_bytes\":[1],\"more\":1," HOST "}",
         "needs.more"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct job_needs n;
        struct err err;
        assert_int_equal(read_text(wrong[i].text, &n, &err), -EINVAL);
        assert_string_equal(err.path, wrong[i].path);
        assert_true(err.msg[0] != '\0');
    }
}

static void test_too_many_devices_are_refused(void **state)
{
    struct strbuf b = {0};
    struct job_needs n;
    struct err err;
    (void)state;
    strbuf_add(&b, "{\"steps\":1,\"step_ns\":1,\"times\":\"file\"," HOST ",\"device_bytes\":[");
    for (uint32_t i = 0; i <= DEVICE_MAX; i++)
        strbuf_addf(&b, "%s%u", i > 0 ? "," : "", i);
    strbuf_add(&b, "]}");
    assert_int_equal(read_text(b.at, &n, &err), -EINVAL);
    assert_string_equal(err.path, "needs.device_bytes");
    strbuf_finish(&b);
}

static void test_host_bytes_are_the_most_at_any_time(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct job_needs n = {.host = {5, 5, 5, 5}};
        uint64_t *const each[] = {&n.host.planning, &n.host.loading, &n.host.running, &n.host.saving};
        *each[i] = 9;
        assert_int_equal(needs_host_bytes(&n), 9);
    }
}

static void test_time_left_counts_the_steps_that_are_left(void **state)
{
    const struct job_needs n = {.steps = 10, .step_ns = 500000000};
    (void)state;
    assert_true(needs_left_s(&n, 0) == 5.0);
    assert_true(needs_left_s(&n, 9) == 0.5);
    assert_true(needs_left_s(&n, 10) == 0);
    assert_true(needs_left_s(&n, 11) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_needs_survive_json),
        cmocka_unit_test(test_wrong_needs_are_refused_with_their_path),
        cmocka_unit_test(test_too_many_devices_are_refused),
        cmocka_unit_test(test_host_bytes_are_the_most_at_any_time),
        cmocka_unit_test(test_time_left_counts_the_steps_that_are_left),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
