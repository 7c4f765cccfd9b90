/* tutti devices: what the machine has, and who uses it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/client.h"
#include "client/get.h"
#include "client/show.h"
#include "client/term.h"

static const struct column columns[] = {
    {.title = "DEVICE", .right = true},
    {.title = "MEMORY", .right = true},
    {.title = "JOB", .right = true},
};

static void add_rows(struct strbuf *b, const struct style *s, const struct json *devices)
{
    struct table *t = table_create(columns, sizeof columns / sizeof columns[0]);
    for (const struct json *d = json_array_first(devices); d != NULL; d = json_array_next(d)) {
        struct strbuf memory = {0};
        char index[24], job[24] = "free";
        snprintf(index, sizeof index, "%" PRIu64, get_count_or(d, "index", 0));
        if (get_node(d, "job") != NULL)
            snprintf(job, sizeof job, "%" PRIu64, get_count_or(d, "job", 0));
        strbuf_add_bytes(&memory, get_count_or(d, "memory_bytes", 0));
        table_cell(t, s, INK_NONE, index);
        table_cell(t, s, INK_NONE, memory.at);
        table_cell(t, s, get_node(d, "job") != NULL ? INK_CYAN : INK_DIM, job);
        strbuf_finish(&memory);
    }
    table_print(t, s, b);
    table_destroy(t);
}

static void add_page(struct strbuf *b, const struct json *machine)
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
    if (get_flag(machine, "auto"))
        strbuf_add(b, "no fixed devices: a job gets what it asks for\n");
    else if (devices != NULL)
        add_rows(b, &s, devices);
}

static int run(struct client *c, const struct args *a)
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
        add_page(&b, m.result);
    }
    wire_msg_finish(&m);
    return client_print_end(&b);
}

const struct command cmd_devices = {
    .name = "devices",
    .args = "",
    .summary = "what the machine has, and which job uses it",
    .run = run,
};
