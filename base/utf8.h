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

/* Returns the length, 1 to 4 bytes, of the well-formed character at `s`. `n` is the number of bytes left
 * at `s`. Returns 0 when there is no well-formed character at `s`. */
size_t utf8_char_bytes(const void *s, size_t n);
/* Returns the code point of a well-formed character. `bytes` is the length that utf8_char_bytes returned. */
uint32_t utf8_decode(const void *s, size_t bytes);
/* Returns the number of bytes before a character that is cut off at the end of the text, or `n` when no
 * character is cut off. A caller that reads text in pieces puts the remaining bytes in front of the next
 * piece. */
size_t utf8_whole_bytes(const char *s, size_t n);

/* Copies `src` to the `size` bytes at `dst`. Text that does not fit is cut between two characters
 * and ends in "...". */
void utf8_copy(char *dst, size_t size, const char *src);

/* Returns true for a character that controls a terminal, changes the direction of text, breaks a line, or
 * is invisible. These are C0, DEL, C1, bidirectional controls, line separators, and invisible format
 * characters. U+200C and U+200D are safe because Persian, Indic scripts and emoji need them. */
bool utf8_is_unsafe(uint32_t c);
/* Returns true when the name `s` has an unsafe character or is not UTF-8. In this case `ret` names the
 * first bad character or byte, as in "U+202E" or "byte 0x9B". */
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

/* Copies `src` to the `size` bytes at `dst`, on one line. Unsafe characters become escapes (utf8_show).
 * Text that does not fit is cut between two characters and ends in "...". `dst` and `src` must not
 * overlap. */
void utf8_scrub(char *dst, size_t size, const char *src);

#endif
