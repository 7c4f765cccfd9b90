/* Implements the log of log.h.
 *
 * Each line is one write(2), without stdio. This has three advantages. Lines of threads and processes that
 * share the descriptor do not mix, because a line is shorter than PIPE_BUF. Nothing is lost in a buffer when
 * the process is killed. And logging works when memory ran out.
 *
 * A line that cannot be written is dropped, because there is nowhere to report that, and a daemon
 * must not stop because a terminal went away. errno is preserved, so a caller may log first and
 * look at errno afterwards.
 *
 * log_init must be called before other threads start. Any thread may call log_msg.
 */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/utf8.h"

enum { LINE_BYTES = 2048 };

/* The settings. Only log_init writes them. */
static enum log_level max = LOG_INFO;
static int priorities; /* nonzero: each line begins with "<N>" */

void log_init(enum log_level max_level, int prefix_priority)
{
    max = max_level;
    priorities = prefix_priority;
}

static void write_line(const char *line, size_t bytes)
{
    ssize_t r;

    do
        r = write(STDERR_FILENO, line, bytes);
    while (r < 0 && errno == EINTR);
}

void log_msg(enum log_level level, const char *fmt, ...)
{
    char text[LINE_BYTES + 8], line[LINE_BYTES];
    int saved_errno = errno;
    size_t n = 0;
    va_list ap;

    if (level > max)
        return;
    va_start(ap, fmt);
    if (vsnprintf(text, sizeof text, fmt, ap) < 0)
        text[0] = '\0';
    va_end(ap);
    for (size_t end = strlen(text); end > 0 && text[end - 1] == '\n'; end--)
        text[end - 1] = '\0';
    if (priorities)
        n = (size_t)snprintf(line, sizeof line, "<%d>", (int)level);
    utf8_scrub(line + n, sizeof line - n, text);
    n += strlen(line + n);
    line[n++] = '\n'; /* replaces the NUL */
    write_line(line, n);
    errno = saved_errno;
}
