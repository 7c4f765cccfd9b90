/* Creates directories in such a way that they survive a power loss. */
#ifndef BASE_DIRS_H
#define BASE_DIRS_H

#include <sys/types.h>

#include "base/err.h"

/* Creates the directory `path` and its missing parents, like mkdir -p. New directories get the permissions
 * `mode`. They are synced to disk, except in a parent that this process may not read. Messages call the
 * directory `what`, for example "the output directory". */
int dirs_make(const char *path, mode_t mode, const char *what, struct err *err);

#endif
