/* A connection that speaks lines. It bounds what the other side can make the daemon hold: one line of input and
 * CONNECTION_BACKLOG_BYTES of output. A line that began must end in time. Loop thread only.
 *
 * connection_accept, then callbacks: `line` for each line (NUL-terminated, valid during the call), `drained` when queued output
 * has gone out, `ended` at end of file, and `closed` exactly once at the end, whoever ended it. The peer's memory is gone
 * after `closed`. connection_close may be called from within any callback; no `line` comes after it.
 *
 * A peer that sends many lines or long ones takes turns with the others: see LINES_A_TURN and BYTES_A_TURN in connection.c.
 */
#ifndef DAEMON_CONNECTION_H
#define DAEMON_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "base/err.h"
#include "base/strbuf.h"

#define CONNECTION_BACKLOG_BYTES (1u << 20)
#define CONNECTION_PARTS         4
#define CONNECTION_LINE_MS       30000 /* for a line that began to end */

struct connection;

struct connection_ops {
    void (*line)(struct connection *p, char *line, size_t bytes);
    /* A line cannot be read: -EMSGSIZE, it is over the limit; -ENOMEM, there is no memory for it. The callback may still
     * send something. The peer is closed afterwards. */
    void (*refused)(struct connection *p, int code);
    void (*drained)(struct connection *p);
    void (*ended)(
        struct connection
            *p); /* no more lines come, but it may still read: connection_finish or connection_close is due */
    void (*closed)(struct connection *p);
};

/* From a listening pipe's connection callback. `ctx` is connection_ctx. */
int connection_accept(uv_stream_t *server, const struct connection_ops *ops, size_t max_line, void *ctx,
                      struct connection **ret);
void *connection_ctx(const struct connection *p);
int connection_credentials(const struct connection *p, pid_t *ret_pid, uid_t *ret_uid);

/* Writes at once what the socket takes, and copies the rest. Without memory for the rest the peer is closed. Does nothing
 * once the peer is closing. */
void connection_send(struct connection *p, const char *line, size_t bytes);
void connection_send_parts(struct connection *p, const uv_buf_t *parts,
                           unsigned n); /* one line in up to CONNECTION_PARTS parts */
/* From within `line`: the line stays valid until the caller frees *ret. -ENOMEM: it does not. */
int connection_keep_line(struct connection *p, char **ret);
bool connection_ready(const struct connection *p); /* less than CONNECTION_BACKLOG_BYTES wait */
/* Stop and go on reading. While output over CONNECTION_BACKLOG_BYTES waits, nothing is read in any case. */
void connection_hold(struct connection *p, bool hold);
void connection_close(struct connection *p);  /* at once */
void connection_finish(struct connection *p); /* when what waits has gone out, or after a while */

#endif
