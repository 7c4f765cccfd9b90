/* Formats everything that is known about a job, as `tutti show` prints it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/get.h"
#include "client/show.h"
#include "client/show_private.h"

#define CURVE_ROWS  10
#define CURVE_WIDTH 78
#define EVALS_SHOWN 5

static void add_text_row(struct strbuf *b, const struct style *s, const char *label, const char *text)
{
    if (text[0] == '\0')
        return;
    show_label(b, s, label);
    show_text(b, s, text);
    strbuf_add(b, "\n");
}

static void add_times(struct strbuf *b, const struct style *s, const struct json *job, uint64_t now_ms)
{
    uint64_t submitted, started = 0, ended = 0, attempt = get_count_or(job, "attempt", 0);
    uint64_t failures = get_count_or(job, "failures", 0);
    if (get_count(job, "submitted_ms", &submitted)) {
        show_label(b, s, "submitted");
        show_time(b, submitted);
        strbuf_add(b, " by ");
        show_text(b, s, get_text(job, "user"));
        strbuf_add(b, "\n");
    }
    if (get_count(job, "started_ms", &started)) {
        show_label(b, s, "started");
        show_time(b, started);
        if (attempt > 1)
            strbuf_addf(b, ", attempt %" PRIu64, attempt);
        if (failures > 0)
            strbuf_addf(b, ", %" PRIu64 " failure%s", failures, failures == 1 ? "" : "s");
        strbuf_add(b, "\n");
    }
    if (get_count(job, "ended_ms", &ended)) {
        show_label(b, s, "ended");
        show_time(b, ended);
    } else if (started > 0) {
        show_label(b, s, "running for");
        ended = now_ms;
    }
    if (ended >= started && started > 0) {
        strbuf_add(b, get_node(job, "ended_ms") != NULL ? ", after " : "");
        show_duration(b, (double)(ended - started) / 1000);
    }
    if (ended > 0)
        strbuf_add(b, "\n");
}

static void add_job_devices(struct strbuf *b, const struct style *s, const struct json *job)
{
    const struct json *devices = get_array(job, "devices");
    size_t n = devices != NULL ? json_array_size(devices) : 0;
    double index;
    if (n == 0)
        return;
    show_label(b, s, "devices");
    for (size_t i = 0; i < n && i < 64; i++)
        if (get_number_at(devices, i, &index))
            strbuf_addf(b, "%s%.0f", i > 0 ? ", " : "", index);
    if (get_node(job, "pid") != NULL)
        strbuf_addf(b, "   pid %" PRIu64, get_count_or(job, "pid", 0));
    strbuf_add(b, "\n");
}

/* Appends a row with all members of `object` that are neither objects nor arrays, for example "micro_batch
 * 64, replicas 1, precision fp32". */
static void add_scalars(struct strbuf *b, const struct style *s, const char *label, const struct json *object)
{
    const char *between = "";
    if (object == NULL)
        return;
    show_label(b, s, label);
    for (const struct json *m = json_array_first(object); m != NULL; m = json_array_next(m)) {
        enum json_type type = json_type(m);
        if (type == JSON_ARRAY || type == JSON_OBJECT || type == JSON_NULL)
            continue;
        char *value = json_print(m);
        strbuf_add(b, between);
        show_text(b, s, json_key(m));
        strbuf_add(b, " ");
        show_text(b, s, type == JSON_STRING ? get_text(object, json_key(m)) : value);
        free(value);
        between = ", ";
    }
    strbuf_add(b, "\n");
}

static void add_plan_rows(struct strbuf *b, const struct style *s, const struct json *job)
{
    const struct json *plan = get_object(job, "plan"), *inner = get_object(plan, "plan");
    struct traffic t;
    double v;
    plan = inner != NULL ? inner : plan;
    const struct json *peaks = get_array(plan, "device_peak_bytes");
    if (plan == NULL)
        return;
    show_label(b, s, "plan");
    strbuf_add(b, "policy ");
    show_text(b, s, get_text(plan, "policy"));
    if (get_number(plan, "iteration_s", &v)) {
        strbuf_add(b, ", predicted ");
        show_duration(b, v);
        strbuf_add(b, " per iteration");
    }
    strbuf_add(b, "\n");
    /* Leave out the planned values below if the job has a report, because the report shows the measured
     * values. */
    if (get_object(job, "report") != NULL)
        return;
    if (show_plan_traffic(plan, &t))
        show_traffic(b, s, &t, plan);
    for (size_t i = 0; peaks != NULL && i < json_array_size(peaks) && i < 64; i++)
        if (get_number_at(peaks, i, &v) && v >= 0 && v < 0x1p53) {
            double capacity = get_number_or(plan, "device_bytes", 0);
            get_number_at(get_array(plan, "device_capacity_bytes"), i, &capacity);
            show_peak(b, s, (unsigned)i, (uint64_t)v,
                      capacity > 0 && capacity < 0x1p53 ? (uint64_t)capacity : 0);
        }
}

/* Appends rows with what the job needs, as predicted when the job was planned. */
static void add_needs_rows(struct strbuf *b, const struct style *s, const struct json *job)
{
    static const char *const times[] = {"planning", "loading", "running", "saving"};
    const struct json *needs = get_object(job, "needs"), *host = get_object(needs, "host_bytes");
    const struct json *devices = get_array(needs, "device_bytes");
    double step_ns, left, bytes;
    size_t i = 0;
    if (needs == NULL)
        return;
    show_label(b, s, "predicted");
    show_duration(b, get_number(needs, "step_ns", &step_ns) ? step_ns * 1e-9 : 0);
    strbuf_add(b, " per step (times: ");
    show_text(b, s, get_text(needs, "times"));
    strbuf_add(b, ")");
    if (get_number(job, "predicted_left_s", &left)) {
        strbuf_add(b, ", ");
        show_duration(b, left);
        strbuf_add(b, " left");
    }
    strbuf_add(b, "\n");
    show_label(b, s, "needs");
    for (; devices != NULL && i < json_array_size(devices) && i < 64; i++)
        if (get_number_at(devices, i, &bytes) && bytes >= 0 && bytes < 0x1p53) {
            strbuf_add(b, i > 0 ? ", " : "");
            strbuf_add_bytes(b, (uint64_t)bytes);
        }
    strbuf_add(b, i > 1 ? " of its devices\n" : " of its device\n");
    show_label(b, s, "host memory");
    for (i = 0; i < sizeof times / sizeof times[0]; i++) {
        strbuf_addf(b, "%s%s ", i > 0 ? ", " : "", times[i]);
        strbuf_add_bytes(b, get_count_or(host, times[i], 0));
    }
    strbuf_add(b, "\n");
}

static void add_progress_rows(struct strbuf *b, const struct style *s, const struct json *job)
{
    const struct json *p = get_object(job, "progress");
    uint64_t step, total = get_count_or(job, "total_steps", 0), in, out;
    double v;
    if (!get_count(job, "step", &step) || (step == 0 && total == 0))
        return;
    show_label(b, s, "progress");
    if (total > 0) {
        show_bar(b, s, (double)step / (double)total, 24);
        strbuf_add(b, " ");
    }
    strbuf_addf(b, "step %" PRIu64, step);
    if (total > 0)
        strbuf_addf(b, " of %" PRIu64, total);
    if (get_number(job, "loss", &v)) {
        strbuf_add(b, "   loss ");
        show_loss(b, v);
    }
    if (get_number(job, "samples_per_s", &v)) {
        strbuf_add(b, "   ");
        show_count(b, v);
        strbuf_add(b, " samples/s");
    }
    if (get_node(job, "ended_ms") == NULL && get_number(job, "eta_s", &v)) {
        strbuf_add(b, "   ");
        show_duration(b, v);
        strbuf_add(b, " left");
    }
    strbuf_add(b, "\n");
    if (get_count(p, "in_bytes", &in) && get_count(p, "out_bytes", &out)) {
        show_label(b, s, "moved");
        strbuf_add_bytes(b, in);
        strbuf_add(b, " in, ");
        strbuf_add_bytes(b, out);
        strbuf_add(b, " out, ");
        strbuf_add_bytes(b, get_count_or(p, "peer_bytes", 0));
        strbuf_add(b, " peer");
        if (get_number(p, "stall_share", &v)) {
            strbuf_add(b, "; stalled ");
            show_percent(b, v);
        }
        strbuf_add(b, "\n");
    }
}

/* Appends one row for each of the job's last `most` evaluations. */
static void add_eval_rows(struct strbuf *b, const struct style *s, const struct json *job, int most)
{
    const struct json *evals = get_array(job, "evals");
    int n = evals != NULL ? (int)json_array_size(evals) : 0, i = 0;
    for (const struct json *e = n > 0 ? json_array_first(evals) : NULL; e != NULL;
         e = json_array_next(e), i++) {
        double step, loss, accuracy;
        if (i < n - most || !get_number_at(e, 0, &step) || !get_number_at(e, 1, &loss))
            continue;
        show_label(b, s, i == (n > most ? n - most : 0) ? "evaluations" : "");
        strbuf_addf(b, "step %-6.0f val loss ", step);
        show_loss(b, loss);
        if (get_number_at(e, 2, &accuracy))
            strbuf_addf(b, "   accuracy %.2f %%", 100 * accuracy);
        strbuf_add(b, "\n");
    }
}

void show_job(struct strbuf *b, const struct style *s, const struct json *job, uint64_t now_ms)
{
    const char *state = get_text(job, "state"), *reason = get_text(job, "reason");
    const struct json *report = get_object(job, "report");
    struct curve *curve = calloc(1, sizeof *curve);
    if (curve == NULL)
        abort();
    strbuf_addf(b, "job %" PRIu64 "  %s", get_count_or(job, "id", 0), show_ink(s, INK_BOLD));
    show_text(b, s, get_text(job, "name"));
    strbuf_addf(b, "%s  %s", show_plain(s), show_ink(s, show_state_ink(state)));
    show_text(b, s, state);
    strbuf_add(b, show_plain(s));
    if (reason[0] != '\0') {
        strbuf_add(b, " (");
        show_text(b, s, reason);
        strbuf_add(b, ")");
    }
    strbuf_add(b, "\n");
    show_error(b, s, job);
    add_times(b, s, job, now_ms);
    add_job_devices(b, s, job);
    add_text_row(b, s, "directory", get_text(job, "dir"));
    add_text_row(b, s, "output", get_text(job, "output"));
    add_scalars(b, s, "resolved", get_object(job, "resolved"));
    add_plan_rows(b, s, job);
    add_needs_rows(b, s, job);
    if (report == NULL)
        add_progress_rows(b, s, job);
    show_report_rows(b, s, report);
    add_eval_rows(b, s, job, EVALS_SHOWN);
    curve_from_json(curve, get_array(job, "curve"));
    show_curve(
        b, s, curve,
        &(struct plot){s->width > 0 && s->width < CURVE_WIDTH ? s->width : CURVE_WIDTH, CURVE_ROWS, "  "});
    free(curve);
}
