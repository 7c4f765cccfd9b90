/* tutti export: the weights of a job in one file. The worker writes it, as this user. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/client.h"
#include "base/get.h"
#include "client/spawn.h"

static const struct opt opts[] = {
    {"force", 'f', NULL, "write over a file that is there"},
    {"out", 'o', "FILE", "the file to write, e.g. model.safetensors (required)"},
    {"step", 0, "N|best", "of that checkpoint (default: the newest weights)"},
    {0},
};

static bool is_id(const char *text)
{
    return text[0] != '\0' && text[strspn(text, "0123456789")] == '\0';
}

/* The output directory of a job. malloc'ed. */
static int find_output(const struct client *c, const char *text, char **ret)
{
    struct err err = {0};
    struct wire_msg m = {0};
    uint64_t id;
    if (client_job_id(text, &id, &err) < 0)
        return client_fail(c, &err);
    int exit = client_ask(c, "show", client_id_params(id), &m);
    if (exit != CLIENT_DONE)
        return exit;
    const char *output = get_text(m.result, "output");
    if (output[0] == '\0') {
        err_set(&err, -ENODATA, "job %s has no output directory yet", text);
        exit = client_fail_as(c, CLIENT_FAILED, &err);
    } else {
        *ret = strdup(output);
    }
    wire_msg_finish(&m);
    return exit;
}

static int run(struct client *c, const struct args *a)
{
    struct err err = {0};
    struct spawn_args args = {0};
    char *dir = NULL, *worker = NULL;
    if (!opts_has(a, "out")) {
        err_set_at(&err, -EINVAL, "--out", "is needed: the file to write");
        return client_fail(c, &err);
    }
    int exit = is_id(a->rest[0]) ? find_output(c, a->rest[0], &dir) : CLIENT_DONE;
    if (exit == CLIENT_DONE) {
        spawn_add_option(&args, "--export", dir != NULL ? dir : a->rest[0]);
        spawn_add_option(&args, "--out", opts_get(a, "out"));
        spawn_add_option(&args, "--step", opts_get(a, "step"));
        spawn_add_option(&args, "--force", opts_get(a, "force"));
        spawn_add_option(&args, "--json", c->json ? "" : NULL);
        if (spawn_find(PROGRAM_WORKER, &worker, &err) == 0)
            spawn_exec(worker, &args, &err);
        exit = client_fail_as(c, CLIENT_FAILED, &err);
    }
    spawn_finish(&args);
    free(worker);
    free(dir);
    return exit;
}

const struct command cmd_export = {
    .name = "export",
    .args = "ID|DIR --out FILE [options]",
    .summary = "write the weights of a job to a file",
    .details = "A number is a job of the daemon; anything else is an output directory, and needs no daemon "
               "(./3 for one of\n"
               "digits).\n",
    .opts = opts,
    .least = 1,
    .most = 1,
    .run = run,
};
