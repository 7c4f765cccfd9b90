/* Runs a program until it ends or until a deadline passes. The calling thread blocks. So the daemon uses this
 * function only before it starts its event loop. */
#ifndef DAEMON_CHILD_H
#define DAEMON_CHILD_H

#include <stdint.h>

#include "base/err.h"
#include "base/strbuf.h"

/* The exit code of a program that could not be executed or could not load its shared libraries. */
#define CHILD_NOT_RUN 127

/* Runs the program argv[0] and waits until the program ends. *ret_output gets the first 1 MiB of the
 * program's standard output. *ret_exit gets its exit code, or CHILD_NOT_RUN if the program could not start.
 * Returns -ETIMEDOUT if the program was killed after `timeout_ms`. Returns -EIO if a signal ended the
 * program. */
int child_collect(char *const argv[], uint64_t timeout_ms, struct strbuf *ret_output, int *ret_exit,
                  struct err *err);

#endif
