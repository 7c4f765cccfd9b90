/* tutti.sock: connections, requests, answers. Loop thread only, except where it says otherwise.
 *
 * A verb is one file, verb_<name>.c, with one function and one row in verbs.def. It gets a request, and sooner or later
 * calls exactly one of request_reply, request_fail and their relatives, which free it. The connection may be gone by then;
 * the answer is dropped.
 *
 * A line of more than SERVER_LARGE_LINE bytes is parsed, and prepared by its verb, in the pool (fair_pool.h). Its connection
 * gives no further line meanwhile, so requests of one connection begin in the order of their lines.
 */
#ifndef DAEMON_SERVER_H
#define DAEMON_SERVER_H

#include "base/json.h"
#include "base/strbuf.h"
#include "base/wire.h"
#include "daemon/daemon.h"
#include "daemon/fair_pool.h"

#define SERVER_LARGE_LINE    8192
#define SERVER_LARGE_AT_ONCE 2 /* large lines in the pool at once, of its four threads */

struct job;
struct conn; /* a client's connection; server.c */
struct request;

struct verb {
    const char *name;
    void (*run)(struct request *rq);
    /* NULL, or what the verb does with rq->params before it needs the daemon. It may run in the pool, and looks at nothing but
     * rq->params. It returns what `run` finds as rq->prepared, or NULL with err set. Afterwards rq->params is gone. */
    void *(*prepare)(const struct json *params, struct err *err);
};

struct request {
    struct daemon *daemon;
    struct conn *conn;
    const struct verb *verb; /* NULL: there is none of that name */
    struct wire_msg msg;
    const struct json *params; /* an object; NULL when the verb has prepared */
    void *prepared;            /* verb->prepare's; the verb frees it */
    uid_t uid;                 /* who asks */
    /* server.c */
    struct fair_pool_task task; /* of a large line */
    char *line, *buffer;        /* of a large line: the text, and the memory it lies in */
    size_t bytes;
    int status; /* of reading the line: 0, or why it was refused */
    enum wire_code code;
    struct err err;
};

int server_open(struct daemon *d, struct server **ret, struct err *err);
void server_close(struct server *s); /* hangs up on everyone; what is left of it ends in the loop */
void server_free(struct server *s);  /* after the loop; both take NULL */

/* `result`: JSON text. When it has failed for want of memory the answer is an error. */
void request_reply(struct request *rq, const struct strbuf *result);
void request_reply_job(struct request *rq, uint64_t id); /* the job in short form */
void request_fail(struct request *rq, enum wire_code code, const struct err *err);
/* Memory ran out: -32603. Needs no memory. */
void request_out_of_memory(struct request *rq);
/* Wrong parameters: -32602. */
void request_refuse(struct request *rq, const struct err *err);
/* For methods without parameters. False: there are some; the request has failed and is gone. */
bool request_no_params(struct request *rq);
/* Finds a job, live or ended, and calls `then` with it: at once for a live job, later for one that must be read from the
 * state. The job is valid during the call. When there is no such job the request fails, and `then` is not called. */
void request_find(struct request *rq, uint64_t id, void (*then)(struct request *rq, struct job *j));
/* For verbs that read the state themselves: there is no such job, or it cannot be read. */
void request_no_job(struct request *rq, uint64_t id);
void request_unreadable(struct request *rq, int status);

bool server_idle(const struct server *s); /* no large line waits or is in the pool */
/* Makes the connection of the request watch from event `next` on. */
void server_watch(struct request *rq, uint64_t job, uint64_t next);

void *submit_prepare(const struct json *params, struct err *err);
#define VERB(name, prepare) void verb_##name(struct request *rq);
#include "daemon/verbs.def"
#undef VERB

#endif
