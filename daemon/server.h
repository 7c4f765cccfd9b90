/* tutti.sock: connections, requests, answers. Loop thread only.
 *
 * A verb is one file, verb_<name>.c, with one function and one row in verbs.def. It gets a request, and sooner or later
 * calls exactly one of request_reply and request_fail, which free it. The connection may be gone by then; the answer is
 * dropped.
 */
#ifndef DAEMON_SERVER_H
#define DAEMON_SERVER_H

#include "base/json.h"
#include "base/strbuf.h"
#include "base/wire.h"
#include "daemon/daemon.h"

struct conn; /* a client's connection; server.c */

struct request {
    struct daemon *daemon;
    struct conn *conn;
    struct wire_msg msg;
    const struct json *params; /* an object, never NULL */
    uid_t uid;                 /* who asks */
};

int server_open(struct daemon *d, struct server **ret, struct err *err);
void server_close(struct server *s); /* hangs up on everyone; what is left of it ends in the loop */
void server_free(struct server *s);  /* after the loop; both take NULL */

/* `result`: JSON text. */
void request_reply(struct request *rq, const struct strbuf *result);
void request_reply_job(struct request *rq, uint64_t id); /* the job in short form */
void request_fail(struct request *rq, enum wire_code code, const struct err *err);
/* Wrong parameters: -32602. */
void request_refuse(struct request *rq, const struct err *err);
/* For methods without parameters. False: there are some; the request has failed and is gone. */
bool request_no_params(struct request *rq);
/* The job that params.id means; NULL: the request has failed and is gone. `o` is the caller's reader of params. */
struct job *request_job(struct request *rq, uint64_t id);

/* Makes the connection of the request watch from event `next` on. */
void server_watch(struct request *rq, uint64_t job, uint64_t next);

#define VERB(name) void verb_##name(struct request *rq);
#include "daemon/verbs.def"
#undef VERB

#endif
