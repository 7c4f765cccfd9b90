/* A parser for the JSON header of a safetensors file.
 *
 * It does not use base/json, because the header of a large model has up to 100 MB, more than base/json
 * accepts, and a tree of nodes would take many times that. The grammar is small and fixed:
 *
 *     { "__metadata__": {key: value, ...},
 *       name: {"dtype": "F32", "shape": [n, ...], "data_offsets": [b, e]}, ... }
 *
 * So it is read in one pass, without recursion. Strings are unescaped in place, which never makes them
 * longer. The input is not trusted. The functions only work on the caller's memory, so any thread may call
 * them.
 */
#include "daemon/worker/model/st_header.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/utf8.h"

/* The parser's position in the text of the JSON header. */
struct header_cursor {
    /* The start of the header's text, the next character to read, and the end of the text. */
    char *text, *at, *end;
    const char *file; /* name of the file, for messages */
    struct err *err;
};

static int __attribute__((format(printf, 2, 3))) fail(const struct header_cursor *c, const char *fmt, ...)
{
    char what[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return err_set_at(c->err, -EBADMSG, c->file, "damaged header of a safetensors file: %s, at byte %zu",
                      what, (size_t)(c->at - c->text) + 8);
}

static void skip_space(struct header_cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t' || *c->at == '\r'))
        c->at++;
}

static bool next_is(struct header_cursor *c, char want)
{
    skip_space(c);
    if (c->at == c->end || *c->at != want)
        return false;
    c->at++;
    return true;
}

static int expect(struct header_cursor *c, char want)
{
    return next_is(c, want) ? 0 : fail(c, "expected '%c'", want);
}

/* Reads the character after an element of an array or object. Returns 1 for a comma, 0 for the closing
 * bracket `close`, or an error. */
static int more(struct header_cursor *c, char close)
{
    if (next_is(c, ','))
        return 1;
    return expect(c, close);
}

/* ------------------------------------------------------------------------------------------ strings */

static int hex4(struct header_cursor *c, uint32_t *ret)
{
    uint32_t v = 0;

    if (c->end - c->at < 4)
        return fail(c, "an escape is cut short");
    for (int i = 0; i < 4; i++, c->at++) {
        char d = *c->at;
        uint32_t digit = d >= '0' && d <= '9'   ? (uint32_t)(d - '0')
                         : d >= 'a' && d <= 'f' ? (uint32_t)(d - 'a') + 10
                         : d >= 'A' && d <= 'F' ? (uint32_t)(d - 'A') + 10
                                                : 16;
        if (digit == 16)
            return fail(c, "a bad \\u escape");
        v = v << 4 | digit;
    }
    *ret = v;
    return 0;
}

static char *put_utf8(char *out, uint32_t v)
{
    if (v < 0x80) {
        *out++ = (char)v;
    } else if (v < 0x800) {
        *out++ = (char)(0xC0 | v >> 6);
        *out++ = (char)(0x80 | (v & 0x3F));
    } else if (v < 0x10000) {
        *out++ = (char)(0xE0 | v >> 12);
        *out++ = (char)(0x80 | (v >> 6 & 0x3F));
        *out++ = (char)(0x80 | (v & 0x3F));
    } else {
        *out++ = (char)(0xF0 | v >> 18);
        *out++ = (char)(0x80 | (v >> 12 & 0x3F));
        *out++ = (char)(0x80 | (v >> 6 & 0x3F));
        *out++ = (char)(0x80 | (v & 0x3F));
    }
    return out;
}

/* Reads the rest of an escape after "\u" and appends its character as UTF-8. The text never becomes longer. A
 * pair of surrogates has 12 characters and becomes 4 bytes. Any other escape has 6 characters and becomes at
 * most 3 bytes. */
static int unicode_escape(struct header_cursor *c, char **out)
{
    uint32_t v, low;

    if (hex4(c, &v) < 0)
        return -EBADMSG;
    if (v >= 0xD800 && v < 0xDC00) {
        if (c->end - c->at < 2 || c->at[0] != '\\' || c->at[1] != 'u')
            return fail(c, "half of a surrogate pair");
        c->at += 2;
        if (hex4(c, &low) < 0)
            return -EBADMSG;
        if (low < 0xDC00 || low > 0xDFFF)
            return fail(c, "half of a surrogate pair");
        v = 0x10000 + ((v - 0xD800) << 10) + (low - 0xDC00);
    } else if (v == 0 || (v >= 0xDC00 && v < 0xE000)) {
        return fail(c, "a \\u escape that is not a character");
    }
    *out = put_utf8(*out, v);
    return 0;
}

static int escape(struct header_cursor *c, char **out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *found;
    char e;

    if (c->at == c->end)
        return fail(c, "a string without end");
    e = *c->at++;
    if (e == 'u')
        return unicode_escape(c, out);
    found = e ? strchr(from, e) : NULL;
    if (!found)
        return fail(c, "a bad escape");
    *(*out)++ = to[found - from];
    return 0;
}

/* Reads a string, replaces its escapes in place and adds a NUL at its end. There is always space for the NUL,
 * because it takes the place of the closing quote. */
static int string(struct header_cursor *c, char **ret)
{
    char *out;

    if (expect(c, '"') < 0)
        return -EBADMSG;
    *ret = out = c->at;
    for (;;) {
        size_t n;
        if (c->at == c->end)
            return fail(c, "a string without end");
        if (*c->at == '"')
            break;
        if (*c->at == '\\') {
            c->at++;
            if (escape(c, &out) < 0)
                return -EBADMSG;
            continue;
        }
        n = utf8_char_bytes(c->at, (size_t)(c->end - c->at));
        if (n == 0 || (unsigned char)*c->at < 0x20)
            return fail(c, "a string with a byte that is not allowed");
        memmove(out, c->at, n);
        out += n;
        c->at += n;
    }
    c->at++;
    *out = '\0';
    return 0;
}

/* ---------------------------------------------------------------------------------------- numbers, arrays */

static int whole_number(struct header_cursor *c, uint64_t *ret)
{
    const char *first;
    uint64_t v = 0;

    skip_space(c);
    first = c->at;
    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++)
        if (!checked_mul(v, 10, &v) || !checked_add(v, (uint64_t)(*c->at - '0'), &v))
            return fail(c, "a number that is too large");
    if (c->at == first || (*first == '0' && c->at - first > 1))
        return fail(c, "expected a whole number");
    *ret = v;
    return 0;
}

static int numbers(struct header_cursor *c, const char *what, uint64_t *ret, uint32_t max, uint32_t *ret_n)
{
    uint32_t n = 0;
    int r;

    if (expect(c, '[') < 0)
        return -EBADMSG;
    if (next_is(c, ']')) {
        *ret_n = 0;
        return 0;
    }
    do {
        if (n == max)
            return fail(c, "%s with more than %u numbers", what, max);
        if (whole_number(c, &ret[n++]) < 0)
            return -EBADMSG;
        r = more(c, ']');
    } while (r > 0);
    *ret_n = n;
    return r;
}

/* ------------------------------------------------------------------------------------------ objects */

static int dtype(struct header_cursor *c, enum dtype *ret)
{
    char *name;

    if (string(c, &name) < 0)
        return -EBADMSG;
    return dtype_find(name, ret) ? 0 : fail(c, "unknown dtype \"%s\"", name);
}

static int entry_field(struct header_cursor *c, struct st_entry *e, unsigned *seen)
{
    static const char *const keys[] = {"dtype", "shape", "data_offsets"};
    uint64_t offsets[2];
    uint32_t n = 0;
    unsigned k = 0;
    char *key;

    if (string(c, &key) < 0 || expect(c, ':') < 0)
        return -EBADMSG;
    while (k < 3 && strcmp(key, keys[k]) != 0)
        k++;
    if (k == 3)
        return fail(c, "unknown key \"%s\" of tensor \"%s\"", key, e->name);
    if (*seen & 1u << k)
        return fail(c, "key \"%s\" of tensor \"%s\" occurs twice", key, e->name);
    *seen |= 1u << k;
    if (k == 0)
        return dtype(c, &e->dtype);
    if (k == 1)
        return numbers(c, "a shape", e->shape, SAFETENSORS_MAX_RANK, &e->rank);
    if (numbers(c, "data_offsets", offsets, 2, &n) < 0)
        return -EBADMSG;
    if (n != 2)
        return fail(c, "data_offsets of tensor \"%s\" are not two numbers", e->name);
    e->begin = offsets[0];
    e->end = offsets[1];
    return 0;
}

static int entry(struct header_cursor *c, struct st_entry *e)
{
    unsigned seen = 0;
    int r;

    if (expect(c, '{') < 0)
        return -EBADMSG;
    do {
        if (entry_field(c, e, &seen) < 0)
            return -EBADMSG;
        r = more(c, '}');
    } while (r > 0);
    if (r == 0 && seen != 7)
        return fail(c, "tensor \"%s\" lacks dtype, shape or data_offsets", e->name);
    return r;
}

/* Makes space for one more element in `array` and returns its new address. Returns NULL if memory runs out,
 * which can happen because the file decides how large the array becomes. `array` then stays valid. */
static void *grow(void *array, size_t n, size_t *cap, size_t size)
{
    size_t want = *cap ? 2 * *cap : 16;
    void *p = n < *cap ? array : realloc(array, want * size);

    if (p && n == *cap)
        *cap = want;
    return p;
}

static int add_meta(struct header_cursor *c, struct st_header *h, const char *key, const char *value)
{
    struct st_meta *p = grow(h->meta, h->n_meta, &h->cap_meta, sizeof *p);

    if (!p)
        return err_set_at(c->err, -ENOMEM, c->file, "no memory for the header");
    h->meta = p;
    h->meta[h->n_meta++] = (struct st_meta){key, value};
    return 0;
}

static int add_entry(struct header_cursor *c, struct st_header *h, const char *name)
{
    struct st_entry *p = grow(h->entries, h->n_entries, &h->cap_entries, sizeof *p);

    if (!p)
        return err_set_at(c->err, -ENOMEM, c->file, "no memory for the header");
    h->entries = p;
    h->entries[h->n_entries++] = (struct st_entry){.name = name};
    return 0;
}

static int metadata(struct header_cursor *c, struct st_header *h)
{
    char *key, *value;
    int r;

    if (h->has_meta)
        return fail(c, "\"__metadata__\" occurs twice");
    h->has_meta = true;
    if (expect(c, '{') < 0)
        return -EBADMSG;
    if (next_is(c, '}'))
        return 0;
    do {
        if (string(c, &key) < 0 || expect(c, ':') < 0 || string(c, &value) < 0)
            return -EBADMSG;
        r = add_meta(c, h, key, value);
        if (r == 0)
            r = more(c, '}');
    } while (r > 0);
    return r;
}

static int member(struct header_cursor *c, struct st_header *h)
{
    char *name, found[UTF8_NAME_BYTES];
    int r;

    if (string(c, &name) < 0 || expect(c, ':') < 0)
        return -EBADMSG;
    if (strcmp(name, "__metadata__") == 0)
        return metadata(c, h);
    if (utf8_find_unsafe(name, found))
        return fail(c, "the name of a tensor contains %s, a control or invisible character: \"%s\"", found,
                    name);
    r = add_entry(c, h, name);
    return r < 0 ? r : entry(c, &h->entries[h->n_entries - 1]);
}

int st_header_parse(struct st_header *h, char *text, size_t bytes, const char *file, struct err *err)
{
    struct header_cursor c = {.text = text, .at = text, .end = text + bytes, .file = file, .err = err};
    int r = 0;

    *h = (struct st_header){0};
    if (bytes == 0 || text[0] != '{')
        return fail(&c, "it does not begin with '{'");
    c.at++;
    if (!next_is(&c, '}')) {
        do {
            r = member(&c, h);
            if (r < 0)
                return r;
            r = more(&c, '}');
        } while (r > 0);
    }
    /* The header may be padded at its end with spaces, but not with other characters. */
    while (c.at < c.end && *c.at == ' ')
        c.at++;
    if (r == 0 && c.at != c.end)
        return fail(&c, "something follows the header's end");
    return r;
}

void st_header_finish(struct st_header *h)
{
    free(h->entries);
    free(h->meta);
    *h = (struct st_header){0};
}
