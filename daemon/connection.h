/* A connection that speaks lines. The other side can make the daemon hold only one line of input and
 * CONNECTION_BACKLOG_BYTES of output. Once a line has begun, its end must come within CONNECTION_LINE_MS.
 * Loop thread only.
 *
 * After connection_accept the callbacks in struct connection_ops are called: `line` for each line, `drained`
 * when all queued output has gone out, and `ended` at end of file. `closed` is called exactly once at the
 * end, no matter which side ended the connection. The object is freed after `closed`. connection_close may be
 * called inside any callback, and no `line` callback follows it.
 *
 * A connection that sends many or long lines takes turns with the other connections: see LINES_A_TURN and
 * BYTES_A_TURN in connection.c.
 */
#ifndef DAEMON_CONNECTION_H
#define DAEMON_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "base/err.h"
#include "base/strbuf.h"

#define CONNECTION_BACKLOG_BYTES (1u << 20) /* queued output above which nothing is read */
/* Time in milliseconds within which a line that has begun must end. */
#define CONNECTION_LINE_MS 30000

struct connection;

struct connection_ops {
    /* Gets one line, which is NUL-terminated and has no line feed. The line is valid only during the call. */
    void (*line)(struct connection *p, char *line, size_t bytes);
    /* Called when a line cannot be read. `code` is -EMSGSIZE for a line that is too long, or -ENOMEM. The
     * callback may send an answer. Afterwards the connection is closed. */
    void (*refused)(struct connection *p, int code);
    /* Called when all queued output has gone out. */
    void (*drained)(struct connection *p);
    /* Called when the other side sends no more lines. It may still read. The callback must see to it that
     * connection_finish or connection_close is called, now or later. */
    void (*ended)(struct connection *p);
    /* Called when the connection is closed. The connection object is freed when this callback returns. */
    void (*closed)(struct connection *p);
};

/* Accepts a connection from the listening pipe `server`. `max_line` is the longest line that is accepted,
 * in bytes. connection_ctx returns `ctx`. */
int connection_accept(uv_stream_t *server, const struct connection_ops *ops, size_t max_line, void *ctx,
                      struct connection **ret);

void *connection_ctx(const struct connection *p);

/* Returns the process id and the user id of the other side. */
int connection_credentials(const struct connection *p, pid_t *ret_pid, uid_t *ret_uid);

/* Sends one line. Bytes that the socket does not take at once are copied and queued. If there is no memory
 * for the copy, the connection is closed. Does nothing once the connection is closing. */
void connection_send(struct connection *p, const char *line, size_t bytes);

/* Sends one line that consists of `n` parts. */
void connection_send_parts(struct connection *p, const uv_buf_t *parts, unsigned n);

/* Gives the memory of the current line to the caller, who frees *ret. Call it only inside the `line`
 * callback. Returns -ENOMEM if there is no memory for further lines. */
int connection_keep_line(struct connection *p, char **ret);

/* Returns whether fewer than CONNECTION_BACKLOG_BYTES bytes of output are queued. */
bool connection_ready(const struct connection *p);

/* Stops reading lines if `hold` is true, otherwise continues. Nothing is read while too much output is
 * queued. */
void connection_hold(struct connection *p, bool hold);

/* Closes the connection at once. */
void connection_close(struct connection *p);

/* Closes the connection when all queued output has gone out, or after a few seconds. */
void connection_finish(struct connection *p);

#endif
