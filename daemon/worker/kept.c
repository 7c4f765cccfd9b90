/* Implements kept outputs (kept.h) with a mapped file. The whole file is allocated on the disk before the
 * first row is written. A disk that is too small is thus found at the start, and writing to the mapping
 * cannot fail later.
 */
#include "daemon/worker/kept.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/crc32c.h"

/* File systems without O_TMPFILE cannot create a file without a name. There, the file with the kept outputs
 * is created under this name, and then the name is removed. */
static const char file_name[] = "outputs.tmp";

struct kept {
    char *at;
    uint64_t samples, row_bytes, bytes;
    uint32_t crc;
    bool sealed;
};

/* Creates a file without a name in the output directory. Returns its descriptor or a negative errno. */
static int create_unnamed(const struct outdir *out)
{
    int fd = openat(out->fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT))
        return fd >= 0 ? fd : -errno;
    int r = fs_remove_tree(out->fd, file_name);
    if (r < 0)
        return r;
    fd = openat(out->fd, file_name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    if (unlinkat(out->fd, file_name, 0) == 0)
        return fd;
    r = -errno;
    close(fd);
    return r;
}

static int fail_kept(const struct outdir *out, int code, uint64_t bytes, struct err *err)
{
    return err_set_at(err, code, out->name,
                      "cannot keep %" PRIu64 " bytes of outputs of a part of the model there: %s", bytes,
                      strerror(-code));
}

int kept_create(const struct outdir *out, uint64_t samples, uint64_t row_bytes, struct kept **ret,
                struct err *err)
{
    uint64_t bytes;
    if (!checked_mul(samples, row_bytes, &bytes) || bytes == 0 || bytes > INT64_MAX)
        return err_set_at(err, -EOVERFLOW, out->name, "the outputs of %" PRIu64 " samples are too large",
                          samples);
    int fd = create_unnamed(out);
    if (fd < 0)
        return fail_kept(out, fd, bytes, err);
    int r = -posix_fallocate(fd, 0, (off_t)bytes);
    void *at = MAP_FAILED;
    if (r == 0) {
        at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        r = at == MAP_FAILED ? -errno : 0;
    }
    close(fd); /* the mapping keeps the file */
    struct kept *k = r == 0 ? calloc(1, sizeof *k) : NULL;
    if (r == 0 && k == NULL) {
        munmap(at, bytes);
        r = -ENOMEM;
    }
    if (r < 0)
        return fail_kept(out, r, bytes, err);
    *k = (struct kept){.at = at, .samples = samples, .row_bytes = row_bytes, .bytes = bytes};
    *ret = k;
    return 0;
}

void kept_destroy(struct kept *k)
{
    if (k == NULL)
        return;
    munmap(k->at, k->bytes);
    free(k);
}

void kept_put(struct kept *k, uint64_t first, uint32_t n, const void *rows)
{
    assert(!k->sealed && first <= k->samples && n <= k->samples - first);
    memcpy(k->at + first * k->row_bytes, rows, n * k->row_bytes);
}

void kept_seal(struct kept *k)
{
    k->crc = crc32c(0, k->at, k->bytes);
    k->sealed = true;
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
