/* The method "show": returns everything that is known about one job. The facts about a live job are in
 * memory, but its spec is in the database. An ended job is only in the database, and its answer is built on a
 * pool thread. */
#include <errno.h>
#include <stdlib.h>

#include "base/mem.h"
#include "daemon/events.h"
#include "daemon/job_json.h"
#include "daemon/jobs.h"
#include "daemon/request_find.h"
#include "daemon/server_verbs.h"
#include "daemon/state.h"

/* A request for one job that waits until the job has been read from the database. */
struct showing {
    struct request *rq;
    uint64_t id, seq;
    /* The JSON text of the answer. If the job had already ended when it was read, the text is built on a pool
     * thread. */
    struct strbuf text;
};

/* Called in the pool. */
static int show_ended(void *ctx, const struct state_job *disk)
{
    struct showing *s = ctx;
    struct job *j;
    int r = disk->ended_ms > 0 ? job_read(disk, &j, NULL) : -EAGAIN;
    if (r < 0)
        return r;
    job_long_json(s->rq->daemon, j, disk, s->seq, &s->text);
    job_destroy(j);
    return 0;
}

static void show(struct showing *s);

static void with_live(void *ctx, int status, const struct state_job *disk)
{
    struct showing *s = ctx;
    struct request *rq = s->rq;
    struct strbuf b = {.mode = STRBUF_FAILS};
    const struct job *j = jobs_find(rq->daemon->jobs, s->id);
    if (j == NULL || j->archived) { /* the job has ended meanwhile */
        show(s);
        return;
    }
    if (status < 0) {
        request_unreadable(rq, status);
    } else {
        job_long_json(rq->daemon, j, disk, events_newest(rq->daemon->events), &b);
        request_reply(rq, &b);
    }
    strbuf_finish(&b);
    free(s);
}

static void with_ended(void *ctx, int status)
{
    struct showing *s = ctx;
    /* The status -EAGAIN, handled below, means that the job's submit is not on disk yet. Clients must not see
     * such a job. If memory ran out while `text` was built, request_reply answers with an error. */
    bool found = status == 0 && (s->text.n > 0 || strbuf_status(&s->text) < 0);
    if (found)
        request_reply(s->rq, &s->text);
    else if (status == 0 || status == -EAGAIN)
        request_no_job(s->rq, s->id);
    else
        request_unreadable(s->rq, status);
    strbuf_finish(&s->text);
    free(s);
}

static void show(struct showing *s)
{
    struct daemon *d = s->rq->daemon;
    const struct job *j = jobs_find(d->jobs, s->id);
    s->seq = events_newest(d->events);
    if (j != NULL && j->on_disk && !j->archived)
        state_read_job(d->state, s->id, with_live, s);
    else
        state_read_jobs(d->state, &(struct state_query){.id = s->id}, show_ended, with_ended, s);
}

void verb_show(struct request *rq)
{
    struct json_obj o;
    struct err err = {0};
    uint64_t id = 0;
    json_obj_begin(&o, rq->params, "", &err);
    json_take_u64(&o, "id", JSON_REQUIRED, &id);
    if (json_obj_end(&o) < 0) {
        request_refuse(rq, &err);
    } else if (id == 0) {
        request_no_job(rq, id);
    } else {
        struct showing *s = mem_calloc(1, sizeof *s);
        if (s == NULL) {
            request_out_of_memory(rq);
            return;
        }
        *s = (struct showing){.rq = rq, .id = id, .text = {.mode = STRBUF_FAILS}};
        show(s);
    }
}
