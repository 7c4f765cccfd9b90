/* A connection that speaks lines. It limits what the other side can make the daemon hold: one line of input,
 * and CONNECTION_BACKLOG_BYTES of output. A line that has begun must end in time. Loop thread only.
 *
 * After connection_accept the callbacks in struct connection_ops are called: `line` for each line, `drained`
 * when all queued output has gone out, `ended` at end of file, and `closed` exactly once at the end,
 * whichever side ended the connection. The object is freed after `closed`. connection_close may be called
 * inside any callback; no `line` follows it.
 *
 * A connection that sends many or long lines takes turns with the others: see LINES_A_TURN and BYTES_A_TURN
 * in connection.c.
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
/* Time within which a line that has begun must end. */
#define CONNECTION_LINE_MS 30000

struct connection;

struct connection_ops {
    /* One line, NUL-terminated and without its line feed. It is valid during the call. */
    void (*line)(struct connection *p, char *line, size_t bytes);
    /* A line cannot be read. `code` is -EMSGSIZE when it exceeds the limit, and -ENOMEM when there is no
     * memory for it. The callback may send an answer; the connection is closed afterwards. */
    void (*refused)(struct connection *p, int code);
    /* All queued output has gone out. */
    void (*drained)(struct connection *p);
    /* The other side sends no more lines, but may still read. The callback must make sure that
     * connection_finish or connection_close is called now or later. */
    void (*ended)(struct connection *p);
    /* The connection is closed. The object is freed when this returns. */
    void (*closed)(struct connection *p);
};

/* Accepts a connection. Called in the connection callback of the listening pipe `server`. `max_line` is the
 * length of the longest line, and `ctx` is what connection_ctx returns. */
int connection_accept(uv_stream_t *server, const struct connection_ops *ops, size_t max_line, void *ctx,
                      struct connection **ret);

void *connection_ctx(const struct connection *p);

/* Returns the process and the user at the other end. */
int connection_credentials(const struct connection *p, pid_t *ret_pid, uid_t *ret_uid);

/* Sends one line. Writes at once what the socket takes, and queues a copy of the rest. Closes the connection
 * when there is no memory for the copy. Does nothing once the connection is closing. */
void connection_send(struct connection *p, const char *line, size_t bytes);

/* Sends one line that is given in `n` parts. */
void connection_send_parts(struct connection *p, const uv_buf_t *parts, unsigned n);

/* Takes over the memory of the line that is being handed out; called only inside the `line` callback. The
 * line stays valid until the caller frees *ret. Returns -ENOMEM when there is no memory for the lines to
 * come. */
int connection_keep_line(struct connection *p, char **ret);

/* Returns whether less than CONNECTION_BACKLOG_BYTES of output are queued. */
bool connection_ready(const struct connection *p);

/* Stops reading lines, or continues. While too much output is queued, nothing is read in either case. */
void connection_hold(struct connection *p, bool hold);

/* Closes the connection at once. */
void connection_close(struct connection *p);

/* Closes the connection when all queued output has gone out, or after a few seconds. */
void connection_finish(struct connection *p);

#endif
