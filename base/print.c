/* Implements the printing functions of print.h.
 *
 * Each call makes one write(2), unless the descriptor accepts only a part at a time. So lines of processes
 * that share a terminal do not mix. Nothing is buffered: no text is lost when the process is killed, and text
 * cannot overtake other text that waits in a buffer of stdio.
 *
 * Any thread may call print_text, print_bytes and print_error. The status line belongs to one thread.
 */
#include "base/print.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/strbuf.h"

#define CLEAR_LINE "\r\033[K"

/* True while the terminal's cursor is at the end of a status line. Only the thread that owns the status line
 * uses this variable. */
static bool status_open;

int print_bytes(int fd, const void *bytes, size_t n)
{
    const char *p = bytes;

    while (n > 0) {
        ssize_t done = write(fd, p, n);
        if (done < 0 && errno != EINTR)
            return -errno;
        if (done > 0) {
            p += done;
            n -= (size_t)done;
        }
    }
    return 0;
}

int print_text(int fd, const char *text, size_t n)
{
    struct strbuf b = {0};
    int r;

    strbuf_add_textn(&b, text, n, isatty(fd) ? STRBUF_INKED_LINES : STRBUF_LINES);
    r = print_bytes(fd, b.at, b.n);
    strbuf_finish(&b);
    return r;
}

void print_error(const char *fmt, ...)
{
    struct strbuf b = {0};
    va_list ap;

    va_start(ap, fmt);
    strbuf_addv(&b, fmt, ap);
    va_end(ap);
    print_text(STDERR_FILENO, b.at, b.n);
    strbuf_finish(&b);
}

void print_status(const char *fmt, ...)
{
    struct strbuf text = {0}, b = {0};
    bool terminal = isatty(STDERR_FILENO);
    va_list ap;

    va_start(ap, fmt);
    strbuf_addv(&text, fmt, ap);
    va_end(ap);
    strbuf_add(&b, terminal ? CLEAR_LINE : "");
    strbuf_add_text(&b, text.at);
    strbuf_add(&b, terminal ? "" : "\n");
    print_bytes(STDERR_FILENO, b.at, b.n);
    status_open = terminal;
    strbuf_finish(&text);
    strbuf_finish(&b);
}

void print_status_end(enum print_end end)
{
    if (status_open)
        print_bytes(STDERR_FILENO, end == PRINT_CLEAR ? CLEAR_LINE : "\n", end == PRINT_CLEAR ? 4 : 1);
    status_open = false;
}
