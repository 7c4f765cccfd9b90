/* Implements kept outputs (kept.h) with a mapping of a file, or of memory. The whole file is allocated on the
 * disk before the first row is written, so writing to the mapping cannot fail later. A file that stays is
 * called NAME.tmp until all its rows are on disk.
 */
#include "daemon/worker/kept.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/checked.h"
#include "base/crc32c.h"

/* File systems without O_TMPFILE cannot create a file without a name. There, the file with the kept outputs
 * is created under this name, and then the name is removed. */
static const char file_name[] = "outputs.tmp";

struct kept {
    struct kept_place place;
    int fd; /* the file that stays, or -1 */
    char *at;
    uint64_t samples, row_bytes, bytes;
    uint32_t crc;
    bool sealed;
};

/* Creates a new file in the output directory, and replaces an older file of that name. Returns its descriptor
 * or a negative errno. */
static int create_named(const struct outdir *out, const char *name)
{
    int r = fs_remove_tree(out->fd, name);
    if (r < 0)
        return r;
    int fd = openat(out->fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    return fd < 0 ? -errno : fd;
}

/* Creates a file without a name in the output directory. Returns its descriptor or a negative errno. */
static int create_unnamed(const struct outdir *out)
{
    int fd = openat(out->fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT))
        return fd >= 0 ? fd : -errno;
    fd = create_named(out, file_name);
    if (fd < 0 || unlinkat(out->fd, file_name, 0) == 0)
        return fd;
    int r = -errno;
    close(fd);
    return r;
}

/* Writes the temporary name of the file of `place` to `buf`. The file has this name until it is complete. */
static void tmp_name_of(const struct kept_place *place, char buf[NAME_MAX + 1])
{
    snprintf(buf, NAME_MAX + 1, "%s.tmp", place->name);
}

/* Closes an incomplete file, and removes its name if it has one. */
static void drop_file(const struct kept_place *place, int fd)
{
    char tmp[NAME_MAX + 1];
    close(fd);
    if (place->name == NULL)
        return;
    tmp_name_of(place, tmp);
    (void)unlinkat(place->out->fd, tmp, 0);
}

/* Reserves space on the disk for the whole file. On some file systems a signal interrupts the reservation.
 * Then the function begins it again, because a request to stop is handled elsewhere. */
static int reserve_file(int fd, uint64_t bytes)
{
    int r;
    do {
        r = posix_fallocate(fd, 0, (off_t)bytes);
    } while (r == EINTR);
    return -r;
}

/* Creates the file for the rows and allocates all of it on the disk. Returns its descriptor or a negative
 * errno. */
static int create_file(const struct kept_place *place, uint64_t bytes)
{
    char tmp[NAME_MAX + 1];
    int fd;
    if (place->name == NULL) {
        fd = create_unnamed(place->out);
    } else {
        tmp_name_of(place, tmp);
        fd = create_named(place->out, tmp);
    }
    int r = fd < 0 ? fd : reserve_file(fd, bytes);
    if (r < 0 && fd >= 0)
        drop_file(place, fd);
    return r < 0 ? r : fd;
}

static int fail_kept(const struct kept_place *place, int code, uint64_t bytes, struct err *err)
{
    return err_set_at(err, code, place->in_memory ? "resources.host_memory" : place->out->name,
                      "cannot keep %" PRIu64 " bytes of outputs of a part of the model there: %s", bytes,
                      strerror(-code));
}

int kept_create(const struct kept_place *place, uint64_t samples, uint64_t row_bytes, struct kept **ret,
                struct err *err)
{
    uint64_t bytes;
    if (!checked_mul(samples, row_bytes, &bytes) || bytes == 0 || bytes > INT64_MAX)
        return err_set_at(err, -EOVERFLOW, place->out->name,
                          "the outputs of %" PRIu64 " samples are too large", samples);
    int fd = place->in_memory ? -1 : create_file(place, bytes);
    if (fd < 0 && !place->in_memory)
        return fail_kept(place, fd, bytes, err);
    int flags = place->in_memory ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    int r = at == MAP_FAILED ? -errno : 0;
    if (r < 0 && fd >= 0)
        drop_file(place, fd);
    if (r < 0)
        return fail_kept(place, r, bytes, err);
    if (fd >= 0 && place->name == NULL) {
        close(fd); /* the mapping keeps the file */
        fd = -1;
    }
    struct kept *k = xcalloc(1, sizeof *k);
    *k = (struct kept){
        .place = *place, .fd = fd, .at = at, .samples = samples, .row_bytes = row_bytes, .bytes = bytes};
    *ret = k;
    return 0;
}

void kept_destroy(struct kept *k)
{
    if (k == NULL)
        return;
    munmap(k->at, k->bytes);
    if (k->fd >= 0)
        drop_file(&k->place, k->fd);
    xfree(k);
}

void kept_put(struct kept *k, uint64_t first, uint32_t n, const void *rows)
{
    assert(!k->sealed && first <= k->samples && n <= k->samples - first);
    memcpy(k->at + first * k->row_bytes, rows, n * k->row_bytes);
}

/* Gives the complete file its name. */
static int publish(struct kept *k, struct err *err)
{
    const struct kept_place *place = &k->place;
    char tmp[NAME_MAX + 1];
    tmp_name_of(place, tmp);
    int r = msync(k->at, k->bytes, MS_SYNC) < 0 ? -errno : fs_sync_close(k->fd);
    k->fd = -1;
    if (r == 0 && renameat(place->out->fd, tmp, place->out->fd, place->name) < 0)
        r = -errno;
    if (r == 0)
        r = fs_sync(place->out->fd);
    if (r < 0)
        (void)unlinkat(place->out->fd, tmp, 0);
    return r < 0 ? fs_fail(err, r, place->out->name, place->name, "write") : 0;
}

int kept_seal(struct kept *k, struct err *err)
{
    k->crc = crc32c(0, k->at, k->bytes);
    k->sealed = true;
    return k->fd >= 0 ? publish(k, err) : 0;
}

uint32_t kept_crc(const struct kept *k)
{
    assert(k->sealed);
    return k->crc;
}

void kept_fill(const struct kept *k, const uint64_t *indices, uint32_t n, uint32_t rows, void *ret)
{
    char *to = ret;
    assert(k->sealed && n <= rows);
    for (uint32_t i = 0; i < n; i++) {
        assert(indices[i] < k->samples);
        memcpy(to + i * k->row_bytes, k->at + indices[i] * k->row_bytes, k->row_bytes);
    }
    memset(to + n * k->row_bytes, 0, (rows - n) * k->row_bytes);
}
