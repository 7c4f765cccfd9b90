/* tutti devices: lists the daemon's devices and the jobs that use them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/get.h"
#include "client/client.h"
#include "client/show.h"
#include "client/term.h"

static const struct column virtual_columns[] = {
    {.title = "DEVICE", .right = true},
    {.title = "MEMORY", .right = true},
    {.title = "JOB", .right = true},
};

/* The columns of the table for real devices. The column FREE shows the memory that was free when the daemon
 * last looked at the device. */
static const struct column real_columns[] = {
    {.title = "DEVICE", .right = true},
    {.title = "NAME", .least = 8},
    {.title = "BUS ID", .drop = 2},
    {.title = "MEMORY", .right = true},
    {.title = "FREE", .right = true, .drop = 3},
    {.title = "TOTAL", .right = true, .drop = 1},
    {.title = "STATE"},
    {.title = "JOB", .right = true},
};

static void add_device_bytes(struct show_table *t, const struct style *s, const struct json *d,
                             const char *key)
{
    struct strbuf text = {0};
    strbuf_add_bytes(&text, get_count_or(d, key, 0));
    show_table_cell(t, s, INK_NONE, text.at);
    strbuf_finish(&text);
}

static const char *state_of(const struct json *d)
{
    const char *state = get_text(d, "state");
    return state[0] != '\0' ? state : "ok";
}

static bool is_ok(const struct json *d)
{
    return strcmp(state_of(d), "ok") == 0;
}

static void add_device_row(struct show_table *t, const struct style *s, const struct json *d, bool real)
{
    char index[24], job[24] = "free";
    bool taken = get_node(d, "job") != NULL;
    snprintf(index, sizeof index, "%" PRIu64, get_count_or(d, "index", 0));
    if (taken)
        snprintf(job, sizeof job, "%" PRIu64, get_count_or(d, "job", 0));
    show_table_cell(t, s, INK_NONE, index);
    if (real) {
        show_table_cell(t, s, INK_NONE, get_text(d, "name"));
        show_table_cell(t, s, INK_NONE, get_text(d, "bus_id"));
    }
    add_device_bytes(t, s, d, "memory_bytes");
    if (real) {
        add_device_bytes(t, s, d, "free_bytes");
        add_device_bytes(t, s, d, "total_bytes");
        show_table_cell(t, s, is_ok(d) ? INK_NONE : INK_RED, state_of(d));
    }
    show_table_cell(t, s, taken ? INK_CYAN : INK_DIM, job);
}

static void add_rows(struct strbuf *b, const struct style *s, const struct json *devices)
{
    const struct json *first = json_array_first(devices);
    bool real = first != NULL && get_node(first, "total_bytes") != NULL;
    struct show_table *t =
        real ? show_table_create(real_columns, sizeof real_columns / sizeof real_columns[0])
             : show_table_create(virtual_columns, sizeof virtual_columns / sizeof virtual_columns[0]);
    for (const struct json *d = first; d != NULL; d = json_array_next(d))
        add_device_row(t, s, d, real);
    show_table_print(t, s, b);
    show_table_destroy(t);
}

/* Appends a line about a device that has had errors, such as "device 1 is suspect since ...: 1 error in job
 * 3: ...". */
static void add_mark(struct strbuf *b, const struct style *s, const struct json *d)
{
    uint64_t errors = get_count_or(d, "errors", 0), since, job;
    strbuf_addf(b, "device %" PRIu64 " is ", get_count_or(d, "index", 0));
    show_text(b, s, state_of(d));
    if (get_count(d, "since_ms", &since)) {
        strbuf_add(b, " since ");
        show_time(b, since);
    }
    strbuf_addf(b, ": %" PRIu64 " error%s", errors, errors == 1 ? "" : "s, the last");
    if (get_count(d, "error_job", &job))
        strbuf_addf(b, " in job %" PRIu64, job);
    strbuf_add(b, ": ");
    show_text(b, s, get_text(d, "reason"));
    strbuf_add(b, strcmp(state_of(d), "failed") == 0 ? "; it is out of service\n"
                                                     : "; other devices are preferred\n");
}

static void add_marks(struct strbuf *b, const struct style *s, const struct json *devices)
{
    for (const struct json *d = json_array_first(devices); d != NULL; d = json_array_next(d))
        if (!is_ok(d))
            add_mark(b, s, d);
}

/* Appends why the daemon cannot start workers, since when, and how often it has tried. `pause` has these
 * facts. If `pause` is NULL, appends nothing. */
static void add_pause(struct strbuf *b, const struct style *s, const struct json *pause)
{
    uint64_t since;
    if (pause == NULL)
        return;
    strbuf_add(b, show_ink(s, INK_RED));
    show_text(b, s, get_text(pause, "reason"));
    strbuf_addf(b, "%s (", show_plain(s));
    if (get_count(pause, "since_ms", &since)) {
        strbuf_add(b, "since ");
        show_time(b, since);
        strbuf_add(b, ", ");
    }
    strbuf_addf(b, "failed tries: %" PRIu64 ")\n", get_count_or(pause, "failures", 0));
}

static void add_machine(struct strbuf *b, const struct json *machine)
{
    struct style s = term_style(STDOUT_FILENO);
    const struct json *devices = get_array(machine, "devices");
    uint64_t host;
    strbuf_add(b, "backend ");
    show_text(b, &s, get_text(machine, "backend"));
    if (get_count(machine, "host_memory_bytes", &host)) {
        strbuf_add(b, ", host memory ");
        strbuf_add_bytes(b, host);
    }
    strbuf_add(b, "\n");
    if (get_text(machine, "backend_reason")[0] != '\0') {
        strbuf_add(b, "because ");
        show_text(b, &s, get_text(machine, "backend_reason"));
        strbuf_add(b, "\n");
    }
    if (get_flag(machine, "auto"))
        strbuf_add(b, "no fixed devices: each job gets as many as it requests\n");
    if (!get_flag(machine, "auto") && devices != NULL) {
        add_rows(b, &s, devices);
        add_marks(b, &s, devices);
    }
    add_pause(b, &s, get_object(machine, "launch_pause"));
}

static int run_devices(struct client *c, const struct args *a)
{
    struct wire_msg m = {0};
    struct strbuf b = {0};
    (void)a;
    int exit = client_ask(c, "devices", NULL, &m);
    if (exit != CLIENT_DONE)
        return exit;
    if (c->json) {
        char *text = json_print(m.result);
        strbuf_addf(&b, "%s\n", text);
        free(text);
    } else {
        add_machine(&b, m.result);
    }
    wire_msg_finish(&m);
    return client_print_end(&b);
}

const struct client_command cmd_devices = {
    .name = "devices",
    .args = "",
    .summary = "list the devices of the machine and the jobs that use them",
    .run = run_devices,
};
