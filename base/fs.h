/* Files for the worker: whole reads and writes, and calls that are relative to a directory descriptor and
 * follow no symbolic link. Functions return 0 (or a descriptor) or a negative errno. Any thread.
 */
#ifndef BASE_FS_H
#define BASE_FS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* The directory that a job writes to. `name` is for messages. */
struct outdir {
    int fd;
    const char *name;
};

#define FS_BLOCK_BYTES (1u << 20) /* of one bulk read or write: checksum and copy stay in the cache */

int fs_open_dir(int dirfd, const char *name);
int fs_make_dir(int dirfd, const char *name); /* 0 also when it is there already */
/* A regular file, for reading. *ret_bytes: its size. */
int fs_open_read(int dirfd, const char *name, uint64_t *ret_bytes);
/* A new file, for writing; -EEXIST when there is one. */
int fs_create(int dirfd, const char *name);

int fs_write_all(int fd, const void *p, uint64_t bytes);
/* -ENODATA when the file ends before. */
int fs_pread_all(int fd, void *p, uint64_t bytes, uint64_t offset);
/* Size and CRC-32C of all of an open file. */
int fs_checksum(int fd, uint64_t *ret_bytes, uint32_t *ret_crc);
/* The whole file, malloc'ed, NUL-terminated. -EFBIG when it is larger than max. */
int fs_read_text(int dirfd, const char *name, uint64_t max, char **ret, size_t *ret_bytes);

/* A file that appears whole or not at all, by way of file.tmp. `file`: a short name. */
int fs_replace(const struct outdir *out, const char *file, const void *p, uint64_t bytes, struct err *err);

int fs_sync(int fd);
/* fsync, then close; closes in any case. Never retried: after EIO the page cache may claim what the disk
 * lacks. */
int fs_sync_close(int fd);
/* A directory's entries: `name` is synced. */
int fs_sync_dir(int dirfd, const char *name);

/* A file or a directory with what is in it; 0 when there is none. */
int fs_remove_tree(int dirfd, const char *name);

/* "dir/file", cut to fit, for messages. Either may be NULL. */
#define FS_PATH_BYTES 4400
void fs_path(char *buf, size_t size, const char *dir, const char *file);

/* Records "cannot <what>: <reason>" at "dir/file" and returns code. dir or file may be NULL. */
int fs_fail(struct err *err, int code, const char *dir, const char *file, const char *what);

#endif
