/* Implements worker_opts.h. tutti-worker replaces this process, so it determines the messages and the exit
 * code of the command. */
#include "client/worker_opts.h"

#include <stdlib.h>
#include <string.h>

int worker_become(const struct client *c, struct spawn_args *args)
{
    struct err err = {0};
    char *worker = NULL;
    spawn_add_option(args, "--json", c->json ? "" : NULL);
    if (spawn_find(PROGRAM_WORKER, &worker, &err) == 0)
        spawn_exec(worker, args, &err);
    free(worker);
    spawn_finish(args);
    return client_fail_as(c, CLIENT_FAILED, &err);
}

int worker_exec(const struct client *c, const char *mode, const char *job, const struct args *a,
                struct spawn_args *more)
{
    struct spawn_args args = {0};
    spawn_add(&args, mode);
    spawn_add(&args, strcmp(job, "-") == 0 ? "/dev/stdin" : job);
    job_file_pass_flags(a, &args);
    spawn_add_option(&args, "--delay-seed", opts_get(a, "delay-seed"));
    spawn_add_option(&args, "--link", opts_get(a, "link"));
    spawn_add_option(&args, "--peer", opts_get(a, "peer"));
    spawn_add_option(&args, "--threads", opts_get(a, "threads"));
    for (size_t i = 0; more != NULL && i < more->words.n; i++)
        spawn_add(&args, more->words.at[i]);
    return worker_become(c, &args);
}
