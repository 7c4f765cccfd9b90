/* The table of jobs. See jobs.h. How jobs look as JSON, on disk and for clients, is in job_json.c. */
#include "daemon/jobs.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/events.h"
#include "daemon/job_json.h"

const char *const job_state_names[JOB_STATE_COUNT + 1] = {
    "queued", "running", "stopping", "done", "failed", "cancelled", NULL,
};

bool job_ended(const struct job *j)
{
    return j->state >= JOB_DONE;
}

enum job_state job_told(const struct job *j)
{
    return job_ended(j) && !j->archived ? j->before : j->state;
}

void job_set_text(char **text, const char *to)
{
    char *copy = NULL;
    if (to != NULL) {
        size_t n = strlen(to) + 1;
        copy = memcpy(xmalloc(n), to, n);
    }
    free(*text);
    *text = copy;
}

static void free_live(struct job *j)
{
    free(j->live.planned);
    free(j->live.planning);
    free(j->live.progress);
    free(j->live.curve);
    free(j->live.evals);
    free(j->live.report);
    j->live = (struct job_live){0};
}

static void job_destroy(struct job *j)
{
    if (j == NULL)
        return;
    free_live(j);
    free(j->key);
    free(j->name);
    free(j->user);
    free(j->dir);
    free(j->output);
    free(j->reason);
    free(j->error);
    free(j->stuck);
    free(j);
}

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
    for (size_t i = 0; i < jobs->all.n; i++)
        job_destroy(jobs->all.at[i]);
    vec_free(&jobs->all);
    free(jobs);
}

/* ---- finding ---- */

size_t jobs_after(const struct jobs *jobs, uint64_t id)
{
    size_t low = 0, high = jobs->all.n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (jobs->all.at[mid]->id <= id)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

struct job *jobs_find(const struct jobs *jobs, uint64_t id)
{
    size_t i = id > 0 ? jobs_after(jobs, id - 1) : jobs->all.n;
    return i < jobs->all.n && jobs->all.at[i]->id == id ? jobs->all.at[i] : NULL;
}

/* The newest first: a retry follows its submit. */
struct job *jobs_find_key(const struct jobs *jobs, uid_t uid, const char *key)
{
    for (size_t i = jobs->all.n; i-- > 0;) {
        struct job *j = jobs->all.at[i];
        if (j->key != NULL && j->uid == uid && strcmp(j->key, key) == 0)
            return j;
    }
    return NULL;
}

uint64_t jobs_count(const struct jobs *jobs, enum job_state state)
{
    uint64_t n = 0;
    for (size_t i = 0; i < jobs->all.n; i++)
        n += jobs->all.at[i]->state == state;
    return n;
}

/* ---- changing ---- */

static void insert(struct jobs *jobs, struct job *j)
{
    vec_push(&jobs->all, j); /* ids ascend */
    if (j->id >= jobs->next_id)
        jobs->next_id = j->id + 1;
}

static void withdraw(struct jobs *jobs, struct job *j)
{
    size_t i = jobs_after(jobs, j->id - 1);
    memmove(&jobs->all.at[i], &jobs->all.at[i + 1], (jobs->all.n - i - 1) * sizeof *jobs->all.at);
    jobs->all.n--;
    job_destroy(j);
}

void job_set_state(struct job *j, enum job_state state, const char *reason)
{
    if (!job_ended(j))
        j->before = j->state;
    j->state = state;
    job_set_text(&j->reason, reason);
}

static int load_one(void *ctx, const struct state_job *disk, struct err *err)
{
    struct jobs *jobs = ctx;
    struct job *j = xcalloc(1, sizeof *j);
    j->on_disk = true;
    j->loss = j->samples_per_s = j->eta_s = NAN;
    int r = job_from_disk(disk, j, err);
    if (r < 0) {
        job_destroy(j);
        return r;
    }
    j->archived = job_ended(j);
    j->spec_hash = jobs_spec_hash(disk->spec, j->dir);
    insert(jobs, j);
    return 0;
}

int jobs_load(struct jobs *jobs, struct err *err)
{
    return state_load(jobs->daemon->state, load_one, jobs, err);
}

/* FNV-1a, with the end of each text. (Not two CRCs: those of texts of one length agree or differ together.) */
uint64_t jobs_spec_hash(const char *spec, const char *dir)
{
    const char *const parts[] = {spec, dir};
    uint64_t h = 0xcbf29ce484222325;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        for (size_t k = 0, n = strlen(parts[i]) + 1; k < n; k++)
            h = (h ^ (unsigned char)parts[i][k]) * 0x100000001b3;
    return h;
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
    a->done(a->ctx, status);
    if (status < 0)
        withdraw(a->jobs, a->job);
    free(a);
}

struct job *jobs_add(struct jobs *jobs, const struct job_new *n, void (*done)(void *ctx, int status),
                     void *ctx)
{
    struct job *j = xcalloc(1, sizeof *j);
    struct addition *a = xcalloc(1, sizeof *a);
    struct strbuf body = {0}, status = {0}, members = {0};
    j->id = jobs->next_id;
    j->uid = n->uid;
    job_set_text(&j->key, n->key);
    job_set_text(&j->name, n->name);
    job_set_text(&j->user, n->user);
    job_set_text(&j->dir, n->dir);
    job_set_text(&j->output, n->output);
    job_set_text(&j->reason, "");
    j->spec_hash = jobs_spec_hash(n->spec, n->dir);
    j->ask = n->ask;
    j->submitted_ms = clock_wall_ns() / 1000000;
    j->exit = JOB_NO_EXIT;
    j->loss = j->samples_per_s = j->eta_s = NAN;
    insert(jobs, j);
    job_body_json(j, &body);
    job_status_json(j, &status);
    strbuf_add(&members, "\"name\":");
    strbuf_add_json(&members, j->name);
    *a = (struct addition){jobs, j, done, ctx};
    struct state_unit *u = state_begin(jobs->daemon->state);
    char id_key[320] = "";
    if (j->key != NULL)
        snprintf(id_key, sizeof id_key, "%u:%s", (unsigned)j->uid, j->key);
    state_put_job(u, &(struct state_job){j->id, j->key != NULL ? id_key : NULL, body.at, n->spec, status.at});
    events_add_kept(jobs->daemon->events, u, j->id, "submitted", members.at, true, added, a);
    strbuf_finish(&body);
    strbuf_finish(&status);
    strbuf_finish(&members);
    return j;
}

struct saving {
    struct job *job;
    bool ended; /* what is saved says so */
    void (*done)(void *ctx, int status);
    void *ctx;
};

static void saved(void *ctx, int status)
{
    struct saving *s = ctx;
    if (s->ended) { /* not: it has ended since; that is saved after this */
        s->job->archived = true;
        free_live(s->job);
    }
    if (s->done != NULL)
        s->done(s->ctx, status);
    free(s);
}

void jobs_save(struct jobs *jobs, struct job *j, const char *event, const char *members,
               void (*done)(void *ctx, int status), void *ctx)
{
    struct strbuf b = {0};
    struct saving *s = xcalloc(1, sizeof *s);
    struct state_unit *u = state_begin(jobs->daemon->state);
    *s = (struct saving){j, job_ended(j), done, ctx};
    job_status_json(j, &b);
    state_put_status(u, j->id, b.at);
    strbuf_finish(&b);
    if (event != NULL)
        events_add_kept(jobs->daemon->events, u, j->id, event, members, false, saved, s);
    else
        state_commit(u, false, saved, s);
}
