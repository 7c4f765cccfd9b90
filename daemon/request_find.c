/* Implements request_find.h. If a job ends while it is being read from the database, the job is read
 * again. */
#include "daemon/request_find.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/mem.h"
#include "daemon/job_json.h"
#include "daemon/jobs.h"
#include "daemon/state.h"

/* The largest number of times that a job is read from the database. If the job ends during a read, the job is
 * read once more. The second read usually finds the ended job. */
#define MOST_READS 3

void request_no_job(struct request *rq, uint64_t id)
{
    struct err err = {0};
    err_set_at(&err, -ENOENT, "id", "there is no job %" PRIu64 "; see `tutti ls --all`", id);
    request_fail(rq, WIRE_FAILED, &err);
}

void request_unreadable(struct request *rq, int status)
{
    struct err err = {0};
    if (status == -ENOMEM) {
        request_out_of_memory(rq);
        return;
    }
    err_set(&err, status, "the job cannot be read from the state; see the daemon's log");
    request_fail(rq, WIRE_INTERNAL, &err);
}

/* A search for a job that is not in memory and must be read from the database. */
struct finding {
    struct request *rq;
    uint64_t id;
    struct job *found; /* the job as read; NULL: not found */
    int reads;
    void (*then)(struct request *rq, struct job *j);
};

/* Called in the pool. */
static int take_found(void *ctx, const struct state_job *disk)
{
    struct finding *f = ctx;
    return job_read(disk, &f->found, NULL);
}

static void find_on_disk(struct finding *f);

static void finish_finding(void *ctx, int status)
{
    struct finding *f = ctx;
    struct job *j = jobs_find(f->rq->daemon->jobs, f->id);
    bool ended = f->found != NULL && job_ended(f->found);
    if (j == NULL && f->found != NULL && !ended && ++f->reads < MOST_READS) {
        /* The job ended after this read. Read the job again, because the database now has its end. */
        job_destroy(f->found);
        f->found = NULL;
        find_on_disk(f);
        return;
    }
    if (status < 0)
        request_unreadable(f->rq, status);
    else if (j != NULL && j->on_disk)
        f->then(f->rq, j);
    else if (j == NULL && ended)
        f->then(f->rq, f->found);
    else
        /* The job has been submitted, but the submit is not on disk yet. Until then, clients must not see the
         * job. */
        request_no_job(f->rq, f->id);
    job_destroy(f->found);
    free(f);
}

static void find_on_disk(struct finding *f)
{
    state_read_jobs(f->rq->daemon->state, &(struct state_query){.id = f->id}, take_found, finish_finding, f);
}

void request_find(struct request *rq, uint64_t id, void (*then)(struct request *rq, struct job *j))
{
    struct job *j = jobs_find(rq->daemon->jobs, id);
    /* No job has the id 0. Do not query the database either, because an id of 0 in a query means "any
     * job". */
    if (id == 0) {
        request_no_job(rq, id);
    } else if (j != NULL && j->on_disk) {
        then(rq, j);
    } else {
        struct finding *f = mem_calloc(1, sizeof *f);
        if (f == NULL) {
            request_out_of_memory(rq);
            return;
        }
        *f = (struct finding){.rq = rq, .id = id, .then = then};
        find_on_disk(f);
    }
}

static void reply_short(struct request *rq, struct job *j)
{
    struct strbuf b = {.mode = STRBUF_FAILS};
    job_short_json(rq->daemon, j, &b);
    strbuf_add(&b, "}");
    request_reply(rq, &b);
    strbuf_finish(&b);
}

void request_reply_job(struct request *rq, uint64_t id)
{
    request_find(rq, id, reply_short);
}
