/* The client library: a connection to tuttid (docs/protocol.md). Calls block, and a connection
 * belongs to one thread.
 *
 *     struct tutti *t;
 *     tutti_connect(NULL, &t, &err);
 *     tutti_call(t, "watch", "{\"id\":3}", &answer, &err);  ... answer.result ...  wire_msg_finish(&answer);
 *     while ((r = tutti_next(t, -1, &event, &err)) >= 0) ...  event.params ...     wire_msg_finish(&event);
 *     tutti_close(t);
 *
 * Events that arrive while a call waits for its answer are queued; tutti_next returns them first. Text from
 * the daemon may contain control characters: scrub it before you show it on a terminal.
 */
#ifndef CLIENT_TUTTI_H
#define CLIENT_TUTTI_H

#include <stdbool.h>

#include "base/err.h"
#include "base/wire.h"

struct tutti;

/* Connects to the daemon and reads its greeting. If `path` is NULL, uses $TUTTI_SOCKET or a default path.
 * Returns -ECONNREFUSED if no daemon is listening, -EACCES if the user has no permission, and -EPROTO if the
 * other side is not a compatible daemon. */
int tutti_connect(const char *path, struct tutti **ret, struct err *err);
/* Makes a struct tutti from the connected socket `fd`, and reads the daemon's greeting. On success, the
 * struct owns `fd`. On failure, `fd` is closed. */
int tutti_open(int fd, struct tutti **ret, struct err *err);
void tutti_close(struct tutti *t); /* t may be NULL */

/* Sends a request and waits for the answer, which is stored in ret->result. The caller frees *ret with
 * wire_msg_finish. `params` is a JSON object, or NULL for {}. Returns a negative errno if the daemon answers
 * with an error, or if the connection is lost (see tutti_lost). */
int tutti_call(struct tutti *t, const char *method, const char *params, struct wire_msg *ret,
               struct err *err);

/* Waits for the next event. Stores the event in *ret and returns 1. Returns 0 after `timeout_ms` milliseconds
 * or after a signal, and a negative errno if the connection is lost. If `timeout_ms` is negative, the wait
 * has no limit. */
int tutti_next(struct tutti *t, int timeout_ms, struct wire_msg *ret, struct err *err);

/* Returns true if the connection has failed. A failed connection can only be closed. */
bool tutti_lost(const struct tutti *t);

#endif
