/* The terminal: what it can display, a region at the bottom that is redrawn, and signals. */
#ifndef CLIENT_TERM_H
#define CLIENT_TERM_H

#include <stdbool.h>

#include "base/strbuf.h"
#include "client/show.h"

/* Returns the style for output to `fd`. A terminal has a width, and colours unless NO_COLOR is set or TERM
 * is "dumb". Other output is plain and has any width. */
struct style term_style(int fd);
/* Returns true when `fd` is a terminal that can move its cursor. */
bool term_is_terminal(int fd);
/* Returns the number of rows of the terminal, or 24 when it is unknown. */
int term_rows(int fd);

/* Starts to use the region on the terminal `fd`. A program has only one region. */
void term_begin(int fd);
/* Redraws the region with `lines`, and prints `above` permanently above it. Both consist of whole lines
 * and may be empty. Returns a negative errno when the terminal is gone. */
int term_frame(const char *above, const char *lines);
/* Ends the use of the region and shows the cursor again. The last frame stays. May be called without
 * term_begin. */
void term_end(void);

/* Installs the signal handlers. SIGINT and SIGTERM are counted, and the third one ends the program. SIGHUP
 * and SIGQUIT show the cursor and end the program. */
void term_catch_signals(void);
int term_signals(void);     /* how many SIGINT and SIGTERM have arrived */
int term_last_signal(void); /* the last of them; 0: none */

#endif
