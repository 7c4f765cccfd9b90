/* tutti ls: lists the jobs in a table. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/get.h"
#include "client/client.h"
#include "client/follow.h"
#include "client/show.h"
#include "client/term.h"

#define DAY_MS 86400000ull

static const struct opt opts[] = {
    {"all", 'a', NULL, "include jobs that ended more than a day ago"},
    {0},
};

static const struct column columns[] = {
    {.title = "ID", .right = true},
    {.title = "NAME", .least = 8},
    {.title = "USER", .least = 4, .drop = 6},
    {.title = "STATE"},
    {.title = "PROGRESS", .right = true, .drop = 1},
    {.title = "LOSS", .right = true, .drop = 2},
    {.title = "RATE", .right = true, .drop = 4},
    {.title = "TIME", .right = true, .drop = 3},
    {.title = "LEFT / WHY", .least = 10, .drop = 5},
};

/* The list of jobs that `tutti ls` prints. The daemon sends the jobs in several pages. */
struct job_listing {
    const struct client *c;
    bool all;          /* --all */
    bool older_daemon; /* it does not know ended_after_ms */
    uint64_t now_ms;
    uint64_t n; /* jobs listed so far */
    struct show_table *table;
    struct style style;
    struct strbuf text; /* ids (--quiet) or jobs (--json) */
};

static void add_progress_cell(struct job_listing *l, const struct json *job)
{
    struct strbuf b = {0};
    uint64_t step, total = get_count_or(job, "total_steps", 0);
    strbuf_add(&b, "");
    if (get_count(job, "step", &step) && total > 0)
        strbuf_addf(&b, "%" PRIu64 "/%" PRIu64 " %3.0f%%", step, total,
                    floor(100 * fmin((double)step / (double)total, 1)));
    show_table_cell(l->table, &l->style, INK_NONE, b.at);
    strbuf_finish(&b);
}

static void add_figure(struct job_listing *l, const struct json *job, const char *key,
                       void (*add)(struct strbuf *, double), const char *unit)
{
    struct strbuf b = {0};
    double v;
    strbuf_add(&b, "");
    if (get_number(job, key, &v)) {
        add(&b, v);
        strbuf_add(&b, unit);
    }
    show_table_cell(l->table, &l->style, INK_NONE, b.at);
    strbuf_finish(&b);
}

static void add_elapsed(struct job_listing *l, const struct json *job)
{
    struct strbuf b = {0};
    uint64_t from, to = get_count_or(job, "ended_ms", l->now_ms);
    strbuf_add(&b, "");
    if (get_count(job, "started_ms", &from) && to >= from)
        show_duration(&b, (double)(to - from) / 1000);
    show_table_cell(l->table, &l->style, INK_NONE, b.at);
    strbuf_finish(&b);
}

/* Adds the last cell of a job's row. The cell says why the job failed, why it is waiting, or how much time is
 * left. */
static void add_note(struct job_listing *l, const struct json *job)
{
    struct strbuf b = {0};
    double eta;
    strbuf_add(&b, get_text(get_object(job, "error"), "message"));
    if (b.n == 0)
        strbuf_add(&b, get_text(job, "reason"));
    if (b.n == 0 && !follow_ended(job) && get_number(job, "eta_s", &eta))
        show_duration(&b, eta);
    show_table_cell(l->table, &l->style, INK_NONE, b.at);
    strbuf_finish(&b);
}

static void add_job_row(struct job_listing *l, const struct json *job)
{
    char id[24];
    const char *state = get_text(job, "state");
    snprintf(id, sizeof id, "%" PRIu64, get_count_or(job, "id", 0));
    show_table_cell(l->table, &l->style, INK_NONE, id);
    show_table_cell(l->table, &l->style, INK_BOLD, get_text(job, "name"));
    show_table_cell(l->table, &l->style, INK_NONE, get_text(job, "user"));
    show_table_cell(l->table, &l->style, show_state_ink(state), state);
    add_progress_cell(l, job);
    add_figure(l, job, "loss", show_loss, "");
    add_figure(l, job, "samples_per_s", show_count, "/s");
    add_elapsed(l, job);
    add_note(l, job);
}

static void add_job(struct job_listing *l, const struct json *job)
{
    uint64_t ended;
    if (!l->all && get_count(job, "ended_ms", &ended) && ended + DAY_MS < l->now_ms)
        /* Leave out a job that ended more than a day ago. A newer daemon does not list such jobs, but an
         * older daemon does. */
        return;
    if (l->c->json) {
        char *text = json_print(job);
        strbuf_addf(&l->text, "%s%s", l->n > 0 ? ",\n " : "", text);
        free(text);
    } else if (l->c->quiet) {
        strbuf_addf(&l->text, "%" PRIu64 "\n", get_count_or(job, "id", 0));
    } else {
        add_job_row(l, job);
    }
    l->n++;
}

/* Fetches the next page of jobs, whose ids are greater than *after, and adds them to the list. Sets *after to
 * the last id on the page, and sets *more to true if there are more jobs. */
static int fetch_page(struct job_listing *l, struct tutti *t, uint64_t *after, bool *more, struct err *err)
{
    struct strbuf params = {0};
    struct wire_msg m = {0};
    uint64_t id, before = *after;
    strbuf_addf(&params, "{\"after\":%" PRIu64, *after);
    if (!l->all && !l->older_daemon)
        strbuf_addf(&params, ",\"ended_after_ms\":%" PRIu64,
                    l->now_ms > DAY_MS ? l->now_ms - (uint64_t)DAY_MS : 1);
    strbuf_add(&params, "}");
    int r = tutti_call(t, "list", params.at, &m, err);
    strbuf_finish(&params);
    if (r == -EINVAL && !l->older_daemon && strcmp(err->path, "ended_after_ms") == 0) {
        l->older_daemon = true;
        return fetch_page(l, t, after, more, err);
    }
    if (r < 0)
        return r;
    const struct json *jobs = get_array(m.result, "jobs"),
                      *job = jobs != NULL ? json_array_first(jobs) : NULL;
    for (; job != NULL; job = json_array_next(job)) {
        if (get_count(job, "id", &id) && id > *after)
            *after = id;
        add_job(l, job);
    }
    *more = get_flag(m.result, "more") && *after > before;
    wire_msg_finish(&m);
    return 0;
}

static int print_jobs(struct job_listing *l)
{
    if (l->c->json) {
        struct strbuf b = {0};
        strbuf_addf(&b, "[%s]\n", l->text.at != NULL ? l->text.at : "");
        strbuf_finish(&l->text);
        return client_print_end(&b);
    }
    if (!l->c->quiet && l->n == 0)
        strbuf_add(&l->text, "no jobs\n");
    else if (!l->c->quiet)
        show_table_print(l->table, &l->style, &l->text);
    return client_print_end(&l->text);
}

static int run_ls(struct client *c, const struct args *a)
{
    struct err err = {0};
    struct tutti *t = NULL;
    struct job_listing l = {.c = c, .all = opts_has(a, "all"), .now_ms = clock_wall_ns() / 1000000};
    uint64_t after = 0;
    bool more = true;
    int r = 0, exit = client_connect(c, &t);
    if (exit != CLIENT_DONE)
        return exit;
    l.style = term_style(STDOUT_FILENO);
    l.table = show_table_create(columns, sizeof columns / sizeof columns[0]);
    while (r == 0 && more)
        r = fetch_page(&l, t, &after, &more, &err);
    exit = r < 0 ? client_fail(c, &err) : print_jobs(&l);
    strbuf_finish(&l.text);
    show_table_destroy(l.table);
    tutti_close(t);
    return exit;
}

const struct client_command cmd_ls = {
    .name = "ls",
    .args = "[-a]",
    .summary = "list the jobs that have not ended, and those that ended within the last day",
    .opts = opts,
    .most = 0,
    .run = run_ls,
};
