/* Reads jobs and events from the database on pool threads. The reads use their own connection to the
 * database, so that no read waits for a commit. Only one read runs at a time, so that commits always find a
 * free thread. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/bounded.h"
#include "base/mem.h"
#include "daemon/state_internal.h"

/* One read of the database, which is waiting or running in the thread pool. Exactly one of jobs_done,
 * job_done and events_done is set. */
struct state_read {
    uv_work_t work;
    struct state *state;
    struct state_query query;
    char *key;           /* copy of query.key */
    uint64_t first, end; /* range of event numbers */
    int status;
    struct arena *arena; /* copies for callbacks on the loop thread */
    int (*each)(void *ctx, const struct state_job *job);
    struct state_job job;
    VEC(struct state_event) events;
    void (*jobs_done)(void *ctx, int status);
    void (*job_done)(void *ctx, int status, const struct state_job *job);
    void (*events_done)(void *ctx, int status, const struct state_event *events, size_t n);
    void *ctx;
    struct state_read *next; /* next read in the queue */
};

static const char *keep(struct state_read *r, const char *s)
{
    if (r->arena == NULL)
        r->arena = arena_create();
    return s != NULL ? arena_strdup(r->arena, s) : NULL;
}

/* ---- in the pool ---- */

static const char *sql_of(const struct state_read *r)
{
    const struct state_query *q = &r->query;
    if (r->events_done != NULL)
        return q->id != 0 ? EVENT_COLUMNS "WHERE job=?1 AND seq>=?2 AND seq<?3 ORDER BY seq LIMIT ?4"
                          : EVENT_COLUMNS "WHERE seq>=?2 AND seq<?3 AND ?1=0 ORDER BY seq LIMIT ?4";
    if (q->key != NULL)
        return JOB_COLUMNS "WHERE j.key=?5";
    if (q->id != 0)
        return JOB_COLUMNS "WHERE j.id=?1";
    if (q->ended_after_ms == 0)
        return BRIEF_COLUMNS "WHERE j.id>?2 ORDER BY j.id LIMIT ?4";
    /* The cost of this query depends only on the number of jobs that it returns, and not on the number of all
     * ended jobs. */
    return BRIEF_COLUMNS
        "WHERE j.id IN (SELECT id FROM status WHERE ended_ms=0 AND id>?2"
        " UNION ALL SELECT id FROM status WHERE ended_ms>=max(?3, 1) AND id>?2) ORDER BY j.id LIMIT ?4";
}

static void bind_query(const struct state_read *r, sqlite3_stmt *q)
{
    bool events = r->events_done != NULL;
    sqlite3_bind_int64(q, 1, (sqlite3_int64)r->query.id);
    sqlite3_bind_int64(q, 2, (sqlite3_int64)(events ? r->first : r->query.after));
    sqlite3_bind_int64(q, 3, (sqlite3_int64)(events ? r->end : r->query.ended_after_ms));
    sqlite3_bind_int64(q, 4, r->query.limit);
    if (r->query.key != NULL)
        sqlite3_bind_text(q, 5, r->query.key, -1, SQLITE_STATIC);
}

/* Copies a job for state_read_job, so that the job stays valid until `done` has returned on the loop
 * thread. */
static int keep_job(void *ctx, const struct state_job *job)
{
    struct state_read *r = ctx;
    r->job = *job;
    r->job.key = keep(r, job->key);
    r->job.body = keep(r, job->body);
    r->job.spec = keep(r, job->spec);
    r->job.status = keep(r, job->status);
    return 0;
}

/* Handles one row of the result. Returns 0 if the reading should continue. Otherwise returns a negative
 * errno, or the positive value that the caller's `each` function returned to end the reading. */
static int take_row(struct state_read *r, sqlite3_stmt *q)
{
    struct state_job job;
    struct state_event e;
    if (r->events_done != NULL) {
        if (row_take_event(r->state->path, q, &e, NULL) < 0)
            return -EBADMSG;
        vec_push(&r->events, (struct state_event){e.seq, e.job, keep(r, e.body)});
        return 0;
    }
    bool one = r->query.id != 0 || r->query.key != NULL;
    if ((one ? row_take_job : row_take_job_brief)(r->state->path, q, &job, NULL) < 0)
        return -EBADMSG;
    return r->job_done != NULL ? keep_job(r, &job) : r->each(r->ctx, &job);
}

struct reading {
    struct state_read *read;
    sqlite3_stmt *query;
};

static int read_rows(void *arg)
{
    struct reading *x = arg;
    int step = SQLITE_ERROR, row = 0;
    while (row == 0 && (step = sqlite3_step(x->query)) == SQLITE_ROW)
        row = take_row(x->read, x->query);
    if (row != 0)
        return row < 0 ? row : 0;
    return step == SQLITE_DONE ? 0 : db_no_memory(step) ? -ENOMEM : -EIO;
}

/* Reads rows and copies them for the loop thread. Users decide how large the rows are, so memory may run out.
 * In that case the read ends with -ENOMEM and all copies are freed. */
static int read_in_scope(struct state_read *r, sqlite3_stmt *q)
{
    struct reading x = {r, q};
    struct bounded scope = {0};
    int status = bounded_run(&scope, read_rows, &x);
    if (scope.ended_early) {
        r->arena = NULL;
        r->events.at = NULL;
        r->events.n = r->events.cap = 0;
    }
    return status;
}

static void read_work(uv_work_t *work)
{
    struct state_read *r = work->data;
    struct state *s = r->state;
    sqlite3_stmt *q = NULL;
    if (r->status < 0)
        return;
    uv_mutex_lock(&s->reader_lock);
    int prepared = sqlite3_prepare_v2(s->reader, sql_of(r), -1, &q, NULL);
    if (prepared != SQLITE_OK) {
        r->status = db_no_memory(prepared) ? -ENOMEM : -EIO;
    } else {
        struct reading x = {r, q};
        bind_query(r, q);
        r->status = r->each != NULL ? read_rows(&x) : read_in_scope(r, q);
    }
    sqlite3_finalize(q);
    uv_mutex_unlock(&s->reader_lock);
}

/* ---- on the loop thread ---- */

static void read_done(uv_work_t *work, int status);

static void start_next(struct state *s)
{
    struct state_read *r = s->read_first;
    if (r != NULL)
        uv_queue_work(s->config.loop, &r->work, read_work, read_done);
}

static void read_done(uv_work_t *work, int status)
{
    (void)status; /* never cancelled */
    struct state_read *r = work->data;
    r->state->reads--;
    r->state->read_first = r->next;
    start_next(r->state);
    if (r->events_done != NULL)
        r->events_done(r->ctx, r->status, r->events.at, r->events.n);
    else if (r->job_done != NULL)
        r->job_done(r->ctx, r->status == 0 && r->job.id == 0 ? -ENOENT : r->status, &r->job);
    else
        r->jobs_done(r->ctx, r->status);
    arena_destroy(r->arena);
    vec_free(&r->events);
    free(r->key);
    free(r);
}

static void queue_read(struct state *s, const struct state_read *with)
{
    struct state_read *r = xcalloc(1, sizeof *r);
    *r = *with;
    r->state = s;
    r->key = with->query.key != NULL ? mem_strdup(with->query.key) : NULL;
    r->query.key = r->key;
    if (with->query.key != NULL && r->key == NULL)
        r->status = -ENOMEM;
    r->work.data = r;
    s->reads++;
    if (s->read_first == NULL) {
        s->read_first = s->read_last = r;
        start_next(s);
    } else {
        s->read_last = s->read_last->next = r;
    }
}

void state_read_jobs(struct state *s, const struct state_query *query,
                     int (*each)(void *ctx, const struct state_job *job), void (*done)(void *ctx, int status),
                     void *ctx)
{
    queue_read(s, &(struct state_read){.query = *query, .each = each, .jobs_done = done, .ctx = ctx});
}

void state_read_job(struct state *s, uint64_t id,
                    void (*done)(void *ctx, int status, const struct state_job *job), void *ctx)
{
    queue_read(s, &(struct state_read){.query = {.id = id}, .job_done = done, .ctx = ctx});
}

void state_read_events(struct state *s, uint64_t job, uint64_t first, uint64_t end, uint32_t limit,
                       void (*done)(void *ctx, int status, const struct state_event *events, size_t n),
                       void *ctx)
{
    queue_read(s, &(struct state_read){.query = {.id = job, .limit = limit},
                                       .first = first,
                                       .end = end,
                                       .events_done = done,
                                       .ctx = ctx});
}
