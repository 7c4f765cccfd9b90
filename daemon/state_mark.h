/* The mark (file state.mark) records, outside the database, which transaction was the last acknowledged one.
 *
 * A database that lost its newest transactions looks like any other database. The mark makes the loss
 * visible. After every commit, and before anyone is told about the commit, the number of the transaction is
 * written to the mark. If the database has a lower number when it is opened, acknowledged transactions are
 * gone.
 *
 * The file has two slots of 4 KiB, each with its own checksum. Writes alternate between the slots, so a write
 * that is cut off by a power failure damages only the older slot. The used part of a slot is shorter than 512
 * bytes, which disks write in one piece.
 *
 * Order of calls: state_mark_read, then state_mark_create or state_mark_open, then state_mark_write. All of
 * them block. One thread at a time.
 */
#ifndef DAEMON_STATE_MARK_H
#define DAEMON_STATE_MARK_H

#include <stdint.h>

#include "base/err.h"

struct state_mark {
    /* The number of times that the mark has been written. The file has two slots, and the slot with the
     * higher number is the newer one. */
    uint64_t turn;
    uint64_t commits; /* number of the newest acknowledged transaction */
    /* The highest transaction number that is in state.db itself. The log may no longer have the transactions
     * up to this number. */
    uint64_t folded;
    uint64_t id; /* the highest acknowledged job id */
    /* Event numbers below this one may already have been given to events. */
    uint64_t seq;
};

/* Reads the newer of the two slots in the file at `path`, ignoring invalid slots. Returns -ENOENT if there is
 * no file, and -EBADMSG if neither slot is valid. */
int state_mark_read(const char *path, struct state_mark *ret, struct err *err);

/* Creates or replaces the mark file and syncs it to disk. Returns a file descriptor for state_mark_write, or
 * a negative errno. */
int state_mark_create(const char *path, const struct state_mark *m, struct err *err);

/* Opens an existing mark file. Returns a file descriptor for state_mark_write, or a negative errno. */
int state_mark_open(const char *path, struct err *err);

/* Adds 1 to m->turn, writes *m to the mark file, and syncs the file to disk. */
int state_mark_write(int fd, struct state_mark *m);

#endif
