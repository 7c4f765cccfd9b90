/* Runs one phase of a job: fills the input slots, runs the executor, reads each result one run late, and
 * evaluates.
 *
 * A run of the cycle covers one training step, or several (memory.cycle_steps). The loop runs in one thread
 * and has no separate loader: it fills the input slots of run s+1 while run s computes on the streams, and
 * then sleeps until run s is done. Results are read one run late, so the streams never run dry between runs.
 *
 * With several steps in a cycle, the steps that remain before an evaluation, a checkpoint or the end run
 * under a second plan, of one step. A change of plans drains the streams, runs the program exit of one plan
 * and the program entry of the other, and changes no value.
 *
 * Evaluations, checkpoints and the end of the phase do drain the streams. There the byte counters of the
 * devices must equal the bytes that the plan promised; otherwise the run fails.
 *
 * A forward-only phase uses the same loop without these breaks: its cycle is one forward pass, and its result
 * is the output of the last layer. It writes no checkpoint, because it changes no state.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "daemon/worker/train_private.h"

/* ---- programs ---- */

int train_run_program(struct trainer *t, enum program_kind k, const struct step_args *args, struct err *err)
{
    int r = exec_run(t->exec, k, args);
    if (r < 0)
        return err_set(err, r, "the devices failed in program %s: %s", program_kind_names[k], strerror(-r));
    train_promise(t, k);
    return train_check_counters(t, err);
}

/* Returns the last layer of the phase. It is the loss, or the layer whose outputs are kept. */
static uint32_t last_layer(const struct trainer *t)
{
    return t->plan->n_layers - 1;
}

/* Says where the tensors of one training step are. `slot` is the number of their host slot. `step` is the
 * number of the training step within the run of the cycle. */
struct place {
    uint64_t slot;
    uint32_t step;
};

/* Returns the place of step `i` in the run of the cycle that begins at training step `first`. */
static struct place place_of(const struct trainer *t, uint64_t first, uint32_t i)
{
    return (struct place){exec_slot(t->plan, first), i};
}

/* Fills the input of micro-batch `micro` with `n` samples. Also fills the targets of the micro-batch if the
 * phase has targets. `indices` has the numbers of the samples in the data set `d`. If the inputs of the phase
 * are kept outputs, the input gets the kept outputs of these samples. */
static int fill_micro(struct trainer *t, const struct dataset *d, const uint64_t *indices, uint32_t n,
                      uint32_t micro, struct place at, uint64_t *ret_targets, struct err *err)
{
    uint32_t rows = t->plan->rows;
    tensor_id target_id = store_find(t->store, TENSOR_TARGET, last_layer(t), micro, at.step);
    void *x = store_ptr(t->store, store_find(t->store, TENSOR_X, 0, micro, at.step), at.slot);
    void *target = target_id == PLAN_NONE ? NULL : store_ptr(t->store, target_id, at.slot);
    const struct kept *inputs = train_inputs(t);
    if (inputs != NULL) {
        kept_fill(inputs, indices, n, rows, x);
        x = NULL;
    }
    return dataset_fill(d, indices, n, rows, x, target, ret_targets, err);
}

/* Fills the inputs and targets of one training step with the first `valid` samples in t->indices. `at` is the
 * place of the step's tensors. *ret_targets receives the number of targets that count for the loss. */
static int fill_slots(struct trainer *t, const struct dataset *d, uint32_t valid, struct place at,
                      uint64_t *ret_targets, struct err *err)
{
    uint32_t rows = t->plan->rows;
    uint64_t sum = 0;
    for (uint32_t j = 0; j < t->plan->n_micro; j++) {
        uint32_t first = j * rows, left = valid > first ? valid - first : 0;
        uint64_t counted = 0;
        int r = fill_micro(t, d, t->indices + first, left < rows ? left : rows, j, at, &counted, err);
        if (r < 0)
            return r;
        sum += counted;
    }
    *ret_targets = sum;
    return 0;
}

/* Reports that no target of a batch counts for the loss. The loss is the mean over the targets that count, so
 * the loss would be undefined. */
static int fail_no_targets(const char *of, struct err *err)
{
    return err_set_at(err, -EINVAL, "data.ignore",
                      "no target of %s counts: all are the token that is ignored; remove data.ignore, give "
                      "other data, or set train.global_batch to more",
                      of);
}

static struct step_result sum_results(const struct trainer *t, struct place at)
{
    struct step_result sum = {0};
    for (uint32_t j = 0; j < t->plan->n_micro; j++) {
        const struct step_result *r =
            store_ptr(t->store, store_find(t->store, TENSOR_RESULT, last_layer(t), j, at.step), at.slot);
        sum.loss += r->loss;
        sum.correct += r->correct;
    }
    return sum;
}

/* Reports that the devices failed in step `step` of the phase, counted from 0, or in that batch of a
 * forward-only phase. */
static int fail_devices(const struct trainer *t, uint64_t step, int code, struct err *err)
{
    if (!t->phase->training)
        return err_set(err, code, "the devices failed in batch %" PRIu64 " of phase %" PRIu32 " (%s): %s",
                       step + 1, t->phase->number, t->phase->name, strerror(-code));
    return err_set(err, code, "the devices failed in step %" PRIu64 ": %s", t->before + step + 1,
                   strerror(-code));
}

static int enqueue_cycle(struct trainer *t, const struct step_args *args, struct err *err)
{
    int r = exec_cycle(t->exec, args);
    if (r < 0)
        return fail_devices(t, t->step, r, err);
    train_promise(t, PROGRAM_CYCLE);
    t->step += t->plan->steps;
    return 0;
}

static int wait_step(struct trainer *t, uint64_t step, struct err *err)
{
    int r = exec_wait(t->exec, step);
    return r < 0 ? fail_devices(t, step, r, err) : 0;
}

/* ---- training steps ---- */

static struct step_args args_of_step(const struct trainer *t, uint64_t step, uint64_t targets)
{
    const struct phase *p = t->phase;
    return (struct step_args){
        .step = step,
        .seed = rng_phase_seed(t->spec->seed, p->number),
        .lr = (float)spec_lr(&p->rate, p->steps, step),
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
static uint64_t *targets_at(const struct trainer *t, struct place at)
{
    return &t->targets[at.slot % PLAN_RING * t->phase->cycle_steps + at.step];
}

/* Fills the inputs and the arguments of step `i` of the next run of the cycle. */
static int fill_step(struct trainer *t, uint32_t i, struct err *err)
{
    char text[64];
    uint64_t step = t->step + i, targets = 0;
    struct place at = place_of(t, t->step, i);
    choose_samples(t, step);
    int r = fill_slots(t, t->job->train, t->phase->batch, at, &targets, err);
    if (r < 0)
        return r;
    *targets_at(t, at) = targets;
    t->args[i] = args_of_step(t, step, targets);
    if (targets > 0)
        return 0;
    snprintf(text, sizeof text, "step %" PRIu64, t->before + step + 1);
    return fail_no_targets(text, err);
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

/* Enqueues the next run of the cycle. */
static int enqueue_run(struct trainer *t, struct err *err)
{
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < t->plan->steps; i++)
        r = fill_step(t, i, err);
    if (r == 0)
        r = enqueue_cycle(t, t->args, err);
    if (r == 0)
        prefetch_run(t);
    return r;
}

/* ---- results ---- */

/* Returns the decision whether the update of a training step is applied, or NULL if the job makes no such
 * decisions. */
static const struct step_decision *decision_of(const struct trainer *t, struct place at)
{
    tensor_id id = store_find(t->store, TENSOR_DECISION, 0, PLAN_NONE, at.step);
    return id == PLAN_NONE ? NULL : store_ptr(t->store, id, at.slot);
}

struct group_state *train_group(const struct trainer *t)
{
    tensor_id id = store_find(t->store, TENSOR_GROUP, 0, PLAN_NONE, 0);
    return id == PLAN_NONE ? NULL : store_ptr(t->store, id, 0);
}

/* Writes a text such as ", first in layer 3 (block)" to `buf`, or "" if the layer is not known. `layer` is an
 * index into the layers of the phase. */
static void name_layer(const struct trainer *t, uint32_t layer, char *buf, size_t size)
{
    buf[0] = '\0';
    if (layer < t->plan->n_layers)
        snprintf(buf, size, ", first in layer %u (%s)", t->phase->model.layers[layer].id,
                 t->phase->graph->layers[layer].type);
}

/* Finds the layer in which training first diverged, for a job that makes no decisions on updates. Returns the
 * index of the layer in the phase. */
static uint32_t find_ruined(struct trainer *t)
{
    exec_run(t->exec, PROGRAM_FLUSH, NULL);
    return train_find_ruined(t);
}

static int check_finite(struct trainer *t, double loss, const struct step_decision *d, struct err *err)
{
    bool skip = t->phase->skip_nonfinite, skipped = d != NULL && d->apply == 0;
    char layer[64];
    if ((isfinite(loss) && !skipped) || (skip && skipped))
        return 0;
    name_layer(t, skipped ? d->bad_layer : d == NULL ? find_ruined(t) : STEP_NO_LAYER, layer, sizeof layer);
    return err_set(
        err, -EDOM, "%s at step %" PRIu64 "%s: training has diverged. %s; %s",
        isfinite(loss) ? "a gradient is not finite" : "the loss is not finite", t->before + t->known + 1,
        layer, train_what_is_kept(t),
        skip ? "lower optimizer.lr or set train.grad_clip"
             : "lower optimizer.lr, set train.grad_clip, or skip such steps with train.on_nonfinite "
               "\"skip\"");
}

/* Records the figures of a training step whose result was just read. `left` is the number of steps of the
 * same run that follow. */
static int record_step(struct trainer *t, const struct metrics_step *m, const struct device_counters *c,
                       uint32_t left, struct err *err)
{
    t->report->loss = m->loss;
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
                                           .skipped = m->skipped});
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

/* Reads and records the result of training step t->known. This training step is step `at.step` of a run of
 * the cycle. The run is complete, and `f` has its measurements. */
static int read_step(struct trainer *t, struct place at, const struct run_figures *f, struct err *err)
{
    uint64_t step = t->known;
    const struct step_decision *decision = decision_of(t, at);
    double loss = sum_results(t, at).loss / (double)*targets_at(t, at);
    int r = check_finite(t, loss, decision, err);
    if (r < 0)
        return r;
    struct metrics_step m = {
        .step = t->before + step + 1,
        .loss = loss,
        .lr = spec_lr(&t->phase->rate, t->phase->steps, step),
        .grad_norm = decision != NULL ? sqrt(decision->sumsq) : NAN,
        .samples_per_s = t->phase->batch / f->seconds,
        .in_bytes = bytes_of_step(t, t->cycle.in, at.step),
        .out_bytes = bytes_of_step(t, t->cycle.out, at.step),
        .peer_bytes = bytes_of_step(t, t->cycle.peer, at.step),
        .stall_s = f->stall_s,
        .skipped = decision != NULL && decision->apply == 0,
    };
    t->known++;
    return record_step(t, &m, &f->counters, t->plan->steps - 1 - at.step, err);
}

/* Waits for the oldest run of the cycle whose results were not read yet, and records the results of its
 * steps. */
static int read_run(struct trainer *t, struct err *err)
{
    uint64_t first = t->known;
    uint32_t steps = t->plan->steps;
    int r = wait_step(t, first + steps - 1, err);
    if (r < 0)
        return r;
    uint64_t now = clock_now_ns();
    struct run_figures f = {.seconds = (double)(now - t->last_ns + 1) * 1e-9 / steps};
    train_count(t, &f.counters);
    f.stall_s = train_stall_s(t, &f.counters) / steps;
    t->last_ns = now;
    t->last_wait_ns = f.counters.compute_wait_ns;
    for (uint32_t i = 0; r == 0 && i < steps; i++)
        r = read_step(t, place_of(t, first, i), &f, err);
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

/* Makes the plan for the next training step the plan in use, and runs its program `entry`. The old plan must
 * not be between its programs `entry` and `exit`. */
static int enter_cycle(struct trainer *t, struct err *err)
{
    const struct train_cycle *next = next_cycle(t);
    if (next->plan != t->plan) {
        store_move(t->store, next->store);
        use_cycle(t, next);
    }
    return train_run_program(t, PROGRAM_ENTRY, NULL, err);
}

/* ---- evaluation ---- */

static int eval_batch(struct trainer *t, uint64_t first, struct step_result *sum, uint64_t *targets,
                      struct err *err)
{
    uint32_t batch = t->phase->batch;
    uint64_t left = t->job->val->n_samples - first;
    uint32_t valid = left < batch ? (uint32_t)left : batch;
    for (uint32_t i = 0; i < valid; i++)
        t->indices[i] = first + i;
    uint64_t counted = 0;
    int r = fill_slots(t, t->job->val, valid, (struct place){0}, &counted, err);
    if (r < 0)
        return r;
    struct step_args args = {.valid_rows = valid, .grad_scale = 1.0f};
    r = train_run_program(t, PROGRAM_EVAL, &args, err);
    struct step_result s = sum_results(t, (struct place){0});
    sum->loss += s.loss;
    sum->correct += s.correct;
    *targets += counted;
    return r;
}

double train_perplexity(const struct trainer *t, double loss)
{
    return t->spec->tokens ? exp(loss) : NAN;
}

/* Records the result of an evaluation. */
static int record_eval(struct trainer *t, struct err *err)
{
    struct train_report *rep = t->report;
    t->eval_step = train_steps_done(t);
    rep->evaluated = true;
    rep->val_loss = t->eval.loss;
    rep->val_accuracy = t->eval.accuracy;
    rep->val_perplexity = train_perplexity(t, t->eval.loss);
    int r = metrics_eval(t->metrics, t->eval_step, t->eval.loss, t->eval.accuracy, rep->val_perplexity, err);
    train_tell(t, &(struct train_progress){.event = PROGRESS_EVAL,
                                           .step = t->eval_step,
                                           .val_loss = t->eval.loss,
                                           .val_accuracy = t->eval.accuracy,
                                           .val_perplexity = rep->val_perplexity});
    return r;
}

/* Evaluates the model on the validation data. Runs the program `exit`, then the program `eval` for every
 * batch, and then the program `entry`. The results of all earlier steps must have been read. */
static int evaluate(struct trainer *t, struct err *err)
{
    uint64_t n = t->job->val->n_samples, targets = 0;
    struct step_result sum = {0};
    int r = train_run_program(t, PROGRAM_EXIT, NULL, err);
    for (uint64_t first = 0; r == 0 && first < n; first += t->phase->batch)
        r = eval_batch(t, first, &sum, &targets, err);
    if (r == 0 && targets == 0)
        r = fail_no_targets("data.val", err);
    if (r == 0)
        r = enter_cycle(t, err);
    if (r < 0)
        return r;
    t->eval = (struct checkpoint_eval){true, sum.loss / (double)targets, sum.correct / (double)targets};
    return record_eval(t, err);
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
    return r < 0 ? r : enter_cycle(t, err);
}

static int train_steps(struct trainer *t, struct err *err)
{
    const struct spec *s = t->spec;
    const struct phase *p = t->phase;
    int r = 0;
    train_restart_clock(t);
    while (r == 0 && t->step < p->steps) {
        r = change_cycle(t, err);
        if (r == 0)
            r = enqueue_run(t, err);
        bool last = t->step == p->steps, stop = train_stop_requested();
        bool scheduled = last || spec_due(s, &s->checkpoint.every, p->batch, t->step);
        bool save = scheduled || stop;
        /* checkpoint.best compares the evaluations of checkpoints, so every scheduled checkpoint needs an
         * evaluation. */
        bool compare = scheduled && s->checkpoint.best != BEST_NONE;
        bool eval = t->job->val != NULL && p->evaluates &&
                    (last || compare || spec_due(s, &s->eval, p->batch, t->step));
        if (r == 0 && !eval && !save) {
            if (t->step - t->known >= (uint64_t)PLAN_RING * t->plan->steps)
                r = read_run(t, err);
            continue;
        }
        if (r == 0)
            r = read_all(t, err);
        if (r == 0 && eval)
            r = evaluate(t, err);
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

/* ---- the loop of a forward-only phase ---- */

static uint32_t valid_rows(const struct trainer *t, uint64_t step)
{
    uint32_t batch = t->phase->batch;
    uint64_t left = t->job->train->n_samples - step * batch;
    return left < batch ? (uint32_t)left : batch;
}

/* Enqueues the next batch of training samples, in the order of the data set. */
static int enqueue_batch(struct trainer *t, struct err *err)
{
    uint32_t valid = valid_rows(t, t->step);
    uint64_t targets;
    for (uint32_t i = 0; i < valid; i++)
        t->indices[i] = t->step * t->phase->batch + i;
    int r = fill_slots(t, t->job->train, valid, place_of(t, t->step, 0), &targets, err);
    if (r < 0)
        return r;
    struct step_args args = {.step = t->step, .valid_rows = valid, .grad_scale = 1.0f};
    return enqueue_cycle(t, &args, err);
}

/* Waits for the oldest batch whose outputs were not read yet, and keeps its outputs. */
static int read_batch(struct trainer *t, struct kept *kept, struct err *err)
{
    uint32_t rows = t->plan->rows, valid = valid_rows(t, t->known);
    int r = wait_step(t, t->known, err);
    for (uint32_t j = 0; r == 0 && j < t->plan->n_micro && j * rows < valid; j++) {
        const void *y = store_ptr(t->store, store_find(t->store, TENSOR_Y, last_layer(t), j, 0), t->known);
        uint32_t left = valid - j * rows;
        kept_put(kept, t->known * t->phase->batch + (uint64_t)j * rows, left < rows ? left : rows, y);
    }
    if (r < 0)
        return r;
    t->known++;
    train_tell(t, &(struct train_progress){.event = PROGRESS_OUTPUTS,
                                           .step = t->before,
                                           .samples = (t->known - 1) * t->phase->batch + valid,
                                           .total_samples = t->job->train->n_samples});
    return 0;
}

/* Runs all training samples through the phase's layers and stores the outputs in t->kept. If a stop is
 * requested, the outputs are incomplete and are not stored. */
static int keep_outputs(struct trainer *t, struct err *err)
{
    const struct phase *p = t->phase;
    struct layer_sizes size;
    const struct layer *last = &p->model.layers[p->model.n_layers - 1];
    uint64_t n = t->job->train->n_samples, batches = (n + p->batch - 1) / p->batch;
    struct kept *kept;
    layer_type(last)->sizes(last, 1, &size);
    int r = kept_create(t->out, n, size.y, &kept, err);
    if (r < 0)
        return r;
    while (r == 0 && t->step < batches && !train_stop_requested()) {
        r = enqueue_batch(t, err);
        if (r == 0 && t->step - t->known >= PLAN_RING)
            r = read_batch(t, kept, err);
    }
    while (r == 0 && t->known < t->step)
        r = read_batch(t, kept, err);
    if (r < 0 || t->step < batches) {
        t->report->stopped = r == 0;
        kept_destroy(kept);
    } else {
        kept_seal(kept);
        t->kept[p->number] = kept;
    }
    t->step = t->known = 0; /* batches are no training steps */
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

static int create_exec(struct trainer *t, struct train_cycle *c, struct err *err)
{
    if (c->plan == NULL)
        return 0;
    struct exec_config config = {c->plan, &t->phase->model, &t->phase->optimizer, t->devices, c->store};
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
    t->indices = calloc(p->batch, sizeof *t->indices);
    t->targets = calloc((size_t)PLAN_RING * p->cycle_steps, sizeof *t->targets);
    t->args = calloc(p->cycle_steps, sizeof *t->args);
    if (t->indices == NULL || t->targets == NULL || t->args == NULL)
        return err_set(err, -ENOMEM, "no memory for a batch of %u", p->batch);
    r = train_unpark(t, err);
    if (r < 0)
        return r;
    checkpoint_tensors_init(&t->tensors, &t->spec->model, &p->optimizer, train_block, t);
    return 0;
}

void train_leave(struct trainer *t)
{
    exec_destroy(t->whole.exec);
    exec_destroy(t->single.exec);
    checkpoint_tensors_finish(&t->tensors);
    store_destroy(t->whole.store);
    store_destroy(t->single.store);
    free(t->indices);
    free(t->targets);
    free(t->args);
    t->whole = t->single = (struct train_cycle){0};
    t->plan = NULL;
    t->exec = NULL;
    t->store = NULL;
    t->indices = t->targets = NULL;
    t->args = NULL;
}

int train_run_phase(struct trainer *t, struct err *err)
{
    struct run_trace *trace = t->phase == job_largest_phase(t->job) ? t->options->trace : NULL;
    int r = enter_cycle(t, err);
    if (r == 0 && trace != NULL)
        run_trace_start(trace, t->job, t->phase, t->whole.exec, t->step);
    if (t->start_ns == 0)
        t->start_ns = clock_now_ns();
    if (r == 0)
        r = t->phase->training ? train_steps(t, err) : keep_outputs(t, err);
    if (r == 0)
        r = train_run_program(t, PROGRAM_EXIT, NULL, err);
    if (r == 0 && trace != NULL)
        run_trace_end(trace, t->whole.exec);
    return r;
}
