/* Runs one phase of a job: fills the input slots, runs the executor, and reads each result one run late.
 * train_private.h lists the files with the other parts of the work.
 *
 * A run of the cycle covers one training step, or several (memory.cycle_steps). The loop runs in one thread
 * and has no separate loader: it fills the input slots of run s+1 while run s computes on the streams, and
 * then sleeps until run s is done. Results are read one run late, so the streams never run dry between runs.
 * With several steps in a cycle, run s+1 is enqueued only when the first stream has ended its part of run s.
 * So a stop in the middle of a run waits for this run alone.
 *
 * With several steps in a cycle, the steps that remain before an evaluation, a checkpoint or the end run
 * under a second plan, of one step. A change of plans drains the streams, runs the program exit of one plan
 * and the program entry of the other, and changes no value.
 *
 * Evaluations, checkpoints and the end of the phase do drain the streams. There the byte counters of the
 * devices must equal the bytes that the plan promised; otherwise the run fails.
 *
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/rng.h"
#include "daemon/worker/train_private.h"

/* A job that skips steps goes on with a loss scale below 1, but not below this number. */
#define LEAST_LOSS_SCALE 0x1p-24

/* ---- programs ---- */

int train_run_program(struct trainer *t, enum program_kind k, const struct step_args *args, struct err *err)
{
    int r = exec_run(t->exec, k, args);
    if (r < 0)
        return err_set(err, r, "the devices failed in program %s: %s", program_kind_names[k], strerror(-r));
    train_promise(t, k);
    return train_check_counters(t, err);
}

/* Reports that the devices failed in step `step` of the phase, counted from 0. In a forward-only phase,
 * `step` is the number of a batch. */
static int fail_devices(const struct trainer *t, uint64_t step, int code, struct err *err)
{
    if (!t->phase->training)
        return err_set(err, code, "the devices failed in batch %" PRIu64 " of phase %" PRIu32 " (%s): %s",
                       step + 1, t->phase->number, t->phase->name, strerror(-code));
    return err_set(err, code, "the devices failed in step %" PRIu64 ": %s", t->before + step + 1,
                   strerror(-code));
}

int train_enqueue_cycle(struct trainer *t, const struct step_args *args, struct err *err)
{
    int r = exec_cycle(t->exec, args);
    if (r < 0)
        return fail_devices(t, t->step, r, err);
    train_promise(t, PROGRAM_CYCLE);
    t->step += t->plan->steps;
    return 0;
}

int train_wait(struct trainer *t, uint64_t step, struct err *err)
{
    int r = exec_wait(t->exec, step);
    return r < 0 ? fail_devices(t, step, r, err) : 0;
}

/* ---- training steps ---- */

/* Returns the arguments of a training step for one decision group. The groups differ in their learning
 * rates. */
static struct step_args args_of_step(const struct trainer *t, uint64_t step, uint32_t group, uint64_t targets)
{
    const struct phase *p = t->phase;
    return (struct step_args){
        .step = step,
        .seed = rng_phase_seed(t->spec->seed, p->number),
        .lr = (float)spec_lr(&p->rate[group], p->steps, step),
        .grad_scale = (float)(1.0 / (double)targets),
        .valid_rows = p->batch,
        .training = 1,
    };
}

static void choose_samples(struct trainer *t, uint64_t step)
{
    uint32_t batch = t->phase->batch;
    for (uint32_t i = 0; i < batch; i++)
        t->indices[i] = data_index(t->spec, step * batch + i);
}

/* Returns the address at which the number of targets of a training step is stored until the result of the
 * step is read. */
static uint64_t *targets_at(const struct trainer *t, struct train_place at)
{
    return &t->targets[at.slot % PLAN_RING * t->phase->cycle_steps + at.step];
}

/* Fills the inputs and the arguments of step `i` of the next run of the cycle. */
static int fill_step(struct trainer *t, uint32_t i, struct err *err)
{
    char text[64];
    uint64_t step = t->step + i, targets = 0;
    uint32_t n_groups = t->phase->n_groups;
    const struct train_source from = train_source_of(t, DATA_TRAIN);
    struct train_place at = train_place_of(t, t->step, i);
    choose_samples(t, step);
    int r = train_fill(t, &from, t->phase->batch, at, &targets, err);
    if (r < 0)
        return r;
    *targets_at(t, at) = targets;
    for (uint32_t g = 0; g < n_groups; g++)
        t->args[i * n_groups + g] = args_of_step(t, step, g, targets);
    if (targets > 0)
        return 0;
    snprintf(text, sizeof text, "step %" PRIu64, t->before + step + 1);
    return train_fail_no_targets(text, err);
}

/* Asks the kernel to read the samples of the next run of the cycle from disk ahead of time. Does nothing
 * after the last step. */
static void prefetch_run(struct trainer *t)
{
    for (uint32_t i = 0; i < t->plan->steps; i++) {
        if (t->job->train->n_files == 0 || t->step + i >= t->phase->steps)
            return;
        choose_samples(t, t->step + i);
        dataset_prefetch(t->job->train, t->indices, t->phase->batch);
    }
}

/* Fills the inputs and the arguments of all steps of the next run of the cycle. */
static int fill_run(struct trainer *t, struct err *err)
{
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < t->plan->steps; i++)
        r = fill_step(t, i, err);
    return r;
}

/* Returns whether the next run of the cycle may begin. A stop lets the runs in progress end, but begins no
 * further run. A run of several steps may take long, so wait until it is nearly over before deciding whether
 * another one follows. *ret_error receives the error of a device. */
static bool may_begin(struct trainer *t, int *ret_error, struct err *err)
{
    bool in_progress = t->known < t->step;
    *ret_error = 0;
    if (in_progress && t->plan->steps > 1 && !train_stop_requested()) {
        int r = exec_wait_next(t->exec);
        *ret_error = r < 0 ? fail_devices(t, t->step, r, err) : 0;
    }
    return *ret_error == 0 && (!in_progress || !train_stop_requested());
}

/* Fills and enqueues the next run of the cycle, unless a stop was requested while another run is in
 * progress. */
static int begin_run(struct trainer *t, struct err *err)
{
    int r = fill_run(t, err);
    if (r < 0 || !may_begin(t, &r, err))
        return r;
    r = train_enqueue_cycle(t, t->args, err);
    if (r == 0)
        prefetch_run(t);
    return r;
}

/* ---- results ---- */

/* Returns the decision whether the updates of a decision group are applied in a training step, or NULL if the
 * job makes no such decisions. */
static const struct step_decision *decision_of(const struct trainer *t, uint32_t group, struct train_place at)
{
    tensor_id id = store_find(t->store, TENSOR_DECISION, group, PLAN_NONE, at.step);
    return id == PLAN_NONE ? NULL : store_ptr(t->store, id, at.slot);
}

/* Returns whether the losses of a decision group are scaled. */
static bool scales_loss(const struct trainer *t, uint32_t group)
{
    return t->phase->training && t->phase->optimizer[group].scaling.growth_steps > 0;
}

struct group_state *train_group(const struct trainer *t, uint32_t group)
{
    tensor_id id = store_find(t->store, TENSOR_GROUP, group, PLAN_NONE, 0);
    return id == PLAN_NONE ? NULL : store_ptr(t->store, id, 0);
}

void train_take_scales(const struct trainer *t)
{
    for (uint32_t g = 0; g < t->phase->n_groups; g++) {
        const struct group_state *state = scales_loss(t, g) ? train_group(t, g) : NULL;
        t->scales[g] = state != NULL ? (struct train_scale){state->loss_scale, state->good_steps}
                                     : (struct train_scale){.scale = 1};
    }
}

void train_name_layer(const struct trainer *t, uint32_t layer, char *buf, size_t size)
{
    const struct layer *l = &t->phase->model.layers[layer];
    if (l->id < t->job->phases.n_model)
        snprintf(buf, size, "layer %" PRIu32, l->id);
    else
        snprintf(buf, size, "%s", l->name);
}

/* Writes a text such as ", first in layer 3 (block)" to `buf`, or "" if the layer is not known. `layer` is an
 * index into the layers of the phase. */
static void say_first_layer(const struct trainer *t, uint32_t layer, char *buf, size_t size)
{
    char name[64];
    buf[0] = '\0';
    if (layer >= t->plan->n_layers)
        return;
    train_name_layer(t, layer, name, sizeof name);
    snprintf(buf, size, ", first in %s (%s)", name, t->phase->graph->layers[layer].type);
}

/* Returns the index in the phase of the layer in which a step first diverged, according to the decision `d`
 * to skip the step. The decision has the id of the layer, which is its index only if the phase has all layers
 * of the model and no others. Returns PLAN_NONE if the layer is not known. */
static uint32_t find_skipped(const struct trainer *t, const struct step_decision *d)
{
    return d->bad_layer == STEP_NO_LAYER ? PLAN_NONE : phase_find_layer(t->phase, d->bad_layer);
}

/* Finds the layer of a decision group in which training first diverged, for a job that makes no decisions on
 * updates. Returns the index of the layer in the phase. */
static uint32_t find_ruined(struct trainer *t, uint32_t group)
{
    exec_run(t->exec, PROGRAM_FLUSH, NULL);
    return train_find_ruined(t, group);
}

/* Writes a text such as " of block 1" to `buf`, or "" if the phase has only one loss. */
static void name_part(const struct trainer *t, uint32_t loss, char *buf, size_t size)
{
    bool partitions = t->spec->method == METHOD_sil; /* they count from 1, as in the names of phases */
    buf[0] = '\0';
    if (t->n_losses > 1)
        snprintf(buf, size, " of %s %u", partitions ? "partition" : "block", loss + partitions);
}

/* Reports a loss or a gradient that is not finite, unless the job skips such updates. `number` is the number
 * of one of the losses of a training step, `group` is its decision group, and `d` is the decision of this
 * group. If losses are scaled and the loss is finite, a gradient that is not finite is no failure: the loss
 * scale was too large, and the decision has halved it. */
static int check_finite(struct trainer *t, uint32_t number, uint32_t group, const struct step_decision *d,
                        struct err *err)
{
    bool skip = t->phase->skip_nonfinite, skipped = d != NULL && d->apply == 0;
    double loss = t->blocks[number].loss;
    char layer[128], part[64];
    if (skipped && isfinite(loss) && scales_loss(t, group))
        return 0;
    if ((isfinite(loss) && !skipped) || (skip && skipped))
        return 0;
    name_part(t, number, part, sizeof part);
    uint32_t first = skipped ? find_skipped(t, d) : d == NULL ? find_ruined(t, group) : PLAN_NONE;
    say_first_layer(t, first, layer, sizeof layer);
    return err_set(
        err, -EDOM, "%s%s is not finite at step %" PRIu64 "%s: training has diverged. %s; %s",
        isfinite(loss) ? "a gradient" : "the loss", part, t->before + t->known + 1, layer,
        train_what_is_kept(t),
        skip ? "lower optimizer.lr or set train.grad_clip"
             : "lower optimizer.lr, set train.grad_clip, or skip such steps with train.on_nonfinite "
               "\"skip\"");
}

/* Records the results of a training step, which were just read. `left` is the number of later steps in the
 * same run of the cycle. */
static int record_step(struct trainer *t, const struct metrics_step *m, const struct device_counters *c,
                       uint32_t left, struct err *err)
{
    t->report->loss = m->loss;
    for (uint32_t i = 0; i < m->n_blocks; i++)
        t->last_blocks[i] = m->blocks[i];
    t->report->skipped_steps += m->skipped;
    t->report->samples += t->phase->batch;
    t->moved.in += m->in_bytes;
    t->moved.out += m->out_bytes;
    t->moved.peer += m->peer_bytes;
    int r = metrics_train(t->metrics, m, err);
    train_tell(t, &(struct train_progress){.event = PROGRESS_STEP,
                                           .step = m->step,
                                           .loss = m->loss,
                                           .lr = m->lr,
                                           .samples_per_s = m->samples_per_s,
                                           .run_steps = t->plan->steps,
                                           .run_left = left,
                                           .stall_share = train_stall_share(c),
                                           .loss_scale = m->loss_scale,
                                           .skipped = m->skipped,
                                           .blocks = m->blocks,
                                           .n_blocks = m->n_blocks});
    return r;
}

/* Measurements of one run of the cycle. All steps of the run share them, because the run is measured as a
 * whole. */
struct run_figures {
    double seconds, stall_s; /* of one step, on average */
    struct device_counters counters;
};

/* A run of the cycle moves `bytes` bytes. Returns how many of these bytes count for step `i` of the run. The
 * bytes are divided equally among the steps. The results for all steps add up to exactly `bytes`. */
static uint64_t bytes_of_step(const struct trainer *t, uint64_t bytes, uint32_t i)
{
    uint32_t n = t->plan->steps;
    return bytes / n + (i < bytes % n);
}

/* Reads the result of one loss of a training step, and the decision of this loss's decision group. Stores
 * both in t->blocks[loss]. A loss against label vectors has no accuracy in training. The gradients in the
 * decision are scaled by the loss scale, and the result is not. */
static int read_loss(struct trainer *t, uint32_t loss, struct train_place at, struct err *err)
{
    uint32_t group = phase_group(t->phase, t->losses[loss]);
    const struct step_decision *d = decision_of(t, group, at);
    struct step_result sum = train_result(t, loss, at);
    double n = (double)*targets_at(t, at), scale = (double)t->scales[group].scale;
    t->blocks[loss] = (struct metrics_block){
        .loss = sum.loss / n,
        .accuracy = loss < t->phase->n_labels ? NAN : sum.correct / n,
        .lr = spec_lr(&t->phase->rate[group], t->phase->steps, t->known),
        .sumsq = d != NULL ? d->sumsq / (scale * scale) : NAN,
        .loss_scale = scales_loss(t, group) ? scale : 0,
        .skipped = d != NULL && d->apply == 0,
    };
    return check_finite(t, loss, group, d, err);
}

/* Reports that the loss scale of a decision group is too small, unless the job skips such updates. With a
 * very small scale, gradients would become 0, so such a scale ends the job in any case. */
static int check_scale(const struct trainer *t, uint32_t group, struct err *err)
{
    double scale = (double)t->scales[group].scale;
    if (scale >= 1 || (t->phase->skip_nonfinite && scale >= LEAST_LOSS_SCALE))
        return 0;
    return err_set(err, -EDOM,
                   "the loss scale is %.9g after step %" PRIu64
                   ", because gradients have overflowed fp16 in too many steps: training has diverged. %s; "
                   "lower optimizer.lr, set train.grad_clip, or use \"precision\": \"bf16\"",
                   scale, t->before + t->known + 1, train_what_is_kept(t));
}

/* Follows the loss scales of all decision groups through a training step whose losses were just read. */
static int advance_scales(struct trainer *t, struct train_place at, struct err *err)
{
    int r = 0;
    for (uint32_t g = 0; r == 0 && g < t->phase->n_groups; g++) {
        const struct step_decision *d = scales_loss(t, g) ? decision_of(t, g, at) : NULL;
        struct train_scale *s = &t->scales[g];
        if (d == NULL)
            continue;
        loss_scale_change(t->phase->optimizer[g].scaling.growth_steps, d->apply != 0, &s->scale,
                          &s->good_steps);
        r = check_scale(t, g, err);
    }
    return r;
}

/* Returns whether the phase must now be judged by its training loss. This happens after each tenth of a phase
 * that trains on label vectors without evaluations, but not at its end. */
static bool is_judgement_due(const struct trainer *t)
{
    const struct phase *p = t->phase;
    bool evaluates = t->job->val != NULL && (t->spec->eval.epochs > 0 || t->spec->eval.steps > 0);
    uint64_t every = p->steps / 10 > 0 ? p->steps / 10 : 1;
    return p->n_labels > 0 && !evaluates && t->known % every == 0 && t->known < p->steps;
}

/* Reads and records the results of training step t->known. This training step is step `at.step` of a run of
 * the cycle. The run is complete, and `f` has its measurements. */
static int read_step(struct trainer *t, struct train_place at, const struct run_figures *f, struct err *err)
{
    uint64_t step = t->known;
    double sumsq = 0;
    bool skipped = false;
    for (uint32_t i = 0; i < t->n_losses; i++) {
        int r = read_loss(t, i, at, err);
        if (r < 0)
            return r;
        sumsq += t->blocks[i].sumsq;
        skipped |= t->blocks[i].skipped;
    }
    int r = advance_scales(t, at, err);
    if (r < 0)
        return r;
    const struct metrics_block *last = &t->blocks[t->n_losses - 1];
    struct metrics_step m = {
        .step = t->before + step + 1,
        .loss = last->loss,
        .lr = last->lr,
        .grad_norm = sqrt(sumsq),
        .samples_per_s = t->phase->batch / f->seconds,
        .in_bytes = bytes_of_step(t, t->cycle.in, at.step),
        .out_bytes = bytes_of_step(t, t->cycle.out, at.step),
        .peer_bytes = bytes_of_step(t, t->cycle.peer, at.step),
        .stall_s = f->stall_s,
        .loss_scale = last->loss_scale,
        .skipped = skipped,
        .blocks = t->blocks,
        .n_blocks = t->n_losses > 1 ? t->n_losses : 0,
    };
    t->known++;
    r = record_step(t, &m, &f->counters, t->plan->steps - 1 - at.step, err);
    return r == 0 && is_judgement_due(t) ? train_record_labels(t, false, err) : r;
}

/* Waits for the oldest run of the cycle whose results were not read yet, and records the results of its
 * steps. */
static int read_run(struct trainer *t, struct err *err)
{
    uint64_t first = t->known;
    uint32_t steps = t->plan->steps;
    int r = train_wait(t, first + steps - 1, err);
    if (r < 0)
        return r;
    uint64_t now = clock_now_ns();
    struct run_figures f = {.seconds = (double)(now - t->last_ns + 1) * 1e-9 / steps};
    train_count(t, &f.counters);
    f.stall_s = train_stall_s(t, &f.counters) / steps;
    t->last_ns = now;
    t->last_wait_ns = f.counters.compute_wait_ns;
    for (uint32_t i = 0; r == 0 && i < steps; i++)
        r = read_step(t, train_place_of(t, first, i), &f, err);
    return r;
}

static int read_all(struct trainer *t, struct err *err)
{
    int r = 0;
    while (r == 0 && t->known < t->step)
        r = read_run(t, err);
    return r;
}

/* ---- plans that take turns ---- */

/* Makes `c` the plan in use, together with its store and its executor. */
static void use_cycle(struct trainer *t, const struct train_cycle *c)
{
    t->plan = c->plan;
    t->store = c->store;
    t->exec = c->exec;
    plan_count_bytes(c->plan, PROGRAM_CYCLE, &t->cycle);
}

/* Returns the plan for the next training step. After the last step of the phase, returns the plan in use. */
static const struct train_cycle *next_cycle(const struct trainer *t)
{
    if (t->single.plan == NULL)
        return &t->whole;
    if (t->step >= t->phase->steps)
        return t->plan == t->single.plan ? &t->single : &t->whole;
    return job_run_steps(t->job, t->phase, t->step) == t->phase->cycle_steps ? &t->whole : &t->single;
}

int train_enter_cycle(struct trainer *t, struct err *err)
{
    const struct train_cycle *next = next_cycle(t);
    if (next->plan != t->plan) {
        store_move(t->store, next->store);
        use_cycle(t, next);
    }
    return train_run_program(t, PROGRAM_ENTRY, NULL, err);
}

/* ---- the loop of a training phase ---- */

/* Changes to the plan for the next training step, if another plan is in use. */
static int change_cycle(struct trainer *t, struct err *err)
{
    if (next_cycle(t)->plan == t->plan)
        return 0;
    int r = read_all(t, err);
    if (r == 0)
        r = train_run_program(t, PROGRAM_EXIT, NULL, err);
    return r < 0 ? r : train_enter_cycle(t, err);
}

static int train_steps(struct trainer *t, struct err *err)
{
    const struct spec *s = t->spec;
    const struct phase *p = t->phase;
    int r = 0;
    train_restart_clock(t);
    while (r == 0 && t->step < p->steps) {
        bool begin = t->known == t->step || !train_stop_requested();
        if (begin)
            r = change_cycle(t, err);
        if (begin && r == 0)
            r = begin_run(t, err);
        bool last = t->step == p->steps, stop = train_stop_requested();
        bool scheduled = last || spec_due(s, &s->checkpoint.every, p->batch, t->step);
        bool save = scheduled || stop;
        /* checkpoint.best compares the evaluations of checkpoints, so every scheduled checkpoint needs an
         * evaluation. */
        bool compare = scheduled && s->checkpoint.best != BEST_NONE;
        bool eval = t->job->val != NULL && p->eval != PHASE_EVAL_NONE &&
                    (last || compare || spec_due(s, &s->eval, p->batch, t->step));
        if (r == 0 && !eval && !save) {
            if (t->step - t->known >= (uint64_t)PLAN_RING * t->plan->steps)
                r = read_run(t, err);
            continue;
        }
        if (r == 0)
            r = read_all(t, err);
        if (r == 0 && eval)
            r = train_evaluate(t, err);
        else if (r == 0 && last)
            r = train_record_labels(t, false, err);
        if (r == 0 && save)
            r = train_checkpoint(t, err);
        train_restart_clock(t);
        if (stop && !(last && train_is_last_phase(t))) {
            t->report->stopped = true;
            break;
        }
    }
    return r;
}

/* ---- the phase ---- */

/* Creates a store, which holds the tensors in host memory, for each plan of the phase. Two stores share the
 * same memory, which belongs to the store that needs more. */
static int create_stores(struct trainer *t, struct err *err)
{
    struct train_cycle *owner = &t->whole, *other = &t->single;
    if (other->plan != NULL && other->plan->host_bytes > owner->plan->host_bytes) {
        owner = &t->single;
        other = &t->whole;
    }
    int r = store_create(t->devices, owner->plan, &owner->store, err);
    if (r < 0 || other->plan == NULL)
        return r;
    return store_share(owner->store, other->plan, &other->store, err);
}

/* Allocates the memory that the phase needs beside its stores. */
static int create_arrays(struct trainer *t, const struct phase *p, struct err *err)
{
    t->n_losses = phase_losses(p, NULL);
    t->losses = calloc(t->n_losses + 1, sizeof *t->losses);
    t->blocks = xcalloc(t->n_losses + 1, sizeof *t->blocks);
    t->last_blocks = xcalloc(t->n_losses + 1, sizeof *t->last_blocks);
    t->sums = calloc(t->n_losses + 1, sizeof *t->sums);
    t->indices = calloc(p->batch, sizeof *t->indices);
    t->targets = calloc((size_t)PLAN_RING * p->cycle_steps, sizeof *t->targets);
    t->args = calloc((size_t)p->cycle_steps * p->n_groups, sizeof *t->args);
    t->scales = xcalloc(p->n_groups, sizeof *t->scales);
    if (t->losses == NULL || t->sums == NULL || t->indices == NULL || t->targets == NULL || t->args == NULL)
        return err_set(err, -ENOMEM, "no memory for a batch of %u", p->batch);
    phase_losses(p, t->losses);
    if (train_group(t, 0) == NULL)
        return 0;
    t->groups = calloc(p->n_groups, sizeof *t->groups);
    return t->groups != NULL ? 0 : err_set(err, -ENOMEM, "no memory for %u decision groups", p->n_groups);
}

static void free_arrays(struct trainer *t)
{
    free(t->losses);
    xfree(t->blocks);
    xfree(t->last_blocks);
    xfree(t->scales);
    t->scales = NULL;
    free(t->sums);
    free(t->indices);
    free(t->targets);
    free(t->args);
    free(t->groups);
    t->losses = NULL;
    t->groups = NULL;
    t->blocks = t->last_blocks = NULL;
    t->sums = NULL;
    t->indices = t->targets = NULL;
    t->args = NULL;
}

/* Sets the loss scales with which the phase starts. The rest of a new group state is zeros. */
static void start_scales(const struct trainer *t)
{
    for (uint32_t g = 0; g < t->phase->n_groups; g++) {
        struct group_state *state = scales_loss(t, g) ? train_group(t, g) : NULL;
        if (state != NULL)
            state->loss_scale = t->phase->optimizer[g].scaling.start;
    }
    train_take_scales(t);
}

static int create_exec(struct trainer *t, struct train_cycle *c, struct err *err)
{
    if (c->plan == NULL)
        return 0;
    struct exec_config config = {c->plan, &t->phase->model, t->phase->optimizer, t->devices, c->store};
    return exec_create(&config, &c->exec, err);
}

int train_enter(struct trainer *t, struct phase *p, struct err *err)
{
    t->phase = p;
    t->whole = (struct train_cycle){.plan = p->plan};
    t->single = (struct train_cycle){.plan = p->single.plan};
    t->before = phases_steps_before(&t->job->phases, p->number);
    t->step = t->known = 0;
    int r = create_stores(t, err);
    if (r == 0)
        r = create_exec(t, &t->whole, err);
    if (r == 0)
        r = create_exec(t, &t->single, err);
    if (r < 0)
        return r;
    use_cycle(t, &t->whole);
    r = create_arrays(t, p, err);
    if (r == 0)
        start_scales(t);
    if (r == 0)
        r = train_unpark(t, err);
    if (r < 0)
        return r;
    const struct phase_list *list = &t->job->phases;
    checkpoint_tensors_init(&t->tensors, &list->all, list->n_model, p->optimizer, train_block, t);
    return 0;
}

void train_leave(struct trainer *t)
{
    exec_destroy(t->whole.exec);
    exec_destroy(t->single.exec);
    checkpoint_tensors_finish(&t->tensors);
    store_destroy(t->whole.store);
    store_destroy(t->single.store);
    free_arrays(t);
    t->whole = t->single = (struct train_cycle){0};
    t->plan = NULL;
    t->exec = NULL;
    t->store = NULL;
}

int train_run_phase(struct trainer *t, struct err *err)
{
    struct run_trace *trace = t->phase == job_largest_phase(t->job) ? t->options->trace : NULL;
    int r = train_enter_cycle(t, err);
    if (r == 0 && trace != NULL)
        run_trace_start(trace, t->job, t->phase, t->whole.exec, t->step);
    if (t->start_ns == 0)
        t->start_ns = clock_now_ns();
    if (r == 0)
        r = t->phase->training ? train_steps(t, err) : train_keep_outputs(t, err);
    if (r == 0)
        r = train_run_program(t, PROGRAM_EXIT, NULL, err);
    if (r == 0 && trace != NULL)
        run_trace_end(trace, t->whole.exec);
    return r;
}
