/* Creates directories in a way that survives a power loss. */
#ifndef BASE_DIRS_H
#define BASE_DIRS_H

#include <sys/types.h>

#include "base/err.h"

/* Creates the directory `path` and its missing parents with `mode`, like mkdir -p. Existing directories
 * are not changed.
 *
 * Each new directory's entry is synced to disk in its parent. A parent that this process may not read is
 * not synced. On failure the error gives the path of the directory that could not be created. The message
 * calls the directory `what`, for example "the output directory". */
int dirs_make(const char *path, mode_t mode, const char *what, struct err *err);

#endif
