/* Implements the table of live jobs that jobs.h declares. */
#include "daemon/jobs.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/events.h"
#include "daemon/job_json.h"
#include "daemon/quota.h"

struct jobs *jobs_create(struct daemon *d)
{
    struct jobs *jobs = xcalloc(1, sizeof *jobs);
    jobs->daemon = d;
    jobs->next_id = 1;
    return jobs;
}

void jobs_destroy(struct jobs *jobs)
{
    if (jobs == NULL)
        return;
    for (size_t i = 0; i < jobs->live.n; i++)
        job_destroy(jobs->live.at[i]);
    vec_free(&jobs->live);
    free(jobs);
}

/* ---- finding ---- */

size_t jobs_after(const struct jobs *jobs, uint64_t id)
{
    size_t low = 0, high = jobs->live.n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (jobs->live.at[mid]->id <= id)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

struct job *jobs_find(const struct jobs *jobs, uint64_t id)
{
    size_t i = id > 0 ? jobs_after(jobs, id - 1) : jobs->live.n;
    return i < jobs->live.n && jobs->live.at[i]->id == id ? jobs->live.at[i] : NULL;
}

/* Searches from the newest job to the oldest, because a repeated submit usually comes soon after the first
 * one. Ended jobs are not in this table but only in the database. */
struct job *jobs_find_key(const struct jobs *jobs, uid_t uid, const char *key)
{
    for (size_t i = jobs->live.n; i-- > 0;) {
        struct job *j = jobs->live.at[i];
        if (j->key != NULL && j->uid == uid && strcmp(j->key, key) == 0)
            return j;
    }
    return NULL;
}

uint64_t jobs_count(const struct jobs *jobs, enum job_state state)
{
    return jobs->n_in[state];
}

size_t jobs_ended(const struct jobs *jobs, uint64_t **ret_ids)
{
    VEC(uint64_t) ids = {0};
    for (size_t i = 0; i < jobs->live.n; i++)
        if (job_ended(jobs->live.at[i]))
            vec_push(&ids, jobs->live.at[i]->id);
    *ret_ids = ids.at;
    return ids.n;
}

/* ---- changing ---- */

static void insert(struct jobs *jobs, struct job *j)
{
    vec_push(&jobs->live, j); /* at the end, because ids ascend */
    j->table = jobs;
    jobs->n_in[j->state]++;
    if (j->id >= jobs->next_id)
        jobs->next_id = j->id + 1;
}

/* Charges `bytes` to the quota of the job's user. release() undoes the charge when the job has ended. */
static void charge(struct jobs *jobs, struct job *j, uint64_t bytes)
{
    j->charged_bytes = bytes;
    quota_charge(jobs->daemon->quota, j->uid, bytes);
}

static void release(struct jobs *jobs, struct job *j)
{
    quota_release(jobs->daemon->quota, j->uid, j->charged_bytes);
    j->charged_bytes = 0;
}

static void withdraw(struct jobs *jobs, struct job *j)
{
    size_t i = jobs_after(jobs, j->id - 1);
    memmove(&jobs->live.at[i], &jobs->live.at[i + 1], (jobs->live.n - i - 1) * sizeof *jobs->live.at);
    jobs->live.n--;
    jobs->n_in[j->state]--;
    release(jobs, j);
    job_destroy(j);
}

void jobs_let_go(struct jobs *jobs, struct job *j)
{
    if (j->archived && j->saves == 0 && j->worker == NULL)
        withdraw(jobs, j);
}

void jobs_recount(const struct job *j, enum job_state before)
{
    if (j->table == NULL)
        return;
    j->table->n_in[before]--;
    j->table->n_in[j->state]++;
}

void job_set_state(struct job *j, enum job_state state, const char *reason)
{
    if (!job_ended(j))
        j->before = j->state;
    enum job_state before = j->state;
    j->state = state;
    jobs_recount(j, before);
    job_set_text(&j->reason, reason);
}

static int load_one(void *ctx, const struct state_job *disk, struct err *err)
{
    struct job *j;
    int r = job_read(disk, &j, err);
    if (r < 0)
        return r;
    charge(ctx, j, j->fixed_bytes);
    insert(ctx, j);
    return 0;
}

int jobs_load(struct jobs *jobs, struct err *err)
{
    jobs->next_id = state_last_id(jobs->daemon->state) + 1;
    return state_load(jobs->daemon->state, load_one, jobs, err);
}

void jobs_state_key(uid_t uid, const char *key, char ret[JOB_KEY_CHARS])
{
    snprintf(ret, JOB_KEY_CHARS, "%u:%s", (unsigned)uid, key);
}

struct addition {
    struct jobs *jobs;
    struct job *job;
    void (*done)(void *ctx, int status);
    void *ctx;
};

static void added(void *ctx, int status)
{
    struct addition *a = ctx;
    a->job->on_disk = status == 0;
    a->job->saves--;
    a->done(a->ctx, status);
    if (status < 0)
        withdraw(a->jobs, a->job);
    else
        jobs_let_go(a->jobs, a->job);
    free(a);
}

/* Sets *to to a copy of `text`, or to NULL if `text` is NULL. Returns false when memory runs out. */
static bool set_copy(char **to, const char *text)
{
    *to = text != NULL ? mem_strdup(text) : NULL;
    return text == NULL || *to != NULL;
}

/* Makes the record of a new job, without adding the record to the table of jobs. Returns NULL when memory
 * runs out. */
static struct job *job_create(uint64_t id, const struct job_new *n)
{
    struct job *j = mem_calloc(1, sizeof *j);
    if (j == NULL)
        return NULL;
    j->id = id;
    j->uid = n->uid;
    j->spec_hash = n->spec_hash;
    j->ask = n->ask;
    j->needs = n->needs;
    j->submitted_ms = clock_wall_ns() / 1000000;
    j->exit = JOB_NO_EXIT;
    j->loss = j->samples_per_s = j->eta_s = NAN;
    if (set_copy(&j->key, n->key) && set_copy(&j->name, n->name) && set_copy(&j->user, n->user) &&
        set_copy(&j->dir, n->dir) && set_copy(&j->output, n->output) && set_copy(&j->reason, ""))
        return j;
    job_destroy(j);
    return NULL;
}

/* Adds the new job's row and status to the unit `u`, a group of changes that are committed together. Returns
 * -ENOMEM if there is no memory or if the unit has already failed. */
static int put_new(struct state_unit *u, const struct job *j, const char *spec, uint64_t *ret_bytes)
{
    struct strbuf body = {.mode = STRBUF_FAILS}, status = {.mode = STRBUF_FAILS};
    char key[JOB_KEY_CHARS] = "";
    if (j->key != NULL)
        jobs_state_key(j->uid, j->key, key);
    job_body_json(j, &body);
    job_status_json(j, &status);
    int r = strbuf_status(&body) < 0 || strbuf_status(&status) < 0 ? -ENOMEM : 0;
    if (r == 0)
        state_put_job(u, &(struct state_job){.id = j->id,
                                             .key = j->key != NULL ? key : NULL,
                                             .body = body.at,
                                             .spec = spec,
                                             .status = status.at,
                                             .uid = j->uid});
    *ret_bytes = strlen(spec) + body.n;
    strbuf_finish(&body);
    strbuf_finish(&status);
    return r < 0 || state_failed(u) ? -ENOMEM : 0;
}

/* Commits the unit, which contains the new job. If there is no memory for the event "submitted", discards the
 * unit instead. */
static int commit_new(struct jobs *jobs, struct state_unit *u, struct addition *a)
{
    struct strbuf members = {.mode = STRBUF_FAILS};
    strbuf_add(&members, "\"name\":");
    strbuf_add_json(&members, a->job->name);
    int r = strbuf_status(&members);
    if (r == 0)
        r = events_add_kept(jobs->daemon->events, u, a->job->id, "submitted", members.at, true, added, a);
    else
        state_discard(u);
    strbuf_finish(&members);
    return r;
}

static int add_new(struct jobs *jobs, const char *spec, struct addition *a, struct err *err)
{
    struct state_unit *u = state_begin(jobs->daemon->state);
    uint64_t bytes = 0;
    int r = put_new(u, a->job, spec, &bytes);
    if (r == 0)
        r = quota_check_bytes(jobs->daemon->quota, a->job->uid, bytes, err);
    if (r < 0) {
        state_discard(u);
        return r;
    }
    r = commit_new(jobs, u, a);
    if (r == 0) {
        a->job->fixed_bytes = bytes;
        a->job->saves++;
        charge(jobs, a->job, bytes);
        insert(jobs, a->job);
    }
    return r;
}

int jobs_add(struct jobs *jobs, const struct job_new *n, void (*done)(void *ctx, int status), void *ctx,
             uint64_t *ret_id, struct err *err)
{
    struct job *j = job_create(jobs->next_id, n);
    struct addition *a = j != NULL ? mem_calloc(1, sizeof *a) : NULL;
    int r = -ENOMEM;
    if (a != NULL) {
        *a = (struct addition){jobs, j, done, ctx};
        r = add_new(jobs, n->spec, a, err);
    }
    if (r < 0) {
        free(a);
        job_destroy(j);
        return r == -ENOMEM ? err_set(err, r, "out of memory for a new job") : r;
    }
    *ret_id = j->id;
    return 0;
}

struct saving {
    struct jobs *jobs;
    struct job *job;
    /* True if the job had already ended when this save was started. */
    bool ended;
    void (*done)(void *ctx, int status);
    void *ctx;
};

static void saved(void *ctx, int status)
{
    struct saving *s = ctx;
    /* Archive the job only after a save that was started after the end of the job. An earlier save may still
     * be under way when the job ends. Such a save does not contain the end of the job. */
    if (s->ended) {
        s->job->archived = true;
        job_forget_said(s->job);
        release(s->jobs, s->job);
    }
    s->job->saves--;
    if (s->done != NULL)
        s->done(s->ctx, status);
    jobs_let_go(s->jobs, s->job);
    free(s);
}

int jobs_try_save(struct jobs *jobs, struct job *j, const char *event, const char *members,
                  void (*done)(void *ctx, int status), void *ctx)
{
    struct strbuf b = {.mode = STRBUF_FAILS};
    struct saving *s = mem_calloc(1, sizeof *s);
    struct state_unit *u = state_begin(jobs->daemon->state);
    int r = 0;
    job_status_json(j, &b);
    if (s == NULL || strbuf_status(&b) < 0)
        state_fail(u);
    else
        state_put_status(u, &(struct state_job){.id = j->id,
                                                .status = b.at,
                                                .ended_ms = !job_ended(j)     ? 0
                                                            : j->ended_ms > 0 ? j->ended_ms
                                                                              : 1,
                                                .uid = j->uid,
                                                .bytes = j->fixed_bytes + b.n});
    strbuf_finish(&b);
    if (s != NULL)
        *s = (struct saving){jobs, j, job_ended(j), done, ctx};
    if (event != NULL && !state_failed(u)) {
        r = events_add_kept(jobs->daemon->events, u, j->id, event, members, false, saved, s);
    } else if (state_failed(u)) {
        state_discard(u);
        r = -ENOMEM;
    } else {
        state_commit(u, false, saved, s);
    }
    if (r < 0)
        free(s);
    else
        j->saves++;
    return r;
}

void jobs_save(struct jobs *jobs, struct job *j, const char *event, const char *members,
               void (*done)(void *ctx, int status), void *ctx)
{
    if (jobs_try_save(jobs, j, event, members, done, ctx) < 0)
        daemon_die(jobs->daemon, "out of memory for a job's change of state");
}
