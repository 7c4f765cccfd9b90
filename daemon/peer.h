/* A connection that speaks lines. It bounds what the other side can make the daemon hold: one line of input and
 * PEER_BACKLOG_BYTES of output. A line that began must end in time. Loop thread only.
 *
 * peer_accept, then callbacks: `line` for each line (NUL-terminated, valid during the call), `drained` when queued output
 * has gone out, `ended` at end of file, and `closed` exactly once at the end, whoever ended it. The peer's memory is gone
 * after `closed`. peer_close may be called from within any callback; no `line` comes after it.
 *
 * A peer that sends many lines or long ones takes turns with the others: see LINES_A_TURN and BYTES_A_TURN in peer.c.
 */
#ifndef DAEMON_PEER_H
#define DAEMON_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "base/err.h"
#include "base/strbuf.h"

#define PEER_BACKLOG_BYTES (1u << 20)
#define PEER_PARTS         4
#define PEER_LINE_MS       30000 /* for a line that began to end */

struct peer;

struct peer_ops {
    void (*line)(struct peer *p, char *line, size_t bytes);
    /* A line cannot be read: -EMSGSIZE, it is over the limit; -ENOMEM, there is no memory for it. The callback may still
     * send something. The peer is closed afterwards. */
    void (*refused)(struct peer *p, int code);
    void (*drained)(struct peer *p);
    void (*ended)(
        struct peer *p); /* no more lines come, but it may still read: peer_finish or peer_close is due */
    void (*closed)(struct peer *p);
};

/* From a listening pipe's connection callback. `ctx` is peer_ctx. */
int peer_accept(uv_stream_t *server, const struct peer_ops *ops, size_t max_line, void *ctx,
                struct peer **ret);
void *peer_ctx(const struct peer *p);
int peer_credentials(const struct peer *p, pid_t *ret_pid, uid_t *ret_uid);

/* Writes at once what the socket takes, and copies the rest. Without memory for the rest the peer is closed. Does nothing
 * once the peer is closing. */
void peer_send(struct peer *p, const char *line, size_t bytes);
void peer_send_parts(struct peer *p, const uv_buf_t *parts,
                     unsigned n); /* one line in up to PEER_PARTS parts */
/* From within `line`: the line stays valid until the caller frees *ret. -ENOMEM: it does not. */
int peer_keep_line(struct peer *p, char **ret);
bool peer_ready(const struct peer *p); /* less than PEER_BACKLOG_BYTES wait */
/* Stop and go on reading. While output over PEER_BACKLOG_BYTES waits, nothing is read in any case. */
void peer_hold(struct peer *p, bool hold);
void peer_close(struct peer *p);             /* at once */
void peer_finish(struct peer *p);            /* when what waits has gone out, or after a while */
uint64_t peer_last_ms(const struct peer *p); /* loop clock: when it last sent something */

#endif
