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

/* The longest line that is parsed on the loop thread, in bytes. Longer lines are parsed in the pool. */
#define REQUEST_LARGE_LINE 8192
#define REQUEST_MOST_VERBS 32 /* methods of a server */
/* Number of large lines that are parsed in the pool at once. The pool has four threads. */
#define REQUEST_LARGE_AT_ONCE 2

struct request;

/* One method of tutti.sock. */
struct verb {
    const char *name;
    void (*run)(struct request *rq); /* loop thread */
    /* Does the part of the work that needs only the parameters. May be NULL. It may run in the pool, so it
     * must use nothing but `params`, which are freed afterwards. Returns an object for `run` to use as
     * rq->prepared, or NULL with err set. */
    void *(*prepare)(const struct json *params, struct err *err);
};

/* Data that all requests of one server share. server.c owns the object. */
struct request_reader {
    struct fair_pool pool; /* parses large lines */
    /* An empty object for requests without parameters. Constant. */
    struct json *no_params;
    const struct verb *verbs; /* the methods, in alphabetical order; constant */
    size_t n_verbs;
};

/* One request of a client. request_receive makes it, and the function that answers it also frees it. */
struct request {
    struct daemon *daemon;
    struct server_client *client;
    /* The method that the request names. NULL if there is no such method. */
    const struct verb *verb;
    struct wire_msg msg;
    /* The parameters, a JSON object. NULL if the method has a `prepare` function. */
    const struct json *params;
    /* The result of verb->prepare. The method must free it. */
    void *prepared;
    uid_t uid; /* the user who asks */

    /* request.c */
    struct request_reader *reader;
    struct fair_pool_task task; /* used for a large line */
    /* The text of the line, and the memory that holds a large line. `buffer` is NULL for other lines. */
    char *line, *buffer;
    size_t bytes; /* length of `line` */
    /* Result of reading the line: 0, or the negative errno of a refused line. */
    int status;
    enum wire_code code; /* error code of a refused line */
    struct err err;      /* message of a refused line */
};

/* Prepares a reader for the methods in `verbs`. The array must stay valid as long as the reader exists. */
void request_reader_init(struct request_reader *r, uv_loop_t *loop, const struct verb *verbs, size_t n_verbs);

/* Frees the memory of the reader. Must not be called while a large line is in the pool. */
void request_reader_finish(struct request_reader *r);

/* Parses one line as a request and runs its method. `line` must be valid only during the call. */
void request_receive(struct request_reader *r, struct server_client *c, char *line, size_t bytes);

/* Answers with the JSON text `result`. Answers with an error if memory ran out while it was built. */
void request_reply(struct request *rq, const struct strbuf *result);

/* Answers with an error. */
void request_fail(struct request *rq, enum wire_code code, const struct err *err);

/* Answers that the parameters are wrong (WIRE_INVALID_PARAMS, -32602). */
void request_refuse(struct request *rq, const struct err *err);

/* Answers that the daemon has no memory for the request (WIRE_INTERNAL, -32603). This function needs no
 * memory itself. */
void request_out_of_memory(struct request *rq);

/* Checks that the request has no parameters. Otherwise answers with an error, frees the request, and
 * returns false. */
bool request_no_params(struct request *rq);

/* Makes the client watch one job, or all jobs if `job` is 0. `next` is the number of the first event to
 * send. Answers with the number of the newest event. */
void request_watch(struct request *rq, uint64_t job, uint64_t next);

#endif
