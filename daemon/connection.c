/* Implements connection.h.
 *
 * An output line is first written straight to the socket. Only the bytes that the socket does not accept at
 * once are copied and queued. So even when memory has run out, the daemon can usually still send an error
 * answer.
 */
#include "daemon/connection.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/mem.h"
#include "base/wire.h"

/* After connection_finish, the daemon has this many milliseconds to send the remaining output. Then the
 * connection is closed, even if output is left. */
#define FINISH_MS 5000
/* The largest number of lines, and of bytes, that one connection may handle in one turn of the event loop.
 * Then the other connections get their turn. Both limits are needed, because a long line takes far longer to
 * parse than a short line. */
#define LINES_A_TURN 16
#define BYTES_A_TURN 8192

struct connection {
    uv_pipe_t pipe;
    /* This timer closes the connection if an input line does not end in time, or if the last output is not
     * sent in time. */
    uv_timer_t timer;
    uv_idle_t turn; /* active while `more` is set */
    const struct connection_ops *ops;
    void *ctx;
    struct wire_in in;
    int open_handles;
    bool held, reading, closing, finishing, in_lines;
    bool at_end; /* the other side sent end of file */
    /* Set when this connection has used up its turn. The lines that are left are handled in the next turn of
     * the loop. */
    bool more;
    int lines;         /* lines handed out in this turn */
    size_t bytes;      /* bytes of these lines */
    uint64_t lines_ms; /* loop clock: time of this turn */
};

/* Output that waits for the socket. */
struct send {
    uv_write_t write;
    char bytes[];
};

static struct connection *of(const uv_handle_t *h)
{
    return h->data;
}

static void on_connection_handle_closed(uv_handle_t *h)
{
    struct connection *p = of(h);
    if (--p->open_handles > 0)
        return;
    p->ops->closed(p);
    wire_in_finish(&p->in);
    free(p);
}

void connection_close(struct connection *p)
{
    if (p->closing)
        return;
    p->closing = true;
    uv_close((uv_handle_t *)&p->pipe, on_connection_handle_closed);
    uv_close((uv_handle_t *)&p->timer, on_connection_handle_closed);
    uv_close((uv_handle_t *)&p->turn, on_connection_handle_closed);
}

static void on_connection_deadline(uv_timer_t *t)
{
    connection_close(of((uv_handle_t *)t));
}

/* ---- reading ---- */

static void on_connection_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *ret)
{
    (void)suggested;
    /* If memory has run out, wire_in_space sets n to 0. libuv then calls on_connection_read with the error
     * UV_ENOBUFS. */
    size_t n;
    wire_in_space(&of(h)->in, &ret->base, &n);
    ret->len = n;
}

static void on_connection_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf);

static void set_reading(struct connection *p)
{
    bool want = !p->held && !p->more && !p->at_end && !p->closing && !p->finishing && connection_ready(p);
    if (want == p->reading)
        return;
    p->reading = want;
    if (want)
        uv_read_start((uv_stream_t *)&p->pipe, on_connection_alloc, on_connection_read);
    else if (!p->closing)
        uv_read_stop((uv_stream_t *)&p->pipe);
}

static void on_turn(uv_idle_t *idle);

static bool turn_is_over(const struct connection *p)
{
    return p->lines >= LINES_A_TURN || p->bytes >= BYTES_A_TURN;
}

/* Calls the `line` callback for each complete line. Stops when no complete line is left, when connection_hold
 * has stopped the reading, or when the connection's turn is over. */
static void give_lines(struct connection *p)
{
    char *line;
    size_t bytes;
    int r = 0, before;
    if (p->in_lines || p->more)
        /* Return without handing out lines. Either an outer call of this function is still handing out lines,
         * or the lines must wait for the next turn of the loop. */
        return;
    /* uv_now changes only between two turns of the loop. So a new value of uv_now means that a new turn has
     * begun. */
    if (p->lines_ms != uv_now(p->pipe.loop)) {
        p->lines_ms = uv_now(p->pipe.loop);
        p->lines = 0;
        p->bytes = 0;
    }
    before = p->lines;
    p->in_lines = true;
    while (!turn_is_over(p) && !p->closing && !p->finishing && !p->held && connection_ready(p) &&
           (r = wire_in_line(&p->in, &line, &bytes)) > 0) {
        p->lines++;
        p->bytes += bytes;
        p->ops->line(p, line, bytes);
    }
    p->in_lines = false;
    if (p->closing || p->finishing)
        return;
    if (r < 0) {
        p->ops->refused(p, r);
        connection_finish(p);
        return;
    }
    if (turn_is_over(p)) {
        p->more = true;
        uv_idle_start(&p->turn, on_turn);
        uv_timer_stop(&p->timer);
        set_reading(p);
        return;
    }
    bool waits = wire_in_partial(&p->in) && !p->held && !p->at_end && connection_ready(p);
    if (p->lines > before || !waits)
        uv_timer_stop(&p->timer);
    if (waits && !uv_is_active((uv_handle_t *)&p->timer))
        uv_timer_start(&p->timer, on_connection_deadline, CONNECTION_LINE_MS, 0);
    set_reading(p);
}

static void on_turn(uv_idle_t *idle)
{
    struct connection *p = of((uv_handle_t *)idle);
    uv_idle_stop(idle);
    p->more = false;
    p->lines = 0;
    p->bytes = 0;
    give_lines(p);
}

static void on_connection_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct connection *p = of((uv_handle_t *)stream);
    (void)buf;
    if (n == UV_EOF) {
        p->at_end = true;
        uv_timer_stop(&p->timer);
        set_reading(p);
        p->ops->ended(p);
        return;
    }
    /* libuv reports UV_ENOBUFS because on_connection_alloc found no memory. The reason cannot be a line that
     * is too long, because such a line has been refused earlier. */
    if (n == UV_ENOBUFS) {
        p->ops->refused(p, -ENOMEM);
        connection_finish(p);
        return;
    }
    if (n < 0) {
        connection_close(p);
        return;
    }
    if (n == 0)
        return;
    wire_in_added(&p->in, (size_t)n);
    give_lines(p);
}

void connection_hold(struct connection *p, bool hold)
{
    p->held = hold;
    if (!p->closing && !p->finishing) {
        set_reading(p);
        if (!hold)
            give_lines(p);
    }
}

/* ---- writing ---- */

bool connection_ready(const struct connection *p)
{
    return uv_stream_get_write_queue_size((const uv_stream_t *)&p->pipe) < CONNECTION_BACKLOG_BYTES;
}

static void on_written(uv_write_t *w, int status)
{
    struct connection *p = of((uv_handle_t *)w->handle);
    free(w->data);
    if (p->closing)
        return;
    if (status < 0) {
        connection_close(p);
        return;
    }
    if (uv_stream_get_write_queue_size((const uv_stream_t *)&p->pipe) == 0) {
        if (p->finishing) {
            connection_close(p);
            return;
        }
        p->ops->drained(p);
    }
    if (!p->closing && !p->reading)
        give_lines(p);
}

/* Queues a copy of the unsent bytes in `parts`. The first `skip` bytes of `parts` have already been sent.
 * `rest` is the number of unsent bytes. */
static int queue_rest(struct connection *p, const uv_buf_t *parts, unsigned n, size_t skip, size_t rest)
{
    struct send *s = mem_alloc(sizeof *s + rest);
    char *to = s != NULL ? s->bytes : NULL;
    if (s == NULL)
        return -ENOMEM;
    for (unsigned i = 0; i < n; i++) {
        size_t from = skip < parts[i].len ? skip : parts[i].len;
        memcpy(to, parts[i].base + from, parts[i].len - from);
        to += parts[i].len - from;
        skip -= from;
    }
    s->write.data = s;
    uv_buf_t buf = uv_buf_init(s->bytes, (unsigned)rest);
    int r = uv_write(&s->write, (uv_stream_t *)&p->pipe, &buf, 1, on_written);
    if (r < 0)
        free(s);
    return r;
}

void connection_send_parts(struct connection *p, const uv_buf_t *parts, unsigned n)
{
    size_t all = 0, gone;
    if (p->closing || p->finishing)
        return;
    for (unsigned i = 0; i < n; i++)
        all += parts[i].len;
    int r = uv_try_write((uv_stream_t *)&p->pipe, parts, n); /* UV_EAGAIN while output is queued */
    gone = r > 0 ? (size_t)r : 0;
    if (r >= 0 || r == UV_EAGAIN)
        r = gone < all ? queue_rest(p, parts, n, gone, all - gone) : 0;
    if (r < 0) {
        /* Only a part of this line may have been sent. Any further line would be garbled, so close the
         * connection. */
        connection_close(p);
        return;
    }
    set_reading(p);
}

void connection_send(struct connection *p, const char *line, size_t bytes)
{
    uv_buf_t part = {(char *)line, bytes};
    connection_send_parts(p, &part, 1);
}

int connection_keep_line(struct connection *p, char **ret)
{
    return wire_in_steal(&p->in, ret);
}

void connection_finish(struct connection *p)
{
    if (p->closing || p->finishing)
        return;
    p->finishing = true;
    if (uv_stream_get_write_queue_size((const uv_stream_t *)&p->pipe) == 0) {
        connection_close(p);
        return;
    }
    if (p->reading)
        uv_read_stop((uv_stream_t *)&p->pipe);
    p->reading = false;
    uv_timer_start(&p->timer, on_connection_deadline, FINISH_MS, 0);
}

/* ---- beginning ---- */

int connection_accept(uv_stream_t *server, const struct connection_ops *ops, size_t max_line, void *ctx,
                      struct connection **ret)
{
    struct connection *p = xcalloc(1, sizeof *p);
    int r = uv_pipe_init(server->loop, &p->pipe, 0);
    if (r < 0) {
        free(p);
        return r;
    }
    uv_timer_init(server->loop, &p->timer);
    uv_idle_init(server->loop, &p->turn);
    p->open_handles = 3;
    p->pipe.data = p->timer.data = p->turn.data = p;
    p->ops = ops;
    p->ctx = ctx;
    wire_in_init(&p->in, max_line);
    r = uv_accept(server, (uv_stream_t *)&p->pipe);
    *ret = p;
    if (r < 0)
        connection_close(p); /* the `closed` callback follows */
    else
        set_reading(p);
    return 0;
}

void *connection_ctx(const struct connection *p)
{
    return p->ctx;
}

int connection_credentials(const struct connection *p, pid_t *ret_pid, uid_t *ret_uid)
{
    struct ucred c;
    socklen_t n = sizeof c;
    uv_os_fd_t fd;
    int r = uv_fileno((const uv_handle_t *)&p->pipe, &fd);
    if (r < 0)
        return r;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c, &n) < 0)
        return -errno;
    *ret_pid = c.pid;
    *ret_uid = c.uid;
    return 0;
}
