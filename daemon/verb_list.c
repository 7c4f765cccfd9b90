/* list: jobs in short form, a line's worth at a time. */
#include <errno.h>

#include "daemon/jobs.h"
#include "daemon/server.h"

#define LIST_MOST 1000
#define LIST_BYTES                                                                                           \
    (WIRE_LINE_MAX - 8192) /* room for the last job, which has no long texts, and the envelope */

void verb_list(struct request *rq)
{
    struct json_obj o;
    struct err err = {0};
    bool active = false, more = false;
    uint64_t after = 0, limit = LIST_MOST, n = 0;
    json_obj_begin(&o, rq->params, "", &err);
    json_take_bool(&o, "active", JSON_OPTIONAL, &active);
    json_take_u64(&o, "after", JSON_OPTIONAL, &after);
    if (json_take_u64(&o, "limit", JSON_OPTIONAL, &limit) && limit == 0)
        json_fail(&o, "limit", -EINVAL, "must be at least 1");
    if (json_obj_end(&o) < 0) {
        request_refuse(rq, &err);
        return;
    }
    if (limit > LIST_MOST)
        limit = LIST_MOST;
    struct strbuf b = {.mode = STRBUF_FAILS};
    const struct jobs *jobs = rq->daemon->jobs;
    strbuf_add(&b, "{\"jobs\":[");
    for (size_t i = jobs_after(jobs, after); i < jobs->all.n; i++) {
        const struct job *j = jobs->all.at[i];
        if (!j->on_disk || (active && j->archived))
            continue;
        if (n == limit || b.n > LIST_BYTES) {
            more = true;
            break;
        }
        strbuf_add(&b, n++ > 0 ? "," : "");
        job_short_json(jobs, j, &b);
        strbuf_add(&b, "}");
    }
    strbuf_addf(&b, "],\"more\":%s}", more ? "true" : "false");
    request_reply(rq, &b);
    strbuf_finish(&b);
}
