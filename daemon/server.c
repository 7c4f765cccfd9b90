/* Implements server.h. A ring list keeps the clients in the order of their last activity, so that the client
 * that has been idle longest is found at once. */
#include "daemon/server.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/arena.h"
#include "daemon/request.h"
#include "daemon/server_verbs.h"
#include "daemon/sockets.h"

struct server {
    struct daemon *daemon;
    /* The head of the ring list of clients. Only the fields `prev` and `next` of the head are used. */
    struct server_client clients;
    uint64_t n_clients;
    struct request_reader reader;
};

static const struct verb verbs[] = {
#define VERB(name)              {#name, verb_##name, NULL},
#define VERB_WITH_PREPARE(name) {#name, verb_##name, verb_##name##_prepare},
#include "daemon/verbs.def"
#undef VERB
#undef VERB_WITH_PREPARE
};
#define N_VERBS (sizeof verbs / sizeof verbs[0])

/* ---- the ring ---- */

static void unlink_client(struct server_client *c)
{
    c->prev->next = c->next;
    c->next->prev = c->prev;
}

static void link_newest(struct server_client *c)
{
    struct server_client *head = &c->server->clients;
    c->prev = head->prev;
    c->next = head;
    head->prev->next = c;
    head->prev = c;
}

/* ---- callbacks of a connection ---- */

static void on_client_line(struct connection *p, char *line, size_t bytes)
{
    struct server_client *c = connection_ctx(p);
    unlink_client(c);
    link_newest(c);
    if (bytes == 0 || (bytes == 1 && line[0] == '\r'))
        return;
    request_receive(&c->server->reader, c, line, bytes);
}

static void on_client_refused(struct connection *p, int code)
{
    struct err err = {0};
    if (code == -ENOMEM)
        err_set(&err, code,
                "the daemon has no memory for this line; this connection is closed, try again later");
    else
        err_set(&err, code, "a line has at most %u bytes; this connection is closed", WIRE_LINE_MAX);
    server_client_send_error(connection_ctx(p), NULL, code == -ENOMEM ? WIRE_INTERNAL : WIRE_INVALID_REQUEST,
                             &err);
}

static void on_client_drained(struct connection *p)
{
    struct server_client *c = connection_ctx(p);
    if (c->watcher != NULL)
        events_pump(c->daemon->events, c->watcher);
}

/* Called when the client will send no more requests. The client may still wait for answers, for example if it
 * is `socat` with input from a pipe. */
static void on_client_ended(struct connection *p)
{
    struct server_client *c = connection_ctx(p);
    c->leaving = true;
    server_client_stop_watching(c);
    if (c->under_way == 0)
        connection_finish(p);
}

static void on_client_closed(struct connection *p)
{
    struct server_client *c = connection_ctx(p);
    server_client_stop_watching(c);
    unlink_client(c);
    c->server->n_clients--;
    c->connection = NULL;
    server_client_keep(c);
    server_client_let_go(c); /* frees the client if nothing keeps it */
}

static const struct connection_ops client_ops = {on_client_line, on_client_refused, on_client_drained,
                                                 on_client_ended, on_client_closed};

static void greet(struct server_client *c)
{
    char text[1024];
    struct strbuf b = strbuf_fixed(text, sizeof text);
    wire_begin_notification(&b, "hello");
    strbuf_addf(&b,
                "{\"server\":\"tuttid\",\"version\":\"" TUTTI_VERSION
                "\",\"protocol\":%d,\"pid\":%ld,\"capabilities\":[",
                WIRE_PROTOCOL, (long)getpid());
    for (size_t i = 0; i < N_VERBS; i++)
        strbuf_addf(&b, "%s\"%s\"", i > 0 ? "," : "", verbs[i].name);
    strbuf_addf(&b, "],\"max_line_bytes\":%u,\"max_depth\":%d}", WIRE_LINE_MAX, JSON_MAX_DEPTH);
    wire_end(&b);
    server_client_send(c, b.at, b.n);
}

/* Closes the connection of the client that has been idle longest, to make room for `newcomer`. A client that
 * watches events or waits for an answer is not idle. Returns false if no other client is idle. */
static bool evict_idle(struct server *s, const struct server_client *newcomer)
{
    for (struct server_client *c = s->clients.next; c != &s->clients; c = c->next) {
        if (c == newcomer || c->watcher != NULL || c->under_way > 0 || c->evicted)
            continue;
        c->evicted = true;
        connection_close(c->connection);
        return true;
    }
    return false;
}

static void refuse_client(struct server_client *c, int code, const char *why)
{
    struct err err = {0};
    err_set(&err, code, "%s", why);
    server_client_send_error(c, NULL, WIRE_FAILED, &err);
    connection_finish(c->connection);
}

static void on_client_connection(uv_stream_t *listening, int status)
{
    struct server *s = listening->data;
    struct server_client *c;
    pid_t pid;
    if (status < 0)
        return;
    c = xcalloc(1, sizeof *c);
    c->server = s;
    c->daemon = s->daemon;
    if (connection_accept(listening, &client_ops, WIRE_LINE_MAX, c, &c->connection) < 0) {
        free(c);
        return;
    }
    s->n_clients++;
    link_newest(c);
    if (connection_credentials(c->connection, &pid, &c->uid) < 0 || (c->uid != getuid() && c->uid != 0))
        refuse_client(c, -EACCES, "this daemon serves another user");
    else if (s->n_clients > s->daemon->config.max_connections && !evict_idle(s, c))
        refuse_client(c, -EAGAIN, "too many connections; try again later");
    else
        greet(c);
}

int server_open(struct daemon *d, struct server **ret, struct err *err)
{
    struct server *s = xcalloc(1, sizeof *s);
    s->daemon = d;
    s->clients.prev = s->clients.next = &s->clients;
    request_reader_init(&s->reader, d->loop, verbs, N_VERBS);
    int r = sockets_listen(d->sockets, d->config.socket, on_client_connection, s, err);
    *ret = s;
    return r;
}

bool server_idle(const struct server *s)
{
    return s->reader.pool.running == 0 && s->reader.pool.first == NULL;
}

void server_close(struct server *s)
{
    if (s == NULL)
        return;
    for (struct server_client *c = s->clients.next; c != &s->clients; c = c->next)
        connection_close(c->connection);
}

void server_free(struct server *s)
{
    if (s == NULL)
        return;
    request_reader_finish(&s->reader);
    free(s);
}
