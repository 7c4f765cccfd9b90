/* cancel: a queued job ends at once; a running one writes a checkpoint first, or is killed. Answered when on disk. */
#include "base/clock.h"
#include "daemon/jobs.h"
#include "daemon/launch.h"
#include "daemon/server.h"
#include "daemon/workers.h"

struct cancelling {
    struct request *rq;
    uint64_t id;
};

static void on_disk(void *ctx, int status)
{
    struct cancelling *c = ctx;
    (void)status; /* not optional: always 0 */
    request_reply_job(c->rq, c->id);
    free(c);
}

static void save(struct request *rq, struct job *j, const char *event, const char *members)
{
    struct cancelling *c = xcalloc(1, sizeof *c);
    *c = (struct cancelling){rq, j->id};
    jobs_save(rq->daemon->jobs, j, event, members, on_disk, c);
}

/* Its end may not be on disk yet: nothing is committed, after it. */
static void reply_ended(struct request *rq, const struct job *j)
{
    struct cancelling *c = xcalloc(1, sizeof *c);
    *c = (struct cancelling){rq, j->id};
    state_commit(state_begin(rq->daemon->state), false, on_disk, c);
}

static void cancel_queued(struct request *rq, struct job *j)
{
    j->cancel = true;
    j->exit = EXIT_CANCELLED;
    j->ended_ms = clock_wall_ns() / 1000000;
    job_set_state(j, JOB_CANCELLED, "");
    save(rq, j, "ended", "\"state\":\"cancelled\",\"exit\":130,\"error\":null");
    workers_schedule(rq->daemon); /* it may have held up others */
}

void verb_cancel(struct request *rq)
{
    struct json_obj o;
    struct err err = {0};
    uint64_t id = 0;
    bool now = false;
    json_obj_begin(&o, rq->params, "", &err);
    json_take_u64(&o, "id", JSON_REQUIRED, &id);
    json_take_bool(&o, "now", JSON_OPTIONAL, &now);
    if (json_obj_end(&o) < 0) {
        request_refuse(rq, &err);
        return;
    }
    struct job *j = request_job(rq, id);
    if (j == NULL)
        return;
    if (job_ended(j)) {
        reply_ended(rq, j);
        return;
    }
    if (j->worker == NULL || j->worker->phase == WORKER_ENDED) { /* that one only has to exit */
        cancel_queued(rq, j);
        return;
    }
    bool first = !j->cancel;
    j->cancel = true;
    if (j->state == JOB_RUNNING)
        job_set_state(j, JOB_STOPPING, "writes a checkpoint and stops");
    workers_cancel(rq->daemon, j, now);
    save(rq, j, first ? "stopping" : NULL, "\"by\":\"cancel\"");
}
