/* Method submit: checks the spec against the schema, stores the job, and answers when the job is on disk. It
 * opens no file that the spec names. Only the worker does so, with the user's rights.
 *
 * The path of a submit: verb_submit_prepare turns the parameters into a struct submission (in the pool when
 * the line is large), verb_submit asks for the user's name, with_name adds the job, and submit_on_disk
 * answers. The client decides how large a submission is, so every allocation may fail. The answer is then an
 * error.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/devices.h"
#include "daemon/job_json.h"
#include "daemon/jobs.h"
#include "daemon/quota.h"
#include "daemon/request_find.h"
#include "daemon/server_verbs.h"
#include "daemon/spec/spec.h"
#include "daemon/state.h"
#include "daemon/users.h"
#include "daemon/workers.h"

#define KEY_MOST 128 /* characters of a key */

/* A request to submit a job, from the reading of its parameters to the answer. */
struct submission {
    char *dir, *key;        /* key may be NULL */
    struct strbuf text;     /* JSON text of the spec */
    uint64_t hash;          /* job_spec_hash of spec and dir */
    struct job_needs needs; /* n_devices is 0 if the client sent none */
    /* The parsed spec. NULL if the spec is wrong. In that case spec_err says why. */
    struct spec *spec;
    struct err spec_err;
    /* loop thread only */
    struct request *rq;
    struct users_ask ask;
    uint64_t id;
    /* An earlier job of the user with the same key, read from the database. NULL if there is none. */
    struct job *found;
    /* The negative errno with which the submit is refused. But if the database has an earlier job with the
     * same key, the submit is answered with that job and is not refused. */
    int status;
    struct err refusal; /* the message for that refusal */
};

static void submission_free(struct submission *s)
{
    if (s == NULL)
        return;
    free(s->dir);
    free(s->key);
    strbuf_finish(&s->text);
    spec_destroy(s->spec);
    job_destroy(s->found);
    free(s);
}

/* ---- the parameters; any thread ---- */

/* The parameters of the request. They point into its JSON. `key` and `needs` may be NULL. */
struct submit_params {
    const struct json *spec, *needs;
    const char *dir, *key;
};

static int take_params(const struct json *params, struct submit_params *ret, struct err *err)
{
    struct json_obj o;
    *ret = (struct submit_params){0};
    json_obj_begin(&o, params, "", err);
    if (json_take(&o, "spec", JSON_REQUIRED, &ret->spec) && json_type(ret->spec) != JSON_OBJECT)
        json_fail(&o, "spec", -EINVAL, "must be an object");
    if (json_take_string(&o, "dir", JSON_REQUIRED, &ret->dir)) {
        if (ret->dir[0] != '/')
            json_fail(&o, "dir", -EINVAL, "must be an absolute path");
        else if (strlen(ret->dir) >= PATH_MAX)
            json_fail(&o, "dir", -EINVAL, "is too long: at most %d bytes", PATH_MAX - 1);
    }
    if (json_take_name(&o, "key", JSON_OPTIONAL, &ret->key) &&
        (ret->key[0] == '\0' || strlen(ret->key) > KEY_MOST))
        json_fail(&o, "key", -EINVAL, "must have 1 to %d characters", KEY_MOST);
    json_take(&o, "needs", JSON_OPTIONAL, &ret->needs);
    return json_obj_end(&o);
}

static int fill(struct submission *s, const struct json *params, struct err *err)
{
    struct submit_params p;
    int r = take_params(params, &p, err);
    if (r == 0 && p.needs != NULL)
        r = needs_read(p.needs, "needs", &s->needs, err);
    if (r < 0)
        return r;
    s->text.mode = STRBUF_FAILS;
    json_add(&s->text, p.spec);
    s->dir = mem_strdup(p.dir);
    s->key = p.key != NULL ? mem_strdup(p.key) : NULL;
    if (strbuf_status(&s->text) < 0 || s->dir == NULL || (p.key != NULL && s->key == NULL))
        return err_set(err, -ENOMEM, "the daemon has no memory for this job; try again later");
    s->hash = job_spec_hash(s->text.at, p.dir);
    /* Do not refuse a wrong spec here. If an earlier job already has the same key, the answer must name that
     * job, and not the error in the spec. */
    const struct spec_options how = {.base_dir = p.dir};
    if (spec_read(p.spec, &how, &s->spec, &s->spec_err) == -ENOMEM)
        return err_set(err, -ENOMEM, "the daemon has no memory for this job; try again later");
    return 0;
}

void *verb_submit_prepare(const struct json *params, struct err *err)
{
    struct submission *s = mem_calloc(1, sizeof *s);
    if (s == NULL) {
        err_set(err, -ENOMEM, "the daemon has no memory for this job; try again later");
        return NULL;
    }
    if (fill(s, params, err) == 0)
        return s;
    submission_free(s);
    return NULL;
}

/* ---- answers ---- */

static void reply_submit(struct request *rq, const struct job *j, bool duplicate)
{
    struct strbuf b = {.mode = STRBUF_FAILS};
    job_short_json(rq->daemon, j, &b);
    strbuf_addf(&b, ",\"duplicate\":%s}", duplicate ? "true" : "false");
    request_reply(rq, &b);
    strbuf_finish(&b);
}

static void refuse_submit(struct submission *s, int r, const struct err *err)
{
    if (r == -ENOMEM)
        request_out_of_memory(s->rq);
    else
        request_fail(
            s->rq, r == -EINVAL || r == -EEXIST || r == -EOPNOTSUPP ? WIRE_INVALID_PARAMS : WIRE_FAILED, err);
    submission_free(s);
}

static void refuse_other_spec(struct submission *s, const struct job *j)
{
    struct err err = {0};
    err_set_at(&err, -EEXIST, "key",
               "was used for job %" PRIu64 ", which has another spec; choose another key", j->id);
    refuse_submit(s, err.code, &err);
}

/* ---- keys of ended jobs ---- */

/* Called in the pool. */
static int take_keyed(void *ctx, const struct state_job *disk)
{
    struct submission *s = ctx;
    return job_read(disk, &s->found, NULL);
}

static void answer_found(void *ctx, int status)
{
    struct submission *s = ctx;
    if (status == 0 && s->found == NULL) {
        refuse_submit(s, s->status, &s->refusal);
    } else if (status == 0 && s->found->spec_hash != s->hash) {
        refuse_other_spec(s, s->found);
    } else {
        if (status < 0)
            request_unreadable(s->rq, status);
        else
            reply_submit(s->rq, s->found, true);
        submission_free(s);
    }
}

/* Refuses the submit, unless an ended job has the same key. A client that repeats its submit gets the first
 * job as the answer, even if the spec would be refused today. */
static void refuse_unless_known(struct submission *s, int r, const struct err *err)
{
    char key[JOB_KEY_CHARS];
    if (s->key == NULL || r == -ENOMEM) {
        refuse_submit(s, r, err);
        return;
    }
    s->status = r;
    s->refusal = *err;
    jobs_state_key(s->rq->uid, s->key, key);
    state_read_jobs(s->rq->daemon->state, &(struct state_query){.key = key}, take_keyed, answer_found, s);
}

static void refuse_full(struct submission *s)
{
    struct err err = {0};
    err_set(&err, -EAGAIN,
            "the disk with the daemon's state is full; the job was not submitted, try again later");
    refuse_unless_known(s, err.code, &err);
}

/* ---- answers ---- */

static void submit_on_disk(void *ctx, int status)
{
    struct submission *s = ctx;
    struct daemon *d = s->rq->daemon;
    if (status == 0) {
        reply_submit(s->rq, jobs_find(d->jobs, s->id), false);
        workers_schedule(d);
        submission_free(s);
    } else if (status == -ENOMEM) {
        refuse_submit(s, status, NULL);
    } else {
        /* There are two reasons for the failure. The disk may be full. Or the status is -EEXIST, because an
         * ended job has the same key. refuse_full looks for such a job, and answers the client with it. */
        refuse_full(s);
    }
}

/* Answers a submit whose key belongs to a live job. That job may not have been on disk when this submit
 * arrived. So this submit committed an empty unit, which came after the unit with the job. Now the empty unit
 * is on disk, so it is known whether the job was stored. */
static void duplicate_on_disk(void *ctx, int status)
{
    struct submission *s = ctx;
    const struct job *j = jobs_find(s->rq->daemon->jobs, s->id);
    (void)status;
    if (j == NULL || !j->on_disk) {
        /* Either the job was not stored, or the job has ended since this submit arrived. refuse_full looks
         * for the ended job in the database. */
        refuse_full(s);
        return;
    }
    if (j->spec_hash != s->hash) {
        refuse_other_spec(s, j);
        return;
    }
    reply_submit(s->rq, j, true);
    submission_free(s);
}

static void answer_duplicate(struct submission *s, const struct job *j)
{
    s->id = j->id;
    state_commit(state_begin(s->rq->daemon->state), false, duplicate_on_disk, s);
}

/* ---- the job ---- */

static struct job_ask ask_of(const struct spec *s)
{
    struct spec_demand demand = spec_demand(s);
    return (struct job_ask){
        .devices_min = demand.devices_min,
        .devices_max = demand.devices_max,
        .device_bytes = demand.device_bytes,
        .host_bytes = demand.host_bytes,
        .time_limit_s = s->queue.time_limit_s,
    };
}

static int check(struct request *rq, const struct job_ask *ask, struct err *err)
{
    const struct config *c = &rq->daemon->config;
    const struct queue_machine m = devices_at_best(rq->daemon);
    if (rq->daemon->stopping)
        return err_set(err, -ESHUTDOWN, "the daemon is stopping; submit again when it is back");
    if (ask->devices_max > DEVICE_MAX)
        return err_set_at(err, -EINVAL, "resources.devices", "must be at most %u", DEVICE_MAX);
    if (jobs_count(rq->daemon->jobs, JOB_QUEUED) >= c->max_queued)
        return err_set(err, -EAGAIN, "%" PRIu64 " jobs are queued, which is the limit; try again later",
                       c->max_queued);
    return queue_admits(ask, &m, err);
}

static int add_submitted(struct submission *s, const char *user, struct err *err)
{
    struct request *rq = s->rq;
    struct job_ask ask = ask_of(s->spec);
    int r = check(rq, &ask, err);
    if (r < 0)
        return r;
    struct job_new n = {
        .uid = rq->uid,
        .key = s->key,
        .name = s->spec->name,
        .user = user,
        .dir = s->dir,
        .output = s->spec->output,
        .spec = s->text.at,
        .spec_hash = s->hash,
        .ask = ask,
        .needs = s->needs,
    };
    return jobs_add(rq->daemon->jobs, &n, submit_on_disk, s, &s->id, err);
}

static void with_name(struct users_ask *ask, const char *user)
{
    struct submission *s = (struct submission *)((char *)ask - offsetof(struct submission, ask));
    const struct job *before = s->key != NULL ? jobs_find_key(s->rq->daemon->jobs, s->rq->uid, s->key) : NULL;
    struct err err = {0};
    int r;
    if (before != NULL)
        answer_duplicate(s, before);
    else if (s->spec == NULL)
        /* Every error in the spec is reported as a wrong parameter of the request. */
        refuse_unless_known(s, -EINVAL, &s->spec_err);
    else if ((r = add_submitted(s, user, &err)) < 0)
        refuse_unless_known(s, r, &err);
}

void verb_submit(struct request *rq)
{
    struct submission *s = rq->prepared;
    struct err err = {0};
    s->rq = rq;
    int r = quota_take_submit(rq->daemon->quota, rq->uid, daemon_now_ms(rq->daemon), &err);
    if (r < 0) {
        refuse_submit(s, r, &err);
        return;
    }
    s->ask = (struct users_ask){.uid = rq->uid, .done = with_name};
    users_ask(rq->daemon->users, &s->ask);
}
