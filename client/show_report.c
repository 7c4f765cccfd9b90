/* Formats the final report of a job: loss, speed, bytes moved and peak memory. The bytes moved are compared
 * with the lower bound and with the bytes that demand paging would move. Unknown values are left out. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/get.h"
#include "client/show.h"
#include "client/show_private.h"

#define LABEL_COLUMNS 12
#define BYTES_COLUMNS 12

void show_label(struct strbuf *b, const struct style *s, const char *label)
{
    strbuf_addf(b, "  %s%-*s%s", show_ink(s, INK_DIM), LABEL_COLUMNS, label, show_plain(s));
}

/* ---- bytes ---- */

static void add_bytes_cell(struct strbuf *b, uint64_t bytes)
{
    struct strbuf text = {0};
    strbuf_add_bytes(&text, bytes);
    strbuf_addf(b, "%*s", BYTES_COLUMNS, text.at);
    strbuf_finish(&text);
}

static void add_bytes_row(struct strbuf *b, const char *label, const struct traffic *t)
{
    strbuf_addf(b, "    %-14s", label);
    add_bytes_cell(b, t->in);
    add_bytes_cell(b, t->out);
    add_bytes_cell(b, t->peer);
    add_bytes_cell(b, t->in + t->out);
}

/* Reads numbers of bytes moved from the members `in`, `out` and `peer` of `o`. Returns false if the member
 * `in` or `out` is missing. */
static bool read_traffic(const struct json *o, const char *in, const char *out, const char *peer,
                         struct traffic *ret)
{
    *ret = (struct traffic){0};
    bool known = get_count(o, in, &ret->in);
    known = get_count(o, out, &ret->out) && known;
    ret->peer = get_count_or(o, peer, 0);
    return known;
}

/* Returns the number of bytes that a training step moves for state (such as weights) and for stash (such as
 * activations). The lower bound counts only these bytes, and not training samples. If `from` has no separate
 * numbers for state and stash, returns `otherwise`. */
static uint64_t bounded_bytes(const struct json *from, uint64_t otherwise)
{
    static const char *const keys[] = {"state_in", "state_out", "stash_in", "stash_out"};
    const struct json *step = get_object(from, "step_bytes");
    uint64_t sum = 0, v;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (!get_count(step, keys[i], &v))
            return otherwise;
        sum += v;
    }
    return sum;
}

void show_traffic(struct strbuf *b, const struct style *s, const struct traffic *t, const struct json *from)
{
    struct traffic lru;
    uint64_t bound, host = t->in + t->out;
    strbuf_addf(b, "  %s%-16s%*s%*s%*s%*s%s\n", show_ink(s, INK_DIM), "bytes per iteration",
                BYTES_COLUMNS - 3, "in", BYTES_COLUMNS, "out", BYTES_COLUMNS, "peer", BYTES_COLUMNS,
                "in + out", show_plain(s));
    add_bytes_row(b, "this plan", t);
    strbuf_add(b, "\n");
    if (get_count(from, "bound_bytes", &bound)) {
        strbuf_addf(b, "    %-14s%*s", "lower bound", 3 * BYTES_COLUMNS, "");
        add_bytes_cell(b, bound);
        if (bound > 0) {
            strbuf_add(b, "  plan ");
            show_ratio(b, (double)bounded_bytes(from, host) / (double)bound);
            strbuf_add(b, " (state and stash)");
        }
        strbuf_add(b, "\n");
    }
    if (read_traffic(get_object(from, "lru_bytes"), "in", "out", "peer", &lru)) {
        add_bytes_row(b, "demand paging", &lru);
        if (host > 0) {
            strbuf_addf(b, "  %s", show_ink(s, INK_BOLD));
            show_ratio(b, (double)(lru.in + lru.out) / (double)host);
            strbuf_addf(b, "%s plan", show_plain(s));
        }
        strbuf_add(b, "\n");
    }
}

bool show_plan_traffic(const struct json *plan, struct traffic *ret)
{
    /* There are two forms of plans. The worker's summary has the member "step_bytes". The output of `tutti
     * plan --json` has "host_in_bytes". */
    return read_traffic(get_object(plan, "step_bytes"), "in", "out", "peer", ret) ||
           read_traffic(plan, "host_in_bytes", "host_out_bytes", "peer_bytes", ret);
}

/* ---- devices ---- */

void show_peak(struct strbuf *b, const struct style *s, unsigned device, uint64_t peak, uint64_t capacity)
{
    char label[24];
    snprintf(label, sizeof label, "device %u", device);
    show_label(b, s, label);
    strbuf_add(b, "peak");
    add_bytes_cell(b, peak);
    if (capacity > 0) {
        strbuf_add(b, " of ");
        strbuf_add_bytes(b, capacity);
        strbuf_add(b, "  ");
        show_bar(b, s, (double)peak / (double)capacity, 22);
        strbuf_add(b, " ");
        show_percent(b, (double)peak / (double)capacity);
    }
    strbuf_add(b, "\n");
}

static void add_device_peaks(struct strbuf *b, const struct style *s, const struct json *report)
{
    const struct json *devices = get_array(report, "devices"),
                      *d = devices != NULL ? json_array_first(devices) : NULL;
    for (unsigned i = 0; d != NULL; d = json_array_next(d), i++) {
        uint64_t peak;
        if (get_count(d, "peak_bytes", &peak))
            show_peak(b, s, i, peak, get_count_or(d, "capacity_bytes", 0));
    }
}

/* ---- the page ---- */

static void add_head(struct strbuf *b, const struct style *s, const struct json *job)
{
    const char *state = get_text(job, "state");
    const struct json *report = get_object(job, "report");
    uint64_t step = 0, total = 0, resumed;
    strbuf_add(b, show_ink(s, INK_BOLD));
    show_text(b, s, get_text(job, "name"));
    strbuf_addf(b, "%s: %s", show_plain(s), show_ink(s, show_state_ink(state)));
    show_text(b, s, state);
    strbuf_add(b, show_plain(s));
    if (!get_count(report, "steps", &step))
        get_count(job, "step", &step);
    if (!get_count(report, "total_steps", &total))
        get_count(job, "total_steps", &total);
    if (total > 0)
        strbuf_addf(b, " at step %" PRIu64 " of %" PRIu64, step, total);
    if (get_count(report, "resumed_from", &resumed) && resumed > 0)
        strbuf_addf(b, " (resumed from %" PRIu64 ")", resumed);
    strbuf_add(b, "\n");
}

void show_error(struct strbuf *b, const struct style *s, const struct json *job)
{
    const struct json *error = get_object(job, "error");
    const char *path = get_text(error, "path");
    if (error == NULL)
        return;
    show_label(b, s, "error");
    strbuf_add(b, show_ink(s, INK_RED));
    show_text(b, s, path);
    strbuf_add(b, path[0] != '\0' ? ": " : "");
    show_text(b, s, get_text(error, "message"));
    strbuf_addf(b, "%s\n", show_plain(s));
}

static void add_speed(struct strbuf *b, const struct style *s, const struct json *report)
{
    double seconds, rate, stall;
    if (get_number(report, "seconds", &seconds)) {
        show_label(b, s, "time");
        show_duration(b, seconds);
        if (get_number(report, "samples_per_s", &rate)) {
            strbuf_add(b, "   ");
            show_count(b, rate);
            strbuf_add(b, " samples/s");
        }
        if (get_number(report, "stall_share", &stall)) {
            uint64_t steps = get_count_or(report, "stall_traced_steps", 0);
            strbuf_add(b, "   stalled ");
            show_percent(b, stall);
            if (steps > 0)
                strbuf_addf(b, " (from %" PRIu64 " traced step%s)", steps, steps == 1 ? "" : "s");
        }
        strbuf_add(b, "\n");
    }
}

static void add_quality(struct strbuf *b, const struct style *s, const struct json *report)
{
    double loss, val, accuracy;
    uint64_t skipped = get_count_or(report, "skipped_steps", 0);
    if (!get_number(report, "loss", &loss))
        return;
    show_label(b, s, "loss");
    show_loss(b, loss);
    if (get_number(report, "val_loss", &val)) {
        strbuf_add(b, "   val loss ");
        show_loss(b, val);
    }
    if (get_number(report, "val_accuracy", &accuracy))
        strbuf_addf(b, "   val accuracy %s%.2f %%%s", show_ink(s, INK_BOLD), 100 * accuracy, show_plain(s));
    if (get_number(report, "val_perplexity", &val))
        strbuf_addf(b, "   val perplexity %.4g", val);
    if (skipped > 0)
        strbuf_addf(b, "   %" PRIu64 " steps skipped", skipped);
    strbuf_add(b, "\n");
}

/* Adds rows with the figures of each block of local updates in the last training step, or of each partition
 * if several are trained at once. Blocks count from 0, as layers do. Partitions count from 1, as in the names
 * of phases. */
static void add_block_rows(struct strbuf *b, const struct style *s, const struct json *report)
{
    const struct json *blocks = get_array(report, "blocks"),
                      *k = blocks != NULL ? json_array_first(blocks) : NULL;
    bool partitions = strcmp(get_text(report, "method"), "sil") == 0;
    for (; k != NULL; k = json_array_next(k)) {
        char label[32];
        double v;
        snprintf(label, sizeof label, "%s %" PRIu64, partitions ? "partition" : "block",
                 get_count_or(k, "block", 0) + partitions);
        show_label(b, s, label);
        strbuf_add(b, "loss ");
        if (get_number(k, "loss", &v))
            show_loss(b, v);
        if (get_number(k, "accuracy", &v))
            strbuf_addf(b, "   accuracy %.2f %%", 100 * v);
        strbuf_add(b, " (of the last step)\n");
    }
}

/* Adds a row for each phase, if the job has several: what it trains, how much device memory it needs, and how
 * many bytes it moves. The bytes in the other rows are those of the largest phase. */
static void add_phase_rows(struct strbuf *b, const struct style *s, const struct json *report)
{
    const struct json *list = get_array(report, "phases"), *p = list != NULL ? json_array_first(list) : NULL;
    uint64_t largest = get_count_or(report, "phase", 0);
    for (unsigned i = 0; p != NULL; p = json_array_next(p), i++) {
        const struct json *peaks = get_array(p, "device_peak_bytes");
        char label[24];
        double peak = 0, v;
        struct traffic t;
        snprintf(label, sizeof label, "phase %u", i);
        show_label(b, s, label);
        show_text(b, s, get_text(p, "name"));
        uint64_t steps = get_count_or(p, "steps", 0);
        if (steps > 0)
            strbuf_addf(b, "   %" PRIu64 " steps", steps);
        for (size_t d = 0; peaks != NULL && d < json_array_size(peaks); d++)
            if (get_number_at(peaks, d, &v) && v > peak && v < 0x1p53)
                peak = v;
        if (peak > 0) {
            strbuf_add(b, "   peak ");
            strbuf_add_bytes(b, (uint64_t)peak);
        }
        if (read_traffic(get_object(p, "step_bytes"), "in", "out", "peer", &t)) {
            strbuf_add(b, "   moved in a ");
            strbuf_add(b, steps > 0 ? "step " : "batch ");
            strbuf_add_bytes(b, t.in + t.out);
        }
        strbuf_add(b, i == largest ? "   (the largest: bytes below)\n" : "\n");
    }
}

/* Adds rows that say how well parts of the model learned their label vectors. */
static void add_label_rows(struct strbuf *b, const struct style *s, const struct json *report)
{
    const struct json *list = get_array(report, "labels"), *k = list != NULL ? json_array_first(list) : NULL;
    for (; k != NULL; k = json_array_next(k)) {
        double v;
        uint64_t part;
        show_label(b, s, "labels");
        strbuf_addf(b, "phase %" PRIu64, get_count_or(k, "phase", 0));
        if (get_count(k, "part", &part))
            strbuf_addf(b, ", partition %" PRIu64, part + 1);
        if (get_number(k, "error", &v))
            strbuf_addf(b, "   error %.6f", v);
        if (get_number(k, "nearest", &v))
            strbuf_addf(b, "   nearest label right for %.2f %%", 100 * v);
        strbuf_add(b, "   ");
        show_text(b, s, get_text(k, "verdict"));
        strbuf_add(b, get_text(k, "advice")[0] != '\0' ? ": " : "");
        show_text(b, s, get_text(k, "advice"));
        strbuf_add(b, "\n");
    }
}

/* Appends a number of floating-point operations, such as "1.23 TFLOP". */
static void add_flop(struct strbuf *b, double v)
{
    static const char *const units[] = {"", "k", "M", "G", "T", "P", "E"};
    size_t unit = 0;
    for (; v >= 999.5 && unit + 1 < sizeof units / sizeof units[0]; unit++)
        v /= 1000;
    strbuf_addf(b, "%.3g %sFLOP", v, units[unit]);
}

/* Adds a row with the work of the training beside that of backpropagation, for other methods. */
static void add_work_row(struct strbuf *b, const struct style *s, const struct json *report)
{
    const struct json *flops = get_object(report, "flops");
    double total, sequential, backprop;
    if (get_text(report, "method")[0] == '\0' || !get_number(flops, "total", &total) ||
        !get_number(flops, "sequential", &sequential) || !get_number(flops, "backprop", &backprop))
        return;
    show_label(b, s, "work");
    add_flop(b, total);
    strbuf_add(b, ", one after another ");
    add_flop(b, sequential);
    strbuf_add(b, "; backpropagation ");
    add_flop(b, backprop);
    strbuf_add(b, "\n");
}

static void add_plan_row(struct strbuf *b, const struct style *s, const struct json *report)
{
    const char *policy = get_text(report, "policy");
    uint64_t rows, replicas;
    if (policy[0] == '\0')
        return;
    show_label(b, s, "plan");
    strbuf_add(b, "policy ");
    show_text(b, s, policy);
    if (get_count(report, "micro_batch", &rows))
        strbuf_addf(b, ", micro-batch %" PRIu64, rows);
    if (get_count(report, "replicas", &replicas) && replicas > 1)
        strbuf_addf(b, ", %" PRIu64 " replicas", replicas);
    if (get_count(report, "cycle_steps", &rows) && rows > 1)
        strbuf_addf(b, ", %" PRIu64 " steps in a cycle", rows);
    strbuf_add(b, "\n");
}

static void add_weights(struct strbuf *b, const struct style *s, const struct json *report)
{
    const char *hash = get_text(report, "weights_hash"), *numerics = get_text(report, "numerics");
    if (hash[0] == '\0')
        return;
    show_label(b, s, "weights");
    show_text(b, s, hash);
    if (numerics[0] != '\0') {
        strbuf_add(b, "  (");
        show_text(b, s, numerics);
        strbuf_add(b, ")");
    }
    if (get_flag(report, "numerics_changed"))
        strbuf_add(b, "  resumed with other numerics: the bits may differ");
    strbuf_add(b, "\n");
}

void show_report_rows(struct strbuf *b, const struct style *s, const struct json *report)
{
    struct traffic t;
    add_speed(b, s, report);
    add_quality(b, s, report);
    add_block_rows(b, s, report);
    add_label_rows(b, s, report);
    add_work_row(b, s, report);
    add_phase_rows(b, s, report);
    if (read_traffic(get_object(report, "step_bytes"), "in", "out", "peer", &t))
        show_traffic(b, s, &t, report);
    add_device_peaks(b, s, report);
    add_weights(b, s, report);
}

void show_report(struct strbuf *b, const struct style *s, const struct json *job)
{
    const char *output = get_text(job, "output");
    add_head(b, s, job);
    show_error(b, s, job);
    add_plan_row(b, s, get_object(job, "report"));
    show_report_rows(b, s, get_object(job, "report"));
    if (output[0] != '\0') {
        show_label(b, s, "output");
        show_text(b, s, output);
        strbuf_add(b, "\n");
    }
}

static void add_member(struct strbuf *b, const struct json *job, const char *key)
{
    const struct json *node = get_node(job, key);
    char *text = node != NULL ? json_print(node) : NULL;
    strbuf_addf(b, ",\"%s\":%s", key, text != NULL ? text : "null");
    free(text);
}

void show_outcome_json(struct strbuf *b, const struct json *job)
{
    static const char *const keys[] = {"id",          "name",  "state",  "step",
                                       "total_steps", "error", "output", "report"};
    bool done = strcmp(get_text(job, "state"), "done") == 0;
    strbuf_addf(b, "{\"ok\":%s,\"exit\":%" PRIu64, done ? "true" : "false",
                get_count_or(job, "exit", done ? 0 : 1));
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        add_member(b, job, keys[i]);
    strbuf_add(b, "}");
}
