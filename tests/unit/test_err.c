/* err, log and utf8: what a person reads, also when a stranger chose the words. */
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
        assert_null(strchr(err.msg, '?'));
        assert_true(strlen(err.path) < sizeof err.path);
        assert_string_equal(err.path + strlen(err.path) - 3, "...");
    }
}

static void test_err_control_characters_do_not_reach_the_terminal(void **state)
{
    struct err err;

    (void)state;
    err_set_at(&err, -EINVAL, "a\x1b[2J", "one\ntwo \x1b]0;x\x07 \xC2\x9B \xFF end");
    assert_string_equal(err.path, "a?[2J");
    assert_string_equal(err.msg, "one two ?]0;x? ? ? end");
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

/* --------------------------------------------------------------------------------------------- utf8 */

static void test_utf8_char_bytes_follows_rfc3629(void **state)
{
    static const struct {
        const char *text;
        size_t n, want;
    } cases[] = {
        {"a", 1, 1},
        {"", 0, 0},
        {"\xC2\x80", 2, 2},
        {"\xDF\xBF", 2, 2},
        {"\xE0\xA0\x80", 3, 3},
        {"\xED\x9F\xBF", 3, 3},
        {"\xEF\xBF\xBF", 3, 3},
        {"\xF0\x90\x80\x80", 4, 4},
        {"\xF4\x8F\xBF\xBF", 4, 4},
        {"\x80", 1, 0},             /* continuation alone */
        {"\xC0\x80", 2, 0},         /* overlong NUL */
        {"\xC1\xBF", 2, 0},         /* overlong */
        {"\xE0\x9F\xBF", 3, 0},     /* overlong */
        {"\xED\xA0\x80", 3, 0},     /* surrogate */
        {"\xF0\x8F\xBF\xBF", 4, 0}, /* overlong */
        {"\xF4\x90\x80\x80", 4, 0}, /* over U+10FFFF */
        {"\xF5\x80\x80\x80", 4, 0},
        {"\xE2\x82", 2, 0}, /* cut short */
        {"\xE2\x82x", 3, 0},
        {"\xFF", 1, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(utf8_char_bytes(cases[i].text, cases[i].n), cases[i].want);
}

static void test_utf8_copy_fits_every_size(void **state)
{
    const char *text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x8E\xB5 tutti";
    char buf[32];

    (void)state;
    for (size_t size = 1; size <= sizeof buf; size++) {
        memset(buf, '#', sizeof buf);
        utf8_copy(buf, size, text);
        size_t n = strlen(buf);
        assert_true(n < size);
        if (size > strlen(text))
            assert_string_equal(buf, text);
        for (size_t at = 0; at < n;) {
            size_t step = utf8_char_bytes(buf + at, n - at);
            assert_int_not_equal(step, 0);
            at += step;
        }
        for (size_t i = size; i < sizeof buf; i++)
            assert_int_equal(buf[i], '#');
    }
    utf8_copy(buf, 0, text); /* must not write */
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
    assert_string_equal(two, "<7>two lines?\n");
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
        cmocka_unit_test(test_utf8_char_bytes_follows_rfc3629),
        cmocka_unit_test(test_utf8_copy_fits_every_size),
        cmocka_unit_test(test_log_writes_one_line_per_event),
        cmocka_unit_test(test_log_long_message_is_cut_and_keeps_its_line_break),
        cmocka_unit_test(test_log_closed_stderr_leaves_errno),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
