/* tutti plan: the plan that a job would run by. Needs no daemon. */
#include <errno.h>

#include "client/worker_opts.h"

static const struct opt opts[] = {
    WORKER_OPTS,
    {"dump", 0, NULL, "every instruction"},
    {"out", 0, "FILE", "write the plan as JSON"},
    {"profile", 0, "FILE", "plan from a profile (not yet)"},
    {"trace", 0, "FILE", "write a Chrome trace of the simulated plan"},
    {0},
};

static int run(struct client *c, const struct args *a)
{
    struct err err = {0};
    struct spawn_args more = {0};
    if (opts_has(a, "profile")) {
        err_set_at(&err, -EOPNOTSUPP, "--profile",
                   "planning from a profile is not there yet; give a JOB.json");
        return client_fail(c, &err);
    }
    if (a->n_rest == 0) {
        err_set(&err, -EINVAL, "usage: tutti plan %s; see `tutti help plan`", cmd_plan.args);
        return client_fail(c, &err);
    }
    spawn_add_option(&more, "--dump", opts_get(a, "dump"));
    spawn_add_option(&more, "--out", opts_get(a, "out"));
    spawn_add_option(&more, "--trace", opts_get(a, "trace"));
    int exit = worker_exec(c, "--plan", a->rest[0], a, &more);
    spawn_finish(&more);
    return exit;
}

const struct command cmd_plan = {
    .name = "plan",
    .args = "JOB.json [options]",
    .summary = "print the plan: who computes what, bytes, memory, time",
    .opts = opts,
    .least = 0,
    .most = 1,
    .run = run,
};
