/* The jobs' workers: decisions. What they say is read in worker_msgs.c; processes are launch.c's. See workers.h.
 *
 * One timer ticks while there are workers or restarts to come: it kills what hangs or does not stop in time, enforces time
 * limits, and starts jobs whose back-off is over.
 */
#include "daemon/workers.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/log.h"
#include "daemon/devices.h"
#include "daemon/events.h"
#include "daemon/launch.h"
#include "daemon/peer.h"
#include "daemon/worker_msgs.h"

#define TICK_MS        200
#define MOST_LATE_MS   1000  /* of a tick */
#define MOST_FAILURES  3     /* restarts in a row without a new checkpoint */
#define MOST_DELAY_MS  60000 /* of a restart */
#define PAUSE_DELAYS   30    /* restart delays until a job whose disk was full is tried again */
#define EXIT_WITHIN_MS 10000 /* of the answer to its outcome */
#define STOP_WITHIN_MS 60000 /* of a cancel */

struct workers {
    struct daemon *daemon;
    uv_pipe_t pipe; /* worker.sock */
    uv_timer_t tick;
    uint64_t tick_ms; /* when it last ticked, or began to */
};

static uint64_t wall_ms(void)
{
    return clock_wall_ns() / 1000000;
}

size_t workers_count(const struct daemon *d)
{
    size_t n = 0;
    for (size_t i = 0; i < d->jobs->all.n; i++)
        n += d->jobs->all.at[i]->worker != NULL;
    return n;
}

/* ---- leases ---- */

static void take_devices(struct daemon *d, const struct job *j)
{
    for (uint32_t i = 0; d->config.n_devices > 0 && i < j->lease.n_devices; i++)
        if (j->lease.devices[i] < d->config.n_devices)
            d->device_job[j->lease.devices[i]] = j->id;
}

static void give_devices_back(struct daemon *d, const struct job *j)
{
    for (uint32_t i = 0; i < DEVICE_MAX; i++)
        if (d->device_job[i] == j->id)
            d->device_job[i] = 0;
}

/* ---- the end of an attempt ---- */

void workers_end_job(struct daemon *d, struct job *j, enum job_state state, int exit, const char *error,
                     void (*done)(void *ctx, int status), void *ctx)
{
    struct strbuf b = {0};
    j->exit = exit;
    j->ended_ms = wall_ms();
    job_set_text(&j->error, error);
    job_set_state(j, state, "");
    strbuf_addf(&b, "\"state\":\"%s\",\"exit\":%d,\"error\":%s", job_state_names[state], exit,
                error != NULL ? error : "null");
    jobs_save(d->jobs, j, "ended", b.at, done, ctx);
    log_info("job %" PRIu64 ": %s", j->id, job_state_names[state]);
    strbuf_finish(&b);
}

void workers_requeue(struct daemon *d, struct job *j, const char *why, void (*done)(void *ctx, int status),
                     void *ctx)
{
    struct strbuf b = {0};
    job_set_state(j, JOB_QUEUED, why);
    strbuf_add(&b, "\"why\":");
    strbuf_add_json(&b, why);
    jobs_save(d->jobs, j, "queued", b.at, done, ctx);
    strbuf_finish(&b);
}

void workers_pause(struct daemon *d, struct job *j, const char *why, void (*done)(void *ctx, int status),
                   void *ctx)
{
    struct strbuf b = {0};
    j->not_before_ms = daemon_now_ms(d) + PAUSE_DELAYS * d->config.restart_delay_ms;
    strbuf_addf(&b, "paused: %s", why);
    log_warning("job %" PRIu64 ": %s", j->id, b.at);
    workers_requeue(d, j, b.at, done, ctx);
    strbuf_finish(&b);
}

static void give_up(struct daemon *d, struct job *j, const char *why, void (*done)(void *ctx, int status),
                    void *ctx)
{
    struct strbuf b = {0};
    struct err err = {0};
    err_set(&err, -EIO,
            "the worker %s; it failed %u times without a new checkpoint; see `tutti logs %" PRIu64 "`", why,
            j->failures, j->id);
    wire_add_err_object(&b, &err);
    workers_end_job(d, j, JOB_FAILED, 1, b.at, done, ctx);
    strbuf_finish(&b);
}

void workers_failed(struct daemon *d, struct job *j, const char *why, void (*done)(void *ctx, int status),
                    void *ctx)
{
    struct strbuf reason = {0}, members = {0};
    if (j->checkpoint_step > j->failed_step)
        j->failures = 0; /* it got further than the time before */
    j->failed_step = j->checkpoint_step;
    j->failures++;
    if (j->failures > MOST_FAILURES) {
        give_up(d, j, why, done, ctx);
        return;
    }
    uint64_t delay = d->config.restart_delay_ms << (j->failures - 1);
    if (delay > MOST_DELAY_MS)
        delay = MOST_DELAY_MS;
    j->not_before_ms = daemon_now_ms(d) + delay;
    strbuf_addf(&reason, "the worker %s; restart %u of %d follows", why, j->failures, MOST_FAILURES);
    job_set_state(j, JOB_QUEUED, reason.at);
    strbuf_add(&members, "\"why\":");
    strbuf_add_json(&members, why);
    strbuf_addf(&members, ",\"failures\":%u,\"in_s\":%.3f", j->failures, (double)delay / 1000);
    jobs_save(d->jobs, j, "restarting", members.at, done, ctx);
    log_warning("job %" PRIu64 ": %s", j->id, reason.at);
    strbuf_finish(&reason);
    strbuf_finish(&members);
}

static void end_over_limit(struct daemon *d, struct job *j, void (*done)(void *ctx, int status), void *ctx)
{
    struct strbuf b = {0};
    struct err err = {0};
    err_set_at(&err, -ETIME, "queue.time_limit",
               "the time limit of %" PRIu64 " s is over; a checkpoint of step %" PRIu64
               " is kept, submit again with a longer limit to go on",
               j->ask.time_limit_s, j->checkpoint_step);
    wire_add_err_object(&b, &err);
    workers_end_job(d, j, JOB_FAILED, 1, b.at, done, ctx);
    strbuf_finish(&b);
}

/* A job that is stopping although nobody cancelled it and this daemon goes on: the daemon before was to stop. */
bool workers_stopped(struct worker *w, void (*done)(void *ctx, int status), void *ctx)
{
    struct daemon *d = w->daemon;
    struct job *j = w->job;
    if (j->cancel)
        workers_end_job(d, j, JOB_CANCELLED, EXIT_CANCELLED, NULL, done, ctx);
    else if (workers_over_limit(j))
        end_over_limit(d, j, done, ctx);
    else if (d->stopping || j->state == JOB_STOPPING)
        workers_requeue(d, j, "the daemon was stopped", done, ctx);
    else
        return false;
    return true;
}

/* At the end of an attempt, before that is saved. */
static void count_time(struct job *j)
{
    j->used_ms += launch_age_ms(&j->process);
    j->process.start = 0; /* counted once */
}

void workers_gone(struct worker *w, const char *how)
{
    struct daemon *d = w->daemon;
    struct job *j = w->job;
    j->worker = NULL;
    if (w->phase == WORKER_STARTING || w->phase == WORKER_RUNNING)
        count_time(j);
    give_devices_back(d, j);
    worker_msgs_hang_up(w);
    if (w->phase != WORKER_ENDED && !workers_stopped(w, NULL, NULL))
        workers_failed(d, j, w->killed_for != NULL ? w->killed_for : how, NULL, NULL);
    workers_schedule(d);
    daemon_maybe_finished(d);
}

void workers_took_outcome(struct worker *w)
{
    w->phase = WORKER_ENDED;
    w->kill_at_ms = daemon_now_ms(w->daemon) + EXIT_WITHIN_MS;
    count_time(w->job);
}

/* ---- starting ---- */

static void draw_secret(char ret[JOB_SECRET_CHARS + 1])
{
    uint8_t bytes[JOB_SECRET_CHARS / 2];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        abort(); /* not on a system that has booted */
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(ret + 2 * i, 3, "%02x", bytes[i]);
}

static void launch(struct daemon *d, struct job *j)
{
    struct err err = {0};
    j->attempt++;
    j->not_before_ms = 0;
    draw_secret(j->secret);
    take_devices(d, j);
    if (launch_start(d, j, &err) == 0) {
        log_info("job %" PRIu64 ": worker %ld started, attempt %u", j->id, (long)j->worker->pid, j->attempt);
        return;
    }
    char text[sizeof err];
    log_error("job %" PRIu64 ": %s", j->id, err_text(&err, text, sizeof text));
    if (j->worker == NULL) { /* not even tried; otherwise workers_gone comes */
        give_devices_back(d, j);
        workers_failed(d, j, "could not be started", NULL, NULL);
    }
}

static void on_tick(uv_timer_t *t);

static void keep_ticking(struct daemon *d)
{
    uv_timer_t *t = &d->workers->tick;
    if (uv_is_active((uv_handle_t *)t) || uv_is_closing((uv_handle_t *)t))
        return;
    d->workers->tick_ms = daemon_now_ms(d);
    uv_timer_start(t, on_tick, TICK_MS, TICK_MS);
}

static bool something_to_come(const struct daemon *d)
{
    bool rests = devices_rest(d);
    if (d->stopping)
        return true;
    for (size_t i = 0; i < d->jobs->all.n; i++) {
        const struct job *j = d->jobs->all.at[i];
        if (j->worker != NULL || (j->stuck != NULL && devices_change(d)) ||
            (j->state == JOB_QUEUED && (j->not_before_ms > 0 || rests)))
            return true;
    }
    return false;
}

static void start_jobs(struct daemon *d)
{
    const struct queue_machine m = devices_machine(d);
    struct job *j;
    struct job_lease lease;
    while (!d->stopping &&
           (j = queue_next(d->jobs->all.at, d->jobs->all.n, &m, daemon_now_ms(d), &lease)) != NULL) {
        j->lease = lease;
        launch(d, j);
    }
    devices_find_stuck(d, &m);
    if (something_to_come(d))
        keep_ticking(d);
}

static void on_looked(struct daemon *d)
{
    devices_looked(d);
    start_jobs(d);
}

void workers_schedule(struct daemon *d)
{
    const struct queue_machine m = devices_machine(d);
    struct job_lease lease;
    if (d->workers == NULL)
        return; /* not yet open */
    const struct job *next = queue_next(d->jobs->all.at, d->jobs->all.n, &m, daemon_now_ms(d), &lease);
    if (!devices_look_first(d, next, on_looked))
        start_jobs(d);
}

/* ---- stopping ---- */

static void ask_to_stop(struct worker *w, const char *reason, uint64_t within_ms)
{
    uint64_t at = daemon_now_ms(w->daemon) + within_ms;
    if (w->kill_at_ms == 0 || at < w->kill_at_ms)
        w->kill_at_ms = at;
    if (w->stop_sent)
        return;
    w->stop_sent = true;
    if (w->phase == WORKER_SPAWNED)
        launch_signal(w, SIGKILL); /* it has nothing to lose */
    else if (w->peer != NULL)
        worker_msgs_stop(w, reason);
    else
        launch_signal(w, SIGTERM);
}

void workers_cancel(struct daemon *d, struct job *j, bool now)
{
    (void)d;
    if (now) {
        j->worker->killed_for = "was cancelled";
        launch_signal(j->worker, SIGKILL);
    } else {
        ask_to_stop(j->worker, "cancel", STOP_WITHIN_MS);
    }
}

void workers_stop_all(struct daemon *d)
{
    for (size_t i = 0; i < d->jobs->all.n; i++) {
        struct job *j = d->jobs->all.at[i];
        if (j->worker == NULL || j->worker->phase == WORKER_ENDED)
            continue;
        if (j->state == JOB_RUNNING) {
            job_set_state(j, JOB_STOPPING, "the daemon stops");
            jobs_save(d->jobs, j, "stopping", "\"by\":\"shutdown\"", NULL, NULL);
        }
        ask_to_stop(j->worker, "shutdown", d->config.stop_timeout_ms);
    }
    keep_ticking(d);
}

/* ---- time ---- */

bool workers_over_limit(const struct job *j)
{
    return j->ask.time_limit_s > 0 && j->used_ms + launch_age_ms(&j->process) > 1000 * j->ask.time_limit_s;
}

static void kill_hung(struct worker *w, const char *why, uint64_t now)
{
    log_warning("job %" PRIu64 ": worker %ld %s", w->job->id, (long)w->pid, why);
    w->heard_ms = w->moved_ms = now;
    w->killed_for = why;
    launch_signal(w, SIGKILL);
}

static void check_limits(struct daemon *d, struct worker *w, uint64_t now)
{
    struct job *j = w->job;
    if (w->kill_at_ms > 0 && now >= w->kill_at_ms) {
        log_warning("job %" PRIu64 ": worker %ld did not end in time, killing it", j->id, (long)w->pid);
        w->kill_at_ms = now + EXIT_WITHIN_MS;
        w->killed_for = "did not stop in time";
        launch_signal(w, SIGKILL);
    } else if (now - w->heard_ms > d->config.hang_timeout_ms) {
        kill_hung(w, "hung (it said nothing for too long) and was killed", now);
    } else if (w->phase == WORKER_RUNNING && now - w->moved_ms > d->config.step_timeout_ms) {
        kill_hung(w, "hung (it made no step for too long) and was killed", now);
    } else if (workers_over_limit(j) && !w->stop_sent && w->phase == WORKER_RUNNING) {
        job_set_state(j, JOB_STOPPING, "its time limit is over");
        jobs_save(d->jobs, j, "stopping", "\"by\":\"limit\"", NULL, NULL);
        ask_to_stop(w, "limit", STOP_WITHIN_MS);
    }
}

/* It was this daemon that slept (stopped by a signal, starved of time): what the workers said is still to be read. */
static void forgive_silence(struct daemon *d, uint64_t now)
{
    for (size_t i = 0; i < d->jobs->all.n; i++)
        if (d->jobs->all.at[i]->worker != NULL)
            d->jobs->all.at[i]->worker->heard_ms = d->jobs->all.at[i]->worker->moved_ms = now;
}

static void on_tick(uv_timer_t *t)
{
    struct daemon *d = ((struct workers *)t->data)->daemon;
    uint64_t now = daemon_now_ms(d), before = d->workers->tick_ms;
    d->workers->tick_ms = now;
    if (now - before > MOST_LATE_MS)
        forgive_silence(d, now);
    for (size_t i = 0; i < d->jobs->all.n; i++)
        if (d->jobs->all.at[i]->worker != NULL)
            check_limits(d, d->jobs->all.at[i]->worker, now);
    workers_schedule(d);
    daemon_maybe_finished(d);
    if (!something_to_come(d))
        uv_timer_stop(t);
}

/* ---- start and end ---- */

/* Workers of the daemon before this one. One that died meanwhile (a reboot, most likely) is no failure of the job. */
static void adopt(struct daemon *d)
{
    for (size_t i = 0; i < d->jobs->all.n; i++) {
        struct job *j = d->jobs->all.at[i];
        if (j->state == JOB_QUEUED && j->cancel) /* cancelled while its worker was being started */
            workers_end_job(d, j, JOB_CANCELLED, EXIT_CANCELLED, NULL, NULL, NULL);
        if (j->state != JOB_RUNNING && j->state != JOB_STOPPING)
            continue;
        if (launch_adopt(d, j)) {
            log_info("job %" PRIu64 ": worker %ld is alive, adopted", j->id, (long)j->process.pid);
            take_devices(d, j);
            for (uint32_t k = 0; k < j->lease.n_devices; k++)
                offer_count_own(&d->offer, j->lease.devices[k]);
            if (j->state == JOB_STOPPING)
                j->worker->kill_at_ms = daemon_now_ms(d) + STOP_WITHIN_MS;
        } else if (j->cancel) {
            workers_end_job(d, j, JOB_CANCELLED, EXIT_CANCELLED, NULL, NULL, NULL);
        } else {
            workers_requeue(d, j, "its worker was gone when the daemon started", NULL, NULL);
        }
    }
}

static void on_connection(uv_stream_t *listening, int status)
{
    if (status == 0)
        worker_msgs_accept(((struct workers *)listening->data)->daemon, listening);
}

int workers_open(struct daemon *d, struct workers **ret, struct err *err)
{
    struct workers *w = xcalloc(1, sizeof *w);
    w->daemon = d;
    w->pipe.data = w->tick.data = w;
    uv_timer_init(d->loop, &w->tick);
    *ret = w;
    int r = peer_listen(d->loop, d->config.worker_socket, &w->pipe, on_connection, err);
    if (r < 0)
        return r;
    d->looked_ms = daemon_now_ms(d); /* by the probe at the start */
    adopt(d);
    workers_schedule(d);
    return 0;
}

void workers_close(struct workers *w)
{
    if (w == NULL || uv_is_closing((uv_handle_t *)&w->tick))
        return;
    uv_close((uv_handle_t *)&w->tick, NULL);
    if (w->pipe.loop != NULL)
        uv_close((uv_handle_t *)&w->pipe, NULL);
}
