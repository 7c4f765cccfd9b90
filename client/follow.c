/* Implements the loop of follow.h that shows a job until it ends.
 *
 * The loop first calls `watch` and then `show`, so that no event is missed between the two. It calls `show`
 * again when an event says that the job has ended or that events were missed, and every two seconds for the
 * live display. Only the main thread runs this code. */
#include "client/follow.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/get.h"
#include "base/print.h"
#include "client/show.h"
#include "client/term.h"
#include "client/view.h"

#define FRAME_NS 120000000ull  /* least time between two frames */
#define LINE_NS  2000000000ull /* least time between two lines about progress */
/* The time in nanoseconds between two requests for the whole curve. The curve cannot be drawn from events
 * alone, because they report only some of the training steps. */
#define FRESH_NS     2000000000ull
#define IDLE_MS      250            /* longest wait for an event */
#define RETRY_NS     60000000000ull /* how long to try to reconnect */
#define RETRY_GAP_NS 250000000ull   /* time between two tries */

enum display { DISPLAY_NONE, DISPLAY_JSON, DISPLAY_LINES, DISPLAY_LIVE };

/* The state of follow() while it follows one job. */
struct follower {
    const struct client *c;
    const struct follow_options *o;
    struct tutti **t; /* the caller's connection */
    enum display display;
    int fd; /* where the live display is drawn */
    struct view view;
    struct wire_msg job; /* the last answer to `show` */
    uint64_t seq;        /* number of the newest event seen */
    struct strbuf above; /* lines to show above the region */
    uint64_t drawn_ns;   /* time of the last frame or line */
    uint64_t fresh_ns;   /* time of the last `show` */
    bool dirty;          /* the live display must be redrawn */
    bool ended;          /* the job ended; its events were shown */
    int signals;         /* signals that were handled */
};

bool follow_ended(const struct json *job)
{
    const char *state = get_text(job, "state");
    return strcmp(state, "done") == 0 || strcmp(state, "failed") == 0 || strcmp(state, "cancelled") == 0;
}

int follow_exit(const struct json *job)
{
    bool done = strcmp(get_text(job, "state"), "done") == 0;
    return (int)(get_count_or(job, "exit", done ? CLIENT_DONE : CLIENT_FAILED) & 255);
}

/* ---- output ---- */

static void choose_display(struct follower *f)
{
    f->display = DISPLAY_LINES;
    if (f->c->json)
        f->display = DISPLAY_JSON;
    else if (f->c->quiet)
        f->display = DISPLAY_NONE;
    else if (term_is_terminal(STDOUT_FILENO) || term_is_terminal(STDERR_FILENO))
        f->display = DISPLAY_LIVE;
    f->fd = f->display == DISPLAY_LIVE && !term_is_terminal(STDOUT_FILENO) ? STDERR_FILENO : STDOUT_FILENO;
    if (f->display == DISPLAY_LIVE)
        term_begin(f->fd);
}

/* Prints a line. If there is a live display, the line appears above it. If `own` is true, the line is a
 * message of this program and goes to standard error. */
static void say(struct follower *f, const char *line, bool own)
{
    struct strbuf b = {0};
    if (f->display == DISPLAY_LIVE) {
        strbuf_addf(&f->above, "%s\n", line);
        f->dirty = true;
    } else if (own) {
        print_error("tutti: %s\n", line);
    } else if (f->display == DISPLAY_LINES) {
        strbuf_addf(&b, "%s\n", line);
        client_print(&b);
    }
}

/* Redraws the live display. If `last` is true, removes the display and keeps only the lines above it. */
static int draw_frame(struct follower *f, bool last)
{
    struct style s = term_style(f->fd);
    struct strbuf region = {0};
    strbuf_add(&region, "");
    if (!last)
        view_draw(&region, &s, &f->view, term_rows(f->fd));
    int r = term_frame(f->above.at != NULL ? f->above.at : "", region.at);
    strbuf_finish(&region);
    strbuf_finish(&f->above);
    f->drawn_ns = clock_now_ns();
    f->dirty = false;
    return r;
}

/* Redraws the live display if something has changed and the last frame is old enough. */
static int update_display(struct follower *f)
{
    uint64_t now = clock_now_ns();
    if (f->display != DISPLAY_LIVE || !f->dirty || now - f->drawn_ns < FRAME_NS)
        return 0;
    return draw_frame(f, false);
}

/* Prints a line about the progress of the job. Skips the line if the previous one was printed only a moment
 * ago, except for the last training step. */
static void show_progress_line(struct follower *f)
{
    uint64_t now = clock_now_ns();
    struct style s = term_style(STDOUT_FILENO);
    struct strbuf b = {0};
    bool last = f->view.total > 0 && f->view.step == f->view.total;
    if (!last && f->drawn_ns != 0 && now - f->drawn_ns < LINE_NS)
        return;
    f->drawn_ns = now;
    view_line(&b, &s, &f->view);
    strbuf_add(&b, "\n");
    client_print(&b);
}

/* ---- the job ---- */

/* Asks the daemon for the current state of the job and updates the view with the answer. */
static int refresh(struct follower *f, struct err *err)
{
    struct wire_msg m = {0};
    int r = tutti_call(*f->t, "show", client_id_params(f->o->id), &m, err);
    if (r < 0)
        return r;
    wire_msg_finish(&f->job);
    f->job = m;
    view_from_job(&f->view, m.result);
    f->fresh_ns = clock_now_ns();
    f->dirty = true;
    return 0;
}

/* Subscribes to the events of the job and asks for the job's state. If `since` is true, the daemon also sends
 * the past events whose numbers are greater than f->seq. */
static int watch_job(struct follower *f, bool since, struct err *err)
{
    struct wire_msg m = {0};
    struct strbuf params = {0};
    strbuf_addf(&params, "{\"id\":%" PRIu64, f->o->id);
    if (since)
        strbuf_addf(&params, ",\"since\":%" PRIu64, f->seq);
    strbuf_add(&params, "}");
    int r = tutti_call(*f->t, "watch", params.at, &m, err);
    strbuf_finish(&params);
    if (r < 0)
        return r;
    if (!since)
        get_count(m.result, "seq", &f->seq);
    wire_msg_finish(&m);
    return refresh(f, err);
}

/* Returns true if the event `e` concerns this job. Events of job 0 report whether the daemon can start
 * workers, so they concern every queued job. */
static bool concerns(const struct follower *f, const struct json *e)
{
    uint64_t job = get_count_or(e, "job", f->o->id);
    return job == f->o->id || (job == 0 && strcmp(f->view.state, "queued") == 0);
}

static int on_event(struct follower *f, const struct json *e, struct err *err)
{
    const char *name = get_text(e, "event");
    struct style s = term_style(f->fd);
    struct strbuf line = {0};
    uint64_t seq;
    if (!concerns(f, e))
        return 0;
    if (get_count(e, "seq", &seq)) {
        /* Skip an event that an earlier subscription has already delivered. */
        if (seq <= f->seq && strcmp(name, "gap") != 0)
            return 0;
        f->seq = seq > f->seq ? seq : f->seq;
    }
    if (f->display == DISPLAY_JSON) {
        char *text = json_print(e);
        strbuf_addf(&line, "%s\n", text);
        free(text);
        client_print(&line);
    } else if (!(f->signals > 0 && strcmp(name, "stopping") == 0) && /* on_signals has said it */
               show_event(&line, &s, e)) {
        say(f, line.at, false);
    }
    strbuf_finish(&line);
    view_event(&f->view, e);
    f->dirty = true;
    if (f->display == DISPLAY_LINES && strcmp(name, "progress") == 0)
        show_progress_line(f);
    if (strcmp(name, "ended") != 0 && strcmp(name, "gap") != 0)
        return 0;
    int r = refresh(f, err);
    f->ended = r == 0 && follow_ended(f->job.result);
    return r;
}

/* ---- when things go wrong ---- */

int follow_reconnect(const struct client *c, struct private_daemon *daemon, struct tutti **t, struct err *err)
{
    uint64_t until = clock_now_ns() + RETRY_NS;
    int signals = term_signals(), r = err_set(err, -ECONNREFUSED, "the connection to the daemon is lost");
    tutti_close(*t);
    *t = NULL;
    while (clock_now_ns() < until && term_signals() == signals) {
        if (daemon != NULL && !private_alive(daemon, err))
            return err->code;
        r = tutti_connect(c->socket, t, err);
        if (r == 0)
            return 0;
        if (r != -ECONNREFUSED && r != -ECONNRESET)
            return r;
        clock_sleep_ns(RETRY_GAP_NS);
    }
    return r;
}

/* Called after the connection was lost. Connects to the daemon again and subscribes to the events again. */
static int reattach(struct follower *f, struct err *err)
{
    uint64_t until = clock_now_ns() + RETRY_NS;
    int r;
    say(f, "the connection to the daemon is lost; trying to reconnect for a minute", true);
    if (f->display == DISPLAY_LIVE)
        draw_frame(f, false);
    do {
        r = follow_reconnect(f->c, f->o->daemon, f->t, err);
        if (r < 0)
            return r;
        r = watch_job(f, true, err);
        if (r == 0)
            say(f, "connected to the daemon again", true);
        else
            clock_sleep_ns(RETRY_GAP_NS);
    } while (r < 0 && tutti_lost(*f->t) && clock_now_ns() < until);
    return r;
}

/* Reacts to Ctrl-C. In `tutti run`, the first Ctrl-C makes the job write a checkpoint and stop, and the
 * second stops the job immediately. In other commands the job continues, and the function returns 1, which
 * ends the loop. */
static int on_signals(struct follower *f, struct err *err)
{
    int n = term_signals();
    struct wire_msg m = {0};
    struct strbuf params = {0};
    if (n == f->signals)
        return 0;
    if (f->o->daemon == NULL)
        return 1;
    strbuf_addf(&params, "{\"id\":%" PRIu64 "%s}", f->o->id, n > 1 ? ",\"now\":true" : "");
    say(f, n > 1 ? "stopping at once" : "stopping after a checkpoint (press Ctrl-C again to stop at once)",
        true);
    if (f->display == DISPLAY_LIVE)
        draw_frame(f, false);
    int r = tutti_call(*f->t, "cancel", params.at, &m, err);
    strbuf_finish(&params);
    wire_msg_finish(&m);
    if (r == 0)
        f->signals = n;
    return r;
}

/* ---- the loop ---- */

/* Waits up to a quarter of a second for an event, handles the event, and updates the display. */
static int turn(struct follower *f, struct err *err)
{
    struct wire_msg m = {0};
    int r = tutti_next(*f->t, f->dirty && f->display == DISPLAY_LIVE ? (int)(FRAME_NS / 1000000) : IDLE_MS,
                       &m, err);
    /* r == 0 means that no event is waiting. All events of a job must be shown before the job counts as
     * ended. */
    f->ended = r == 0 && follow_ended(f->job.result);
    f->dirty = true;
    if (r > 0) {
        r = on_event(f, m.params, err);
        wire_msg_finish(&m);
    }
    if (r == 0 && f->display == DISPLAY_LIVE && !f->ended && clock_now_ns() - f->fresh_ns >= FRESH_NS)
        r = refresh(f, err);
    if (update_display(f) < 0 || client_print_failed())
        return err_set(err, -EPIPE, "the terminal was closed");
    return r;
}

/* Follows the job. Returns 0 if the job has ended, 1 if a signal arrived, or a negative errno. */
static int loop(struct follower *f, struct err *err)
{
    int r = watch_job(f, f->o->has_since, err);
    f->ended = r == 0 && !f->o->has_since && follow_ended(f->job.result);
    while (!f->ended && r <= 0) {
        if (r < 0 && (*f->t == NULL || !tutti_lost(*f->t)))
            return r;
        if (r < 0)
            r = reattach(f, err);
        if (r == 0)
            r = on_signals(f, err);
        if (r == 0)
            r = turn(f, err);
    }
    return r;
}

int follow(const struct client *c, struct tutti **t, const struct follow_options *o, struct wire_msg *ret_job)
{
    struct follower *f = xcalloc(1, sizeof *f);
    struct err err = {0};
    *f = (struct follower){.c = c, .o = o, .t = t, .seq = o->since, .signals = term_signals()};
    term_catch_signals();
    choose_display(f);
    int r = loop(f, &err), exit = CLIENT_DONE;
    if (r < 0 && o->daemon == NULL && term_signals() > f->signals)
        r = 1;
    if (f->display == DISPLAY_LIVE) {
        draw_frame(f, r == 0);
        term_end();
    }
    if (r == 0) {
        *ret_job = f->job;
        f->job = (struct wire_msg){0};
    } else if (r > 0) {
        exit = 128 + term_last_signal();
        if (!c->quiet)
            print_error("tutti: job %" PRIu64 " keeps running; `tutti cancel %" PRIu64 "` stops it\n", o->id,
                        o->id);
    } else {
        exit = client_print_failed() ? CLIENT_FAILED : client_fail(c, &err); /* main reports lost output */
    }
    wire_msg_finish(&f->job);
    free(f);
    return exit;
}
