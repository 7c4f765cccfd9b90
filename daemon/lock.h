/* A lock file, which only one process at a time can hold. The functions never wait for a lock. Loop thread
 * only. */
#ifndef DAEMON_LOCK_H
#define DAEMON_LOCK_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"

struct lock {
    int fd;      /* -1: not held */
    dev_t dev;   /* device of the locked file */
    ino_t inode; /* inode of the locked file */
};

/* Locks the file at `path` until the process ends. Creates the file if needed. Returns -EBUSY if another
 * process holds the lock, with a message that another tuttid serves `what`. If *ret already holds a lock,
 * that lock is released. */
int lock_take(const char *path, const char *what, struct lock *ret, struct err *err);

/* Returns whether `path` still names the file that was locked. It does not if somebody removed or replaced
 * the file. */
bool lock_is_at(const struct lock *l, const char *path);

#endif
