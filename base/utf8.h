/* UTF-8 for messages, logs, names and JSON, and functions that make untrusted text safe to show. */
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

/* Returns the length of the character at `s`, 1 to 4 bytes. Returns 0 when it is not well-formed. `n` is
 * the number of bytes left. */
size_t utf8_char_bytes(const void *s, size_t n);
/* Returns the code point of a well-formed character. `bytes` is the length that utf8_char_bytes returned. */
uint32_t utf8_decode(const void *s, size_t bytes);
/* Returns `n` without the bytes of a character that is cut off at the end. A caller that reads in pieces
 * puts these bytes in front of the next piece. */
size_t utf8_whole_bytes(const char *s, size_t n);

/* Copies `src` to the `size` bytes at `dst`. Text that is too long is cut between two characters and ends
 * in "...". */
void utf8_copy(char *dst, size_t size, const char *src);

/* Returns true for a character that is not safe to show. It controls a terminal, changes the direction of
 * text, breaks a line, or is invisible. U+200C and U+200D count as safe, because some scripts and emoji
 * need them. */
bool utf8_is_unsafe(uint32_t c);
/* Returns true when `s` has an unsafe character or is not UTF-8. `ret` then names the first bad character,
 * as in "U+202E" or "byte 0x9B". */
bool utf8_find_unsafe(const char *s, char ret[UTF8_NAME_BYTES]);

/* Writes to `ret` how the first character of the `n` bytes at `s` (n > 0) is shown to a person, and returns
 * how many bytes that character has, at least 1.
 *
 * A safe character is shown as it is. An unsafe character is shown as an ASCII escape: \n, \r, \t, \u001b,
 * \u202e or \U000e0001. A byte that is not UTF-8 is shown as \x9b. Escapes consist of safe characters, and a
 * backslash is not escaped, so text that was shown once does not change when it is shown again. */
size_t utf8_show(const char *s, size_t n, char ret[UTF8_SHOWN_BYTES]);
/* Writes the ASCII escape of the code point `c` to `ret`. */
void utf8_escape(uint32_t c, char ret[UTF8_SHOWN_BYTES]);

/* Copies `src` to the `size` bytes at `dst`, on one line. Unsafe characters become escapes. Text that is
 * too long ends in "...". `dst` and `src` must not overlap. */
void utf8_scrub(char *dst, size_t size, const char *src);

#endif
