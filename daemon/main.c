/* tuttid: starts and ends the daemon. daemon.h has a map of its parts.
 *
 * The daemon first takes both locks, so that a second daemon on the same state or sockets ends without
 * touching anything. Then come the inventory, the state, its jobs and their workers. The socket for clients
 * comes last, so that a client that can connect finds a daemon that is ready.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dirs.h"
#include "base/log.h"
#include "base/print.h"
#include "daemon/events.h"
#include "daemon/jobs.h"
#include "daemon/launch.h"
#include "daemon/lock.h"
#include "daemon/notify.h"
#include "daemon/quota.h"
#include "daemon/reprobe.h"
#include "daemon/server.h"
#include "daemon/sockets.h"
#include "daemon/state.h"
#include "daemon/users.h"
#include "daemon/workers.h"

/* The daemon's objects are static, so that leak checkers still find a pointer to all memory at exit. */
static struct daemon the_daemon;
static uv_signal_t signals[4];
static uv_pipe_t private_pipe;
static uv_timer_t watchdog;

/* ---- systemd ---- */

static void on_watchdog(uv_timer_t *t)
{
    (void)t;
    notify("WATCHDOG=1");
}

static void start_watchdog(uv_loop_t *loop)
{
    const char *usec = getenv("WATCHDOG_USEC");
    uint64_t ms = usec != NULL ? strtoull(usec, NULL, 10) / 2000 : 0;
    uv_timer_init(loop, &watchdog);
    uv_unref((uv_handle_t *)&watchdog);
    if (ms > 0)
        uv_timer_start(&watchdog, on_watchdog, ms, ms);
}

/* ---- ending ---- */

/* Cancels all jobs of a private daemon, which serves a single `tutti run`. The private daemon ends with that
 * command, and no other daemon will continue its jobs. */
static void cancel_all(struct daemon *d)
{
    for (size_t i = 0; i < d->jobs->live.n; i++)
        if (!job_ended(d->jobs->live.at[i]))
            d->jobs->live.at[i]->cancel = true;
}

static void stop_daemon(struct daemon *d, const char *why)
{
    if (d->stopping)
        return;
    log_info("%s: stopping%s", why, d->keep_workers ? ", workers go on" : "; jobs write a checkpoint");
    notify("STOPPING=1");
    d->stopping = true;
    if (d->config.private_fd >= 0)
        cancel_all(d);
    if (!d->keep_workers)
        workers_stop_all(d);
    else
        /* Keep the timer in workers.c running. A later tick of the timer will find that nothing is left to
         * wait for, and will end the loop. */
        workers_schedule(d);
    workers_maybe_finished(d);
}

static void on_signal(uv_signal_t *handle, int sig)
{
    struct daemon *d = handle->data;
    if (d->stopping && sig != SIGUSR2) {
        log_warning("got a second signal, stopping at once");
        if (d->config.private_fd >= 0)
            for (size_t i = 0; i < d->jobs->live.n; i++)
                if (d->jobs->live.at[i]->worker != NULL)
                    launch_signal(d->jobs->live.at[i]->worker, SIGKILL);
        _exit(1);
    }
    d->keep_workers = sig == SIGUSR2 && d->config.private_fd < 0;
    stop_daemon(d, strsignal(sig));
}

static void on_private_alloc(uv_handle_t *h, size_t n, uv_buf_t *ret)
{
    static char byte[16];
    (void)h;
    (void)n;
    *ret = uv_buf_init(byte, sizeof byte);
}

static void on_private_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    (void)buf;
    if (n >= 0)
        return;
    uv_read_stop(s);
    stop_daemon(s->data, "the program that started this daemon has ended");
}

static void listen_for_the_end(struct daemon *d)
{
    static const int which[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR2};
    for (size_t i = 0; i < sizeof which / sizeof which[0]; i++) {
        uv_signal_init(d->loop, &signals[i]);
        signals[i].data = d;
        uv_signal_start(&signals[i], on_signal, which[i]);
    }
    if (d->config.private_fd < 0)
        return;
    uv_pipe_init(d->loop, &private_pipe, 0);
    private_pipe.data = d;
    if (uv_pipe_open(&private_pipe, d->config.private_fd) == 0)
        uv_read_start((uv_stream_t *)&private_pipe, on_private_alloc, on_private_read);
}

/* ---- starting ---- */

/* Takes the lock of the state directory and the lock of the sockets. The locks must be taken before anything
 * else, because another daemon may be using the same files. */
static int take_locks(struct daemon *d, struct err *err)
{
    static struct lock state = {.fd = -1};
    const struct config *c = &d->config;
    char path[PATH_MAX + 8];
    int r = dirs_make(c->state_dir, 0700, "the directory", err);
    snprintf(path, sizeof path, "%s/lock", c->state_dir);
    if (r == 0)
        r = lock_take(path, "state", &state, err);
    if (r == 0)
        r = sockets_create(d, &d->sockets, err);
    snprintf(path, sizeof path, "%s/logs", c->state_dir);
    if (r == 0)
        r = dirs_make(path, 0700, "the directory", err);
    return r;
}

static void die_of_state(void *ctx, const char *why)
{
    daemon_die(ctx, why);
}

static void do_nothing(uv_work_t *work)
{
    (void)work;
}

/* Makes libuv create the threads of its pool now. If a thread cannot be created, libuv aborts the process. An
 * abort must not happen later, when jobs are running. */
static void start_pool(uv_loop_t *loop)
{
    static uv_work_t work;
    uv_queue_work(loop, &work, do_nothing, NULL);
}

/* Removes the log file of an old job whose records are being removed. Runs on a pool thread, so it may use
 * only the configuration, which never changes. */
static void remove_log(void *ctx, uint64_t id)
{
    const struct daemon *d = ctx;
    char path[PATH_MAX + 64];
    launch_log_path(&d->config, id, path, sizeof path);
    unlink(path);
}

static size_t ended_jobs(void *ctx, uint64_t **ret_ids)
{
    const struct daemon *d = ctx;
    return jobs_ended(d->jobs, ret_ids);
}

static int start_daemon(struct daemon *d, struct err *err)
{
    struct state_config state = {.loop = d->loop,
                                 .dir = d->config.state_dir,
                                 .die = die_of_state,
                                 .ctx = d,
                                 .accept_older = d->config.accept_older,
                                 .keep = {.ms = d->config.keep_days * 86400000,
                                          .jobs = d->config.keep_jobs,
                                          .bytes = d->config.keep_bytes},
                                 .in_use = ended_jobs,
                                 .pruning = remove_log};
    int r = take_locks(d, err);
    if (r == 0)
        r = inventory_make(&d->config, &d->inventory, err);
    if (r == 0)
        r = state_open(&state, &d->state, err);
    if (r == 0)
        r = events_create(d, &d->events, err);
    if (r == 0) {
        d->quota = quota_create(&d->config.quota);
        d->users = users_create(d->loop, NULL);
        d->jobs = jobs_create(d);
        r = jobs_load(d->jobs, err);
    }
    if (r == 0)
        r = workers_open(d, &d->workers, err);
    if (r == 0)
        r = server_open(d, &d->server, err);
    return r;
}

int main(int argc, char **argv)
{
    struct daemon *d = &the_daemon;
    struct err err = {0};
    char text[sizeof err];
    log_init(LOG_INFO, getenv("JOURNAL_STREAM") != NULL);
    int r = config_parse(argc, argv, &d->config, &err);
    if (r != 0) {
        if (r < 0)
            print_error("tuttid: %s\n", err_text(&err, text, sizeof text));
        return r < 0 ? 2 : 0;
    }
    signal(SIGPIPE, SIG_IGN);
    umask(0077);
    d->loop = uv_default_loop();
    start_pool(d->loop);
    r = start_daemon(d, &err);
    if (r < 0) {
        log_error("%s", err_text(&err, text, sizeof text));
        return 1;
    }
    listen_for_the_end(d);
    start_watchdog(d->loop);
    log_info("tuttid %s serves %s, state in %s", TUTTI_VERSION, d->config.socket, d->config.state_dir);
    log_info("backend %s: %s", d->inventory.backend, d->inventory.reason);
    notify("READY=1");
    /* The thread pool may still have work that the last turn of the loop started. Run the loop again until
     * this work is done, because the state may be closed only when it is idle. */
    do
        uv_run(d->loop, UV_RUN_DEFAULT);
    while (!state_idle(d->state));
    reprobe_abandon(d);
    sockets_remove(d->sockets);
    state_close(d->state);
    log_info("stopped");
    return 0;
}
