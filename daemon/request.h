/* Requests of clients: parsing a line, finding its method, and answering. Loop thread only, except where
 * noted.
 *
 * A line longer than REQUEST_LARGE_LINE is parsed in the pool (fair_pool.h), and its method prepares it there
 * too. No further line of that client is read meanwhile, so the requests of one client begin in the order of
 * their lines.
 *
 * When memory runs out, the answer is an error. It is built on the stack and written straight to the socket,
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

/* The longest line, in bytes, that is parsed on the loop thread. Longer lines are parsed in the thread pool,
 * so that other clients need not wait. */
#define REQUEST_LARGE_LINE 8192
#define REQUEST_MOST_VERBS 32 /* methods of a server */
/* Number of large lines that are parsed in the pool at once. The pool has four threads, so two stay free for
 * other work. */
#define REQUEST_LARGE_AT_ONCE 2

struct request;

/* One method that clients can call on the socket tutti.sock, such as "submit" or "list". */
struct verb {
    const char *name;
    void (*run)(struct request *rq); /* loop thread */
    /* Does the part of the work that needs only the parameters. May be NULL. The function may run in the
     * pool, so it must use nothing but `params`, which are freed afterwards. Returns an object for `run` to
     * use as rq->prepared, or NULL with err set. */
    void *(*prepare)(const struct json *params, struct err *err);
};

/* Data that all requests to one server share. server.c owns this struct. */
struct request_reader {
    struct fair_pool pool; /* parses large lines */
    /* An empty JSON object. It stands for the parameters of a request that has none, and never changes. */
    struct json *no_params;
    const struct verb *verbs; /* the methods, in alphabetical order; constant */
    size_t n_verbs;
};

/* One request of a client. request_receive creates the struct. The function that answers the request also
 * frees the struct. */
struct request {
    struct daemon *daemon;
    struct server_client *client;
    /* The method that the request names. NULL if this method does not exist. */
    const struct verb *verb;
    struct wire_msg msg;
    /* The parameters of the request, as a JSON object. NULL if the method has a `prepare` function. In that
     * case, `prepare` has already read the parameters. */
    const struct json *params;
    /* The object that verb->prepare returned. The method must free the object. */
    void *prepared;
    uid_t uid; /* the user who asks */

    /* request.c */
    struct request_reader *reader;
    struct fair_pool_task task; /* used for a large line */
    /* `line` is the text of the request. `buffer` is the memory of a large line, and NULL for any other
     * line. */
    char *line, *buffer;
    size_t bytes; /* length of `line` */
    /* Result of reading the line: 0, or a negative errno if the line is refused. */
    int status;
    enum wire_code code; /* error code of a refused line */
    struct err err;      /* message of a refused line */
};

/* Prepares a reader for the methods in `verbs`. The array must stay valid as long as the reader exists. */
void request_reader_init(struct request_reader *r, uv_loop_t *loop, const struct verb *verbs, size_t n_verbs);

/* Frees the memory of the reader. Must not be called while a large line is being parsed in the thread
 * pool. */
void request_reader_finish(struct request_reader *r);

/* Parses one line as a request and runs the method that the request names. The caller may reuse `line` as
 * soon as this function returns. */
void request_receive(struct request_reader *r, struct server_client *c, char *line, size_t bytes);

/* Answers the request with the JSON text `result`. If memory ran out while `result` was built, answers with
 * an error instead. */
void request_reply(struct request *rq, const struct strbuf *result);

/* Answers with an error. */
void request_fail(struct request *rq, enum wire_code code, const struct err *err);

/* Answers the request with the error that its parameters are wrong (WIRE_INVALID_PARAMS, -32602). */
void request_refuse(struct request *rq, const struct err *err);

/* Answers the request with the error that the daemon has no memory for it (WIRE_INTERNAL, -32603). Sending
 * this answer needs no memory. */
void request_out_of_memory(struct request *rq);

/* Returns true if the request has no parameters. If it has parameters, answers with an error, frees the
 * request, and returns false. */
bool request_no_params(struct request *rq);

/* Makes the client watch the events of one job, or of all jobs if `job` is 0. `next` is the number of the
 * first event to send. Answers the request with the number of the newest event. */
void request_watch(struct request *rq, uint64_t job, uint64_t next);

#endif
