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
    /* Called with each line that arrives. The line ends with a NUL byte, contains no line feed, and is valid
     * only during the call. */
    void (*line)(struct connection *p, char *line, size_t bytes);
    /* Called when a line cannot be received. `code` is -EMSGSIZE if the line is too long, or -ENOMEM if there
     * is no memory for the line. The callback may send an answer. After the callback, the connection is
     * closed. */
    void (*refused)(struct connection *p, int code);
    /* Called when all queued output has been written to the socket. */
    void (*drained)(struct connection *p);
    /* Called when the other side will send no more lines. The other side may still be reading answers. So the
     * callback must call connection_finish or connection_close now, or make sure that one of them is called
     * later. */
    void (*ended)(struct connection *p);
    /* Called when the connection is closed. The struct connection is freed when this callback returns. */
    void (*closed)(struct connection *p);
};

/* Accepts a connection from the listening pipe `server`. A line longer than `max_line` bytes is refused.
 * connection_ctx returns `ctx` for this connection. */
int connection_accept(uv_stream_t *server, const struct connection_ops *ops, size_t max_line, void *ctx,
                      struct connection **ret);

void *connection_ctx(const struct connection *p);

/* Gets the process id and the user id of the other side of the connection. */
int connection_credentials(const struct connection *p, pid_t *ret_pid, uid_t *ret_uid);

/* Sends one line. The bytes that the socket does not accept at once are copied and queued. If there is no
 * memory for the copy, the connection is closed. If the connection is already closing, nothing is sent. */
void connection_send(struct connection *p, const char *line, size_t bytes);

/* Sends one line like connection_send. The line is given as `n` parts, which are sent one after another. */
void connection_send_parts(struct connection *p, const uv_buf_t *parts, unsigned n);

/* Makes the caller the owner of the memory of the current line. The caller must free *ret. May be called only
 * inside the `line` callback. Returns -ENOMEM if there is no memory to receive further lines. */
int connection_keep_line(struct connection *p, char **ret);

/* Returns true if the connection can take more output, that is, if fewer than CONNECTION_BACKLOG_BYTES bytes
 * are queued. */
bool connection_ready(const struct connection *p);

/* Stops reading lines if `hold` is true, and resumes reading if `hold` is false. While too much output is
 * queued, no lines are read in either case. */
void connection_hold(struct connection *p, bool hold);

/* Closes the connection at once. */
void connection_close(struct connection *p);

/* Closes the connection after all queued output has been written. If the other side does not read the output
 * within a few seconds, the connection is closed anyway. */
void connection_finish(struct connection *p);

#endif
