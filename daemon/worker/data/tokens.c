/* Implements tokens.h: opens, checks and maps files of tokens.
 *
 * Files are mapped because they may be larger than memory while a step reads only a few ranges of them.
 * Opening takes the same time for every size. The drawback is that reading a mapping beyond the end of a file
 * that somebody has truncated kills the process with SIGBUS. Therefore headers and checksums are read with
 * pread, and the caller must call tokens_check before it reads tokens, which turns a truncated file into an
 * error with its name. Two cases remain: a file that is truncated right after that check, and a disk error in
 * a mapped page. Both end the process, and the job resumes from its last checkpoint. If a file grows or its
 * bytes are replaced, the new bytes are read.
 *
 * The checksum covers size, count, width and content. In a file larger than TOKENS_CRC_BLOCKS *
 * TOKENS_CRC_BYTES it covers only that many blocks of the content, evenly spread from the first byte to the
 * last. It detects that a job resumes with other data by mistake; it does not detect deliberate changes
 * between the blocks.
 *
 * A file of bare tokens has no header to recognise it by. Files that are clearly something else are refused
 * with advice: gzip files, NumPy files, llm.c files of the other byte order, and 4-byte tokens that are read
 * as 2-byte tokens, recognisable because every second one is 0.
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

/* The headers of llm.c token files that this reader knows: magic number, version, and bytes per token. */
static const struct layout {
    uint32_t magic, version, width;
} layouts[] = {{20240520, 1, 2}, {20240801, 7, 4}};
enum {
    N_LAYOUTS = sizeof layouts / sizeof layouts[0],
    /* looks_like_uint32 judges a file only if it has at least this many pairs of 2-byte numbers. Fewer pairs
     * prove nothing. */
    LEAST_PAIRS = 64,
};

static int fail_token_read(const struct token_file *f, int code, struct err *err)
{
    return err_set_at(err, code, f->path, "cannot read %s: %s", f->key, strerror(-code));
}

/* ------------------------------------------------------------------------------------------ the file */

static int open_token_file(struct token_file *f, struct err *err)
{
    struct stat st;

    f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (f->fd < 0)
        return err_set_at(err, -errno, f->path, "cannot open %s: %s; check the path", f->key,
                          strerror(errno));
    if (fstat(f->fd, &st) < 0)
        return fail_token_read(f, -errno, err);
    if (!S_ISREG(st.st_mode))
        return err_set_at(err, S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL, f->path,
                          "%s is not a regular file; give the path of a file, or an array of paths", f->key);
    if (st.st_size == 0)
        return err_set_at(err, -EBADMSG, f->path, "%s is empty; give a file with tokens", f->key);
    f->bytes = (uint64_t)st.st_size;
    return 0;
}

/* Reads `bytes` bytes of the file at offset `at`. The file was long enough for this when it was opened.
 * Returns -ESTALE if the file became shorter since then, and -EIO if reading fails. */
static int read_at(const struct token_file *f, void *p, size_t bytes, uint64_t at, struct err *err)
{
    for (size_t got = 0; got < bytes;) {
        ssize_t n = pread(f->fd, (char *)p + got, bytes - got, (off_t)(at + got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail_token_read(f, -errno, err);
        if (n == 0)
            return tokens_check(f, err) < 0 ? -ESTALE : fail_token_read(f, -EIO, err);
        got += (size_t)n;
    }
    return 0;
}

int tokens_check(const struct token_file *f, struct err *err)
{
    struct stat st;

    if (fstat(f->fd, &st) < 0)
        return fail_token_read(f, -errno, err);
    if ((uint64_t)st.st_size < f->bytes)
        return err_set_at(err, -ESTALE, f->path,
                          "%s has become shorter while it is in use: it had %" PRIu64
                          " bytes and now has %" PRIu64 "; put the file back, and give new data a new name",
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

static int refuse_gzip(const struct token_file *f, const uint8_t *head, size_t n, struct err *err)
{
    if (n >= 4 && head[0] == 0x1f && head[1] == 0x8b && head[2] == 8 && head[3] < 32)
        return err_set_at(err, -EOPNOTSUPP, f->path,
                          "%s is a gzip file, which cannot be mapped; unpack it with gunzip", f->key);
    return 0;
}

/* Looks at the first `n` bytes and refuses NumPy files and big-endian llm.c files. The error message says how
 * to convert such a file. */
static int refuse_others(const struct token_file *f, const uint8_t *head, size_t n, struct err *err)
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

static int read_llmc_header(struct token_file *f, const struct layout *l, const uint8_t *head, size_t n,
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
                          " only version %" PRIu32
                          " is known; write it again with the current scripts of llm.c",
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

/* Returns whether the first `n` bytes look like 4-byte tokens with small ids. In such a file, every second
 * 2-byte number is 0. */
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

static int read_raw(struct token_file *f, const uint8_t *head, size_t n, uint32_t asked, struct err *err)
{
    f->width = asked != 0 ? asked : 2;
    f->count = f->bytes / f->width;
    if (f->bytes % f->width != 0)
        return err_set_at(err, -EBADMSG, f->path,
                          "%s has %" PRIu64 " bytes, which is not a whole number of %" PRIu32
                          "-byte tokens; is it cut short, or not a file of tokens?",
                          f->key, f->bytes, f->width);
    if (asked == 0 && f->bytes % 4 == 0 && looks_like_uint32(head, n))
        return err_set_at(err, -EINVAL, f->path,
                          "%s has no header and looks like 4-byte tokens, because every second 2-byte number "
                          "is 0; write \"dtype\": \"uint32\", or \"uint16\" if they really are 2-byte tokens",
                          f->key);
    return 0;
}

static int read_layout(struct token_file *f, uint32_t asked, struct err *err)
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
            return read_llmc_header(f, &layouts[i], head, n, asked, err);
    return read_raw(f, head, n, asked, err);
}

/* ------------------------------------------------------------------------------------------ the content */

static int checksum(struct token_file *f, struct err *err)
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
            /* The blocks are evenly spread: block i begins at span * i / parts. The product span * i could
             * overflow, so compute the offset without it. */
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

static int map_file(struct token_file *f, struct err *err)
{
    void *p = mmap(NULL, (size_t)f->bytes, PROT_READ, MAP_SHARED, f->fd, 0);

    if (p == MAP_FAILED)
        return err_set_at(err, -errno, f->path, "cannot map the %" PRIu64 " bytes of %s: %s", f->bytes,
                          f->key, strerror(errno));
    f->map = p;
    f->data = f->map + (f->bytes - f->count * f->width);
    return 0;
}

int tokens_open(const char *path, const char *key, uint32_t width, struct token_file *ret, struct err *err)
{
    struct token_file f = {.path = path, .fd = -1};
    int r;

    assert(width == 0 || width == 1 || width == 2 || width == 4);
    snprintf(f.key, sizeof f.key, "%s", key);
    r = open_token_file(&f, err);
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

void tokens_close(struct token_file *f)
{
    if (f->map == NULL)
        return;
    munmap((void *)(uintptr_t)f->map, (size_t)f->bytes);
    close(f->fd);
    *f = (struct token_file){0};
}

void tokens_advise(const struct token_file *f, uint64_t from, uint64_t n)
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
