/* tutti wait: waits until the given jobs have ended, and prints the outcome of each job. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/get.h"
#include "base/print.h"
#include "client/client.h"
#include "client/follow.h"
#include "client/show.h"
#include "client/term.h"

/* The jobs that are waited for. */
struct job_waiter {
    const struct client *c;
    struct tutti *t;
    uint64_t *ids;
    /* The daemon's answers to `show`, one for each job. If job i has not ended yet, jobs[i] is zero. */
    struct wire_msg *jobs;
    int n;    /* jobs */
    int left; /* jobs that have not ended */
};

/* Asks the daemon whether job `i` has ended. Does nothing if this job is already known to have ended. */
static int look(struct job_waiter *w, int i, struct err *err)
{
    struct wire_msg m = {0};
    if (w->jobs[i].doc != NULL)
        return 0;
    int r = tutti_call(w->t, "show", client_id_params(w->ids[i]), &m, err);
    if (r < 0)
        return r;
    if (!follow_ended(m.result)) {
        wire_msg_finish(&m);
        return 0;
    }
    w->jobs[i] = m;
    w->left--;
    return 0;
}

/* Subscribes to events first, and asks about every job afterwards, so that no job can end unnoticed in
 * between. If there are several jobs, the subscription is to the events of all jobs. */
static int watch_jobs(struct job_waiter *w, struct err *err)
{
    struct wire_msg m = {0};
    int r = tutti_call(w->t, "watch", w->n == 1 ? client_id_params(w->ids[0]) : "{}", &m, err);
    wire_msg_finish(&m);
    for (int i = 0; i < w->n && r == 0; i++)
        r = look(w, i, err);
    return r;
}

/* Handles an event. After "ended", asks about the job that ended. After "gap", which says that events were
 * lost, asks about all jobs, because a lost event may have reported the end of a job. */
static int on_job_event(struct job_waiter *w, const struct json *e, struct err *err)
{
    const char *name = get_text(e, "event");
    uint64_t id = get_count_or(e, "job", 0);
    int r = 0;
    if (strcmp(name, "gap") != 0 && strcmp(name, "ended") != 0)
        return 0;
    for (int i = 0; i < w->n && r == 0; i++)
        if (w->ids[i] == id || name[0] == 'g')
            r = look(w, i, err);
    return r;
}

static int wait_for_all(struct job_waiter *w, struct err *err)
{
    int r = watch_jobs(w, err);
    while (w->left > 0) {
        struct wire_msg m = {0};
        if (r < 0 && (w->t == NULL || !tutti_lost(w->t)))
            return r;
        if (r < 0) {
            print_error("tutti: the connection to the daemon is lost; trying to reconnect for a minute\n");
            r = follow_reconnect(w->c, NULL, &w->t, err);
            if (r == 0)
                r = watch_jobs(w, err);
            continue;
        }
        r = tutti_next(w->t, -1, &m, err);
        if (r > 0) {
            r = on_job_event(w, m.params, err);
            wire_msg_finish(&m);
        }
    }
    return 0;
}

static int print_outcomes(const struct job_waiter *w)
{
    struct style s = term_style(STDOUT_FILENO);
    struct strbuf b = {0};
    int exit = CLIENT_DONE;
    strbuf_add(&b, w->c->json ? "[" : "");
    for (int i = 0; i < w->n; i++) {
        const struct json *job = w->jobs[i].result;
        const char *state = get_text(job, "state"), *why = get_text(get_object(job, "error"), "message");
        exit = exit != CLIENT_DONE ? exit : follow_exit(job);
        if (w->c->json) {
            strbuf_add(&b, i > 0 ? "," : "");
            show_outcome_json(&b, job);
        } else if (!w->c->quiet) {
            strbuf_addf(&b, "job %" PRIu64 " (", w->ids[i]);
            show_text(&b, &s, get_text(job, "name"));
            strbuf_addf(&b, ") %s", show_ink(&s, show_state_ink(state)));
            show_text(&b, &s, state);
            strbuf_addf(&b, "%s%s", show_plain(&s), why[0] != '\0' ? ": " : "");
            show_text(&b, &s, why);
            strbuf_add(&b, "\n");
        }
    }
    strbuf_add(&b, w->c->json ? "]\n" : "");
    client_print(&b);
    return exit;
}

static int run_wait(struct client *c, const struct args *a)
{
    struct err err = {0};
    struct job_waiter w = {.c = c, .n = a->n_rest, .left = a->n_rest};
    int exit = CLIENT_DONE;
    w.ids = xcalloc((size_t)w.n, sizeof *w.ids);
    w.jobs = xcalloc((size_t)w.n, sizeof *w.jobs);
    for (int i = 0; i < w.n && exit == CLIENT_DONE; i++)
        if (client_job_id(a->rest[i], &w.ids[i], &err) < 0)
            exit = client_fail(c, &err);
    if (exit == CLIENT_DONE)
        exit = client_connect(c, &w.t);
    if (exit == CLIENT_DONE)
        exit = wait_for_all(&w, &err) < 0 ? client_fail(c, &err) : print_outcomes(&w);
    for (int i = 0; i < w.n; i++)
        wire_msg_finish(&w.jobs[i]);
    tutti_close(w.t);
    free(w.ids);
    free(w.jobs);
    return exit;
}

const struct client_command cmd_wait = {
    .name = "wait",
    .args = "ID...",
    .summary = "wait until jobs have ended; the exit code is the first nonzero one",
    .least = 1,
    .most = -1,
    .run = run_wait,
};
