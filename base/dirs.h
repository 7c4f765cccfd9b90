/* Creates directories and syncs them to disk, so that they survive a power loss. */
#ifndef BASE_DIRS_H
#define BASE_DIRS_H

#include <sys/types.h>

#include "base/err.h"

/* Creates the directory `path` and its missing parents, like mkdir -p. New directories get the permissions
 * `mode` and are synced to disk. The sync is skipped if this process may not read the parent. Error messages
 * call the directory `what`, for example "the output directory". */
int dirs_make(const char *path, mode_t mode, const char *what, struct err *err);

#endif
