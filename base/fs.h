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

/* An open directory that a program writes files to, with its name for messages. The owner
 * opens and closes `fd`. */
struct outdir {
    int fd;
    const char *name;
};

/* Bytes per call in bulk reads and writes: a block is still in the processor's cache when it is
 * checksummed. */
#define FS_BLOCK_BYTES (1u << 20)

/* Opens the directory `name` for reading and returns its descriptor. */
int fs_open_dir(int dirfd, const char *name);
/* Creates the directory `name`. Returns 0 also when it exists already. */
int fs_make_dir(int dirfd, const char *name);
/* Opens the regular file `name` for reading, returns its descriptor and stores the file's size in *ret_bytes.
 * Returns -EISDIR for a directory and -EINVAL for anything else that is not a regular file, without blocking
 * on a FIFO. */
int fs_open_read(int dirfd, const char *name, uint64_t *ret_bytes);
/* Creates the file `name`, opens it for writing and returns its descriptor. Returns -EEXIST when
 * the file already exists. */
int fs_create(int dirfd, const char *name);

/* Writes all `bytes` bytes at the current position of `fd`. */
int fs_write_all(int fd, const void *p, uint64_t bytes);
/* Reads `bytes` bytes at `offset` into `p`. Returns -ENODATA when the file ends before offset + bytes. */
int fs_pread_all(int fd, void *p, uint64_t bytes, uint64_t offset);
/* Reads the whole open file and stores its size and its CRC-32C. */
int fs_checksum(int fd, uint64_t *ret_bytes, uint32_t *ret_crc);
/* Reads the whole file `name` into NUL-terminated memory that the caller frees. Returns -EFBIG when the file
 * has more than `max` bytes. */
int fs_read_text(int dirfd, const char *name, uint64_t max, char **ret, size_t *ret_bytes);

/* Replaces `file` in the directory `out` by the `bytes` bytes at `p`. The data is written to
 * "file.tmp", synced and renamed, so that a crash leaves either the old file or the new one. `file` has
 * at most 59 characters. */
int fs_replace(const struct outdir *out, const char *file, const void *p, uint64_t bytes, struct err *err);

int fs_sync(int fd);
/* Syncs and closes `fd`. The descriptor is closed also when the sync fails. A failed fsync must not be
 * retried: after EIO the page cache may show data that the disk does not have. */
int fs_sync_close(int fd);

/* Removes the file `name`, or the directory `name` with everything in it. Returns 0 also when `name` does not
 * exist, and -ELOOP when directories are nested more than 8 deep. */
int fs_remove_tree(int dirfd, const char *name);

/* Writes "dir/file" to `buf` for a message, cut to fit. `dir` or `file` may be NULL. */
#define FS_PATH_BYTES 4400
void fs_path(char *buf, size_t size, const char *dir, const char *file);

/* Records the failure "cannot <what>: <reason of code>" at the path "dir/file" and returns `code`. `dir` or
 * `file` may be NULL. */
int fs_fail(struct err *err, int code, const char *dir, const char *file, const char *what);

#endif
