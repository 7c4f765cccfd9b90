/* show: all that is known of one job. The spec, and what an ended job's worker said, are read from the state. */
#include <errno.h>
#include <stdlib.h>

#include "base/mem.h"
#include "daemon/jobs.h"
#include "daemon/server.h"

struct showing {
    struct request *rq;
    bool archived; /* the job, when the reading began */
};

static void with_disk(void *ctx, int status, const struct state_job *disk)
{
    struct showing *s = ctx;
    struct request *rq = s->rq;
    struct strbuf b = {.mode = STRBUF_FAILS};
    struct err err = {0};
    if (status == 0 && jobs_find(rq->daemon->jobs, disk->id)->archived && !s->archived) {
        s->archived = true; /* what was read is older than its end */
        state_read_job(rq->daemon->state, disk->id, with_disk, s);
        return;
    }
    free(s);
    if (status == -ENOMEM) {
        request_out_of_memory(rq);
        return;
    }
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
    const struct job *j;
    json_obj_begin(&o, rq->params, "", &err);
    json_take_u64(&o, "id", JSON_REQUIRED, &id);
    if (json_obj_end(&o) < 0) {
        request_refuse(rq, &err);
    } else if ((j = request_job(rq, id)) != NULL) {
        struct showing *s = mem_calloc(1, sizeof *s);
        if (s == NULL) {
            request_out_of_memory(rq);
            return;
        }
        *s = (struct showing){rq, j->archived};
        state_read_job(rq->daemon->state, id, with_disk, s);
    }
}
