/* Tests of UTF-8 and the functions built on it, which make text from untrusted sources safe for people, for
 * JSON and for names.
 *
 * The tables give exact results. The properties hold for random bytes: displayed text is clean, scrubbing it
 * again changes nothing, text that needs no scrubbing stays unchanged, and JSON reads back as the same text.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/print.h"
#include "base/rng.h"
#include "base/strbuf.h"
#include "base/utf8.h"
#include "tests/skip.h"

/* An independent reading of what may be shown: printable ASCII, or a well-formed character beyond U+009F that
 * is in none of the ranges that reorder, separate or hide text. */
static bool is_clean(const char *s, size_t n, const char *also)
{
    while (n > 0) {
        size_t bytes = utf8_char_bytes(s, n);
        uint32_t c = bytes > 0 ? utf8_decode(s, bytes) : 0;
        bool bidi = c == 0x61C || c == 0x200E || c == 0x200F || (c >= 0x202A && c <= 0x202E) ||
                    (c >= 0x2066 && c <= 0x2069);
        bool hidden = c == 0x200B || c == 0x2028 || c == 0x2029 || c == 0x2060 || c == 0xFEFF ||
                      (c >= 0xE0000 && c <= 0xE007F);
        if (bytes == 0 || ((c < 0x20 || (c >= 0x7F && c < 0xA0)) && !strchr(also, (int)c)) || bidi || hidden)
            return false;
        s += bytes;
        n -= bytes;
    }
    return true;
}

/* ---------------------------------------------------------------------------------------- characters */

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

static void test_utf8_decode_reads_every_length(void **state)
{
    (void)state;
    assert_int_equal(utf8_decode("a", 1), 'a');
    assert_int_equal(utf8_decode("\xC3\xA9", 2), 0xE9);
    assert_int_equal(utf8_decode("\xE2\x80\xAE", 3), 0x202E);
    assert_int_equal(utf8_decode("\xF4\x8F\xBF\xBF", 4), 0x10FFFF);
}

static void test_utf8_whole_bytes_leaves_the_cut_character(void **state)
{
    const char *text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x8E\xB5z";
    static const size_t want[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11};

    (void)state;
    for (size_t n = 0; n <= strlen(text); n++)
        assert_int_equal(utf8_whole_bytes(text, n), want[n]);
    assert_int_equal(utf8_whole_bytes("\x80\x80\x80\x80", 4),
                     4); /* begins no character: nothing to wait for */
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
        assert_true(is_clean(buf, n, ""));
        for (size_t i = size; i < sizeof buf; i++)
            assert_int_equal(buf[i], '#');
    }
    utf8_copy(buf, 0, text); /* must not write */
}

/* -------------------------------------------------------------------------------------------- shown */

static const struct {
    const char *text, *shown;
    const char *found; /* what a name is refused for; NULL: it is accepted */
} shown_cases[] = {
    {"", "", NULL},
    {"plain \\ text", "plain \\ text", NULL},
    {"caf\xC3\xA9 \xE6\x95\xB0 \xF0\x9F\x8E\xB5", "caf\xC3\xA9 \xE6\x95\xB0 \xF0\x9F\x8E\xB5", NULL},
    {"\xE2\x80\x8C\xE2\x80\x8D", "\xE2\x80\x8C\xE2\x80\x8D", NULL}, /* joiners spell words and emoji */
    {"one\r\n\ttwo", "one\\r\\n\\ttwo", "U+000D"},
    {"\x1b[2J", "\\u001b[2J", "U+001B"},
    {"\x1b]0;title\x07", "\\u001b]0;title\\u0007", "U+001B"},
    {"\x1b]52;c;cm0=\x1b\\", "\\u001b]52;c;cm0=\\u001b\\", "U+001B"},
    {"a\b\b\x7f", "a\\u0008\\u0008\\u007f", "U+0008"},
    {"\xC2\x9B"
     "31m",
     "\\u009b31m", "U+009B"},
    {"\x9B"
     "31m",
     "\\x9b31m", "byte 0x9B"},
    {"\xC2\xAD", "\\u00ad", "U+00AD"},
    {"\xD8\x9C", "\\u061c", "U+061C"},
    {"\xE2\x80\x8B", "\\u200b", "U+200B"},
    {"\xE2\x80\x8E\xE2\x80\x8F", "\\u200e\\u200f", "U+200E"},
    {"\xE2\x80\xA8\xE2\x80\xA9", "\\u2028\\u2029", "U+2028"},
    {"user\xE2\x80\xAEnimda", "user\\u202enimda", "U+202E"},
    {"\xE2\x81\xA6\xE2\x81\xA9", "\\u2066\\u2069", "U+2066"},
    {"\xEF\xBB\xBF", "\\ufeff", "U+FEFF"},
    {"\xF3\xA0\x81\xA7", "\\U000e0067", "U+E0067"},
    {"\xC0\xAF", "\\xc0\\xaf", "byte 0xC0"},
    {"\xED\xA0\x80", "\\xed\\xa0\\x80", "byte 0xED"},
    {"\xE2\x82", "\\xe2\\x82", "byte 0xE2"},
};

static void test_scrub_shows_what_would_act_or_hide(void **state)
{
    char buf[128];

    (void)state;
    for (size_t i = 0; i < sizeof shown_cases / sizeof *shown_cases; i++) {
        struct strbuf b = {0};
        utf8_scrub(buf, sizeof buf, shown_cases[i].text);
        assert_string_equal(buf, shown_cases[i].shown);
        strbuf_add_text(&b, shown_cases[i].text);
        assert_string_equal(b.at, shown_cases[i].shown);
        strbuf_finish(&b);
    }
}

static void test_scrub_cuts_between_escapes(void **state)
{
    const char *text = "a\x1b\xC3\xA9\xFF\xF0\x9F\x8E\xB5 tutti";
    char buf[64];

    (void)state;
    utf8_scrub(buf, sizeof buf, text);
    assert_string_equal(buf, "a\\u001b\xC3\xA9\\xff\xF0\x9F\x8E\xB5 tutti");
    utf8_scrub(buf, 12, text);
    assert_string_equal(buf, "a\\u001b...");
    utf8_scrub(buf, 10, text);
    assert_string_equal(buf, "a...");
    for (size_t size = 1; size <= sizeof buf; size++) {
        memset(buf, '#', sizeof buf);
        utf8_scrub(buf, size, text);
        assert_true(strlen(buf) < size);
        assert_true(is_clean(buf, strlen(buf), ""));
        for (size_t i = size; i < sizeof buf; i++)
            assert_int_equal(buf[i], '#');
    }
    utf8_scrub(buf, 0, text); /* must not write */
}

static void test_names_refuse_what_scrub_would_change(void **state)
{
    char found[UTF8_NAME_BYTES];

    (void)state;
    for (size_t i = 0; i < sizeof shown_cases / sizeof *shown_cases; i++) {
        assert_int_equal(utf8_find_unsafe(shown_cases[i].text, found), shown_cases[i].found != NULL);
        if (shown_cases[i].found)
            assert_string_equal(found, shown_cases[i].found);
    }
}

static void test_lines_and_colours_are_kept_where_asked(void **state)
{
    const char *text = "a\tb\n\x1b[1;31mred\x1b[0m\x1b[2J\x1b[\x1b[31";
    struct strbuf b = {0};

    (void)state;
    strbuf_add_textn(&b, text, strlen(text), STRBUF_LINES);
    assert_string_equal(b.at, "a\tb\n\\u001b[1;31mred\\u001b[0m\\u001b[2J\\u001b[\\u001b[31");
    b.n = 0;
    strbuf_add_textn(&b, text, strlen(text), STRBUF_INKED_LINES);
    assert_string_equal(b.at, "a\tb\n\x1b[1;31mred\x1b[0m\\u001b[2J\\u001b[\\u001b[31");
    b.n = 0;
    strbuf_add_textn(&b, "a\0b", 3, STRBUF_LINES);
    assert_string_equal(b.at, "a\\u0000b");
    strbuf_finish(&b);
}

/* ------------------------------------------------------------------------------------------ printing */

static size_t read_all(int fd, char *buf, size_t size)
{
    ssize_t n = read(fd, buf, size - 1);

    buf[n > 0 ? n : 0] = '\0';
    return n > 0 ? (size_t)n : 0;
}

/* Sends a '#' after the text and reads everything up to it. The '#' is needed because a terminal delivers its
 * text in pieces at any time. */
static void expect_on_terminal(int parent, int child, const char *want)
{
    char got[256];
    size_t n = 0;
    ssize_t more = 1;

    assert_int_equal(write(child, "#", 1), 1);
    while (more > 0 && n < sizeof got - 1 && (n == 0 || got[n - 1] != '#')) {
        more = read(parent, got + n, sizeof got - 1 - n);
        n += more > 0 ? (size_t)more : 0;
    }
    assert_true(n > 0 && got[n - 1] == '#');
    got[n - 1] = '\0';
    assert_string_equal(got, want);
}

static void test_print_scrubs_for_pipes_and_terminals(void **state)
{
    static const char text[] = "\x1b[31mred\x1b[0m \x1b]0;t\x07\n";
    int ends[2], parent, child;
    char got[256];

    (void)state;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(print_text(ends[1], text, sizeof text - 1), 0);
    read_all(ends[0], got, sizeof got);
    assert_string_equal(got, "\\u001b[31mred\\u001b[0m \\u001b]0;t\\u0007\n");
    assert_int_equal(print_bytes(ends[1], text, sizeof text - 1), 0);
    assert_int_equal(read_all(ends[0], got, sizeof got), sizeof text - 1);
    assert_memory_equal(got, text, sizeof text - 1);
    close(ends[0]);
    close(ends[1]);
    assert_int_equal(print_text(ends[1], "x", 1), -EBADF);

    if (openpty(&parent, &child, NULL, NULL, NULL) != 0)
        SKIP_TEST("no terminal can be made");
    assert_int_equal(print_text(child, text, sizeof text - 1), 0);
    /* The terminal adds the CR. */
    expect_on_terminal(parent, child, "\x1b[31mred\x1b[0m \\u001b]0;t\\u0007\r\n");
    close(parent);
    close(child);
}

static void test_print_status_is_a_line_elsewhere(void **state)
{
    int ends[2], saved = dup(STDERR_FILENO);
    char got[256];

    (void)state;
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    print_status("step %d of %s", 3, "a\x1b[K\nb");
    print_status_end(PRINT_CLEAR);
    print_error("%s\n", "done\x07");
    dup2(saved, STDERR_FILENO);
    close(saved);
    read_all(ends[0], got, sizeof got);
    assert_string_equal(got, "step 3 of a\\u001b[K\\nb\ndone\\u0007\n");
    close(ends[0]);
    close(ends[1]);
}

static void test_print_status_renews_the_line_of_a_terminal(void **state)
{
    int parent, child, saved;

    (void)state;
    if (openpty(&parent, &child, NULL, NULL, NULL) != 0)
        SKIP_TEST("no terminal can be made");
    saved = dup(STDERR_FILENO);
    dup2(child, STDERR_FILENO);
    print_status("one\x1b");
    print_status("two");
    print_status_end(PRINT_KEEP);
    print_status_end(PRINT_KEEP); /* there is none to end */
    print_status("three");
    print_status_end(PRINT_CLEAR);
    dup2(saved, STDERR_FILENO);
    close(saved);
    expect_on_terminal(parent, child, "\r\x1b[Kone\\u001b\r\x1b[Ktwo\r\n\r\x1b[Kthree\r\x1b[K");
    close(parent);
    close(child);
}

/* -------------------------------------------------------------------------------------------- JSON */

static void check_json(const char *text, const char *want)
{
    struct strbuf b = {0};

    strbuf_add_json(&b, text);
    assert_string_equal(b.at, want);
    strbuf_finish(&b);
}

static void test_json_escapes_unsafe_characters(void **state)
{
    struct strbuf b = {0};

    (void)state;
    check_json("\x7f\xC2\x80\xC2\x9F\xC2\xA0", "\"\\u007f\\u0080\\u009f\xC2\xA0\"");
    check_json("\xE2\x80\xA8\xE2\x80\xAE\xE2\x81\xA9\xD8\x9C", "\"\\u2028\\u202e\\u2069\\u061c\"");
    check_json("\xF3\xA0\x80\x81", "\"\\udb40\\udc01\"");
    check_json("\x9B"
               "x",
               "\"\xEF\xBF\xBDx\"");
    strbuf_add_jsonn(&b, "a\0b", 3);
    assert_string_equal(b.at, "\"a\xEF\xBF\xBD"
                              "b\"");
    strbuf_finish(&b);
}

/* -------------------------------------------------------------------------------------- properties */

/* Bytes that are likely to matter: any, or one of the tables' texts. */
static size_t random_text(struct rng *r, char *buf, size_t size)
{
    size_t n = 0, pieces = rng_below(r, 12);

    for (size_t i = 0; i < pieces; i++) {
        const char *piece = shown_cases[rng_below(r, sizeof shown_cases / sizeof *shown_cases)].text;
        char byte[2] = {(char)(1 + rng_below(r, 255)), '\0'};
        if (rng_below(r, 3) == 0)
            piece = byte;
        if (n + strlen(piece) + 1 < size) {
            strcpy(buf + n, piece);
            n += strlen(piece);
        }
    }
    buf[n] = '\0';
    return n;
}

static void test_scrubbed_text_is_clean_and_stays_the_same(void **state)
{
    struct rng r = {.seed = 7};
    char text[256], name[UTF8_NAME_BYTES];

    (void)state;
    for (int round = 0; round < 20000; round++) {
        struct strbuf once = {0}, twice = {0}, lines = {0};
        size_t n = random_text(&r, text, sizeof text);
        strbuf_add_text(&once, text);
        strbuf_add_text(&twice, once.at);
        assert_true(is_clean(once.at, once.n, ""));
        assert_string_equal(once.at, twice.at);
        assert_int_equal(utf8_find_unsafe(text, name), strcmp(text, once.at) != 0);
        strbuf_add_textn(&lines, text, n, STRBUF_LINES);
        assert_true(is_clean(lines.at, lines.n, "\n\t"));
        strbuf_finish(&once);
        strbuf_finish(&twice);
        strbuf_finish(&lines);
    }
}

/* What JSON of our own reads back as: the text, with U+FFFD for each byte that is not UTF-8. */
static void mend(const char *text, struct strbuf *b)
{
    for (size_t left = strlen(text), n; left > 0; text += n, left -= n) {
        n = utf8_char_bytes(text, left);
        strbuf_addn(b, n > 0 ? text : "\xEF\xBF\xBD", n > 0 ? n : 3);
        n = n > 0 ? n : 1;
    }
}

static void test_json_is_clean_and_reads_back(void **state)
{
    struct rng r = {.seed = 11};
    char text[256];

    (void)state;
    for (int round = 0; round < 20000; round++) {
        struct strbuf b = {0}, want = {0};
        struct json *doc = NULL;
        const char *got = NULL;
        strbuf_add(&want, "");
        random_text(&r, text, sizeof text);
        strbuf_add_json(&b, text);
        assert_true(is_clean(b.at, b.n, ""));
        assert_int_equal(json_parse(b.at, b.n, "text", false, &doc, NULL), 0);
        assert_int_equal(json_string(doc, "", &got, NULL), 0);
        mend(text, &want);
        assert_string_equal(got, want.at);
        char *printed = json_print(doc);
        assert_string_equal(printed, b.at);
        free(printed);
        json_free(doc);
        strbuf_finish(&b);
        strbuf_finish(&want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_utf8_char_bytes_follows_rfc3629),
        cmocka_unit_test(test_utf8_decode_reads_every_length),
        cmocka_unit_test(test_utf8_whole_bytes_leaves_the_cut_character),
        cmocka_unit_test(test_utf8_copy_fits_every_size),
        cmocka_unit_test(test_scrub_shows_what_would_act_or_hide),
        cmocka_unit_test(test_scrub_cuts_between_escapes),
        cmocka_unit_test(test_names_refuse_what_scrub_would_change),
        cmocka_unit_test(test_lines_and_colours_are_kept_where_asked),
        cmocka_unit_test(test_print_scrubs_for_pipes_and_terminals),
        cmocka_unit_test(test_print_status_is_a_line_elsewhere),
        cmocka_unit_test(test_print_status_renews_the_line_of_a_terminal),
        cmocka_unit_test(test_json_escapes_unsafe_characters),
        cmocka_unit_test(test_scrubbed_text_is_clean_and_stays_the_same),
        cmocka_unit_test(test_json_is_clean_and_reads_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
