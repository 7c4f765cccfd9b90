/* A string that grows. It has one of three modes, which decide what happens when there is no space:
 *
 *     struct strbuf b = {0};                    // aborts when memory runs out; for dumps and reports
 *     struct strbuf b = {.mode = STRBUF_FAILS}; // remembers the failure; for text that a user sizes
 *     char buf[512];
 *     struct strbuf b = strbuf_fixed(buf, sizeof buf); // allocates nothing; fails when `buf` is full
 *
 * After a failure, further additions do nothing. A function that appends to a strbuf ignores the mode. The
 * owner calls strbuf_status before it uses the text, and strbuf_finish to free it.
 */
#ifndef BASE_STRBUF_H
#define BASE_STRBUF_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

enum strbuf_mode { STRBUF_ABORTS, STRBUF_FAILS, STRBUF_FIXED };

struct strbuf {
    char *at;   /* NUL-terminated; NULL until something is added */
    size_t n;   /* bytes of text, without the NUL */
    size_t cap; /* bytes at `at` */
    enum strbuf_mode mode;
    /* True if some text could not be added because there was no space. The text before it is still valid. */
    bool failed;
};

/* Returns an empty strbuf that writes its text to the `size` bytes at `buf`. `size` must be at least 1. */
struct strbuf strbuf_fixed(char *buf, size_t size);
/* Returns 0 if all additions were successful, and -ENOMEM if one of them did not fit. */
int strbuf_status(const struct strbuf *b);
/* Call this function if memory ran out while a text for `b` was made. Depending on the mode of `b`, the call
 * aborts the program or marks `b` as failed. */
void strbuf_fail(struct strbuf *b);

/* These functions append text to `b`: a string, `n` bytes, or text formatted as by printf. */
void strbuf_add(struct strbuf *b, const char *s);
void strbuf_addn(struct strbuf *b, const char *s, size_t n);
void strbuf_addf(struct strbuf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void strbuf_addv(struct strbuf *b, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
/* These append a string, or `n` bytes, as a JSON string literal with quotes. All programs write
 * JSON strings with them.
 *
 * They escape more than JSON requires: every character for which utf8_is_unsafe is true, so that JSON is
 * harmless on a terminal. NUL and bytes that are not UTF-8 (a file name may contain them) become U+FFFD. The
 * result is always valid JSON. */
void strbuf_add_json(struct strbuf *b, const char *s);
void strbuf_add_jsonn(struct strbuf *b, const char *s, size_t n);

/* Appends untrusted text on one line, for people to read. Characters that could control a terminal become
 * escapes. */
void strbuf_add_text(struct strbuf *b, const char *s);
/* Says which unsafe characters strbuf_add_textn keeps instead of turning them into escapes. */
enum strbuf_style {
    STRBUF_ONE_LINE,    /* none */
    STRBUF_LINES,       /* newlines and tabs */
    STRBUF_INKED_LINES, /* newlines, tabs, and colour sequences */
};
/* Appends `n` bytes of untrusted text, for people to read. Characters that could control a terminal become
 * escapes, except those that `style` allows. */
void strbuf_add_textn(struct strbuf *b, const char *s, size_t n, enum strbuf_style style);
/* Appends a number of bytes in a form that people can read, such as "1.50 GiB" or "12 B". */
void strbuf_add_bytes(struct strbuf *b, unsigned long long bytes);
/* Frees the text of a strbuf. The strbuf is then empty and can be used again. `b` may be NULL. */
void strbuf_finish(struct strbuf *b);

#endif
