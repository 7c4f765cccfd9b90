/* The method "cancel": ends a queued job at once, and stops a running job. A running job writes a checkpoint
 * first, unless the client asks to kill the job.
 *
 * The answer is sent when the change is on disk. If there is no memory to save the change, the change is
 * undone and the answer is an error.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "base/get.h"
#include "base/mem.h"
#include "daemon/jobs.h"
#include "daemon/launch.h"
#include "daemon/request_find.h"
#include "daemon/server_verbs.h"
#include "daemon/state.h"
#include "daemon/workers.h"

/* A request to cancel a job. Its answer waits until the change is on disk. */
struct cancelling {
    struct request *rq;
    uint64_t id;
};

static void cancel_on_disk(void *ctx, int status)
{
    struct cancelling *c = ctx;
    (void)status; /* always 0: the unit is not optional */
    request_reply_job(c->rq, c->id);
    free(c);
}

/* Sends the answer when the end of the job is on disk. Changes reach the disk in the order of their commits.
 * So this function commits an empty unit, and the callback of this unit sends the answer. */
static void reply_ended(struct cancelling *c)
{
    state_commit(state_begin(c->rq->daemon->state), false, cancel_on_disk, c);
}

/* Changes the job's record to *to and saves the job. Returns true on success. If memory runs out, undoes the
 * change, answers with an error, and returns false. */
static bool change(struct cancelling *c, struct job *j, const struct job *to, const char *event,
                   const char *members)
{
    struct request *rq = c->rq;
    struct job was = *j;
    char *reason = mem_strdup(to->reason);
    *j = *to;
    j->reason = reason;
    jobs_recount(j, was.state);
    if (reason != NULL && jobs_try_save(rq->daemon->jobs, j, event, members, cancel_on_disk, c) == 0) {
        free(was.reason);
        return true;
    }
    jobs_recount(&was, j->state);
    *j = was;
    free(reason);
    free(c);
    request_out_of_memory(rq);
    return false;
}

static void cancel_queued(struct cancelling *c, struct job *j)
{
    struct daemon *d = c->rq->daemon;
    struct job to = *j;
    to.cancel = true;
    to.exit = EXIT_CANCELLED;
    to.ended_ms = clock_wall_ns() / 1000000;
    to.before = j->state;
    to.state = JOB_CANCELLED;
    to.reason = "";
    if (change(c, j, &to, "ended", "\"state\":\"cancelled\",\"exit\":130,\"error\":null"))
        /* The cancelled job may have kept the jobs behind it waiting. Start those that can start now. */
        workers_schedule(d);
}

static void cancel_running(struct cancelling *c, struct job *j, bool now)
{
    struct daemon *d = c->rq->daemon;
    struct job to = *j;
    to.cancel = true;
    if (j->state == JOB_RUNNING) {
        to.before = j->state;
        to.state = JOB_STOPPING;
        to.reason = "writes a checkpoint and stops";
    }
    if (change(c, j, &to, j->cancel ? NULL : "stopping", "\"by\":\"cancel\""))
        workers_cancel(d, j, now);
}

static void cancel(struct request *rq, struct job *j)
{
    struct cancelling *c = mem_calloc(1, sizeof *c);
    if (c == NULL) {
        request_out_of_memory(rq);
        return;
    }
    *c = (struct cancelling){rq, j->id};
    if (job_ended(j))
        reply_ended(c);
    /* A worker in phase WORKER_ENDED is about to exit and has no work to stop. So the job is cancelled like a
     * queued job. */
    else if (j->worker == NULL || j->worker->phase == WORKER_ENDED)
        cancel_queued(c, j);
    else
        cancel_running(c, j, get_flag(rq->params, "now"));
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
    if (json_obj_end(&o) < 0)
        request_refuse(rq, &err);
    else
        request_find(rq, id, cancel);
}
