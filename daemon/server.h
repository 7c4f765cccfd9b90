/* The server on tutti.sock: accepts clients, greets them, and passes their lines to request.c. Loop thread
 * only.
 *
 * The number of connections is limited. To make room, the client that was idle longest is closed. Clients
 * that watch or wait for an answer are not idle.
 */
#ifndef DAEMON_SERVER_H
#define DAEMON_SERVER_H

#include "daemon/daemon.h"

/* Listens on tutti.sock. */
int server_open(struct daemon *d, struct server **ret, struct err *err);

/* server_close, server_free and server_idle are for tests. server_close closes all connections while the loop
 * runs. server_free then frees the server. Both accept NULL. */
void server_close(struct server *s);
void server_free(struct server *s);

/* Returns true if no large line is being parsed in the pool or waits for the pool. */
bool server_idle(const struct server *s);

#endif
