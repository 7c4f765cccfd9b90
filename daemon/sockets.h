/* The sockets that the daemon listens on: worker.sock and tutti.sock, in one directory, under one lock.
 *
 * Somebody may remove a socket, or the whole directory, while the daemon runs: a cleaner of temporary files,
 * a logout that removes /run/user/UID, or a careless rm. Nobody could then reach the daemon, although it has
 * jobs to look after. So the daemon checks its sockets every few seconds and listens again at the same path.
 * Existing connections are not touched. If somebody has put another file there, the daemon leaves that file
 * alone, logs a message, and listens again once the file is gone.
 *
 * Order of calls: sockets_create (makes the directory and takes the lock), sockets_listen for each socket,
 * sockets_remove at the end. Loop thread only.
 */
#ifndef DAEMON_SOCKETS_H
#define DAEMON_SOCKETS_H

#include "daemon/daemon.h"

int sockets_create(struct daemon *d, struct sockets **ret, struct err *err);

/* Listens on a socket at `path` with mode 0600. An old file at `path` is replaced. For each connection,
 * on_connection is called with a handle whose `data` field is `data`. The text `path` must stay valid and
 * unchanged. */
int sockets_listen(struct sockets *s, const char *path, uv_connection_cb on_connection, void *data,
                   struct err *err);

/* Removes the files of the sockets. A file that somebody else has put in their place is not removed. Called
 * when the daemon ends. */
void sockets_remove(struct sockets *s);

/* Stops listening and releases the lock. The memory is freed in the next turn of the loop. Only tests call
 * this function. */
void sockets_close(struct sockets *s);

#endif
