/* Looks at SQLite's write-ahead log (state.db-wal) before SQLite does. Reads one file and changes nothing; any thread.
 *
 * SQLite takes the first frame whose checksum does not match for the end of the log, and silently ignores the rest. That is
 * right for a transaction that a crash cut off. It is wrong when a bit flipped in the middle of the log: whole transactions
 * that were acknowledged lie behind the bad frame. wal_walk tells the two apart: it counts the commits behind the first bad
 * frame.
 *
 * The format (https://www.sqlite.org/fileformat2.html#walformat): a header of 32 bytes, then frames. A frame has a header of
 * 24 bytes and one page. Checksums are cumulative: each continues from the frame before.
 */
#ifndef DAEMON_WAL_H
#define DAEMON_WAL_H

#include <stdbool.h>
#include <stdint.h>

struct wal_walk {
    uint64_t bytes;          /* length of the file; 0: empty or missing */
    uint64_t good_commits;   /* transactions that SQLite will read */
    uint64_t good_bytes;     /* end of the last of them */
    bool bad;                /* something behind good_bytes is not a valid frame of this log */
    uint64_t bad_offset;     /* where the first such frame begins; 0: the header of the log */
    uint64_t commits_behind; /* commits of this log behind bad_offset. SQLite will not read them */
};

/* Returns 0, or a negative errno when the file cannot be read. A missing file counts as an empty one. */
int wal_walk(const char *path, struct wal_walk *ret);
int wal_walk_fd(int fd, struct wal_walk *ret); /* the same of an open file */

#endif
