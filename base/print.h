/* Printing text for people. Programs write to standard output and standard error only through this file and
 * base/log.
 *
 * A file name, a key of a job file or a line of a log can contain escape sequences and bidirectional
 * controls. All text here passes through strbuf_add_textn, which shows such characters as escapes. So none of
 * them reaches a terminal, even where a caller forgot to scrub a name. `tools/check-includes` keeps printf
 * and its relatives out of the programs. Any thread may call print_text, print_bytes and print_error.
 */
#ifndef BASE_PRINT_H
#define BASE_PRINT_H

#include <stddef.h>

/* Prints `n` bytes of text to `fd`. Characters that could control a terminal become escapes. Newlines and
 * tabs are kept, and colours too if `fd` is a terminal. Returns 0, or the negative errno of a failed
 * write. */
int print_text(int fd, const char *text, size_t n);

/* Writes `n` bytes to `fd` unchanged. Use this function only for files, or for text without unsafe
 * characters. Returns 0, or the negative errno of a failed write. */
int print_bytes(int fd, const void *bytes, size_t n);

/* Prints formatted text to standard error. A failed write is ignored, because there is no other place to
 * report it. */
void print_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Shows a line of progress on standard error. On a terminal it overwrites the current line, and the cursor
 * stays at the end of that line. Before other text, call print_status_end: PRINT_KEEP begins a new line,
 * PRINT_CLEAR erases the status. When standard error is not a terminal, each status is a line of its own and
 * print_status_end does nothing.
 *
 * There is one status line per process. Only one thread may use it. */
void print_status(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
enum print_end { PRINT_KEEP, PRINT_CLEAR };
void print_status_end(enum print_end end);

#endif
