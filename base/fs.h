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

/* An open directory and its name for messages. The owner of this struct opens and closes `fd`. */
struct outdir {
    int fd;
    const char *name;
};

/* The number of bytes that one read or write moves when a file is large. A block of this size fits into the
 * processor's cache. */
#define FS_BLOCK_BYTES (1u << 20)

/* Opens the directory `name`, relative to the directory `dirfd`, and returns its descriptor. */
int fs_open_dir(int dirfd, const char *name);
/* Creates the directory `name` inside `dirfd`. Returns 0 if the directory already exists. */
int fs_make_dir(int dirfd, const char *name);
/* Opens the regular file `name` for reading, stores its size in *ret_bytes and returns its descriptor.
 * Returns -EISDIR for a directory and -EINVAL for any other kind of file. Never blocks, not even on a
 * FIFO. */
int fs_open_read(int dirfd, const char *name, uint64_t *ret_bytes);
/* Creates the file `name` for writing and returns its descriptor. Returns -EEXIST if the file already
 * exists. */
int fs_create(int dirfd, const char *name);

/* Writes all `bytes` bytes at the current position of `fd`. If a call of write() writes only a part, the
 * function writes the rest with further calls. */
int fs_write_all(int fd, const void *p, uint64_t bytes);
/* Reads `bytes` bytes into `p`, starting at position `offset` of the file. Returns -ENODATA if the file ends
 * too early. */
int fs_pread_all(int fd, void *p, uint64_t bytes, uint64_t offset);
/* Reads the whole open file, and stores its size in *ret_bytes and its CRC-32C checksum in *ret_crc. */
int fs_checksum(int fd, uint64_t *ret_bytes, uint32_t *ret_crc);
/* Reads the whole file `name` into new memory, followed by a NUL. The caller frees *ret. Returns -EFBIG if
 * the file has more than `max` bytes. */
int fs_read_text(int dirfd, const char *name, uint64_t max, char **ret, size_t *ret_bytes);

/* Replaces the contents of `file` in the directory `out`. The data is written to "file.tmp", which is then
 * renamed. So after a crash, the file has either the old or the new contents. `file` has at most 59
 * characters. */
int fs_replace(const struct outdir *out, const char *file, const void *p, uint64_t bytes, struct err *err);

int fs_sync(int fd);
/* Syncs `fd` to disk and closes it, even if the sync fails. Do not retry a failed sync: the system may have
 * dropped the data, and the second sync would report success anyway. */
int fs_sync_close(int fd);

/* Removes the file `name`, or the directory `name` and everything inside it. Returns 0 if `name` does not
 * exist. Returns -ELOOP if directories are nested more than 8 levels deep. */
int fs_remove_tree(int dirfd, const char *name);

/* Writes "dir/file" to `buf`, for a message. The text is cut if the buffer is too small. `dir` or `file` may
 * be NULL. A buffer of FS_PATH_BYTES bytes is enough for any usual path. */
#define FS_PATH_BYTES 4400
void fs_path(char *buf, size_t size, const char *dir, const char *file);

/* Records the failure "cannot <what>: <reason>" for the path "dir/file", and returns `code`. The reason is
 * the system's text for the errno `code`. `dir` or `file` may be NULL. */
int fs_fail(struct err *err, int code, const char *dir, const char *file, const char *what);

#endif
