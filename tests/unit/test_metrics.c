/* Tests of the metrics file: the format of its lines, truncation on resume, incomplete lines, write
 * failures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "daemon/worker/metrics.h"

static const struct metrics_eval half = {.loss = 0.5, .accuracy = 0.75, .perplexity = NAN};

/* ------------------------------------------------------------------------------------------ helpers */

static struct outdir out;

static int setup(void **state)
{
    static char dir[32];

    (void)state;
    strcpy(dir, "/tmp/test_metrics_XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    out.name = dir;
    out.fd = open(dir, O_RDONLY | O_DIRECTORY);
    return out.fd < 0;
}

static int teardown(void **state)
{
    (void)state;
    close(out.fd);
    return fs_remove_tree(AT_FDCWD, out.name);
}

static struct metrics *open_good(uint64_t resume_step)
{
    struct metrics *m = NULL;
    struct err err;

    if (metrics_open(&out, resume_step, &m, &err) < 0)
        fail_msg("%s: %s", err.path, err.msg);
    return m;
}

static struct metrics_step step(uint64_t n)
{
    return (struct metrics_step){
        .step = n, .loss = 1.0 / (double)n, .lr = 0.1, .grad_norm = NAN, .in_bytes = n};
}

static char *content(void)
{
    static char *text;
    size_t n;

    assert_int_equal(fs_read_text(out.fd, "metrics.jsonl", 1 << 20, &text, &n), 0);
    return text;
}

static void put(const char *text)
{
    int fd = openat(out.fd, "metrics.jsonl", O_WRONLY | O_CREAT | O_TRUNC, 0666);

    assert_int_equal(fs_write_all(fd, text, strlen(text)), 0);
    close(fd);
}

static void check_after_open(const char *before, uint64_t resume_step, const char *after)
{
    char *text;

    put(before);
    metrics_close(open_good(resume_step));
    text = content();
    assert_string_equal(text, after);
    free(text);
    assert_int_equal(faccessat(out.fd, "metrics.jsonl.tmp", F_OK, 0), -1);
}

/* ------------------------------------------------------------------------------------------ tests */

static void test_lines_are_json_with_exact_numbers(void **state)
{
    struct metrics *m = open_good(0);
    struct metrics_step s = {.step = 3,
                             .loss = 0.1 + 0.2,
                             .lr = 1e-3,
                             .grad_norm = 1.0 / 3,
                             .samples_per_s = 1234.5,
                             .in_bytes = 1ull << 40,
                             .out_bytes = 2,
                             .peer_bytes = 3,
                             .stall_s = 0.25};
    struct json *doc;
    double loss;
    char *text, *second;

    (void)state;
    assert_int_equal(metrics_train(m, &s, NULL), 0);
    assert_int_equal(metrics_eval(m, 3, &half, NULL), 0);
    assert_int_equal(metrics_sync(m, NULL), 0);
    metrics_close(m);
    text = content();
    second = strchr(text, '\n') + 1;
    assert_string_equal(second, "{\"step\":3,\"val/loss\":0.5,\"val/accuracy\":0.75}\n");
    assert_int_equal(json_parse(text, (size_t)(second - text), "line", false, &doc, NULL), 0);
    assert_int_equal(json_double(json_get(doc, "loss"), "loss", &loss, NULL), 0);
    assert_true(loss == 0.1 + 0.2);
    for (const char *const *k = (const char *const[]){"step", "lr", "grad_norm", "samples_per_s", "in_bytes",
                                                      "out_bytes", "peer_bytes", "stall_s", NULL};
         *k; k++)
        assert_non_null(json_get(doc, *k));
    json_free(doc);
    free(text);
    m = open_good(0);
    s.stall_s = NAN; /* not known */
    assert_int_equal(metrics_train(m, &s, NULL), 0);
    metrics_close(m);
    text = content();
    assert_null(strstr(text, "stall"));
    free(text);
}

static void test_lines_of_several_phases_have_their_number(void **state)
{
    struct metrics *m = open_good(0);
    struct metrics_step s = {.step = 1, .loss = 1, .grad_norm = NAN, .stall_s = NAN};
    char *text;

    (void)state;
    metrics_set_phase(m, 0);
    assert_int_equal(metrics_train(m, &s, NULL), 0);
    metrics_set_phase(m, 2);
    assert_int_equal(metrics_eval(m, 1, &half, NULL), 0);
    metrics_close(m);
    text = content();
    assert_non_null(strstr(text, "\"peer_bytes\":0,\"phase\":0}\n"));
    assert_non_null(strstr(text, "{\"step\":1,\"val/loss\":0.5,\"val/accuracy\":0.75,\"phase\":2}\n"));
    free(text);
}

static const struct metrics_block two[] = {
    {.loss = 0.5, .accuracy = 0.25, .lr = 0.125, .sumsq = 4},
    {.loss = 1.5, .accuracy = NAN, .lr = 0.25, .sumsq = NAN, .skipped = true},
};

static void test_lines_of_several_blocks(void **state)
{
    struct metrics *m = open_good(0);
    struct metrics_step s = {.step = 1,
                             .loss = 1.5,
                             .lr = 0.25,
                             .grad_norm = 2,
                             .samples_per_s = 8,
                             .stall_s = NAN,
                             .skipped = true,
                             .blocks = two,
                             .n_blocks = 2};
    struct metrics_eval e = {.loss = 1.5, .accuracy = 0.5, .perplexity = NAN, .blocks = two, .n_blocks = 2};
    char *text;

    (void)state;
    assert_int_equal(metrics_train(m, &s, NULL), 0);
    assert_int_equal(metrics_eval(m, 1, &e, NULL), 0);
    e.n_blocks = 0;
    assert_int_equal(metrics_eval(m, 2, &e, NULL), 0);
    metrics_close(m);
    text = content();
    assert_string_equal(
        text, "{\"step\":1,\"loss\":1.5,\"lr\":0.25,\"grad_norm\":2,\"samples_per_s\":8,\"in_bytes\":0,"
              "\"out_bytes\":0,\"peer_bytes\":0,\"skipped\":true,\"blocks\":["
              "{\"block\":0,\"loss\":0.5,\"accuracy\":0.25,\"lr\":0.125,\"grad_norm\":2},"
              "{\"block\":1,\"loss\":1.5,\"accuracy\":null,\"lr\":0.25,\"skipped\":true}]}\n"
              "{\"step\":1,\"val/loss\":1.5,\"val/accuracy\":0.5,\"blocks\":["
              "{\"block\":0,\"loss\":0.5,\"accuracy\":0.25},{\"block\":1,\"loss\":1.5,\"accuracy\":null}]}\n"
              "{\"step\":2,\"val/loss\":1.5,\"val/accuracy\":0.5}\n");
    free(text);
}

static void test_lines_of_scaled_losses(void **state)
{
    const struct metrics_block blocks[] = {{.loss = 1, .lr = 1, .sumsq = NAN, .loss_scale = 0x1p31},
                                           {.loss = 1, .lr = 1, .sumsq = NAN, .loss_scale = 0.5}};
    struct metrics *m = open_good(0);
    struct metrics_step s = {.step = 1,
                             .loss = 1,
                             .lr = 1,
                             .grad_norm = NAN,
                             .samples_per_s = 8,
                             .stall_s = NAN,
                             .loss_scale = 0.5,
                             .blocks = blocks,
                             .n_blocks = 2};
    char *text;

    (void)state;
    assert_int_equal(metrics_train(m, &s, NULL), 0);
    metrics_close(m);
    text = content();
    assert_string_equal(text, "{\"step\":1,\"loss\":1,\"lr\":1,\"samples_per_s\":8,\"in_bytes\":0,"
                              "\"out_bytes\":0,\"peer_bytes\":0,\"loss_scale\":0.5,\"blocks\":["
                              "{\"block\":0,\"loss\":1,\"accuracy\":0,\"lr\":1,\"loss_scale\":2147483648},"
                              "{\"block\":1,\"loss\":1,\"accuracy\":0,\"lr\":1,\"loss_scale\":0.5}]}\n");
    free(text);
}

static void test_lines_of_label_vectors(void **state)
{
    struct metrics *m = open_good(0);
    struct labels l = {.kappa = 2, .classes = 4, .known = true, .step = 3, .error = 0.0625, .nearest = 0.75};
    char *text;

    (void)state;
    metrics_set_phase(m, 2);
    assert_int_equal(metrics_labels(m, &l, 1, NULL), 0);
    l.step = 4;
    l.error = INFINITY;
    l.nearest = NAN; /* no validation data */
    assert_int_equal(metrics_labels(m, &l, 1, NULL), 0);
    metrics_close(m);
    text = content();
    assert_string_equal(text, "{\"step\":3,\"val/label_error\":0.0625,\"val/nearest_label_accuracy\":0.75,"
                              "\"labels\":\"working\",\"phase\":2}\n"
                              "{\"step\":4,\"val/label_error\":null,\"val/nearest_label_accuracy\":null,"
                              "\"labels\":\"dead\",\"phase\":2}\n");
    free(text);
    m = open_good(3); /* a resumed run drops lines of later steps, whatever they say */
    metrics_close(m);
    text = content();
    assert_non_null(strstr(text, "\"working\""));
    assert_null(strstr(text, "\"dead\""));
    free(text);
}

static void test_numbers_that_are_not_finite_stay_json(void **state)
{
    struct metrics *m = open_good(0);
    struct metrics_step s = step(1);
    struct json *doc;
    char *text;

    (void)state;
    s.loss = NAN;
    s.lr = INFINITY;
    assert_int_equal(metrics_train(m, &s, NULL), 0);
    metrics_close(m);
    text = content();
    assert_int_equal(json_parse(text, strlen(text), "line", false, &doc, NULL), 0);
    assert_int_equal(json_type(json_get(doc, "loss")), JSON_NULL);
    assert_null(json_get(doc, "grad_norm"));
    json_free(doc);
    free(text);
}

static void test_resume_drops_what_comes_after(void **state)
{
    static const char all[] =
        "{\"step\":1,\"loss\":1}\n{\"step\":2,\"loss\":1}\n{\"step\":2,\"val/loss\":1}\n"
        "{\"step\":3,\"loss\":1}\n{\"step\":10,\"loss\":1}\n";

    (void)state;
    check_after_open(all, 10, all);
    check_after_open(all, 99, all);
    check_after_open(all, 2,
                     "{\"step\":1,\"loss\":1}\n{\"step\":2,\"loss\":1}\n{\"step\":2,\"val/loss\":1}\n");
    check_after_open(all, 0, "");
    check_after_open("", 5, "");
}

static void test_torn_and_foreign_lines_are_dropped(void **state)
{
    (void)state;
    check_after_open("{\"step\":1,\"loss\":1}\n{\"step\":2,\"lo", 5, "{\"step\":1,\"loss\":1}\n");
    check_after_open("{\"step\":1,\"loss\":1}\n{\"step\":2,\"loss\":1}", 5, "{\"step\":1,\"loss\":1}\n");
    check_after_open(
        "{\"step\":1}\n{\"step\":2,\"lo{\"step\":3}\n{\"step\":}\n\n{\"step\":-1}\nx\n{\"step\":4}\n", 5,
        "{\"step\":1}\n{\"step\":4}\n");
}

static void test_every_torn_length_leaves_whole_lines(void **state)
{
    static const char all[] = "{\"step\":1,\"loss\":1}\n{\"step\":2,\"loss\":1}\n";
    char cut[sizeof all];

    (void)state;
    for (size_t n = 0; n < sizeof all; n++) {
        memcpy(cut, all, n);
        cut[n] = '\0';
        char *end = strrchr(cut, '\n');
        char whole[sizeof all] = "";
        if (end)
            memcpy(whole, cut, (size_t)(end - cut) + 1);
        check_after_open(cut, 5, whole);
    }
}

static void test_resumed_file_goes_on(void **state)
{
    struct metrics *m = open_good(0);
    struct metrics_step s;
    char *text, *again;

    (void)state;
    for (uint64_t i = 1; i <= 6; i++) {
        s = step(i);
        assert_int_equal(metrics_train(m, &s, NULL), 0);
    }
    metrics_close(m);
    text = content();
    m = open_good(4);
    for (uint64_t i = 5; i <= 6; i++) {
        s = step(i);
        assert_int_equal(metrics_train(m, &s, NULL), 0);
    }
    metrics_close(m);
    again = content();
    assert_string_equal(text, again);
    free(text);
    free(again);
}

static void test_stale_tmp_is_no_obstacle(void **state)
{
    int fd = openat(out.fd, "metrics.jsonl.tmp", O_WRONLY | O_CREAT, 0666);

    (void)state;
    close(fd);
    check_after_open("{\"step\":1}\n{\"step\":2}\n", 1, "{\"step\":1}\n");
}

static void test_links_are_not_followed(void **state)
{
    struct metrics *m;
    struct err err;

    (void)state;
    put("");
    unlinkat(out.fd, "metrics.jsonl", 0);
    assert_int_equal(symlinkat("/tmp/test_metrics_elsewhere", out.fd, "metrics.jsonl"), 0);
    assert_int_equal(metrics_open(&out, 0, &m, &err), -ELOOP);
    assert_non_null(strstr(err.path, "metrics.jsonl"));
    assert_int_equal(access("/tmp/test_metrics_elsewhere", F_OK), -1);
    unlinkat(out.fd, "metrics.jsonl", 0);
    assert_int_equal(mkfifoat(out.fd, "metrics.jsonl", 0666), 0);
    assert_true(metrics_open(&out, 0, &m, &err) < 0);
    unlinkat(out.fd, "metrics.jsonl", 0);
}

/* A limit on the size of files plays the full disk. */
static void test_full_disk_leaves_whole_lines(void **state)
{
    struct rlimit old, small;
    char *before, *after;
    size_t line;

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    put("");
    for (size_t room = 0;; room++) {
        struct metrics *m = open_good(0);
        struct metrics_step s = step(1), next = s;
        struct err err = {0};
        int r;
        next.step = 2;
        assert_int_equal(metrics_train(m, &s, NULL), 0);
        before = content();
        line = strlen(before);
        small = old;
        small.rlim_cur = line + room;
        setrlimit(RLIMIT_FSIZE, &small);
        r = metrics_train(m, &next, &err);
        setrlimit(RLIMIT_FSIZE, &old);
        metrics_close(m);
        after = content();
        if (r == 0)
            break;
        assert_non_null(strstr(err.path, "metrics.jsonl"));
        assert_string_equal(before, after);
        free(before);
        free(after);
    }
    assert_true(strlen(after) == 2 * line);
    free(before);
    free(after);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines_are_json_with_exact_numbers),
        cmocka_unit_test(test_lines_of_several_phases_have_their_number),
        cmocka_unit_test(test_lines_of_several_blocks),
        cmocka_unit_test(test_lines_of_scaled_losses),
        cmocka_unit_test(test_lines_of_label_vectors),
        cmocka_unit_test(test_numbers_that_are_not_finite_stay_json),
        cmocka_unit_test(test_resume_drops_what_comes_after),
        cmocka_unit_test(test_torn_and_foreign_lines_are_dropped),
        cmocka_unit_test(test_every_torn_length_leaves_whole_lines),
        cmocka_unit_test(test_resumed_file_goes_on),
        cmocka_unit_test(test_stale_tmp_is_no_obstacle),
        cmocka_unit_test(test_links_are_not_followed),
        cmocka_unit_test(test_full_disk_leaves_whole_lines),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
