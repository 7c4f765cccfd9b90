/* tutti show: prints everything that is known about a job, or only the job's spec. The command can also copy
 * the job's trace to a file. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/get.h"
#include "base/print.h"
#include "base/utf8.h"
#include "client/client.h"
#include "client/show.h"
#include "client/term.h"

static const struct opt opts[] = {
    {"spec", 0, NULL, "print only the spec, as it was submitted"},
    {"trace", 0, "FILE", "copy the trace of plan and run to FILE (\"-\": standard output)"},
    {0},
};

/* ---- the trace ---- */

/* Copies all bytes from the descriptor `from` to the descriptor `to`. If `to` is a terminal, unsafe
 * characters are replaced. Otherwise the bytes are copied exactly. Error messages call the target `name`. */
static int copy_bytes(int from, int to, const char *name, struct err *err)
{
    char chunk[65536];
    /* The number of bytes at the start of `chunk` that are left from the last read. If a read ends in the
     * middle of a UTF-8 character, the bytes of this character wait for the next read. */
    size_t have = 0;
    for (;;) {
        ssize_t n = read(from, chunk + have, sizeof chunk - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(err, -EIO, "the trace cannot be read: %s", strerror(errno));
        size_t all = have + (size_t)n, whole = n > 0 ? utf8_whole_bytes(chunk, all) : all;
        int r = isatty(to) ? print_text(to, chunk, whole) : print_bytes(to, chunk, whole);
        if (r < 0)
            return err_set_at(err, -EIO, name, "cannot be written: %s", strerror(-r));
        if (n == 0)
            return 0;
        have = all - whole;
        memmove(chunk, chunk + whole, have);
    }
}

static int copy_trace(const struct json *job, const char *name, struct err *err)
{
    const char *output = get_text(job, "output");
    bool standard = strcmp(name, "-") == 0;
    struct strbuf path = {0};
    strbuf_addf(&path, "%s/trace.json", output);
    int from = output[0] != '\0' ? open(path.at, O_RDONLY | O_CLOEXEC) : -1, to, r;
    if (from < 0) {
        r = err_set_at(err, -ENODATA, path.at,
                       "there is no trace yet; the worker writes it when the job has run");
    } else {
        to = standard ? STDOUT_FILENO : open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        r = to < 0 ? err_set_at(err, -EIO, name, "cannot be written: %s", strerror(errno))
                   : copy_bytes(from, to, name, err);
        if (to >= 0 && !standard && close(to) < 0 && r == 0)
            r = err_set_at(err, -EIO, name, "cannot be written: %s", strerror(errno));
        close(from);
    }
    strbuf_finish(&path);
    return r;
}

/* ---- the page ---- */

static int print_json(const struct json *node)
{
    struct strbuf b = {0};
    char *text = node != NULL ? json_print(node) : NULL;
    strbuf_addf(&b, "%s\n", text != NULL ? text : "null");
    free(text);
    return client_print_end(&b);
}

static int print_page(const struct client *c, const struct args *a, const struct json *job)
{
    struct err err = {0};
    struct strbuf b = {0};
    if (opts_has(a, "trace"))
        return copy_trace(job, opts_get(a, "trace"), &err) < 0 ? client_fail_as(c, CLIENT_FAILED, &err)
                                                               : CLIENT_DONE;
    if (opts_has(a, "spec"))
        return print_json(get_node(job, "spec"));
    if (c->json)
        return print_json(job);
    struct style s = term_style(STDOUT_FILENO);
    show_job(&b, &s, job, clock_wall_ns() / 1000000);
    return client_print_end(&b);
}

static int run_show(struct client *c, const struct args *a)
{
    struct err err = {0};
    struct wire_msg job = {0};
    uint64_t id;
    if (client_job_id(a->rest[0], &id, &err) < 0)
        return client_fail(c, &err);
    int exit = client_ask(c, "show", client_id_params(id), &job);
    if (exit == CLIENT_DONE)
        exit = print_page(c, a, job.result);
    wire_msg_finish(&job);
    return exit;
}

const struct client_command cmd_show = {
    .name = "show",
    .args = "ID [options]",
    .summary = "show everything that is known about a job",
    .opts = opts,
    .least = 1,
    .most = 1,
    .run = run_show,
};
