/* Decides which jobs start, and when workers are stopped or killed. worker_msgs.c handles the messages of
 * workers, and launch.c their processes.
 *
 * A timer ticks while there are workers, pending restarts, or a pause of all launches. It kills workers that
 * hang or do not stop in time, enforces time limits, and starts jobs whose restart delay is over.
 *
 * A failed start counts against a job only if the job can have caused the failure. A worker learns its job
 * from the answer to its hello, and until then all workers behave alike. So if a worker cannot be spawned, or
 * ends before its hello, the cause is the daemon's environment and not the job. Launches then pause
 * (launch_pause.h), and the job waits with all others.
 */
#include "daemon/workers.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/wire.h"
#include "daemon/attempt.h"
#include "daemon/devices.h"
#include "daemon/events.h"
#include "daemon/launch.h"
#include "daemon/notify.h"
#include "daemon/sockets.h"
#include "daemon/state.h"
#include "daemon/worker_msgs.h"

#define TICK_MS 200
/* If the time between two ticks of the timer is longer than this many milliseconds, the daemon itself was
 * stopped or got no CPU time. */
#define MOST_LATE_MS 1000
/* The time in milliseconds that a worker has to exit after the daemon has answered its outcome. After that
 * time, the worker is killed. */
#define EXIT_WITHIN_MS 10000
/* The time in milliseconds that a worker has to stop after a cancel or after the end of the job's time limit.
 * After that time, the worker is killed. */
#define STOP_WITHIN_MS 60000

struct workers {
    struct daemon *daemon;
    uv_timer_t tick;
    /* The time of the last tick on the loop's clock, or the time when the timer was started if there was no
     * tick yet. */
    uint64_t tick_ms;
};

static uint64_t wall_ms(void)
{
    return clock_wall_ns() / 1000000;
}

static size_t workers_count(const struct daemon *d)
{
    size_t n = 0;
    for (size_t i = 0; i < d->jobs->live.n; i++)
        n += d->jobs->live.at[i]->worker != NULL;
    return n;
}

void workers_maybe_finished(struct daemon *d)
{
    if (d->stopping && state_idle(d->state) && (d->keep_workers || workers_count(d) == 0))
        uv_stop(d->loop);
}

/* ---- leases ---- */

static void occupy_devices(struct daemon *d, const struct job *j)
{
    for (uint32_t i = 0; d->config.n_devices > 0 && i < j->lease.n_devices; i++)
        if (j->lease.devices[i] < d->config.n_devices)
            d->device_job[j->lease.devices[i]] = j->id;
}

static void free_devices(struct daemon *d, const struct job *j)
{
    for (uint32_t i = 0; i < DEVICE_MAX; i++)
        if (d->device_job[i] == j->id)
            d->device_job[i] = 0;
}

static void took_outcome(struct worker *w)
{
    w->phase = WORKER_ENDED;
    w->kill_at_ms = daemon_now_ms(w->daemon) + EXIT_WITHIN_MS;
    attempt_count_time(w->job);
}

/* ---- starting ---- */

/* Writes a secret of 128 random bits in hexadecimal. A secret of this length cannot be guessed, so it is safe
 * to store its plain SHA-256 hash. */
static void draw_secret(char ret[LAUNCH_SECRET_CHARS + 1])
{
    uint8_t bytes[LAUNCH_SECRET_CHARS / 2];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        /* getrandom cannot fail once the system has booted, so this line is never reached. */
        abort();
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(ret + 2 * i, 3, "%02x", bytes[i]);
}

static void tell_pause(struct daemon *d)
{
    struct strbuf b = {0};
    strbuf_add(&b, "\"why\":");
    strbuf_add_json(&b, d->pause.reason);
    log_error("%s; queued jobs wait, and this daemon tries again by itself", d->pause.reason);
    notify_status(d->pause.reason);
    events_add(d->events, 0, "launch_paused", b.at);
    strbuf_finish(&b);
}

/* Makes the job fail because no worker can be started. The cause is not the job, so an ordinary daemon keeps
 * the job in the queue. Only the private daemon of `tutti run` calls this function, so that its user sees the
 * error at once and need not wait for an administrator. */
static void give_up_starting(struct daemon *d, struct job *j)
{
    struct strbuf b = {0};
    struct err err = {0};
    err_set(&err, -EAGAIN, "%s; tried %u times", d->pause.reason, d->pause.failures);
    wire_add_err_object(&b, &err);
    attempt_end_job(d, j, JOB_FAILED, 1, b.at, NULL, NULL);
    strbuf_finish(&b);
}

/* Pauses all launches of workers, because no worker can be started. `what` is the reason. The job `j` is not
 * to blame and stays in the queue. `j` is NULL if the probe of the devices could not be started. */
static void cannot_start(struct daemon *d, struct job *j, const char *what)
{
    struct strbuf reason = {0};
    strbuf_addf(&reason, "cannot start workers: %s", what);
    if (j != NULL) {
        j->attempt--;
        j->lease = (struct job_lease){0};
    }
    if (launch_pause_failed(&d->pause, j != NULL ? j->id : 0, reason.at, daemon_now_ms(d), wall_ms(),
                            d->config.restart_delay_ms))
        tell_pause(d);
    strbuf_finish(&reason);
    if (j != NULL && d->config.private_fd >= 0 && d->pause.failures > ATTEMPT_MOST_FAILURES)
        give_up_starting(d, j);
}

static void took_job(struct worker *w)
{
    struct daemon *d = w->daemon;
    if (!launch_pause_worked(&d->pause, w->job->id))
        return;
    log_info("job %" PRIu64 ": worker %ld started, attempt %u; workers can be started again", w->job->id,
             (long)w->pid, w->job->attempt);
    notify_status("");
    events_add(d->events, 0, "launch_resumed", NULL);
    workers_schedule(d);
}

/* Handles a worker that ended before it sent its hello. Such a worker never received its job. */
static void end_unstarted(struct worker *w, const char *how)
{
    struct strbuf b = {0};
    if (attempt_stopped(w->daemon, w->job, NULL, NULL)) {
        launch_pause_dropped(&w->daemon->pause, w->job->id);
        return;
    }
    strbuf_addf(&b, "the worker of job %" PRIu64 " %s, before it took its job; see `tutti logs %" PRIu64 "`",
                w->job->id, how, w->job->id);
    cannot_start(w->daemon, w->job, b.at);
    strbuf_finish(&b);
}

static void gone(struct worker *w, const char *how)
{
    struct daemon *d = w->daemon;
    struct job *j = w->job;
    const char *why = w->killed_for != NULL ? w->killed_for : how;
    j->worker = NULL;
    if (w->phase == WORKER_STARTING || w->phase == WORKER_RUNNING)
        attempt_count_time(j);
    free_devices(d, j);
    worker_msgs_hang_up(w);
    if (w->phase == WORKER_SPAWNED)
        end_unstarted(w, why);
    else if (w->phase != WORKER_ENDED && !attempt_stopped(w->daemon, w->job, NULL, NULL))
        attempt_failed(d, j, why, NULL, NULL);
    workers_schedule(d);
    jobs_let_go(d->jobs, j);
    workers_maybe_finished(d);
}

static const struct worker_ops worker_ops = {took_job, took_outcome, gone};

/* Returns true if the log file could not be opened for a reason that concerns only this job: a directory, a
 * link or a special file has the name of the log. */
static bool is_own_failure(int code)
{
    return code == -EISDIR || code == -ELOOP || code == -ENXIO;
}

static void launch(struct daemon *d, struct job *j)
{
    struct err err = {0};
    char text[sizeof err], secret[LAUNCH_SECRET_CHARS + 1];
    j->attempt++;
    j->not_before_ms = 0;
    draw_secret(secret);
    sha256_hex(secret, LAUNCH_SECRET_CHARS, j->secret_hash);
    launch_pause_started(&d->pause, j->id);
    int log = launch_open_log(d, j, &err);
    if (is_own_failure(log)) {
        launch_pause_dropped(&d->pause, j->id);
        attempt_failed(d, j, err_text(&err, text, sizeof text), NULL, NULL);
        return;
    }
    int r = log < 0 ? log : launch_start(d, j, &worker_ops, secret, log, &err);
    explicit_bzero(secret, sizeof secret);
    if (log >= 0)
        close(log);
    if (r < 0) {
        cannot_start(d, j, err_text(&err, text, sizeof text));
        return;
    }
    occupy_devices(d, j);
    /* While launches are paused, do not log the start here. took_job logs the start later, when the worker
     * has taken its job. */
    if (!launch_paused(&d->pause))
        log_info("job %" PRIu64 ": worker %ld started, attempt %u", j->id, (long)j->worker->pid, j->attempt);
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
    for (size_t i = 0; i < d->jobs->live.n; i++) {
        const struct job *j = d->jobs->live.at[i];
        if (j->worker != NULL || (j->stuck != NULL && devices_change(d)) ||
            (j->state == JOB_QUEUED && (j->not_before_ms > 0 || rests || launch_paused(&d->pause))))
            return true;
    }
    return false;
}

/* Returns the job that should start now and sets *ret to the job's lease. Returns NULL if no job may
 * start. */
static struct job *next_job(struct daemon *d, const struct queue_machine *m, struct job_lease *ret)
{
    if (d->stopping || !launch_pause_allows(&d->pause, daemon_now_ms(d)))
        return NULL;
    return queue_next(d->jobs->live.at, d->jobs->live.n, m, daemon_now_ms(d), ret);
}

/* Starts the job `next` with the lease `lease`, and then all other jobs that can start. `next` may be
 * NULL. */
static void start_jobs(struct daemon *d, const struct queue_machine *m, struct job *next,
                       struct job_lease lease)
{
    for (; next != NULL; next = next_job(d, m, &lease)) {
        next->lease = lease;
        launch(d, next);
    }
    devices_find_stuck(d, m);
    if (something_to_come(d))
        keep_ticking(d);
}

static void on_reprobed(struct daemon *d)
{
    devices_reprobed(d);
    const struct queue_machine m = devices_machine(d);
    struct job_lease lease = {0};
    struct job *next = next_job(d, &m, &lease);
    start_jobs(d, &m, next, lease);
}

void workers_schedule(struct daemon *d)
{
    const struct queue_machine m = devices_machine(d);
    struct job_lease lease = {0};
    struct err err = {0};
    char text[sizeof err];
    int r = 0;
    if (d->workers == NULL)
        return; /* workers_open has not finished */
    struct job *next = next_job(d, &m, &lease);
    if (launch_pause_allows(&d->pause, daemon_now_ms(d)))
        r = devices_reprobe_first(d, next, on_reprobed, &err);
    if (r < 0) {
        cannot_start(d, NULL, err_text(&err, text, sizeof text));
        /* Do not start this job. A pause of all launches has just begun, and it applies to this job too. */
        next = NULL;
    }
    if (r <= 0)
        start_jobs(d, &m, next, lease);
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
        /* The worker has not received its job yet, so it has nothing to save. Kill it at once. */
        launch_signal(w, SIGKILL);
    else if (w->connection != NULL)
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
    for (size_t i = 0; i < d->jobs->live.n; i++) {
        struct job *j = d->jobs->live.at[i];
        if (j->worker == NULL || j->worker->phase == WORKER_ENDED)
            continue;
        if (j->state == JOB_RUNNING) {
            job_set_state(j, JOB_STOPPING, "the daemon is stopping");
            jobs_save(d->jobs, j, "stopping", "\"by\":\"shutdown\"", NULL, NULL);
        }
        ask_to_stop(j->worker, "shutdown", d->config.stop_timeout_ms);
    }
    keep_ticking(d);
}

/* ---- time ---- */

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
        log_warning("job %" PRIu64 ": worker %ld did not end in time and is killed", j->id, (long)w->pid);
        w->kill_at_ms = now + EXIT_WITHIN_MS;
        w->killed_for = "did not stop in time";
        launch_signal(w, SIGKILL);
    } else if (now - w->heard_ms > d->config.hang_timeout_ms) {
        kill_hung(w, "hung (it sent no message for too long) and was killed", now);
    } else if (w->phase == WORKER_RUNNING && now - w->moved_ms > d->config.step_timeout_ms) {
        kill_hung(w, "hung (it made no step for too long) and was killed", now);
    } else if (attempt_over_limit(j) && !w->stop_sent && w->phase == WORKER_RUNNING) {
        job_set_state(j, JOB_STOPPING, "its time limit is over");
        jobs_save(d->jobs, j, "stopping", "\"by\":\"limit\"", NULL, NULL);
        ask_to_stop(w, "limit", STOP_WITHIN_MS);
    }
}

/* Restarts the timeouts of all workers. Called after a time in which the daemon itself did not run. The
 * workers may have sent messages during that time, and the daemon has not read them yet. */
static void forgive_silence(struct daemon *d, uint64_t now)
{
    for (size_t i = 0; i < d->jobs->live.n; i++)
        if (d->jobs->live.at[i]->worker != NULL)
            d->jobs->live.at[i]->worker->heard_ms = d->jobs->live.at[i]->worker->moved_ms = now;
}

static void on_tick(uv_timer_t *t)
{
    struct daemon *d = ((struct workers *)t->data)->daemon;
    uint64_t now = daemon_now_ms(d), before = d->workers->tick_ms;
    d->workers->tick_ms = now;
    if (now - before > MOST_LATE_MS)
        forgive_silence(d, now);
    for (size_t i = 0; i < d->jobs->live.n; i++)
        if (d->jobs->live.at[i]->worker != NULL)
            check_limits(d, d->jobs->live.at[i]->worker, now);
    workers_schedule(d);
    workers_maybe_finished(d);
    if (!something_to_come(d))
        uv_timer_stop(t);
}

/* ---- start and end ---- */

/* Takes over the workers that an earlier daemon left running. If a worker has died since, most likely in a
 * reboot, its death does not count as a failure of the job. */
static void adopt(struct daemon *d)
{
    for (size_t i = 0; i < d->jobs->live.n; i++) {
        struct job *j = d->jobs->live.at[i];
        /* A user cancelled the job, but the earlier daemon ended before a worker received the job. So end the
         * job now. */
        if (j->state == JOB_QUEUED && j->cancel)
            attempt_end_job(d, j, JOB_CANCELLED, EXIT_CANCELLED, NULL, NULL, NULL);
        if (j->state != JOB_RUNNING && j->state != JOB_STOPPING)
            continue;
        if (launch_adopt(d, j, &worker_ops)) {
            log_info("job %" PRIu64 ": worker %ld is alive and was adopted", j->id, (long)j->process.pid);
            occupy_devices(d, j);
            if (j->secret_in_clear)
                /* The worker's secret is on disk in plain text. Save the job, so that the secret is replaced
                 * by its hash. */
                jobs_save(d->jobs, j, NULL, NULL, NULL, NULL);
            for (uint32_t k = 0; k < j->lease.n_devices; k++)
                inventory_count_own(&d->inventory, j->lease.devices[k]);
            if (j->state == JOB_STOPPING)
                j->worker->kill_at_ms = daemon_now_ms(d) + STOP_WITHIN_MS;
        } else if (j->cancel) {
            attempt_end_job(d, j, JOB_CANCELLED, EXIT_CANCELLED, NULL, NULL, NULL);
        } else {
            attempt_requeue(d, j, "its worker was gone when the daemon started", NULL, NULL);
        }
    }
}

static void on_worker_connection(uv_stream_t *listening, int status)
{
    if (status == 0)
        worker_msgs_accept(((struct workers *)listening->data)->daemon, listening);
}

int workers_open(struct daemon *d, struct workers **ret, struct err *err)
{
    struct workers *w = xcalloc(1, sizeof *w);
    w->daemon = d;
    w->tick.data = w;
    uv_timer_init(d->loop, &w->tick);
    *ret = w;
    int r = sockets_listen(d->sockets, d->config.worker_socket, on_worker_connection, w, err);
    if (r < 0)
        return r;
    d->probed_ms = daemon_now_ms(d); /* the probe before the start counts */
    adopt(d);
    workers_schedule(d);
    return 0;
}
