/* tutti check: checks that a job is valid and fits the machine. The command needs no daemon. */
#include "client/worker_opts.h"

static const struct opt opts[] = {
    WORKER_OPTS,
    {"precision", 0, "NAME", "check with fp32, bf16 or fp16 in place of the job's precision"},
    {0},
};

static int run_check(struct client *c, const struct args *a)
{
    struct spawn_args more = {0};
    spawn_add_option(&more, "--precision", opts_get(a, "precision"));
    int exit = worker_exec(c, "--check", a->rest[0], a, &more);
    spawn_finish(&more);
    return exit;
}

const struct client_command cmd_check = {
    .name = "check",
    .args = "JOB.json [options]",
    .summary = "check that a job is valid, that its files exist, and that it fits",
    .opts = opts,
    .least = 1,
    .most = 1,
    .run = run_check,
};
