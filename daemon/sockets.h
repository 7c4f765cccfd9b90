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

/* Listens at `path` with mode 0600 and replaces an old file there. `on_connection` gets a handle whose
 * `data` field is `data`. The caller keeps `path` valid and unchanged. */
int sockets_listen(struct sockets *s, const char *path, uv_connection_cb on_connection, void *data,
                   struct err *err);

/* Removes the files of the sockets, unless other files have replaced them. Called when the daemon ends. */
void sockets_remove(struct sockets *s);

/* Stops listening and releases the lock. The memory is freed in the loop's next turn. Only tests call
 * this. */
void sockets_close(struct sockets *s);

#endif
