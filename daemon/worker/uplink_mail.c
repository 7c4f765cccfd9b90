/* The uplink's mailbox: the functions that post messages, and those that compose the bytes to send from what
 * was posted.
 *
 * Events are kept in a ring, because each of them matters. Of progress, curve and plan only the newest
 * value is kept. A message is "due" when it must be sent and enough time has passed since the last one of
 * its kind.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "daemon/worker/uplink_private.h"

/* ---- posting; the caller's thread ---- */

void uplink_wake(struct uplink *l)
{
    uint64_t one = 1;
    ssize_t n = write(l->wake_fd, &one, sizeof one);
    (void)n; /* on failure, a wake-up is already pending */
}

/* Prints the number `v` as JSON. NaN and infinity become null, because JSON has no such numbers. */
static const char *number(char buf[32], double v)
{
    if (!isfinite(v))
        return "null";
    snprintf(buf, 32, "%.9g", v);
    return buf;
}

/* Adds the key "phase" to the JSON object in `buf`, if the job has several phases. The caller must hold the
 * mutex. */
static void add_phase(const struct uplink *l, char *buf, size_t size)
{
    size_t n = strlen(buf);
    if (l->has_phase && n > 0)
        snprintf(buf + n - 1, size - n + 1, ",\"phase\":%" PRIu32 "}", l->phase);
}

/* Appends ,"key":[1.5,2.25] to the JSON object in `buf`, which has no closing brace yet. Does nothing if
 * there are no numbers, or if there is no room for them. */
static void add_numbers(char *buf, size_t size, const char *key, const double *v, uint32_t n)
{
    char text[32];
    size_t end = strlen(buf);
    if (n == 0 || size - end < 16 + strlen(key) + n * sizeof "-1.2345e-100,")
        return;
    end += (size_t)snprintf(buf + end, size - end, ",\"%s\":[", key);
    for (uint32_t i = 0; i < n; i++) {
        snprintf(text, sizeof text, "%.5g", v[i]);
        end +=
            (size_t)snprintf(buf + end, size - end, "%s%s", i > 0 ? "," : "", isfinite(v[i]) ? text : "null");
    }
    snprintf(buf + end, size - end, "]");
}

/* Ends the JSON object in `buf` with the losses and accuracies of blocks, if there are any. */
static void end_with_blocks(char *buf, size_t size, const struct uplink_blocks *blocks)
{
    add_numbers(buf, size - 2, "blocks", blocks->loss, blocks->n);
    add_numbers(buf, size - 2, "block_accuracies", blocks->accuracy, blocks->n);
    size_t n = strlen(buf);
    snprintf(buf + n, size - n, "}");
}

static void print_progress(const struct uplink *l, char *buf, size_t size)
{
    const struct uplink_progress *p = &l->progress;
    char loss[32], lr[32], rate[32], eta[32], stall[32];
    snprintf(buf, size,
             "{\"step\":%" PRIu64 ",\"total_steps\":%" PRIu64
             ",\"loss\":%s,\"lr\":%s,\"samples_per_s\":%s,\"eta_s\":%s,\"in_bytes\":%" PRIu64
             ",\"out_bytes\":%" PRIu64 ",\"peer_bytes\":%" PRIu64 ",\"stall_share\":%s",
             p->step, p->total_steps, number(loss, p->loss), number(lr, p->lr),
             number(rate, p->samples_per_s), number(eta, p->eta_s), p->in_bytes, p->out_bytes, p->peer_bytes,
             number(stall, p->stall_share));
    size_t n = strlen(buf);
    if (p->loss_scale > 0)
        snprintf(buf + n, size - n, ",\"loss_scale\":%.17g", p->loss_scale);
    end_with_blocks(buf, size, &p->blocks);
    add_phase(l, buf, size);
}

/* Appends a new event to the ring and returns the event. If the ring is full, drops the oldest event. The
 * event `resumed` is never dropped, because it is posted only once in a run. The caller must hold the
 * mutex. */
static struct uplink_event *add_event(struct uplink *l, const char *method)
{
    if (l->n_events == MAX_EVENTS) {
        struct uplink_event *oldest = &l->events[l->first_event];
        l->first_event = (l->first_event + 1) % MAX_EVENTS;
        if (strcmp(oldest->method, "resumed") == 0)
            l->events[l->first_event] = *oldest;
        l->n_events--;
    }
    struct uplink_event *e = &l->events[(l->first_event + l->n_events++) % MAX_EVENTS];
    e->method = method;
    return e;
}

/* Moves a waiting progress message to the end of the ring of events, so that it is sent before the next
 * event. The caller must hold the mutex. */
static void settle_progress(struct uplink *l)
{
    if (!l->progress_due)
        return;
    print_progress(l, add_event(l, "progress")->params, EVENT_BYTES);
    l->progress_due = false;
}

/* Posts an event. Its params are formatted from `fmt` and the arguments after it, as by printf. If `settle`
 * is true, a waiting progress message is sent before the event. */
static void post(struct uplink *l, const char *method, bool settle, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static void post(struct uplink *l, const char *method, bool settle, const char *fmt, ...)
{
    va_list ap;
    pthread_mutex_lock(&l->mutex);
    if (settle)
        settle_progress(l);
    char *params = add_event(l, method)->params;
    va_start(ap, fmt);
    vsnprintf(params, EVENT_BYTES, fmt, ap);
    va_end(ap);
    add_phase(l, params, EVENT_BYTES);
    pthread_mutex_unlock(&l->mutex);
    uplink_wake(l);
}

void uplink_history_step(struct uplink *l, uint64_t step, double loss)
{
    pthread_mutex_lock(&l->mutex);
    curve_add(&l->curve, step, loss);
    l->curve_due = true;
    pthread_mutex_unlock(&l->mutex);
}

void uplink_history_eval(struct uplink *l, uint64_t step, double loss, double accuracy)
{
    pthread_mutex_lock(&l->mutex);
    l->evals[l->n_evals++ % MAX_EVALS] = (struct uplink_eval){step, loss, accuracy};
    l->curve_due = true;
    pthread_mutex_unlock(&l->mutex);
}

void uplink_planning(struct uplink *l, uint32_t micro_batch, uint64_t tasks, uint64_t bytes)
{
    pthread_mutex_lock(&l->mutex);
    snprintf(l->planning, sizeof l->planning,
             "{\"micro_batch\":%" PRIu32 ",\"tasks\":%" PRIu64 ",\"planning_bytes\":%" PRIu64 "}",
             micro_batch, tasks, bytes);
    l->planning_due = true;
    pthread_mutex_unlock(&l->mutex);
    uplink_wake(l);
}

void uplink_planned(struct uplink *l, const char *params)
{
    pthread_mutex_lock(&l->mutex);
    l->planned.n = 0;
    strbuf_add(&l->planned, params);
    l->has_planned = true;
    l->planned_due = true;
    pthread_mutex_unlock(&l->mutex);
    uplink_wake(l);
}

void uplink_resumed(struct uplink *l, uint64_t step, bool numerics_changed)
{
    post(l, "resumed", false, "{\"step\":%" PRIu64 ",\"numerics_changed\":%s}", step,
         numerics_changed ? "true" : "false");
}

void uplink_phase(struct uplink *l, uint32_t phase, uint32_t n_phases, const char *name)
{
    pthread_mutex_lock(&l->mutex);
    settle_progress(l);
    l->has_phase = true;
    l->phase = phase;
    pthread_mutex_unlock(&l->mutex);
    post(l, "phase", false, "{\"phases\":%" PRIu32 ",\"name\":\"%s\"}", n_phases, name);
}

void uplink_outputs(struct uplink *l, uint64_t samples, uint64_t total)
{
    post(l, "outputs", true, "{\"samples\":%" PRIu64 ",\"total_samples\":%" PRIu64 "}", samples, total);
}

void uplink_progress(struct uplink *l, const struct uplink_progress *p)
{
    pthread_mutex_lock(&l->mutex);
    /* If a progress message is already waiting, the uplink thread knows about it and does not have to be
     * woken again. */
    bool first = !l->progress_due;
    l->progress = *p;
    l->has_progress = l->progress_due = l->curve_due = true;
    curve_add(&l->curve, p->step, p->loss);
    pthread_mutex_unlock(&l->mutex);
    if (first)
        uplink_wake(l);
}

void uplink_skipped(struct uplink *l, uint64_t step)
{
    post(l, "skipped", false, "{\"step\":%" PRIu64 "}", step);
}

void uplink_eval(struct uplink *l, uint64_t step, double loss, double accuracy,
                 const struct uplink_blocks *blocks)
{
    char a[32], b[32], text[EVENT_BYTES - 64];
    uplink_history_eval(l, step, loss, accuracy);
    snprintf(text, sizeof text, "{\"step\":%" PRIu64 ",\"loss\":%s,\"accuracy\":%s", step, number(a, loss),
             number(b, accuracy));
    end_with_blocks(text, sizeof text, blocks);
    post(l, "eval", true, "%s", text);
}

void uplink_labels(struct uplink *l, const struct labels *labels, uint32_t n_labels)
{
    char error[32], nearest[32];
    enum labels_verdict v = labels_judge(labels);
    const char *advice = labels_advice(labels);
    char part[32] = "";
    if (n_labels > 1)
        snprintf(part, sizeof part, ",\"part\":%" PRIu32, labels->part);
    post(l, "labels", true, "{\"step\":%" PRIu64 "%s,\"error\":%s,\"nearest\":%s,\"verdict\":\"%s\"%s%s%s}",
         labels->step, part, number(error, labels->error), number(nearest, labels->nearest),
         labels_verdict_names[v], advice != NULL ? ",\"advice\":\"" : "", advice != NULL ? advice : "",
         advice != NULL ? "\"" : "");
}

void uplink_checkpoint(struct uplink *l, uint64_t step)
{
    post(l, "checkpoint", true, "{\"step\":%" PRIu64 "}", step);
}

/* ---- composing messages (with the mutex held) ---- */

static void add_evals(const struct uplink *l, struct strbuf *b)
{
    uint64_t first = l->n_evals > MAX_EVALS ? l->n_evals - MAX_EVALS : 0;
    char loss[32], accuracy[32];
    strbuf_add(b, "[");
    for (uint64_t i = first; i < l->n_evals; i++) {
        const struct uplink_eval *e = &l->evals[i % MAX_EVALS];
        strbuf_addf(b, "%s[%" PRIu64 ",%s,%s]", i > first ? "," : "", e->step, number(loss, e->loss),
                    number(accuracy, e->accuracy));
    }
    strbuf_add(b, "]");
}

static void add_notification(struct uplink *l, const char *method, const char *params)
{
    wire_begin_notification(&l->out, method);
    strbuf_add(&l->out, params);
    wire_end(&l->out);
}

void uplink_add_hello(struct uplink *l)
{
    const struct uplink_config *c = &l->config;
    wire_begin_request(&l->out, ID_HELLO, "hello");
    strbuf_addf(&l->out,
                "{\"protocol\":%d,\"job\":%" PRIu64 ",\"attempt\":%" PRIu64 ",\"secret\":", WIRE_PROTOCOL,
                c->job, c->attempt);
    strbuf_add_json(&l->out, c->secret);
    strbuf_addf(&l->out, ",\"pid\":%d,\"phase\":\"%s\"}", (int)getpid(), l->has_job ? "running" : "new");
    wire_end(&l->out);
}

static void add_curve(struct uplink *l, uint64_t now)
{
    wire_begin_notification(&l->out, "curve");
    strbuf_add(&l->out, "{\"points\":");
    curve_json(&l->curve, &l->out);
    strbuf_add(&l->out, ",\"evals\":");
    add_evals(l, &l->out);
    strbuf_add(&l->out, "}");
    wire_end(&l->out);
    l->curve_due = false;
    l->curve_ns = now;
}

static void add_events(struct uplink *l)
{
    for (; l->n_events > 0; l->n_events--) {
        const struct uplink_event *e = &l->events[l->first_event];
        add_notification(l, e->method, e->params);
        l->first_event = (l->first_event + 1) % MAX_EVENTS;
    }
}

static void add_progress(struct uplink *l, uint64_t now)
{
    char params[EVENT_BYTES];
    print_progress(l, params, sizeof params);
    add_notification(l, "progress", params);
    l->progress_due = false;
    l->progress_ns = now;
}

static void add_outcome(struct uplink *l)
{
    wire_begin_request(&l->out, ID_OUTCOME, "outcome");
    strbuf_add(&l->out, l->outcome.at);
    wire_end(&l->out);
    l->outcome_due = false;
}

/* Returns the earliest time at which the next message of one kind may be sent. `last` is the time of the
 * previous message of this kind, or 0 if there was none. `every` is the shortest pause between two of these
 * messages. Returns NEVER if no message is wanted. */
static uint64_t due(bool wanted, uint64_t last, uint64_t every)
{
    return !wanted ? NEVER : last == 0 ? 0 : last + every;
}

/* Adds all messages that are due. Their order is the one that a reader expects: plan, curve, events,
 * progress, outcome. */
void uplink_add_due(struct uplink *l, uint64_t now)
{
    const struct uplink_times *t = &l->config.times;
    /* The message `planning` is sent before `planned`, even if planning has already ended when the connection
     * is made. */
    if (l->planning_due)
        add_notification(l, "planning", l->planning);
    if (l->planned_due)
        add_notification(l, "planned", l->planned.at);
    l->planning_due = l->planned_due = false;
    if (now >= due(l->curve_due, l->curve_ns, t->curve_ns))
        add_curve(l, now);
    add_events(l);
    if (now >= due(l->progress_due, l->progress_ns, t->progress_ns))
        add_progress(l, now);
    if (l->outcome_due)
        add_outcome(l);
    if (l->out.n == 0 && now >= l->sent_ns + t->alive_ns)
        add_notification(l, "alive", "{}");
}

uint64_t uplink_next_due(const struct uplink *l)
{
    const struct uplink_times *t = &l->config.times;
    uint64_t at = l->sent_ns + t->alive_ns;
    if (l->planning_due || l->planned_due || l->n_events > 0 || l->outcome_due)
        return 0; /* posted while earlier bytes were being sent */
    at = uplink_earlier(at, due(l->progress_due, l->progress_ns, t->progress_ns));
    return uplink_earlier(at, due(l->curve_due, l->curve_ns, t->curve_ns));
}

void uplink_set_outcome(struct uplink *l, const char *members, uint64_t step)
{
    struct strbuf *b = &l->outcome;
    settle_progress(l);
    strbuf_addf(b, "{%s,\"curve\":", members);
    curve_json(&l->curve, b);
    strbuf_add(b, ",\"evals\":");
    add_evals(l, b);
    if (step != UPLINK_SAME_STEP)
        strbuf_addf(b, ",\"step\":%" PRIu64, step);
    strbuf_add(b, "}");
    l->has_outcome = l->outcome_due = true;
}

/* Removes every progress message from the ring, and puts the newest progress before all other events. A new
 * daemon then starts with the current progress. */
static void renew_progress(struct uplink *l)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n_events; i++) {
        const struct uplink_event *e = &l->events[(l->first_event + i) % MAX_EVENTS];
        if (strcmp(e->method, "progress") != 0)
            l->events[(l->first_event + n++) % MAX_EVENTS] = *e;
    }
    l->n_events = n;
    if (!l->has_progress)
        return;
    if (n < MAX_EVENTS) { /* otherwise the progress replaces the oldest event */
        l->first_event = (l->first_event + MAX_EVENTS - 1) % MAX_EVENTS;
        l->n_events++;
    }
    struct uplink_event *first = &l->events[l->first_event];
    first->method = "progress";
    print_progress(l, first->params, EVENT_BYTES);
    l->progress_due = false;
}

void uplink_begin_again(struct uplink *l)
{
    l->planning_due = l->planning[0] != '\0' && !l->has_planned;
    l->planned_due = l->has_planned;
    l->curve_due = l->has_progress || l->n_evals > 0;
    l->outcome_due = l->has_outcome;
    l->progress_ns = l->curve_ns = 0;
    renew_progress(l);
}
