/* Implements the terminal functions of term.h.
 *
 * A frame is drawn over the last one. The cursor goes up by the rows of the last frame, and every line is
 * overwritten and the rest of its row erased. All of this is one write, so nothing flickers. When the
 * terminal has become narrower, it has wrapped the lines of the last frame, so their rows are counted again
 * with the new width.
 *
 * The cursor is hidden while the region exists. It is shown again in every way that the program can end: by
 * term_end, by exit (atexit), or by the signal handlers, which only write and set flags.
 */
#include "client/term.h"

#include <errno.h>
#include <langinfo.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/print.h"
#include "base/vec.h"

#define SHOW_CURSOR "\033[?25h"
#define HIDE_CURSOR "\033[?25l"

static volatile sig_atomic_t region_fd = -1; /* -1: there is no region */
/* Set when the process is resumed after Ctrl-Z. The shell has written over the region by then, so the region
 * must be drawn anew. */
static volatile sig_atomic_t continued;
static volatile sig_atomic_t signals; /* SIGINT and SIGTERM so far */
static volatile sig_atomic_t last_signal;
static VEC(int) drawn;  /* columns of the last frame's lines */
static int drawn_width; /* terminal width at that frame */

bool term_is_terminal(int fd)
{
    const char *term = getenv("TERM");
    return isatty(fd) && term != NULL && term[0] != '\0' && strcmp(term, "dumb") != 0;
}

static struct winsize window_size(int fd)
{
    struct winsize w = {0};
    if (ioctl(fd, TIOCGWINSZ, &w) < 0 || w.ws_col == 0)
        w.ws_col = 80;
    if (w.ws_row == 0)
        w.ws_row = 24;
    return w;
}

struct style term_style(int fd)
{
    const char *no_color = getenv("NO_COLOR");
    bool terminal = isatty(fd), utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    return (struct style){
        .color = term_is_terminal(fd) && (no_color == NULL || no_color[0] == '\0'),
        .unicode = utf8 && term_is_terminal(fd),
        .utf8 = utf8 || !terminal,
        .width = terminal ? window_size(fd).ws_col : 0,
    };
}

int term_rows(int fd)
{
    return window_size(fd).ws_row;
}

/* ---- the region ---- */

static void show_cursor(void)
{
    ssize_t ignored = region_fd >= 0 ? write(region_fd, SHOW_CURSOR, strlen(SHOW_CURSOR)) : 0;
    (void)ignored;
}

void term_begin(int fd)
{
    static bool registered;
    if (!registered)
        atexit(show_cursor);
    registered = true;
    drawn.n = 0;
    region_fd = fd;
}

/* Returns the number of rows that the last frame takes on a terminal with `width` columns. */
static int rows_drawn(int width)
{
    int rows = 0;
    for (size_t i = 0; i < drawn.n; i++)
        rows += drawn.at[i] <= width ? 1 : (drawn.at[i] + width - 1) / width;
    return rows;
}

/* Appends the lines, with unsafe characters replaced by escapes. Erases the rest of each row. If `note` is
 * true, stores the width of each line in `drawn`. */
static void add_lines(struct strbuf *b, const char *lines, bool note)
{
    while (*lines != '\0') {
        size_t n = strcspn(lines, "\n");
        struct strbuf line = {0};
        strbuf_add_textn(&line, lines, n, STRBUF_INKED_LINES);
        if (note)
            vec_push(&drawn, show_columns(line.at));
        strbuf_addf(b, "%s\033[K\r\n", line.at);
        strbuf_finish(&line);
        lines += n + (lines[n] == '\n');
    }
}

int term_frame(const char *above, const char *lines)
{
    struct strbuf b = {0};
    int width = window_size(region_fd).ws_col, rows = continued ? 0 : rows_drawn(width);
    continued = 0;
    strbuf_add(&b, HIDE_CURSOR);
    if (rows > 0)
        strbuf_addf(&b, "\033[%dA", rows);
    /* If the width has changed, erase the old frame first. When the width of a terminal changes, the terminal
     * joins the lines that it had wrapped. */
    strbuf_add(&b, width != drawn_width ? "\r\033[J" : "\r");
    drawn_width = width;
    drawn.n = 0;
    add_lines(&b, above, false);
    add_lines(&b, lines, true);
    strbuf_add(&b, "\033[J");
    int r = print_bytes(region_fd, b.at, b.n);
    strbuf_finish(&b);
    return r;
}

void term_end(void)
{
    show_cursor();
    region_fd = -1;
    vec_free(&drawn);
}

/* ---- signals ---- */

/* Handles SIGINT and SIGTERM: counts the signals, and ends the program at the third signal. */
static void count(int number)
{
    last_signal = number;
    signals = signals + 1;
    if (signals < 3)
        return;
    show_cursor();
    _exit(128 + number);
}

/* Handles SIGHUP and SIGQUIT: makes the cursor visible again, and ends the program with the same signal. */
static void end(int number)
{
    show_cursor();
    signal(number, SIG_DFL);
    raise(number);
}

/* Handles Ctrl-Z: makes the cursor visible again, and stops the process until the user continues it. */
static void suspend(int number)
{
    int saved = errno;
    (void)number;
    show_cursor();
    raise(SIGSTOP);
    continued = 1;
    errno = saved;
}

/* Handles a change of the window size by doing nothing. The signal itself makes poll return, and the next
 * frame reads the new size. */
static void wake(int number)
{
    (void)number;
}

static void handle(int number, void (*handler)(int))
{
    struct sigaction a = {.sa_handler = handler}, old;
    sigemptyset(&a.sa_mask);
    if (sigaction(number, NULL, &old) == 0 && old.sa_handler == SIG_IGN && number != SIGINT &&
        number != SIGTERM)
        /* If a signal was already ignored when the program started, keep ignoring it, so that nohup works. */
        return;
    sigaction(number, &a, NULL);
}

void term_catch_signals(void)
{
    handle(SIGINT, count);
    handle(SIGTERM, count);
    handle(SIGHUP, end);
    handle(SIGQUIT, end);
    handle(SIGTSTP, suspend);
    handle(SIGWINCH, wake);
}

int term_signals(void)
{
    return signals;
}

int term_last_signal(void)
{
    return last_signal;
}
