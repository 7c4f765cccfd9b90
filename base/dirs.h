/* Directories on the way to a path, made durably: who finds one after a power loss finds it in its parent. */
#ifndef BASE_DIRS_H
#define BASE_DIRS_H

#include <sys/types.h>

#include "base/err.h"

/* mkdir -p: `path` and its parents, each synced into its own parent (unless that may be written but not read). Those that
 * are there stay as they are. The error names the one that could not be made, and calls it `what` ("the output directory"). */
int dirs_make(const char *path, mode_t mode, const char *what, struct err *err);

#endif
