/* tutti submit: checks a job with the rights of the user, and then adds the job to the daemon's queue. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/get.h"
#include "client/follow.h"
#include "client/job_file.h"
#include "client/show.h"
#include "client/submit.h"
#include "client/term.h"

static const struct opt opts[] = {
    JOB_FILE_OPTS,
    {"key", 0, "K", "submit at most once with this key (default: a random one)"},
    {"no-check", 0, NULL, "do not check files and memory first"},
    {"watch", 'w', NULL, "then watch the job until it ends; the exit code is the job's"},
    {0},
};

/* Returns an error if the daemon does not have the backend that the user asks for. Without this check, the
 * job would run on other devices. */
static int check_backend(const struct json *machine, const struct args *a, struct err *err)
{
    const char *want = opts_get(a, "backend"), *has = get_text(machine, "backend");
    if (want == NULL || strcmp(want, "auto") == 0 || strcmp(want, has) == 0)
        return 0;
    if (strcmp(want, "cpu") != 0 && strcmp(want, "cuda") != 0)
        return err_set_at(err, -EINVAL, "--backend", "found \"%s\"; must be auto, cpu or cuda", want);
    return err_set_at(err, -EINVAL, "--backend",
                      "found %s, but the daemon hands out %s devices (%s); remove it, or use `tutti run`",
                      want, has, get_text(machine, "backend_reason"));
}

/* Checks the spec against the daemon's machine. job_file_check explains *ret_needs. */
static int check(const struct client *c, struct tutti *t, const char *spec, const struct args *a,
                 char **ret_needs)
{
    struct err err = {0};
    struct wire_msg m = {0};
    int exit = CLIENT_DONE;
    if (tutti_call(t, "devices", NULL, &m, &err) < 0 || check_backend(m.result, a, &err) < 0)
        exit = client_fail(c, &err);
    else if (!opts_has(a, "no-check"))
        exit = job_file_check(c, spec, a, m.result, ret_needs);
    wire_msg_finish(&m);
    return exit;
}

static int print_job(const struct client *c, const struct json *job)
{
    struct style s = term_style(STDOUT_FILENO);
    struct strbuf b = {0};
    uint64_t id = get_count_or(job, "id", 0);
    if (c->json) {
        char *text = json_print(job);
        strbuf_addf(&b, "%s\n", text);
        free(text);
    } else if (c->quiet) {
        strbuf_addf(&b, "%" PRIu64 "\n", id);
    } else {
        strbuf_addf(&b, "job %" PRIu64 " (", id);
        show_text(&b, &s, get_text(job, "name"));
        strbuf_add(&b, ") ");
        show_text(&b, &s, get_text(job, "state"));
        strbuf_addf(&b, "%s\n", get_flag(job, "duplicate") ? "; it was already submitted with this key" : "");
        if (term_is_terminal(STDOUT_FILENO))
            strbuf_addf(
                &b, "  tutti watch %" PRIu64 "   to see it train\n  tutti cancel %" PRIu64 "  to stop it\n",
                id, id);
    }
    return client_print_end(&b);
}

static int submit(const struct client *c, struct tutti **t, const char *spec, const struct args *a)
{
    struct err err = {0};
    struct wire_msg job = {0};
    struct follow_options o = {.has_since = true};
    char *needs = NULL;
    bool blind = opts_has(a, "no-check") && !opts_has(a, "backend");
    int exit = blind ? CLIENT_DONE : check(c, *t, spec, a, &needs);
    if (exit != CLIENT_DONE)
        return exit;
    int r = submit_job(c, t, spec, needs, opts_get(a, "key"), &job, &o.since, &err);
    free(needs);
    if (r < 0)
        return client_fail(c, &err);
    o.id = get_count_or(job.result, "id", 0);
    bool watch = opts_has(a, "watch");
    /* With --watch and --json, the events that follow describe the job, so print nothing here. */
    if (!(watch && c->json))
        exit = print_job(c, job.result);
    wire_msg_finish(&job);
    if (!watch || exit != CLIENT_DONE)
        return exit;
    exit = follow(c, t, &o, &job);
    if (exit == CLIENT_DONE)
        exit = follow_finish(c, *t, job.result);
    wire_msg_finish(&job);
    return exit;
}

static int run_submit(struct client *c, const struct args *a)
{
    struct err err = {0};
    struct tutti *t = NULL;
    char *spec = NULL;
    if (job_file_read(a->rest[0], a, &spec, &err) < 0)
        return client_fail_as(c, CLIENT_USAGE, &err);
    int exit = client_connect(c, &t);
    if (exit == CLIENT_DONE)
        exit = submit(c, &t, spec, a);
    tutti_close(t);
    free(spec);
    return exit;
}

const struct client_command cmd_submit = {
    .name = "submit",
    .args = "JOB.json [options]",
    .summary = "check a job and put it into the daemon's queue",
    .details = "JOB.json may contain // comments; \"-\" is standard input. Relative paths in it start at "
               "the current directory.\n",
    .opts = opts,
    .least = 1,
    .most = 1,
    .run = run_submit,
};
