/* Inspects SQLite's write-ahead log (state.db-wal) before SQLite does. Reads one file and changes nothing.
 * Any thread.
 *
 * SQLite takes the first frame whose checksum does not match for the end of the log, and silently ignores the
 * rest. That is right for a transaction that a crash cut off. It is wrong when a bit flipped in the middle of
 * the log, because complete acknowledged transactions then follow the bad frame. wal_walk tells the two cases
 * apart by counting the commits after the first bad frame.
 *
 * The format (https://www.sqlite.org/fileformat2.html#walformat) is a header of 32 bytes, followed by frames.
 * A frame is a header of 24 bytes and one page. The checksums are cumulative: each checksum continues from
 * the frame before.
 */
#ifndef DAEMON_WAL_H
#define DAEMON_WAL_H

#include <stdbool.h>
#include <stdint.h>

struct wal_walk {
    uint64_t bytes;        /* length; 0: empty or missing */
    uint64_t good_commits; /* transactions that SQLite will read */
    /* The file offset of the end of the last transaction that SQLite will read. */
    uint64_t good_bytes;
    bool bad; /* an invalid frame or header was found */
    /* Offset of the first invalid frame in the file. 0 if the header of the log itself is invalid. */
    uint64_t bad_offset;
    /* The number of commits after the first invalid frame. SQLite will not read these commits. */
    uint64_t commits_behind;
};

/* Inspects the log file at `path`. A missing file counts as an empty log. Returns a negative errno if the
 * file cannot be read. */
int wal_walk(const char *path, struct wal_walk *ret);

/* Inspects the log file that is open as the descriptor `fd`. */
int wal_walk_fd(int fd, struct wal_walk *ret);

#endif
