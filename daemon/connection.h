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
/* Time in milliseconds that the other side has to finish a line that it began. A slower connection is
 * closed. */
#define CONNECTION_LINE_MS 30000

struct connection;

struct connection_ops {
    /* Called with each line. The line is NUL-terminated, has no line feed, and is valid only during the
     * call. */
    void (*line)(struct connection *p, char *line, size_t bytes);
    /* Called when a line cannot be read. `code` is -EMSGSIZE if the line is too long, or -ENOMEM if there is
     * no memory for the line. The callback may send an answer. Afterwards the connection is closed. */
    void (*refused)(struct connection *p, int code);
    /* Called when all queued output has been written to the socket. */
    void (*drained)(struct connection *p);
    /* Called when the other side will send no more lines. The other side may still read answers. So the
     * callback must arrange that connection_finish or connection_close is called, now or later. */
    void (*ended)(struct connection *p);
    /* Called when the connection is closed. The connection object is freed when this callback returns. */
    void (*closed)(struct connection *p);
};

/* Accepts a connection from the listening pipe `server`. `max_line` is the length in bytes of the longest
 * line that is accepted. `ctx` is what connection_ctx returns for this connection. */
int connection_accept(uv_stream_t *server, const struct connection_ops *ops, size_t max_line, void *ctx,
                      struct connection **ret);

void *connection_ctx(const struct connection *p);

/* Gets the process id and the user id of the other side of the connection. */
int connection_credentials(const struct connection *p, pid_t *ret_pid, uid_t *ret_uid);

/* Sends one line. Bytes that the socket does not take at once are copied and queued. If there is no memory
 * for the copy, the connection is closed. Does nothing if the connection is already closing. */
void connection_send(struct connection *p, const char *line, size_t bytes);

/* Like connection_send, but the one line is given as `n` parts. */
void connection_send_parts(struct connection *p, const uv_buf_t *parts, unsigned n);

/* Gives the memory of the current line to the caller, who must free *ret. May be called only inside the
 * `line` callback. Returns -ENOMEM if there is no memory to receive further lines. */
int connection_keep_line(struct connection *p, char **ret);

/* Returns whether the connection can take more output: fewer than CONNECTION_BACKLOG_BYTES bytes are
 * queued. */
bool connection_ready(const struct connection *p);

/* Stops reading lines if `hold` is true, and reads again if `hold` is false. Nothing is read while too much
 * output is queued, whatever `hold` says. */
void connection_hold(struct connection *p, bool hold);

/* Closes the connection at once. */
void connection_close(struct connection *p);

/* Closes the connection when all queued output has been written. If the other side does not read the output,
 * the connection is closed after a few seconds. */
void connection_finish(struct connection *p);

#endif
