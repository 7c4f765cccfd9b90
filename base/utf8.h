/* The parts of UTF-8 that messages, logs, names and JSON need, and text from outside made safe to show. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    UTF8_NAME_BYTES = 16,  /* "U+202E", "byte 0x9B" */
    UTF8_SHOWN_BYTES = 12, /* a character, or its longest escape "\U000e0001", with the NUL */
};

/* Bytes of the well-formed character at `s` (1 to 4), or 0 when the next of the `n` bytes begin none. */
size_t utf8_char_bytes(const void *s, size_t n);
/* The code point of a well-formed character; `bytes` is what utf8_char_bytes returned for it. */
uint32_t utf8_decode(const void *s, size_t bytes);
/* How many of the `n` bytes come before a character that is cut off at the end. Text that arrives in pieces
 * keeps the rest for the next piece. */
size_t utf8_whole_bytes(const char *s, size_t n);

/* Copies what fits into `size` bytes, cut between characters; a cut ends in "...". */
void utf8_copy(char *dst, size_t size, const char *src);

/* True for characters that act on a terminal, change the direction of the text around them, break lines, or
 * cannot be seen: C0, DEL, C1, bidirectional controls, line separators, and invisible format characters.
 * U+200C and U+200D are not among them: Persian, Indic scripts and emoji are spelt with them. */
bool utf8_is_unsafe(uint32_t c);
/* For names: true when `s` has an unsafe character or is not UTF-8. `ret` then names the first: "U+202E",
 * "byte 0x9B". */
bool utf8_find_unsafe(const char *s, char ret[UTF8_NAME_BYTES]);

/* How the next character of the `n` bytes at `s` (n > 0) is shown to a person. `ret` gets the character
 * itself, or an escape in ASCII: \n, \r, \t; \u001b, \u202e or \U000e0001 for an unsafe character; \x9b for
 * a byte that is not UTF-8. Returns how many bytes were shown, at least 1. Escapes are safe themselves, so
 * showing a text twice changes nothing more. A backslash stays one backslash for the same reason. */
size_t utf8_show(const char *s, size_t n, char ret[UTF8_SHOWN_BYTES]);
/* The escape of a code point. */
void utf8_escape(uint32_t c, char ret[UTF8_SHOWN_BYTES]);

/* Copies `src` as utf8_show shows it, on one line, cut between characters and escapes when it does not fit
 * into `size` bytes; a cut ends in "...". `dst` and `src` must not overlap. */
void utf8_scrub(char *dst, size_t size, const char *src);

#endif
