/* The mark (state.mark): how far the acknowledged state goes, kept outside of the database.
 *
 * A database that lost its newest transactions looks like any other database. The mark makes such a loss visible: after every
 * commit, and before anyone is told of it, the mark gets the number of the commit. When the database is opened and its own
 * number is lower, acknowledged transactions are gone.
 *
 * The file has two slots of 4 KiB, each with its own checksum. Writes alternate between the slots, so that a write which a
 * power cut tears damages the older slot only. A slot needs less than 512 bytes, and disks write that much in one piece.
 *
 * Blocks; one thread at a time. state_mark_read, then state_mark_create or state_mark_open, then state_mark_write.
 */
#ifndef DAEMON_STATE_MARK_H
#define DAEMON_STATE_MARK_H

#include <stdint.h>

#include "base/err.h"

struct state_mark {
    uint64_t turn;    /* counts the writes of the mark */
    uint64_t commits; /* the number of the newest acknowledged transaction */
    uint64_t
        folded;  /* the transactions up to this number are in state.db itself, and may be gone from its log */
    uint64_t id; /* the highest acknowledged job id */
    uint64_t seq; /* event numbers below this one may have been given out */
};

/* -ENOENT: there is none. -EBADMSG: neither slot can be read. */
int state_mark_read(const char *path, struct state_mark *ret, struct err *err);
/* Replaces the mark, or makes the first one; when this returns it is on disk. Returns a descriptor for state_mark_write. */
int state_mark_create(const char *path, const struct state_mark *m, struct err *err);
int state_mark_open(const char *path, struct err *err); /* a descriptor for state_mark_write */
/* Writes and syncs. m->turn is incremented. */
int state_mark_write(int fd, struct state_mark *m);

#endif
