/* Implements client.h: output, failures, and simple calls to the daemon.
 *
 * All text for standard output goes through client_print. It scrubs the text (base/print.h) and remembers
 * when a write fails, for example because a pipe was closed or a disk is full. The program then ends with a
 * message instead of silently leaving half a result. Only the main thread runs this code. */
#include "client/client.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/get.h"
#include "base/print.h"

/* The negative errno of the first failed write to standard output, or 0 if no write has failed. */
static int output_error;

int client_exit_of(int code)
{
    switch (-code) {
    case ECONNREFUSED:
    case ECONNRESET:
    case EPROTO:
    case ETIMEDOUT:
        return CLIENT_UNREACHABLE;
    }
    return wire_exit_code(code);
}

int client_fail_as(const struct client *c, int exit, const struct err *err)
{
    if (!c->json) {
        char text[sizeof(struct err)];
        /* Do not show the path "id". It is the name of a parameter of the protocol, and the user has never
         * seen this name. */
        bool own_path = strcmp(err->path, "id") == 0;
        print_error("tutti: %s\n", own_path ? err->msg : err_text(err, text, sizeof text));
        return exit;
    }
    struct strbuf b = {0}, object = {0};
    wire_add_err_object(&object, err);
    strbuf_addf(&b, "{\"ok\":false,\"exit\":%d,%s\n", exit, object.at + 1);
    strbuf_finish(&object);
    client_print(&b);
    return exit;
}

int client_fail(const struct client *c, const struct err *err)
{
    return client_fail_as(c, client_exit_of(err->code), err);
}

int client_print(struct strbuf *b)
{
    if (output_error == 0)
        output_error = print_text(STDOUT_FILENO, b->at, b->n);
    strbuf_finish(b);
    return output_error;
}

int client_print_end(struct strbuf *b)
{
    return client_print(b) < 0 ? CLIENT_FAILED : CLIENT_DONE;
}

bool client_print_failed(void)
{
    return output_error != 0;
}

int client_end(int exit)
{
    if (output_error == 0)
        return exit;
    print_error("tutti: cannot write to standard output: %s\n", strerror(-output_error));
    return exit != CLIENT_DONE ? exit : CLIENT_FAILED;
}

int client_connect(const struct client *c, struct tutti **ret)
{
    struct err err = {0};
    int r = tutti_connect(c->socket, ret, &err);
    return r < 0 ? client_fail(c, &err) : CLIENT_DONE;
}

int client_ask(const struct client *c, const char *method, const char *params, struct wire_msg *ret)
{
    struct err err = {0};
    struct tutti *t = NULL;
    int exit = client_connect(c, &t);
    if (exit != CLIENT_DONE)
        return exit;
    int r = tutti_call(t, method, params, ret, &err);
    tutti_close(t);
    return r < 0 ? client_fail(c, &err) : CLIENT_DONE;
}

int client_job_id(const char *text, uint64_t *ret, struct err *err)
{
    return opts_number(text, "job id", 1, JSON_MAX_INTEGER, ret, err);
}

const char *client_id_params(uint64_t id)
{
    static char text[40];
    snprintf(text, sizeof text, "{\"id\":%" PRIu64 "}", id);
    return text;
}

static bool is_id(const char *text)
{
    return text[0] != '\0' && text[strspn(text, "0123456789")] == '\0';
}

static char *copy_text(const char *text)
{
    char *p = strdup(text);
    if (p == NULL)
        abort();
    return p;
}

int client_find_output(const struct client *c, const char *id_or_dir, char **ret)
{
    struct err err = {0};
    struct wire_msg m = {0};
    uint64_t id;
    if (!is_id(id_or_dir)) {
        *ret = copy_text(id_or_dir);
        return CLIENT_DONE;
    }
    if (client_job_id(id_or_dir, &id, &err) < 0)
        return client_fail(c, &err);
    int exit = client_ask(c, "show", client_id_params(id), &m);
    if (exit != CLIENT_DONE)
        return exit;
    const char *output = get_text(m.result, "output");
    if (output[0] == '\0') {
        err_set(&err, -ENODATA, "job %s has no output directory yet; try again when it has started",
                id_or_dir);
        exit = client_fail_as(c, CLIENT_FAILED, &err);
    } else {
        *ret = copy_text(output);
    }
    wire_msg_finish(&m);
    return exit;
}
