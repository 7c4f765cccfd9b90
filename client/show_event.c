/* Turns events into lines for people. Each function appends the line for one kind of event. */
#include <inttypes.h>
#include <string.h>

#include "base/get.h"
#include "client/show.h"
#include "client/show_private.h"

static void add_event_devices(struct strbuf *b, const struct json *event)
{
    const struct json *devices = get_array(event, "devices");
    size_t n = devices != NULL ? json_array_size(devices) : 0;
    double number;
    if (n == 0)
        return;
    strbuf_addf(b, " on device%s", n == 1 ? "" : "s");
    for (size_t i = 0; i < n && i < 64; i++)
        if (get_number_at(devices, i, &number))
            strbuf_addf(b, "%s%.0f", i > 0 ? ", " : " ", number);
}

static void started(struct strbuf *b, const struct style *s, const struct json *e)
{
    uint64_t attempt = get_count_or(e, "attempt", 1);
    (void)s;
    strbuf_add(b, "started");
    add_event_devices(b, e);
    if (attempt > 1)
        strbuf_addf(b, ", attempt %" PRIu64, attempt);
}

/* The line "planning" is not shown for a plan with fewer tasks than this, because such a plan is ready in a
 * moment. */
#define MANY_TASKS 16384

static void planning(struct strbuf *b, const struct style *s, const struct json *e)
{
    (void)s;
    strbuf_addf(b, "planning a step of %" PRIu64 " tasks with up to ", get_count_or(e, "tasks", 0));
    strbuf_add_bytes(b, get_count_or(e, "planning_bytes", 0));
    strbuf_add(b, " of memory");
}

static void planned(struct strbuf *b, const struct style *s, const struct json *e)
{
    const struct json *plan = get_object(e, "plan"), *peaks = get_array(plan, "device_peak_bytes");
    uint64_t n = peaks != NULL ? json_array_size(peaks) : get_count_or(plan, "devices", 0), value;
    struct traffic t;
    strbuf_add(b, "planned");
    if (get_count(e, "parameters", &value)) {
        strbuf_add(b, ": ");
        show_count(b, (double)value);
        strbuf_add(b, " parameters");
    }
    if (get_count(e, "state_bytes", &value)) {
        strbuf_add(b, ", ");
        strbuf_add_bytes(b, value);
        strbuf_add(b, " of state");
    }
    if (get_text(plan, "policy")[0] != '\0') {
        strbuf_add(b, "; policy ");
        show_text(b, s, get_text(plan, "policy"));
    }
    if (n > 0)
        strbuf_addf(b, " on %" PRIu64 " device%s", n, n == 1 ? "" : "s");
    if (show_plan_traffic(plan, &t)) {
        strbuf_add(b, "\n  ");
        if (get_count(get_object(e, "resolved"), "micro_batch", &value)) {
            strbuf_addf(b, "micro-batch %" PRIu64, value);
            if (get_count(get_object(e, "resolved"), "replicas", &value) && value > 1)
                strbuf_addf(b, ", %" PRIu64 " replicas", value);
            strbuf_add(b, "; ");
        }
        strbuf_add(b, "per step ");
        strbuf_add_bytes(b, t.in);
        strbuf_add(b, " in, ");
        strbuf_add_bytes(b, t.out);
        strbuf_add(b, " out");
        if (t.peer > 0) {
            strbuf_add(b, ", ");
            strbuf_add_bytes(b, t.peer);
            strbuf_add(b, " peer");
        }
    }
}

static void phase(struct strbuf *b, const struct style *s, const struct json *e)
{
    strbuf_addf(b, "phase %" PRIu64 " (", get_count_or(e, "phase", 0));
    show_text(b, s, get_text(e, "name"));
    strbuf_addf(b, "), the last is phase %" PRIu64, get_count_or(e, "phases", 1) - 1);
}

static void resumed(struct strbuf *b, const struct style *s, const struct json *e)
{
    (void)s;
    strbuf_addf(b, "resumed from the checkpoint of step %" PRIu64 "%s", get_count_or(e, "step", 0),
                get_flag(e, "numerics_changed") ? ", written with other numerics: the bits may differ" : "");
}

static void skipped(struct strbuf *b, const struct style *s, const struct json *e)
{
    strbuf_addf(b, "%sstep %" PRIu64 "  skipped: its gradient is not finite%s", show_ink(s, INK_YELLOW),
                get_count_or(e, "step", 0), show_plain(s));
}

static void eval(struct strbuf *b, const struct style *s, const struct json *e)
{
    double loss, accuracy;
    strbuf_addf(b, "step %" PRIu64, get_count_or(e, "step", 0));
    if (get_number(e, "loss", &loss)) {
        strbuf_add(b, "  val loss ");
        show_loss(b, loss);
    }
    if (get_number(e, "accuracy", &accuracy))
        strbuf_addf(b, "  accuracy %s%.2f %%%s", show_ink(s, INK_BOLD), 100 * accuracy, show_plain(s));
    const struct json *blocks = get_array(e, "block_accuracies");
    size_t n = blocks != NULL ? json_array_size(blocks) : 0;
    for (size_t i = 0; i < n && get_number_at(blocks, i, &accuracy); i++)
        strbuf_addf(b, "%s%.2f", i == 0 ? "  of blocks " : " ", 100 * accuracy);
    strbuf_add(b, n > 0 ? " %" : "");
}

/* Appends how well a part of the model learns its label vectors, which are the targets of its training. If
 * the part does not learn, appends a warning with advice. */
static void labels(struct strbuf *b, const struct style *s, const struct json *e)
{
    double error, nearest;
    uint64_t part;
    bool bad = get_text(e, "advice")[0] != '\0';
    strbuf_addf(b, "%sstep %" PRIu64, bad ? show_ink(s, INK_YELLOW) : "", get_count_or(e, "step", 0));
    if (get_count(e, "part", &part))
        strbuf_addf(b, "  partition %" PRIu64, part + 1);
    if (get_number(e, "error", &error))
        strbuf_addf(b, "  label error %.6f", error);
    if (get_number(e, "nearest", &nearest))
        strbuf_addf(b, "  nearest label right for %.2f %%", 100 * nearest);
    strbuf_add(b, "  ");
    show_text(b, s, get_text(e, "verdict"));
    if (bad) {
        strbuf_add(b, ": ");
        show_text(b, s, get_text(e, "advice"));
    }
    strbuf_add(b, bad ? show_plain(s) : "");
}

static void checkpoint(struct strbuf *b, const struct style *s, const struct json *e)
{
    strbuf_addf(b, "%sstep %" PRIu64 "  checkpoint written%s", show_ink(s, INK_DIM),
                get_count_or(e, "step", 0), show_plain(s));
}

static void stopping(struct strbuf *b, const struct style *s, const struct json *e)
{
    const char *by = get_text(e, "by");
    strbuf_addf(b, "%sstopping after a checkpoint", show_ink(s, INK_YELLOW));
    if (by[0] != '\0') {
        strbuf_add(b, " (");
        show_text(b, s, by);
        strbuf_add(b, ")");
    }
    strbuf_add(b, show_plain(s));
}

static void restarting(struct strbuf *b, const struct style *s, const struct json *e)
{
    double in_s = get_number_or(e, "in_s", 0);
    strbuf_addf(b, "%sthe worker failed (", show_ink(s, INK_YELLOW));
    show_text(b, s, get_text(e, "why"));
    strbuf_addf(b, "), failure %" PRIu64 "; it will restart in ", get_count_or(e, "failures", 1));
    show_duration(b, in_s);
    strbuf_add(b, show_plain(s));
}

static void queued(struct strbuf *b, const struct style *s, const struct json *e)
{
    strbuf_add(b, "back in the queue");
    if (get_text(e, "why")[0] != '\0') {
        strbuf_add(b, ": ");
        show_text(b, s, get_text(e, "why"));
    }
}

static void launch_paused(struct strbuf *b, const struct style *s, const struct json *e)
{
    strbuf_addf(b, "%sthe daemon ", show_ink(s, INK_YELLOW));
    show_text(b, s, get_text(e, "why"));
    strbuf_addf(b, "; it will try again by itself%s", show_plain(s));
}

static void launch_resumed(struct strbuf *b, const struct style *s, const struct json *e)
{
    (void)s;
    (void)e;
    strbuf_add(b, "the daemon can start workers again");
}

static void gap(struct strbuf *b, const struct style *s, const struct json *e)
{
    (void)e;
    strbuf_addf(b, "%s(some events were missed)%s", show_ink(s, INK_DIM), show_plain(s));
}

static const struct {
    const char *name;
    void (*add)(struct strbuf *b, const struct style *s, const struct json *e);
} kinds[] = {
    {"checkpoint", checkpoint},
    {"eval", eval},
    {"gap", gap},
    {"labels", labels},
    {"launch_paused", launch_paused},
    {"launch_resumed", launch_resumed},
    {"phase", phase},
    {"planned", planned},
    {"planning", planning},
    {"queued", queued},
    {"restarting", restarting},
    {"resumed", resumed},
    {"skipped", skipped},
    {"started", started},
    {"stopping", stopping},
};

bool show_event(struct strbuf *b, const struct style *s, const struct json *event)
{
    const char *name = get_text(event, "event");
    if (strcmp(name, "planning") == 0 && get_count_or(event, "tasks", 0) < MANY_TASKS)
        return false;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i].name, name) != 0)
            continue;
        kinds[i].add(b, s, event);
        return true;
    }
    return false;
}
