/* Tests of job_json: every field of a job survives being written to disk and read back, and text that another
 * program wrote is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "daemon/job_json.h"

/* Returns a job in which every field has a different value. */
static struct job full(enum job_state state)
{
    struct job j = {
        .id = 9,
        .key = "a key \"quoted\"",
        .name = "n\xc3\xa4me",
        .user = "ada",
        .dir = "/home/ada/with space",
        .output = "/home/ada/runs/x\\y",
        .uid = 4294967294u,
        .ask = {2, 5, (1ull << 53) - 1, 1ull << 40, 86400},
        .submitted_ms = 1763269465001,
        .state = state,
        .reason = "because\nof this",
        .started_ms = 1763269465002,
        .ended_ms = 1763269465003,
        .used_ms = 12345,
        .attempt = 4,
        .failures = 3,
        .checkpoint_step = 120,
        .failed_step = 110,
        .cancel = true,
        .lease = {3, {0, 7, DEVICE_MAX - 1}, 67108864, 12884901888},
        .process = {4712, 987654321, "2b5f1c1e-0c5e-4b7e-9d7e-1f2a3b4c5d6e"},
        .secret_hash = "9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f",
        .exit = 130,
        .error = "{\"errno\":\"EIO\",\"path\":\"p\",\"message\":\"m \\\"q\\\"\"}",
        .step = 119,
        .total_steps = 300,
        .loss = 0.25,
        .samples_per_s = 2111.5,
        .eta_s = 17.2,
    };
    return j;
}

static void write_texts(const struct job *j, struct strbuf *body, struct strbuf *status)
{
    job_body_json(j, body);
    job_status_json(j, status);
}

/* As jobs.c begins before it reads. */
static struct job empty(void)
{
    return (struct job){.loss = NAN, .samples_per_s = NAN, .eta_s = NAN};
}

static void free_texts(struct job *j)
{
    free(j->key);
    free(j->name);
    free(j->user);
    free(j->dir);
    free(j->output);
    free(j->reason);
    free(j->error);
}

static int read_texts(const char *body, const char *status, struct job *ret, struct err *err)
{
    *ret = empty();
    return job_from_disk(&(struct state_job){9, NULL, body, "{}", status}, ret, err);
}

static void check_text(const char *a, const char *b)
{
    assert_true((a == NULL) == (b == NULL));
    if (a != NULL)
        assert_string_equal(a, b);
}

static void check_number(double a, double b)
{
    assert_true(a == b || (isnan(a) && isnan(b)));
}

static void check_same(const struct job *a, const struct job *b)
{
    assert_int_equal(a->id, b->id);
    check_text(a->key, b->key);
    check_text(a->name, b->name);
    check_text(a->user, b->user);
    check_text(a->dir, b->dir);
    check_text(a->output, b->output);
    assert_int_equal(a->uid, b->uid);
    assert_memory_equal(&a->ask, &b->ask, sizeof a->ask);
    assert_int_equal(a->submitted_ms, b->submitted_ms);
    assert_int_equal(a->state, b->state);
    check_text(a->reason, b->reason);
    assert_int_equal(a->started_ms, b->started_ms);
    assert_int_equal(a->ended_ms, b->ended_ms);
    assert_int_equal(a->used_ms, b->used_ms);
    assert_int_equal(a->attempt, b->attempt);
    assert_int_equal(a->failures, b->failures);
    assert_int_equal(a->checkpoint_step, b->checkpoint_step);
    assert_int_equal(a->failed_step, b->failed_step);
    assert_int_equal(a->cancel, b->cancel);
    assert_int_equal(a->lease.n_devices, b->lease.n_devices);
    assert_memory_equal(a->lease.devices, b->lease.devices, sizeof a->lease.devices);
    assert_int_equal(a->lease.device_bytes, b->lease.device_bytes);
    assert_int_equal(a->lease.host_bytes, b->lease.host_bytes);
    assert_int_equal(a->process.pid, b->process.pid);
    assert_int_equal(a->process.start, b->process.start);
    assert_string_equal(a->process.boot, b->process.boot);
    assert_string_equal(a->secret_hash, b->secret_hash);
    assert_int_equal(a->exit, b->exit);
    check_text(a->error, b->error);
    assert_int_equal(a->step, b->step);
    assert_int_equal(a->total_steps, b->total_steps);
    check_number(a->loss, b->loss);
    check_number(a->samples_per_s, b->samples_per_s);
}

static void check_round_trip(const struct job *j)
{
    struct strbuf body = {0}, status = {0};
    struct job back;
    struct err err = {0};
    write_texts(j, &body, &status);
    if (read_texts(body.at, status.at, &back, &err) < 0)
        fail_msg("%s: %s %s", err.msg, body.at, status.at);
    check_same(&back, j);
    free_texts(&back);
    strbuf_finish(&body);
    strbuf_finish(&status);
}

static void test_every_field_survives_in_every_state(void **state)
{
    (void)state;
    for (int s = 0; s < JOB_STATE_COUNT; s++) {
        struct job j = full((enum job_state)s);
        check_round_trip(&j);
    }
}

static void test_a_new_job_survives(void **state)
{
    struct job j = empty();
    (void)state;
    j.id = 9;
    j.name = j.user = j.dir = j.output = j.reason = (char *)"";
    j.exit = JOB_NO_EXIT;
    check_round_trip(&j);
}

static void test_the_greatest_numbers_survive(void **state)
{
    struct job j = full(JOB_RUNNING);
    uint64_t most = (1ull << 53) - 1;
    (void)state;
    j.uid = UINT32_MAX;
    j.ask = (struct job_ask){UINT32_MAX, UINT32_MAX, most, most, most};
    j.attempt = j.failures = UINT32_MAX;
    j.submitted_ms = j.started_ms = j.ended_ms = j.used_ms = j.checkpoint_step = j.failed_step = most;
    j.step = j.total_steps = j.lease.device_bytes = j.lease.host_bytes = j.process.start = most;
    j.process.pid = 4194304;
    j.lease.n_devices = DEVICE_MAX;
    for (uint32_t i = 0; i < DEVICE_MAX; i++)
        j.lease.devices[i] = DEVICE_MAX - 1 - i;
    j.exit = 0;
    j.loss = -1e300;
    check_round_trip(&j);
}

static void test_what_is_not_finite_is_not_known_afterwards(void **state)
{
    struct job j = full(JOB_RUNNING), want = j, back;
    struct strbuf body = {0}, status = {0};
    (void)state;
    j.loss = INFINITY;
    j.samples_per_s = -INFINITY;
    want.loss = want.samples_per_s = NAN;
    write_texts(&j, &body, &status);
    assert_int_equal(read_texts(body.at, status.at, &back, NULL), 0);
    check_same(&back, &want);
    free_texts(&back);
    strbuf_finish(&body);
    strbuf_finish(&status);
}

static void test_what_the_worker_said_is_kept_when_the_job_has_ended(void **state)
{
    static const char *const keys[] = {"planned", "progress", "report", "curve", "evals"};
    (void)state;
    for (int s = 0; s < JOB_STATE_COUNT; s++) {
        struct job j = full((enum job_state)s), back;
        struct strbuf body = {0}, status = {0};
        struct json *doc = NULL;
        j.said = (struct job_said){"{\"p\":1}", "{\"step\":2}", "[[1,2]]", "[[1,2,3]]", "{\"loss\":1}"};
        write_texts(&j, &body, &status);
        assert_int_equal(json_parse(status.at, status.n, "x", false, &doc, NULL), 0);
        for (size_t i = 0; i < 5; i++)
            assert_true((json_get(doc, keys[i]) != NULL) == job_ended(&j));
        json_free(doc);
        assert_int_equal(read_texts(body.at, status.at, &back, NULL), 0);
        free_texts(&back);
        strbuf_finish(&body);
        strbuf_finish(&status);
    }
}

/* ---- what is refused ---- */

/* The text with `from` replaced by `to`, once. */
static char *edit(const char *text, const char *from, const char *to)
{
    struct strbuf b = {0};
    const char *at = strstr(text, from);
    if (at == NULL)
        fail_msg("%s is not in %s", from, text);
    strbuf_addn(&b, text, (size_t)(at - text));
    strbuf_add(&b, to);
    strbuf_add(&b, at + strlen(from));
    return b.at;
}

static void check_refused(bool in_body, const char *from, const char *to, const char *part)
{
    struct job j = full(JOB_DONE), back;
    struct strbuf body = {0}, status = {0};
    struct err err = {0};
    write_texts(&j, &body, &status);
    char *edited = edit(in_body ? body.at : status.at, from, to);
    int r = read_texts(in_body ? edited : body.at, in_body ? status.at : edited, &back, &err);
    if (r == 0)
        fail_msg("accepted: %s -> %s", from, to);
    assert_int_equal(r, -EBADMSG);
    assert_non_null(strstr(err.msg, "job 9"));
    if (strstr(err.msg, part) == NULL)
        fail_msg("%s -> %s: %s", from, to, err.msg);
    free_texts(&back);
    free(edited);
    strbuf_finish(&body);
    strbuf_finish(&status);
}

static void test_unknown_keys_are_refused(void **state)
{
    (void)state;
    check_refused(true, "{\"uid\"", "{\"colour\":1,\"uid\"", "colour");
    check_refused(true, "\"devices_min\"", "\"x\":1,\"devices_min\"", "ask.x");
    check_refused(false, "{\"state\"", "{\"x\":1,\"state\"", "x");
}

/* Tries each key in turn: first renamed, so that it is missing, then with a value of the wrong type. */
static void check_every_key(bool in_body)
{
    static const char *const optional[] = {"planned", "progress", "report", "curve", "evals"};
    struct job j = full(JOB_DONE);
    struct strbuf body = {0}, status = {0}, *text = in_body ? &body : &status;
    struct json *doc;
    write_texts(&j, &body, &status);
    assert_int_equal(json_parse(text->at, text->n, "x", false, &doc, NULL), 0);
    for (const struct json *c = json_array_first(doc); c != NULL; c = json_array_next(c)) {
        char from[64], to[80], *value = json_print(c);
        bool any = false;
        for (size_t i = 0; i < 5; i++)
            any |= strcmp(json_key(c), optional[i]) == 0;
        snprintf(from, sizeof from, "\"%s\":", json_key(c));
        snprintf(to, sizeof to, "\"%s_\":", json_key(c));
        check_refused(in_body, from, to, json_key(c));
        if (!any) {
            struct strbuf whole = {0}, other = {0};
            strbuf_addf(&whole, "%s%s", from, value);
            strbuf_addf(&other, "%s%s", from, json_type(c) == JSON_BOOL ? "0" : "true");
            check_refused(in_body, whole.at, other.at, json_key(c));
            strbuf_finish(&whole);
            strbuf_finish(&other);
        }
        free(value);
    }
    json_free(doc);
    strbuf_finish(&body);
    strbuf_finish(&status);
}

static void test_every_key_is_needed_and_has_its_type(void **state)
{
    (void)state;
    check_every_key(true);
    check_every_key(false);
}

static void test_values_out_of_range_are_refused(void **state)
{
    (void)state;
    check_refused(false, "\"done\"", "\"dreaming\"", "state");
    check_refused(false, "\"attempt\":4", "\"attempt\":-4", "attempt");
    check_refused(false, "\"attempt\":4", "\"attempt\":4.5", "attempt");
    check_refused(false, "\"attempt\":4", "\"attempt\":4294967296", "attempt");
    check_refused(true, "4294967294", "4294967296", "uid");
    check_refused(false, "[0,7,63]", "[0,7,64]", "devices");
    check_refused(false, "[0,7,63]", "[0,\"7\"]", "devices");
    check_refused(false, "\"exit\":130", "\"exit\":-1", "exit");
    check_refused(false, "\"secret_sha256\":\"", "\"secret_sha256\":\"0", "secret_sha256");
    check_refused(false, "\"secret_sha256\":\"9", "\"secret_sha256\":\"", "secret_sha256");
    check_refused(false, "\"secret_sha256\":\"9", "\"secret_sha256\":\"X", "secret_sha256");
    check_refused(false, "\"secret_sha256\":", "\"secret\":\"x\",\"secret_sha256\":", "secret_sha256");
    check_refused(false, "\"boot\":\"", "\"boot\":\"01234567", "boot");
    check_refused(true, "\"ada\"", "null", "is null");
    check_refused(false, "\"reason\":\"because\\nof this\"", "\"reason\":null", "reason");
}

/* As tuttid 0.1.0 wrote it. */
static void test_a_secret_in_clear_is_read_and_not_written_again(void **state)
{
    static const char secret[] = "0123456789abcdef0123456789abcdef";
    struct job j = full(JOB_RUNNING), back;
    struct strbuf body = {0}, status = {0}, old = {0}, again = {0};
    char hash[SHA256_HEX_CHARS + 1];
    (void)state;
    write_texts(&j, &body, &status);
    char *at = strstr(status.at, "\"secret_sha256\":\""), *end = strstr(at, "\",");
    strbuf_addn(&old, status.at, (size_t)(at - status.at));
    strbuf_addf(&old, "\"secret\":\"%s%s", secret, end);
    assert_int_equal(read_texts(body.at, old.at, &back, NULL), 0);
    sha256_hex(secret, strlen(secret), hash);
    assert_string_equal(back.secret_hash, hash);
    assert_true(back.secret_in_clear);
    job_status_json(&back, &again);
    assert_null(strstr(again.at, secret));
    assert_non_null(strstr(again.at, hash));
    free_texts(&back);
    strbuf_finish(&body);
    strbuf_finish(&status);
    strbuf_finish(&old);
    strbuf_finish(&again);
}

static void test_what_is_no_json_is_refused(void **state)
{
    struct job j = full(JOB_DONE), back;
    struct strbuf body = {0}, status = {0};
    (void)state;
    write_texts(&j, &body, &status);
    assert_int_equal(read_texts("", status.at, &back, NULL), -EBADMSG);
    free_texts(&back);
    assert_int_equal(read_texts("[]", status.at, &back, NULL), -EBADMSG);
    free_texts(&back);
    assert_int_equal(read_texts(body.at, "", &back, NULL), -EBADMSG);
    free_texts(&back);
    for (size_t keep = 0; keep < status.n; keep++) { /* cut anywhere */
        char *cut = strndup(status.at, keep);
        assert_int_equal(read_texts(body.at, cut, &back, NULL), -EBADMSG);
        free_texts(&back);
        free(cut);
    }
    strbuf_finish(&body);
    strbuf_finish(&status);
}

/* ---- for clients ---- */

static struct daemon idle;

static void test_the_short_form_is_json_with_all_its_keys(void **state)
{
    static const char *const keys[] = {"id",      "name",          "user",       "uid",      "state",
                                       "reason",  "submitted_ms",  "started_ms", "ended_ms", "devices",
                                       "attempt", "failures",      "pid",        "step",     "total_steps",
                                       "loss",    "samples_per_s", "eta_s",      "exit",     "error"};
    (void)state;
    for (int s = 0; s < JOB_STATE_COUNT; s++) {
        struct job j = full((enum job_state)s);
        struct strbuf b = {0};
        struct json *doc = NULL;
        job_short_json(&idle, &j, &b);
        strbuf_add(&b, "}");
        assert_int_equal(json_parse(b.at, b.n, "x", false, &doc, NULL), 0);
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
            assert_non_null(json_get(doc, keys[i]));
        assert_int_equal(json_array_size(doc), sizeof keys / sizeof keys[0]);
        assert_null(strstr(b.at, j.secret_hash)); /* clients never see it */
        bool alive = s == JOB_RUNNING || s == JOB_STOPPING;
        assert_int_equal(json_type(json_get(doc, "pid")), alive ? JSON_NUMBER : JSON_NULL);
        assert_int_equal(json_type(json_get(doc, "eta_s")), alive ? JSON_NUMBER : JSON_NULL);
        json_free(doc);
        strbuf_finish(&b);
    }
}

static void test_what_is_not_known_is_null(void **state)
{
    static const char *const keys[] = {"started_ms",    "ended_ms", "pid",  "loss",
                                       "samples_per_s", "eta_s",    "exit", "error"};
    struct job j = empty();
    struct strbuf b = {0};
    struct json *doc = NULL;
    (void)state;
    j.name = j.user = j.reason = (char *)"";
    j.exit = JOB_NO_EXIT;
    job_short_json(&idle, &j, &b);
    strbuf_add(&b, "}");
    assert_int_equal(json_parse(b.at, b.n, "x", false, &doc, NULL), 0);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        assert_int_equal(json_type(json_get(doc, keys[i])), JSON_NULL);
    json_free(doc);
    strbuf_finish(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_field_survives_in_every_state),
        cmocka_unit_test(test_a_new_job_survives),
        cmocka_unit_test(test_the_greatest_numbers_survive),
        cmocka_unit_test(test_what_is_not_finite_is_not_known_afterwards),
        cmocka_unit_test(test_what_the_worker_said_is_kept_when_the_job_has_ended),
        cmocka_unit_test(test_unknown_keys_are_refused),
        cmocka_unit_test(test_every_key_is_needed_and_has_its_type),
        cmocka_unit_test(test_values_out_of_range_are_refused),
        cmocka_unit_test(test_a_secret_in_clear_is_read_and_not_written_again),
        cmocka_unit_test(test_what_is_no_json_is_refused),
        cmocka_unit_test(test_the_short_form_is_json_with_all_its_keys),
        cmocka_unit_test(test_what_is_not_known_is_null),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
