/* A growing string, for dumps and reports. Zero-initialize; strbuf_finish frees. Aborts without memory. */
#ifndef BASE_STRBUF_H
#define BASE_STRBUF_H

#include <stdarg.h>
#include <stddef.h>

struct strbuf {
    char *at; /* always NUL-terminated once something was added; NULL before */
    size_t n, cap;
};

void strbuf_add(struct strbuf *b, const char *s);
void strbuf_addn(struct strbuf *b, const char *s, size_t n);
void strbuf_addf(struct strbuf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* JSON string literal with quotes and escapes. */
void strbuf_add_json(struct strbuf *b, const char *s);
/* "1.50 GiB", "12 B": for people. */
void strbuf_add_bytes(struct strbuf *b, unsigned long long bytes);
void strbuf_finish(struct strbuf *b);

#endif
