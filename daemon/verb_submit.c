/* submit: checks the schema, freezes the spec, and answers when the job is on disk. It opens no file that the spec names:
 * that is the worker's business, with the user's rights. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "daemon/devices.h"
#include "daemon/server.h"
#include "daemon/worker/spec.h"
#include "daemon/workers.h"

#define KEY_MOST 128

struct submission {
    struct request *rq;
    uint64_t id;
};

static void reply(struct request *rq, const struct job *j, bool duplicate)
{
    struct strbuf b = {0};
    job_short_json(rq->daemon->jobs, j, &b);
    strbuf_addf(&b, ",\"duplicate\":%s}", duplicate ? "true" : "false");
    request_reply(rq, &b);
    strbuf_finish(&b);
}

static void on_disk(void *ctx, int status)
{
    struct submission *s = ctx;
    struct daemon *d = s->rq->daemon;
    if (status == 0) {
        reply(s->rq, jobs_find(d->jobs, s->id), false);
        workers_schedule(d);
    } else {
        struct err err = {0};
        err_set(&err, -EAGAIN, "the disk with the daemon's state is full; the job was not submitted");
        request_fail(s->rq, WIRE_FAILED, &err);
    }
    free(s);
}

/* A retry that came before the first one was on disk: it waits its turn. An empty unit is committed after that one. */
static void duplicate_on_disk(void *ctx, int status)
{
    struct submission *s = ctx;
    struct job *j = jobs_find(s->rq->daemon->jobs, s->id);
    struct err err = {0};
    (void)status;
    if (j != NULL && j->on_disk) {
        reply(s->rq, j, true);
    } else {
        err_set(&err, -EAGAIN, "the disk with the daemon's state is full; the job was not submitted");
        request_fail(s->rq, WIRE_FAILED, &err);
    }
    free(s);
}

static void answer_duplicate(struct request *rq, const struct job *j, uint64_t spec_hash)
{
    struct err err = {0};
    if (j->spec_hash != spec_hash) {
        err_set_at(&err, -EEXIST, "key", "was used for job %" PRIu64 ", which has another spec", j->id);
        request_refuse(rq, &err);
        return;
    }
    struct submission *s = xcalloc(1, sizeof *s);
    *s = (struct submission){rq, j->id};
    state_commit(state_begin(rq->daemon->state), false, duplicate_on_disk, s);
}

static struct job_ask ask_of(const struct spec *s)
{
    uint32_t least = s->resources.devices_min > 0 ? s->resources.devices_min : 1;
    uint32_t most = s->resources.devices_max > least ? s->resources.devices_max : least;
    return (struct job_ask){
        .devices_min = least,
        .devices_max = most,
        .device_bytes = s->resources.device_bytes,
        .host_bytes = s->resources.host_bytes,
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
        return err_set_at(err, -EINVAL, "resources.devices", "at most %u devices", DEVICE_MAX);
    if (jobs_count(rq->daemon->jobs, JOB_QUEUED) >= c->max_queued)
        return err_set(err, -EAGAIN, "%" PRIu64 " jobs are queued, which is the limit; try again later",
                       c->max_queued);
    return queue_admits(ask, &m, err);
}

static void user_name(uid_t uid, char *buf, size_t size)
{
    const struct passwd *pw = getpwuid(uid);
    if (pw != NULL)
        snprintf(buf, size, "%s", pw->pw_name);
    else
        snprintf(buf, size, "%u", (unsigned)uid);
}

static void submit(struct request *rq, const char *text, const struct spec *spec, const char *dir,
                   const char *key)
{
    struct err err = {0};
    struct job_ask ask = ask_of(spec);
    char user[64];
    int r = check(rq, &ask, &err);
    if (r < 0) {
        request_fail(rq, r == -EINVAL ? WIRE_INVALID_PARAMS : WIRE_FAILED, &err);
        return;
    }
    user_name(rq->uid, user, sizeof user);
    struct job_new n = {
        .uid = rq->uid,
        .key = key,
        .name = spec->name,
        .user = user,
        .dir = dir,
        .output = spec->output,
        .spec = text,
        .ask = ask,
    };
    struct submission *s = xcalloc(1, sizeof *s);
    s->rq = rq;
    s->id = jobs_add(rq->daemon->jobs, &n, on_disk, s)->id;
}

static int take_params(struct request *rq, const struct json **ret_spec, const char **ret_dir,
                       const char **ret_key, struct err *err)
{
    struct json_obj o;
    json_obj_begin(&o, rq->params, "", err);
    if (json_take(&o, "spec", JSON_REQUIRED, ret_spec) && json_type(*ret_spec) != JSON_OBJECT)
        json_fail(&o, "spec", -EINVAL, "must be an object");
    if (json_take_string(&o, "dir", JSON_REQUIRED, ret_dir)) {
        if ((*ret_dir)[0] != '/')
            json_fail(&o, "dir", -EINVAL, "must be an absolute path");
        else if (strlen(*ret_dir) >= PATH_MAX)
            json_fail(&o, "dir", -EINVAL, "is too long: at most %d bytes", PATH_MAX - 1);
    }
    if (json_take_name(&o, "key", JSON_OPTIONAL, ret_key) &&
        ((*ret_key)[0] == '\0' || strlen(*ret_key) > KEY_MOST))
        json_fail(&o, "key", -EINVAL, "must have 1 to %d characters", KEY_MOST);
    return json_obj_end(&o);
}

void verb_submit(struct request *rq)
{
    struct err err = {0};
    const struct json *node = NULL;
    const char *dir = NULL, *key = NULL;
    struct spec *spec = NULL;
    if (take_params(rq, &node, &dir, &key, &err) < 0) {
        request_refuse(rq, &err);
        return;
    }
    char *text = json_print(node);
    const struct job *before = key != NULL ? jobs_find_key(rq->daemon->jobs, rq->uid, key) : NULL;
    if (before != NULL)
        answer_duplicate(rq, before, jobs_spec_hash(text, dir));
    else if (spec_parse_closed(text, strlen(text), "spec", dir, &spec, &err) < 0)
        request_refuse(rq, &err);
    else
        submit(rq, text, spec, dir, key);
    spec_destroy(spec);
    free(text);
}
