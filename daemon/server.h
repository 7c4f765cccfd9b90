/* The server on the socket tutti.sock. It accepts clients, greets them, and passes their lines to request.c.
 * Loop thread only.
 *
 * The number of connections is limited. To make room, the server closes the connection of the client that has
 * been idle longest. A client that watches events or waits for an answer is not idle.
 */
#ifndef DAEMON_SERVER_H
#define DAEMON_SERVER_H

#include "daemon/daemon.h"

/* Listens on tutti.sock. */
int server_open(struct daemon *d, struct server **ret, struct err *err);

/* Only tests call server_close, server_free and server_idle. server_close closes all connections and must be
 * called while the loop is still running. server_free frees the server and must be called last. Both
 * functions accept NULL. */
void server_close(struct server *s);
void server_free(struct server *s);

/* Returns true if no large line is waiting for the thread pool or being parsed there. */
bool server_idle(const struct server *s);

#endif
