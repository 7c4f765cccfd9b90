/* Runs a program until it ends or a deadline passes. The call blocks, so it is used only before the loop
 * starts. */
#ifndef DAEMON_CHILD_H
#define DAEMON_CHILD_H

#include <stdint.h>

#include "base/err.h"
#include "base/strbuf.h"

/* Exit code of a program that could not be executed, or that could not load its shared libraries. */
#define CHILD_NOT_RUN 127

/* Runs the program argv[0] and stores its standard output, at most 1 MiB, in *ret_output. The program shares
 * the daemon's standard error. *ret_exit is the program's exit code, or CHILD_NOT_RUN when the program could
 * not be started. Kills a program that does not end within timeout_ms and returns -ETIMEDOUT. Returns -EIO
 * when a signal ended the program. */
int child_collect(char *const argv[], uint64_t timeout_ms, struct strbuf *ret_output, int *ret_exit,
                  struct err *err);

#endif
