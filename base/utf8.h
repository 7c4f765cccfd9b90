/* Functions for UTF-8 text in messages, logs, names and JSON, and functions that make untrusted text safe to
 * show. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Sizes of buffers, with the NUL. */
enum {
    UTF8_NAME_BYTES = 16,  /* for "U+202E" or "byte 0x9B" */
    UTF8_SHOWN_BYTES = 12, /* for a character or "\U000e0001" */
};

/* Returns the length in bytes of the character at `s`, from 1 to 4. `n` is the number of bytes that may be
 * read at `s`. Returns 0 if the bytes are not well-formed UTF-8. */
size_t utf8_char_bytes(const void *s, size_t n);
/* Returns the code point of the well-formed character at `s`. `bytes` is the length that utf8_char_bytes
 * returned for it. */
uint32_t utf8_decode(const void *s, size_t bytes);
/* Returns how many of the `n` bytes belong to complete characters. The last character may be incomplete. If a
 * caller reads text in pieces, it must put the bytes of an incomplete character in front of the next
 * piece. */
size_t utf8_whole_bytes(const char *s, size_t n);

/* Copies the string `src` to the `size` bytes at `dst`. A text that is too long is cut between two
 * characters and ends in "...". */
void utf8_copy(char *dst, size_t size, const char *src);

/* Returns true if the character `c` is not safe to show. An unsafe character controls a terminal, changes the
 * direction of text, breaks a line, or is invisible. U+200C and U+200D count as safe, because some scripts
 * and emoji need them. */
bool utf8_is_unsafe(uint32_t c);
/* Returns true if `s` contains an unsafe character or is not UTF-8. In that case `ret` names the first bad
 * character or byte, such as "U+202E" or "byte 0x9B". */
bool utf8_find_unsafe(const char *s, char ret[UTF8_NAME_BYTES]);

/* Writes to `ret` how the first character of the `n` bytes at `s` (n > 0) is shown to a person, and returns
 * how many bytes that character has, at least 1.
 *
 * A safe character is shown as it is. An unsafe character is shown as an ASCII escape: \n, \r, \t, \u001b,
 * \u202e or \U000e0001. A byte that is not UTF-8 is shown as \x9b. Escapes consist of safe characters, and a
 * backslash is not escaped, so text that was shown once does not change when it is shown again. */
size_t utf8_show(const char *s, size_t n, char ret[UTF8_SHOWN_BYTES]);
/* Writes an escape of the code point `c` to `ret`. The escape consists of ASCII characters only. */
void utf8_escape(uint32_t c, char ret[UTF8_SHOWN_BYTES]);

/* Copies `src` to the `size` bytes at `dst`, on one line. Unsafe characters become escapes. A text that is
 * too long is cut and ends in "...". `dst` and `src` must not overlap. */
void utf8_scrub(char *dst, size_t size, const char *src);

#endif
