/* Implements the file operations of fs.h.
 *
 * Every open uses the flags that a program on a shared file system needs. O_CLOEXEC keeps descriptors out of
 * child processes. O_NOFOLLOW refuses a symbolic link that another user may have planted. O_NONBLOCK, for
 * reading, makes opening a FIFO return at once, so that it can be refused.
 *
 * Only fs_replace is safe against crashes by itself. A caller that writes several files decides the order of
 * its writes, syncs and renames, as the checkpoint code does.
 */
#include "base/fs.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32c.h"

enum { MAX_TREE_DEPTH = 8 };

int fs_open_dir(int dirfd, const char *name)
{
    int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    return fd < 0 ? -errno : fd;
}

int fs_make_dir(int dirfd, const char *name)
{
    if (mkdirat(dirfd, name, 0777) < 0 && errno != EEXIST)
        return -errno;
    return 0;
}

int fs_open_read(int dirfd, const char *name, uint64_t *ret_bytes)
{
    int fd = openat(dirfd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat st;
    int r;

    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0)
        r = -errno;
    else if (S_ISDIR(st.st_mode))
        r = -EISDIR;
    else if (!S_ISREG(st.st_mode))
        r = -EINVAL;
    else {
        *ret_bytes = (uint64_t)st.st_size;
        return fd;
    }
    close(fd);
    return r;
}

int fs_create(int dirfd, const char *name)
{
    int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);

    return fd < 0 ? -errno : fd;
}

int fs_write_all(int fd, const void *p, uint64_t bytes)
{
    const char *at = p;

    while (bytes > 0) {
        ssize_t n = write(fd, at, bytes < (1u << 30) ? (size_t)bytes : 1u << 30);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return -EIO;
        at += n;
        bytes -= (uint64_t)n;
    }
    return 0;
}

int fs_pread_all(int fd, void *p, uint64_t bytes, uint64_t offset)
{
    char *at = p;

    while (bytes > 0) {
        ssize_t n = pread(fd, at, bytes < (1u << 30) ? (size_t)bytes : 1u << 30, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return -ENODATA;
        at += n;
        offset += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return 0;
}

int fs_checksum(int fd, uint64_t *ret_bytes, uint32_t *ret_crc)
{
    char *block = malloc(FS_BLOCK_BYTES);
    uint64_t bytes = 0;
    uint32_t crc = 0;
    ssize_t n;

    if (!block)
        return -ENOMEM;
    for (;;) {
        n = pread(fd, block, FS_BLOCK_BYTES, (off_t)bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        crc = crc32c(crc, block, (size_t)n);
        bytes += (uint64_t)n;
    }
    n = n < 0 ? -errno : 0;
    free(block);
    if (n < 0)
        return (int)n;
    *ret_bytes = bytes;
    *ret_crc = crc;
    return 0;
}

int fs_read_text(int dirfd, const char *name, uint64_t max, char **ret, size_t *ret_bytes)
{
    uint64_t bytes;
    int fd = fs_open_read(dirfd, name, &bytes), r;
    char *text;

    if (fd < 0)
        return fd;
    text = bytes <= max ? malloc(bytes + 1) : NULL;
    r = bytes > max ? -EFBIG : !text ? -ENOMEM : fs_pread_all(fd, text, bytes, 0);
    close(fd);
    if (r < 0) {
        free(text);
        return r;
    }
    text[bytes] = '\0';
    *ret = text;
    *ret_bytes = bytes;
    return 0;
}

int fs_replace(const struct outdir *out, const char *file, const void *p, uint64_t bytes, struct err *err)
{
    char tmp[64];
    int fd, r, e;

    assert(strlen(file) + sizeof ".tmp" <= sizeof tmp);
    snprintf(tmp, sizeof tmp, "%s.tmp", file);
    unlinkat(out->fd, tmp, 0);
    fd = fs_create(out->fd, tmp);
    r = fd < 0 ? fd : fs_write_all(fd, p, bytes);
    if (fd >= 0) {
        e = fs_sync_close(fd);
        r = r < 0 ? r : e;
    }
    if (r == 0 && renameat(out->fd, tmp, out->fd, file) < 0)
        r = -errno;
    if (r < 0 && fd >= 0)
        unlinkat(out->fd, tmp, 0);
    if (r == 0)
        r = fs_sync(out->fd);
    return r < 0 ? fs_fail(err, r, out->name, file, "write") : 0;
}

int fs_sync(int fd)
{
    return fsync(fd) < 0 ? -errno : 0;
}

int fs_sync_close(int fd)
{
    int r = fs_sync(fd);

    if (close(fd) < 0 && r == 0)
        r = -errno;
    return r;
}

static int remove_tree(int dirfd, const char *name, int depth);

/* Removes everything inside the open directory `fd`, but not the directory itself. Always closes `fd`, even
 * after a failure. */
static int remove_entries(int fd, int depth)
{
    DIR *dir = fdopendir(fd);
    struct dirent *e;
    int r = 0;

    if (!dir) {
        r = -errno;
        close(fd);
        return r;
    }
    while (r == 0 && (errno = 0, e = readdir(dir)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            r = remove_tree(fd, e->d_name, depth + 1);
    if (r == 0 && errno != 0)
        r = -errno;
    closedir(dir); /* closes fd too */
    return r;
}

static int remove_tree(int dirfd, const char *name, int depth)
{
    int fd, r;

    if (unlinkat(dirfd, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return -errno;
    if (depth >= MAX_TREE_DEPTH)
        return -ELOOP;
    fd = fs_open_dir(dirfd, name);
    if (fd < 0)
        return fd;
    r = remove_entries(fd, depth);
    if (r < 0)
        return r;
    return unlinkat(dirfd, name, AT_REMOVEDIR) < 0 && errno != ENOENT ? -errno : 0;
}

int fs_remove_tree(int dirfd, const char *name)
{
    return remove_tree(dirfd, name, 0);
}

void fs_path(char *buf, size_t size, const char *dir, const char *file)
{
    snprintf(buf, size, "%s%s%s", dir ? dir : "", dir && file ? "/" : "", file ? file : "");
}

int fs_fail(struct err *err, int code, const char *dir, const char *file, const char *what)
{
    char path[FS_PATH_BYTES];

    assert(code < 0);
    fs_path(path, sizeof path, dir, file);
    return err_set_at(err, code, path, "cannot %s: %s", what, strerror(-code));
}
