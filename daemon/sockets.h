/* The sockets that the daemon listens on: worker.sock and tutti.sock, in one directory, under one lock.
 *
 * Somebody may remove a socket, or the whole directory, while the daemon runs: a cleaner of temporary files,
 * a logout that removes /run/user/UID, or a careless rm. Nobody could then reach the daemon, although it has
 * jobs to look after. So the daemon checks its sockets every few seconds and listens again at the same path.
 * Existing connections are not touched. If somebody has put another file there, the daemon leaves that file
 * alone, logs it, and listens again once the file is gone.
 *
 * Order of calls: sockets_create (makes the directory and takes the lock), sockets_listen for each socket,
 * sockets_remove at the end. Loop thread only.
 */
#ifndef DAEMON_SOCKETS_H
#define DAEMON_SOCKETS_H

#include "daemon/daemon.h"

int sockets_create(struct daemon *d, struct sockets **ret, struct err *err);

/* Listens at `path` with mode 0600, and calls `on_connection` for every connection, with a handle whose
 * `data` is `data`. Replaces a file that is at the path: because of the lock, no other daemon listens there.
 * `path` stays the caller's and must not change. */
int sockets_listen(struct sockets *s, const char *path, uv_connection_cb on_connection, void *data,
                   struct err *err);

/* Removes the files of the sockets if they are still this daemon's own. Called when the daemon ends. */
void sockets_remove(struct sockets *s);

/* Stops listening and releases the lock. The memory is freed when the loop has run once more. For tests: the
 * daemon holds its sockets until the process exits. */
void sockets_close(struct sockets *s);

#endif
