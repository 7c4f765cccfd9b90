/* The page, the JSON and the table of plans. See planned.h. */
#include "daemon/worker/planned.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/worker/report.h"
#include "scheduler/explain.h"

void planned_simulate(struct planned *p, const struct profile *times, const struct machine *m)
{
    p->sim = plan_simulate(p->plan, PROGRAM_CYCLE, PLANNED_RUNS, times, m);
}

void planned_finish(struct planned *p)
{
    sim_destroy(p->sim);
    plan_destroy(p->plan);
    p->sim = NULL;
    p->plan = NULL;
}

/* ---- files ---- */

static int write_file(const char *path, const struct strbuf *b, struct err *err)
{
    FILE *f = fopen(path, "we");
    if (f == NULL)
        return err_set_at(err, -errno, path, "cannot be written: %s", strerror(errno));
    size_t n = fwrite(b->at, 1, b->n, f);
    if (fclose(f) != 0 || n != b->n)
        return err_set_at(err, -EIO, path, "could not be written whole: %s", strerror(errno));
    return 0;
}

static int write_files(const struct verb_options *o, const struct planned *p, struct err *err)
{
    struct strbuf b = {0};
    int r = 0;
    if (o->plan_path != NULL) {
        plan_to_json(p->plan, &b);
        r = write_file(o->plan_path, &b, err);
        strbuf_finish(&b);
    }
    if (r == 0 && o->trace_path != NULL) {
        const struct trace_part part = {"plan", p->sim->spans, p->sim->runs};
        plan_trace(p->plan, PROGRAM_CYCLE, &part, 1, &b);
        r = write_file(o->trace_path, &b, err);
        strbuf_finish(&b);
    }
    return r;
}

/* ---- one ---- */

/* Its brace comes off and on again: the members of others stand inside. */
static void add_json(struct strbuf *b, const struct planned *p, const char *members)
{
    plan_summary_json(p->plan, p->sim, p->plan_s, b);
    b->at[--b->n] = '\0';
    strbuf_addf(b, "%s}", members);
}

int planned_print(const struct verb_options *o, const struct planned *p, const char *head, const char *times,
                  const char *members)
{
    struct strbuf b = {0};
    struct err err = {0};
    int r = write_files(o, p, &err);
    if (r < 0)
        return report_error(o, r, &err, 0, false);
    if (o->json) {
        add_json(&b, p, members);
        strbuf_add(&b, "\n");
        return print_buffer(&b);
    }
    strbuf_add(&b, head);
    plan_summary(p->plan, p->graph, p->sim, times, &b);
    if (o->dump)
        plan_dump(p->plan, &b);
    return print_buffer(&b);
}

/* ---- several ---- */

static bool is_auto(const struct planned *p)
{
    return p->plan != NULL && strcmp(p->policy, p->plan->policy) != 0;
}

/* Each under the name that was asked for, so that no name occurs twice; what `auto` took is "chosen". */
static void add_json_entry(struct strbuf *b, const struct planned *p, const char *members)
{
    if (p->plan == NULL) {
        strbuf_addf(b, "{\"policy\":\"%s\",\"error\":", p->policy);
        strbuf_add_json(b, p->err.msg);
        if (p->least_bytes > 0)
            strbuf_addf(b, ",\"least_device_bytes\":%" PRIu64, p->least_bytes);
        strbuf_addf(b, "%s}", members);
        return;
    }
    struct strbuf one = {0};
    add_json(&one, p, members);
    strbuf_addf(b, "{\"policy\":\"%s\"", p->policy);
    if (is_auto(p))
        strbuf_addf(b, ",\"chosen\":\"%s\"", p->plan->policy);
    strbuf_add(b, strchr(one.at, ',')); /* all but its own first member */
    strbuf_finish(&one);
}

static void add_size(struct strbuf *b, uint64_t bytes, int width)
{
    struct strbuf size = {0};
    strbuf_add_bytes(&size, bytes);
    strbuf_addf(b, " %*s", width, size.at);
    strbuf_finish(&size);
}

/* In one line of a table; the whole sentence is in the JSON, and what --policy NAME says. */
static void add_reason(struct strbuf *b, const struct planned *p)
{
    if (p->least_bytes == 0) {
        strbuf_addf(b, "%s\n", p->err.msg);
        return;
    }
    strbuf_add(b, "does not fit: needs ");
    strbuf_add_bytes(b, p->least_bytes);
    strbuf_add(b, " of each device\n");
}

static void add_row(struct strbuf *b, const struct planned *p)
{
    char name[80];
    snprintf(name, sizeof name, "%s%s%s%s", p->policy, is_auto(p) ? " (" : "",
             is_auto(p) ? p->plan->policy : "", is_auto(p) ? ")" : "");
    strbuf_addf(b, "%-18s ", name);
    if (p->plan == NULL) {
        add_reason(b, p);
        return;
    }
    const struct plan_bytes *bytes = &p->sim->bytes;
    struct plan_figures f;
    plan_figures(p->plan, p->sim, &f);
    strbuf_addf(b, "%-6s %5u %10.4g s %6.1f %%", f.form, p->plan->rows, (double)f.iteration_ns * 1e-9,
                f.iteration_ns > 0 ? 100 * (double)f.stall_ns / (double)f.iteration_ns : 0);
    add_size(b, bytes->in, 11);
    add_size(b, bytes->out, 11);
    add_size(b, bytes->peer, 11);
    if (f.bound_bytes > 0)
        strbuf_addf(b, " %7.2fx", (double)f.moved_bytes / (double)f.bound_bytes);
    else
        strbuf_addf(b, " %8s", f.moved_bytes > 0 ? "bound 0" : "none");
    add_size(b, f.peak_bytes, 11);
    strbuf_addf(b, " %5.1f %%\n", 100 * (double)f.peak_bytes / (double)f.capacity_bytes);
}

static void add_table(struct strbuf *b, const struct planned *list, uint32_t n)
{
    strbuf_addf(b, "%-18s %-6s %5s %12s %8s %11s %11s %11s %8s %11s %7s\n", "policy", "form", "micro",
                "iteration", "stall", "in", "out", "peer", "of bound", "peak", "full");
    for (uint32_t i = 0; i < n; i++)
        add_row(b, &list[i]);
    strbuf_add(b,
               "of bound: state and stash, in and out, by the least that these could be; peak and full: the "
               "fullest device\n");
}

int planned_compare(const struct verb_options *o, const struct planned *list, uint32_t n, const char *head,
                    const char *members)
{
    struct strbuf b = {0};
    bool any = false;
    for (uint32_t i = 0; i < n; i++)
        any |= list[i].plan != NULL;
    if (o->json) {
        for (uint32_t i = 0; i < n; i++) {
            strbuf_add(&b, i > 0 ? ",\n" : "[");
            add_json_entry(&b, &list[i], members);
        }
        strbuf_add(&b, "]\n");
    } else {
        strbuf_add(&b, head);
        add_table(&b, list, n);
    }
    int code = print_buffer(&b);
    return code != EXIT_DONE || any ? code : EXIT_MISFIT;
}
