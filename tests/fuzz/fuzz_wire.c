/* Reads the input as bytes from a socket. The lines must be the same however the stream is cut into pieces,
 * and every line must be a message or an error that can be answered.
 *
 * The first byte chooses how the stream is cut, the second byte chooses the maximum length of a line, and the
 * rest is the stream.
 */
#include "tests/fuzz/fuzz.h"

#include <errno.h>

#include "base/curve.h"
#include "base/rng.h"
#include "base/wire.h"

#define MOST_LINES 10 /* that are looked into; of thousands of empty ones nothing is to be learnt */

static const size_t limits[] = {16, 64, 4097, WIRE_LINE_MAX};

/* ---- messages ---- */

static void check_line(struct strbuf *b)
{
    HOLDS(b->n > 1 && b->at[b->n - 1] == '\n' && memchr(b->at, '\n', b->n) == b->at + b->n - 1);
}

/* Checks that the other side can read the answer to this message. */
static void check_answer(const struct wire_msg *m, const struct err *err, enum wire_code code)
{
    struct strbuf b = {0};
    struct wire_msg back;
    enum wire_code ignored;
    struct err said = {0};
    if (err != NULL) {
        wire_add_error(&b, m->id, code, err, NULL);
    } else {
        wire_begin_result(&b, m->id);
        strbuf_add(&b, "{}");
        wire_end(&b);
    }
    check_line(&b);
    HOLDS(wire_parse(b.at, b.n - 1, 0, &back, &ignored, &said) == 0);
    HOLDS(back.kind == (err != NULL ? WIRE_ERROR : WIRE_RESULT));
    HOLDS(strcmp(back.id, m->id) == 0);
    if (err != NULL) {
        HOLDS(wire_msg_error(&back, &said) == err->code);
        HOLDS(strcmp(said.msg, err->msg) == 0 && strcmp(said.path, err->path) == 0);
    }
    wire_msg_finish(&back);
    strbuf_finish(&b);
}

static void check_message(const struct wire_msg *m)
{
    uint64_t id = 0;
    struct err err = {0};
    bool call = m->kind == WIRE_REQUEST || m->kind == WIRE_NOTIFICATION;
    HOLDS(m->doc != NULL);
    HOLDS((m->method != NULL) == call);
    HOLDS((m->result != NULL) == (m->kind == WIRE_RESULT));
    HOLDS((m->error != NULL) == (m->kind == WIRE_ERROR));
    HOLDS(!call || (m->id[0] != '\0') == (m->kind == WIRE_REQUEST));
    HOLDS(!call || m->params == NULL || json_type(m->params) == JSON_OBJECT);
    HOLDS(!wire_msg_id(m, &id) || id <= JSON_MAX_INTEGER);
    if (m->kind == WIRE_ERROR)
        check_failure(wire_msg_error(m, &err), &err);
    check_printed(m->doc);
}

/* Whatever list it is, a curve can be read from it and written again. */
static void check_curve(const struct json *doc)
{
    static struct curve c;
    struct strbuf b = {0};
    struct json *back = NULL;
    const struct json *params = json_get(doc, "params"), *points = params != NULL ? params : doc;
    if (json_type(points) != JSON_ARRAY)
        return;
    curve_from_json(&c, points);
    HOLDS(c.n < CURVE_POINTS);
    curve_json(&c, &b);
    HOLDS(json_parse(b.at, b.n, "curve", false, &back, NULL) == 0);
    json_free(back);
    strbuf_finish(&b);
}

static void take_line(const char *line, size_t bytes)
{
    struct wire_msg m;
    enum wire_code code;
    struct err err = {0};
    int r = wire_parse(line, bytes, WIRE_NODES_MAX, &m, &code, &err);
    if (r < 0) {
        check_failure(r, &err);
        HOLDS(code == WIRE_PARSE_ERROR || code == WIRE_INVALID_REQUEST);
        check_answer(&m, &err, code);
    } else {
        check_message(&m);
        check_answer(&m, NULL, 0);
    }
    if (m.doc != NULL)
        check_curve(m.doc);
    wire_msg_finish(&m);
}

/* ---- lines ---- */

/* Finds the line that starts at `at` without the code under test. Returns its length without the newline, or
 * -1 when the line has no end or is longer than `max`. */
static long next_line(const uint8_t *stream, size_t bytes, size_t at, size_t max)
{
    const uint8_t *newline = at < bytes ? memchr(stream + at, '\n', bytes - at) : NULL;
    size_t n = newline != NULL ? (size_t)(newline - (stream + at)) : bytes;
    return newline != NULL && n + 1 <= max ? (long)n : -1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < 2)
        return 0;
    struct rng rng = {.seed = data[0]};
    size_t max = limits[data[1] % 4], given = 0, at = 0, lines = 0;
    struct wire_in in;
    int r = 0;
    data += 2;
    bytes -= 2;
    wire_in_init(&in, max);
    while (given < bytes && r == 0) {
        char *room, *line;
        size_t n, piece = 1 + rng_below(&rng, rng.seed % 3 == 0 ? 3 : 3000);
        wire_in_space(&in, &room, &n);
        HOLDS(n > 0 && in.cap <= max);
        if (piece > n)
            piece = n;
        if (piece > bytes - given)
            piece = bytes - given;
        memcpy(room, data + given, piece);
        given += piece;
        wire_in_added(&in, piece);
        while ((r = wire_in_line(&in, &line, &n)) > 0) {
            HOLDS(next_line(data, bytes, at, max) == (long)n);
            HOLDS(memcmp(line, data + at, n) == 0 && line[n] == '\0');
            at += n + 1;
            if (lines++ < MOST_LINES)
                take_line(line, n);
        }
        HOLDS(r == 0 || r == -EMSGSIZE);
        HOLDS(wire_in_partial(&in) == (at < given));
        HOLDS(r == 0 || (given - at == max && next_line(data, bytes, at, max) < 0));
    }
    HOLDS(r < 0 || next_line(data, bytes, at, max) < 0);
    wire_in_finish(&in);
    return 0;
}
