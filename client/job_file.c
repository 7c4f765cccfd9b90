/* Implements job_file.h. The JSON trees of base/json.h cannot be changed. So the command's options are
 * applied while the spec is printed as text again. */
#include "client/job_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/get.h"

#define JOB_FILE_MAX (64u << 20)
#define MAX_DEVICES  4096

/* ---- reading ---- */

static int read_file(const char *path, struct strbuf *b, struct err *err)
{
    bool standard = strcmp(path, "-") == 0;
    int fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC), r = 0;
    char chunk[8192];
    ssize_t n = 0;
    if (fd < 0)
        return err_set_at(err, -EINVAL, path, "cannot be read: %s", strerror(errno));
    strbuf_add(b, "");
    while (r == 0 && (n = read(fd, chunk, sizeof chunk)) != 0) {
        if (n < 0 && errno != EINTR)
            r = err_set_at(err, -EINVAL, path, "cannot be read: %s", strerror(errno));
        else if (b->n > JOB_FILE_MAX)
            r = err_set_at(err, -EINVAL, path, "has more than 64 MiB; a job file must be smaller");
        else if (n > 0)
            strbuf_addn(b, chunk, (size_t)n);
    }
    if (!standard)
        close(fd);
    return r;
}

/* ---- editing ---- */

/* A change to one member of a JSON object. */
struct edit {
    const char *key;
    char *value; /* new value as JSON; NULL: unchanged */
};

/* Prints the object as JSON, with the edits applied. The caller frees the text. If `object` is NULL, starts
 * from an empty object. */
static char *print_edited(const struct json *object, const struct edit *edits, int n)
{
    struct strbuf b = {0};
    const char *between = "";
    strbuf_add(&b, "{");
    for (const struct json *m = object != NULL ? json_array_first(object) : NULL; m != NULL;
         m = json_array_next(m)) {
        bool replaced = false;
        for (int i = 0; i < n; i++)
            replaced = replaced || (edits[i].value != NULL && strcmp(edits[i].key, json_key(m)) == 0);
        if (replaced)
            continue;
        char *text = json_print(m);
        strbuf_add(&b, between);
        strbuf_add_json(&b, json_key(m));
        strbuf_addf(&b, ":%s", text);
        free(text);
        between = ",";
    }
    for (int i = 0; i < n; i++) {
        if (edits[i].value == NULL)
            continue;
        strbuf_addf(&b, "%s\"%s\":%s", between, edits[i].key, edits[i].value);
        between = ",";
    }
    strbuf_add(&b, "}");
    return b.at;
}

/* Returns `text` as a quoted JSON string, which the caller frees. Returns NULL if `text` is NULL. */
static char *quoted(const char *text)
{
    struct strbuf b = {0};
    if (text != NULL)
        strbuf_add_json(&b, text);
    return b.at;
}

/* Reads the option `name`, whose value is a size such as 64MiB, and sets *ret to the number of bytes as text.
 * The caller frees *ret. If the option was not given, *ret stays unchanged. */
static int size_flag(const struct args *a, const char *name, char **ret, struct err *err)
{
    const char *text = opts_get(a, name);
    struct strbuf b = {0};
    char option[32];
    uint64_t bytes;
    if (text == NULL)
        return 0;
    snprintf(option, sizeof option, "--%s", name);
    if (json_parse_bytes(text, option, &bytes, err) < 0)
        return -EINVAL;
    if (bytes == 0)
        return err_set_at(err, -EINVAL, option,
                          "must be more than 0; leave it out to use the value of the job file");
    strbuf_addf(&b, "%" PRIu64, bytes);
    *ret = b.at;
    return 0;
}

/* Applies the edits to a section of the spec and returns the section as JSON. Returns NULL if nothing
 * changes. Also returns NULL if the section is not an object, a mistake that the check of the spec reports
 * later. */
static char *edit_section(const struct json *spec, const char *section, struct edit *edits, int n)
{
    const struct json *node = json_get(spec, section);
    bool any = false;
    for (int i = 0; i < n; i++)
        any = any || edits[i].value != NULL;
    return any && (node == NULL || json_type(node) == JSON_OBJECT) ? print_edited(node, edits, n) : NULL;
}

/* Applies the command-line options to the spec, and stores the new spec in *ret as JSON. */
static int apply_flags(const struct json *spec, const struct args *a, char **ret, struct err *err)
{
    struct edit resources[] = {{"devices", NULL}, {"device_memory", NULL}, {"host_memory", NULL}};
    struct edit memory[] = {{"policy", quoted(opts_get(a, "policy"))},
                            {"optimizer_on", quoted(opts_get(a, "optimizer-on"))}};
    struct edit top[] = {{"resources", NULL}, {"memory", NULL}, {"output", quoted(opts_get(a, "output"))}};
    const char *devices = opts_get(a, "devices");
    uint64_t n;
    int r = devices != NULL ? opts_number(devices, "--devices", 1, MAX_DEVICES, &n, err) : 0;
    if (r == 0 && devices != NULL)
        resources[0].value = strdup(devices);
    if (r == 0)
        r = size_flag(a, "device-memory", &resources[1].value, err);
    if (r == 0)
        r = size_flag(a, "host-memory", &resources[2].value, err);
    if (r == 0) {
        top[0].value = edit_section(spec, "resources", resources, 3);
        top[1].value = edit_section(spec, "memory", memory, 2);
        *ret = print_edited(spec, top, 3);
    }
    for (int i = 0; i < 3; i++) {
        free(resources[i].value);
        free(top[i].value);
    }
    free(memory[0].value);
    free(memory[1].value);
    return r;
}

int job_file_read(const char *path, const struct args *a, char **ret, struct err *err)
{
    const char *name = strcmp(path, "-") == 0 ? "standard input" : path;
    struct strbuf b = {0};
    struct json *spec = NULL;
    int r = read_file(path, &b, err);
    if (r == 0)
        r = json_parse(b.at, b.n, name, true, &spec, err);
    if (r == 0 && json_type(spec) != JSON_OBJECT)
        r = err_set_at(err, -EINVAL, name, "a job file must contain one JSON object");
    if (r == 0)
        r = apply_flags(spec, a, ret, err);
    json_free(spec);
    strbuf_finish(&b);
    return r;
}

void job_file_pass_flags(const struct args *a, struct spawn_args *to)
{
    static const char *const names[] = {"backend", "devices",      "device-memory", "host-memory",
                                        "machine", "optimizer-on", "output",        "policy"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char option[32];
        snprintf(option, sizeof option, "--%s", names[i]);
        spawn_add_option(to, option, opts_get(a, names[i]));
    }
}

/* ---- checking ---- */

/* Returns what the job needs (devices, memory and time), as JSON that the caller frees. `text` is the JSON
 * that the worker printed. Returns NULL if this text does not say what the job needs. */
static char *needs_of(const char *text, size_t bytes)
{
    struct json *verdict = NULL;
    char *needs = NULL;
    if (json_parse(text, bytes, "the check", false, &verdict, NULL) == 0 &&
        get_object(verdict, "needs") != NULL)
        needs = json_print(get_object(verdict, "needs"));
    json_free(verdict);
    return needs;
}

/* Reports why the check of the job failed. `text` is the JSON that the worker printed. Returns the exit code
 * of the command. */
static int report_verdict(const struct client *c, const char *text, size_t bytes, int exit)
{
    struct json *verdict = NULL;
    struct err err = {0};
    if (json_parse(text, bytes, "the check", false, &verdict, &err) < 0) {
        err_set(&err, -EIO, "tutti-worker --check ended with exit code %d and printed no result", exit);
    } else {
        int code = wire_errno(get_text(verdict, "errno"));
        err_set_at(&err, code < 0 ? code : -EINVAL, get_text(verdict, "path"), "%s",
                   get_text(verdict, "message"));
    }
    json_free(verdict);
    return client_fail_as(c, exit, &err);
}

static void add_check_args(const struct args *a, const struct json *offer, struct spawn_args *to)
{
    spawn_add(to, "--check");
    spawn_add(to, "/dev/stdin");
    spawn_add(to, "--json");
    if (offer != NULL && !opts_has(a, "machine")) {
        char *text = json_print(offer);
        spawn_add_option(to, "--offer", text);
        free(text);
    } else {
        spawn_add_option(to, "--backend", opts_get(a, "backend"));
        spawn_add_option(to, "--machine", opts_get(a, "machine"));
    }
}

int job_file_check(const struct client *c, const char *spec, const struct args *a, const struct json *offer,
                   char **ret_needs)
{
    struct err err = {0};
    struct spawn_args args = {0};
    struct strbuf out = {0};
    char *worker = NULL;
    int exit = CLIENT_FAILED, r = spawn_find(PROGRAM_WORKER, &worker, &err);
    if (r == 0) {
        add_check_args(a, offer, &args);
        r = spawn_collect(worker, &args, spec, &out, &exit, &err);
    }
    if (r < 0)
        exit = client_fail_as(c, CLIENT_FAILED, &err);
    else if (exit != CLIENT_DONE)
        exit = report_verdict(c, out.at, out.n, exit);
    else
        *ret_needs = needs_of(out.at, out.n);
    free(worker);
    strbuf_finish(&out);
    spawn_finish(&args);
    return exit;
}
