/* Implements idx.h. An IDX file has four bytes (0, 0, type, rank), then `rank` big-endian 32-bit dimensions,
 * then the elements.
 *
 * A file must have exactly the size that its header implies; the message for any other size names both
 * numbers. zlib's gzread would hide bytes after the compressed stream and the place where a stream broke off,
 * so this file calls inflate itself. A gzip file may consist of several members, as the gzip format allows.
 *
 * The dimensions are not trusted. Before memory is allocated for them they are compared with the size of the
 * file, times 1032 for gzip, the most that deflate can expand. A damaged header therefore cannot cause a huge
 * allocation.
 */
#include "daemon/worker/data/idx.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/checked.h"
#include "base/crc32c.h"

enum { IN_BYTES = 1 << 18, DEFLATE_RATIO = 1032, TYPE_UBYTE = 0x08 };

/* An IDX file that is open and read from front to back. A gzipped file is unpacked while it is read. */
struct source {
    const char *path, *key;
    struct err *err;
    int fd;
    uint64_t file_bytes; /* size of the file */
    /* Number of bytes of content that were read so far, counted after unpacking. */
    uint64_t given;
    bool gzip;
    /* True from the end of one gzip member until the next member begins. A gzip file may have several
     * members. */
    bool ended;
    z_stream z;
    unsigned char in[IN_BYTES];
};

static int fail_source_read(const struct source *s, int code)
{
    return err_set_at(s->err, code, s->path, "cannot read %s: %s", s->key, strerror(-code));
}

/* ------------------------------------------------------------------------------------------ source */

static ssize_t read_some(int fd, void *p, size_t bytes)
{
    ssize_t n;

    do
        n = read(fd, p, bytes);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}

static int open_source_file(struct source *s)
{
    struct stat st;
    unsigned char magic[2];
    ssize_t n;

    s->fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (s->fd < 0)
        return err_set_at(s->err, -errno, s->path, "cannot open %s: %s; check the path", s->key,
                          strerror(errno));
    if (fstat(s->fd, &st) < 0)
        return fail_source_read(s, -errno);
    if (!S_ISREG(st.st_mode))
        return err_set_at(s->err, S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL, s->path,
                          "%s is not a regular file; give the path of an IDX file", s->key);
    s->file_bytes = (uint64_t)st.st_size;
    n = pread(s->fd, magic, 2, 0);
    if (n < 0)
        return fail_source_read(s, -errno);
    s->gzip = n == 2 && magic[0] == 0x1f && magic[1] == 0x8b;
    return 0;
}

static int source_open(struct source *s)
{
    int r = open_source_file(s);

    if (r == 0 && s->gzip && inflateInit2(&s->z, 15 + 16) != Z_OK) { /* + 16 means the gzip format only */
        s->gzip = false;
        r = err_set_at(s->err, -ENOMEM, s->path, "no memory to read %s", s->key);
    }
    return r;
}

static void source_close(struct source *s)
{
    if (s->gzip)
        inflateEnd(&s->z);
    if (s->fd >= 0)
        close(s->fd);
}

/* Reads the next bytes of the file into the buffer from which zlib unpacks them. Returns 1 on success, 0 at
 * the end of the file, or a negative errno. */
static int refill(struct source *s)
{
    ssize_t n = read_some(s->fd, s->in, sizeof s->in);

    if (n < 0)
        return fail_source_read(s, (int)n);
    s->z.next_in = s->in;
    s->z.avail_in = (uInt)n;
    return n > 0;
}

/* Looks for the next gzip member at the end of a member, because a gzip file may have several members.
 * Returns 1 if another member follows, 0 at the end of the file, or a negative errno. */
static int next_member(struct source *s)
{
    int r = s->z.avail_in > 0 ? 1 : refill(s);

    if (r <= 0)
        return r;
    if (s->z.next_in[0] != 0x1f)
        return err_set_at(s->err, -EBADMSG, s->path,
                          "%s has something after the end of its gzip stream; download or compress it again",
                          s->key);
    inflateReset(&s->z);
    s->ended = false;
    return 1;
}

static int fail_inflate(const struct source *s, uint64_t done, int z)
{
    return err_set_at(s->err, z == Z_MEM_ERROR ? -ENOMEM : -EBADMSG, s->path,
                      "the gzip stream of %s is damaged after %" PRIu64
                      " bytes of content (%s); download it again",
                      s->key, done, s->z.msg ? s->z.msg : zError(z));
}

static int fail_cut(const struct source *s, uint64_t done)
{
    return err_set_at(s->err, -EBADMSG, s->path,
                      "the gzip stream of %s is cut short: it ends after %" PRIu64
                      " bytes of content; download it again",
                      s->key, done);
}

static int inflate_some(struct source *s, void *p, size_t bytes, size_t *ret)
{
    s->z.next_out = p;
    s->z.avail_out = (uInt)bytes;
    while (s->z.avail_out > 0) {
        int r = s->ended ? next_member(s) : s->z.avail_in > 0 ? 1 : refill(s), z;
        if (r < 0)
            return r;
        if (r == 0 && s->ended)
            break;
        if (r == 0)
            return fail_cut(s, s->given + bytes - s->z.avail_out);
        z = inflate(&s->z, Z_NO_FLUSH);
        if (z == Z_STREAM_END)
            s->ended = true;
        else if (z != Z_OK && z != Z_BUF_ERROR)
            return fail_inflate(s, s->given + bytes - s->z.avail_out, z);
    }
    *ret = bytes - s->z.avail_out;
    return 0;
}

/* Reads up to `bytes` bytes of unpacked content into `p`. *ret receives the number of bytes read. It is
 * smaller than `bytes` only at the end of the file. */
static int source_read(struct source *s, void *p, uint64_t bytes, uint64_t *ret)
{
    uint64_t total = 0;

    while (total < bytes) {
        size_t want = bytes - total < (1u << 30) ? (size_t)(bytes - total) : 1u << 30, got = 0;
        if (s->gzip) {
            int r = inflate_some(s, (char *)p + total, want, &got);
            if (r < 0)
                return r;
        } else {
            ssize_t n = read_some(s->fd, (char *)p + total, want);
            if (n < 0)
                return fail_source_read(s, (int)n);
            got = (size_t)n;
        }
        if (got == 0)
            break;
        total += got;
        s->given += got;
    }
    *ret = total;
    return 0;
}

/* ------------------------------------------------------------------------------------------ format */

static const char *type_name(int type)
{
    static const struct {
        int type;
        const char *name;
    } names[] = {{0x09, "signed bytes"},
                 {0x0B, "16-bit integers"},
                 {0x0C, "32-bit integers"},
                 {0x0D, "32-bit floats"},
                 {0x0E, "64-bit floats"}};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].type == type)
            return names[i].name;
    return NULL;
}

static int fail_short_header(const struct source *s, uint64_t need)
{
    return err_set_at(s->err, -EBADMSG, s->path,
                      "%s is cut short: the IDX header takes %" PRIu64 " bytes, but there are %" PRIu64
                      "; download it again",
                      s->key, need, s->given);
}

static int check_magic(const struct source *s, const unsigned char *magic)
{
    if (magic[0] || magic[1] || (magic[2] != TYPE_UBYTE && !type_name(magic[2])))
        return err_set_at(
            s->err, -EBADMSG, s->path,
            "%s is not an IDX file: it begins with the bytes %02x %02x %02x %02x, not with 00 00 08", s->key,
            magic[0], magic[1], magic[2], magic[3]);
    if (magic[2] != TYPE_UBYTE)
        return err_set_at(s->err, -EOPNOTSUPP, s->path,
                          "%s holds %s; convert it to unsigned bytes (type 08), the only supported type",
                          s->key, type_name(magic[2]));
    if (magic[3] < 1 || magic[3] > IDX_MAX_RANK)
        return err_set_at(s->err, -EBADMSG, s->path, "%s has %d dimensions; 1 to %d are supported", s->key,
                          magic[3], IDX_MAX_RANK);
    return 0;
}

static int read_idx_header(struct source *s, struct idx *x)
{
    unsigned char magic[4];
    uint32_t dims[IDX_MAX_RANK];
    uint64_t got;
    int r = source_read(s, magic, sizeof magic, &got);

    if (r < 0)
        return r;
    if (got < sizeof magic)
        return fail_short_header(s, sizeof magic);
    r = check_magic(s, magic);
    if (r < 0)
        return r;
    x->rank = magic[3];
    r = source_read(s, dims, (size_t)x->rank * 4, &got);
    if (r < 0)
        return r;
    if (got < (size_t)x->rank * 4)
        return fail_short_header(s, 4 + x->rank * 4);
    x->bytes = 1;
    for (uint32_t i = 0; i < x->rank; i++) {
        x->dims[i] = ntohl(dims[i]);
        if (!checked_mul(x->bytes, x->dims[i], &x->bytes))
            return err_set_at(s->err, -EBADMSG, s->path, "%s has dimensions whose product is over 2^64",
                              s->key);
    }
    return 0;
}

static int fail_short(const struct source *s, const struct idx *x, uint64_t found, const char *more)
{
    char dims[64] = "";

    for (uint32_t i = 0; i < x->rank; i++)
        snprintf(dims + strlen(dims), sizeof dims - strlen(dims), "%s%" PRIu32, i ? " x " : "", x->dims[i]);
    return err_set_at(s->err, -EBADMSG, s->path,
                      "%s is cut short: its header says %s, which takes %" PRIu64
                      " bytes with the header, but there are "
                      "%s%" PRIu64 "; download it again",
                      s->key, dims, x->bytes + 4 + 4 * (uint64_t)x->rank, more, found);
}

/* Checks that the file is large enough for the elements that its header promises. This check comes before the
 * allocation of memory for the elements, so that a damaged header cannot ask for huge memory. */
static int check_size(const struct source *s, const struct idx *x)
{
    uint64_t most = s->file_bytes;

    if (s->gzip && !checked_mul(most, DEFLATE_RATIO, &most))
        most = UINT64_MAX;
    if (x->bytes > most)
        return fail_short(s, x, most, s->gzip ? "at most " : "");
    return 0;
}

static int read_data(struct source *s, struct idx *x)
{
    uint64_t got = 0;
    char extra;
    int r;

    x->data = malloc(x->bytes ? x->bytes : 1);
    if (!x->data)
        return err_set_at(s->err, -ENOMEM, s->path, "no memory for the %" PRIu64 " bytes of %s", x->bytes,
                          s->key);
    r = source_read(s, x->data, x->bytes, &got);
    if (r < 0)
        return r;
    if (got < x->bytes)
        return fail_short(s, x, s->given, "");
    r = source_read(s, &extra, 1, &got);
    if (r < 0)
        return r;
    if (got > 0)
        return err_set_at(s->err, -EBADMSG, s->path,
                          "%s has more than the %" PRIu64 " bytes that its header says (file of %" PRIu64
                          " bytes); is it the right file?",
                          s->key, x->bytes + 4 + 4 * (uint64_t)x->rank, s->file_bytes);
    return 0;
}

int idx_load(const char *path, const char *key, struct idx *ret, struct err *err)
{
    struct source *s = calloc(1, sizeof *s);
    struct idx x = {0};
    int r;

    if (!s)
        return err_set_at(err, -ENOMEM, path, "no memory to read %s", key);
    s->path = path;
    s->key = key;
    s->err = err;
    s->fd = -1;
    r = source_open(s);
    if (r == 0)
        r = read_idx_header(s, &x);
    if (r == 0)
        r = check_size(s, &x);
    if (r == 0)
        r = read_data(s, &x);
    source_close(s);
    free(s);
    if (r < 0) {
        idx_finish(&x);
        return r;
    }
    x.crc = crc32c(crc32c(0, x.dims, x.rank * sizeof x.dims[0]), x.data, x.bytes);
    *ret = x;
    return 0;
}

void idx_finish(struct idx *x)
{
    free(x->data);
    *x = (struct idx){0};
}
