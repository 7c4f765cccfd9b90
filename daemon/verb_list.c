/* The method "list": returns jobs in short form, as many as fit into one line.
 *
 * Live jobs are in memory. All other jobs are read from the database in the thread pool. If a job is in both
 * places, the newer record in memory is used.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/mem.h"
#include "daemon/job_json.h"
#include "daemon/jobs.h"
#include "daemon/request_find.h"
#include "daemon/server_verbs.h"
#include "daemon/state.h"

#define LIST_MOST 1000 /* jobs in one answer */
/* One page is read from the state at most this many times. A page is read again if one of its jobs ends
 * during the read. */
#define MOST_READS 100
/* No more jobs are added to an answer that is longer than this many bytes. The last job that is added and the
 * end of the line fit into 8192 bytes. */
#define LIST_BYTES (WIRE_LINE_MAX - 8192)

/* A job that was read from the database for one page of the list. */
struct listed {
    uint64_t id;
    /* The offset and the length, in bytes, of the job's JSON text in `texts`. The length is 0 for a live job,
     * because the record in memory is newer. */
    size_t at, bytes;
};

/* A request for one page of jobs. The struct exists until the request is answered. */
struct list_page {
    struct request *rq;
    bool active;
    uint64_t after, ended_after_ms, limit;
    VEC(struct listed) jobs; /* jobs read from the state */
    /* The texts of the jobs that were read from the state, one after the other. */
    struct strbuf texts;
    bool more; /* more jobs follow the answer */
    /* Set when the answer has no space for another job. */
    bool full;
    bool unreadable;
    int reads;
    struct strbuf answer;
    uint64_t n; /* jobs in the answer */
};

/* Adds a job to the answer if the answer has space for the job. Otherwise notes in the answer that more jobs
 * follow. */
static void add_to_answer(struct list_page *l, const char *text, size_t bytes)
{
    if (l->n == l->limit || l->answer.n > LIST_BYTES) {
        l->more = l->full = true;
        return;
    }
    strbuf_add(&l->answer, l->n++ > 0 ? "," : "");
    strbuf_addn(&l->answer, text, bytes);
}

static void add_live(struct list_page *l, const struct job *j)
{
    struct strbuf b = {0};
    job_short_json(l->rq->daemon, j, &b);
    strbuf_add(&b, "}");
    add_to_answer(l, b.at, b.n);
    strbuf_finish(&b);
}

static void reply_page(struct list_page *l)
{
    strbuf_addf(&l->answer, "],\"more\":%s}", l->more ? "true" : "false");
    request_reply(l->rq, &l->answer);
    strbuf_finish(&l->answer);
}

static void list_active(struct list_page *l)
{
    const struct jobs *jobs = l->rq->daemon->jobs;
    strbuf_add(&l->answer, "{\"jobs\":[");
    for (size_t i = jobs_after(jobs, l->after); !l->full && i < jobs->live.n; i++)
        if (jobs->live.at[i]->on_disk && !jobs->live.at[i]->archived)
            add_live(l, jobs->live.at[i]);
    reply_page(l);
}

/* Called in the pool. */
static int take_listed(void *ctx, const struct state_job *disk)
{
    struct list_page *l = ctx;
    struct job *j;
    if (l->jobs.n == l->limit || l->texts.n > LIST_BYTES) {
        l->more = true;
        return 1;
    }
    if (disk->ended_ms == 0) {
        vec_push(&l->jobs, (struct listed){.id = disk->id});
        return 0;
    }
    if (job_read(disk, &j, NULL) < 0) {
        l->unreadable = true;
        return 1;
    }
    size_t at = l->texts.n;
    job_short_json(l->rq->daemon, j, &l->texts);
    strbuf_add(&l->texts, "}");
    vec_push(&l->jobs, (struct listed){disk->id, at, l->texts.n - at});
    job_destroy(j);
    return 0;
}

/* Adds all jobs of the page to the answer. Returns false if a job that was live during the read has ended
 * since. In that case the caller must read the page again. */
static bool add_all(struct list_page *l)
{
    for (size_t i = 0; !l->full && i < l->jobs.n; i++) {
        const struct listed *x = &l->jobs.at[i];
        const struct job *j = jobs_find(l->rq->daemon->jobs, x->id);
        if (j == NULL && x->bytes == 0)
            return false;
        if (j == NULL)
            add_to_answer(l, l->texts.at + x->at, x->bytes);
        else if (j->on_disk)
            add_live(l, j);
    }
    return true;
}

static void list_all(struct list_page *l);

static void rows_taken(void *ctx, int status)
{
    struct list_page *l = ctx;
    if (status == 0)
        /* If memory ran out during the read, the JSON texts are incomplete, so none of them may be sent. */
        status = strbuf_status(&l->texts);
    bool good = status == 0 && !l->unreadable, again = good && !add_all(l);
    if (again && ++l->reads < MOST_READS) {
        list_all(l);
        return;
    }
    if (good && !again)
        reply_page(l);
    else
        request_unreadable(l->rq, status < 0 ? status : -EBADMSG);
    strbuf_finish(&l->answer);
    strbuf_finish(&l->texts);
    vec_free(&l->jobs);
    free(l);
}

static void list_all(struct list_page *l)
{
    l->n = l->jobs.n = l->texts.n = 0;
    l->more = l->full = false;
    l->answer.n = 0;
    strbuf_add(&l->answer, "{\"jobs\":[");
    state_read_jobs(l->rq->daemon->state,
                    &(struct state_query){.after = l->after,
                                          .ended_after_ms = l->ended_after_ms,
                                          .limit = (uint32_t)l->limit + 1},
                    take_listed, rows_taken, l);
}

void verb_list(struct request *rq)
{
    struct json_obj o;
    struct err err = {0};
    struct list_page l = {
        .rq = rq, .limit = LIST_MOST, .texts = {.mode = STRBUF_FAILS}, .answer = {.mode = STRBUF_FAILS}};
    json_obj_begin(&o, rq->params, "", &err);
    json_take_bool(&o, "active", JSON_OPTIONAL, &l.active);
    json_take_u64(&o, "after", JSON_OPTIONAL, &l.after);
    json_take_u64(&o, "ended_after_ms", JSON_OPTIONAL, &l.ended_after_ms);
    if (json_take_u64(&o, "limit", JSON_OPTIONAL, &l.limit) && l.limit == 0)
        json_fail(&o, "limit", -EINVAL, "must be at least 1");
    if (json_obj_end(&o) < 0) {
        request_refuse(rq, &err);
        return;
    }
    if (l.limit > LIST_MOST)
        l.limit = LIST_MOST;
    if (l.active) {
        list_active(&l);
    } else {
        struct list_page *kept = mem_calloc(1, sizeof *kept);
        if (kept == NULL) {
            request_out_of_memory(rq);
            return;
        }
        *kept = l;
        list_all(kept);
    }
}
