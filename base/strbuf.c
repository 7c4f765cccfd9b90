/* A growing string.
 *
 * It doubles, so that adding is O(1) on average, and aborts when memory runs out: it holds dumps and reports,
 * whose size follows from data that is in memory already. A strbuf belongs to one thread at a time.
 */
#include "base/strbuf.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/utf8.h"

/* Room for n more bytes and the NUL. */
static void reserve(struct strbuf *b, size_t n)
{
    size_t want, cap;

    if (__builtin_add_overflow(b->n, n, &want) || want > SIZE_MAX / 4)
        abort();
    want++;
    if (want <= b->cap)
        return;
    cap = b->cap ? b->cap : 64;
    while (cap < want)
        cap *= 2;
    b->at = xrealloc(b->at, cap);
    b->cap = cap;
}

void strbuf_addn(struct strbuf *b, const char *s, size_t n)
{
    reserve(b, n);
    if (n)
        memcpy(b->at + b->n, s, n);
    b->n += n;
    b->at[b->n] = '\0';
}

void strbuf_add(struct strbuf *b, const char *s)
{
    strbuf_addn(b, s, strlen(s));
}

void strbuf_addf(struct strbuf *b, const char *fmt, ...)
{
    va_list ap;
    size_t room;
    int n;

    reserve(b, 32); /* most pieces are short: one pass */
    room = b->cap - b->n;
    va_start(ap, fmt);
    n = vsnprintf(b->at + b->n, room, fmt, ap);
    va_end(ap);
    if (n < 0)
        abort(); /* a conversion that cannot be printed: a programmer's error */
    if ((size_t)n >= room) {
        reserve(b, (size_t)n);
        va_start(ap, fmt);
        vsnprintf(b->at + b->n, (size_t)n + 1, fmt, ap);
        va_end(ap);
    }
    b->n += (size_t)n;
}

static void add_escaped(struct strbuf *b, unsigned char c)
{
    static const char letters[] = "btn?fr"; /* 8 to 13; 11 has no short form */

    if (c == '"' || c == '\\')
        strbuf_addn(b, (const char[]){'\\', (char)c}, 2);
    else if (c >= 8 && c <= 13 && c != 11)
        strbuf_addn(b, (const char[]){'\\', letters[c - 8]}, 2);
    else
        strbuf_addf(b, "\\u%04x", c);
}

/* Bytes that are no UTF-8 (a file name may hold them) become U+FFFD: the result is always valid JSON. */
void strbuf_add_json(struct strbuf *b, const char *s)
{
    size_t left = strlen(s);

    strbuf_addn(b, "\"", 1);
    while (left > 0) {
        size_t n = utf8_char_bytes(s, left), eaten = n ? n : 1;
        unsigned char c = (unsigned char)*s;
        if (n == 0)
            strbuf_add(b, "\xEF\xBF\xBD");
        else if (c < 0x20 || c == '"' || c == '\\')
            add_escaped(b, c);
        else
            strbuf_addn(b, s, n);
        s += eaten;
        left -= eaten;
    }
    strbuf_addn(b, "\"", 1);
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
    /* 1023.995 would be rounded to "1024.00": it belongs to the next unit. */
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
    free(b->at);
    *b = (struct strbuf){0};
}
