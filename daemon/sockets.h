/* The sockets that the daemon listens on: worker.sock and tutti.sock, side by side, under one lock.
 *
 * Somebody may remove a socket, or the whole directory, while the daemon runs: a cleaner of temporary files, a logout
 * that removes /run/user/UID, a careless rm. Nobody could reach the daemon any more, though it has jobs to look
 * after. So it looks every few seconds, and listens again at the same path. Connections that are there are not touched.
 * A file that somebody else has put there is left alone; the daemon logs that, and listens again once the file is gone.
 *
 * Order of calls: sockets_create (makes the directory, takes the lock), sockets_listen for each socket, sockets_remove
 * at the end. Loop thread only.
 */
#ifndef DAEMON_SOCKETS_H
#define DAEMON_SOCKETS_H

#include "daemon/daemon.h"

int sockets_create(struct daemon *d, struct sockets **ret, struct err *err);
/* Listens at `path`, mode 0600, and calls on_connection with a handle whose `data` is `data`. Whatever is at the path is
 * replaced: the lock says that nobody listens there. `path` stays the caller's and must not change. */
int sockets_listen(struct sockets *s, const char *path, uv_connection_cb on_connection, void *data,
                   struct err *err);
/* Removes the files of the sockets, if they are still ours. The daemon ends. */
void sockets_remove(struct sockets *s);
/* Listens no longer and gives the lock back; the memory is gone when the loop has run once more. For tests: the daemon
 * holds its sockets until the process ends. */
void sockets_close(struct sockets *s);

#endif
