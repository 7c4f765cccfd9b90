/* File operations that the C library lacks: whole reads and writes, durable replacement of a file, removal of
 * a tree.
 *
 * Names are relative to a directory descriptor, and no call follows a symbolic link in the last component of
 * a name. So a link that another user plants in a shared directory cannot redirect a write. All functions
 * return 0 (or an open descriptor), or a negative errno. Any thread may call them.
 */
#ifndef BASE_FS_H
#define BASE_FS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* An open directory and its name for messages. The owner opens and closes `fd`. */
struct outdir {
    int fd;
    const char *name;
};

/* The number of bytes per call when much data is read or written. A block of this size fits the
 * processor's cache. */
#define FS_BLOCK_BYTES (1u << 20)

/* Opens the directory `name` for reading and returns its descriptor. */
int fs_open_dir(int dirfd, const char *name);
/* Creates the directory `name`. Returns 0 if the directory already exists. */
int fs_make_dir(int dirfd, const char *name);
/* Opens the regular file `name` for reading and returns its descriptor. *ret_bytes is the size of the
 * file. Returns -EISDIR for a directory and -EINVAL for any other kind of file. Never blocks on a FIFO. */
int fs_open_read(int dirfd, const char *name, uint64_t *ret_bytes);
/* Creates the file `name` for writing and returns its descriptor. Returns -EEXIST when it already exists. */
int fs_create(int dirfd, const char *name);

/* Writes all `bytes` bytes at the current position of `fd`. Continues after a partial write. */
int fs_write_all(int fd, const void *p, uint64_t bytes);
/* Reads `bytes` bytes at `offset` into `p`. Returns -ENODATA when the file ends too early. */
int fs_pread_all(int fd, void *p, uint64_t bytes, uint64_t offset);
/* Reads the whole open file. Stores its size in *ret_bytes and its CRC-32C in *ret_crc. */
int fs_checksum(int fd, uint64_t *ret_bytes, uint32_t *ret_crc);
/* Reads the whole file `name` and appends a NUL. The caller frees *ret. Returns -EFBIG when the file has
 * more than `max` bytes. */
int fs_read_text(int dirfd, const char *name, uint64_t max, char **ret, size_t *ret_bytes);

/* Replaces the contents of `file` in the directory `out`. After a crash, either the old or the new file is
 * there. The data goes through "file.tmp". `file` has at most 59 characters. */
int fs_replace(const struct outdir *out, const char *file, const void *p, uint64_t bytes, struct err *err);

int fs_sync(int fd);
/* Syncs and closes `fd`. It is closed even when the sync fails. Do not retry a failed sync, because the
 * data may be lost. */
int fs_sync_close(int fd);

/* Removes a file, or a directory with everything in it. Returns 0 if `name` does not exist. Returns -ELOOP
 * for directories nested more than 8 levels deep. */
int fs_remove_tree(int dirfd, const char *name);

/* Writes "dir/file" to `buf` for a message, cut to fit. `dir` or `file` may be NULL. FS_PATH_BYTES are
 * enough for any usual path. */
#define FS_PATH_BYTES 4400
void fs_path(char *buf, size_t size, const char *dir, const char *file);

/* Records the failure "cannot <what>: <reason>" for "dir/file" and returns `code`. The reason is the text
 * of the errno. `dir` or `file` may be NULL. */
int fs_fail(struct err *err, int code, const char *dir, const char *file, const char *what);

#endif
