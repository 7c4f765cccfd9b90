/* Opening files of tokens. See tokens.h.
 *
 * Files are mapped because they are larger than memory and a step touches a few windows of them; opening takes the same time
 * whatever their size. The price: a mapping of a file that somebody cuts short ends the process with SIGBUS when what is
 * gone is read. Headers and checksums are therefore read with pread, and whoever reads tokens calls tokens_check before: a
 * file that has become shorter is an error with its name. What remains are the microseconds between that check and the
 * reading, and a disk that fails under a mapped page; both end the process, and a job goes on from its last checkpoint.
 * A file that grows or whose bytes are replaced is read as it then is.
 *
 * The checksum is of size, count, width and content; of files over TOKENS_CRC_BLOCKS * TOKENS_CRC_BYTES not of all content
 * but of so many blocks, evenly spread, the first at the beginning and the last at the end. It guards against going on with
 * other data by mistake, not against somebody who changes what lies between the blocks.
 *
 * A raw file has no mark of its own. What is surely something else is refused with what to do: gzip, npy, an llm.c header of
 * the other byte order, and numbers of 4 bytes that are read as numbers of 2, of which every second one is 0.
 */
#include "daemon/worker/data/tokens.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32c.h"

static const struct layout {
    uint32_t magic, version, width;
} layouts[] = {{20240520, 1, 2}, {20240801, 7, 4}};
enum { N_LAYOUTS = sizeof layouts / sizeof layouts[0], LEAST_PAIRS = 64 };

static int fail_read(const struct tokens *f, int code, struct err *err)
{
    return err_set_at(err, code, f->path, "cannot read %s: %s", f->key, strerror(-code));
}

/* ------------------------------------------------------------------------------------------ the file */

static int open_file(struct tokens *f, struct err *err)
{
    struct stat st;

    f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (f->fd < 0)
        return err_set_at(err, -errno, f->path, "cannot open %s: %s; check the path", f->key,
                          strerror(errno));
    if (fstat(f->fd, &st) < 0)
        return fail_read(f, -errno, err);
    if (!S_ISREG(st.st_mode))
        return err_set_at(err, S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL, f->path,
                          "%s is not a regular file; give the path of a file, or an array of paths", f->key);
    if (st.st_size == 0)
        return err_set_at(err, -EBADMSG, f->path, "%s is empty; give a file with tokens", f->key);
    f->bytes = (uint64_t)st.st_size;
    return 0;
}

/* All of it, or an error: the file was as long a moment ago. */
static int read_at(const struct tokens *f, void *p, size_t bytes, uint64_t at, struct err *err)
{
    for (size_t got = 0; got < bytes;) {
        ssize_t n = pread(f->fd, (char *)p + got, bytes - got, (off_t)(at + got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail_read(f, -errno, err);
        if (n == 0)
            return tokens_check(f, err) < 0 ? -ESTALE : fail_read(f, -EIO, err);
        got += (size_t)n;
    }
    return 0;
}

int tokens_check(const struct tokens *f, struct err *err)
{
    struct stat st;

    if (fstat(f->fd, &st) < 0)
        return fail_read(f, -errno, err);
    if ((uint64_t)st.st_size < f->bytes)
        return err_set_at(err, -ESTALE, f->path,
                          "%s has become shorter while it is in use: it had %" PRIu64
                          " bytes and has %" PRIu64 "; put the file back, and give new data a new name",
                          f->key, f->bytes, (uint64_t)st.st_size);
    return 0;
}

/* ------------------------------------------------------------------------------------------ the header */

static uint32_t little(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint32_t big(const uint8_t *p)
{
    return (uint32_t)p[3] | (uint32_t)p[2] << 8 | (uint32_t)p[1] << 16 | (uint32_t)p[0] << 24;
}

static int refuse_gzip(const struct tokens *f, const uint8_t *head, size_t n, struct err *err)
{
    if (n >= 4 && head[0] == 0x1f && head[1] == 0x8b && head[2] == 8 && head[3] < 32)
        return err_set_at(err, -EOPNOTSUPP, f->path,
                          "%s is a gzip file, which cannot be mapped; unpack it with gunzip", f->key);
    return 0;
}

/* What numbers do not begin with. `n` bytes of the head are there. */
static int refuse_others(const struct tokens *f, const uint8_t *head, size_t n, struct err *err)
{
    if (n >= 6 && memcmp(head, "\x93NUMPY", 6) == 0)
        return err_set_at(err, -EOPNOTSUPP, f->path,
                          "%s is a NumPy file; write the bare numbers with numpy.ndarray.tofile", f->key);
    for (int i = 0; n >= 4 && i < N_LAYOUTS; i++)
        if (big(head) == layouts[i].magic)
            return err_set_at(
                err, -EOPNOTSUPP, f->path,
                "%s is an llm.c file of big-endian numbers; write it on a little-endian machine", f->key);
    return 0;
}

static int read_header(struct tokens *f, const struct layout *l, const uint8_t *head, size_t n,
                       uint32_t asked, struct err *err)
{
    uint32_t version;
    uint64_t need;

    if (n < TOKENS_HEADER_BYTES)
        return err_set_at(err, -EBADMSG, f->path,
                          "%s is cut short: the llm.c header takes %d bytes, but there are %" PRIu64
                          "; download or write it again",
                          f->key, TOKENS_HEADER_BYTES, f->bytes);
    version = little(head + 4);
    if (version != l->version)
        return err_set_at(err, -EOPNOTSUPP, f->path,
                          "%s is an llm.c file of version %" PRIu32 ", but with magic %" PRIu32
                          " only version %" PRIu32 " is known; write it again with the present scripts",
                          f->key, version, l->magic, l->version);
    if (asked != 0 && asked != l->width)
        return err_set_at(err, -EINVAL, f->path,
                          "the header of %s says uint%" PRIu32 ", but data.dtype is uint%" PRIu32
                          "; remove data.dtype",
                          f->key, 8 * l->width, 8 * asked);
    f->width = l->width;
    f->count = little(head + 8);
    need = TOKENS_HEADER_BYTES + f->count * f->width;
    if (need != f->bytes)
        return err_set_at(err, -EBADMSG, f->path,
                          "%s is %s: its header says %" PRIu64 " tokens, which takes %" PRIu64
                          " bytes with the header, but there are %" PRIu64 "; download or write it again",
                          f->key, need > f->bytes ? "cut short" : "too long", f->count, need, f->bytes);
    if (f->count == 0)
        return err_set_at(err, -EBADMSG, f->path, "%s has no tokens; give a file with some", f->key);
    return 0;
}

/* Numbers of 4 bytes below 2^16, if one reads numbers of 2. */
static bool looks_like_uint32(const uint8_t *head, size_t n)
{
    uint32_t low = 0, high = 0;

    if (n / 4 < LEAST_PAIRS)
        return false;
    for (size_t i = 0; i + 4 <= n; i += 4) {
        low |= (uint32_t)head[i] | head[i + 1];
        high |= (uint32_t)head[i + 2] | head[i + 3];
    }
    return low != 0 && high == 0;
}

static int read_raw(struct tokens *f, const uint8_t *head, size_t n, uint32_t asked, struct err *err)
{
    f->width = asked != 0 ? asked : 2;
    f->count = f->bytes / f->width;
    if (f->bytes % f->width != 0)
        return err_set_at(err, -EBADMSG, f->path,
                          "%s has %" PRIu64 " bytes, which is no whole number of tokens of %" PRIu32
                          " bytes; is it cut short, or no file of tokens?",
                          f->key, f->bytes, f->width);
    if (asked == 0 && f->bytes % 4 == 0 && looks_like_uint32(head, n))
        return err_set_at(err, -EINVAL, f->path,
                          "%s has no header and looks like numbers of 4 bytes: read as numbers of 2, every "
                          "second one is 0; write \"dtype\": \"uint32\", or \"uint16\" if they are meant so",
                          f->key);
    return 0;
}

static int read_layout(struct tokens *f, uint32_t asked, struct err *err)
{
    uint8_t head[TOKENS_HEADER_BYTES];
    size_t n = f->bytes < sizeof head ? (size_t)f->bytes : sizeof head;
    int r = read_at(f, head, n, 0, err);

    if (r == 0)
        r = refuse_gzip(f, head, n, err);
    if (r < 0)
        return r;
    if (asked == 1) {
        f->width = 1;
        f->count = f->bytes;
        return 0;
    }
    r = refuse_others(f, head, n, err);
    if (r < 0)
        return r;
    for (int i = 0; n >= 4 && i < N_LAYOUTS; i++)
        if (little(head) == layouts[i].magic)
            return read_header(f, &layouts[i], head, n, asked, err);
    return read_raw(f, head, n, asked, err);
}

/* ------------------------------------------------------------------------------------------ the content */

static int checksum(struct tokens *f, struct err *err)
{
    const uint64_t all = (uint64_t)TOKENS_CRC_BLOCKS * TOKENS_CRC_BYTES,
                   shape[] = {f->bytes, f->count, f->width};
    uint8_t block[TOKENS_CRC_BYTES], number[8];
    uint32_t crc = 0;

    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++) {
        for (size_t k = 0; k < sizeof number; k++)
            number[k] = (uint8_t)(shape[i] >> (8 * k));
        crc = crc32c(crc, number, sizeof number);
    }
    for (uint64_t i = 0; i < TOKENS_CRC_BLOCKS; i++) {
        uint64_t at = i * TOKENS_CRC_BYTES, n = sizeof block;
        if (f->bytes > all) {
            /* i * (bytes - block) / (blocks - 1), without a product that could overflow */
            uint64_t span = f->bytes - sizeof block, parts = TOKENS_CRC_BLOCKS - 1;
            at = span / parts * i + span % parts * i / parts;
        } else if (at >= f->bytes) {
            break;
        } else if (n > f->bytes - at) {
            n = f->bytes - at;
        }
        int r = read_at(f, block, (size_t)n, at, err);
        if (r < 0)
            return r;
        crc = crc32c(crc, block, (size_t)n);
    }
    f->crc = crc;
    return 0;
}

static int map_file(struct tokens *f, struct err *err)
{
    void *p = mmap(NULL, (size_t)f->bytes, PROT_READ, MAP_SHARED, f->fd, 0);

    if (p == MAP_FAILED)
        return err_set_at(err, -errno, f->path, "cannot map the %" PRIu64 " bytes of %s: %s", f->bytes,
                          f->key, strerror(errno));
    f->map = p;
    f->data = f->map + (f->bytes - f->count * f->width);
    return 0;
}

int tokens_open(const char *path, const char *key, uint32_t width, struct tokens *ret, struct err *err)
{
    struct tokens f = {.path = path, .fd = -1};
    int r;

    assert(width == 0 || width == 1 || width == 2 || width == 4);
    snprintf(f.key, sizeof f.key, "%s", key);
    r = open_file(&f, err);
    if (r == 0)
        r = read_layout(&f, width, err);
    if (r == 0)
        r = checksum(&f, err);
    if (r == 0)
        r = map_file(&f, err);
    if (r < 0) {
        if (f.fd >= 0)
            close(f.fd);
        return r;
    }
    *ret = f;
    return 0;
}

void tokens_close(struct tokens *f)
{
    if (f->map == NULL)
        return;
    munmap((void *)(uintptr_t)f->map, (size_t)f->bytes);
    close(f->fd);
    *f = (struct tokens){0};
}

void tokens_advise(const struct tokens *f, uint64_t from, uint64_t n)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), skip = (uint64_t)(f->data - f->map), begin, end;

    if (from >= f->count)
        return;
    if (n > f->count - from)
        n = f->count - from;
    begin = (skip + from * f->width) & ~(page - 1);
    end = skip + (from + n) * f->width;
    if (end > begin)
        madvise((void *)(uintptr_t)(f->map + begin), (size_t)(end - begin), MADV_WILLNEED);
}
