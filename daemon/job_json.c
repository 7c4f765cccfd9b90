/* Implements job_json.h. On disk, a job consists of two JSON texts. The body is written once, and the status
 * is written again at every change. A text with an unknown key is refused, because another program must have
 * written it. */
#include "daemon/job_json.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/arena.h"
#include "base/json.h"
#include "base/wire.h"
#include "daemon/launch.h"

/* Optional members are added to an output line only while the line is shorter than this many bytes. The
 * remaining 2048 bytes are kept free for required members. */
#define LONG_BYTES (WIRE_LINE_MAX - 2048)

static void add_text(struct strbuf *b, const char *key, const char *s)
{
    strbuf_addf(b, ",\"%s\":", key);
    if (s != NULL)
        strbuf_add_json(b, s);
    else
        strbuf_add(b, "null");
}

static void add_json(struct strbuf *b, const char *key, const char *json)
{
    strbuf_addf(b, ",\"%s\":%s", key, json != NULL ? json : "null");
}

static void add_u64(struct strbuf *b, const char *key, uint64_t v)
{
    strbuf_addf(b, ",\"%s\":%" PRIu64, key, v);
}

static void add_time(struct strbuf *b, const char *key, uint64_t ms)
{
    if (ms > 0)
        add_u64(b, key, ms);
    else
        add_json(b, key, NULL);
}

static void add_double(struct strbuf *b, const char *key, double v)
{
    if (isfinite(v))
        strbuf_addf(b, ",\"%s\":%.9g", key, v);
    else
        add_json(b, key, NULL);
}

static void add_exit(struct strbuf *b, int code)
{
    if (code != JOB_NO_EXIT)
        strbuf_addf(b, ",\"exit\":%d", code);
    else
        add_json(b, "exit", NULL);
}

static void add_devices(struct strbuf *b, const struct job_lease *l)
{
    strbuf_add(b, ",\"devices\":[");
    for (uint32_t i = 0; i < l->n_devices; i++)
        strbuf_addf(b, "%s%u", i > 0 ? "," : "", l->devices[i]);
    strbuf_add(b, "]");
}

/* Adds the needs of the job, or null if they are not known. */
static void add_needs(struct strbuf *b, const struct job *j)
{
    strbuf_add(b, ",\"needs\":");
    if (j->needs.n_devices > 0)
        needs_to_json(&j->needs, b);
    else
        strbuf_add(b, "null");
}

/* ---- to disk ---- */

void job_body_json(const struct job *j, struct strbuf *b)
{
    strbuf_addf(b, "{\"uid\":%u", (unsigned)j->uid);
    add_text(b, "key", j->key);
    add_text(b, "name", j->name);
    add_text(b, "user", j->user);
    add_text(b, "dir", j->dir);
    add_text(b, "output", j->output);
    add_u64(b, "submitted_ms", j->submitted_ms);
    strbuf_addf(b, ",\"ask\":{\"devices_min\":%u,\"devices_max\":%u", j->ask.devices_min, j->ask.devices_max);
    add_u64(b, "device_bytes", j->ask.device_bytes);
    add_u64(b, "host_bytes", j->ask.host_bytes);
    add_u64(b, "time_limit_s", j->ask.time_limit_s);
    strbuf_add(b, "}}");
}

void job_status_json(const struct job *j, struct strbuf *b)
{
    strbuf_addf(b, "{\"state\":\"%s\"", job_state_names[j->state]);
    add_text(b, "reason", j->reason);
    add_u64(b, "started_ms", j->started_ms);
    add_u64(b, "ended_ms", j->ended_ms);
    add_u64(b, "used_ms", j->used_ms);
    add_u64(b, "attempt", j->attempt);
    add_u64(b, "failures", j->failures);
    add_u64(b, "checkpoint_step", j->checkpoint_step);
    add_u64(b, "failed_step", j->failed_step);
    strbuf_addf(b, ",\"cancel\":%s", j->cancel ? "true" : "false");
    add_devices(b, &j->lease);
    add_u64(b, "device_bytes", j->lease.device_bytes);
    add_u64(b, "host_bytes", j->lease.host_bytes);
    add_u64(b, "pid", (uint64_t)j->process.pid);
    add_u64(b, "pid_start", j->process.start);
    add_text(b, "boot", j->process.boot);
    add_text(b, "secret_sha256", j->secret_hash);
    add_needs(b, j);
    add_exit(b, j->exit);
    add_json(b, "error", j->error);
    add_u64(b, "step", j->step);
    add_u64(b, "total_steps", j->total_steps);
    add_double(b, "loss", j->loss);
    add_double(b, "samples_per_s", j->samples_per_s);
    if (job_ended(j)) {
        add_json(b, "planned", j->said.planned);
        add_json(b, "progress", j->said.progress);
        add_json(b, "report", j->said.report);
        add_json(b, "curve", j->said.curve);
        add_json(b, "evals", j->said.evals);
    }
    strbuf_add(b, "}");
}

/* ---- from disk ---- */

static void take_text(struct json_obj *o, const char *key, char **ret)
{
    const struct json *node;
    const char *s;
    if (!json_take(o, key, JSON_REQUIRED, &node) || json_type(node) == JSON_NULL)
        return;
    if (json_string(node, key, &s, NULL) == 0)
        job_set_text(ret, s);
    else
        json_fail(o, key, -EINVAL, "must be a string");
}

static void take_u32(struct json_obj *o, const char *key, uint32_t *ret)
{
    uint64_t v = 0;
    if (!json_take_u64(o, key, JSON_REQUIRED, &v))
        return;
    if (v > UINT32_MAX)
        json_fail(o, key, -EINVAL, "is too large");
    *ret = (uint32_t)v;
}

static void take_chars(struct json_obj *o, const char *key, char *ret, size_t size)
{
    const char *s;
    if (!json_take_string(o, key, JSON_REQUIRED, &s))
        return;
    if (strlen(s) >= size)
        json_fail(o, key, -EINVAL, "is too long");
    else
        memcpy(ret, s, strlen(s) + 1);
}

/* Takes the member `key`. The value must be null or have the type `type`, and any other value is reported as
 * a mistake. Returns true if the value has the type `type`. Returns false if the value is null or wrong. */
static bool take_known(struct json_obj *o, const char *key, enum json_type type, const struct json **ret)
{
    if (!json_take(o, key, JSON_REQUIRED, ret) || json_type(*ret) == JSON_NULL)
        return false;
    if (json_type(*ret) == type)
        return true;
    json_fail(o, key, -EINVAL, "must be %s or null", json_type_name(type));
    return false;
}

static void take_number(struct json_obj *o, const char *key, double *ret)
{
    const struct json *node;
    if (take_known(o, key, JSON_NUMBER, &node))
        json_double(node, key, ret, NULL);
}

static int take_ask(const struct json *node, struct job_ask *ret, struct err *err)
{
    struct json_obj o;
    json_obj_begin(&o, node, "ask", err);
    take_u32(&o, "devices_min", &ret->devices_min);
    take_u32(&o, "devices_max", &ret->devices_max);
    json_take_u64(&o, "device_bytes", JSON_REQUIRED, &ret->device_bytes);
    json_take_u64(&o, "host_bytes", JSON_REQUIRED, &ret->host_bytes);
    json_take_u64(&o, "time_limit_s", JSON_REQUIRED, &ret->time_limit_s);
    return json_obj_end(&o);
}

static int read_body(const struct json *doc, struct job *j, struct err *err)
{
    struct json_obj o;
    const struct json *ask = NULL;
    uint32_t uid = 0;
    json_obj_begin(&o, doc, "", err);
    take_u32(&o, "uid", &uid);
    take_text(&o, "key", &j->key);
    take_text(&o, "name", &j->name);
    take_text(&o, "user", &j->user);
    take_text(&o, "dir", &j->dir);
    take_text(&o, "output", &j->output);
    json_take_u64(&o, "submitted_ms", JSON_REQUIRED, &j->submitted_ms);
    json_take(&o, "ask", JSON_REQUIRED, &ask);
    int r = json_obj_end(&o);
    j->uid = uid;
    if (r == 0 && (j->name == NULL || j->user == NULL || j->dir == NULL || j->output == NULL))
        r = err_set(err, -EINVAL, "name, user, dir or output is null");
    return r == 0 ? take_ask(ask, &j->ask, err) : r;
}

static void take_devices(struct json_obj *o, struct job_lease *l)
{
    const struct json *list;
    if (!json_take(o, "devices", JSON_REQUIRED, &list))
        return;
    if (json_type(list) != JSON_ARRAY) {
        json_fail(o, "devices", -EINVAL, "must be a list");
        return;
    }
    for (const struct json *n = json_array_first(list); n != NULL; n = json_array_next(n)) {
        uint64_t v = 0;
        if (json_u64(n, "devices", &v, NULL) < 0 || v >= DEVICE_MAX || l->n_devices == DEVICE_MAX) {
            json_fail(o, "devices", -EINVAL, "must be numbers of devices");
            return;
        }
        l->devices[l->n_devices++] = (uint32_t)v;
    }
}

/* Reads the hash of the worker's secret from the member "secret_sha256". The old version tuttid 0.1.0 stored
 * the secret in plain text, in the member "secret". Workers that tuttid 0.1.0 started may still run, so this
 * function also accepts a plain secret and computes its hash. */
static void take_secret(struct json_obj *o, struct job *j)
{
    const char *hash = "", *plain;
    if (json_take_string(o, "secret", JSON_OPTIONAL, &plain)) {
        j->secret_in_clear = plain[0] != '\0';
        if (j->secret_in_clear)
            sha256_hex(plain, strlen(plain), j->secret_hash);
        return;
    }
    json_take_string(o, "secret_sha256", JSON_REQUIRED, &hash);
    if (hash[0] != '\0' &&
        (strlen(hash) != SHA256_HEX_CHARS || strspn(hash, "0123456789abcdef") != SHA256_HEX_CHARS))
        json_fail(o, "secret_sha256", -EINVAL, "is not a SHA-256");
    else
        memcpy(j->secret_hash, hash, strlen(hash) + 1);
}

/* Reads the needs. Older versions of tuttid stored none. */
static void take_needs(struct json_obj *o, struct job_needs *ret)
{
    const struct json *node;
    if (json_take(o, "needs", JSON_OPTIONAL, &node) && json_type(node) != JSON_NULL)
        o->status = needs_read(node, "needs", ret, o->err);
}

static int read_status(const struct json *doc, struct job *j, struct err *err)
{
    static const char *const ended_only[] = {"planned", "progress", "report", "curve", "evals"};
    struct json_obj o;
    const struct json *node;
    int state = 0;
    uint64_t pid = 0, code = 0;
    j->exit = JOB_NO_EXIT;
    json_obj_begin(&o, doc, "", err);
    json_take_enum(&o, "state", JSON_REQUIRED, job_state_names, &state);
    take_text(&o, "reason", &j->reason);
    json_take_u64(&o, "started_ms", JSON_REQUIRED, &j->started_ms);
    json_take_u64(&o, "ended_ms", JSON_REQUIRED, &j->ended_ms);
    json_take_u64(&o, "used_ms", JSON_REQUIRED, &j->used_ms);
    take_u32(&o, "attempt", &j->attempt);
    take_u32(&o, "failures", &j->failures);
    json_take_u64(&o, "checkpoint_step", JSON_REQUIRED, &j->checkpoint_step);
    json_take_u64(&o, "failed_step", JSON_REQUIRED, &j->failed_step);
    json_take_bool(&o, "cancel", JSON_REQUIRED, &j->cancel);
    take_devices(&o, &j->lease);
    json_take_u64(&o, "device_bytes", JSON_REQUIRED, &j->lease.device_bytes);
    json_take_u64(&o, "host_bytes", JSON_REQUIRED, &j->lease.host_bytes);
    if (json_take_u64(&o, "pid", JSON_REQUIRED, &pid) && pid > INT32_MAX)
        json_fail(&o, "pid", -EINVAL, "is not a process id");
    json_take_u64(&o, "pid_start", JSON_REQUIRED, &j->process.start);
    take_chars(&o, "boot", j->process.boot, sizeof j->process.boot);
    take_secret(&o, j);
    take_needs(&o, &j->needs);
    if (take_known(&o, "exit", JSON_NUMBER, &node)) {
        if (json_u64(node, "exit", &code, NULL) < 0 || code > 255)
            json_fail(&o, "exit", -EINVAL, "must be an exit code");
        j->exit = (int)code;
    }
    if (take_known(&o, "error", JSON_OBJECT, &node))
        j->error = json_print(node);
    json_take_u64(&o, "step", JSON_REQUIRED, &j->step);
    json_take_u64(&o, "total_steps", JSON_REQUIRED, &j->total_steps);
    take_number(&o, "loss", &j->loss);
    take_number(&o, "samples_per_s", &j->samples_per_s);
    for (size_t i = 0; i < sizeof ended_only / sizeof ended_only[0]; i++)
        json_take(&o, ended_only[i], JSON_OPTIONAL, &node);
    j->state = (enum job_state)state;
    j->process.pid = (pid_t)pid;
    int r = json_obj_end(&o);
    return r == 0 && j->reason == NULL ? err_set(err, -EINVAL, "reason is null") : r;
}

static int read_text(const char *text, struct job *j,
                     int (*read)(const struct json *doc, struct job *j, struct err *err), struct err *err)
{
    struct json *doc;
    int r = json_parse(text, strlen(text), "state", false, &doc, err);
    if (r < 0)
        return r;
    r = read(doc, j, err);
    json_free(doc);
    return r;
}

int job_from_disk(const struct state_job *disk, struct job *ret, struct err *err)
{
    struct err inner = {0};
    ret->id = disk->id;
    int r = read_text(disk->body, ret, read_body, &inner);
    if (r == 0)
        r = read_text(disk->status, ret, read_status, &inner);
    if (r == 0)
        return 0;
    char text[sizeof inner];
    return err_set(err, -EBADMSG, "job %" PRIu64 " in the state cannot be read by this version: %s", disk->id,
                   err_text(&inner, text, sizeof text));
}

int job_read(const struct state_job *disk, struct job **ret, struct err *err)
{
    struct job *j = xcalloc(1, sizeof *j);
    j->on_disk = true;
    j->loss = j->samples_per_s = j->eta_s = NAN;
    int r = job_from_disk(disk, j, err);
    if (r < 0) {
        job_destroy(j);
        return r;
    }
    j->archived = job_ended(j);
    if (disk->spec != NULL) {
        j->spec_hash = job_spec_hash(disk->spec, j->dir);
        j->fixed_bytes = strlen(disk->body) + strlen(disk->spec);
    }
    *ret = j;
    return 0;
}

/* ---- for clients ---- */

/* Returns the reason why the job waits, as a text for people. If all launches are paused, the pause is the
 * reason, because it delays every job. */
static const char *reason_of(const struct daemon *d, const struct job *j)
{
    if (j->state == JOB_QUEUED && j->worker == NULL && launch_paused(&d->pause))
        return d->pause.reason;
    if (j->state == JOB_QUEUED && j->stuck != NULL)
        return j->stuck;
    if (j->state == JOB_RUNNING && j->reason[0] == '\0' && j->said.planning != NULL)
        return j->said.planning;
    if (j->state != JOB_QUEUED || j->reason[0] != '\0')
        return j->reason;
    return j->worker != NULL ? "starting" : "waits for devices";
}

void job_short_json(const struct daemon *d, const struct job *j, struct strbuf *b)
{
    enum job_state state = job_visible_state(j);
    bool alive = state == JOB_RUNNING || state == JOB_STOPPING, ended = !alive && state != JOB_QUEUED;
    strbuf_addf(b, "{\"id\":%" PRIu64, j->id);
    add_text(b, "name", j->name);
    add_text(b, "user", j->user);
    strbuf_addf(b, ",\"uid\":%u,\"state\":\"%s\"", (unsigned)j->uid, job_state_names[state]);
    add_text(b, "reason", reason_of(d, j));
    add_time(b, "submitted_ms", j->submitted_ms);
    add_time(b, "started_ms", j->started_ms);
    add_time(b, "ended_ms", ended ? j->ended_ms : 0);
    add_devices(b, &j->lease);
    add_u64(b, "attempt", j->attempt);
    add_u64(b, "failures", j->failures);
    if (alive && j->process.pid > 0)
        add_u64(b, "pid", (uint64_t)j->process.pid);
    else
        add_json(b, "pid", NULL);
    add_u64(b, "step", j->step);
    add_u64(b, "total_steps", j->total_steps);
    add_double(b, "loss", j->loss);
    add_double(b, "samples_per_s", j->samples_per_s);
    add_double(b, "eta_s", alive ? j->eta_s : NAN);
    add_exit(b, ended ? j->exit : JOB_NO_EXIT);
    add_json(b, "error", ended ? j->error : NULL);
}

/* Returns the predicted time until the job is done, or NaN if the time is not known. A job that waits starts
 * again at its newest checkpoint. */
static double predicted_left_s(const struct job *j)
{
    enum job_state state = job_visible_state(j);
    bool alive = state == JOB_RUNNING || state == JOB_STOPPING;
    if (j->needs.n_devices == 0 || (!alive && state != JOB_QUEUED))
        return NAN;
    return needs_left_s(&j->needs, alive ? j->step : j->checkpoint_step);
}

/* Returns the member `key` of a JSON object as text, or NULL if the object has no such member. If memory runs
 * out, marks the buffer `b` as failed. */
static char *member(struct strbuf *b, const struct json *doc, const char *key)
{
    const struct json *node = doc != NULL ? json_get(doc, key) : NULL;
    struct strbuf text = {.mode = STRBUF_FAILS};
    if (node == NULL || json_type(node) == JSON_NULL)
        return NULL;
    json_add(&text, node);
    if (strbuf_status(&text) < 0) {
        strbuf_finish(&text);
        strbuf_fail(b);
    }
    return text.at;
}

static struct json *parse(struct strbuf *b, const char *text)
{
    struct json *doc = NULL;
    if (text != NULL && json_parse(text, strlen(text), "state", false, &doc, NULL) == -ENOMEM)
        strbuf_fail(b);
    return doc;
}

/* Adds the member `key` with the value `json` to the line. A value that does not fit into the line, such as a
 * large spec or report, is replaced by null. */
static void add_fitting(struct strbuf *b, const char *key, const char *json)
{
    add_json(b, key, json != NULL && b->n + strlen(json) < LONG_BYTES ? json : NULL);
}

static void add_member(struct strbuf *b, const char *key, const struct json *doc, const char *from)
{
    char *text = member(b, doc, from);
    add_fitting(b, key, text);
    free(text);
}

void job_long_json(const struct daemon *d, const struct job *j, const struct state_job *disk, uint64_t seq,
                   struct strbuf *b)
{
    /* If the job has ended, the last messages of its worker are in the status on disk. If the job is live,
     * they are in j->said. */
    struct json *status = j->archived ? parse(b, disk->status) : NULL;
    char *planned_text = status != NULL ? member(b, status, "planned") : NULL;
    struct json *planned = parse(b, status != NULL ? planned_text : j->said.planned);
    char path[PATH_MAX + 64];
    struct stat st;
    launch_log_path(&d->config, j->id, path, sizeof path);
    job_short_json(d, j, b);
    add_text(b, "dir", j->dir);
    add_text(b, "output", j->output);
    add_needs(b, j);
    add_double(b, "predicted_left_s", predicted_left_s(j));
    add_member(b, "parameters", planned, "parameters");
    add_member(b, "state_bytes", planned, "state_bytes");
    add_fitting(b, "spec", disk->spec);
    if (status != NULL) {
        add_member(b, "progress", status, "progress");
        add_member(b, "report", status, "report");
        add_member(b, "curve", status, "curve");
        add_member(b, "evals", status, "evals");
    } else {
        add_fitting(b, "progress", j->said.progress);
        add_fitting(b, "report", j->said.report);
        add_fitting(b, "curve", j->said.curve);
        add_fitting(b, "evals", j->said.evals);
    }
    add_member(b, "plan", planned, "plan");
    add_member(b, "resolved", planned, "resolved");
    add_u64(b, "checkpoint_step", j->checkpoint_step);
    if (stat(path, &st) == 0)
        add_u64(b, "log_bytes", (uint64_t)st.st_size);
    else
        add_json(b, "log_bytes", NULL);
    add_u64(b, "seq", seq);
    strbuf_add(b, "}");
    free(planned_text);
    json_free(planned);
    json_free(status);
}
