/* Implements the lock files of lock.h.
 *
 * A lock file is not removed when its holder ends. Otherwise two processes could each lock a different file
 * of the same name. The lock is taken with fcntl and not with flock. A worker that is being started inherits
 * the descriptor for a moment, and would keep a flock after the daemon has died.
 */
#include "daemon/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int lock_take(const char *path, const char *what, struct lock *ret, struct err *err)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct stat st;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return err_set_at(err, -errno, path, "cannot open the lock: %s", strerror(errno));
    if (fcntl(fd, F_SETLK, &whole) < 0 || fstat(fd, &st) < 0) {
        int r =
            errno == EAGAIN || errno == EACCES
                ? err_set_at(err, -EBUSY, path, "another tuttid serves this %s; stop that one first", what)
                : err_set_at(err, -errno, path, "cannot lock: %s", strerror(errno));
        close(fd);
        return r;
    }
    if (ret->fd >= 0)
        close(ret->fd);
    *ret = (struct lock){fd, st.st_dev, st.st_ino};
    return 0;
}

bool lock_is_at(const struct lock *l, const char *path)
{
    struct stat st;
    return l->fd >= 0 && lstat(path, &st) == 0 && st.st_dev == l->dev && st.st_ino == l->inode;
}
