/* Implements the checks and the lock of output.h.
 *
 * The lock is flock(2) on the file `lock` in the directory. The kernel releases it when its holder ends, in
 * whatever way.
 *
 * The kernel answers whether the process may write (faccessat with AT_EACCESS); the answer is not computed
 * from file modes. Access lists, read-only mounts and the privileges of root therefore count as they do
 * when the job writes.
 */
#include "daemon/worker/output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/dirs.h"

#define LOCK_FILE     "lock"
#define LOCK_RETRY_NS 50000000ull

/* ---- an output that exists ---- */

static const char *type_name(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG:
        return "a file";
    case S_IFCHR:
    case S_IFBLK:
        return "a device";
    case S_IFIFO:
        return "a FIFO";
    case S_IFSOCK:
        return "a socket";
    default:
        return "no directory";
    }
}

static int fail_busy(const char *path, struct err *err)
{
    return err_set_at(err, -EBUSY, path, "another worker is writing to this output; wait for it or stop it");
}

/* Returns -EBUSY if the output directory exists and another worker has locked it. */
static int check_lock(const char *path, int dir, struct err *err)
{
    int lock = openat(dir, LOCK_FILE, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK),
        r = lock < 0 ? -errno : 0;

    if (r == -ENOENT)
        return 0;
    if (r == 0 && flock(lock, LOCK_SH | LOCK_NB) < 0)
        r = -errno;
    if (lock >= 0)
        close(lock);
    if (r == -EWOULDBLOCK)
        return fail_busy(path, err);
    return r < 0 ? err_set_at(err, r, path,
                              "its file \"" LOCK_FILE
                              "\" cannot be opened for writing: %s; choose another output, or "
                              "ask its owner",
                              strerror(-r))
                 : 0;
}

static int check_directory(const char *path, struct err *err)
{
    if (faccessat(AT_FDCWD, path, R_OK | W_OK | X_OK, AT_EACCESS) < 0)
        return err_set_at(
            err, -errno, path,
            "the job cannot write to this directory: %s; choose another output, or change its permissions",
            strerror(errno));
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_set_at(err, -errno, path, "cannot open the output directory: %s", strerror(errno));
    int r = check_lock(path, fd, err);
    close(fd);
    return r;
}

/* ---- an output that does not exist ---- */

/* Shortens a path to the path of its parent directory: "a/b" becomes "a", "/a" becomes "/", and "a" becomes
 * ".". Returns false if the path has no parent. */
static bool cut_to_parent(char *path)
{
    size_t n = strlen(path);

    while (n > 1 && path[n - 1] == '/')
        path[--n] = '\0';
    char *slash = strrchr(path, '/');
    if (strcmp(path, "/") == 0 || strcmp(path, ".") == 0)
        return false;
    if (slash == NULL)
        strcpy(path, ".");
    else
        slash[slash == path ? 1 : 0] = '\0';
    return true;
}

static int fail_link(const char *path, const char *link, struct err *err)
{
    char target[PATH_MAX];
    ssize_t n = readlink(link, target, sizeof target - 1);

    target[n > 0 ? n : 0] = '\0';
    return err_set_at(err, -ENOENT, path,
                      "%s%sis a symbolic link to \"%s\", which does not exist; make that directory, or "
                      "choose another output",
                      strcmp(path, link) == 0 ? "" : link, strcmp(path, link) == 0 ? "" : " ", target);
}

/* Finds the nearest directory above `path` that exists, and checks that new directories can be created in
 * it. */
static int check_parents(const char *path, struct err *err)
{
    char above[PATH_MAX];
    struct stat st;

    snprintf(above, sizeof above, "%s", path);
    do {
        if (lstat(above, &st) == 0 && S_ISLNK(st.st_mode) && stat(above, &st) < 0 && errno == ENOENT)
            return fail_link(path, above, err);
        if (stat(above, &st) == 0)
            break;
        if (errno != ENOENT && errno != ENOTDIR)
            return err_set_at(err, -errno, path, "cannot be looked at: %s: %s; choose another output", above,
                              strerror(errno));
    } while (cut_to_parent(above));
    if (!S_ISDIR(st.st_mode))
        return err_set_at(err, -ENOTDIR, path, "cannot be made, since %s is %s: %s; choose another output",
                          above, type_name(st.st_mode), strerror(ENOTDIR));
    if (faccessat(AT_FDCWD, above, W_OK | X_OK, AT_EACCESS) < 0)
        return err_set_at(
            err, -errno, path,
            "cannot be made, since %s cannot be written: %s; choose another output, or change its "
            "permissions",
            above, strerror(errno));
    return 0;
}

int output_check(const char *path, struct err *err)
{
    struct stat st;

    if (path[0] == '\0')
        return err_set_at(err, -EINVAL, "output", "must not be empty");
    if (strlen(path) >= PATH_MAX)
        return err_set_at(err, -ENAMETOOLONG, path, "the path is too long");
    if (stat(path, &st) < 0)
        return check_parents(path, err);
    if (!S_ISDIR(st.st_mode))
        return err_set_at(err, -ENOTDIR, path, "is %s: %s; choose another output", type_name(st.st_mode),
                          strerror(ENOTDIR));
    return check_directory(path, err);
}

/* ---- creating and locking ---- */

static int lock_output(int lock, uint64_t wait_ns)
{
    uint64_t until = clock_now_ns() + wait_ns;
    while (flock(lock, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK || clock_now_ns() >= until)
            return -errno;
        clock_sleep_ns(LOCK_RETRY_NS);
    }
    return 0;
}

int output_open(const char *path, uint64_t wait_ns, struct outdir *ret, int *ret_lock, struct err *err)
{
    int r = path[0] == '\0' ? err_set_at(err, -EINVAL, "output", "must not be empty")
                            : dirs_make(path, 0777, "the output directory", err);
    if (r < 0)
        return r;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_set_at(err, -errno, path, "cannot open the output directory: %s", strerror(errno));
    int lock = openat(fd, LOCK_FILE, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    r = lock < 0 ? -errno : lock_output(lock, wait_ns);
    if (r == 0) {
        *ret = (struct outdir){fd, path};
        *ret_lock = lock;
        return 0;
    }
    if (lock >= 0)
        close(lock);
    close(fd);
    return r == -EWOULDBLOCK ? fail_busy(path, err)
                             : err_set_at(err, r, path, "cannot lock the output directory: %s", strerror(-r));
}
