/* Implements wal.h: walks through the frames of SQLite's write-ahead log.
 *
 * After a bad frame the cumulative checksum cannot be continued from the sum computed here. So each later
 * frame is checked against the checksum that the frame before it stores. A frame whose content changed
 * therefore does not hide the frames after it. A frame whose stored checksum changed makes only the next
 * frame look bad as well.
 *
 * Old frames that the log has not overwritten yet have other salts, and are not counted.
 */
#include "daemon/wal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"

#define HEADER_BYTES 32 /* header of the log */
#define FRAME_BYTES  24 /* header of a frame */
/* The first word of SQLite's log file, without its lowest bit. If the lowest bit is set, the checksums are
 * sums of big-endian words. */
#define MAGIC        0x377f0682u
#define MOST_PAGE    65536u
#define LEAST_PAGE   512u
#define DEFAULT_PAGE 4096u

struct wal_sum {
    uint32_t a, b;
};

/* The state of wal_walk while it goes through the frames of a log. */
struct wal_walker {
    int fd;
    uint32_t page_bytes;
    bool big_endian; /* byte order of the summed words */
    uint8_t salts[8];
    struct wal_sum sum; /* checksum that the previous frame stores */
    uint8_t frame[FRAME_BYTES + MOST_PAGE];
};

static uint32_t big(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint32_t little(const uint8_t *p)
{
    return (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[1] << 8 | p[0];
}

/* Adds `bytes` bytes at `p` to a checksum of SQLite's log, and returns the new checksum. A checksum consists
 * of two sums, a and b. The function adds the 4-byte words alternately to a and to b, each time together with
 * the value of the other sum. `bytes` must be a multiple of 8. */
static struct wal_sum add_words(struct wal_sum s, const uint8_t *p, size_t bytes, bool big_endian)
{
    for (size_t i = 0; i < bytes; i += 8) {
        s.a += (big_endian ? big(p + i) : little(p + i)) + s.b;
        s.b += (big_endian ? big(p + i + 4) : little(p + i + 4)) + s.a;
    }
    return s;
}

/* Reads up to `bytes` bytes at `offset`. Returns the number of bytes read or a negative errno. The number is
 * smaller than `bytes` only at the end of the file. */
static ssize_t read_at(int fd, void *buf, size_t bytes, uint64_t offset)
{
    size_t got = 0;
    while (got < bytes) {
        ssize_t n = pread(fd, (char *)buf + got, bytes - got, (off_t)(offset + got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        got += (size_t)n;
    }
    return (ssize_t)got;
}

static bool is_page_size(uint32_t bytes)
{
    return bytes >= LEAST_PAGE && bytes <= MOST_PAGE && (bytes & (bytes - 1)) == 0;
}

/* Reads the header of the log and returns true if the header is valid. The values of a damaged header are
 * kept too, so that the walk through the frames can still look for commits. */
static bool take_header(struct wal_walker *w, const uint8_t h[HEADER_BYTES])
{
    struct wal_sum none = {0, 0};
    w->big_endian = big(h) & 1;
    w->page_bytes = big(h + 8);
    memcpy(w->salts, h + 16, sizeof w->salts);
    w->sum = (struct wal_sum){big(h + 24), big(h + 28)};
    bool known = (big(h) & ~1u) == MAGIC && is_page_size(w->page_bytes);
    if (!is_page_size(w->page_bytes))
        w->page_bytes = DEFAULT_PAGE;
    struct wal_sum s = add_words(none, h, 24, w->big_endian);
    return known && s.a == w->sum.a && s.b == w->sum.b;
}

/* Returns true if the frame is valid. Each checksum in the log is computed from the previous frame's checksum
 * and the bytes of the frame. So this function also stores the frame's checksum, which is needed to check the
 * next frame. */
static bool take_frame(struct wal_walker *w)
{
    const uint8_t *f = w->frame;
    struct wal_sum s = add_words(w->sum, f, 8, w->big_endian);
    s = add_words(s, f + FRAME_BYTES, w->page_bytes, w->big_endian);
    w->sum = (struct wal_sum){big(f + 16), big(f + 20)};
    return big(f) != 0 && memcmp(f + 8, w->salts, sizeof w->salts) == 0 && s.a == w->sum.a && s.b == w->sum.b;
}

/* Takes the two salt values from the first frame of the log, because the header, which should have them, is
 * damaged. */
static void salts_of_first_frame(struct wal_walker *w)
{
    if (read_at(w->fd, w->frame, FRAME_BYTES, HEADER_BYTES) == FRAME_BYTES)
        memcpy(w->salts, w->frame + 8, sizeof w->salts);
}

static int walk_frames(struct wal_walker *w, struct wal_walk *ret)
{
    const uint64_t frame_bytes = FRAME_BYTES + w->page_bytes;
    for (uint64_t at = HEADER_BYTES;; at += frame_bytes) {
        ssize_t n = read_at(w->fd, w->frame, frame_bytes, at);
        if (n < 0)
            return (int)n;
        if ((uint64_t)n < frame_bytes)
            /* This is the end of the log. Perhaps a crash has left an incomplete last frame. */
            return 0;
        bool good = take_frame(w);
        bool commit = big(w->frame + 4) != 0;
        if (!good && !ret->bad) {
            ret->bad = true;
            ret->bad_offset = at;
        }
        if (!ret->bad && commit) {
            ret->good_commits++;
            ret->good_bytes = at + frame_bytes;
        } else if (ret->bad && commit && memcmp(w->frame + 8, w->salts, sizeof w->salts) == 0) {
            ret->commits_behind++;
        }
    }
}

static int walk_file(struct wal_walker *w, struct wal_walk *ret)
{
    uint8_t header[HEADER_BYTES];
    struct stat st;
    if (fstat(w->fd, &st) < 0)
        return -errno;
    ret->bytes = (uint64_t)st.st_size;
    ssize_t n = read_at(w->fd, header, sizeof header, 0);
    if (n < 0)
        return (int)n;
    if (n < HEADER_BYTES)
        /* SQLite treats a log without a complete header as an empty log. */
        return 0;
    if (!take_header(w, header)) {
        ret->bad = true;
        salts_of_first_frame(w);
    }
    return walk_frames(w, ret);
}

int wal_walk_fd(int fd, struct wal_walk *ret)
{
    struct wal_walker *w = xcalloc(1, sizeof *w);
    *ret = (struct wal_walk){0};
    w->fd = fd;
    int r = walk_file(w, ret);
    free(w);
    return r;
}

int wal_walk(const char *path, struct wal_walk *ret)
{
    *ret = (struct wal_walk){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    int r = wal_walk_fd(fd, ret);
    close(fd);
    return r;
}
