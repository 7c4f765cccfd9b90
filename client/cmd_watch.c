/* tutti watch: shows a job live until it ends. */
#include "client/follow.h"

static const struct opt opts[] = {
    {"since", 0, "SEQ", "also show past events after this number"},
    {0},
};

static int run_watch(struct client *c, const struct args *a)
{
    struct err err = {0};
    struct tutti *t = NULL;
    struct wire_msg job = {0};
    struct follow_options o = {.has_since = opts_has(a, "since")};
    int r = client_job_id(a->rest[0], &o.id, &err);
    if (r == 0 && o.has_since)
        r = opts_number(opts_get(a, "since"), "--since", 0, JSON_MAX_INTEGER, &o.since, &err);
    if (r < 0)
        return client_fail(c, &err);
    int exit = client_connect(c, &t);
    if (exit == CLIENT_DONE)
        exit = follow(c, &t, &o, &job);
    if (exit == CLIENT_DONE)
        exit = follow_finish(c, t, job.result);
    wire_msg_finish(&job);
    tutti_close(t);
    return exit;
}

const struct client_command cmd_watch = {
    .name = "watch",
    .args = "ID [--since SEQ]",
    .summary = "show a job live until it ends; the exit code is the job's",
    .details = "Ctrl-C stops watching, and the job continues. With --json the events are printed as lines, "
               "and the outcome last.\n",
    .opts = opts,
    .least = 1,
    .most = 1,
    .run = run_watch,
};
