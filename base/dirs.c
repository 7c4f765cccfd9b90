/* Implements dirs_make, which creates missing directories one after another. Each time, it also syncs the
 * parent of the new directory to disk. Any thread may call dirs_make. */
#include "base/dirs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Syncs the parent directory of `path` to disk, so that the new entry survives a power loss. If this process
 * may not read the parent, does nothing and returns 0. */
static int sync_parent(const char *path)
{
    char dir[PATH_MAX];
    snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    if (slash != NULL)
        slash[slash == dir ? 1 : 0] = '\0';
    int fd = open(slash != NULL ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno == EACCES ? 0 : -errno;
    int r = fsync(fd) < 0 ? -errno : 0;
    close(fd);
    return r;
}

int dirs_make(const char *path, mode_t mode, const char *what, struct err *err)
{
    char buf[PATH_MAX];
    if ((size_t)snprintf(buf, sizeof buf, "%s", path) >= sizeof buf)
        return err_set_at(err, -ENAMETOOLONG, path, "the path is too long");
    if (buf[0] == '\0')
        return err_set(err, -EINVAL, "the path is empty");
    for (char *p = buf + 1;; p++) {
        bool end = *p == '\0';
        if (*p != '/' && !end)
            continue;
        *p = '\0';
        int r = mkdir(buf, mode) < 0 ? -errno : sync_parent(buf);
        if (r < 0 && r != -EEXIST)
            return err_set_at(err, r, buf, "cannot make %s: %s", what, strerror(-r));
        if (end)
            return 0;
        *p = '/';
    }
}
