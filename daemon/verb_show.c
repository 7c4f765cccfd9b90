/* show: all that is known of one job. The spec, and what an ended job's worker said, are read from the state. */
#include <errno.h>

#include "daemon/jobs.h"
#include "daemon/server.h"

static void with_disk(void *ctx, int status, const struct state_job *disk)
{
    struct request *rq = ctx;
    struct strbuf b = {0};
    struct err err = {0};
    if (status < 0) {
        err_set(&err, status, "the job cannot be read from the state; see the daemon's log");
        request_fail(rq, WIRE_INTERNAL, &err);
        return;
    }
    job_long_json(rq->daemon->jobs, jobs_find(rq->daemon->jobs, disk->id), disk, &b);
    request_reply(rq, &b);
    strbuf_finish(&b);
}

void verb_show(struct request *rq)
{
    struct json_obj o;
    struct err err = {0};
    uint64_t id = 0;
    json_obj_begin(&o, rq->params, "", &err);
    json_take_u64(&o, "id", JSON_REQUIRED, &id);
    if (json_obj_end(&o) < 0)
        request_refuse(rq, &err);
    else if (request_job(rq, id) != NULL)
        state_read_job(rq->daemon->state, id, with_disk, rq);
}
