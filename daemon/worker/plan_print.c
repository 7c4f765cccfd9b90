/* Implements plan_print.h: prints one plan as a page of text or as a JSON object, and several plans as a
 * table or as a JSON array. */
#include "daemon/worker/plan_print.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/worker/report.h"
#include "scheduler/explain/explain.h"

void plan_print_simulate(struct printed_plan *p, const struct profile *times, const struct machine *m)
{
    p->sim = plan_simulate(p->plan, PROGRAM_CYCLE, SIM_RUNS, times, m);
    time_bound(p->graph, m, times, &p->bound);
    why_of(p->plan, p->sim, &p->why.why);
    p->why.host_bytes = p->sim->bytes.in + p->sim->bytes.out;
}

void plan_print_finish(struct printed_plan *p)
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

static int write_files(const struct verb_options *o, const struct printed_plan *p, struct err *err)
{
    struct strbuf b = {0};
    int r = 0;
    if (o->plan.json_path != NULL) {
        plan_to_json(p->plan, &b);
        r = write_file(o->plan.json_path, &b, err);
        strbuf_finish(&b);
    }
    if (r == 0 && o->plan.trace_path != NULL) {
        const struct trace_part part = {"plan", p->sim->spans, p->sim->runs};
        plan_trace(p->plan, PROGRAM_CYCLE, &part, 1, &b);
        r = write_file(o->plan.trace_path, &b, err);
        strbuf_finish(&b);
    }
    if (r == 0 && o->plan.svg_path != NULL) {
        plan_svg(p->plan, p->sim, &b);
        r = write_file(o->plan.svg_path, &b, err);
        strbuf_finish(&b);
    }
    return r;
}

/* ---- one plan ---- */

/* Appends the plan as a JSON object. `members` has further JSON members for this object, each with a comma
 * before it. */
static void add_json(struct strbuf *b, const struct printed_plan *p, const char *members)
{
    plan_summary_json(p->plan, p->sim, &p->bound, p->plan_s, b);
    b->at[--b->n] = '\0';
    strbuf_add(b, ",\"why\":");
    plan_why_json(&p->why, b);
    if (p->needs.n_devices > 0)
        report_needs_members(&p->needs, b);
    strbuf_addf(b, "%s}", members);
}

int plan_print_one(const struct verb_options *o, const struct printed_plan *p, const char *head,
                   const char *times, const char *members)
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
    plan_summary(p->plan, p->graph, p->sim, &p->bound, times, &b);
    plan_why(&p->why, &b);
    if (o->plan.dump)
        plan_dump(p->plan, &b);
    return print_buffer(&b);
}

/* ---- several plans ---- */

static bool is_auto(const struct printed_plan *p)
{
    return p->plan != NULL && strcmp(p->policy, p->plan->policy) != 0;
}

/* Appends one plan as an element of the JSON array. "policy" is the policy that was asked for. If that was
 * `auto`, "chosen" is the policy that `auto` selected. */
static void add_json_entry(struct strbuf *b, const struct printed_plan *p, const char *members)
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
    strbuf_add(b, strchr(one.at, ',')); /* without its own first member, "policy" */
    strbuf_finish(&one);
}

/* Appends a number of bytes with three digits, such as "1.62 GiB" or "336 MiB". */
static void add_size_cell(struct strbuf *b, uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double v = (double)bytes;
    uint32_t unit = 0;
    char text[24];
    for (; v >= 999.5 && unit + 1 < sizeof units / sizeof units[0]; unit++)
        v /= 1024;
    snprintf(text, sizeof text, "%.*f %s", unit == 0 || v >= 99.95 ? 0 : v >= 9.995 ? 1 : 2, v, units[unit]);
    strbuf_addf(b, " %8s", text);
}

static void add_time_cell(struct strbuf *b, uint64_t ns)
{
    static const char *const units[] = {"ns", "us", "ms", "s"};
    double v = (double)ns;
    uint32_t unit = 0;
    char text[24];
    for (; v >= 999.95 && unit + 1 < sizeof units / sizeof units[0]; unit++)
        v /= 1000;
    snprintf(text, sizeof text, "%.4g %s", v, units[unit]);
    strbuf_addf(b, " %9s", text);
}

/* Appends the column "bound": the number of bytes that the plan moves, divided by the least number of bytes
 * that any plan must move. Neither number counts the inputs of the model and the results. */
static void add_bound(struct strbuf *b, const struct plan_figures *f)
{
    double times = f->bound_bytes > 0 ? (double)f->moved_bytes / (double)f->bound_bytes : 0;
    if (f->bound_bytes == 0)
        strbuf_addf(b, " %6s", f->moved_bytes > 0 ? "of 0" : "none");
    else if (times > 999)
        strbuf_addf(b, " %6s", ">999x");
    else
        strbuf_addf(b, " %5.*fx", times < 99.995 ? 2 : 1, times);
}

/* Appends one short line that says why there is no plan. The full message is printed with --json or with
 * --policy NAME. */
static void add_reason(struct strbuf *b, const struct printed_plan *p)
{
    if (p->least_bytes == 0) {
        strbuf_addf(b, "%s\n", p->err.msg);
        return;
    }
    strbuf_add(b, "does not fit: needs ");
    strbuf_add_bytes(b, p->least_bytes);
    strbuf_add(b, " of each device\n");
}

/* Appends the form of the plan ("single", "pp" or "dp") and the micro-batch size of the first layer. ".."
 * follows the size if other layers have other sizes, as in "4..". */
static void add_rows(struct strbuf *b, const struct graph *g, const char *form)
{
    bool differ = false;
    for (uint32_t l = 1; l < g->n_layers; l++)
        differ |= g->layers[l].rows != g->layers[0].rows;
    char text[24];
    snprintf(text, sizeof text, "%u%s", g->layers[0].rows, differ ? ".." : "");
    strbuf_addf(b, "%-6s %4s", form, text);
}

static void add_row(struct strbuf *b, const struct printed_plan *p)
{
    strbuf_addf(b, "%-10s ", p->policy);
    if (p->plan == NULL) {
        add_reason(b, p);
        return;
    }
    const struct plan_bytes *bytes = &p->sim->bytes;
    const uint32_t steps = p->plan->steps;
    struct plan_figures f;
    plan_figures(p->plan, p->sim, &f);
    add_rows(b, p->graph, f.form);
    add_time_cell(b, f.iteration_ns / steps);
    strbuf_addf(b, " %5.1f%%", f.iteration_ns > 0 ? 100 * (double)f.stall_ns / (double)f.iteration_ns : 0);
    add_size_cell(b, bytes->in / steps);
    add_size_cell(b, bytes->out / steps);
    add_size_cell(b, bytes->peer / steps);
    add_bound(b, &f);
    strbuf_addf(b, " %5.1f%%\n", 100 * (double)f.peak_bytes / (double)f.capacity_bytes);
}

/* Appends the table that compares all plans. The table is 80 columns wide, so that it fits a terminal. */
static void add_table(struct strbuf *b, const struct printed_plan *list, uint32_t n)
{
    strbuf_addf(b, "%-10s %-6s %4s %9s %6s %8s %8s %8s %6s %6s\n", "policy", "form", "rows", "iteration",
                "stall", "in", "out", "peer", "bound", "memory");
    for (uint32_t i = 0; i < n; i++)
        add_row(b, &list[i]);
    for (uint32_t i = 0; i < n; i++)
        if (is_auto(&list[i]))
            strbuf_addf(b, "%s: a plan of policy %s\n", list[i].policy, list[i].plan->policy);
    for (uint32_t i = 0; i < n; i++)
        if (list[i].plan != NULL && list[i].plan->steps > 1)
            strbuf_addf(b, "%s: an iteration has %u training steps; time and bytes are of one step\n",
                        list[i].policy, list[i].plan->steps);
    strbuf_add(b, "rows: of a micro-batch (..: fewer in some layers). bound: state and stash, in\n"
                  "and out, by the least they could be. memory: of the fullest device, at its peak.\n");
}

int plan_print_all(const struct verb_options *o, const struct printed_plan *list, uint32_t n,
                   const char *head, const char *members)
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
