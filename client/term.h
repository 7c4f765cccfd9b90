/* The terminal: its abilities, a region at its bottom that is redrawn in place, and signals. */
#ifndef CLIENT_TERM_H
#define CLIENT_TERM_H

#include <stdbool.h>

#include "base/strbuf.h"
#include "client/show.h"

/* Returns the style for output to `fd`. A terminal has its own width and, unless NO_COLOR is set or TERM is
 * "dumb", colours. Other output is plain and has no width limit. */
struct style term_style(int fd);
/* Returns true when `fd` is a terminal that can move its cursor. */
bool term_is_terminal(int fd);
/* Returns the height of the terminal in rows, or 24 when it is unknown. */
int term_rows(int fd);

/* Begins to use the region on the terminal `fd`. There is one region per program. */
void term_begin(int fd);
/* Replaces the region by `lines`, and adds the lines of `above` permanently above it. Both consist of whole
 * lines and may be empty. Everything is one write. Returns a negative errno when the terminal is gone. */
int term_frame(const char *above, const char *lines);
/* Ends the use of the region. The last frame stays on the terminal, and the cursor is shown again. It may be
 * called without term_begin. */
void term_end(void);

/* Installs the signal handlers. SIGINT and SIGTERM are only counted, but the third one ends the
 * program at once. SIGHUP and SIGQUIT end the program after the cursor is shown again. Ctrl-Z suspends
 * the program as usual. */
void term_catch_signals(void);
int term_signals(void);     /* how many SIGINT and SIGTERM have arrived */
int term_last_signal(void); /* the last of them; 0: none */

#endif
