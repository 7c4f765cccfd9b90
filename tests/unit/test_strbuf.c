/* Tests of string buffers (strbuf.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/strbuf.h"

static void test_strbuf_starts_empty_and_grows(void **state)
{
    struct strbuf b = {0};

    (void)state;
    strbuf_add(&b, "");
    assert_string_equal(b.at, "");
    for (int i = 0; i < 1000; i++) {
        strbuf_add(&b, "ab");
        strbuf_addf(&b, "%03d", i);
    }
    assert_int_equal(b.n, 5000);
    assert_int_equal(strlen(b.at), 5000);
    assert_memory_equal(b.at + 4995, "ab999", 5);
    strbuf_finish(&b);
    assert_null(b.at);
    assert_int_equal(b.n, 0);
    strbuf_finish(&b);
    strbuf_finish(NULL);
}

static void test_strbuf_addn_takes_part_of_a_string(void **state)
{
    struct strbuf b = {0};

    (void)state;
    strbuf_addn(&b, "abcdef", 3);
    strbuf_addn(&b, NULL, 0);
    assert_string_equal(b.at, "abc");
    strbuf_finish(&b);
}

static void test_strbuf_addf_longer_than_any_guess(void **state)
{
    struct strbuf b = {0};
    char word[5001];

    (void)state;
    memset(word, 'y', 5000);
    word[5000] = '\0';
    strbuf_addf(&b, "<%s>", word);
    assert_int_equal(b.n, 5002);
    assert_int_equal(b.at[0], '<');
    assert_int_equal(b.at[5001], '>');
    strbuf_finish(&b);
}

static void test_strbuf_addf_keeps_every_length_whole(void **state)
{
    (void)state;
    for (int n = 0; n < 300; n++) {
        struct strbuf b = {0};
        strbuf_add(&b, ".");
        strbuf_addf(&b, "%*s", n, n ? "x" : "");
        assert_int_equal(b.n, n + 1);
        assert_int_equal(strlen(b.at), n + 1);
        assert_int_equal(b.at[n], n ? 'x' : '.');
        strbuf_finish(&b);
    }
}

static void check_json(const char *text, const char *want)
{
    struct strbuf b = {0};

    strbuf_add_json(&b, text);
    assert_string_equal(b.at, want);
    strbuf_finish(&b);
}

static void test_strbuf_json_escapes_what_json_forbids(void **state)
{
    (void)state;
    check_json("", "\"\"");
    check_json("a/b", "\"a/b\"");
    check_json("say \"hi\" \\", "\"say \\\"hi\\\" \\\\\"");
    check_json("\b\t\n\v\f\r", "\"\\b\\t\\n\\u000b\\f\\r\"");
    check_json("\x01\x1f\x7f", "\"\\u0001\\u001f\\u007f\"");
    check_json("\xC3\xA9\xF0\x9F\x8E\xB5", "\"\xC3\xA9\xF0\x9F\x8E\xB5\"");
}

static void test_strbuf_json_replaces_broken_utf8(void **state)
{
    (void)state;
    check_json("a\xFFz\xE2\x82", "\"a\xEF\xBF\xBDz\xEF\xBF\xBD\xEF\xBF\xBD\"");
}

static void check_bytes(unsigned long long bytes, const char *want)
{
    struct strbuf b = {0};

    strbuf_add_bytes(&b, bytes);
    assert_string_equal(b.at, want);
    strbuf_finish(&b);
}

static void test_strbuf_bytes_are_readable(void **state)
{
    (void)state;
    check_bytes(0, "0 B");
    check_bytes(12, "12 B");
    check_bytes(1023, "1023 B");
    check_bytes(1024, "1.00 KiB");
    check_bytes(1610612736, "1.50 GiB");
    check_bytes((1ull << 20) - 1, "1.00 MiB"); /* not 1024.00 KiB */
    check_bytes((1ull << 30) - 1, "1.00 GiB");
    check_bytes(1000ull << 30, "1000.00 GiB");
    check_bytes(~0ull, "16.00 EiB");
}

/* After the failure every addition does nothing, and the earlier content stays. */
static void test_strbuf_that_may_fail_remembers_it(void **state)
{
    struct strbuf b = {.mode = STRBUF_FAILS};

    (void)state;
    strbuf_add(&b, "kept");
    mem_fail_nth(1);
    strbuf_addf(&b, "%200d", 7);
    assert_true(mem_has_failed());
    strbuf_add(&b, "x");
    strbuf_addf(&b, "%d", 7);
    strbuf_add_json(&b, "y");
    assert_int_equal(strbuf_status(&b), -ENOMEM);
    assert_string_equal(b.at, "kept");
    assert_int_equal(b.n, 4);
    strbuf_finish(&b);
    assert_int_equal(strbuf_status(&b), 0);
    mem_fail_nth(1);
    strbuf_add(&b, "z");
    assert_int_equal(strbuf_status(&b), -ENOMEM); /* the mode stays */
    strbuf_finish(&b);
}

static void test_strbuf_fixed_never_allocates_and_ends_where_its_room_ends(void **state)
{
    char room[8];
    struct strbuf b = strbuf_fixed(room, sizeof room);

    (void)state;
    mem_fail_nth(1);
    strbuf_add(&b, "abc");
    strbuf_addf(&b, "%d", 4567);
    assert_int_equal(strbuf_status(&b), 0);
    assert_string_equal(room, "abc4567");
    strbuf_addf(&b, "%d", 8);
    assert_int_equal(strbuf_status(&b), -ENOMEM);
    assert_string_equal(room, "abc4567");
    assert_false(mem_has_failed());
    mem_fail_nth(0);
    strbuf_finish(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strbuf_that_may_fail_remembers_it),
        cmocka_unit_test(test_strbuf_fixed_never_allocates_and_ends_where_its_room_ends),
        cmocka_unit_test(test_strbuf_starts_empty_and_grows),
        cmocka_unit_test(test_strbuf_addn_takes_part_of_a_string),
        cmocka_unit_test(test_strbuf_addf_longer_than_any_guess),
        cmocka_unit_test(test_strbuf_addf_keeps_every_length_whole),
        cmocka_unit_test(test_strbuf_json_escapes_what_json_forbids),
        cmocka_unit_test(test_strbuf_json_replaces_broken_utf8),
        cmocka_unit_test(test_strbuf_bytes_are_readable),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
