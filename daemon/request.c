/* Implements request.h. request_receive creates a request, read_request parses the line, and accept_request
 * runs the method that the request names. Large lines are parsed in the thread pool. */
#include "daemon/request.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* ---- answering ---- */

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

/* Frees the request after its answer was sent. A large tree of parsed JSON is freed in the thread pool,
 * because freeing the tree takes long. */
static void answered(struct request *rq)
{
    struct server_client *c = rq->client;
    if (rq->buffer != NULL && rq->msg.doc != NULL) {
        rq->task.run = drop_large;
        rq->task.done = large_dropped;
        fair_pool_add(&rq->reader->pool, &rq->task);
    } else {
        request_free(rq);
    }
    server_client_let_go(c);
}

static bool wants_answer(const struct request *rq)
{
    return rq->msg.id[0] != '\0';
}

static void send_result(struct request *rq, const struct strbuf *result)
{
    char text[WIRE_ID_MAX + 64];
    struct strbuf head = strbuf_fixed(text, sizeof text);
    struct err err = {0};
    wire_begin_result(&head, rq->msg.id);
    if (head.n + result->n + 2 > WIRE_LINE_MAX) {
        err_set(&err, -EMSGSIZE, "the answer is longer than a line may be, which is %u bytes; ask for less",
                WIRE_LINE_MAX);
        server_client_send_error(rq->client, rq->msg.id, WIRE_FAILED, &err);
        return;
    }
    uv_buf_t parts[] = {{head.at, head.n}, {result->at, result->n}, {"}\n", 2}};
    if (rq->client->connection != NULL)
        connection_send_parts(rq->client->connection, parts, sizeof parts / sizeof parts[0]);
}

void request_reply(struct request *rq, const struct strbuf *result)
{
    if (wants_answer(rq) && strbuf_status(result) < 0)
        server_client_send_out_of_memory(rq->client, rq->msg.id);
    else if (wants_answer(rq))
        send_result(rq, result);
    answered(rq);
}

void request_out_of_memory(struct request *rq)
{
    if (wants_answer(rq))
        server_client_send_out_of_memory(rq->client, rq->msg.id);
    answered(rq);
}

void request_fail(struct request *rq, enum wire_code code, const struct err *err)
{
    if (wants_answer(rq))
        server_client_send_error(rq->client, rq->msg.id, code, err);
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

void request_watch(struct request *rq, uint64_t job, uint64_t next)
{
    struct server_client *c = rq->client;
    char text[64];
    struct strbuf b = strbuf_fixed(text, sizeof text);
    if (server_client_watch(c, job, next) < 0) {
        request_out_of_memory(rq);
        return;
    }
    strbuf_addf(&b, "{\"seq\":%" PRIu64 "}", events_newest(rq->daemon->events));
    server_client_keep(c);
    request_reply(rq, &b);
    server_client_start_watching(c);
    server_client_let_go(c);
}

/* ---- lines ---- */

static int find_verb(struct request *rq)
{
    const struct request_reader *reader = rq->reader;
    const char *names[REQUEST_MOST_VERBS];
    for (size_t i = 0; i < reader->n_verbs; i++) {
        names[i] = reader->verbs[i].name;
        if (strcmp(names[i], rq->msg.method) == 0)
            rq->verb = &reader->verbs[i];
    }
    if (rq->verb != NULL)
        return 0;
    const char *near = json_did_you_mean(rq->msg.method, names, (int)reader->n_verbs);
    rq->code = WIRE_NO_METHOD;
    return err_set_at(&rq->err, -EOPNOTSUPP, "method", "no such method%s%s%s",
                      near != NULL ? "; did you mean \"" : "", near != NULL ? near : "",
                      near != NULL ? "\"?" : "");
}

/* Parses the line and finds the method that the line names. On success, sets rq->verb. On failure, sets
 * rq->code and rq->err. */
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
    rq->params = rq->msg.params != NULL ? rq->msg.params : rq->reader->no_params;
    if (rq->verb->prepare == NULL)
        return 0;
    rq->prepared = rq->verb->prepare(rq->params, &rq->err);
    rq->code = rq->err.code == -ENOMEM ? WIRE_INTERNAL : WIRE_INVALID_PARAMS;
    return rq->prepared != NULL ? 0 : rq->err.code;
}

/* Parses the request's line. May run on any thread, as long as no other thread uses the request. If the
 * request will not need the parsed JSON tree later, frees the tree here. */
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
    /* A line that is not a valid request always gets an error answer. A valid request with an unknown method
     * or wrong parameters gets an error answer only if the request has an id. */
    bool request = rq->code == WIRE_NO_METHOD || rq->code == WIRE_INVALID_PARAMS;
    if (wants_answer(rq) || !request)
        server_client_send_error(rq->client, rq->msg.id, rq->code, &rq->err);
    answered(rq);
}

static void read_large(struct fair_pool_task *t)
{
    read_request((struct request *)((char *)t - offsetof(struct request, task)));
}

static void large_is_read(struct fair_pool_task *t)
{
    struct request *rq = (struct request *)((char *)t - offsetof(struct request, task));
    struct server_client *c = rq->client;
    server_client_keep(c);
    accept_request(rq);
    server_client_set_large(c, false);
    server_client_let_go(c);
}

static void begin_large(struct request *rq)
{
    struct server_client *c = rq->client;
    if (connection_keep_line(c->connection, &rq->buffer) < 0) {
        server_client_send_out_of_memory(c, NULL);
        answered(rq);
        return;
    }
    server_client_set_large(c, true);
    rq->task.uid = c->uid;
    rq->task.run = read_large;
    rq->task.done = large_is_read;
    fair_pool_add(&rq->reader->pool, &rq->task);
}

void request_reader_init(struct request_reader *r, uv_loop_t *loop, const struct verb *verbs, size_t n_verbs)
{
    assert(n_verbs <= REQUEST_MOST_VERBS);
    *r = (struct request_reader){.verbs = verbs, .n_verbs = n_verbs};
    fair_pool_init(&r->pool, loop, REQUEST_LARGE_AT_ONCE);
    json_parse("{}", 2, "", false, &r->no_params, NULL);
}

void request_reader_finish(struct request_reader *r)
{
    fair_pool_finish(&r->pool);
    json_free(r->no_params);
}

void request_receive(struct request_reader *r, struct server_client *c, char *line, size_t bytes)
{
    struct request *rq = mem_calloc(1, sizeof *rq);
    if (rq == NULL) {
        server_client_send_out_of_memory(c, NULL);
        return;
    }
    rq->daemon = c->daemon;
    rq->client = c;
    rq->reader = r;
    rq->uid = c->uid;
    rq->line = line;
    rq->bytes = bytes;
    server_client_begin_request(c);
    if (bytes > REQUEST_LARGE_LINE) {
        begin_large(rq);
        return;
    }
    read_request(rq);
    accept_request(rq);
}
