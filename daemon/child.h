/* A program run to its end, with a deadline. Blocks: only before the loop starts. */
#ifndef DAEMON_CHILD_H
#define DAEMON_CHILD_H

#include <stdint.h>

#include "base/err.h"
#include "base/strbuf.h"

/* Collects what it writes to its standard output (at most 1 MiB); its standard error is ours. It is killed when it has not
 * ended by itself in time: -ETIMEDOUT. *ret_exit: its exit code; one that a signal ended is an error. */
int child_collect(char *const argv[], uint64_t timeout_ms, struct strbuf *ret_output, int *ret_exit,
                  struct err *err);

#endif
