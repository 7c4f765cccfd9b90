/* What programs print for people, and the only way to standard output and standard error besides base/log.
 *
 * A file name, a key of a job file or a line of a log can hold escape sequences and bidirectional controls.
 * Everything here passes through strbuf_add_textn, so no such character reaches a terminal, whoever forgot to
 * scrub it. `tools/check-includes` keeps printf and its relatives out of the programs. Any thread may call.
 */
#ifndef BASE_PRINT_H
#define BASE_PRINT_H

#include <stddef.h>

/* Text of whole or part lines, or JSON. Unsafe characters are shown as escapes; newlines and tabs stay, and
 * colours stay on a terminal. 0, or -errno of the write that failed. */
int print_text(int fd, const char *text, size_t n);

/* Bytes as they are: a file or generated text that somebody asked for, and frames whose text was scrubbed. */
int print_bytes(int fd, const void *bytes, size_t n);

/* Text on standard error. A failure to write is ignored: there is nowhere left to report it. */
void print_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* A line of progress on standard error. On a terminal it replaces the line of the cursor and leaves the
 * cursor at its end; print_status_end then begins a new line, or clears the line, before other text.
 * Elsewhere each status is a line of its own, and print_status_end does nothing. */
void print_status(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
enum print_end { PRINT_KEEP, PRINT_CLEAR };
void print_status_end(enum print_end end);

#endif
