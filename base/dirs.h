/* Creating directories so that they survive a power loss. */
#ifndef BASE_DIRS_H
#define BASE_DIRS_H

#include <sys/types.h>

#include "base/err.h"

/* Creates the directory `path` and its missing parents with `mode`, like mkdir -p. Existing directories stay
 * as they are.
 *
 * Each new directory's entry is synced to disk in its parent; a parent that this process may not read is not
 * synced. On failure the error names the directory that could not be created, and the message calls it
 * `what`, for example "the output directory". */
int dirs_make(const char *path, mode_t mode, const char *what, struct err *err);

#endif
