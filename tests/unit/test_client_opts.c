/* Tests the option parser, and how the resource flags change a job. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/opts.h"
#include "client/job_file.h"

static const struct opt table[] = {
    {"all", 'a', NULL, "everything"}, {"key", 'k', "K", "the key"}, {"since", 0, "SEQ", "from there"}, {0}};
static const struct opt common[] = {{"json", 0, NULL, "as JSON"}, {"quiet", 'q', NULL, "less"}, {0}};

#define MAX_WORDS 12

/* Parses words that end with NULL. The memory stays until the next call. */
static int parse(struct args *ret, struct err *err, bool first_only, ...)
{
    static char *argv[MAX_WORDS];
    va_list ap;
    int argc = 0;
    va_start(ap, first_only);
    for (char *word; (word = va_arg(ap, char *)) != NULL;)
        argv[argc++] = word;
    va_end(ap);
    return opts_parse(table, common, argc, argv, first_only, ret, err);
}

static void test_options_and_words_mix(void **state)
{
    struct args a;
    struct err err = {0};
    (void)state;
    assert_int_equal(
        parse(&a, &err, false, "3", "--key", "x", "-q", "4", "--since=7", "-", "--", "--all", NULL), 0);
    assert_int_equal(a.n_rest, 4);
    assert_string_equal(a.rest[0], "3");
    assert_string_equal(a.rest[1], "4");
    assert_string_equal(a.rest[2], "-");
    assert_string_equal(a.rest[3], "--all");
    assert_string_equal(opts_get(&a, "key"), "x");
    assert_string_equal(opts_get(&a, "since"), "7");
    assert_true(opts_has(&a, "quiet"));
    assert_false(opts_has(&a, "all"));
    assert_null(opts_get(&a, "json"));
}

static void test_repeated_option_is_counted_and_its_last_value_counts(void **state)
{
    struct args a;
    struct err err = {0};
    (void)state;
    assert_int_equal(parse(&a, &err, false, "--key", "x", "-a", "-ky", "--json", "--json", NULL), 0);
    assert_string_equal(opts_get(&a, "key"), "y");
    assert_int_equal(a.times[0], 1); /* --all */
    assert_int_equal(a.times[1], 2); /* --key */
    assert_int_equal(a.times[2], 0); /* --since */
}

static void test_letters_cluster(void **state)
{
    struct args a;
    struct err err = {0};
    (void)state;
    assert_int_equal(parse(&a, &err, false, "-aqk", "v", NULL), 0);
    assert_true(opts_has(&a, "all") && opts_has(&a, "quiet"));
    assert_string_equal(opts_get(&a, "key"), "v");
    assert_int_equal(parse(&a, &err, false, "-kv", NULL), 0);
    assert_string_equal(opts_get(&a, "key"), "v");
}

static void test_first_word_ends_the_global_options(void **state)
{
    struct args a;
    struct err err = {0};
    (void)state;
    assert_int_equal(parse(&a, &err, true, "-q", "ls", "--unknown", "x", NULL), 0);
    assert_int_equal(a.n_rest, 3);
    assert_string_equal(a.rest[0], "ls");
    assert_string_equal(a.rest[1], "--unknown");
}

static void test_mistakes_are_explained(void **state)
{
    static const struct {
        char *words[3];
        const char *want;
    } cases[] = {
        {{"--al"}, "unknown option --al; did you mean --all?"},
        {{"--jsom=1"}, "unknown option --jsom=1; did you mean --json?"},
        {{"--completely-different"}, "unknown option --completely-different"},
        {{"-x"}, "unknown option -x"},
        {{"--key"}, "--key needs a value: --key K"},
        {{"-k"}, "-k needs a value: -k K"},
        {{"--all=1"}, "--all takes no value"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct args a;
        struct err err = {0};
        assert_int_equal(parse(&a, &err, false, cases[i].words[0], NULL), -EINVAL);
        assert_string_equal(err.msg, cases[i].want);
    }
}

static void test_numbers_are_whole(void **state)
{
    static const char *const wrong[] = {"",   "-1", "+1", " 1", "1x", "0x1", "1.5", "18446744073709551616",
                                        "11", "0"};
    struct err err = {0};
    uint64_t n = 77;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(opts_number(wrong[i], "id", 1, 10, &n, &err), -EINVAL);
    assert_int_equal(n, 77);
    assert_int_equal(opts_number("10", "id", 1, 10, &n, &err), 0);
    assert_int_equal(n, 10);
}

static void test_help_lists_every_row(void **state)
{
    struct strbuf b = {0};
    (void)state;
    opts_help(table, &b);
    assert_string_equal(b.at, "  -a, --all                   everything\n"
                              "  -k, --key K                 the key\n"
                              "      --since SEQ             from there\n");
    strbuf_finish(&b);
}

/* ---- the job ---- */

static const struct opt spec_opts[] = {JOB_FILE_OPTS, {0}};

/* The job as it would be sent, or NULL with *err. */
static char *read_spec(const char *text, int argc, char **argv, struct err *err)
{
    char path[] = "/tmp/tutti-test-XXXXXX", *spec = NULL;
    struct args a;
    int fd = mkstemp(path);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    assert_int_equal(opts_parse(spec_opts, NULL, argc, argv, false, &a, err), 0);
    job_file_read(path, &a, &spec, err);
    unlink(path);
    return spec;
}

static void test_spec_is_sent_as_strict_json(void **state)
{
    struct err err = {0};
    char *spec = read_spec("{ \"name\": \"a\", // why\n \"x\": [1, 2.50] }", 0, NULL, &err);
    (void)state;
    assert_string_equal(spec, "{\"name\":\"a\",\"x\":[1,2.5]}");
    free(spec);
}

static void test_flags_are_written_into_the_spec(void **state)
{
    struct err err = {0};
    char *flags[] = {"--devices", "3", "--device-memory", "64MiB", "--policy", "stream", "--output", "o\"p"};
    char *spec = read_spec(
        "{\"resources\":{\"devices\":{\"min\":1},\"host_memory\":5},\"output\":\"x\",\"name\":\"a\"}", 8,
        flags, &err);
    (void)state;
    assert_string_equal(
        spec, "{\"name\":\"a\",\"resources\":{\"host_memory\":5,\"devices\":3,\"device_memory\":67108864},"
              "\"memory\":{\"policy\":\"stream\"},\"output\":\"o\\\"p\"}");
    free(spec);
}

static void test_wrong_files_and_flags_are_refused(void **state)
{
    static const char *const texts[] = {"", "[]", "{\"a\":1,\"a\":2}", "{", "nonsense"};
    char *zero[] = {"--devices", "0"}, *size[] = {"--device-memory", "12parsecs"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct err err = {0};
        assert_null(read_spec(texts[i], 0, NULL, &err));
        assert_true(err.code < 0);
    }
    struct err err = {0};
    assert_null(read_spec("{}", 2, zero, &err));
    assert_non_null(strstr(err.msg, "--devices"));
    assert_null(read_spec("{}", 2, size, &err));
    assert_string_equal(err.path, "--device-memory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_and_words_mix),
        cmocka_unit_test(test_repeated_option_is_counted_and_its_last_value_counts),
        cmocka_unit_test(test_letters_cluster),
        cmocka_unit_test(test_first_word_ends_the_global_options),
        cmocka_unit_test(test_mistakes_are_explained),
        cmocka_unit_test(test_numbers_are_whole),
        cmocka_unit_test(test_help_lists_every_row),
        cmocka_unit_test(test_spec_is_sent_as_strict_json),
        cmocka_unit_test(test_flags_are_written_into_the_spec),
        cmocka_unit_test(test_wrong_files_and_flags_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
