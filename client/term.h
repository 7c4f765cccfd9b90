/* The terminal: what it can do, a region at its bottom that is redrawn in place, and the signals that
 * concern it. */
#ifndef CLIENT_TERM_H
#define CLIENT_TERM_H

#include <stdbool.h>

#include "base/strbuf.h"
#include "client/show.h"

/* For output on `fd`: as wide as the terminal, plain where it is none. Respects NO_COLOR and TERM=dumb. */
struct style term_style(int fd);
bool term_is_terminal(int fd); /* one that can move its cursor */
int term_rows(int fd);

/* The region. One per program. */
void term_begin(int fd);
/* Replaces the region by `lines`, after `above` (both of whole lines, may be empty) has been added for
 * good above it: one write. -errno when the terminal is gone. */
int term_frame(const char *above, const char *lines);
void term_end(void); /* leaves what was drawn, shows the cursor again; also when nothing began */

/* SIGINT and SIGTERM are counted and not obeyed; the third ends the program at once. SIGHUP and SIGQUIT
 * end it with the cursor restored; Ctrl-Z works. */
void term_catch_signals(void);
int term_signals(void);     /* how many came */
int term_last_signal(void); /* 0: none */

#endif
