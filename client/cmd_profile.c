/* tutti profile: measures on this machine how long the layers of a job take. Later plans use the measured
 * times. The command needs no daemon. */
#include "client/worker_opts.h"

static const struct opt opts[] = {
    WORKER_OPTS,
    {"force", 'f', NULL, "measure again even where earlier measurements exist"},
    {"micro-batches", 0, "LIST", "micro-batch sizes, e.g. 1,2,4,8 (default: powers of two that fit)"},
    {"out", 0, "FILE", "write a profile, for tutti plan --profile"},
    {0},
};

static int run_profile(struct client *c, const struct args *a)
{
    struct spawn_args more = {0};
    spawn_add_option(&more, "--force", opts_get(a, "force"));
    spawn_add_option(&more, "--micro-batches", opts_get(a, "micro-batches"));
    spawn_add_option(&more, "--out", opts_get(a, "out"));
    spawn_add_option(&more, "--quiet", c->quiet ? "" : NULL);
    int exit = worker_exec(c, "--time", a->rest[0], a, &more);
    spawn_finish(&more);
    return exit;
}

const struct client_command cmd_profile = {
    .name = "profile",
    .args = "JOB.json [options]",
    .summary = "measure the layers of a job on this machine, for the plans of later runs",
    .opts = opts,
    .least = 1,
    .most = 1,
    .run = run_profile,
};
