/* A growing string. Zero-initialize it, or choose a mode; strbuf_finish frees it.
 *
 *     struct strbuf b = {0};                    // dumps and reports: aborts when memory runs out
 *     struct strbuf b = {.mode = STRBUF_FAILS}; // what a user sizes: remembers the failure; later additions do nothing
 *     char room[512];
 *     struct strbuf b = strbuf_fixed(room, sizeof room); // allocates nothing; fails when `room` is full
 *
 * A writer that was given a strbuf need not look at the mode. The owner asks strbuf_status before it uses the text.
 */
#ifndef BASE_STRBUF_H
#define BASE_STRBUF_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

enum strbuf_mode { STRBUF_ABORTS, STRBUF_FAILS, STRBUF_FIXED };

struct strbuf {
    char *at; /* always NUL-terminated once something was added; NULL before */
    size_t n, cap;
    enum strbuf_mode mode;
    bool failed; /* an addition found no room; what was added before it is still there */
};

struct strbuf strbuf_fixed(char *room, size_t size);
/* 0, or -ENOMEM when an addition found no room. */
int strbuf_status(const struct strbuf *b);
/* For a writer whose own memory ran out: aborts, or marks `b` as failed, as its mode says. */
void strbuf_fail(struct strbuf *b);

void strbuf_add(struct strbuf *b, const char *s);
void strbuf_addn(struct strbuf *b, const char *s, size_t n);
void strbuf_addf(struct strbuf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void strbuf_addv(struct strbuf *b, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
/* A JSON string literal with quotes. Every program prints JSON text through this function. Besides what JSON
 * requires it escapes the characters of utf8_is_unsafe, so that JSON on a terminal is harmless. A byte that is
 * not UTF-8 (a file name may hold one) and NUL become U+FFFD: the result is always valid JSON. */
void strbuf_add_json(struct strbuf *b, const char *s);
void strbuf_add_jsonn(struct strbuf *b, const char *s, size_t n);

/* Foreign text for people, as utf8_show shows it: on one line. */
void strbuf_add_text(struct strbuf *b, const char *s);
/* What strbuf_add_textn leaves as it is besides safe characters. */
enum strbuf_keep {
    STRBUF_ONE_LINE,    /* nothing */
    STRBUF_LINES,       /* newlines and tabs */
    STRBUF_INKED_LINES, /* newlines, tabs, and sequences that only set a colour */
};
void strbuf_add_textn(struct strbuf *b, const char *s, size_t n, enum strbuf_keep keep);
/* "1.50 GiB", "12 B": for people. */
void strbuf_add_bytes(struct strbuf *b, unsigned long long bytes);
void strbuf_finish(struct strbuf *b);

#endif
