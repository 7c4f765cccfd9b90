/* tutti.sock. See server.h. Connections are kept in order of their last activity, so that the one longest idle is found at
 * once when there are too many. A connection's memory stays until its last request is answered.
 *
 * The way of a line: on_line makes a request, read_request parses it (here or in the pool), accept_request runs the verb.
 * When memory runs out the answer is an error. It is written to a buffer on the stack and goes straight to the socket, so it
 * needs no memory itself. */
#include "daemon/server.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/connection.h"
#include "daemon/events.h"
#include "daemon/jobs.h"
#include "daemon/sockets.h"

#define MAX_UNDER_WAY 16
#define MOST_READS                                                                                           \
    3 /* of one job. A job that ends while it is read is read again, and the second read finds its end */

struct conn {
    struct server *server;
    struct connection *connection; /* NULL once closed */
    uid_t uid;
    uint32_t under_way; /* requests without an answer */
    struct watcher *watcher;
    bool large;               /* a large line of it waits for the pool or is in it */
    bool evicted;             /* had to make room; is about to close */
    bool leaving;             /* asks for nothing more; is closed when everything is answered */
    struct conn *prev, *next; /* least recently active first */
};

struct server {
    struct daemon *daemon;
    struct conn conns; /* head of a ring */
    uint64_t n_conns;
    struct fair_pool pool;
    struct json *no_params;
};

static const struct verb verbs[] = {
#define VERB(name, prepare) {#name, verb_##name, prepare},
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
    if (c->connection == NULL && c->under_way == 0)
        free(c);
}

static void send_text(struct conn *c, const char *text, size_t bytes)
{
    if (c->connection != NULL)
        connection_send(c->connection, text, bytes);
}

static void send_error(struct conn *c, const char *id, enum wire_code code, const struct err *err)
{
    char room[WIRE_ERROR_MAX];
    struct strbuf b = strbuf_fixed(room, sizeof room);
    wire_add_error(&b, id, code, err, NULL);
    send_text(c, b.at, b.n);
}

static void send_out_of_memory(struct conn *c, const char *id)
{
    struct err err = {0};
    err_set(&err, -ENOMEM, "the daemon has no memory for this request; try again later, or ask for less");
    send_error(c, id, WIRE_INTERNAL, &err);
}

/* ---- requests ---- */

static void update_hold(struct conn *c)
{
    if (c->connection != NULL)
        connection_hold(c->connection, c->large || c->under_way >= MAX_UNDER_WAY);
}

/* Something that kept the connection is over; it may be gone afterwards. */
static void let_go(struct conn *c)
{
    if (c->under_way-- == MAX_UNDER_WAY)
        update_hold(c);
    if (c->under_way == 0 && c->leaving && c->connection != NULL)
        connection_finish(c->connection);
    maybe_free(c);
}

static void request_free(struct request *rq)
{
    wire_msg_finish(&rq->msg);
    free(rq->buffer);
    free(rq);
}

static void drop_large(struct fair_pool_task *t)
{
    struct request *rq = (struct request *)((char *)t - offsetof(struct request, task));
    wire_msg_finish(&rq->msg);
}

static void large_dropped(struct fair_pool_task *t)
{
    request_free((struct request *)((char *)t - offsetof(struct request, task)));
}

/* Freeing the tree of a large line takes as long as building it: that is for the pool too. */
static void answered(struct request *rq)
{
    struct conn *c = rq->conn;
    if (rq->buffer != NULL && rq->msg.doc != NULL) {
        rq->task.run = drop_large;
        rq->task.done = large_dropped;
        fair_pool_add(&c->server->pool, &rq->task);
    } else {
        request_free(rq);
    }
    let_go(c);
}

static bool wants_answer(const struct request *rq)
{
    return rq->msg.id[0] != '\0';
}

static void send_result(struct request *rq, const struct strbuf *result)
{
    char room[WIRE_ID_MAX + 64];
    struct strbuf head = strbuf_fixed(room, sizeof room);
    struct err err = {0};
    wire_begin_result(&head, rq->msg.id);
    if (head.n + result->n + 2 > WIRE_LINE_MAX) {
        err_set(&err, -EMSGSIZE, "the answer is longer than a line may be");
        send_error(rq->conn, rq->msg.id, WIRE_FAILED, &err);
        return;
    }
    uv_buf_t parts[] = {{head.at, head.n}, {result->at, result->n}, {"}\n", 2}};
    if (rq->conn->connection != NULL)
        connection_send_parts(rq->conn->connection, parts, sizeof parts / sizeof parts[0]);
}

void request_reply(struct request *rq, const struct strbuf *result)
{
    if (wants_answer(rq) && strbuf_status(result) < 0)
        send_out_of_memory(rq->conn, rq->msg.id);
    else if (wants_answer(rq))
        send_result(rq, result);
    answered(rq);
}

void request_out_of_memory(struct request *rq)
{
    if (wants_answer(rq))
        send_out_of_memory(rq->conn, rq->msg.id);
    answered(rq);
}

void request_fail(struct request *rq, enum wire_code code, const struct err *err)
{
    if (wants_answer(rq))
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

/* ---- jobs, live or ended ---- */

void request_no_job(struct request *rq, uint64_t id)
{
    struct err err = {0};
    err_set_at(&err, -ENOENT, "id", "there is no job %" PRIu64 "; see `tutti ls --all`", id);
    request_fail(rq, WIRE_FAILED, &err);
}

void request_unreadable(struct request *rq, int status)
{
    struct err err = {0};
    if (status == -ENOMEM) {
        request_out_of_memory(rq);
        return;
    }
    err_set(&err, status, "the job cannot be read from the state; see the daemon's log");
    request_fail(rq, WIRE_INTERNAL, &err);
}

/* A job that is being read from the state. */
struct finding {
    struct request *rq;
    uint64_t id;
    struct job *found; /* NULL: none */
    int reads;
    void (*then)(struct request *rq, struct job *j);
};

/* In the pool. */
static int take_found(void *ctx, const struct state_job *disk)
{
    struct finding *f = ctx;
    return job_read(disk, &f->found, NULL);
}

static void find_on_disk(struct finding *f);

static void finish_finding(void *ctx, int status)
{
    struct finding *f = ctx;
    struct job *j = jobs_find(f->rq->daemon->jobs, f->id);
    if (j == NULL && f->found != NULL && !job_ended(f->found) &&
        ++f->reads < MOST_READS) { /* it has ended since */
        job_destroy(f->found);
        f->found = NULL;
        find_on_disk(f);
        return;
    }
    if (status < 0)
        request_unreadable(f->rq, status);
    else if (j != NULL && j->on_disk)
        f->then(f->rq, j);
    else if (j == NULL && f->found != NULL && job_ended(f->found))
        f->then(f->rq,
                f->found); /* a job in memory whose submit is not on disk yet does not exist for clients */
    else
        request_no_job(f->rq, f->id);
    job_destroy(f->found);
    free(f);
}

static void find_on_disk(struct finding *f)
{
    state_read_jobs(f->rq->daemon->state, &(struct state_query){.id = f->id}, take_found, finish_finding, f);
}

void request_find(struct request *rq, uint64_t id, void (*then)(struct request *rq, struct job *j))
{
    struct job *j = jobs_find(rq->daemon->jobs, id);
    if (id == 0) { /* the state takes 0 for no id */
        request_no_job(rq, id);
    } else if (j != NULL && j->on_disk) {
        then(rq, j);
    } else {
        struct finding *f = mem_calloc(1, sizeof *f);
        if (f == NULL) {
            request_out_of_memory(rq);
            return;
        }
        *f = (struct finding){.rq = rq, .id = id, .then = then};
        find_on_disk(f);
    }
}

static void reply_short(struct request *rq, struct job *j)
{
    struct strbuf b = {.mode = STRBUF_FAILS};
    job_short_json(rq->daemon->jobs, j, &b);
    strbuf_add(&b, "}");
    request_reply(rq, &b);
    strbuf_finish(&b);
}

void request_reply_job(struct request *rq, uint64_t id)
{
    request_find(rq, id, reply_short);
}

/* ---- lines ---- */

static int find_verb(struct request *rq)
{
    const char *names[N_VERBS];
    for (size_t i = 0; i < N_VERBS; i++) {
        names[i] = verbs[i].name;
        if (strcmp(names[i], rq->msg.method) == 0)
            rq->verb = &verbs[i];
    }
    if (rq->verb != NULL)
        return 0;
    const char *near = json_did_you_mean(rq->msg.method, names, N_VERBS);
    rq->code = WIRE_NO_METHOD;
    return err_set_at(&rq->err, -EOPNOTSUPP, "method", "no such method%s%s%s",
                      near != NULL ? "; did you mean \"" : "", near != NULL ? near : "",
                      near != NULL ? "\"?" : "");
}

/* What the line asks for: rq->verb, or rq->status and why. */
static int read_line(struct request *rq)
{
    int r = wire_parse(rq->line, rq->bytes, WIRE_NODES_MAX, &rq->msg, &rq->code, &rq->err);
    if (r < 0)
        return r;
    if (rq->msg.kind != WIRE_REQUEST && rq->msg.kind != WIRE_NOTIFICATION) {
        rq->code = WIRE_INVALID_REQUEST;
        return err_set(&rq->err, -EINVAL, "a request needs a \"method\"");
    }
    r = find_verb(rq);
    if (r < 0)
        return r;
    rq->params = rq->msg.params != NULL ? rq->msg.params : rq->conn->server->no_params;
    if (rq->verb->prepare == NULL)
        return 0;
    rq->prepared = rq->verb->prepare(rq->params, &rq->err);
    rq->code = rq->err.code == -ENOMEM ? WIRE_INTERNAL : WIRE_INVALID_PARAMS;
    return rq->prepared != NULL ? 0 : rq->err.code;
}

/* Any thread: nothing else looks at the request meanwhile. Frees the tree as soon as it is not needed. */
static void read_request(struct request *rq)
{
    rq->status = read_line(rq);
    if (rq->status == 0 && rq->prepared == NULL)
        return;
    json_free(rq->msg.doc);
    rq->msg.doc = NULL;
    rq->msg.method = NULL;
    rq->msg.params = rq->params = NULL;
}

static void accept_request(struct request *rq)
{
    if (rq->status == 0) {
        rq->verb->run(rq);
        return;
    }
    /* Who sends what is no request wants to know. Of a request, only who gave an id wants an answer. */
    bool request = rq->code == WIRE_NO_METHOD || rq->code == WIRE_INVALID_PARAMS;
    if (wants_answer(rq) || !request)
        send_error(rq->conn, rq->msg.id, rq->code, &rq->err);
    answered(rq);
}

static void read_large(struct fair_pool_task *t)
{
    read_request((struct request *)((char *)t - offsetof(struct request, task)));
}

static void large_is_read(struct fair_pool_task *t)
{
    struct request *rq = (struct request *)((char *)t - offsetof(struct request, task));
    struct conn *c = rq->conn;
    c->under_way++; /* keeps c */
    c->large = false;
    accept_request(rq);
    update_hold(c);
    let_go(c);
}

static void begin_large(struct connection *p, struct request *rq)
{
    struct conn *c = rq->conn;
    if (connection_keep_line(p, &rq->buffer) < 0) {
        send_out_of_memory(c, NULL);
        answered(rq);
        return;
    }
    c->large = true;
    update_hold(c);
    rq->task.uid = c->uid;
    rq->task.run = read_large;
    rq->task.done = large_is_read;
    fair_pool_add(&c->server->pool, &rq->task);
}

static void on_line(struct connection *p, char *line, size_t bytes)
{
    struct conn *c = connection_ctx(p);
    unlink_conn(c);
    link_newest(c);
    if (bytes == 0 || (bytes == 1 && line[0] == '\r'))
        return;
    struct request *rq = mem_calloc(1, sizeof *rq);
    if (rq == NULL) {
        send_out_of_memory(c, NULL);
        return;
    }
    rq->daemon = c->server->daemon;
    rq->conn = c;
    rq->uid = c->uid;
    rq->line = line;
    rq->bytes = bytes;
    if (++c->under_way == MAX_UNDER_WAY)
        update_hold(c);
    if (bytes > SERVER_LARGE_LINE) {
        begin_large(p, rq);
        return;
    }
    read_request(rq);
    accept_request(rq);
}

static void on_refused(struct connection *p, int code)
{
    struct err err = {0};
    if (code == -ENOMEM)
        err_set(&err, code,
                "the daemon has no memory for this line; this connection is closed, try again later");
    else
        err_set(&err, code, "a line has at most %u bytes; this connection is closed", WIRE_LINE_MAX);
    send_error(connection_ctx(p), NULL, code == -ENOMEM ? WIRE_INTERNAL : WIRE_INVALID_REQUEST, &err);
}

/* ---- watching ---- */

struct conn_watcher {
    struct watcher w;
    struct conn *conn; /* NULL: it watches no longer */
};

static bool watcher_ready(struct watcher *w)
{
    struct conn *c = ((struct conn_watcher *)w)->conn;
    return c != NULL && c->connection != NULL && connection_ready(c->connection);
}

static void watcher_send(struct watcher *w, const char *line, size_t bytes)
{
    struct conn *c = ((struct conn_watcher *)w)->conn;
    if (c != NULL && c->connection != NULL)
        connection_send(c->connection, line, bytes);
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
    char room[64];
    struct strbuf b = strbuf_fixed(room, sizeof room);
    struct conn_watcher *w = mem_calloc(1, sizeof *w);
    struct events *events = rq->daemon->events;
    if (w == NULL) {
        request_out_of_memory(rq);
        return;
    }
    stop_watching(c);
    w->conn = c;
    w->w = (struct watcher){
        .next = next, .job = job, .ready = watcher_ready, .send = watcher_send, .gone = watcher_gone};
    c->watcher = &w->w;
    strbuf_addf(&b, "{\"seq\":%" PRIu64 "}", events_newest(events));
    c->under_way++; /* keeps c */
    request_reply(rq, &b);
    events_watch(events, &w->w);
    let_go(c);
}

static void on_drained(struct connection *p)
{
    struct conn *c = connection_ctx(p);
    if (c->watcher != NULL)
        events_pump(c->server->daemon->events, c->watcher);
}

/* ---- coming and going ---- */

/* `echo '{...}' | socat - UNIX-CONNECT:tutti.sock` has said all it wants and waits for the answers. */
static void on_ended(struct connection *p)
{
    struct conn *c = connection_ctx(p);
    c->leaving = true;
    stop_watching(c);
    if (c->under_way == 0)
        connection_finish(p);
}

static void on_closed(struct connection *p)
{
    struct conn *c = connection_ctx(p);
    stop_watching(c);
    unlink_conn(c);
    c->server->n_conns--;
    c->connection = NULL;
    maybe_free(c);
}

static const struct connection_ops conn_ops = {on_line, on_refused, on_drained, on_ended, on_closed};

static void greet(struct conn *c)
{
    char room[1024];
    struct strbuf b = strbuf_fixed(room, sizeof room);
    wire_begin_notification(&b, "hello");
    strbuf_addf(&b,
                "{\"server\":\"tuttid\",\"version\":\"" TUTTI_VERSION
                "\",\"protocol\":%d,\"pid\":%ld,\"capabilities\":[",
                WIRE_PROTOCOL, (long)getpid());
    for (size_t i = 0; i < N_VERBS; i++)
        strbuf_addf(&b, "%s\"%s\"", i > 0 ? "," : "", verbs[i].name);
    strbuf_addf(&b, "],\"max_line_bytes\":%u,\"max_depth\":%d}", WIRE_LINE_MAX, JSON_MAX_DEPTH);
    wire_end(&b);
    send_text(c, b.at, b.n);
}

/* False: all of them watch. */
static bool make_room(struct server *s, const struct conn *newcomer)
{
    for (struct conn *c = s->conns.next; c != &s->conns; c = c->next) {
        if (c == newcomer || c->watcher != NULL || c->under_way > 0 || c->evicted)
            continue;
        c->evicted = true;
        connection_close(c->connection);
        return true;
    }
    return false;
}

static void refuse_conn(struct conn *c, int code, const char *why)
{
    struct err err = {0};
    err_set(&err, code, "%s", why);
    send_error(c, NULL, WIRE_FAILED, &err);
    connection_finish(c->connection);
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
    if (connection_accept(listening, &conn_ops, WIRE_LINE_MAX, c, &c->connection) < 0) {
        free(c);
        return;
    }
    s->n_conns++;
    link_newest(c);
    if (connection_credentials(c->connection, &pid, &c->uid) < 0 || (c->uid != getuid() && c->uid != 0))
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
    fair_pool_init(&s->pool, d->loop, SERVER_LARGE_AT_ONCE);
    json_parse("{}", 2, "", false, &s->no_params, NULL);
    int r = sockets_listen(d->sockets, d->config.socket, on_connection, s, err);
    *ret = s;
    return r;
}

bool server_idle(const struct server *s)
{
    return s->pool.running == 0 && s->pool.first == NULL;
}

void server_close(struct server *s)
{
    if (s == NULL)
        return;
    for (struct conn *c = s->conns.next; c != &s->conns; c = c->next)
        connection_close(c->connection);
}

void server_free(struct server *s)
{
    if (s == NULL)
        return;
    fair_pool_finish(&s->pool);
    json_free(s->no_params);
    free(s);
}
