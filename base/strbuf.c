/* Implements the growing string of strbuf.h. When the memory of a string is used up, it doubles, so that
 * appending a byte takes constant time on average. Every addition calls `reserve`, which is the only function
 * that can fail. Only one thread at a time may use a strbuf. */
#include "base/strbuf.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/mem.h"
#include "base/utf8.h"

struct strbuf strbuf_fixed(char *buf, size_t size)
{
    buf[0] = '\0';
    return (struct strbuf){.at = buf, .cap = size, .mode = STRBUF_FIXED};
}

int strbuf_status(const struct strbuf *b)
{
    return b->failed ? -ENOMEM : 0;
}

void strbuf_fail(struct strbuf *b)
{
    if (b->mode == STRBUF_ABORTS)
        abort();
    b->failed = true;
}

/* Enlarges the memory of the strbuf to `cap` bytes. If that fails, marks the strbuf as failed and returns
 * false. */
static bool grow_buffer(struct strbuf *b, size_t cap)
{
    char *at = b->mode == STRBUF_ABORTS  ? xrealloc(b->at, cap)
               : b->mode == STRBUF_FAILS ? mem_realloc(b->at, cap)
                                         : NULL;

    if (!at) {
        b->failed = true;
        return false;
    }
    b->at = at;
    b->cap = cap;
    return true;
}

/* Makes space for `n` more bytes and the NUL after them. If that fails, marks `b` as failed and returns
 * false. */
static bool reserve(struct strbuf *b, size_t n)
{
    size_t want, cap;

    if (b->failed)
        return false;
    if (__builtin_add_overflow(b->n, n, &want) || want > SIZE_MAX / 4)
        abort();
    want++;
    if (want <= b->cap)
        return true;
    cap = b->cap ? b->cap : 64;
    while (cap < want)
        cap *= 2;
    return grow_buffer(b, cap);
}

void strbuf_addn(struct strbuf *b, const char *s, size_t n)
{
    if (!reserve(b, n))
        return;
    if (n)
        memcpy(b->at + b->n, s, n);
    b->n += n;
    b->at[b->n] = '\0';
}

void strbuf_add(struct strbuf *b, const char *s)
{
    strbuf_addn(b, s, strlen(s));
}

void strbuf_addv(struct strbuf *b, const char *fmt, va_list ap)
{
    va_list again;
    size_t space;
    int n;

    /* Reserve 32 bytes before formatting. Most texts are shorter, so they are formatted only once. */
    if (b->mode != STRBUF_FIXED && !reserve(b, 32))
        return;
    if (!reserve(b, 0))
        return;
    va_copy(again, ap);
    space = b->cap - b->n;
    n = vsnprintf(b->at + b->n, space, fmt, ap);
    if (n < 0)
        abort(); /* the format is invalid: a programmer's error */
    if ((size_t)n >= space) {
        /* The text did not fit, and vsnprintf wrote only its beginning. Remove this beginning, because a
         * strbuf adds a text completely or not at all. */
        b->at[b->n] = '\0';
        if (!reserve(b, (size_t)n)) {
            va_end(again);
            return;
        }
        vsnprintf(b->at + b->n, (size_t)n + 1, fmt, again);
    }
    va_end(again);
    b->n += (size_t)n;
}

void strbuf_addf(struct strbuf *b, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    strbuf_addv(b, fmt, ap);
    va_end(ap);
}

/* Returns the number of plain bytes at the start of `s`, which a caller can copy with one call. Plain bytes
 * are printable ASCII characters, except the two characters in `but`. */
static size_t plain_bytes(const char *s, size_t n, const char but[2])
{
    size_t i = 0;

    while (i < n && s[i] >= 0x20 && s[i] < 0x7F && s[i] != but[0] && s[i] != but[1])
        i++;
    return i;
}

/* ------------------------------------------------------------------------------------------------ JSON */

/* Appends the JSON escape of the character `c`, such as \n or \u001b. */
static void add_escaped(struct strbuf *b, uint32_t c)
{
    /* The letters of the escapes \b, \t, \n, \f and \r, for the characters 8 to 13. Character 11 has no such
     * escape, so its letter is never used. */
    static const char letters[] = "btn?fr";

    if (c == '"' || c == '\\')
        strbuf_addn(b, (const char[]){'\\', (char)c}, 2);
    else if (c >= 8 && c <= 13 && c != 11)
        strbuf_addn(b, (const char[]){'\\', letters[c - 8]}, 2);
    else if (c <= 0xFFFF)
        strbuf_addf(b, "\\u%04x", (unsigned)c);
    else
        strbuf_addf(b, "\\u%04x\\u%04x", (unsigned)(0xD7C0 + (c >> 10)), (unsigned)(0xDC00 + (c & 0x3FF)));
}

/* Appends the first character of `s`, as an escape if necessary. Returns the number of bytes that the
 * character has in `s`. */
static size_t add_json_char(struct strbuf *b, const char *s, size_t n)
{
    size_t bytes = *s ? utf8_char_bytes(s, n) : 0;
    uint32_t c = bytes ? utf8_decode(s, bytes) : 0;

    if (bytes == 0) {
        strbuf_add(b, "\xEF\xBF\xBD");
        return 1;
    }
    if (c == '"' || c == '\\' || utf8_is_unsafe(c))
        add_escaped(b, c);
    else
        strbuf_addn(b, s, bytes);
    return bytes;
}

void strbuf_add_jsonn(struct strbuf *b, const char *s, size_t n)
{
    strbuf_addn(b, "\"", 1);
    while (n > 0) {
        size_t eaten = plain_bytes(s, n, "\"\\");
        if (eaten > 0)
            strbuf_addn(b, s, eaten);
        else
            eaten = add_json_char(b, s, n);
        s += eaten;
        n -= eaten;
    }
    strbuf_addn(b, "\"", 1);
}

void strbuf_add_json(struct strbuf *b, const char *s)
{
    strbuf_add_jsonn(b, s, strlen(s));
}

/* ----------------------------------------------------------------------------------- text for people */

/* Returns the length in bytes of the terminal's colour sequence at `s`, such as "ESC [ 1 ; 3 1 m". Returns 0
 * if there is no such sequence. */
static size_t ink_bytes(const char *s, size_t n)
{
    size_t i = 2;

    if (n < 3 || s[0] != '\033' || s[1] != '[')
        return 0;
    while (i < n && i < 16 && ((s[i] >= '0' && s[i] <= '9') || s[i] == ';'))
        i++;
    return i < n && s[i] == 'm' ? i + 1 : 0;
}

/* Returns how many bytes at the start of `s` can be appended without an escape, according to `style`. */
static size_t unescaped_bytes(const char *s, size_t n, enum strbuf_style style)
{
    /* The last argument of plain_bytes names two characters that do not count as plain. No printable
     * character is excluded here, so the newline, which is never plain, is passed twice. */
    size_t plain = plain_bytes(s, n, "\n\n");

    if (plain > 0 || style == STRBUF_ONE_LINE)
        return plain;
    if (*s == '\n' || *s == '\t')
        return 1;
    return style == STRBUF_INKED_LINES ? ink_bytes(s, n) : 0;
}

void strbuf_add_textn(struct strbuf *b, const char *s, size_t n, enum strbuf_style style)
{
    char shown[UTF8_SHOWN_BYTES];

    strbuf_addn(b, "", 0);
    while (n > 0) {
        size_t eaten = unescaped_bytes(s, n, style);
        if (eaten > 0) {
            strbuf_addn(b, s, eaten);
        } else {
            eaten = utf8_show(s, n, shown);
            strbuf_add(b, shown);
        }
        s += eaten;
        n -= eaten;
    }
}

void strbuf_add_text(struct strbuf *b, const char *s)
{
    strbuf_add_textn(b, s, strlen(s), STRBUF_ONE_LINE);
}

void strbuf_add_bytes(struct strbuf *b, unsigned long long bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double v = (double)bytes;
    int u = 0;

    if (bytes < 1024) {
        strbuf_addf(b, "%llu B", bytes);
        return;
    }
    /* From 1023.995 on, "%.2f" would print "1024.00". Show such a value in the next larger unit, as
     * "1.00". */
    while (v >= 1023.995 || u == 0) {
        v /= 1024;
        u++;
    }
    strbuf_addf(b, "%.2f %s", v, units[u]);
}

void strbuf_finish(struct strbuf *b)
{
    if (!b)
        return;
    if (b->mode != STRBUF_FIXED)
        xfree(b->at);
    *b = (struct strbuf){.mode = b->mode == STRBUF_FAILS ? STRBUF_FAILS : STRBUF_ABORTS};
}
