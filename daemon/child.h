/* Runs a program to its end, with a deadline. It blocks: only before the loop starts. */
#ifndef DAEMON_CHILD_H
#define DAEMON_CHILD_H

#include <stdint.h>

#include "base/err.h"
#include "base/strbuf.h"

/* The exit code of a program that could not be executed, or not be loaded: its shared libraries are missing. */
#define CHILD_NOT_RUN 127

/* Collects what the program writes to its standard output (at most 1 MiB); its standard error is ours. A program that
 * does not end in time is killed: -ETIMEDOUT. *ret_exit is its exit code, also after a failure to start it
 * (CHILD_NOT_RUN). A program that a signal ended is an error. */
int child_collect(char *const argv[], uint64_t timeout_ms, struct strbuf *ret_output, int *ret_exit,
                  struct err *err);

#endif
