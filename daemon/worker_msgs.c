/* Implements the messages of workers that worker_msgs.h describes. A connection belongs to a worker from its
 * hello on. Messages before a hello, and a hello with a wrong secret, change nothing.
 *
 * Some answers have to wait for the disk. Each of them refers to a struct worker_connection. This struct
 * outlives the connection itself until the last of these answers has been sent.
 */
#include "daemon/worker_msgs.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/get.h"
#include "base/log.h"
#include "base/wire.h"
#include "daemon/attempt.h"
#include "daemon/connection.h"
#include "daemon/devices.h"
#include "daemon/events.h"

struct worker_connection {
    struct daemon *daemon;
    struct connection *connection; /* NULL once closed */
    /* The worker at the other end. NULL before its hello has come, and again when the worker is gone. */
    struct worker *worker;
    uint32_t refs; /* answers that wait for the disk */
};

static void maybe_free_worker_connection(struct worker_connection *c)
{
    if (c->connection == NULL && c->refs == 0)
        free(c);
}

static void send_buf(struct worker_connection *c, struct strbuf *b)
{
    if (c->connection != NULL)
        connection_send(c->connection, b->at, b->n);
    strbuf_finish(b);
}

static void answer_error(struct worker_connection *c, const char *id, int code, const char *why)
{
    struct strbuf b = {0};
    struct err err = {0};
    err_set(&err, code, "%s", why);
    wire_add_error(&b, id, WIRE_FAILED, &err, NULL);
    send_buf(c, &b);
}

/* An answer to a worker's message. The answer is sent only when a change of the job is on disk. */
struct answer {
    struct worker_connection *conn;
    struct wire_msg msg; /* the request that is answered */
};

static struct answer *answer_later(struct worker_connection *c, struct wire_msg *m)
{
    struct answer *a = xcalloc(1, sizeof *a);
    *a = (struct answer){c, *m};
    *m = (struct wire_msg){0};
    c->refs++;
    return a;
}

static void answer_free(struct answer *a)
{
    struct worker_connection *c = a->conn;
    wire_msg_finish(&a->msg);
    free(a);
    c->refs--;
    maybe_free_worker_connection(c);
}

/* ---- hello ---- */

static void with_job(void *ctx, int status, const struct state_job *disk)
{
    struct answer *a = ctx;
    struct worker *w = a->conn->worker;
    struct strbuf b = {0};
    if (status < 0 || w == NULL) {
        answer_error(a->conn, a->msg.id, status < 0 ? status : -ESRCH,
                     "the job cannot be read from the state");
    } else {
        const struct job_lease *l = &w->job->lease;
        const struct queue_machine machine = devices_machine(w->daemon);
        wire_begin_result(&b, a->msg.id);
        strbuf_addf(&b, "{\"spec\":%s,\"dir\":", disk->spec);
        strbuf_add_json(&b, w->job->dir);
        strbuf_addf(&b, ",\"lease\":{\"devices\":%u,\"device_bytes\":%" PRIu64 ",\"host_bytes\":%" PRIu64 ",",
                    l->n_devices, l->device_bytes, l->host_bytes);
        strbuf_addf(&b, "\"all_devices\":%" PRIu32 ",\"host_bytes_each\":%" PRIu64 ",", machine.n_devices,
                    queue_host_each(&w->job->ask, &machine));
        inventory_add_lease(&w->daemon->inventory, l->devices, l->n_devices, &b);
        strbuf_add(&b, "}}");
        wire_end(&b);
        send_buf(a->conn, &b);
        w->phase = WORKER_RUNNING;
        /* The worker gets its job now, so the time limit for the first step of the job starts now. */
        w->moved_ms = daemon_now_ms(w->daemon);
        if (w->stop_sent && a->conn->connection != NULL)
            worker_msgs_stop(w, w->job->cancel ? "cancel" : "shutdown");
    }
    answer_free(a);
}

static void start_on_disk(void *ctx, int status)
{
    struct answer *a = ctx;
    (void)status; /* always 0: the unit is not optional */
    if (a->conn->worker == NULL) {
        answer_free(a);
        return;
    }
    state_read_job(a->conn->daemon->state, a->conn->worker->job->id, with_job, a);
}

static void save_start(struct worker *w, struct answer *a)
{
    struct job *j = w->job;
    struct strbuf b = {0};
    w->phase = WORKER_STARTING;
    job_set_text(&j->said.planning, NULL); /* left from an earlier attempt */
    if (launch_identify(w->pid, &j->process) < 0)
        j->process = (struct job_process){.pid = w->pid};
    if (j->started_ms == 0)
        j->started_ms = clock_wall_ns() / 1000000;
    job_set_state(j, j->cancel ? JOB_STOPPING : JOB_RUNNING, "");
    strbuf_addf(&b, "\"attempt\":%u,\"pid\":%ld,\"devices\":[", j->attempt, (long)w->pid);
    for (uint32_t i = 0; i < j->lease.n_devices; i++)
        strbuf_addf(&b, "%s%u", i > 0 ? "," : "", j->lease.devices[i]);
    strbuf_add(&b, "]");
    w->ops->took_job(w);
    jobs_save(w->daemon->jobs, j, "started", b.at, start_on_disk, a);
    strbuf_finish(&b);
}

struct hello {
    uint64_t protocol, job, attempt, pid;
    const char *secret, *phase;
};

static int take_hello(const struct json *params, struct hello *ret, struct err *err)
{
    struct json_obj o;
    json_obj_begin(&o, params, "", err);
    json_take_u64(&o, "protocol", JSON_REQUIRED, &ret->protocol);
    json_take_u64(&o, "job", JSON_REQUIRED, &ret->job);
    json_take_u64(&o, "attempt", JSON_REQUIRED, &ret->attempt);
    json_take_u64(&o, "pid", JSON_REQUIRED, &ret->pid);
    json_take_string(&o, "secret", JSON_REQUIRED, &ret->secret);
    json_take_string(&o, "phase", JSON_REQUIRED, &ret->phase);
    return json_obj_end(&o);
}

/* Returns true if `secret` is the secret of the job's worker. The comparison takes the same time for every
 * secret, so that its duration reveals nothing. */
static bool is_secret(const struct job *j, const char *secret)
{
    char hash[SHA256_HEX_CHARS + 1];
    int differs = j->secret_hash[0] == '\0';
    sha256_hex(secret, strlen(secret), hash);
    for (size_t i = 0; i < sizeof hash; i++)
        differs |= hash[i] ^ j->secret_hash[i];
    return differs == 0;
}

/* Returns the worker that sent this hello message. Returns NULL if no job expects such a worker or if the
 * secret is wrong. */
static struct worker *known(struct worker_connection *c, const struct hello *h)
{
    const struct job *j = jobs_find(c->daemon->jobs, h->job);
    struct worker *w = j != NULL ? j->worker : NULL;
    if (w == NULL || h->attempt != j->attempt || !is_secret(j, h->secret) || w->phase == WORKER_ENDED)
        return NULL;
    return w;
}

static void on_hello(struct worker_connection *c, struct wire_msg *m)
{
    struct hello h = {0};
    struct err err = {0};
    struct strbuf b = {0};
    if (take_hello(m->params, &h, &err) < 0 || h.protocol != WIRE_PROTOCOL) {
        answer_error(c, m->id, -EPROTO,
                     err.code < 0 ? err.msg : "the daemon speaks another version of the protocol");
        return;
    }
    struct worker *w = known(c, &h);
    if (w == NULL) {
        answer_error(c, m->id, -ESRCH, "no job of this daemon waits for this worker");
        return;
    }
    /* If the same worker still has an older connection, close the older one. */
    worker_msgs_hang_up(w);
    w->connection = c->connection;
    w->heard_ms = daemon_now_ms(c->daemon);
    c->worker = w;
    if (strcmp(h.phase, "new") == 0) {
        struct answer *a = answer_later(c, m);
        if (w->phase == WORKER_SPAWNED)
            save_start(w, a);
        else
            /* The worker has already sent this hello on an earlier connection, but the answer did not arrive.
             * Answer again, without saving the start of the attempt again. */
            start_on_disk(a, 0);
        return;
    }
    w->phase = WORKER_RUNNING;
    wire_begin_result(&b, m->id);
    strbuf_add(&b, "{}");
    wire_end(&b);
    send_buf(c, &b);
    log_info("job %" PRIu64 ": worker %ld has connected again", w->job->id, (long)w->pid);
    if (w->job->state == JOB_STOPPING)
        worker_msgs_stop(w, w->job->cancel ? "cancel" : "shutdown");
}

/* ---- what it tells ---- */

/* Replaces *to by the JSON text of the member `key` of `params`. If the member is absent or null, *to stays
 * unchanged. */
static void take_json(char **to, const struct json *params, const char *key)
{
    const struct json *node = get_node(params, key);
    if (node == NULL)
        return;
    free(*to);
    *to = json_print(node);
}

/* Publishes a worker's message as an event. Leaves out the members whose names the event itself uses. Also
 * leaves out members that would make the line too long for clients. */
static void publish(struct worker *w, const char *event, const struct json *params)
{
    static const char *const own[] = {"event", "job", "seq", "time_ms"};
    struct strbuf b = {0};
    for (const struct json *c = params != NULL ? json_array_first(params) : NULL; c != NULL;
         c = json_array_next(c)) {
        bool taken = false;
        for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
            taken |= strcmp(json_key(c), own[i]) == 0;
        char *value = json_print(c);
        if (!taken && b.n + 6 * strlen(json_key(c)) + strlen(value) < WIRE_LINE_MAX - 1024) {
            strbuf_add(&b, b.n > 0 ? "," : "");
            strbuf_add_json(&b, json_key(c));
            strbuf_addf(&b, ":%s", value);
        }
        free(value);
    }
    events_add(w->daemon->events, w->job->id, event, b.at);
    strbuf_finish(&b);
}

/* Stores a text about the progress of planning. `tutti show` displays the text until the plan is ready. */
static void on_planning(struct worker *w, const struct json *params, const char *text)
{
    char says[64];
    (void)text;
    snprintf(says, sizeof says, "planning a step of %" PRIu64 " tasks", get_count_or(params, "tasks", 0));
    job_set_text(&w->job->said.planning, says);
    publish(w, "planning", params);
}

/* Takes the needs of the plan on the worker's lease. They replace the needs that came with the submit. The
 * worker runs with the rights of the user and could send anything, so wrong needs are ignored. */
static void replace_needs(struct worker *w, const struct json *params)
{
    struct job *j = w->job;
    const struct json *node = get_node(params, "needs");
    struct job_needs needs;
    if (node == NULL || needs_read(node, "needs", &needs, NULL) < 0 ||
        memcmp(&needs, &j->needs, sizeof needs) == 0)
        return;
    j->needs = needs;
    jobs_save(w->daemon->jobs, j, NULL, NULL, NULL, NULL);
}

static void on_planned(struct worker *w, const struct json *params, const char *text)
{
    struct job *j = w->job;
    bool again = j->said.planned != NULL && strcmp(j->said.planned, text) == 0;
    job_set_text(&j->said.planned, text);
    job_set_text(&j->said.planning, NULL);
    j->total_steps = get_count_or(json_get(params, "resolved"), "total_steps", j->total_steps);
    replace_needs(w, params);
    if (!again)
        publish(w, "planned", params);
}

static void on_progress(struct worker *w, const struct json *params, const char *text)
{
    struct job *j = w->job;
    job_set_text(&j->said.progress, text);
    j->step = get_count_or(params, "step", j->step);
    j->total_steps = get_count_or(params, "total_steps", j->total_steps);
    j->loss = get_number_or(params, "loss", j->loss);
    j->samples_per_s = get_number_or(params, "samples_per_s", j->samples_per_s);
    j->eta_s = get_number_or(params, "eta_s", j->eta_s);
    publish(w, "progress", params);
}

static void on_checkpoint(struct worker *w, const struct json *params, const char *text)
{
    uint64_t step = get_count_or(params, "step", 0);
    (void)text;
    if (step > w->job->checkpoint_step) {
        w->job->checkpoint_step = step;
        jobs_save(w->daemon->jobs, w->job, NULL, NULL, NULL, NULL);
    }
    publish(w, "checkpoint", params);
}

static void on_curve(struct worker *w, const struct json *params, const char *text)
{
    (void)text;
    take_json(&w->job->said.curve, params, "points");
    take_json(&w->job->said.evals, params, "evals");
}

static void on_alive(struct worker *w, const struct json *params, const char *text)
{
    (void)w;
    (void)params;
    (void)text;
}

static void on_eval(struct worker *w, const struct json *params, const char *text)
{
    (void)text;
    publish(w, "eval", params);
}

static void on_labels(struct worker *w, const struct json *params, const char *text)
{
    (void)text;
    publish(w, "labels", params);
}

static void on_outputs(struct worker *w, const struct json *params, const char *text)
{
    (void)text;
    publish(w, "outputs", params);
}

static void on_phase(struct worker *w, const struct json *params, const char *text)
{
    (void)text;
    publish(w, "phase", params);
}

static void on_resumed(struct worker *w, const struct json *params, const char *text)
{
    (void)text;
    w->job->step = get_count_or(params, "step", w->job->step);
    publish(w, "resumed", params);
}

static void on_skipped(struct worker *w, const struct json *params, const char *text)
{
    (void)text;
    publish(w, "skipped", params);
}

static const struct notice {
    const char *name;
    void (*take)(struct worker *w, const struct json *params, const char *text);
} notices[] = {
    {"alive", on_alive},       {"checkpoint", on_checkpoint}, {"curve", on_curve},
    {"eval", on_eval},         {"labels", on_labels},         {"outputs", on_outputs},
    {"phase", on_phase},       {"planned", on_planned},       {"planning", on_planning},
    {"progress", on_progress}, {"resumed", on_resumed},       {"skipped", on_skipped},
};

static void on_notification(struct worker *w, const struct wire_msg *m)
{
    if (w->phase == WORKER_ENDED)
        /* The worker has already reported its outcome, so no other message may change the job. */
        return;
    for (size_t i = 0; i < sizeof notices / sizeof notices[0]; i++) {
        if (strcmp(notices[i].name, m->method) != 0)
            continue;
        if (notices[i].take != on_alive)
            w->moved_ms = daemon_now_ms(w->daemon);
        char *text = m->params != NULL ? json_print(m->params) : NULL;
        notices[i].take(w, m->params, text != NULL ? text : "{}");
        free(text);
        return;
    }
}

/* ---- its outcome ---- */

static void outcome_on_disk(void *ctx, int status)
{
    struct answer *a = ctx;
    struct strbuf b = {0};
    (void)status; /* always 0: the unit is not optional */
    wire_begin_result(&b, a->msg.id);
    strbuf_add(&b, "{}");
    wire_end(&b);
    send_buf(a->conn, &b);
    answer_free(a);
}

static void take_stopped(struct worker *w, struct answer *a)
{
    if (!attempt_stopped(w->daemon, w->job, outcome_on_disk, a))
        attempt_failed(w->daemon, w->job, "was stopped, but not by the daemon", outcome_on_disk, a);
}

/* Returns the worker's error as the text of a JSON object, or NULL if there is none. The daemon builds a new
 * object from the worker's values, so that its form and its length are known. */
static char *take_error(const struct json *params)
{
    const struct json *e = json_get(params, "error");
    struct strbuf b = {0};
    struct err err = {0};
    if (e == NULL || json_type(e) != JSON_OBJECT)
        return NULL;
    int code = wire_errno(get_text(e, "errno"));
    err_set_at(&err, code < 0 ? code : -EIO, get_text(e, "path"), "%s", get_text(e, "message"));
    wire_add_err_object(&b, &err);
    return b.at;
}

/* A worker has told which devices failed while it used them. Passes their numbers on to devices.c. */
static void take_blame(struct worker *w, const struct json *params)
{
    const struct json *failed = get_object(params, "failed_devices"), *list = get_array(failed, "indices");
    uint64_t index, told = 0; /* bit i: device i was already reported */
    for (const struct json *at = list != NULL ? json_array_first(list) : NULL; at != NULL;
         at = json_array_next(at))
        if (json_u64(at, "indices", &index, NULL) == 0 && index < 64 && !(told >> index & 1)) {
            told |= UINT64_C(1) << index;
            devices_blame(w->daemon, w->job, index, get_text(failed, "reason"));
        }
}

static bool is_full(int code)
{
    return code == -ENOSPC || code == -EDQUOT;
}

static void take_failed(struct worker *w, const struct json *params, struct answer *a)
{
    const struct json *retry = json_get(params, "retry");
    bool again = false;
    char *error = take_error(params);
    take_blame(w, params);
    if (retry != NULL && json_type(retry) == JSON_BOOL)
        json_bool(retry, "retry", &again, NULL);
    if (w->job->cancel) {
        attempt_end_job(w->daemon, w->job, JOB_CANCELLED, EXIT_CANCELLED, error, outcome_on_disk, a);
    } else if (again && is_full(wire_errno(get_text(json_get(params, "error"), "errno")))) {
        attempt_pause(w->daemon, w->job, get_text(json_get(params, "error"), "message"), outcome_on_disk, a);
    } else if (again) {
        char why[512];
        snprintf(why, sizeof why, "failed: %s", get_text(json_get(params, "error"), "message"));
        attempt_failed(w->daemon, w->job, why, outcome_on_disk, a);
    } else {
        uint64_t code = get_count_or(params, "exit", 1);
        attempt_end_job(w->daemon, w->job, JOB_FAILED, code > 0 && code < 126 ? (int)code : 1, error,
                        outcome_on_disk, a);
    }
    free(error);
}

static void on_outcome(struct worker *w, struct worker_connection *c, struct wire_msg *m)
{
    struct job *j = w->job;
    const char *state = get_text(m->params, "state");
    if (w->phase == WORKER_ENDED)
        /* The worker has sent its outcome again. Only the first outcome gets an answer. */
        return;
    take_json(&j->said.curve, m->params, "curve");
    take_json(&j->said.evals, m->params, "evals");
    take_json(&j->said.report, m->params, "report");
    j->step = get_count_or(m->params, "step", j->step);
    j->loss = get_number_or(m->params != NULL ? json_get(m->params, "report") : NULL, "loss", j->loss);
    w->ops->took_outcome(w);
    struct answer *a = answer_later(c, m);
    if (strcmp(state, "done") == 0) {
        devices_praise(w->daemon, j);
        attempt_end_job(w->daemon, j, JOB_DONE, 0, NULL, outcome_on_disk, a);
    } else if (strcmp(state, "stopped") == 0) {
        take_stopped(w, a);
    } else {
        take_failed(w, a->msg.params, a);
    }
}

/* ---- connections ---- */

static void on_worker_line(struct connection *p, char *line, size_t bytes)
{
    struct worker_connection *c = connection_ctx(p);
    struct wire_msg m;
    enum wire_code code;
    struct err err = {0};
    if (wire_parse(line, bytes, 0, &m, &code, &err) < 0) {
        log_warning("a worker's message is malformed: %s", err.msg);
        connection_close(p);
    } else if (m.kind == WIRE_REQUEST && strcmp(m.method, "hello") == 0 && c->worker == NULL) {
        on_hello(c, &m);
    } else if (c->worker == NULL) {
        connection_close(p); /* the first message must be a hello */
    } else {
        c->worker->heard_ms = daemon_now_ms(c->daemon);
        if (m.kind == WIRE_REQUEST && strcmp(m.method, "outcome") == 0)
            on_outcome(c->worker, c, &m);
        else if (m.kind == WIRE_NOTIFICATION)
            on_notification(c->worker, &m);
    }
    wire_msg_finish(&m);
}

static void on_worker_refused(struct connection *p, int code)
{
    (void)p; /* closed; the worker connects again */
    (void)code;
}

static void on_worker_drained(struct connection *p)
{
    (void)p;
}

static void on_worker_ended(struct connection *p)
{
    connection_close(p);
}

static void on_worker_closed(struct connection *p)
{
    struct worker_connection *c = connection_ctx(p);
    if (c->worker != NULL && c->worker->connection == p)
        c->worker->connection = NULL;
    c->worker = NULL;
    c->connection = NULL;
    maybe_free_worker_connection(c);
}

static const struct connection_ops worker_connection_ops = {
    on_worker_line, on_worker_refused, on_worker_drained, on_worker_ended, on_worker_closed};

void worker_msgs_accept(struct daemon *d, uv_stream_t *listening)
{
    struct worker_connection *c = xcalloc(1, sizeof *c);
    pid_t pid;
    uid_t uid;
    c->daemon = d;
    if (connection_accept(listening, &worker_connection_ops, WIRE_WORKER_LINE_MAX, c, &c->connection) < 0) {
        free(c);
        return;
    }
    if (connection_credentials(c->connection, &pid, &uid) < 0 || uid != getuid())
        connection_close(c->connection);
}

void worker_msgs_stop(struct worker *w, const char *reason)
{
    struct strbuf b = {0};
    wire_begin_notification(&b, "stop");
    strbuf_addf(&b, "{\"reason\":\"%s\"}", reason);
    wire_end(&b);
    connection_send(w->connection, b.at, b.n);
    strbuf_finish(&b);
}

void worker_msgs_hang_up(struct worker *w)
{
    if (w->connection == NULL)
        return;
    struct worker_connection *c = connection_ctx(w->connection);
    c->worker = NULL;
    connection_close(w->connection);
    w->connection = NULL;
}
