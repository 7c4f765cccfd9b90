/* Tests the JSON parser: which texts it refuses and with which messages, which values it reads, and that
 * hostile input does no harm. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/rng.h"
#include "base/strbuf.h"

/* -------------------------------------------------------------------------------------------- helpers */

static struct json *parse(const char *text)
{
    struct json *doc = NULL;
    struct err err;

    if (json_parse(text, strlen(text), "job.json", false, &doc, &err) < 0)
        fail_msg("%s: refused: %s: %s", text, err.path, err.msg);
    return doc;
}

/* The document is refused at `path` with `part` in the message. */
static void check_refused_n(const char *text, size_t bytes, const char *path, const char *part)
{
    struct json *doc = (struct json *)&doc; /* must stay as it is */
    struct err err;
    int r = json_parse(text, bytes, "job.json", false, &doc, &err);

    if (r >= 0)
        fail_msg("accepted: %.60s", text);
    assert_int_equal(r, err.code);
    assert_ptr_equal(doc, &doc);
    assert_string_equal(err.path, path);
    if (!strstr(err.msg, part))
        fail_msg("%.60s: \"%s\" does not say \"%s\"", text, err.msg, part);
    assert_int_equal(json_parse(text, bytes, "job.json", false, &doc, NULL), r);
}

static void check_refused(const char *text, const char *path, const char *part)
{
    check_refused_n(text, strlen(text), path, part);
}

static void check_err(const struct err *err, const char *path, const char *msg)
{
    assert_string_equal(err->path, path);
    assert_string_equal(err->msg, msg);
}

static void check_prints(const char *text, const char *want)
{
    struct json *doc = parse(text);
    char *printed = json_print(doc);

    assert_string_equal(printed, want);
    free(printed);
    json_free(doc);
}

/* -------------------------------------------------------------------------------------------- grammar */

static void test_parse_accepts_all_of_json(void **state)
{
    (void)state;
    check_prints("{}", "{}");
    check_prints(" [ ] \r\n\t", "[]");
    check_prints("null", "null");
    check_prints("[true,false,null]", "[true,false,null]");
    check_prints("[0,-0,10,-7,1.5,1e3,1E+2,25e-1]", "[0,-0,10,-7,1.5,1000,100,2.5]");
    check_prints("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\\"\\\\/\\b\\f\\n\\r\\t\"");
    check_prints("\"\\u00e9 \\uD83C\\uDFB5 \xC3\xA9\"", "\"\xC3\xA9 \xF0\x9F\x8E\xB5 \xC3\xA9\"");
    check_prints("{\"b\":{\"a\":[{}]},\"a\":\"\"}", "{\"b\":{\"a\":[{}]},\"a\":\"\"}");
    check_prints("{\"a\":1,\"A\":2,\"\":3}", "{\"a\":1,\"A\":2,\"\":3}");
}

static void test_parse_refuses_bad_numbers(void **state)
{
    (void)state;
    check_refused("01", "job.json:1:1", "leading zeros");
    check_refused("[-012]", "job.json:1:2", "leading zeros");
    check_refused("+1", "job.json:1:1", "not with '+'");
    check_refused("1.", "job.json:1:1", "decimal point");
    check_refused("[.5]", "job.json:1:2", "write 0.5");
    check_refused("1e", "job.json:1:1", "exponent");
    check_refused("1e+", "job.json:1:1", "exponent");
    check_refused("-", "job.json:1:1", "digit");
    check_refused("-x", "job.json:1:1", "digit");
    check_refused("{\"a\": NaN}", "job.json:1:7", "no NaN");
    check_refused("-Infinity", "job.json:1:1", "digit");
    check_refused("[Infinity]", "job.json:1:2", "no Infinity");
    check_refused("0x10", "job.json:1:2", "expected the end");
    check_refused("1 2", "job.json:1:3", "expected the end");
    check_refused("1e999", "", "too large");
    check_refused("{\"a\":[0,-1e400]}", "a[1]", "too large");
    check_refused("[1234567890123456789012345678901234567890123456789012345678901234]", "job.json:1:2",
                  "at most 63");
}

static void test_parse_refuses_bad_strings(void **state)
{
    (void)state;
    check_refused("[\"a\nb\"]", "job.json:1:4", "span lines");
    check_refused("\"a\tb\"", "job.json:1:3", "\\u0009");
    check_refused("\"abc", "job.json:1:1", "never closed");
    check_refused("\"abc\\", "job.json:1:5", "not an escape");
    check_refused("\"\\x\"", "job.json:1:2", "not an escape");
    check_refused("\"\\u12\"", "job.json:1:2", "four hexadecimal");
    check_refused("\"\\u12", "job.json:1:2", "four hexadecimal");
    check_refused("\"\\u12g4\"", "job.json:1:2", "four hexadecimal");
    check_refused("\"\\ud800\"", "job.json:1:2", "surrogate");
    check_refused("\"\\udc00\"", "job.json:1:2", "surrogate");
    check_refused("\"\\ud800\\u0041\"", "job.json:1:2", "surrogate");
    check_refused("\"\\ud800\\ud800\"", "job.json:1:2", "surrogate");
    check_refused("\"\\ud800\\", "job.json:1:2", "surrogate");
    check_refused("\"a\\u0000b\"", "job.json:1:3", "\\u0000 is not supported");
    check_refused("\"\xFF\"", "job.json:1:2", "0xff is not valid UTF-8");
    check_refused("\"\xC3\xA9\xC0\x80\"", "job.json:1:3", "0xc0");
    check_refused("\"\xED\xA0\x80\"", "job.json:1:2", "0xed");
    check_refused("'a'", "job.json:1:1", "double quotes");
    check_refused_n("\"a\0b\"", 5, "job.json:1:3", "NUL byte");
    check_refused_n("[1]\0", 4, "job.json:1:4", "byte 0x00");
}

static void test_parse_refuses_every_raw_control_character(void **state)
{
    (void)state;
    for (char c = 0; c < 0x20; c++)
        check_refused_n((const char[]){'[', '"', c, '"', ']'}, 5, "job.json:1:3", "");
    check_prints("\"\x7f\"", "\"\\u007f\""); /* JSON allows DEL; we print it as an escape */
}

static void test_parse_refuses_bad_structure(void **state)
{
    (void)state;
    check_refused("", "job.json:1:1", "empty");
    check_refused(" \n ", "job.json:2:2", "empty");
    check_refused("{", "job.json:1:2", "ends too early: expected a key");
    check_refused("[1", "job.json:1:3", "ends too early: expected ',' or ']'");
    check_refused("{\"a\"", "job.json:1:5", "expected ':'");
    check_refused("{\"a\":", "job.json:1:6", "expected a value");
    check_refused("{\"a\":}", "job.json:1:6", "expected a value, found '}'");
    check_refused("{\"a\" 1}", "job.json:1:6", "expected ':'");
    check_refused("{\"a\":1 \"b\":2}", "job.json:1:8", "expected ',' or '}', found '\"'");
    check_refused("{\"a\":1,}", "job.json:1:8", "remove the comma");
    check_refused("[1,]", "job.json:1:4", "remove the comma");
    check_refused("[,1]", "job.json:1:2", "expected a value, found ','");
    check_refused("[1}", "job.json:1:3", "expected ',' or ']', found '}'");
    check_refused("{]", "job.json:1:2", "found ']'");
    check_refused("]", "job.json:1:1", "expected a value");
    check_refused("{a:1}", "job.json:1:2", "keys are written in double quotes");
    check_refused("{1:1}", "job.json:1:2", "expected a key");
    check_refused("{} x", "job.json:1:4", "expected the end of the document, found x");
    check_refused("{}{}", "job.json:1:3", "expected the end");
    check_refused("tru", "job.json:1:1", "found tru");
    check_refused("[True]", "job.json:1:2", "true, false and null");
    check_refused("truex", "job.json:1:1", "found truex");
    check_refused("\xEF\xBB\xBF{}", "job.json:1:1", "byte order mark");
    check_refused("[1,\v2]", "job.json:1:4", "byte 0x0b");
    check_refused("{\n  \"a\": 1,\n  \"\xC3\xA9\xC3\xA9\": oops\n}", "job.json:3:9", "found oops");
}

static void test_parse_size_is_capped(void **state)
{
    struct json *doc = NULL;
    struct err err;

    (void)state;
    /* The text is not looked at: one byte stands for a gigabyte. */
    assert_int_equal(json_parse("1", (size_t)JSON_MAX_BYTES + 1, "big", false, &doc, &err), -E2BIG);
    assert_string_equal(err.path, "big");
    assert_null(doc);
}

static void check_depth(int depth, const char *open, const char *close, int want)
{
    struct strbuf b = {0};
    struct json *doc = NULL;
    struct err err = {0};

    for (int i = 0; i < depth; i++)
        strbuf_add(&b, open);
    strbuf_add(&b, "1");
    for (int i = 0; i < depth; i++)
        strbuf_add(&b, close);
    assert_int_equal(json_parse(b.at, b.n, "deep", false, &doc, &err), want);
    if (want < 0)
        assert_non_null(strstr(err.msg, "nested deeper than 32"));
    json_free(doc);
    strbuf_finish(&b);
}

static void test_parse_depth_is_capped(void **state)
{
    (void)state;
    check_depth(JSON_MAX_DEPTH, "[", "]", 0);
    check_depth(JSON_MAX_DEPTH, "{\"a\":", "}", 0);
    check_depth(JSON_MAX_DEPTH + 1, "[", "]", -EINVAL);
    check_depth(JSON_MAX_DEPTH + 1, "{\"a\":", "}", -EINVAL);
    check_depth(1000000, "[", "]", -EINVAL);
    check_depth(1000000, "[", "", -EINVAL);
}

/* ------------------------------------------------------------------------------------------- comments */

static void test_comments_are_blanked_outside_strings(void **state)
{
    const char *text = "// first\n{ \"url\": \"http://x\", // \"not a key\": 1,\n"
                       "  \"q\\\"//\": 2 } // last, \xFF";
    struct json *doc = NULL;
    struct err err;
    char *printed;

    (void)state;
    assert_int_equal(json_parse(text, strlen(text), "job.json", true, &doc, &err), 0);
    printed = json_print(doc);
    assert_string_equal(printed, "{\"url\":\"http://x\",\"q\\\"//\":2}");
    free(printed);
    json_free(doc);
}

static void test_comments_are_refused_on_the_wire(void **state)
{
    (void)state;
    check_refused("{} // no", "job.json:1:4", "comments are not allowed here");
    check_refused("// no\n{}", "job.json:1:1", "comments are not allowed here");
}

static void test_comments_keep_positions_and_have_one_form(void **state)
{
    struct json *doc = NULL;
    struct err err;
    const char *text = "// one\n{ \"a\": 1, // two\n  oops }";

    (void)state;
    assert_int_equal(json_parse(text, strlen(text), "j", true, &doc, &err), -EINVAL);
    assert_string_equal(err.path, "j:3:3");
    assert_int_equal(json_parse("[1 /* x */]", 11, "j", true, &doc, &err), -EINVAL);
    check_err(&err, "j:1:4", "expected a value or punctuation, found '/'; comments begin with //");
    assert_int_equal(json_parse("// only", 7, "j", true, &doc, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "empty"));
    assert_int_equal(json_parse("\"open // \\", 10, "j", true, &doc, &err), -EINVAL);
    assert_int_equal(json_parse("", 0, "j", true, &doc, &err), -EINVAL);
}

/* ----------------------------------------------------------------------------------------- duplicates */

static void test_duplicate_keys_are_refused_with_path(void **state)
{
    struct json *doc = NULL;
    struct err err;
    const char *text = "{\"model\":{\"layers\":[{\"x\":1},{\"out\":1,\"in\":2,\"\\u006fut\":3}]}}";

    (void)state;
    check_refused("{\"a\":1,\"a\":1}", "a", "duplicate key \"a\"");
    assert_int_equal(json_parse(text, strlen(text), "job.json", false, &doc, &err), -EINVAL);
    check_err(&err, "model.layers[1].out", "duplicate key \"out\" in job.json; keep one of them");
    json_free(parse("{\"a\":{\"a\":1},\"b\":{\"a\":2}}"));
}

static void add_many_keys(struct strbuf *b, int n)
{
    strbuf_add(b, "{");
    for (int i = 0; i < n; i++)
        strbuf_addf(b, "%s\"key%d\":%d", i ? "," : "", i, i);
}

static void test_many_keys_are_read_and_the_last_twin_is_found(void **state)
{
    struct strbuf b = {0};
    struct json *doc = NULL;
    struct err err;

    (void)state;
    add_many_keys(&b, 100000);
    size_t n = b.n;
    strbuf_add(&b, "}");
    assert_int_equal(json_parse(b.at, b.n, "many", false, &doc, &err), 0);
    assert_int_equal(json_array_size(doc), 100000);
    json_free(doc);

    doc = NULL;
    b.n = n;
    strbuf_add(&b, ",\"key77\":0}");
    assert_int_equal(json_parse(b.at, b.n, "many", false, &doc, &err), -EINVAL);
    assert_string_equal(err.path, "key77");
    assert_null(doc);
    strbuf_finish(&b);
}

static void test_hostile_key_does_not_overflow_the_path(void **state)
{
    struct strbuf b = {0};
    struct json *doc = NULL;
    struct err err;

    (void)state;
    for (int level = 0; level < 20; level++) {
        strbuf_add(&b, "{\"");
        for (int i = 0; i < 1000; i++)
            strbuf_add(&b, "\xC3\xA9");
        strbuf_add(&b, "\\u001b[2J\":");
    }
    strbuf_add(&b, "{\"a\":1,\"a\":2}");
    for (int level = 0; level < 20; level++)
        strbuf_add(&b, "}");
    assert_int_equal(json_parse(b.at, b.n, "long", false, &doc, &err), -EINVAL);
    assert_true(strlen(err.path) < sizeof err.path);
    assert_null(strchr(err.path, 0x1b));
    strbuf_finish(&b);
}

/* --------------------------------------------------------------------------------------------- values */

static void test_values_are_read(void **state)
{
    struct json *doc = parse("{\"s\":\"x\",\"n\":3,\"d\":0.5,\"t\":true,\"max\":9007199254740991}");
    struct err err;
    const char *s = NULL;
    uint64_t n = 0;
    double d = 0;
    bool t = false;

    (void)state;
    assert_int_equal(json_string(json_get(doc, "s"), "s", &s, &err), 0);
    assert_string_equal(s, "x");
    assert_int_equal(json_u64(json_get(doc, "n"), "n", &n, &err), 0);
    assert_int_equal(n, 3);
    assert_int_equal(json_double(json_get(doc, "d"), "d", &d, &err), 0);
    assert_true(d == 0.5);
    assert_int_equal(json_bool(json_get(doc, "t"), "t", &t, &err), 0);
    assert_true(t);
    assert_int_equal(json_u64(json_get(doc, "max"), "max", &n, &err), 0);
    assert_true(n == (UINT64_C(1) << 53) - 1);
    json_free(doc);
}

static void test_type_errors_name_what_was_found(void **state)
{
    struct json *doc = parse("[\"abc\", 12, \"12\", true, null, {}, [], \"true\"]");
    struct err err;
    const char *s = "kept";
    uint64_t n = 77;
    bool t;
    double d;

    (void)state;
    assert_int_equal(json_double(json_array_at(doc, 0), "a.b", &d, &err), -EINVAL);
    check_err(&err, "a.b", "expected a number, found a string \"abc\"");
    assert_int_equal(json_string(json_array_at(doc, 1), "p", &s, &err), -EINVAL);
    check_err(&err, "p", "expected a string, found the number 12");
    assert_string_equal(s, "kept");
    assert_int_equal(json_u64(json_array_at(doc, 2), "p", &n, &err), -EINVAL);
    check_err(&err, "p", "expected a number, found a string \"12\"; remove the quotes");
    assert_int_equal(n, 77);
    assert_int_equal(json_u64(json_array_at(doc, 3), "p", &n, &err), -EINVAL);
    check_err(&err, "p", "expected a number, found true");
    assert_int_equal(json_bool(json_array_at(doc, 4), "p", &t, &err), -EINVAL);
    check_err(&err, "p", "expected true or false, found null");
    assert_int_equal(json_string(json_array_at(doc, 5), "p", &s, &err), -EINVAL);
    check_err(&err, "p", "expected a string, found an object");
    assert_int_equal(json_string(json_array_at(doc, 6), "p", &s, &err), -EINVAL);
    check_err(&err, "p", "expected a string, found an array");
    assert_int_equal(json_bool(json_array_at(doc, 7), "p", &t, &err), -EINVAL);
    check_err(&err, "p", "expected true or false, found a string \"true\"; remove the quotes");
    assert_int_equal(json_bool(json_array_at(doc, 7), "p", &t, NULL), -EINVAL);
    json_free(doc);
}

static void test_u64_refuses_what_is_no_whole_number_in_range(void **state)
{
    struct json *doc = parse("[-3, 2.5, 9007199254740994, 1e300, 9007199254740992, 9007199254740993]");
    struct err err;
    uint64_t n;

    (void)state;
    assert_int_equal(json_u64(json_array_at(doc, 0), "p", &n, &err), -EINVAL);
    check_err(&err, "p", "must be a whole number from 0 to 2^53 - 1 (9007199254740991), found -3");
    assert_int_equal(json_u64(json_array_at(doc, 1), "p", &n, &err), -EINVAL);
    check_err(&err, "p", "must be a whole number from 0 to 2^53 - 1 (9007199254740991), found 2.5");
    assert_int_equal(json_u64(json_array_at(doc, 2), "p", &n, &err), -EINVAL);
    assert_int_equal(json_u64(json_array_at(doc, 3), "p", &n, &err), -EINVAL);
    check_err(&err, "p", "must be a whole number from 0 to 2^53 - 1 (9007199254740991), found about 1e+300");
    for (size_t i = 4; i < 6;
         i++) { /* 2^53 and 2^53 + 1 read as the same double: neither is taken for the other */
        assert_int_equal(json_u64(json_array_at(doc, i), "p", &n, &err), -EINVAL);
        check_err(&err, "p",
                  "must be a whole number from 0 to 2^53 - 1 (9007199254740991), found about 9.007e+15");
    }
    json_free(doc);
}

static void test_nodes_can_be_walked(void **state)
{
    struct json *doc = parse("{\"a\":[1,[2],3],\"A\":{}}");
    const struct json *a = json_get(doc, "a"), *item;
    int n = 0;

    (void)state;
    assert_int_equal(json_type(doc), JSON_OBJECT);
    assert_int_equal(json_type(a), JSON_ARRAY);
    assert_int_equal(json_type(json_get(doc, "A")), JSON_OBJECT);
    assert_null(json_get(doc, "b"));
    assert_null(json_get(a, "a"));
    assert_int_equal(json_array_size(a), 3);
    for (item = json_array_first(a); item; item = json_array_next(item))
        assert_ptr_equal(item, json_array_at(a, (size_t)n++));
    assert_int_equal(n, 3);
    assert_null(json_array_at(a, 3));
    assert_string_equal(json_key(json_array_first(doc)), "a");
    assert_string_equal(json_key(json_array_next(json_array_first(doc))), "A");
    assert_null(json_key(json_array_first(a)));
    assert_string_equal(json_type_name(JSON_NUMBER), "a number");
    json_free(doc);
    json_free(NULL);
}

/* ---------------------------------------------------------------------------------------------- sizes */

static void test_bytes_are_read_exactly(void **state)
{
    static const struct {
        const char *text;
        uint64_t want;
    } cases[] = {
        {"0", 0},
        {"17", 17},
        {"17B", 17},
        {"1kB", 1000},
        {"1KB", 1000},
        {"1KiB", 1024},
        {"3MB", 3000000},
        {"512MiB", UINT64_C(512) << 20},
        {"9GB", UINT64_C(9000000000)},
        {"9 GB", UINT64_C(9000000000)},
        {"1.5GiB", UINT64_C(3) << 29},
        {"11.5GiB", UINT64_C(23) << 29},
        {"0.1GB", 100000000},
        {"1.10kB", 1100},
        {"2TB", UINT64_C(2000000000000)},
        {"2TiB", UINT64_C(2) << 40},
        {"9e9", UINT64_C(9000000000)},
        {"1.25E+3", 1250},
        {"2500e-2kB", 25000},
        {"0e9999TB", 0},
        {"9007199254740991", (UINT64_C(1) << 53) - 1},
        {"8191TiB", UINT64_C(8191) << 40},
        {"0.0009765625KiB", 1},
    };
    struct err err;
    uint64_t v;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        v = 1234;
        if (json_parse_bytes(cases[i].text, "p", &v, &err) < 0)
            fail_msg("%s: %s", cases[i].text, err.msg);
        if (v != cases[i].want)
            fail_msg("%s: %llu", cases[i].text, (unsigned long long)v);
    }
}

static void test_bytes_refused_with_an_example(void **state)
{
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "is not a size"},
        {"auto", "is not a size"},
        {"-5GB", "is not a size"},
        {"+5GB", "is not a size"},
        {" 5GB", "is not a size"},
        {".5GB", "is not a size"},
        {"5.GB", "is not a size"},
        {"123456789012345678901234567890", "is not a size"},
        {"5G", "no known unit"},
        {"5gb", "no known unit"},
        {"5GBs", "no known unit"},
        {"5e", "no known unit"},
        {"5 GB ", "no known unit"},
        {"1.5", "not a whole number"},
        {"1.5B", "not a whole number"},
        {"1e-1", "not a whole number"},
        {"1e-9999TB", "not a whole number"},
        {"0.0001kB", "not a whole number"},
        {"9007199254740992", "2^53 bytes (8 PiB) or more"},
        {"8192TiB", "2^53 bytes (8 PiB) or more"},
        {"9007199254740993", "2^53 bytes (8 PiB) or more"},
        {"8193TiB", "2^53 bytes (8 PiB) or more"},
        {"1e9999", "2^53 bytes (8 PiB) or more"},
        {"1e99999999999999999999", "2^53 bytes (8 PiB) or more"},
    };
    struct err err;
    uint64_t v = 5;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(json_parse_bytes(cases[i].text, "mem", &v, &err), -EINVAL);
        assert_int_equal(v, 5);
        assert_string_equal(err.path, "mem");
        if (!strstr(err.msg, cases[i].part) || !strstr(err.msg, "\"9GB\""))
            fail_msg("\"%s\": %s", cases[i].text, err.msg);
    }
}

static void test_bytes_take_numbers_and_strings(void **state)
{
    struct json *doc = parse("[4096, \"4KiB\", 9e9, 1.5, -1, true]");
    struct err err;
    uint64_t v;

    (void)state;
    assert_int_equal(json_bytes(json_array_at(doc, 0), "p", &v, &err), 0);
    assert_int_equal(v, 4096);
    assert_int_equal(json_bytes(json_array_at(doc, 1), "p", &v, &err), 0);
    assert_int_equal(v, 4096);
    assert_int_equal(json_bytes(json_array_at(doc, 2), "p", &v, &err), 0);
    assert_true(v == UINT64_C(9000000000));
    for (size_t i = 3; i < 6; i++) {
        assert_int_equal(json_bytes(json_array_at(doc, i), "p", &v, &err), -EINVAL);
        assert_non_null(strstr(err.msg, "\"9GB\""));
    }
    check_err(&err, "p", "expected a size, found true; write bytes as 1000000 or a size such as \"9GB\"");
    json_free(doc);
}

/* ------------------------------------------------------------------------------------------- objects */

static void test_object_is_read_and_defaults_stay(void **state)
{
    struct json *doc =
        parse("{\"batch\":64,\"type\":\"sgd\",\"lr\":0.1,\"on\":true,\"mem\":\"1kB\",\"act\":\"relu\","
              "\"sub\":{}}");
    static const char *const acts[] = {"gelu", "relu", NULL};
    struct json_obj o;
    struct err err;
    uint64_t batch = 0, steps = 100, mem = 0;
    const char *type = NULL, *name = "none";
    double lr = 0;
    bool on = false;
    int act = -1;
    const struct json *sub = NULL;

    (void)state;
    json_obj_begin(&o, doc, "train", &err);
    assert_true(json_take_u64(&o, "batch", JSON_REQUIRED, &batch));
    assert_false(json_take_u64(&o, "steps", JSON_OPTIONAL, &steps));
    assert_true(json_take_string(&o, "type", JSON_REQUIRED, &type));
    assert_false(json_take_string(&o, "name", JSON_OPTIONAL, &name));
    assert_true(json_take_double(&o, "lr", JSON_OPTIONAL, &lr));
    assert_true(json_take_bool(&o, "on", JSON_OPTIONAL, &on));
    assert_true(json_take_bytes(&o, "mem", JSON_OPTIONAL, &mem));
    assert_true(json_take_enum(&o, "act", JSON_OPTIONAL, acts, &act));
    assert_true(json_take(&o, "sub", JSON_REQUIRED, &sub));
    assert_int_equal(json_obj_end(&o), 0);
    assert_int_equal(batch, 64);
    assert_int_equal(steps, 100);
    assert_string_equal(type, "sgd");
    assert_string_equal(name, "none");
    assert_true(lr == 0.1 && on && mem == 1000 && act == 1);
    assert_int_equal(json_type(sub), JSON_OBJECT);
    json_free(doc);
}

/* Reads {"hidden", "classes"} as "model"; `need` for hidden. */
static int read_model(const char *text, enum json_need need, struct err *err)
{
    struct json *doc = parse(text);
    struct json_obj o;
    uint64_t hidden = 0, classes = 0;
    int r;

    json_obj_begin(&o, doc, "model", err);
    json_take_u64(&o, "hidden", need, &hidden);
    json_take_u64(&o, "classes", JSON_OPTIONAL, &classes);
    r = json_obj_end(&o);
    json_free(doc);
    return r;
}

static void test_unknown_key_suggests_the_nearest(void **state)
{
    struct err err;

    (void)state;
    assert_int_equal(read_model("{\"hiden\":1}", JSON_OPTIONAL, &err), -EINVAL);
    check_err(&err, "model.hiden", "unknown key \"hiden\"; did you mean \"hidden\"?");
    assert_int_equal(read_model("{\"hidden\":1,\"Classes\":2}", JSON_REQUIRED, &err), -EINVAL);
    check_err(&err, "model.Classes", "unknown key \"Classes\"; did you mean \"classes\"?");
    assert_int_equal(read_model("{\"hiden\":1}", JSON_OPTIONAL, NULL), -EINVAL);
}

static void test_unknown_key_without_neighbour_lists_the_known(void **state)
{
    struct err err;

    (void)state;
    assert_int_equal(read_model("{\"hidden\":1,\"colour\":2}", JSON_REQUIRED, &err), -EINVAL);
    check_err(&err, "model.colour",
              "unknown key \"colour\"; remove it, known keys are \"hidden\", \"classes\"");
}

static void test_missing_key_is_named(void **state)
{
    struct err err;

    (void)state;
    assert_int_equal(read_model("{\"classes\":1}", JSON_REQUIRED, &err), -EINVAL);
    check_err(&err, "model.hidden", "the required key \"hidden\" is missing; add it");
    /* An unknown key that is no misspelling of it does not hide that. */
    assert_int_equal(read_model("{\"colour\":1}", JSON_REQUIRED, &err), -EINVAL);
    check_err(&err, "model.hidden", "the required key \"hidden\" is missing; add it");
}

static void test_misspelled_required_key_is_suggested(void **state)
{
    struct err err;

    (void)state;
    assert_int_equal(read_model("{\"classes\":1,\"hiddne\":1}", JSON_REQUIRED, &err), -EINVAL);
    check_err(&err, "model.hiddne", "unknown key \"hiddne\"; did you mean \"hidden\"?");
}

/* A key that is offered later is no misspelling of one that is missing. */
static void test_missing_key_is_not_confused_with_a_known_one(void **state)
{
    struct json *doc = parse("{\"beta2\":0.9}");
    struct json_obj o;
    struct err err;
    double b1 = 0, b2 = 0;

    (void)state;
    json_obj_begin(&o, doc, "", &err);
    json_take_double(&o, "beta1", JSON_REQUIRED, &b1);
    json_take_double(&o, "beta2", JSON_REQUIRED, &b2);
    assert_int_equal(json_obj_end(&o), -EINVAL);
    check_err(&err, "beta1", "the required key \"beta1\" is missing; add it");
    json_free(doc);
}

static void test_first_failure_wins(void **state)
{
    struct json *doc = parse("{\"a\":\"x\",\"b\":true,\"zzz\":1}");
    struct json_obj o;
    struct err err;
    uint64_t a = 1, b = 2;

    (void)state;
    json_obj_begin(&o, doc, "", &err);
    assert_false(json_take_u64(&o, "a", JSON_REQUIRED, &a));
    assert_false(json_take_u64(&o, "b", JSON_REQUIRED, &b));
    assert_int_equal(json_fail(&o, "b", -ERANGE, "too big"), -EINVAL);
    assert_int_equal(json_obj_end(&o), -EINVAL);
    check_err(&err, "a", "expected a number, found a string \"x\"");
    assert_int_equal(a, 1);
    assert_int_equal(b, 2);
    json_free(doc);
}

static void test_fail_records_the_callers_own_checks(void **state)
{
    struct json *doc = parse("{\"lr\":-1}");
    struct json_obj o;
    struct err err;
    double lr;

    (void)state;
    json_obj_begin(&o, doc, "optimizer", &err);
    assert_true(json_take_double(&o, "lr", JSON_REQUIRED, &lr));
    assert_int_equal(json_fail(&o, "lr", -ERANGE, "must be above %d", 0), -ERANGE);
    assert_int_equal(json_obj_end(&o), -ERANGE);
    check_err(&err, "optimizer.lr", "must be above 0");

    json_obj_begin(&o, doc, "optimizer", &err);
    assert_true(json_take_double(&o, "lr", JSON_REQUIRED, &lr));
    assert_int_equal(json_fail(&o, NULL, -EINVAL, "not today"), -EINVAL);
    check_err(&err, "optimizer", "not today");
    json_free(doc);
}

static void test_not_an_object_is_an_error(void **state)
{
    struct json *doc = parse("[1]");
    struct json_obj o;
    struct err err;
    uint64_t v;

    (void)state;
    json_obj_begin(&o, doc, "model", &err);
    assert_false(json_take_u64(&o, "x", JSON_REQUIRED, &v));
    assert_int_equal(json_obj_end(&o), -EINVAL);
    check_err(&err, "model", "expected an object, found an array");
    json_obj_begin(&o, NULL, "model", &err);
    assert_int_equal(json_obj_end(&o), -EINVAL);
    check_err(&err, "model", "expected an object, found nothing");
    json_free(doc);
}

static void test_enum_miss_lists_and_suggests(void **state)
{
    static const char *const names[] = {"fp32", "bf16", "fp16", NULL};
    struct json *doc = parse("{\"p\":\"bf61\",\"q\":\"double\",\"r\":3}");
    struct json_obj o;
    struct err err;
    int v = -7;

    (void)state;
    json_obj_begin(&o, doc, "", &err);
    assert_false(json_take_enum(&o, "p", JSON_REQUIRED, names, &v));
    check_err(
        &err, "p",
        "found a string \"bf61\"; did you mean \"bf16\"? It must be one of \"fp32\", \"bf16\", \"fp16\"");
    json_obj_begin(&o, doc, "", &err);
    assert_false(json_take_enum(&o, "q", JSON_REQUIRED, names, &v));
    check_err(&err, "q", "found a string \"double\"; it must be one of \"fp32\", \"bf16\", \"fp16\"");
    json_obj_begin(&o, doc, "", &err);
    assert_false(json_take_enum(&o, "r", JSON_REQUIRED, names, &v));
    check_err(&err, "r", "found the number 3; it must be one of \"fp32\", \"bf16\", \"fp16\"");
    assert_int_equal(v, -7);
    json_free(doc);
}

/* A key may be looked at twice ("auto" or a number) without filling the table. */
static void test_taking_a_key_twice_counts_once(void **state)
{
    struct json *doc = parse("{\"a\":1}");
    struct json_obj o;
    struct err err;
    uint64_t v;

    (void)state;
    json_obj_begin(&o, doc, "", &err);
    for (int i = 0; i < 3 * JSON_MAX_KEYS; i++)
        assert_true(json_take_u64(&o, "a", JSON_REQUIRED, &v));
    assert_int_equal(json_obj_end(&o), 0);
    json_free(doc);
}

static void test_long_lists_of_names_are_cut(void **state)
{
    struct strbuf names = {0};
    struct json *doc = parse("{\"nothing_like_them\":1}");
    const char *at[JSON_MAX_KEYS];
    struct json_obj o;
    struct err err;
    uint64_t v;

    (void)state;
    for (int i = 0; i < JSON_MAX_KEYS; i++)
        strbuf_addf(&names, "a_rather_long_name_of_a_key_number_%02d%c", i, 0);
    json_obj_begin(&o, doc, "", &err);
    for (int i = 0; i < JSON_MAX_KEYS; i++) {
        at[i] = names.at + i * (strlen(names.at) + 1);
        json_take_u64(&o, at[i], JSON_OPTIONAL, &v);
    }
    assert_int_equal(json_obj_end(&o), -EINVAL);
    assert_string_equal(err.path, "nothing_like_them");
    assert_non_null(strstr(err.msg, "a_rather_long_name_of_a_key_number_00"));
    strbuf_finish(&names);
    json_free(doc);
}

/* ------------------------------------------------------------------------------- paths, near names */

static void test_paths_are_joined(void **state)
{
    char buf[64], tiny[8];

    (void)state;
    json_path_key(buf, sizeof buf, "train", "micro_batch");
    assert_string_equal(buf, "train.micro_batch");
    json_path_key(buf, sizeof buf, "", "train");
    assert_string_equal(buf, "train");
    json_path_index(buf, sizeof buf, buf, 3);
    json_path_key(buf, sizeof buf, buf, "x");
    assert_string_equal(buf, "train[3].x");
    json_path_index(buf, sizeof buf, "", 0);
    assert_string_equal(buf, "[0]");
    json_path_key(tiny, sizeof tiny, "abc", "defgh");
    assert_string_equal(tiny, "abc....");
    for (int i = 0; i < 20; i++)
        json_path_index(tiny, sizeof tiny, tiny, 12345);
    assert_int_equal(strlen(tiny), 7);
}

static void check_meant(const char *word, const char *want)
{
    static const char *const names[] = {"hidden", "micro_batch", "global_batch", "lr", "type", "activation",
                                        "x"};
    const char *got = json_did_you_mean(word, names, sizeof names / sizeof *names);

    if (want ? !got || strcmp(got, want) != 0 : got != NULL)
        fail_msg("%s: %s", word, got ? got : "nothing");
}

static void test_did_you_mean_finds_near_names_only(void **state)
{
    char big[5000];

    (void)state;
    check_meant("hiden", "hidden");
    check_meant("hiddens", "hidden");
    check_meant("HIDDEN", "hidden");
    check_meant("microbatch", "micro_batch");
    check_meant("micro-batch", "micro_batch");
    check_meant("mirco_bathc", "micro_batch"); /* two swaps, not four replacements */
    check_meant("tpye", "type");
    check_meant("ir", "lr");
    check_meant("actvation_", "activation");
    check_meant("colour", NULL);
    check_meant("batch", NULL);
    check_meant("y", NULL); /* every letter differs */
    check_meant("", NULL);
    memset(big, 'h', sizeof big);
    big[sizeof big - 1] = '\0';
    check_meant(big, NULL);
    assert_null(json_did_you_mean("a", NULL, 0));
}

/* --------------------------------------------------------------------------------------------- printing */

static void test_print_reads_back_as_the_same_bits(void **state)
{
    static const double values[] = {0.1,
                                    0.30000000000000004,
                                    1.0 / 3,
                                    9007199254740991.0,
                                    9007199254740992.0,
                                    1e-3,
                                    1.7976931348623157e308,
                                    5e-324,
                                    -123456789012345.0,
                                    1e21,
                                    1e16,
                                    2.5e-8,
                                    1e-7};

    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        struct strbuf b = {0};
        struct err err;
        double v = 0;
        strbuf_addf(&b, "%.17g", values[i]);
        struct json *first = parse(b.at), *second;
        char *printed = json_print(first);
        second = parse(printed);
        assert_int_equal(json_double(second, "", &v, &err), 0);
        if (v != values[i])
            fail_msg("%s became %s", b.at, printed);
        free(printed);
        json_free(first);
        json_free(second);
        strbuf_finish(&b);
    }
    check_prints("[9007199254740991,0.1,1e-3,1000000]", "[9007199254740991,0.1,0.001,1000000]");
}

/* --------------------------------------------------------------------------------------------- hostile */

static const char sample[] =
    "{ \"schema\": \"job/v1\", \"name\": \"d\\u00efgits \xF0\x9F\x8E\xB5\",\n"
    "  \"model\": {\"type\": \"mlp\", \"input\": [28, 28], \"hidden\": [1024, 10e2], \"dropout\": 0.1},\n"
    "  \"train\": {\"epochs\": 5, \"lr\": -1.5E-3, \"on\": true, \"off\": false, \"none\": null},\n"
    "  \"esc\": \"\\\"\\\\\\/\\b\\f\\n\\r\\t\\uD83C\\uDFB5\", \"empty\": {}, \"list\": [[], [{}]] } // end";

/* Whatever is accepted must print to something that is accepted and prints the same. Returns 0 or the code.
 * The text is copied to the heap to its exact size, so that the sanitizer sees any read beyond it. */
static int digest(const char *text, size_t bytes, bool comments)
{
    char *copy = malloc(bytes ? bytes : 1), *once, *twice;
    struct json *doc = NULL, *again = NULL;
    struct err err = {0};
    int r;

    memcpy(copy, text, bytes);
    r = json_parse(copy, bytes, "hostile", comments, &doc, &err);
    free(copy);
    if (r < 0) {
        assert_null(doc);
        assert_int_equal(err.code, r);
        assert_int_not_equal(err.msg[0], 0);
        return r;
    }
    once = json_print(doc);
    if (json_parse(once, strlen(once), "again", false, &again, &err) < 0)
        fail_msg("printed what is refused: %s: %s", once, err.msg);
    twice = json_print(again);
    assert_string_equal(once, twice);
    free(once);
    free(twice);
    json_free(doc);
    json_free(again);
    return 0;
}

static void test_hostile_truncation_is_always_refused(void **state)
{
    size_t end = strlen(sample) - strlen(" // end"); /* complete from here on */

    (void)state;
    for (size_t n = 0; n < strlen(sample); n++) {
        int r = digest(sample, n, true);
        /* Right after the first slash of the comment it is no comment yet. */
        if ((n < end || n == end + 2) ? r != -EINVAL : r != 0)
            fail_msg("cut to %zu bytes: %d", n, r);
    }
}

static void test_hostile_bytes_never_crash(void **state)
{
    char text[sizeof sample];

    (void)state;
    memcpy(text, sample, sizeof text);
    for (size_t i = 0; i < sizeof text - 1; i++) {
        for (int bit = 0; bit < 8; bit++) {
            text[i] = (char)(sample[i] ^ 1 << bit);
            digest(text, sizeof text - 1, true);
        }
        for (const char *c = "\"\\{}[],:/u0e-.\n"; *c; c++) {
            text[i] = *c;
            digest(text, sizeof text - 1, true);
        }
        text[i] = 0;
        digest(text, sizeof text - 1, true);
        text[i] = sample[i];
    }
}

static void test_hostile_noise_never_crashes(void **state)
{
    static const char alphabet[] = "{}[]\",:/\\u0019eE+-. \ntrufalsn\x01\x80\xC3\xA9\xF0\xFF";
    struct rng r = {.seed = 2024};
    char text[64];
    int accepted = 0;

    (void)state;
    for (int round = 0; round < 40000; round++) {
        size_t n = rng_below(&r, sizeof text);
        for (size_t i = 0; i < n; i++)
            text[i] = round % 4 ? alphabet[rng_below(&r, sizeof alphabet - 1)] : (char)rng_next(&r);
        if (round % 4 == 2 && n > 1) { /* now and then a string, so that escapes and UTF-8 are reached */
            text[0] = '"';
            text[n - 1] = '"';
        }
        accepted += digest(text, n, round & 1) == 0;
    }
    assert_in_range(accepted, 1, 20000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_accepts_all_of_json),
        cmocka_unit_test(test_parse_refuses_bad_numbers),
        cmocka_unit_test(test_parse_refuses_bad_strings),
        cmocka_unit_test(test_parse_refuses_every_raw_control_character),
        cmocka_unit_test(test_parse_refuses_bad_structure),
        cmocka_unit_test(test_parse_size_is_capped),
        cmocka_unit_test(test_parse_depth_is_capped),
        cmocka_unit_test(test_comments_are_blanked_outside_strings),
        cmocka_unit_test(test_comments_are_refused_on_the_wire),
        cmocka_unit_test(test_comments_keep_positions_and_have_one_form),
        cmocka_unit_test(test_duplicate_keys_are_refused_with_path),
        cmocka_unit_test(test_many_keys_are_read_and_the_last_twin_is_found),
        cmocka_unit_test(test_hostile_key_does_not_overflow_the_path),
        cmocka_unit_test(test_values_are_read),
        cmocka_unit_test(test_type_errors_name_what_was_found),
        cmocka_unit_test(test_u64_refuses_what_is_no_whole_number_in_range),
        cmocka_unit_test(test_nodes_can_be_walked),
        cmocka_unit_test(test_bytes_are_read_exactly),
        cmocka_unit_test(test_bytes_refused_with_an_example),
        cmocka_unit_test(test_bytes_take_numbers_and_strings),
        cmocka_unit_test(test_object_is_read_and_defaults_stay),
        cmocka_unit_test(test_unknown_key_suggests_the_nearest),
        cmocka_unit_test(test_unknown_key_without_neighbour_lists_the_known),
        cmocka_unit_test(test_missing_key_is_named),
        cmocka_unit_test(test_misspelled_required_key_is_suggested),
        cmocka_unit_test(test_missing_key_is_not_confused_with_a_known_one),
        cmocka_unit_test(test_first_failure_wins),
        cmocka_unit_test(test_fail_records_the_callers_own_checks),
        cmocka_unit_test(test_not_an_object_is_an_error),
        cmocka_unit_test(test_enum_miss_lists_and_suggests),
        cmocka_unit_test(test_taking_a_key_twice_counts_once),
        cmocka_unit_test(test_long_lists_of_names_are_cut),
        cmocka_unit_test(test_paths_are_joined),
        cmocka_unit_test(test_did_you_mean_finds_near_names_only),
        cmocka_unit_test(test_print_reads_back_as_the_same_bits),
        cmocka_unit_test(test_hostile_truncation_is_always_refused),
        cmocka_unit_test(test_hostile_bytes_never_crash),
        cmocka_unit_test(test_hostile_noise_never_crashes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
