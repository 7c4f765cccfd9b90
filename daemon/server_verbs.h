/* The methods of tutti.sock, declared from the list in verbs.def. Each method has its own file,
 * verb_<name>.c.
 *
 * A method gets a request and answers it, at once or later, with exactly one call of request_reply,
 * request_fail or another answering function in request.h or request_find.h. That call frees the request. If
 * the client has gone by then, the answer is dropped.
 */
#ifndef DAEMON_SERVER_VERBS_H
#define DAEMON_SERVER_VERBS_H

#include "daemon/request.h"

#define VERB(name) void verb_##name(struct request *rq);
#define VERB_WITH_PREPARE(name)                                                                              \
    VERB(name) void *verb_##name##_prepare(const struct json *params, struct err *err);
#include "daemon/verbs.def"
#undef VERB
#undef VERB_WITH_PREPARE

#endif
