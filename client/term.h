/* Functions for the terminal: what it can display, a region at its bottom that is redrawn, and signals. */
#ifndef CLIENT_TERM_H
#define CLIENT_TERM_H

#include <stdbool.h>

#include "base/strbuf.h"
#include "client/show.h"

/* Returns the style for output to `fd`. For a terminal, the style has a width, and colours unless NO_COLOR is
 * set or TERM is "dumb". For a file or a pipe, the style is plain text of any width. */
struct style term_style(int fd);
/* Returns true if `fd` is a terminal whose cursor can be moved. */
bool term_is_terminal(int fd);
/* Returns the number of rows of the terminal, or 24 if the number is unknown. */
int term_rows(int fd);

/* Begins to draw a region at the bottom of the terminal `fd`. A program can have only one region. */
void term_begin(int fd);
/* Redraws the region with the text `lines`, and prints the text `above` permanently above the region. Both
 * texts consist of whole lines and may be empty. Returns a negative errno if the terminal is gone. */
int term_frame(const char *above, const char *lines);
/* Stops redrawing the region and shows the cursor again. The last frame stays on the screen. May be called
 * without term_begin. */
void term_end(void);

/* Installs the signal handlers. SIGINT and SIGTERM are only counted, except that the third one ends the
 * program. SIGHUP and SIGQUIT show the cursor again and end the program. */
void term_catch_signals(void);
int term_signals(void);     /* how many SIGINT and SIGTERM have arrived */
int term_last_signal(void); /* the last of them; 0: none */

#endif
