/* A lock file, which only one process can hold. The calls never wait. Loop thread only. */
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
 * process has the lock. The message then says that another tuttid serves `what`. A lock that *ret held
 * before is released. */
int lock_take(const char *path, const char *what, struct lock *ret, struct err *err);

/* Returns whether the file that was locked is still the file at `path`. */
bool lock_is_at(const struct lock *l, const char *path);

#endif
