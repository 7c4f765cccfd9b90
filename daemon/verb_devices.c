/* devices: what this daemon hands out, and who has it. */
#include <inttypes.h>

#include "daemon/server.h"

static void add_device(struct strbuf *b, const struct daemon *d, uint32_t i)
{
    strbuf_addf(b, "%s{\"index\":%u,\"memory_bytes\":%" PRIu64 ",\"job\":", i > 0 ? "," : "", i,
                d->config.device_bytes);
    if (d->device_job[i] != 0)
        strbuf_addf(b, "%" PRIu64 "}", d->device_job[i]);
    else
        strbuf_add(b, "null}");
}

void verb_devices(struct request *rq)
{
    const struct daemon *d = rq->daemon;
    struct strbuf b = {0};
    if (!request_no_params(rq))
        return;
    strbuf_addf(&b, "{\"backend\":\"cpu\",\"auto\":%s,\"host_memory_bytes\":%" PRIu64 ",\"devices\":[",
                d->config.n_devices == 0 ? "true" : "false", d->config.host_bytes);
    for (uint32_t i = 0; i < d->config.n_devices; i++)
        add_device(&b, d, i);
    strbuf_add(&b, "]}");
    request_reply(rq, &b);
    strbuf_finish(&b);
}
