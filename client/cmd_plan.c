/* tutti plan: prints the plan for a job, or a plan made from a profile without a job. The command needs no
 * daemon. */
#include <errno.h>
#include <stdio.h>

#include "client/worker_opts.h"

static const struct opt opts[] = {
    WORKER_OPTS,
    {"batch", 0, "N", "without a job: samples per step"},
    {"dump", 0, NULL, "print every instruction"},
    {"micro-batch", 0, "N|auto", "without a job: samples per micro-batch"},
    {"no-what-if", 0, NULL, "do not compute what one more GB or device would gain"},
    {"objective", 0, "WHAT", "what the plan minimizes: balanced, time, bytes"},
    {"out", 0, "FILE", "write the plan as JSON"},
    {"precision", 0, "NAME", "plan with fp32, bf16 or fp16 in place of the job's precision"},
    {"profile", 0, "FILE", "take times from a profile (none: use computed times)"},
    {"replicas", 0, "N", "without a job: parts of a step that sum their own gradients"},
    {"svg", 0, "FILE", "draw the simulated timeline of one iteration"},
    {"trace", 0, "FILE", "write a Chrome trace of the simulated plan"},
    {"update", 0, "WHERE", "the same as --optimizer-on"},
    {"rules", 0, "NAME", "simulate a schedule by the rules of another system: harmony"},
    {"form", 0, "pp|dp", "with --rules: pipeline or data parallel"},
    {"micro-batch-bwd", 0, "N", "with --rules: samples of a backward micro-batch"},
    {"micro-batch-fwd", 0, "N", "with --rules: samples of a forward micro-batch"},
    {"packs-bwd", 0, "LIST", "with --rules: last layer of each backward pack, e.g. 4,9,14"},
    {"packs-fwd", 0, "LIST", "with --rules: last layer of each forward pack"},
    {"task-overhead", 0, "TIME", "with --rules: time added after every task (default: 40ms)"},
    {0},
};

/* Runs `tutti plan --rules`, which simulates a schedule that the options describe. */
static int run_rules(struct client *c, const struct args *a)
{
    /* The options svg and trace need a plan with instructions, which a schedule does not have. They are
     * passed on so that the worker refuses them with an error message. */
    static const char *const passed[] = {"batch",         "form",      "micro-batch-bwd", "micro-batch-fwd",
                                         "packs-bwd",     "packs-fwd", "profile",         "svg",
                                         "task-overhead", "trace"};
    struct err err = {0};
    struct spawn_args more = {0};
    if (a->n_rest > 0) {
        err_set(&err, -EINVAL, "--rules simulates a schedule from --profile FILE and takes no job; remove %s",
                a->rest[0]);
        return client_fail(c, &err);
    }
    for (size_t i = 0; i < sizeof passed / sizeof passed[0]; i++) {
        char option[32];
        snprintf(option, sizeof option, "--%s", passed[i]);
        spawn_add_option(&more, option, opts_get(a, passed[i]));
    }
    int exit = worker_exec(c, "--rules", opts_get(a, "rules"), a, &more);
    spawn_finish(&more);
    return exit;
}

static int run_plan(struct client *c, const struct args *a)
{
    struct err err = {0};
    struct spawn_args more = {0};
    if (opts_has(a, "rules"))
        return run_rules(c, a);
    bool from_profile = a->n_rest == 0 && opts_has(a, "profile");
    if (a->n_rest == 0 && !from_profile) {
        err_set(&err, -EINVAL, "usage: tutti plan %s; see `tutti help plan`", cmd_plan.args);
        return client_fail(c, &err);
    }
    spawn_add_option(&more, "--batch", opts_get(a, "batch"));
    spawn_add_option(&more, "--dump", opts_get(a, "dump"));
    spawn_add_option(&more, "--micro-batch", opts_get(a, "micro-batch"));
    spawn_add_option(&more, "--no-what-if", opts_get(a, "no-what-if"));
    spawn_add_option(&more, "--objective", opts_get(a, "objective"));
    spawn_add_option(&more, "--out", opts_get(a, "out"));
    spawn_add_option(&more, "--precision", opts_get(a, "precision"));
    spawn_add_option(&more, "--replicas", opts_get(a, "replicas"));
    spawn_add_option(&more, "--svg", opts_get(a, "svg"));
    spawn_add_option(&more, "--trace", opts_get(a, "trace"));
    spawn_add_option(&more, "--update", opts_get(a, "update"));
    if (!from_profile)
        spawn_add_option(&more, "--profile", opts_get(a, "profile"));
    int exit = worker_exec(c, from_profile ? "--plan-profile" : "--plan",
                           from_profile ? opts_get(a, "profile") : a->rest[0], a, &more);
    spawn_finish(&more);
    return exit;
}

const struct client_command cmd_plan = {
    .name = "plan",
    .args = "JOB.json | --profile FILE --device-memory SIZE --batch N [options]",
    .summary = "print the plan of a job: which device computes what, bytes, memory, time",
    .details = "--policy all compares the policies side by side.\n",
    .opts = opts,
    .least = 0,
    .most = 1,
    .run = run_plan,
};
