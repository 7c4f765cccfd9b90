/* Messages between the daemon and its workers on worker.sock (docs/protocol.md, "Workers"). Only workers.c
 * calls these functions.
 *
 * A worker's messages change its job here. Progress and the plan are stored in the record, and an outcome
 * ends the attempt (attempt.h). Two messages concern the worker itself: the first hello and the outcome. They
 * are also passed on through worker->ops. Loop thread only.
 */
#ifndef DAEMON_WORKER_MSGS_H
#define DAEMON_WORKER_MSGS_H

#include "daemon/launch.h"

/* Accepts a connection on the socket worker.sock. The connection belongs to no worker until a valid hello
 * message arrives on it. */
void worker_msgs_accept(struct daemon *d, uv_stream_t *listening);

/* Asks a connected worker to stop. `reason` is "cancel", "limit" or "shutdown", and is sent to the worker. */
void worker_msgs_stop(struct worker *w, const char *reason);

/* Closes the connection of the worker. Does nothing if the worker has no connection. */
void worker_msgs_hang_up(struct worker *w);

#endif
