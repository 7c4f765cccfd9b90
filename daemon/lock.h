/* A lock file: one process at a time holds it. Blocks for the moment of a system call. Loop thread. */
#ifndef DAEMON_LOCK_H
#define DAEMON_LOCK_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"

struct lock {
    int fd;      /* -1: not held */
    dev_t dev;   /* of the locked file */
    ino_t inode; /* of the locked file */
};

/* Makes the file when it is missing, and locks it until the process ends. -EBUSY: another process holds the lock; `what`
 * says in the message what that process serves. *ret changes only on success; a lock that it had before is let go. */
int lock_take(const char *path, const char *what, struct lock *ret, struct err *err);
/* Whether the file that was locked is still at this path. */
bool lock_is_at(const struct lock *l, const char *path);

#endif
