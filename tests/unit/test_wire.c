/* Tests of the wire protocol: lines are found however the bytes arrive, limits are exact to the byte, refused
 * messages get the right code, and an error reads the same on both sides. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/vec.h"
#include "base/wire.h"

/* ---------------------------------------------------------------------------------------------- lines */

struct line {
    char *at;
    size_t n;
};

struct lines {
    VEC(struct line) all;
    int end; /* what wire_in_line said last: 0, or -EMSGSIZE */
};

static void free_lines(struct lines *l)
{
    for (size_t i = 0; i < l->all.n; i++)
        free(l->all.at[i].at);
    vec_free(&l->all);
}

static void take_lines(struct wire_in *in, struct lines *ret)
{
    char *line;
    size_t n;

    while ((ret->end = wire_in_line(in, &line, &n)) > 0) {
        assert_int_equal(ret->end, 1);
        assert_int_equal(line[n], '\0');
        assert_true(n < in->max);
        char *copy = malloc(n + 1);
        memcpy(copy, line, n + 1);
        vec_push(&ret->all, (struct line){copy, n});
    }
}

/* Feeds `n` bytes as a reader of a socket would: never more at once than the free space, and it takes the
 * complete lines after every piece. */
static void give(struct wire_in *in, const char *bytes, size_t n, struct lines *ret)
{
    while (n > 0 && ret->end == 0) {
        char *room;
        size_t fits;
        wire_in_space(in, &room, &fits);
        assert_true(fits > 0);
        assert_true(in->cap <= in->max);
        if (fits > n)
            fits = n;
        memcpy(room, bytes, fits);
        wire_in_added(in, fits);
        bytes += fits;
        n -= fits;
        take_lines(in, ret);
    }
}

/* Splits a stream that ends in a newline into lines, without the code under test. */
static void split(const char *bytes, size_t n, struct lines *ret)
{
    const char *end = bytes + n;

    while (bytes < end) {
        const char *newline = memchr(bytes, '\n', (size_t)(end - bytes));
        size_t length = (size_t)(newline - bytes);
        char *copy = malloc(length + 1);
        memcpy(copy, bytes, length);
        copy[length] = '\0';
        vec_push(&ret->all, (struct line){copy, length});
        bytes = newline + 1;
    }
}

static void check_same(const struct lines *found, const struct lines *want)
{
    assert_int_equal(found->end, 0);
    assert_int_equal(found->all.n, want->all.n);
    for (size_t i = 0; i < want->all.n; i++) {
        assert_int_equal(found->all.at[i].n, want->all.at[i].n);
        assert_memory_equal(found->all.at[i].at, want->all.at[i].at, want->all.at[i].n + 1);
    }
}

static const char stream[] =
    "{\"a\":1}\n\n\r\n\0\nbc\0d\n\xff\xfe\0\0\n0123456789012345\n\nx\n\0\0\0\n last\n";
#define STREAM_BYTES (sizeof stream - 1)

static void check_cut(const size_t *cuts, size_t n_cuts, size_t max)
{
    struct lines found = {0}, want = {0};
    struct wire_in in;
    size_t from = 0;

    split(stream, STREAM_BYTES, &want);
    wire_in_init(&in, max);
    for (size_t i = 0; i <= n_cuts; i++) {
        size_t to = i < n_cuts ? cuts[i] : STREAM_BYTES;
        give(&in, stream + from, to - from, &found);
        from = to;
    }
    check_same(&found, &want);
    assert_false(wire_in_partial(&in));
    wire_in_finish(&in);
    free_lines(&found);
    free_lines(&want);
}

static void test_lines_are_the_same_at_every_two_cuts(void **state)
{
    (void)state;
    for (size_t a = 0; a <= STREAM_BYTES; a++)
        for (size_t b = a; b <= STREAM_BYTES; b++)
            check_cut((const size_t[]){a, b}, 2, 17); /* the longest line, to the byte */
}

static void test_lines_are_the_same_in_pieces_of_every_size(void **state)
{
    (void)state;
    for (size_t piece = 1; piece <= STREAM_BYTES; piece++) {
        size_t cuts[STREAM_BYTES], n = 0;
        for (size_t at = piece; at < STREAM_BYTES; at += piece)
            cuts[n++] = at;
        for (size_t max = 17; max < 40; max++)
            check_cut(cuts, n, max);
        check_cut(cuts, n, WIRE_LINE_MAX);
    }
}

/* Lines on both sides of the buffer's first size and of its growth. */
static void test_long_lines_survive_random_pieces(void **state)
{
    static const size_t lengths[] = {0,    1, 4094,  4095, 4096, 4097,  0,    8191,
                                     8192, 3, 20000, 0,    1,    65535, 70000};
    struct lines want = {0};
    struct strbuf all = {0};
    struct rng rng = {.seed = 5};
    (void)state;

    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        for (size_t k = 0; k < lengths[i]; k++) {
            char c = (char)rng_below(&rng, 256);
            strbuf_addn(&all, c == '\n' ? "\0" : &c, 1);
        }
        strbuf_addn(&all, "\n", 1);
    }
    split(all.at, all.n, &want);
    for (int round = 0; round < 40; round++) {
        struct lines found = {0};
        struct wire_in in;
        uint32_t most = round < 8 ? 7 : round < 20 ? 5000 : 40000;
        wire_in_init(&in, round % 2 ? 70001 : WIRE_LINE_MAX);
        for (size_t at = 0; at < all.n;) {
            size_t n = 1 + rng_below(&rng, most);
            n = n < all.n - at ? n : all.n - at;
            give(&in, all.at + at, n, &found);
            at += n;
        }
        check_same(&found, &want);
        wire_in_finish(&in);
        free_lines(&found);
    }
    strbuf_finish(&all);
    free_lines(&want);
}

/* Before the long line: `before` empty ones, so that it does not begin where the buffer does. */
static int end_of_line_of(size_t bytes, size_t max, size_t before, size_t piece)
{
    struct lines found = {0};
    struct wire_in in;
    char *text = malloc(before + bytes + 1);
    int end;

    memset(text, '\n', before);
    memset(text + before, 'x', bytes);
    text[before + bytes] = '\n';
    wire_in_init(&in, max);
    for (size_t at = 0; at < before + bytes + 1 && found.end == 0; at += piece) {
        size_t left = before + bytes + 1 - at;
        give(&in, text + at, left < piece ? left : piece, &found);
    }
    end = found.end;
    if (end == 0) {
        assert_int_equal(found.all.n, before + 1);
        assert_int_equal(found.all.at[before].n, bytes);
    } else { /* it stays so, and there is no room */
        char *line;
        size_t n = 1;
        assert_int_equal(wire_in_line(&in, &line, &n), end);
        assert_true(wire_in_partial(&in));
        wire_in_space(&in, &line, &n);
        assert_int_equal(n, 0);
        assert_int_equal(found.all.n, before);
    }
    wire_in_finish(&in);
    free(text);
    free_lines(&found);
    return end;
}

static void test_limit_is_exact_to_the_byte(void **state)
{
    static const size_t limits[] = {
        1, 2, 3, 16, 100, 4095, 4096, 4097, 8191, 10000, 65536, WIRE_LINE_MAX, WIRE_WORKER_LINE_MAX};
    (void)state;

    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        size_t max = limits[i];
        for (size_t before = 0; before < 3; before++) {
            for (size_t piece = max > 8192 ? 4096 : 1; piece < 3 * max; piece = 2 * piece + 1) {
                assert_int_equal(end_of_line_of(max - 1, max, before, piece), 0);
                assert_int_equal(end_of_line_of(max, max, before, piece), -EMSGSIZE);
                assert_int_equal(end_of_line_of(max + 1, max, before, piece), -EMSGSIZE);
            }
        }
    }
}

static void test_memory_stays_at_one_line(void **state)
{
    struct lines found = {0};
    struct wire_in in;
    (void)state;

    wire_in_init(&in, 5000);
    for (int i = 0; i < 2000; i++) {
        give(&in, stream, STREAM_BYTES, &found);
        assert_true(in.cap <= 4096); /* short lines never make it grow */
        free_lines(&found);
    }
    wire_in_finish(&in);
    assert_null(in.at);
    assert_int_equal(in.max, 5000);
    wire_in_finish(&in); /* again does no harm */
}

static void test_partial_says_whether_a_line_began(void **state)
{
    struct lines found = {0};
    struct wire_in in;
    (void)state;

    wire_in_init(&in, 100);
    assert_false(wire_in_partial(&in));
    give(&in, "a", 1, &found);
    assert_true(wire_in_partial(&in));
    give(&in, "b\n", 2, &found);
    assert_false(wire_in_partial(&in));
    give(&in, "c\nd", 3, &found);
    assert_true(wire_in_partial(&in));
    give(&in, "\n", 1, &found);
    assert_false(wire_in_partial(&in));
    give(&in, "\0", 1, &found);
    assert_true(wire_in_partial(&in));
    give(&in, "\n\n\n", 3, &found);
    assert_false(wire_in_partial(&in));
    assert_int_equal(found.all.n, 6);
    wire_in_finish(&in);
    free_lines(&found);
}

/* ------------------------------------------------------------------------------------------- messages */

static void check_refused_n(const char *text, size_t n, enum wire_code want, const char *part, const char *id)
{
    struct wire_msg m;
    enum wire_code code;
    struct err err = {0};
    int r = wire_parse(text, n, 0, &m, &code, &err);

    if (r >= 0)
        fail_msg("accepted: %.80s", text);
    assert_int_equal(r, err.code);
    if (code != want || strstr(err.msg, part) == NULL)
        fail_msg("%.80s: %d %s", text, code, err.msg);
    assert_string_equal(m.id, id != NULL ? id : "");
    wire_msg_finish(&m);
    wire_msg_finish(&m);
    assert_true(wire_parse(text, n, 0, &m, &code, NULL) < 0); /* err may be NULL */
    wire_msg_finish(&m);
}

static void check_refused(const char *text, enum wire_code want, const char *part, const char *id)
{
    check_refused_n(text, strlen(text), want, part, id);
}

static void test_what_is_not_json_is_a_parse_error(void **state)
{
    char deep[200];
    (void)state;

    check_refused("", WIRE_PARSE_ERROR, "empty", NULL);
    check_refused(" ", WIRE_PARSE_ERROR, "empty", NULL);
    check_refused("{", WIRE_PARSE_ERROR, "ends too early", NULL);
    check_refused("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"", WIRE_PARSE_ERROR, "ends too early",
                  NULL);
    check_refused("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}}", WIRE_PARSE_ERROR,
                  "end of the document", NULL);
    check_refused("{} {}", WIRE_PARSE_ERROR, "end of the document", NULL);
    check_refused("{} // x", WIRE_PARSE_ERROR, "comments", NULL);
    check_refused("\x01\x02\x03", WIRE_PARSE_ERROR, "0x01", NULL);
    check_refused("{\"id\":1,\"id\":2}", WIRE_PARSE_ERROR, "duplicate key", NULL);
    check_refused("{\"a\":{\"b\":1,\"b\":1}}", WIRE_PARSE_ERROR, "duplicate key", NULL);
    check_refused("{\"id\":1e999}", WIRE_PARSE_ERROR, "too large", NULL);
    check_refused("{\"id\":01}", WIRE_PARSE_ERROR, "leading zeros", NULL);
    check_refused("{\"id\":NaN}", WIRE_PARSE_ERROR, "NaN", NULL);
    check_refused("{\"id\":\"\\u0000\"}", WIRE_PARSE_ERROR, "\\u0000", NULL);
    check_refused("{\"id\":\"\\ud800\"}", WIRE_PARSE_ERROR, "surrogate", NULL);
    check_refused("{\"id\":\"\xc3\"}", WIRE_PARSE_ERROR, "UTF-8", NULL);
    check_refused("{\"id\":\"\xed\xa0\x80\"}", WIRE_PARSE_ERROR, "UTF-8", NULL);
    check_refused("\xef\xbb\xbf{}", WIRE_PARSE_ERROR, "byte order mark", NULL);
    check_refused_n("{}\0", 3, WIRE_PARSE_ERROR, "0x00", NULL);
    check_refused_n("{\"a\0\":1}", 8, WIRE_PARSE_ERROR, "NUL", NULL);
    memset(deep, '[', 100);
    check_refused_n(deep, 100, WIRE_PARSE_ERROR, "deeper than 32", NULL);
}

static void test_parse_errors_say_line_and_column(void **state)
{
    struct wire_msg m;
    enum wire_code code;
    struct err err;
    (void)state;

    assert_true(wire_parse("{\"id\": x}", 9, 0, &m, &code, &err) < 0);
    assert_string_equal(err.path, "line:1:8");
    wire_msg_finish(&m);
}

static void test_json_that_is_no_request_says_why(void **state)
{
    (void)state;
    check_refused("[]", WIRE_INVALID_REQUEST, "batches", NULL);
    check_refused("[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]", WIRE_INVALID_REQUEST, "batches",
                  NULL);
    check_refused("1", WIRE_INVALID_REQUEST, "object", NULL);
    check_refused("\"x\"", WIRE_INVALID_REQUEST, "object", NULL);
    check_refused("null", WIRE_INVALID_REQUEST, "object", NULL);
    check_refused("true", WIRE_INVALID_REQUEST, "object", NULL);
    check_refused("{}", WIRE_INVALID_REQUEST, "jsonrpc", NULL);
    check_refused("{\"id\":1}", WIRE_INVALID_REQUEST, "jsonrpc", "1");
    check_refused("{\"id\":\"x\",\"jsonrpc\":\"1.0\",\"method\":\"ping\"}", WIRE_INVALID_REQUEST, "jsonrpc",
                  "\"x\"");
    check_refused("{\"id\":7,\"jsonrpc\":2.0,\"method\":\"ping\"}", WIRE_INVALID_REQUEST, "jsonrpc", "7");
    check_refused("{\"id\":7,\"jsonrpc\":null,\"method\":\"ping\"}", WIRE_INVALID_REQUEST, "jsonrpc", "7");
    check_refused("{\"id\":7,\"jsonrpc\":\"2.0 \",\"method\":\"ping\"}", WIRE_INVALID_REQUEST, "jsonrpc",
                  "7");
    check_refused("{\"id\":{},\"jsonrpc\":\"2.0\",\"method\":\"ping\"}", WIRE_INVALID_REQUEST, "\"id\"",
                  NULL);
    check_refused("{\"id\":[1],\"jsonrpc\":\"2.0\",\"method\":\"ping\"}", WIRE_INVALID_REQUEST, "\"id\"",
                  NULL);
    check_refused("{\"id\":true,\"jsonrpc\":\"2.0\",\"method\":\"ping\"}", WIRE_INVALID_REQUEST, "\"id\"",
                  NULL);
    check_refused("{\"id\":1,\"jsonrpc\":\"2.0\"}", WIRE_INVALID_REQUEST, "needs one of", "1");
    check_refused("{\"id\":1,\"jsonrpc\":\"2.0\",\"method\":5}", WIRE_INVALID_REQUEST, "\"method\"", "1");
    check_refused("{\"id\":1,\"jsonrpc\":\"2.0\",\"method\":null}", WIRE_INVALID_REQUEST, "\"method\"", "1");
    check_refused("{\"id\":1,\"jsonrpc\":\"2.0\",\"method\":[\"ping\"]}", WIRE_INVALID_REQUEST, "\"method\"",
                  "1");
    check_refused("{\"id\":1,\"jsonrpc\":\"2.0\",\"Method\":\"ping\"}", WIRE_INVALID_REQUEST, "needs one of",
                  "1");
    check_refused("{\"id\":1,\"jsonrpc\":\"2.0\",\"method\":\"ping\",\"params\":[]}", WIRE_INVALID_REQUEST,
                  "\"params\"", "1");
    check_refused("{\"id\":1,\"jsonrpc\":\"2.0\",\"method\":\"ping\",\"params\":null}", WIRE_INVALID_REQUEST,
                  "\"params\"", "1");
    check_refused("{\"id\":1,\"jsonrpc\":\"2.0\",\"method\":\"ping\",\"params\":\"x\"}", WIRE_INVALID_REQUEST,
                  "\"params\"", "1");
    check_refused("{\"id\":1,\"jsonrpc\":\"2.0\",\"result\":1,\"error\":{}}", WIRE_INVALID_REQUEST,
                  "needs one of", "1");
    check_refused("{\"id\":1,\"jsonrpc\":\"2.0\",\"error\":1}", WIRE_INVALID_REQUEST, "\"error\"", "1");
    check_refused("{\"id\":1,\"jsonrpc\":\"2.0\",\"error\":null}", WIRE_INVALID_REQUEST, "\"error\"", "1");
}

static struct wire_msg parse(const char *text)
{
    struct wire_msg m;
    enum wire_code code;
    struct err err;

    if (wire_parse(text, strlen(text), 0, &m, &code, &err) < 0)
        fail_msg("%s: refused: %s", text, err.msg);
    return m;
}

static void test_the_four_kinds_are_told_apart(void **state)
{
    struct wire_msg m = parse("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\",\"params\":{\"a\":1}}");
    uint64_t id = 0;
    (void)state;

    assert_int_equal(m.kind, WIRE_REQUEST);
    assert_string_equal(m.method, "m");
    assert_non_null(json_get(m.params, "a"));
    assert_true(wire_msg_id(&m, &id));
    assert_int_equal(id, 1);
    assert_null(m.result);
    assert_null(m.error);
    wire_msg_finish(&m);

    m = parse("{\"jsonrpc\":\"2.0\",\"method\":\"m\"}");
    assert_int_equal(m.kind, WIRE_NOTIFICATION);
    assert_string_equal(m.id, "");
    assert_null(m.params);
    assert_false(wire_msg_id(&m, &id));
    wire_msg_finish(&m);

    m = parse("{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"m\",\"params\":{}}");
    assert_int_equal(m.kind, WIRE_NOTIFICATION);
    wire_msg_finish(&m);

    m = parse("{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":null}");
    assert_int_equal(m.kind, WIRE_RESULT);
    assert_int_equal(json_type(m.result), JSON_NULL);
    assert_null(m.method);
    wire_msg_finish(&m);

    m = parse("{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{}}");
    assert_int_equal(m.kind, WIRE_ERROR);
    assert_string_equal(m.id, "");
    wire_msg_finish(&m);

    m = parse(
        "{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"m\",\"result\":1,\"error\":{}}"); /* method decides */
    assert_int_equal(m.kind, WIRE_REQUEST);
    wire_msg_finish(&m);
}

static void check_id(const char *text, bool want, uint64_t value)
{
    char line[200];
    uint64_t id = 77;

    snprintf(line, sizeof line, "{\"jsonrpc\":\"2.0\",\"id\":%s,\"method\":\"m\"}", text);
    struct wire_msg m = parse(line);
    assert_int_equal(wire_msg_id(&m, &id), want);
    if (want)
        assert_int_equal(id, value);
    wire_msg_finish(&m);
}

static void test_ids_are_numbers_only_when_whole(void **state)
{
    (void)state;
    check_id("0", true, 0);
    check_id("7.0", true, 7);
    check_id("1e3", true, 1000);
    check_id("9007199254740991", true, (1ull << 53) - 1);
    check_id("9007199254740992", false, 0);
    check_id("9007199254740993", false, 0); /* reads as the same double as the one before */
    check_id("-1", false, 0);
    check_id("1.5", false, 0);
    check_id("1e300", false, 0);
    check_id("\"7\"", false, 0);
    check_id("null", false, 0);
}

/* ------------------------------------------------------------------------------------------- building */

static void check_built(struct strbuf *b, const char *want)
{
    struct wire_msg m;
    enum wire_code code;
    struct err err;

    assert_string_equal(b->at, want);
    assert_int_equal(b->at[b->n - 1], '\n');
    assert_ptr_equal(memchr(b->at, '\n', b->n), b->at + b->n - 1); /* and nowhere else */
    assert_int_equal(wire_parse(b->at, b->n - 1, 0, &m, &code, &err), 0);
    wire_msg_finish(&m);
    strbuf_finish(b);
}

static void test_what_is_built_can_be_read(void **state)
{
    struct strbuf b = {0};
    (void)state;

    wire_begin_request(&b, 1ull << 53, "show");
    strbuf_add(&b, "{\"id\":3}");
    wire_end(&b);
    check_built(&b,
                "{\"jsonrpc\":\"2.0\",\"id\":9007199254740992,\"method\":\"show\",\"params\":{\"id\":3}}\n");
    wire_begin_notification(&b, "a\"\n\xff");
    strbuf_add(&b, "{}");
    wire_end(&b);
    check_built(&b, "{\"jsonrpc\":\"2.0\",\"method\":\"a\\\"\\n\xef\xbf\xbd\",\"params\":{}}\n");
}

static void test_results_carry_the_id_as_it_came(void **state)
{
    static const char *const ids[] = {"0",
                                      "-3",
                                      "1.5",
                                      "9007199254740992",
                                      "9007199254740993",
                                      "-18446744073709551617",
                                      "1.0",
                                      "1E+2",
                                      "\"\\u0041\"",
                                      "\"\"",
                                      "\"a \\\"quoted\\\" one\"",
                                      "\"\xc3\xa9 \xf0\x9f\x8e\xb5\"",
                                      "\"line\\nbreak\""};
    (void)state;

    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        char line[200], want[200];
        struct strbuf b = {0};
        snprintf(line, sizeof line, "{\"jsonrpc\":\"2.0\",\"id\":%s,\"method\":\"m\"}", ids[i]);
        snprintf(want, sizeof want, "{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{}}\n", ids[i]);
        struct wire_msg m = parse(line);
        wire_begin_result(&b, m.id);
        strbuf_add(&b, "{}");
        wire_end(&b);
        check_built(&b, want);
        wire_msg_finish(&m);
    }
}

/* Of the longest id every byte comes back; one byte more is refused. */
static void test_ids_are_as_long_as_the_limit(void **state)
{
    char line[WIRE_ID_MAX + 100], id[WIRE_ID_MAX + 2];
    (void)state;

    memset(id, 'i', sizeof id);
    id[0] = id[WIRE_ID_MAX - 1] = '"';
    id[WIRE_ID_MAX] = '\0';
    snprintf(line, sizeof line, "{\"jsonrpc\":\"2.0\",\"id\":%s,\"method\":\"m\"}", id);
    struct wire_msg m = parse(line);
    assert_string_equal(m.id, id);
    wire_msg_finish(&m);
    id[WIRE_ID_MAX - 1] = 'i';
    id[WIRE_ID_MAX] = '"';
    id[WIRE_ID_MAX + 1] = '\0';
    snprintf(line, sizeof line, "{\"jsonrpc\":\"2.0\",\"id\":%s,\"method\":\"m\"}", id);
    check_refused(line, WIRE_INVALID_REQUEST, "too long", NULL);
}

static void test_an_id_whose_key_is_escaped_is_refused(void **state)
{
    (void)state;
    check_refused("{\"jsonrpc\":\"2.0\",\"\\u0069d\":1,\"method\":\"m\"}", WIRE_INVALID_REQUEST,
                  "without escapes", NULL);
}

/* "params":{"id":..} and an id inside of a list are not the request's. */
static void test_only_the_outermost_id_counts(void **state)
{
    struct wire_msg m =
        parse("{\"params\":{\"id\":5,\"x\":[{\"id\":6}]},\"jsonrpc\":\"2.0\",\"method\":\"m\"}");
    (void)state;

    assert_string_equal(m.id, "");
    wire_msg_finish(&m);
    m = parse("{\"params\":{\"id\":5},\"id\" :\t7 ,\"jsonrpc\":\"2.0\",\"method\":\"m\",\"x\":{\"id\":8}}");
    assert_string_equal(m.id, "7");
    wire_msg_finish(&m);
}

/* --------------------------------------------------------------------------------------------- limits */

static void test_too_many_values_are_refused_with_the_id(void **state)
{
    static const char line[] = "{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"m\",\"params\":{\"x\":[0,0,0]}}";
    struct wire_msg m;
    enum wire_code code;
    struct err err;
    (void)state;

    /* The object, three members, params, x and its three elements. */
    assert_int_equal(wire_parse(line, sizeof line - 1, 9, &m, &code, &err), 0);
    wire_msg_finish(&m);
    assert_int_equal(wire_parse(line, sizeof line - 1, 8, &m, &code, &err), -E2BIG);
    assert_int_equal(code, WIRE_PARSE_ERROR);
    assert_string_equal(m.id, "9");
    assert_string_equal(err.path, "line:1:57");
    assert_non_null(strstr(err.msg, "more than 8 values"));
    wire_msg_finish(&m);
}

static void test_without_memory_a_line_is_refused_with_its_id(void **state)
{
    static const char line[] =
        "{\"jsonrpc\":\"2.0\",\"method\":\"m\",\"params\":{\"x\":[\"a\",1,{}]},\"id\":\"me\"}";
    uint64_t n = 0;
    (void)state;

    for (bool failed = true; failed;) {
        struct wire_msg m;
        enum wire_code code;
        struct err err = {0};
        mem_fail_nth(++n);
        int r = wire_parse(line, sizeof line - 1, 0, &m, &code, &err);
        failed = mem_has_failed();
        mem_fail_nth(0);
        assert_int_equal(r, failed ? -ENOMEM : 0);
        assert_string_equal(m.id, "\"me\"");
        if (failed) {
            assert_int_equal(code, WIRE_INTERNAL);
            assert_non_null(strstr(err.msg, "out of memory"));
        }
        wire_msg_finish(&m);
    }
    assert_true(n > 10); /* nodes and their texts */
}

static void test_without_memory_there_is_no_room_for_a_line(void **state)
{
    struct wire_in in;
    char *at;
    size_t n;
    (void)state;

    wire_in_init(&in, WIRE_LINE_MAX);
    mem_fail_nth(1);
    wire_in_space(&in, &at, &n);
    assert_int_equal(n, 0);
    wire_in_space(&in, &at, &n);
    assert_true(n > 0);
    wire_in_finish(&in);
}

/* The longest error fits into WIRE_ERROR_MAX bytes, so that an error can be written even when no memory can
 * be allocated. */
static void test_the_longest_error_fits_its_buffer(void **state)
{
    static char room[WIRE_ERROR_MAX];
    struct strbuf b = strbuf_fixed(room, sizeof room);
    struct err err = {.code = -EOPNOTSUPP};
    char id[WIRE_ID_MAX + 1];
    (void)state;

    memset(id, '7', sizeof id - 1);
    id[WIRE_ID_MAX] = '\0';
    memset(err.msg, 1, sizeof err.msg - 1);
    memset(err.path, 1, sizeof err.path - 1);
    wire_add_error(&b, id, WIRE_INVALID_PARAMS, &err, NULL);
    assert_int_equal(strbuf_status(&b), 0);
}

/* --------------------------------------------------------------------------------------------- errors */

static void check_round_trip(const struct err *err, const char *hint, int want_code, const char *want_msg)
{
    struct strbuf b = {0};
    struct err back = {0};
    struct wire_msg m;
    enum wire_code code;

    wire_add_error(&b, NULL, WIRE_FAILED, err, hint);
    assert_int_equal(b.at[b.n - 1], '\n');
    assert_int_equal(wire_parse(b.at, b.n - 1, 0, &m, &code, NULL), 0);
    assert_int_equal(m.kind, WIRE_ERROR);
    assert_string_equal(m.id, "");
    assert_int_equal(wire_msg_error(&m, &back), want_code);
    assert_int_equal(back.code, want_code);
    assert_string_equal(back.path, err->path);
    assert_string_equal(back.msg, want_msg);
    wire_msg_finish(&m);
    strbuf_finish(&b);
}

static void test_every_errno_survives_the_way(void **state)
{
    (void)state;
    for (int e = 1; e < 134; e++) {
        struct err err = {0};
        if (strerrorname_np(e) == NULL)
            continue;
        err_set_at(&err, -e, "model.layers[2].out", "failed with %d", e);
        check_round_trip(&err, NULL, -e, err.msg);
        assert_int_equal(wire_errno(strerrorname_np(e)), -e);
    }
}

static void test_texts_survive_the_way(void **state)
{
    struct err err = {0};
    (void)state;

    err_set_at(&err, -EINVAL, "a \"b\\c\" \xc3\xa9", "say \"x\" \\ \xf0\x9f\x8e\xb5 {}[],:");
    check_round_trip(&err, NULL, -EINVAL, err.msg);
    err_set(&err, -ENOENT, "no such job");
    check_round_trip(&err, "", -ENOENT, "no such job");
    check_round_trip(&err, "see `tutti ls`", -ENOENT, "no such job; see `tutti ls`");
    memset(err.msg, '"', sizeof err.msg - 1); /* as long as they can be, and all of it escaped */
    memset(err.path, '\\', sizeof err.path - 1);
    err.path[sizeof err.path - 1] = err.msg[sizeof err.msg - 1] = '\0';
    check_round_trip(&err, NULL, -ENOENT, err.msg);
}

static void check_error_text(const char *error, int want, const char *path, const char *msg)
{
    char line[400];
    struct err err = {0};

    snprintf(line, sizeof line, "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":%s}", error);
    struct wire_msg m = parse(line);
    assert_int_equal(wire_msg_error(&m, &err), want);
    assert_string_equal(err.path, path);
    assert_string_equal(err.msg, msg);
    wire_msg_finish(&m);
}

static void test_errors_of_strangers_are_read_as_far_as_they_go(void **state)
{
    (void)state;
    check_error_text("{}", -EIO, "", "unknown error");
    check_error_text("{\"code\":-32601,\"message\":\"no\"}", -EIO, "", "no");
    check_error_text("{\"message\":5,\"data\":7}", -EIO, "", "unknown error");
    check_error_text("{\"message\":\"x\",\"data\":{\"errno\":\"EWHAT\"}}", -EIO, "", "x");
    check_error_text("{\"message\":\"x\",\"data\":{\"errno\":22}}", -EIO, "", "x");
    check_error_text("{\"message\":\"x\",\"data\":{\"errno\":\"ENOENT\",\"path\":\"p\",\"hint\":\"h\"}}",
                     -ENOENT, "p", "x; h");
}

static void test_err_objects_have_their_three_members(void **state)
{
    struct strbuf b = {0};
    struct err err = {0};
    struct json *doc;
    (void)state;

    err_set_at(&err, -ENOSPC, "a.b", "full \"disk\"");
    wire_add_err_object(&b, &err);
    assert_string_equal(b.at, "{\"errno\":\"ENOSPC\",\"path\":\"a.b\",\"message\":\"full \\\"disk\\\"\"}");
    assert_int_equal(json_parse(b.at, b.n, "x", false, &doc, NULL), 0);
    json_free(doc);
    strbuf_finish(&b);
}

static void test_exit_codes_are_those_of_the_protocol(void **state)
{
    (void)state;
    assert_int_equal(wire_exit_code(0), 0);
    assert_int_equal(wire_exit_code(-EINVAL), 2);
    assert_int_equal(wire_exit_code(-EOPNOTSUPP), 2);
    assert_int_equal(wire_exit_code(-EEXIST), 2);
    assert_int_equal(wire_exit_code(-ESHUTDOWN), 3);
    assert_int_equal(wire_exit_code(-EACCES), 4);
    assert_int_equal(wire_exit_code(-ENOSPC), 5);
    assert_int_equal(wire_exit_code(-ENOENT), 6);
    assert_int_equal(wire_exit_code(-EAGAIN), 1);
    assert_int_equal(wire_exit_code(-EIO), 1);
    assert_int_equal(wire_exit_code(-EMSGSIZE), 1);
}

static void test_unknown_names_are_no_errno(void **state)
{
    (void)state;
    assert_int_equal(wire_errno(""), 0);
    assert_int_equal(wire_errno("0"), 0);
    assert_int_equal(wire_errno("enoent"), 0);
    assert_int_equal(wire_errno("ENOENT "), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines_are_the_same_at_every_two_cuts),
        cmocka_unit_test(test_lines_are_the_same_in_pieces_of_every_size),
        cmocka_unit_test(test_long_lines_survive_random_pieces),
        cmocka_unit_test(test_limit_is_exact_to_the_byte),
        cmocka_unit_test(test_memory_stays_at_one_line),
        cmocka_unit_test(test_partial_says_whether_a_line_began),
        cmocka_unit_test(test_what_is_not_json_is_a_parse_error),
        cmocka_unit_test(test_parse_errors_say_line_and_column),
        cmocka_unit_test(test_json_that_is_no_request_says_why),
        cmocka_unit_test(test_the_four_kinds_are_told_apart),
        cmocka_unit_test(test_ids_are_numbers_only_when_whole),
        cmocka_unit_test(test_what_is_built_can_be_read),
        cmocka_unit_test(test_results_carry_the_id_as_it_came),
        cmocka_unit_test(test_ids_are_as_long_as_the_limit),
        cmocka_unit_test(test_an_id_whose_key_is_escaped_is_refused),
        cmocka_unit_test(test_only_the_outermost_id_counts),
        cmocka_unit_test(test_too_many_values_are_refused_with_the_id),
        cmocka_unit_test(test_without_memory_a_line_is_refused_with_its_id),
        cmocka_unit_test(test_without_memory_there_is_no_room_for_a_line),
        cmocka_unit_test(test_the_longest_error_fits_its_buffer),
        cmocka_unit_test(test_every_errno_survives_the_way),
        cmocka_unit_test(test_texts_survive_the_way),
        cmocka_unit_test(test_errors_of_strangers_are_read_as_far_as_they_go),
        cmocka_unit_test(test_err_objects_have_their_three_members),
        cmocka_unit_test(test_exit_codes_are_those_of_the_protocol),
        cmocka_unit_test(test_unknown_names_are_no_errno),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
