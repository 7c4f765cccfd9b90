/* The method "ping": answers with {}, so that a client can find out whether the daemon responds. */
#include "daemon/server_verbs.h"

void verb_ping(struct request *rq)
{
    struct strbuf b = {0};
    if (!request_no_params(rq))
        return;
    strbuf_add(&b, "{}");
    request_reply(rq, &b);
    strbuf_finish(&b);
}
