/* The client library: one connection to tuttid (docs/protocol.md). Blocking, one thread, no callbacks.
 *
 *     struct tutti *t;
 *     tutti_connect(NULL, &t, &err);
 *     tutti_call(t, "watch", "{\"id\":3}", &answer, &err);  ... answer.result ...  wire_msg_finish(&answer);
 *     while ((r = tutti_next(t, -1, &event, &err)) >= 0) ...  event.params ...     wire_msg_finish(&event);
 *     tutti_close(t);
 *
 * Events that arrive while a call waits for its answer are kept and come first from tutti_next. What the
 * server sends is not to be trusted on a terminal: scrub it before it is shown.
 */
#ifndef CLIENT_TUTTI_H
#define CLIENT_TUTTI_H

#include <stdbool.h>

#include "base/err.h"
#include "base/wire.h"

struct tutti;

/* Connects and reads the greeting. `path` NULL: $TUTTI_SOCKET, else the usual places. -ECONNREFUSED:
 * nobody is there; -EACCES: not for this user; -EPROTO: not a server that this client understands. */
int tutti_connect(const char *path, struct tutti **ret, struct err *err);
/* The same on a connected socket, which then belongs to the connection (also on failure). */
int tutti_open(int fd, struct tutti **ret, struct err *err);
void tutti_close(struct tutti *t); /* takes NULL */

/* Sends a request and waits for its answer. `params`: JSON text of an object; NULL is {}. On success
 * ret->result is there. Failures: what the server answered (its errno, message and path), or a transport
 * failure: then tutti_lost. */
int tutti_call(struct tutti *t, const char *method, const char *params, struct wire_msg *ret,
               struct err *err);

/* 1: the next event; 0: none within timeout_ms (negative: wait forever), or a signal came; negative: lost. */
int tutti_next(struct tutti *t, int timeout_ms, struct wire_msg *ret, struct err *err);

/* Whether the connection is of no more use. */
bool tutti_lost(const struct tutti *t);

#endif
