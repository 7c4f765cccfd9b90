/* Requests of clients: parsing a line, finding its method, and answering. Loop thread only, except where
 * noted.
 *
 * A line longer than REQUEST_LARGE_LINE is parsed, and prepared by its method, in the pool (fair_pool.h). Its
 * client gives no further line meanwhile, so the requests of one client begin in the order of their lines.
 *
 * When memory runs out the answer is an error. It is built on the stack and written straight to the socket,
 * so it needs no memory.
 */
#ifndef DAEMON_REQUEST_H
#define DAEMON_REQUEST_H

#include "base/json.h"
#include "base/strbuf.h"
#include "base/wire.h"
#include "daemon/daemon.h"
#include "daemon/fair_pool.h"
#include "daemon/server_client.h"

/* Length in bytes of the longest line that the loop thread parses itself. */
#define REQUEST_LARGE_LINE 8192
#define REQUEST_MOST_VERBS 32 /* methods of a server */
/* Large lines that are parsed in the pool at once. The pool has four threads. */
#define REQUEST_LARGE_AT_ONCE 2

struct request;

/* One method of tutti.sock. */
struct verb {
    const char *name;
    void (*run)(struct request *rq); /* loop thread */
    /* NULL, or the part of the work that needs only the parameters. It may run in the pool, so it must look
     * at nothing but `params`, which are freed afterwards. It returns an object that `run` finds as
     * rq->prepared, or NULL with err set. */
    void *(*prepare)(const struct json *params, struct err *err);
};

/* State that all requests of one server share. server.c owns it. */
struct request_reader {
    struct fair_pool pool; /* parses large lines */
    /* An empty object, for requests without parameters; constant. */
    struct json *no_params;
    const struct verb *verbs; /* the methods, in alphabetical order; constant */
    size_t n_verbs;
};

/* One request of a client. Made by request_receive, and freed by the call that answers it. */
struct request {
    struct daemon *daemon;
    struct server_client *client;
    /* The method that the request names; NULL if there is no such method. */
    const struct verb *verb;
    struct wire_msg msg;
    /* The parameters, a JSON object; NULL for a method with `prepare`. */
    const struct json *params;
    /* The result of verb->prepare; the method frees it. */
    void *prepared;
    uid_t uid; /* the user who asks */

    /* request.c */
    struct request_reader *reader;
    struct fair_pool_task task; /* used for a large line */
    /* The text; for a large line, the memory that holds it (otherwise NULL). */
    char *line, *buffer;
    size_t bytes; /* length of `line` */
    /* Result of reading the line: 0, or why it was refused. */
    int status;
    enum wire_code code; /* error code of a refused line */
    struct err err;      /* message of a refused line */
};

/* Prepares a reader for the methods in `verbs`, which must live as long as the reader. */
void request_reader_init(struct request_reader *r, uv_loop_t *loop, const struct verb *verbs, size_t n_verbs);

/* Frees what request_reader_init made. Called when no large line is in the pool. */
void request_reader_finish(struct request_reader *r);

/* Parses one line of the client as a request and runs its method. `line` need only be valid during the
 * call. */
void request_receive(struct request_reader *r, struct server_client *c, char *line, size_t bytes);

/* Answers with `result`, a JSON text. If `result` is incomplete because memory ran out, the answer is an
 * error. */
void request_reply(struct request *rq, const struct strbuf *result);

/* Answers with an error. */
void request_fail(struct request *rq, enum wire_code code, const struct err *err);

/* Answers that the parameters are wrong (WIRE_INVALID_PARAMS, -32602). */
void request_refuse(struct request *rq, const struct err *err);

/* Answers that the daemon has no memory for the request (WIRE_INTERNAL, -32603). Needs no memory itself. */
void request_out_of_memory(struct request *rq);

/* Checks that a request for a method without parameters has none. Returns false when it has some; the request
 * is then answered with an error and freed. */
bool request_no_params(struct request *rq);

/* Makes the request's client watch the events of one job, or of all jobs (0), from number `next` on. Answers
 * with the number of the newest event. */
void request_watch(struct request *rq, uint64_t job, uint64_t next);

#endif
