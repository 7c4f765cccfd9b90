/* A lock file, which only one process can hold at a time. Loop thread only. The calls never wait for the
 * lock. */
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

/* Locks the file at `path` until the process ends. Creates the file if it is missing. Returns -EBUSY when
 * another process holds the lock. The message then says that another tuttid serves `what`. On success, *ret
 * is set and a lock that *ret held before is released. */
int lock_take(const char *path, const char *what, struct lock *ret, struct err *err);

/* Returns whether the file that was locked is still the file at `path`. */
bool lock_is_at(const struct lock *l, const char *path);

#endif
