/* Implements the training of a job that train.h declares: opens the devices, finds the position at which to
 * start, runs the phases one after another, and fills in the report. train_private.h lists the other files.
 *
 * A run that resumes in a later phase skips the phases before. Only forward-only phases run again if their
 * outputs are still needed, because these outputs do not outlive a process. They use the weights of the
 * checkpoint, which no later phase has changed (phase.c), so the outputs have the same bits.
 */
#include "daemon/worker/train.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/worker/model/weights.h"
#include "daemon/worker/train_private.h"

/* True after a request to stop. Signal handlers and other threads set it, so it must be lock-free. */
static atomic_bool stop_requested;

void train_request_stop(void)
{
    atomic_store(&stop_requested, true);
}

bool train_stop_requested(void)
{
    return atomic_load(&stop_requested);
}

void train_tell(const struct trainer *t, struct train_progress *p)
{
    if (t->options->progress == NULL)
        return;
    p->total_steps = job_total_steps(t->job);
    p->phase = t->phase;
    p->n_phases = t->job->phases.n;
    p->in_bytes = t->moved.in;
    p->out_bytes = t->moved.out;
    p->peer_bytes = t->moved.peer;
    t->options->progress(t->options->ctx, p);
}

/* ---- start ---- */

static int open_devices(struct trainer *t, struct err *err)
{
    const struct plan *plan = t->job->phases.at[0].plan; /* all phases use the same devices */
    struct devset_config c = {
        .backend = t->job->backend,
        .n_devices = plan->n_devices,
        .device_index = t->job->real_devices ? t->job->device_index : NULL,
        .threads = t->job->threads,
        .link_bytes_per_s = t->options->link_bytes_per_s,
        .peer_bytes_per_s = t->options->peer_bytes_per_s,
        .delay_seed = t->options->delay_seed,
        .tf32 = t->spec->precision == PRECISION_TF32,
    };
    struct device_blame blame;
    c.blame = &blame;
    for (uint32_t i = 0; i < c.n_devices; i++)
        c.capacity_bytes[i] = plan->devices[i].lease_bytes;
    int r = devset_open(&c, &t->devices, err);
    if (r < 0)
        job_blame_devices(t->job, &blame, err);
    return r;
}

static int open_trainer(struct trainer *t, struct err *err)
{
    uint32_t n_layers = t->job->phases.all.n_layers;
    t->parked = calloc(n_layers, sizeof *t->parked);
    t->outputs = calloc(t->job->phases.n, sizeof *t->outputs);
    if (t->parked == NULL || t->outputs == NULL)
        return err_set(err, -ENOMEM, "no memory for a list of %u layers", n_layers);
    return open_devices(t, err);
}

static void drop_outputs(struct train_outputs *o)
{
    kept_destroy(o->train);
    kept_destroy(o->val);
    *o = (struct train_outputs){0};
}

static void close_trainer(struct trainer *t)
{
    train_leave(t);
    metrics_close(t->metrics);
    checkpoint_close(t->resume);
    for (uint32_t l = 0; t->parked != NULL && l < t->job->phases.all.n_layers; l++)
        free(t->parked[l]);
    for (uint32_t i = 0; t->outputs != NULL && i < t->job->phases.n; i++)
        drop_outputs(&t->outputs[i]);
    free(t->parked);
    free(t->outputs);
    devset_close(t->devices);
}

/* Removes the result.json of an earlier run. Only a job that has ended may have a result.json, and this job
 * still has training steps to do. */
static int forget_result(const struct trainer *t, struct err *err)
{
    int r = fs_remove_tree(t->out->fd, RUN_RESULT_FILE);
    return r < 0 ? fs_fail(err, r, t->out->name, RUN_RESULT_FILE, "remove") : 0;
}

/* ---- phases ---- */

/* Returns whether phase `phase`, which ended before the position `at`, must run again. It must run again if
 * the phase at the position `at` reads its outputs, or if another phase that must run again reads them. */
static bool is_needed(const struct trainer *t, struct train_position at, uint32_t phase)
{
    const struct phase *p = &t->job->phases.at[at.phase];
    if (p->training && at.step == p->steps)
        return false;
    while (p->inputs != PHASE_DATA && p->inputs > phase)
        p = &t->job->phases.at[p->inputs];
    return p->inputs == phase;
}

/* Frees the kept outputs that no phase after `phase` reads. */
static void drop_read_outputs(struct trainer *t, uint32_t phase)
{
    for (uint32_t i = 0; i <= phase; i++)
        if (phases_last_reader(&t->job->phases, i) <= phase)
            drop_outputs(&t->outputs[i]);
}

/* Opens the files that the run writes. This function is called once, when the first phase of the run has
 * loaded its state. */
static int open_files(struct trainer *t, struct train_position at, struct err *err)
{
    uint64_t done = phases_steps_before(&t->job->phases, at.phase) + at.step;
    int r = done < job_total_steps(t->job) ? forget_result(t, err) : 0;
    return r < 0 ? r : metrics_open(t->out, done, &t->metrics, err);
}

static int start_phase(struct trainer *t, struct phase *p, struct train_position at, struct err *err)
{
    int r = train_enter(t, p, err);
    if (p->number < at.phase) /* an earlier phase that only computes its outputs again */
        t->before = phases_steps_before(&t->job->phases, at.phase) + at.step;
    if (r == 0 && !t->loaded)
        r = train_load_weights(t, err);
    if (r == 0 && p->number >= at.phase)
        r = train_load_state(t, p->number == at.phase ? at.step : 0, err);
    if (r == 0 && t->metrics == NULL)
        r = open_files(t, at, err);
    if (r < 0 || t->job->phases.n == 1)
        return r;
    metrics_set_phase(t->metrics, p->number);
    train_tell(t, &(struct train_progress){.event = PROGRESS_PHASE, .step = train_steps_done(t)});
    return 0;
}

static int run_phase(struct trainer *t, struct phase *p, struct train_position at, struct err *err)
{
    int r = start_phase(t, p, at, err);
    if (r == 0)
        r = train_run_phase(t, err);
    if (r < 0)
        return r;
    if (t->report->stopped || train_is_last_phase(t))
        return train_finish_weights(t, err);
    r = train_park_all(t, err);
    if (r < 0)
        return r;
    train_leave(t);
    drop_read_outputs(t, p->number);
    return 0;
}

static int run_phases(struct trainer *t, struct err *err)
{
    struct train_position at;
    int r = train_find_position(t, &at, err);
    if (r == 0 && at.phase + 1 < t->job->phases.n)
        r = train_check_disk(t, err);
    for (uint32_t i = 0; r == 0 && i < t->job->phases.n && !t->report->stopped; i++)
        if (i >= at.phase || is_needed(t, at, i))
            r = run_phase(t, &t->job->phases.at[i], at, err);
    return r;
}

/* ---- end ---- */

static void fill_report(struct trainer *t)
{
    struct train_report *rep = t->report;
    struct device_counters c;
    train_count(t, &c);
    rep->steps_done = train_steps_done(t);
    rep->total_steps = job_total_steps(t->job);
    rep->seconds = t->start_ns > 0 ? (double)(clock_now_ns() - t->start_ns) * 1e-9 : 0;
    rep->samples_per_s = rep->seconds > 0 ? (double)rep->samples / rep->seconds : 0;
    rep->stall_share = train_stall_share(&c);
    if (isnan(rep->stall_share) && t->options->trace != NULL) {
        rep->stall_share = run_trace_stall(t->options->trace, job_largest_phase(t->job)->plan);
        rep->stall_steps =
            isnan(rep->stall_share) ? 0 : t->options->trace->runs * job_largest_phase(t->job)->cycle_steps;
    }
    rep->n_blocks = t->n_losses > 1 && rep->samples > 0 ? t->n_losses : 0;
    rep->blocks = rep->n_blocks > 0 ? t->last_blocks : NULL;
    if (rep->blocks != NULL)
        t->last_blocks = NULL; /* it belongs to the report now */
    rep->counted_in = c.in_bytes;
    rep->counted_out = c.out_bytes;
    rep->counted_peer = c.peer_bytes;
}

/* Records a failure of the run: how many steps are done, and which devices are at fault. This must happen
 * before the device set is closed, because only an open device set knows the devices at fault. */
static void fail(struct trainer *t, struct err *err)
{
    struct device_blame blame;
    t->report->steps_done = train_steps_known(t);
    if (t->devices == NULL)
        return;
    devset_blame(t->devices, &blame);
    job_blame_devices(t->job, &blame, err);
}

int train_run(struct prepared_job *j, const struct outdir *out, const struct train_options *o,
              struct train_report *ret, struct err *err)
{
    *ret = (struct train_report){.loss = NAN};
    struct trainer t = {.job = j, .spec = j->spec, .out = out, .options = o, .report = ret};
    plan_step_bytes(job_largest_phase(j)->plan, &ret->step_bytes);
    int r = open_trainer(&t, err);
    if (r == 0)
        r = run_phases(&t, err);
    if (r == 0)
        fill_report(&t);
    else
        fail(&t, err);
    if (t.devices != NULL)
        snprintf(ret->numerics, sizeof ret->numerics, "%s", devset_numerics(t.devices));
    close_trainer(&t);
    return r;
}
