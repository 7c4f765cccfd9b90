/* Implements struct view, the content of the live display. The daemon's answer to `show` includes all events
 * up to a certain number. If one of these events arrives later, view_event ignores it, because an old event
 * would remove newer training steps from the curve. */
#include "client/view.h"

#include <math.h>
#include <string.h>

#include "base/get.h"
#include "base/utf8.h"

/* Adds an evaluation to the view. If the view already has VIEW_EVALS evaluations, removes the oldest one. */
static void add_eval(struct view *v, uint64_t step, double accuracy)
{
    if (v->n_evals == VIEW_EVALS)
        memmove(v->accuracies, v->accuracies + 1, (VIEW_EVALS - 1) * sizeof v->accuracies[0]);
    else
        v->n_evals++;
    v->accuracies[v->n_evals - 1] = accuracy;
    v->eval_step = step;
}

/* Copies the numbers of `list`, which may be NULL, to `ret`. The places that are left over become NAN.
 * Returns the number of elements of the list, but at most VIEW_BLOCKS. */
static int take_numbers(const struct json *list, double ret[VIEW_BLOCKS])
{
    size_t n = list != NULL ? json_array_size(list) : 0;
    n = n < VIEW_BLOCKS ? n : VIEW_BLOCKS;
    for (size_t i = 0; i < VIEW_BLOCKS; i++)
        if (i >= n || !get_number_at(list, i, &ret[i]))
            ret[i] = NAN;
    return (int)n;
}

static void take_progress(struct view *v, const struct json *p)
{
    uint64_t in, out;
    get_count(p, "step", &v->step);
    get_count(p, "total_steps", &v->total);
    get_number(p, "loss", &v->loss);
    get_number(p, "samples_per_s", &v->samples_per_s);
    get_number(p, "eta_s", &v->eta_s);
    get_number(p, "stall_share", &v->stall_share);
    get_number(p, "loss_scale", &v->loss_scale);
    v->n_blocks = take_numbers(get_array(p, "blocks"), v->block_loss);
    take_numbers(get_array(p, "block_accuracies"), v->block_accuracy);
    if (get_count(p, "in_bytes", &in) && get_count(p, "out_bytes", &out)) {
        v->moved = true;
        v->in_bytes = in;
        v->out_bytes = out;
        v->peer_bytes = get_count_or(p, "peer_bytes", 0);
    }
}

void view_from_job(struct view *v, const struct json *job)
{
    const struct json *evals = get_array(job, "evals"), *e = evals != NULL ? json_array_first(evals) : NULL;
    double step, accuracy, known[VIEW_EVALS];
    int n_known = v->n_evals;
    uint64_t known_step = v->eval_step;
    memcpy(known, v->accuracies, sizeof known);
    *v =
        (struct view){.loss = NAN, .samples_per_s = NAN, .eta_s = NAN, .stall_share = NAN, .loss_scale = NAN};
    utf8_copy(v->name, sizeof v->name, get_text(job, "name"));
    utf8_copy(v->state, sizeof v->state, get_text(job, "state"));
    utf8_copy(v->reason, sizeof v->reason, get_text(job, "reason"));
    get_count(job, "seq", &v->seq);
    take_progress(v, job);
    take_progress(v, get_object(job, "progress"));
    curve_from_json(&v->curve, get_array(job, "curve"));
    for (; e != NULL; e = json_array_next(e))
        if (get_number_at(e, 0, &step) && get_number_at(e, 2, &accuracy) && step >= 0 && step < 0x1p53)
            add_eval(v, (uint64_t)step, accuracy);
    /* The answer to `show` may be older than the last event. If the view has a newer evaluation than the
     * answer, keep the view's evaluations. */
    if (known_step > v->eval_step && known_step <= v->step) {
        memcpy(v->accuracies, known, sizeof known);
        v->n_evals = n_known;
        v->eval_step = known_step;
    }
}

void view_event(struct view *v, const struct json *event)
{
    static const struct {
        const char *event, *state;
    } states[] = {{"queued", "queued"},
                  {"restarting", "queued"},
                  {"started", "running"},
                  {"stopping", "stopping"},
                  {"submitted", "queued"}};
    const char *name = get_text(event, "event");
    uint64_t seq;
    double accuracy;
    if (get_count(event, "seq", &seq)) {
        if (seq <= v->seq)
            return;
        v->seq = seq;
    }
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++)
        if (strcmp(states[i].event, name) == 0) {
            utf8_copy(v->state, sizeof v->state, states[i].state);
            utf8_copy(v->reason, sizeof v->reason, get_text(event, "why"));
        }
    if (strncmp(name, "launch_", 7) == 0 && strcmp(v->state, "queued") == 0)
        utf8_copy(v->reason, sizeof v->reason, get_text(event, "why"));
    if (strcmp(name, "progress") == 0) {
        take_progress(v, event);
        curve_add(&v->curve, v->step, get_number_or(event, "loss", NAN));
    } else if (strcmp(name, "eval") == 0 && get_number(event, "accuracy", &accuracy)) {
        add_eval(v, get_count_or(event, "step", v->step), accuracy);
    } else if (strcmp(name, "ended") == 0) {
        utf8_copy(v->state, sizeof v->state, get_text(event, "state"));
    }
}
