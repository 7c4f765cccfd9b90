/* tutti.sock. See server.h. Connections are kept in order of their last activity, so that the one longest idle is found at
 * once when there are too many. A connection's memory stays until its last request is answered. */
#include "daemon/server.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/log.h"
#include "daemon/events.h"
#include "daemon/jobs.h"
#include "daemon/peer.h"
#include "daemon/sockets.h"

#define MAX_UNDER_WAY 16

struct conn {
    struct server *server;
    struct peer *peer; /* NULL once closed */
    uid_t uid;
    uint32_t under_way; /* requests without an answer */
    struct watcher *watcher;
    bool evicted;             /* had to make room; is about to close */
    bool leaving;             /* asks for nothing more; is closed when everything is answered */
    struct conn *prev, *next; /* least recently active first */
};

struct server {
    struct daemon *daemon;
    struct conn conns; /* head of a ring */
    uint64_t n_conns;
    struct json *no_params;
};

static const struct verb {
    const char *name;
    void (*run)(struct request *rq);
} verbs[] = {
#define VERB(name) {#name, verb_##name},
#include "daemon/verbs.def"
#undef VERB
};
#define N_VERBS (sizeof verbs / sizeof verbs[0])

/* ---- connections ---- */

static void unlink_conn(struct conn *c)
{
    c->prev->next = c->next;
    c->next->prev = c->prev;
}

static void link_newest(struct conn *c)
{
    struct conn *head = &c->server->conns;
    c->prev = head->prev;
    c->next = head;
    head->prev->next = c;
    head->prev = c;
}

static void maybe_free(struct conn *c)
{
    if (c->peer == NULL && c->under_way == 0)
        free(c);
}

static void send_buf(struct conn *c, struct strbuf *b)
{
    if (c->peer != NULL)
        peer_send(c->peer, b->at, b->n);
    strbuf_finish(b);
}

/* An id that is nearly a line of its own has no room in the answer: then it comes without. */
static void send_error(struct conn *c, const char *id, enum wire_code code, const struct err *err)
{
    struct strbuf b = {0};
    wire_add_error(&b, id, code, err, NULL);
    if (b.n > WIRE_LINE_MAX) {
        strbuf_finish(&b);
        wire_add_error(&b, NULL, code, err, NULL);
    }
    send_buf(c, &b);
}

/* ---- requests ---- */

/* Something that kept the connection is over; it may be gone afterwards. */
static void let_go(struct conn *c)
{
    c->under_way--;
    if (c->under_way == MAX_UNDER_WAY - 1 && c->peer != NULL)
        peer_hold(c->peer, false);
    if (c->under_way == 0 && c->leaving && c->peer != NULL)
        peer_finish(c->peer);
    maybe_free(c);
}

static void answered(struct request *rq)
{
    struct conn *c = rq->conn;
    wire_msg_finish(&rq->msg);
    free(rq);
    let_go(c);
}

void request_reply(struct request *rq, const struct strbuf *result)
{
    struct strbuf b = {0};
    if (rq->msg.id[0] != '\0') {
        wire_begin_result(&b, rq->msg.id);
        strbuf_addn(&b, result->at, result->n);
        wire_end(&b);
        if (b.n > WIRE_LINE_MAX) {
            struct err err = {0};
            err_set(&err, -EMSGSIZE, "the answer is longer than a line may be");
            send_error(rq->conn, rq->msg.id, WIRE_FAILED, &err);
            strbuf_finish(&b);
        } else {
            send_buf(rq->conn, &b);
        }
    }
    answered(rq);
}

void request_fail(struct request *rq, enum wire_code code, const struct err *err)
{
    if (rq->msg.id[0] != '\0')
        send_error(rq->conn, rq->msg.id, code, err);
    answered(rq);
}

void request_refuse(struct request *rq, const struct err *err)
{
    request_fail(rq, WIRE_INVALID_PARAMS, err);
}

bool request_no_params(struct request *rq)
{
    struct json_obj o;
    struct err err = {0};
    json_obj_begin(&o, rq->params, "", &err);
    if (json_obj_end(&o) == 0)
        return true;
    request_refuse(rq, &err);
    return false;
}

struct job *request_job(struct request *rq, uint64_t id)
{
    struct job *j = jobs_find(rq->daemon->jobs, id);
    struct err err = {0};
    if (j != NULL && j->on_disk)
        return j;
    err_set_at(&err, -ENOENT, "id", "there is no job %" PRIu64 "; see `tutti ls --all`", id);
    request_fail(rq, WIRE_FAILED, &err);
    return NULL;
}

void request_reply_job(struct request *rq, uint64_t id)
{
    struct strbuf b = {0};
    job_short_json(rq->daemon->jobs, jobs_find(rq->daemon->jobs, id), &b);
    strbuf_add(&b, "}");
    request_reply(rq, &b);
    strbuf_finish(&b);
}

static void no_such_method(struct conn *c, const struct wire_msg *m)
{
    struct err err = {0};
    const char *names[N_VERBS];
    for (size_t i = 0; i < N_VERBS; i++)
        names[i] = verbs[i].name;
    const char *near = json_did_you_mean(m->method, names, N_VERBS);
    err_set_at(&err, -EOPNOTSUPP, "method", "no such method%s%s%s", near != NULL ? "; did you mean \"" : "",
               near != NULL ? near : "", near != NULL ? "\"?" : "");
    if (m->id[0] != '\0')
        send_error(c, m->id, WIRE_NO_METHOD, &err);
}

static void dispatch(struct conn *c, struct wire_msg *m)
{
    size_t i = 0;
    while (i < N_VERBS && strcmp(verbs[i].name, m->method) != 0)
        i++;
    if (i == N_VERBS) {
        no_such_method(c, m);
        wire_msg_finish(m);
        return;
    }
    struct request *rq = xcalloc(1, sizeof *rq);
    *rq = (struct request){
        .daemon = c->server->daemon,
        .conn = c,
        .msg = *m,
        .params = m->params != NULL ? m->params : c->server->no_params,
        .uid = c->uid,
    };
    if (++c->under_way == MAX_UNDER_WAY)
        peer_hold(c->peer, true);
    verbs[i].run(rq);
}

static void on_line(struct peer *p, char *line, size_t bytes)
{
    struct conn *c = peer_ctx(p);
    struct wire_msg m;
    enum wire_code code;
    struct err err = {0};
    unlink_conn(c);
    link_newest(c);
    if (bytes == 0 || (bytes == 1 && line[0] == '\r'))
        return;
    int r = wire_parse(line, bytes, WIRE_NODES_MAX, &m, &code, &err);
    if (r == 0 && m.kind != WIRE_REQUEST && m.kind != WIRE_NOTIFICATION) {
        code = WIRE_INVALID_REQUEST;
        r = err_set(&err, -EINVAL, "a request needs a \"method\"");
    }
    if (r < 0) {
        send_error(c, m.id, code, &err);
        wire_msg_finish(&m);
        return;
    }
    dispatch(c, &m);
}

static void on_too_long(struct peer *p)
{
    struct err err = {0};
    err_set(&err, -EMSGSIZE, "a line has at most %u bytes; this connection is closed", WIRE_LINE_MAX);
    send_error(peer_ctx(p), NULL, WIRE_INVALID_REQUEST, &err);
}

/* ---- watching ---- */

struct conn_watcher {
    struct watcher w;
    struct conn *conn; /* NULL: it watches no longer */
};

static bool watcher_ready(struct watcher *w)
{
    struct conn *c = ((struct conn_watcher *)w)->conn;
    return c != NULL && c->peer != NULL && peer_ready(c->peer);
}

static void watcher_send(struct watcher *w, const char *line, size_t bytes)
{
    struct conn *c = ((struct conn_watcher *)w)->conn;
    if (c != NULL && c->peer != NULL)
        peer_send(c->peer, line, bytes);
}

static void watcher_gone(struct watcher *w)
{
    free(w);
}

static void stop_watching(struct conn *c)
{
    struct watcher *w = c->watcher;
    if (w == NULL)
        return;
    c->watcher = NULL;
    ((struct conn_watcher *)w)->conn = NULL;
    events_unwatch(c->server->daemon->events, w);
}

void server_watch(struct request *rq, uint64_t job, uint64_t next)
{
    struct conn *c = rq->conn;
    struct strbuf b = {0};
    struct conn_watcher *w = xcalloc(1, sizeof *w);
    struct events *events = rq->daemon->events;
    stop_watching(c);
    w->conn = c;
    w->w = (struct watcher){
        .next = next, .job = job, .ready = watcher_ready, .send = watcher_send, .gone = watcher_gone};
    c->watcher = &w->w;
    strbuf_addf(&b, "{\"seq\":%" PRIu64 "}", events_newest(events));
    c->under_way++; /* keeps c */
    request_reply(rq, &b);
    strbuf_finish(&b);
    events_watch(events, &w->w);
    let_go(c);
}

static void on_drained(struct peer *p)
{
    struct conn *c = peer_ctx(p);
    if (c->watcher != NULL)
        events_pump(c->server->daemon->events, c->watcher);
}

/* ---- coming and going ---- */

/* `echo '{...}' | socat - UNIX-CONNECT:tutti.sock` has said all it wants and waits for the answers. */
static void on_ended(struct peer *p)
{
    struct conn *c = peer_ctx(p);
    c->leaving = true;
    stop_watching(c);
    if (c->under_way == 0)
        peer_finish(p);
}

static void on_closed(struct peer *p)
{
    struct conn *c = peer_ctx(p);
    stop_watching(c);
    unlink_conn(c);
    c->server->n_conns--;
    c->peer = NULL;
    maybe_free(c);
}

static const struct peer_ops conn_ops = {on_line, on_too_long, on_drained, on_ended, on_closed};

static void greet(struct conn *c)
{
    struct strbuf b = {0};
    wire_begin_notification(&b, "hello");
    strbuf_addf(&b,
                "{\"server\":\"tuttid\",\"version\":\"" TUTTI_VERSION
                "\",\"protocol\":%d,\"pid\":%ld,\"capabilities\":[",
                WIRE_PROTOCOL, (long)getpid());
    for (size_t i = 0; i < N_VERBS; i++)
        strbuf_addf(&b, "%s\"%s\"", i > 0 ? "," : "", verbs[i].name);
    strbuf_addf(&b, "],\"max_line_bytes\":%u,\"max_depth\":%d}", WIRE_LINE_MAX, JSON_MAX_DEPTH);
    wire_end(&b);
    send_buf(c, &b);
}

/* False: all of them watch. */
static bool make_room(struct server *s, const struct conn *newcomer)
{
    for (struct conn *c = s->conns.next; c != &s->conns; c = c->next) {
        if (c == newcomer || c->watcher != NULL || c->under_way > 0 || c->evicted)
            continue;
        c->evicted = true;
        peer_close(c->peer);
        return true;
    }
    return false;
}

static void refuse_conn(struct conn *c, int code, const char *why)
{
    struct err err = {0};
    err_set(&err, code, "%s", why);
    send_error(c, NULL, WIRE_FAILED, &err);
    peer_finish(c->peer);
}

static void on_connection(uv_stream_t *listening, int status)
{
    struct server *s = listening->data;
    struct conn *c;
    pid_t pid;
    if (status < 0)
        return;
    c = xcalloc(1, sizeof *c);
    c->server = s;
    if (peer_accept(listening, &conn_ops, WIRE_LINE_MAX, c, &c->peer) < 0) {
        free(c);
        return;
    }
    s->n_conns++;
    link_newest(c);
    if (peer_credentials(c->peer, &pid, &c->uid) < 0 || (c->uid != getuid() && c->uid != 0))
        refuse_conn(c, -EACCES, "this daemon serves another user");
    else if (s->n_conns > s->daemon->config.max_connections && !make_room(s, c))
        refuse_conn(c, -EAGAIN, "too many connections; try again later");
    else
        greet(c);
}

int server_open(struct daemon *d, struct server **ret, struct err *err)
{
    struct server *s = xcalloc(1, sizeof *s);
    s->daemon = d;
    s->conns.prev = s->conns.next = &s->conns;
    json_parse("{}", 2, "", false, &s->no_params, NULL);
    int r = sockets_listen(d->sockets, d->config.socket, on_connection, s, err);
    *ret = s;
    return r;
}

void server_close(struct server *s)
{
    if (s == NULL)
        return;
    for (struct conn *c = s->conns.next; c != &s->conns; c = c->next)
        peer_close(c->peer);
}

void server_free(struct server *s)
{
    if (s == NULL)
        return;
    json_free(s->no_params);
    free(s);
}
