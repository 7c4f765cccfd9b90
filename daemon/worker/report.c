/* Implements report.h: prints errors, the results of checks, progress and the final report, as text or as
 * JSON. */
#include "daemon/worker/report.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/print.h"
#include "base/strbuf.h"
#include "scheduler/predict/bound.h"
#include "scheduler/predict/simulate.h"

/* Shortest time between two progress lines on a terminal, in nanoseconds. */
#define PROGRESS_EVERY_NS 200000000ull
/* Shortest time between two progress lines in a file or a pipe, in nanoseconds. */
#define LOG_EVERY_NS 2000000000ull

int print_buffer(struct strbuf *b)
{
    int r = print_text(STDOUT_FILENO, b->at, b->n);
    strbuf_finish(b);
    if (r == 0)
        return EXIT_DONE;
    print_error("tutti-worker: cannot write the result to standard output: %s\n", strerror(-r));
    return EXIT_FAILED;
}

int report_exit_code(int code, bool early)
{
    if (early)
        return code == -ENOSPC || code == -ENOMEM ? EXIT_MISFIT : EXIT_INVALID;
    return code == -EEXIST ? EXIT_INVALID : EXIT_FAILED; /* -EEXIST: the output belongs to another spec */
}

void report_error_members(int code, const struct err *err, uint64_t least_bytes, struct strbuf *b)
{
    const char *name = strerrorname_np(-code);
    strbuf_add(b, "\"errno\":");
    strbuf_add_json(b, name != NULL ? name : "?");
    strbuf_add(b, ",\"path\":");
    strbuf_add_json(b, err->path);
    strbuf_add(b, ",\"message\":");
    strbuf_add_json(b, err->msg);
    if (least_bytes > 0)
        strbuf_addf(b, ",\"least_device_bytes\":%" PRIu64, least_bytes);
}

int report_failure(const struct verb_options *o, int exit, int code, const struct err *err,
                   uint64_t least_bytes)
{
    if (!o->json) {
        char text[sizeof(struct err)];
        print_error("tutti-worker: %s\n", err_text(err, text, sizeof text));
        return exit;
    }
    struct strbuf b = {0};
    strbuf_addf(&b, "{\"ok\":false,\"exit\":%d,", exit);
    report_error_members(code, err, exit == EXIT_MISFIT ? least_bytes : 0, &b);
    strbuf_add(&b, "}\n");
    print_buffer(&b);
    return exit;
}

int report_error(const struct verb_options *o, int code, const struct err *err, uint64_t least_bytes,
                 bool early)
{
    return report_failure(o, report_exit_code(code, early), code, err, least_bytes);
}

/* ---- check ---- */

void report_backend_members(const struct prepared_job *j, struct strbuf *b)
{
    strbuf_addf(b, ",\"backend\":\"%s\",\"backend_reason\":", j->backend);
    strbuf_add_json(b, j->backend_reason);
}

void report_profile_members(const struct prepared_job *j, struct strbuf *b)
{
    strbuf_addf(b, ",\"profile\":\"%s\",\"profile_reason\":", job_profile_names[j->profile]);
    strbuf_add_json(b, j->profile_reason);
}

/* Returns the plan of a phase. `largest` is the plan of the largest phase. */
static const struct plan *plan_of(const struct prepared_job *j, const struct phase *p,
                                  const struct plan *largest)
{
    return p == job_largest_phase(j) ? largest : p->plan;
}

/* Returns the most bytes that a phase needs of device `d`. The steps that are left over after whole cycles
 * have a plan of their own. */
static uint64_t peak_of(const struct phase *p, const struct plan *plan, uint32_t d)
{
    uint64_t most = plan->devices[d].peak_bytes;
    if (p->single.plan != NULL && p->single.plan->devices[d].peak_bytes > most)
        most = p->single.plan->devices[d].peak_bytes;
    return most;
}

void report_phase_members(const struct prepared_job *j, const struct plan *largest, struct strbuf *b)
{
    if (j->phases.n <= 1)
        return;
    strbuf_addf(b, ",\"phase\":%" PRIu32 ",\"phases\":[", job_largest_phase(j)->number);
    for (uint32_t i = 0; i < j->phases.n; i++) {
        const struct phase *p = &j->phases.at[i];
        const struct plan *plan = plan_of(j, p, largest);
        struct plan_bytes moved;
        plan_step_bytes(plan, &moved);
        strbuf_add(b, i > 0 ? ",{\"name\":" : "{\"name\":");
        strbuf_add_json(b, p->name);
        strbuf_addf(b, ",\"steps\":%" PRIu64 ",\"batch\":%u,\"micro_batch\":%u,\"replicas\":%u", p->steps,
                    p->batch, p->sizes.micro_batch, p->sizes.replicas);
        strbuf_addf(b, ",\"step_bytes\":{\"in\":%" PRIu64 ",\"out\":%" PRIu64 ",\"peer\":%" PRIu64 "}",
                    moved.in, moved.out, moved.peer);
        strbuf_add(b, ",\"device_peak_bytes\":[");
        for (uint32_t d = 0; d < plan->n_devices; d++)
            strbuf_addf(b, "%s%" PRIu64, d > 0 ? "," : "", peak_of(p, plan, d));
        strbuf_add(b, "]}");
    }
    strbuf_add(b, "]");
}

/* Appends the size of a phase, the most bytes that it needs of any device, and the bytes that it moves. */
static void add_phase_line(const struct phase *p, const struct plan *plan, struct strbuf *b)
{
    struct plan_bytes moved;
    uint64_t peak = 0;
    plan_step_bytes(plan, &moved);
    for (uint32_t d = 0; d < plan->n_devices; d++)
        peak = peak_of(p, plan, d) > peak ? peak_of(p, plan, d) : peak;
    if (p->training)
        strbuf_addf(b, "%s: %" PRIu64 " steps of %u samples", p->name, p->steps, p->batch);
    else
        strbuf_addf(b, "%s: forward only, batches of %u samples", p->name, p->batch);
    strbuf_addf(b, ", in micro-batches of %u; peak ", p->sizes.micro_batch);
    strbuf_add_bytes(b, peak);
    strbuf_addf(b, "%s, ", plan->n_devices > 1 ? " on a device" : "");
    strbuf_add_bytes(b, moved.in + moved.out);
    strbuf_addf(b, " moved in a %s", p->training ? "step" : "batch");
}

void report_phases(const struct prepared_job *j, const struct plan *largest, const char *indent,
                   struct strbuf *b)
{
    for (uint32_t i = 0; j->phases.n > 1 && i < j->phases.n; i++) {
        const struct phase *p = &j->phases.at[i];
        strbuf_addf(b, "\n%sphase %-2u ", indent, i);
        add_phase_line(p, plan_of(j, p, largest), b);
        strbuf_add(b, p == job_largest_phase(j) ? " (the largest phase)" : "");
    }
}

void report_needs_members(const struct job_needs *n, struct strbuf *b)
{
    strbuf_add(b, ",\"needs\":");
    needs_to_json(n, b);
}

void report_host_needs(const struct job_needs *n, struct strbuf *b)
{
    strbuf_add_bytes(b, needs_host_bytes(n));
    strbuf_add(b, " of host memory at most: planning ");
    strbuf_add_bytes(b, n->host.planning);
    strbuf_add(b, ", loading ");
    strbuf_add_bytes(b, n->host.loading);
    strbuf_add(b, ", running ");
    strbuf_add_bytes(b, n->host.running);
    strbuf_add(b, ", saving ");
    strbuf_add_bytes(b, n->host.saving);
}

static uint64_t total_params(const struct prepared_job *j)
{
    uint64_t n = 0;
    for (uint32_t l = 0; l < j->spec->model.n_layers; l++) {
        const struct layer *layer = &j->spec->model.layers[l];
        struct layer_sizes size;
        layer_type(layer)->sizes(layer, 1, &size);
        n += layer->tied ? 0 : layer_w_elements(&size);
    }
    return n;
}

static uint64_t state_bytes(const struct graph *g)
{
    uint64_t n = 0;
    for (uint32_t l = 0; l < g->n_layers; l++)
        n += g->layers[l].size.w + (graph_trains(g, l) ? layer_dw_bytes(&g->layers[l].size) : 0) +
             g->layers[l].k_bytes;
    return n;
}

/* Appends the absolute form of `path` as a JSON string. A leading "./" is removed first, so that "runs/x" and
 * "./runs/x" give the same string. */
static void add_absolute(struct strbuf *b, const char *path)
{
    char full[2 * PATH_MAX] = "";
    while (strncmp(path, "./", 2) == 0)
        path += 2;
    if (path[0] != '/' && getcwd(full, PATH_MAX) != NULL)
        strcat(full, "/");
    snprintf(full + strlen(full), sizeof full - strlen(full), "%s", path);
    strbuf_add_json(b, full);
}

/* Appends a text such as " (2561000 tokens in 2 files)" if the data set consists of token files. */
static void add_tokens(const struct dataset *d, struct strbuf *b)
{
    if (d->n_files > 0)
        strbuf_addf(b, " (%" PRIu64 " tokens in %u file%s)", d->n_tokens, d->n_files,
                    d->n_files == 1 ? "" : "s");
}

static void add_token_members(const struct prepared_job *j, struct strbuf *b)
{
    const struct dataset *d = j->train;
    if (!d->tokens)
        return;
    strbuf_addf(b, ",\"context\":%u", d->seq);
    if (d->n_files > 0)
        strbuf_addf(b, ",\"train_tokens\":%" PRIu64, d->n_tokens);
    if (j->val != NULL && j->val->n_files > 0)
        strbuf_addf(b, ",\"val_tokens\":%" PRIu64, j->val->n_tokens);
}

int report_check(const struct prepared_job *j, uint64_t least_bytes, bool json)
{
    const struct spec *s = j->spec;
    const struct phase *phase = job_largest_phase(j);
    const struct plan *p = phase->plan;
    struct spec_demand demand = spec_demand(s);
    struct strbuf b = {0};
    struct job_needs needs;
    job_needs(j, &needs);
    if (json) {
        strbuf_add(&b, "{\"ok\":true,\"name\":");
        strbuf_add_json(&b, s->name);
        strbuf_addf(&b,
                    ",\"parameters\":%" PRIu64 ",\"state_bytes\":%" PRIu64 ",\"everything_bytes\":%" PRIu64
                    ",\"steps\":%" PRIu64 ",\"train_samples\":%" PRIu64,
                    total_params(j), state_bytes(phase->graph), phase_everything_bytes(phase),
                    job_total_steps(j), j->train->n_samples);
        add_token_members(j, &b);
        strbuf_addf(&b,
                    ",\"resolved\":{\"micro_batch\":%u,\"replicas\":%u,"
                    "\"precision\":\"%s\"},\"policy\":\"%s\",\"devices\":%u,\"device_bytes\":%" PRIu64
                    ",\"least_device_bytes\":%" PRIu64 ",\"host_bytes\":%" PRIu64
                    ",\"devices_asked\":{\"min\":%u,\"max\":%u},\"output\":",
                    phase->sizes.micro_batch, phase->sizes.replicas, spec_precision_names[s->precision],
                    p->policy, p->n_devices, j->machine.capacity_bytes[0], least_bytes, job_host_bytes(j),
                    demand.devices_min, demand.devices_max);
        add_absolute(&b, j->output);
        report_phase_members(j, p, &b);
        report_cut_members(j, &b);
        report_cycle_members(j, phase->plan, &b);
        report_work_members(j, &b);
        report_backend_members(j, &b);
        report_needs_members(&needs, &b);
        strbuf_add(&b, "}\n");
        return print_buffer(&b);
    }
    strbuf_addf(&b, "%s is valid and fits: %" PRIu64 " parameters, ", s->name, total_params(j));
    strbuf_add_bytes(&b, state_bytes(phase->graph));
    strbuf_add(&b, " of weights, gradients and optimizer state\n  data     ");
    strbuf_addf(&b, "%" PRIu64 " training samples", j->train->n_samples);
    if (j->train->tokens)
        strbuf_addf(&b, " of %u tokens", j->train->seq);
    add_tokens(j->train, &b);
    if (j->val != NULL) {
        strbuf_addf(&b, ", %" PRIu64 " for evaluation", j->val->n_samples);
        add_tokens(j->val, &b);
    }
    strbuf_addf(&b, "\n  steps    %" PRIu64 " of %u samples, in micro-batches of %u", job_total_steps(j),
                phase->batch, phase->sizes.micro_batch);
    if (phase->sizes.replicas > 1)
        strbuf_addf(&b, " by %u replicas", phase->sizes.replicas);
    report_phases(j, p, "  ", &b);
    if (s->method != METHOD_backprop) {
        strbuf_add(&b, "\n  method   ");
        report_cut(j, &b);
    }
    strbuf_addf(&b, "\n  memory   policy %s on %u device%s of ", p->policy, p->n_devices,
                p->n_devices == 1 ? "" : "s");
    strbuf_add_bytes(&b, j->machine.capacity_bytes[0]);
    strbuf_add(&b, " (least that would do: ");
    if (least_bytes > 0)
        strbuf_add_bytes(&b, least_bytes);
    else
        strbuf_add(&b, "not known");
    strbuf_add(&b, "), ");
    strbuf_add_bytes(&b, p->host_bytes);
    strbuf_add(&b, " of host memory\n");
    strbuf_add(&b, "  host     ");
    report_host_needs(&needs, &b);
    strbuf_addf(&b, "\n  time     %.4g s a step, %.4g s for all steps (%s times)\n",
                (double)needs.step_ns * 1e-9, needs_left_s(&needs, 0), job_profile_names[needs.times]);
    strbuf_addf(&b, "  backend  %s: %s\n", j->backend, j->backend_reason);
    return print_buffer(&b);
}

/* ---- the plan ---- */

static void add_plan(const struct prepared_job *j, struct strbuf *b)
{
    const struct phase *phase = job_largest_phase(j);
    const struct plan *p = phase->plan;
    struct profile *prof = job_times(j, phase);
    struct sim_result *sim = plan_simulate(p, PROGRAM_CYCLE, SIM_RUNS, prof, &j->machine);
    struct plan_bytes n;
    plan_step_bytes(p, &n);
    strbuf_addf(b,
                "{\"policy\":\"%s\",\"devices\":%u,\"device_bytes\":%" PRIu64
                ",\"micro_batch\":%u,\"host_bytes\":%" PRIu64
                ",\"iteration_s\":%.9g,\"step_bytes\":{\"in\":%" PRIu64 ",\"out\":%" PRIu64
                ",\"peer\":%" PRIu64 ",\"state_in\":%" PRIu64 ",\"state_out\":%" PRIu64
                ",\"stash_in\":%" PRIu64 ",\"stash_out\":%" PRIu64 "},\"device_peak_bytes\":[",
                p->policy, p->n_devices, j->machine.capacity_bytes[0], p->rows, job_host_bytes(j),
                (double)sim->cycle_ns * 1e-9 / p->steps, n.in, n.out, n.peer, n.state_in, n.state_out,
                n.stash_in, n.stash_out);
    for (uint32_t i = 0; i < p->n_devices; i++)
        strbuf_addf(b, "%s%" PRIu64, i > 0 ? "," : "", p->devices[i].peak_bytes);
    strbuf_addf(b, "],\"bound_bytes\":%" PRIu64 "}", bound_bytes(p) / p->steps);
    sim_destroy(sim);
    profile_destroy(prof);
}

void report_planned(const struct prepared_job *j, struct strbuf *b)
{
    const struct phase *p = job_largest_phase(j);
    struct job_needs needs;
    job_needs(j, &needs);
    strbuf_addf(
        b,
        "{\"parameters\":%" PRIu64 ",\"state_bytes\":%" PRIu64
        ",\"resolved\":{\"micro_batch\":%u,\"replicas\":%u,\"precision\":\"%s\",\"total_steps\":%" PRIu64
        "},\"plan\":",
        total_params(j), state_bytes(p->graph), p->sizes.micro_batch, p->sizes.replicas,
        spec_precision_names[j->spec->precision], job_total_steps(j));
    add_plan(j, b);
    strbuf_add(b, ",\"output\":");
    add_absolute(b, j->output);
    report_phase_members(j, p->plan, b);
    report_cut_members(j, b);
    report_cycle_members(j, p->plan, b);
    report_backend_members(j, b);
    report_profile_members(j, b);
    report_needs_members(&needs, b);
    strbuf_add(b, "}");
}

/* ---- progress ---- */

static void print_step(struct progress *p, const struct train_progress *e)
{
    uint64_t now = clock_now_ns();
    bool last = e->step == e->total_steps;
    if (!last && p->shown_ns != 0 && now - p->shown_ns < p->every_ns)
        return;
    uint64_t left = e->total_steps - e->step;
    double eta = p->first_ns != 0 && e->step > p->first_step
                     ? (double)(now - p->first_ns) * 1e-9 / (double)(e->step - p->first_step) * (double)left
                     : 0;
    if (p->first_ns == 0) {
        p->first_ns = now;
        p->first_step = e->step;
    }
    p->shown_ns = now;
    print_status("step %" PRIu64 "/%" PRIu64 "  loss %.6f  lr %.3g  %.0f samples/s  %.0f s left", e->step,
                 e->total_steps, e->loss, e->lr, e->samples_per_s, eta);
}

static void print_outputs(struct progress *p, const struct train_progress *e)
{
    uint64_t now = clock_now_ns();
    if (p->shown_ns != 0 && now - p->shown_ns < p->every_ns)
        return;
    p->shown_ns = now;
    print_status("phase %" PRIu32 "  outputs of %" PRIu64 "/%" PRIu64 " samples", e->phase->number,
                 e->samples, e->total_samples);
}

static void print_eval(const struct train_progress *e)
{
    struct strbuf b = {0};
    strbuf_addf(&b, "step %" PRIu64 "  val loss %.6f  accuracy %.2f %%", e->step, e->val_loss,
                100 * e->val_accuracy);
    if (!isnan(e->val_perplexity))
        strbuf_addf(&b, "  perplexity %.4g", e->val_perplexity);
    if (e->n_blocks > 0)
        strbuf_add(&b, "  of the blocks");
    for (uint32_t i = 0; i < e->n_blocks; i++)
        strbuf_addf(&b, "%s %.6f (%.2f %%)", i > 0 ? "," : "", e->blocks[i].loss,
                    100 * e->blocks[i].accuracy);
    print_error("%s\n", b.at);
    strbuf_finish(&b);
}

/* Prints how well a part of the model learns its label vectors, and what to change if it does not. */
static void print_labels(const struct train_progress *e)
{
    const struct labels *l = e->labels;
    enum labels_verdict v = labels_judge(l);
    struct strbuf b = {0};
    strbuf_addf(&b, "step %" PRIu64, e->step);
    if (e->n_labels > 1)
        strbuf_addf(&b, "  partition %u", l->part + 1);
    strbuf_addf(&b, "  label error %.6f", l->error);
    if (!isnan(l->nearest))
        strbuf_addf(&b, "  nearest label right for %.2f %%", 100 * l->nearest);
    strbuf_addf(&b, "  %s", labels_verdict_names[v]);
    if (labels_advice(l) != NULL)
        strbuf_addf(&b, ": %s", labels_advice(l));
    print_error("%s\n", b.at);
    strbuf_finish(&b);
}

void progress_init(struct progress *p)
{
    bool terminal = isatty(STDERR_FILENO);
    *p = (struct progress){.every_ns = terminal ? PROGRESS_EVERY_NS : LOG_EVERY_NS};
}

void progress_event(void *ctx, const struct train_progress *e)
{
    struct progress *p = ctx;
    switch (e->event) {
    case PROGRESS_RESUME:
        print_error("resumed from the checkpoint of step %" PRIu64 "%s\n", e->step,
                    e->numerics_changed ? ", which was written with other numerics: the bits may differ"
                                        : "");
        break;
    case PROGRESS_PHASE:
        print_status_end(PRINT_KEEP);
        print_error("phase %" PRIu32 " (%s), the last is phase %" PRIu32 "\n", e->phase->number,
                    e->phase->name, e->n_phases - 1);
        break;
    case PROGRESS_STEP:
        if (e->skipped) {
            print_status_end(PRINT_KEEP);
            print_error("step %" PRIu64 "  skipped: its gradient is not finite\n", e->step);
        }
        print_step(p, e);
        break;
    case PROGRESS_OUTPUTS:
        print_outputs(p, e);
        break;
    case PROGRESS_EVAL:
        print_status_end(PRINT_KEEP);
        print_eval(e);
        break;
    case PROGRESS_LABELS:
        print_status_end(PRINT_KEEP);
        print_labels(e);
        break;
    case PROGRESS_CHECKPOINT:
        print_status_end(PRINT_KEEP);
        print_error("step %" PRIu64 "  checkpoint written\n", e->step);
        break;
    }
}

void progress_end(void)
{
    print_status_end(PRINT_KEEP);
}

/* ---- the final report ---- */

static void add_number(struct strbuf *b, const char *key, double v)
{
    strbuf_addf(b, ",\"%s\":", key);
    if (isfinite(v))
        strbuf_addf(b, "%.17g", v);
    else
        strbuf_add(b, "null");
}

static void add_comparison(struct strbuf *b, const struct job_comparison *c)
{
    strbuf_addf(b, ",\"bound_bytes\":%" PRIu64 ",\"lru_bytes\":", c->bound_bytes);
    if (c->has_lru) {
        strbuf_addf(b, "{\"in\":%" PRIu64 ",\"out\":%" PRIu64 ",\"peer\":%" PRIu64 "}", c->lru.in, c->lru.out,
                    c->lru.peer);
        return;
    }
    strbuf_add(b, "null,\"lru_reason\":");
    strbuf_add_json(b, c->lru_err.msg);
}

/* Appends how well a part of phase `p` learned its label vectors, and closes the object. */
static void add_verdict(const struct phase *p, const struct labels *l, struct strbuf *b)
{
    enum labels_verdict v = labels_judge(l);
    if (p->n_labels > 1)
        strbuf_addf(b, ",\"part\":%" PRIu32, l->part);
    add_number(b, "error", l->error);
    add_number(b, "nearest", l->nearest);
    strbuf_addf(b, ",\"verdict\":\"%s\"", labels_verdict_names[v]);
    if (labels_advice(l) != NULL)
        strbuf_addf(b, ",\"advice\":\"%s\"", labels_advice(l));
    strbuf_add(b, "}");
}

/* Appends how well each part of the model learned its label vectors, if the method uses such vectors. */
static void add_label_figures(const struct prepared_job *j, struct strbuf *b)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < j->phases.n; i++) {
        const struct phase *p = &j->phases.at[i];
        for (uint32_t k = 0; k < p->n_labels && p->labels[k].known; k++) {
            strbuf_addf(b, "%s{\"phase\":%" PRIu32, n++ > 0 ? "," : ",\"labels\":[", i);
            add_verdict(p, &p->labels[k], b);
        }
    }
    strbuf_add(b, n > 0 ? "]" : "");
}

/* Appends the loss and the accuracy of every block in the last training step, if the phase has blocks. */
static void add_block_figures(const struct train_report *r, struct strbuf *b)
{
    for (uint32_t i = 0; i < r->n_blocks; i++) {
        strbuf_addf(b, "%s{\"block\":%" PRIu32, i > 0 ? "," : ",\"blocks\":[", i);
        add_number(b, "loss", r->blocks[i].loss);
        add_number(b, "accuracy", r->blocks[i].accuracy);
        strbuf_add(b, i + 1 < r->n_blocks ? "}" : "}]");
    }
}

/* Returns the most bytes that a phase of the job needs of device `d`. */
static uint64_t peak_of_job(const struct prepared_job *j, uint32_t d)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < j->phases.n; i++) {
        uint64_t peak = peak_of(&j->phases.at[i], j->phases.at[i].plan, d);
        most = peak > most ? peak : most;
    }
    return most;
}

void report_json(const struct prepared_job *j, const struct train_report *r, struct strbuf *b)
{
    const struct phase *p = job_largest_phase(j);
    strbuf_add(b, "{\"ok\":true,\"name\":");
    strbuf_add_json(b, j->spec->name);
    strbuf_addf(b,
                ",\"stopped\":%s,\"steps\":%" PRIu64 ",\"total_steps\":%" PRIu64 ",\"resumed_from\":%" PRIu64,
                r->stopped ? "true" : "false", r->steps_done, r->total_steps, r->resumed_from);
    add_number(b, "loss", r->loss);
    strbuf_addf(b, ",\"skipped_steps\":%" PRIu64, r->skipped_steps);
    if (r->evaluated) {
        add_number(b, "val_loss", r->val_loss);
        add_number(b, "val_accuracy", r->val_accuracy);
        if (!isnan(r->val_perplexity))
            add_number(b, "val_perplexity", r->val_perplexity);
    }
    add_number(b, "seconds", r->seconds);
    add_number(b, "samples_per_s", r->samples_per_s);
    if (j->spec->tokens)
        add_number(b, "tokens_per_s", r->samples_per_s * j->spec->seq);
    add_number(b, "stall_share", r->stall_share);
    if (r->stall_steps > 0)
        strbuf_addf(b, ",\"stall_traced_steps\":%u", r->stall_steps);
    strbuf_addf(b, ",\"policy\":\"%s\",\"micro_batch\":%u,\"replicas\":%u", p->plan->policy,
                p->sizes.micro_batch, p->sizes.replicas);
    strbuf_addf(b,
                ",\"step_bytes\":{\"in\":%" PRIu64 ",\"out\":%" PRIu64 ",\"peer\":%" PRIu64
                ",\"state_in\":%" PRIu64 ",\"state_out\":%" PRIu64 ",\"stash_in\":%" PRIu64
                ",\"stash_out\":%" PRIu64 "}",
                r->step_bytes.in, r->step_bytes.out, r->step_bytes.peer, r->step_bytes.state_in,
                r->step_bytes.state_out, r->step_bytes.stash_in, r->step_bytes.stash_out);
    add_comparison(b, &j->comparison);
    strbuf_addf(
        b, ",\"counted_bytes\":{\"in\":%" PRIu64 ",\"out\":%" PRIu64 ",\"peer\":%" PRIu64 "},\"devices\":[",
        r->counted_in, r->counted_out, r->counted_peer);
    for (uint32_t i = 0; i < p->plan->n_devices; i++)
        strbuf_addf(b, "%s{\"peak_bytes\":%" PRIu64 ",\"capacity_bytes\":%" PRIu64 "}", i > 0 ? "," : "",
                    peak_of_job(j, i), p->plan->devices[i].lease_bytes);
    strbuf_addf(b, "],\"numerics_changed\":%s", r->numerics_changed ? "true" : "false");
    strbuf_add(b, ",\"numerics\":");
    strbuf_add_json(b, r->numerics);
    report_phase_members(j, p->plan, b);
    report_cut_members(j, b);
    report_cycle_members(j, p->plan, b);
    report_work_members(j, b);
    add_label_figures(j, b);
    add_block_figures(r, b);
    report_backend_members(j, b);
    report_profile_members(j, b);
    strbuf_addf(b, ",\"weights_hash\":\"%016" PRIx64 "\"}\n", r->weights_hash);
}

static void add_bytes_row(struct strbuf *b, const char *name, const struct plan_bytes *bytes)
{
    strbuf_addf(b, "\n  %-9s in ", name);
    strbuf_add_bytes(b, bytes->in);
    strbuf_add(b, "  out ");
    strbuf_add_bytes(b, bytes->out);
    strbuf_add(b, "  peer ");
    strbuf_add_bytes(b, bytes->peer);
}

/* Appends three numbers of bytes: how many a training step moves, the least number that any plan must move,
 * and the number that demand paging would move. */
static void add_bytes(struct strbuf *b, const char *policy, const struct plan_bytes *moved,
                      const struct job_comparison *c)
{
    uint64_t state = moved->state_in + moved->state_out + moved->stash_in + moved->stash_out;
    add_bytes_row(b, "per step", moved);
    strbuf_addf(b, "   (policy %s; counted at the copies, equal to the plan)\n  bound     at least ", policy);
    strbuf_add_bytes(b, c->bound_bytes);
    strbuf_add(b, " of state and stash; moved ");
    strbuf_add_bytes(b, state);
    if (c->bound_bytes > 0)
        strbuf_addf(b, ", %.2f times that", (double)state / (double)c->bound_bytes);
    if (c->has_lru)
        add_bytes_row(b, "lru", &c->lru);
    else
        strbuf_addf(b, "\n  lru       not compared: %s", c->lru_err.msg);
    strbuf_add(b, c->has_lru ? "   (what demand paging would move)\n" : "\n");
}

/* Appends a line about the label vectors of a part of a phase, if the part has been judged. */
static void add_labels_line(const struct phase *p, const struct labels *l, struct strbuf *b)
{
    if (!l->known)
        return;
    strbuf_addf(b, "\n  labels    phase %u (%s)", p->number, p->name);
    if (p->n_labels > 1)
        strbuf_addf(b, ", partition %u", l->part + 1);
    strbuf_addf(b, ": error %.6f", l->error);
    if (!isnan(l->nearest))
        strbuf_addf(b, ", nearest label right for %.2f %%", 100 * l->nearest);
    strbuf_addf(b, ": %s", labels_verdict_names[labels_judge(l)]);
    if (labels_advice(l) != NULL)
        strbuf_addf(b, "; %s", labels_advice(l));
}

void report_text(const struct prepared_job *j, const struct train_report *r, struct strbuf *b)
{
    const struct plan *p = job_largest_phase(j)->plan;
    strbuf_addf(b, "%s: %s at step %" PRIu64 " of %" PRIu64, j->spec->name, r->stopped ? "stopped" : "done",
                r->steps_done, r->total_steps);
    if (r->resumed_from > 0)
        strbuf_addf(b, " (resumed from %" PRIu64 ")", r->resumed_from);
    report_phases(j, p, "  ", b);
    if (j->phases.n > 1)
        strbuf_addf(b, "\n  phases    %u; what follows is about phase %u (%s), the largest", j->phases.n,
                    job_largest_phase(j)->number, job_largest_phase(j)->name);
    strbuf_addf(b, "\n  loss      %.6f", r->loss);
    if (r->evaluated)
        strbuf_addf(b, "   val loss %.6f   val accuracy %.2f %%", r->val_loss, 100 * r->val_accuracy);
    if (r->evaluated && !isnan(r->val_perplexity))
        strbuf_addf(b, "   val perplexity %.4g", r->val_perplexity);
    for (uint32_t i = 0; i < r->n_blocks; i++) {
        bool partitions = j->spec->method == METHOD_sil;
        strbuf_addf(b, "\n  %s %-*u loss %.6f", partitions ? "part" : "block", partitions ? 4 : 3,
                    i + partitions, r->blocks[i].loss);
        if (!isnan(r->blocks[i].accuracy))
            strbuf_addf(b, "   accuracy %.2f %%", 100 * r->blocks[i].accuracy);
        strbuf_add(b, " (of the last step)");
    }
    for (uint32_t i = 0; i < j->phases.n; i++)
        for (uint32_t k = 0; k < j->phases.at[i].n_labels; k++)
            add_labels_line(&j->phases.at[i], &j->phases.at[i].labels[k], b);
    strbuf_addf(b, "\n  speed     %.*f samples/s, ", r->samples_per_s < 100 ? 2 : 0, r->samples_per_s);
    if (j->spec->tokens)
        strbuf_addf(b, "%.0f tokens/s, ", r->samples_per_s * j->spec->seq);
    strbuf_addf(b, "%.1f s", r->seconds);
    if (isfinite(r->stall_share))
        strbuf_addf(b, "; compute streams stalled %.1f %% of their time", 100 * r->stall_share);
    if (r->stall_steps > 0)
        strbuf_addf(b, " (from %u traced step%s)", r->stall_steps, r->stall_steps == 1 ? "" : "s");
    add_bytes(b, p->policy, &r->step_bytes, &j->comparison);
    report_work(j, b);
    for (uint32_t i = 0; i < p->n_devices; i++) {
        strbuf_addf(b, "  device %-2u peak ", i);
        strbuf_add_bytes(b, peak_of_job(j, i));
        strbuf_add(b, " of ");
        strbuf_add_bytes(b, p->devices[i].lease_bytes);
        strbuf_add(b, "\n");
    }
    strbuf_addf(b, "  backend   %s: %s\n", j->backend, j->backend_reason);
    strbuf_addf(b, "  profile   %s: %s\n", job_profile_names[j->profile], j->profile_reason);
    strbuf_addf(b, "  weights   %016" PRIx64 "  (%s)\n", r->weights_hash, r->numerics);
}
