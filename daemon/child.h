/* Runs a program until it ends or a deadline passes. The call blocks, so it is used only before the loop
 * starts. */
#ifndef DAEMON_CHILD_H
#define DAEMON_CHILD_H

#include <stdint.h>

#include "base/err.h"
#include "base/strbuf.h"

/* Exit code of a program that could not be executed, or that could not load its shared libraries. */
#define CHILD_NOT_RUN 127

/* Runs the program argv[0] and waits until it ends. *ret_output gets its standard output, at most 1 MiB.
 * *ret_exit is its exit code, or CHILD_NOT_RUN if it could not start. Returns -ETIMEDOUT if it had to be
 * killed after `timeout_ms`, and -EIO if a signal ended it. */
int child_collect(char *const argv[], uint64_t timeout_ms, struct strbuf *ret_output, int *ret_exit,
                  struct err *err);

#endif
