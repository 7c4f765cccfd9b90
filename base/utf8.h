/* Text that came from outside, made safe to show: the parts of UTF-8 that messages, logs and JSON need. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stddef.h>

/* Bytes of the well-formed character at `s` (1 to 4), or 0 when the next of the `n` bytes begin none. */
size_t utf8_char_bytes(const void *s, size_t n);

/* Copies what fits into `size` bytes, cut between characters; a cut ends in "...". */
void utf8_copy(char *dst, size_t size, const char *src);

/* In place, so that a terminal and a log line survive it: line breaks and tabs become spaces, other control
 * characters and bytes that are no UTF-8 become '?'. Never longer than before. */
void utf8_scrub(char *s);

#endif
