/* tutti run: trains one job in the foreground. The command starts a private daemon for the job, which ends
 * together with the command. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/get.h"
#include "base/print.h"
#include "client/follow.h"
#include "client/job_file.h"
#include "client/submit.h"
#include "client/term.h"

#define START_NS 15000000000ull
#define POLL_NS  20000000ull

static const struct opt opts[] = {
    JOB_FILE_OPTS,
    {0},
};

/* Waits until the private daemon listens on its socket, and connects to it. */
static int connect_private(const struct client *c, struct private_daemon *d, struct tutti **ret,
                           struct err *err)
{
    uint64_t until = clock_now_ns() + START_NS;
    int r;
    do {
        if (!private_alive(d, err))
            return err->code;
        r = tutti_connect(c->socket, ret, err);
        if (r == 0)
            return 0;
        clock_sleep_ns(POLL_NS);
    } while (r == -ECONNREFUSED && clock_now_ns() < until && term_signals() == 0);
    return r;
}

/* Tells the user that a signal such as Ctrl-C stopped the job, and how to continue the job. Returns the exit
 * code for the signal. */
static int say_stopped(const struct client *c, const struct json *job, const char *path)
{
    bool from_file = strcmp(path, "-") != 0;
    uint64_t step = get_count_or(job, "step", 0);
    if (!c->quiet && !c->json) {
        struct strbuf again = {0};
        strbuf_add(&again, from_file ? "`tutti run " : "the same command");
        if (from_file)
            strbuf_add_text(&again, path);
        strbuf_add(&again, from_file ? "`" : "");
        if (term_signals() > 1)
            print_error("stopped at once; %s continues from the last checkpoint\n", again.at);
        else
            print_error("stopped at step %" PRIu64 "; %s continues from there\n", step, again.at);
        strbuf_finish(&again);
    }
    return 128 + term_last_signal();
}

static int finish(const struct client *c, struct tutti *t, const struct json *job, const char *path)
{
    bool stopped = strcmp(get_text(job, "state"), "cancelled") == 0 && term_signals() > 0;
    if (stopped && !c->json)
        return say_stopped(c, job, path);
    int exit = follow_finish(c, t, job);
    return stopped ? 128 + term_last_signal() : exit;
}

static int train(const struct client *c, struct private_daemon *d, const char *spec, const char *needs,
                 const char *path)
{
    struct err err = {0};
    struct tutti *t = NULL;
    struct wire_msg job = {0};
    struct follow_options o = {.has_since = true, .daemon = d};
    int exit = CLIENT_DONE, r = connect_private(c, d, &t, &err);
    if (r == 0)
        r = submit_job(c, &t, spec, needs, NULL, &job, &o.since, &err);
    if (r < 0) {
        exit = term_signals() > 0 ? 128 + term_last_signal() : client_fail(c, &err);
    } else {
        o.id = get_count_or(job.result, "id", 0);
        wire_msg_finish(&job);
        exit = follow(c, &t, &o, &job);
        if (exit == CLIENT_DONE)
            exit = finish(c, t, job.result, path);
    }
    wire_msg_finish(&job);
    tutti_close(t);
    return exit;
}

static int run_run(struct client *c, const struct args *a)
{
    struct err err = {0};
    struct private_daemon daemon;
    struct client own = *c;
    char *spec = NULL, *needs = NULL;
    if (job_file_read(a->rest[0], a, &spec, &err) < 0)
        return client_fail_as(c, CLIENT_USAGE, &err);
    int exit = job_file_check(c, spec, a, NULL, &needs);
    if (exit == CLIENT_DONE) {
        term_catch_signals();
        if (private_start(opts_get(a, "backend"), opts_get(a, "machine"), &daemon, &err) < 0) {
            exit = client_fail_as(c, CLIENT_UNREACHABLE, &err);
        } else {
            own.socket = daemon.socket;
            exit = train(&own, &daemon, spec, needs, a->rest[0]);
            private_end(&daemon);
        }
    }
    free(spec);
    free(needs);
    return exit;
}

const struct client_command cmd_run = {
    .name = "run",
    .args = "JOB.json [options]",
    .summary = "train a job in the foreground; needs no running daemon",
    .details = "Ctrl-C stops the job after a checkpoint, and the same command continues from there. A second "
               "Ctrl-C stops it\n"
               "at once. On a terminal the progress is drawn live; in a pipe it is printed as lines. The "
               "exit code is the job's.\n",
    .opts = opts,
    .least = 1,
    .most = 1,
    .run = run_run,
};
