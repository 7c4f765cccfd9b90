/* A lock file, which only one process at a time can hold. No function waits until a lock becomes free. Loop
 * thread only. */
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

/* Locks the file at `path` until the process ends. Creates the file if it does not exist. If another process
 * holds the lock, returns -EBUSY with a message that another tuttid serves `what`. If *ret already holds a
 * lock, that old lock is released. */
int lock_take(const char *path, const char *what, struct lock *ret, struct err *err);

/* Returns true if the file at `path` is still the file that was locked. Returns false if somebody has removed
 * or replaced the file. */
bool lock_is_at(const struct lock *l, const char *path);

#endif
