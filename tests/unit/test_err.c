/* Tests of error messages and log lines: a person must be able to read them safely, even when they contain
 * text from an untrusted source. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "base/utf8.h"

/* ---------------------------------------------------------------------------------------------- err */

static void test_err_set_fills_code_and_message(void **state)
{
    struct err err = {.path = "old"};
    char buf[64];

    (void)state;
    assert_int_equal(err_set(&err, -ENOENT, "no file %d", 7), -ENOENT);
    assert_int_equal(err.code, -ENOENT);
    assert_string_equal(err.path, "");
    assert_string_equal(err.msg, "no file 7");
    assert_string_equal(err_text(&err, buf, sizeof buf), "no file 7");
}

static void test_err_set_at_gives_path_in_text(void **state)
{
    struct err err;
    char buf[64];

    (void)state;
    assert_int_equal(err_set_at(&err, -EINVAL, "train.lr", "must be %s", "positive"), -EINVAL);
    assert_string_equal(err.path, "train.lr");
    assert_string_equal(err_text(&err, buf, sizeof buf), "train.lr: must be positive");
}

static void test_err_null_returns_code(void **state)
{
    (void)state;
    assert_int_equal(err_set(NULL, -EIO, "lost %d", 1), -EIO);
    assert_int_equal(err_set_at(NULL, -EIO, "x", "lost"), -EIO);
}

static void test_err_may_quote_itself(void **state)
{
    struct err err;

    (void)state;
    err_set_at(&err, -EIO, "a.b", "inner");
    err_set_at(&err, err.code, err.path, "outer: %s", err.msg);
    assert_string_equal(err.path, "a.b");
    assert_string_equal(err.msg, "outer: inner");
}

static void test_err_long_message_is_cut_between_characters(void **state)
{
    struct err err;
    char word[2001];

    (void)state;
    for (size_t i = 0; i < 2000; i += 2)
        memcpy(word + i, "\xC3\xA9", 2); /* e acute */
    word[2000] = '\0';
    for (size_t shift = 0; shift < 2; shift++) {
        err_set_at(&err, -EINVAL, word, "%s%s", shift ? "x" : "", word);
        size_t n = strlen(err.msg), at = 0;
        assert_in_range(n, sizeof err.msg - 6, sizeof err.msg - 1);
        assert_string_equal(err.msg + n - 3, "...");
        while (at < n) {
            size_t step = utf8_char_bytes(err.msg + at, n - at);
            assert_int_not_equal(step, 0);
            at += step;
        }
        assert_null(strchr(err.msg, '\\'));
        assert_true(strlen(err.path) < sizeof err.path);
        assert_string_equal(err.path + strlen(err.path) - 3, "...");
    }
}

static void test_err_control_characters_do_not_reach_the_terminal(void **state)
{
    struct err err;
    char buf[256];

    (void)state;
    err_set_at(&err, -EINVAL, "a\x1b[2J", "one\ntwo \x1b]0;x\x07 \xC2\x9B \xFF end");
    assert_string_equal(err.path, "a\x1b[2J"); /* programs want to open that very file */
    assert_string_equal(err.msg, "one\\ntwo \\u001b]0;x\\u0007 \\u009b \\xff end");
    assert_string_equal(err_text(&err, buf, sizeof buf),
                        "a\\u001b[2J: one\\ntwo \\u001b]0;x\\u0007 \\u009b \\xff end");
}

static void test_err_text_without_message_names_the_code(void **state)
{
    struct err err = {.code = -ENOENT};
    char buf[64], tiny[8];

    (void)state;
    assert_string_equal(err_text(&err, buf, sizeof buf), strerror(ENOENT));
    err.code = 0;
    assert_string_equal(err_text(&err, buf, sizeof buf), "no error");
    assert_non_null(err_text(&err, buf, 0));
    err_set(&err, -EINVAL, "a long sentence");
    assert_string_equal(err_text(&err, tiny, sizeof tiny), "a lo...");
}

/* ---------------------------------------------------------------------------------------------- log */

/* stderr becomes one end of a packet socket: what one write(2) wrote arrives as one packet. */
struct capture {
    int saved, ends[2];
};

static void capture_begin(struct capture *c)
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, c->ends), 0);
    c->saved = dup(STDERR_FILENO);
    dup2(c->ends[1], STDERR_FILENO);
}

static ssize_t capture_next(struct capture *c, char *buf, size_t size)
{
    ssize_t n = recv(c->ends[0], buf, size - 1, 0);

    buf[n > 0 ? n : 0] = '\0';
    return n;
}

static void capture_end(struct capture *c)
{
    dup2(c->saved, STDERR_FILENO);
    close(c->saved);
    close(c->ends[0]);
    close(c->ends[1]);
    log_init(LOG_INFO, 0);
}

static void test_log_writes_one_line_per_event(void **state)
{
    struct capture c;
    char one[4096], two[4096], none[16];

    (void)state;
    capture_begin(&c);
    log_init(LOG_INFO, 0);
    log_info("job %d: started", 7);
    log_debug("not shown");
    log_init(LOG_DEBUG, 1);
    log_debug("two\nlines\x1b\n");
    capture_next(&c, one, sizeof one);
    capture_next(&c, two, sizeof two);
    ssize_t rest = capture_next(&c, none, sizeof none);
    capture_end(&c);

    assert_string_equal(one, "job 7: started\n");
    assert_string_equal(two, "<7>two\\nlines\\u001b\n");
    assert_true(rest < 0);
}

static void test_log_long_message_is_cut_and_keeps_its_line_break(void **state)
{
    struct capture c;
    char line[8192], word[6000];

    (void)state;
    memset(word, 'x', sizeof word - 1);
    word[sizeof word - 1] = '\0';
    capture_begin(&c);
    log_init(LOG_INFO, 1);
    log_error("%s", word);
    ssize_t n = capture_next(&c, line, sizeof line);
    capture_end(&c);

    assert_in_range(n, 1000, 4096); /* PIPE_BUF: several writers do not mix */
    assert_memory_equal(line, "<3>xxx", 6);
    assert_string_equal(line + n - 4, "...\n");
}

static void test_log_closed_stderr_leaves_errno(void **state)
{
    struct capture c;

    (void)state;
    capture_begin(&c);
    close(STDERR_FILENO);
    errno = ERANGE;
    log_error("nobody reads this");
    int after = errno;
    capture_end(&c);
    assert_int_equal(after, ERANGE); /* not EBADF: a caller may log first and look at errno then */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_err_set_fills_code_and_message),
        cmocka_unit_test(test_err_set_at_gives_path_in_text),
        cmocka_unit_test(test_err_null_returns_code),
        cmocka_unit_test(test_err_may_quote_itself),
        cmocka_unit_test(test_err_long_message_is_cut_between_characters),
        cmocka_unit_test(test_err_control_characters_do_not_reach_the_terminal),
        cmocka_unit_test(test_err_text_without_message_names_the_code),
        cmocka_unit_test(test_log_writes_one_line_per_event),
        cmocka_unit_test(test_log_long_message_is_cut_and_keeps_its_line_break),
        cmocka_unit_test(test_log_closed_stderr_leaves_errno),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
