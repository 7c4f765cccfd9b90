/* The server on tutti.sock: accepts clients, greets them, and hands their lines to request.c. Loop thread
 * only.
 *
 * The number of connections is limited. A new client beyond the limit evicts the client that has been idle
 * longest; clients that watch or wait for an answer stay.
 */
#ifndef DAEMON_SERVER_H
#define DAEMON_SERVER_H

#include "daemon/daemon.h"

/* Listens on tutti.sock. */
int server_open(struct daemon *d, struct server **ret, struct err *err);

/* The following three are for tests: the daemon keeps its server until the process exits. server_close closes
 * all connections, which takes effect while the loop runs. server_free frees the server after that. Both take
 * NULL. */
void server_close(struct server *s);
void server_free(struct server *s);

/* Returns whether no large line waits for the pool or is in it. */
bool server_idle(const struct server *s);

#endif
