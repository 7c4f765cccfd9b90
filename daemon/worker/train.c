/* Implements the training loop declared in train.h.
 *
 * The loop runs in one thread and has no separate loader: it fills the input slot of step s+1 while step s
 * computes on the streams, and then sleeps until step s is done. Results are read one step late, so the
 * streams never run dry between steps.
 *
 * Evaluations, checkpoints and the end of the run do drain the streams. There the byte counters of the
 * devices must equal the bytes that the plan promised; otherwise the run fails.
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
#include "base/strbuf.h"
#include "daemon/worker/metrics.h"
#include "daemon/worker/model/checkpoint.h"
#include "daemon/worker/model/hf.h"
#include "daemon/worker/model/weights.h"
#include "kernels/device.h"
#include "swap/exec.h"
#include "swap/store.h"

/* The state of the training loop during one run. train_run creates it on its stack. */
struct trainer {
    struct prepared_job *job;
    const struct spec *spec;
    const struct plan *plan;
    const struct outdir *out;
    const struct train_options *options;
    struct devset *devices;
    struct store *store;
    struct exec *exec;
    struct metrics *metrics;
    struct checkpoint_tensors tensors;
    /* The samples of one global batch, each given by its index in the data set. */
    uint64_t *indices;
    /* For each training step whose result was not read yet: the number of targets that count for the loss. */
    uint64_t targets[PLAN_RING];
    /* Numbers of bytes that the devices should have moved so far according to the plan. check_counters
     * compares them with the devices' own counters. */
    uint64_t planned_in, planned_out, planned_peer;
    uint64_t step;    /* number of steps enqueued */
    uint64_t known;   /* number of results read so far */
    uint64_t last_ns; /* time of the last read result */
    /* Total waiting time of all compute streams at the moment last_ns, in nanoseconds. */
    uint64_t last_wait_ns;
    /* The result of the last evaluation. It is valid only while `step` equals `eval_step`. */
    struct checkpoint_eval eval;
    uint64_t eval_step;
    bool has_checkpoint;
    struct train_report *report;
};

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

/* ---- counting ---- */

/* Adds the bytes that one run of program `k` moves to the bytes that the devices should have moved so far. */
static void promise(struct trainer *t, enum program_kind k)
{
    struct plan_bytes b;
    plan_count_bytes(t->plan, k, &b);
    t->planned_in += b.in;
    t->planned_out += b.out;
    t->planned_peer += b.peer;
}

static void count(const struct trainer *t, struct device_counters *sum)
{
    *sum = (struct device_counters){0};
    for (uint32_t i = 0; i < t->plan->n_devices; i++) {
        struct device_counters c;
        devset_counters(t->devices, i, &c);
        sum->in_bytes += c.in_bytes;
        sum->out_bytes += c.out_bytes;
        sum->peer_bytes += c.peer_bytes;
        sum->compute_busy_ns += c.compute_busy_ns;
        sum->compute_wait_ns += c.compute_wait_ns;
    }
}

/* Returns the fraction of time in which the compute streams of the devices waited. Returns NaN if the devices
 * do not count this time or have not computed yet. */
static double stall_share(const struct device_counters *c)
{
    uint64_t both = c->compute_busy_ns + c->compute_wait_ns;
    return both > 0 ? (double)c->compute_wait_ns / (double)both : NAN;
}

static double stall_s(const struct trainer *t, const struct device_counters *c)
{
    if (c->compute_busy_ns + c->compute_wait_ns == 0)
        return NAN;
    return (double)(c->compute_wait_ns - t->last_wait_ns) * 1e-9 / t->plan->n_devices;
}

/* Compares the bytes that the devices have moved with the bytes that the plan says. The streams must be
 * drained. If the numbers differ, execution does not follow the plan, and the run must end. */
static int check_counters(struct trainer *t, struct err *err)
{
    struct device_counters c;
    count(t, &c);
    if (c.in_bytes == t->planned_in && c.out_bytes == t->planned_out && c.peer_bytes == t->planned_peer)
        return 0;
    return err_set(err, -EPROTO,
                   "internal: the devices moved in %" PRIu64 ", out %" PRIu64 ", peer %" PRIu64
                   " bytes, but the plan says %" PRIu64 ", %" PRIu64 ", %" PRIu64,
                   c.in_bytes, c.out_bytes, c.peer_bytes, t->planned_in, t->planned_out, t->planned_peer);
}

/* ---- programs ---- */

static int run_program(struct trainer *t, enum program_kind k, const struct step_args *args, struct err *err)
{
    int r = exec_run(t->exec, k, args);
    if (r < 0)
        return err_set(err, r, "the devices failed in program %s: %s", program_kind_names[k], strerror(-r));
    promise(t, k);
    return check_counters(t, err);
}

/* Fills the input and target slots of training step `step` with the samples in t->indices. *ret_targets is
 * the number of targets that count for the loss. */
static int fill_slots(struct trainer *t, const struct dataset *d, uint32_t valid, uint64_t step,
                      uint64_t *ret_targets, struct err *err)
{
    uint32_t rows = t->plan->rows;
    uint64_t sum = 0;
    for (uint32_t j = 0; j < t->plan->n_micro; j++) {
        uint32_t first = j * rows, left = valid > first ? valid - first : 0;
        void *x = store_ptr(t->store, store_find(t->store, TENSOR_X, 0, j), step);
        void *target = store_ptr(t->store, store_find(t->store, TENSOR_TARGET, PLAN_NONE, j), step);
        uint64_t counted = 0;
        int r =
            dataset_fill(d, t->indices + first, left < rows ? left : rows, rows, x, target, &counted, err);
        if (r < 0)
            return r;
        sum += counted;
    }
    *ret_targets = sum;
    return 0;
}

/* Reports that no target of a batch counts for the loss. The loss is the mean over the targets that count, so
 * it would be undefined. */
static int fail_no_targets(const char *of, struct err *err)
{
    return err_set_at(err, -EINVAL, "data.ignore",
                      "no target of %s counts: all are the token that is ignored; remove data.ignore, give "
                      "other data, or set train.global_batch to more",
                      of);
}

static struct step_result sum_results(const struct trainer *t, uint64_t step)
{
    struct step_result sum = {0};
    for (uint32_t j = 0; j < t->plan->n_micro; j++) {
        const struct step_result *r =
            store_ptr(t->store, store_find(t->store, TENSOR_RESULT, PLAN_NONE, j), step);
        sum.loss += r->loss;
        sum.correct += r->correct;
    }
    return sum;
}

static struct step_args args_of_step(const struct trainer *t, uint64_t step, uint64_t targets)
{
    const struct spec *s = t->spec;
    return (struct step_args){
        .step = step,
        .seed = s->seed,
        .lr = (float)spec_lr(s, step),
        .grad_scale = (float)(1.0 / (double)targets),
        .valid_rows = s->train.global_batch,
        .training = 1,
    };
}

static void choose_samples(struct trainer *t, uint64_t step)
{
    uint32_t batch = t->spec->train.global_batch;
    for (uint32_t i = 0; i < batch; i++)
        t->indices[i] = data_index(t->spec, step * batch + i);
}

static int fill_step(struct trainer *t, uint64_t *ret_targets, struct err *err)
{
    char step[64];
    choose_samples(t, t->step);
    int r = fill_slots(t, t->job->train, t->spec->train.global_batch, t->step, ret_targets, err);
    if (r < 0 || *ret_targets > 0)
        return r;
    snprintf(step, sizeof step, "step %" PRIu64, t->step + 1);
    return fail_no_targets(step, err);
}

/* Asks the kernel to read the samples of the next training step from disk ahead of time. Does nothing after
 * the last step. */
static void prefetch_step(struct trainer *t)
{
    if (t->job->train->n_files == 0 || t->step >= t->spec->resolved.total_steps)
        return;
    choose_samples(t, t->step);
    dataset_prefetch(t->job->train, t->indices, t->spec->train.global_batch);
}

static int enqueue_step(struct trainer *t, struct err *err)
{
    uint64_t targets = 0;
    int r = fill_step(t, &targets, err);
    if (r < 0)
        return r;
    struct step_args args = args_of_step(t, t->step, targets);
    r = exec_cycle(t->exec, &args);
    if (r < 0)
        return err_set(err, r, "the devices failed in step %" PRIu64 ": %s", t->step + 1, strerror(-r));
    promise(t, PROGRAM_CYCLE);
    t->targets[t->step % PLAN_RING] = targets;
    t->step++;
    prefetch_step(t);
    return 0;
}

/* ---- results ---- */

static void *state_block(void *ctx, uint32_t layer, bool optimizer_state)
{
    const struct trainer *t = ctx;
    return store_ptr(t->store, store_find(t->store, optimizer_state ? TENSOR_K : TENSOR_W, layer, PLAN_NONE),
                     0);
}

static bool all_finite(const float *v, uint64_t n)
{
    bool ok = true;
    for (uint64_t i = 0; i < n; i++)
        ok &= isfinite(v[i]) != 0;
    return ok;
}

/* Returns the decision of a training step (whether its update is applied), or NULL if the job makes no
 * decisions. */
static const struct step_decision *decision_of(const struct trainer *t, uint64_t step)
{
    tensor_id id = store_find(t->store, TENSOR_DECISION, PLAN_NONE, PLAN_NONE);
    return id == PLAN_NONE ? NULL : store_ptr(t->store, id, step);
}

/* Returns the host's copy of the decision group's state, or NULL if there is none. The copy is up to date
 * only while the streams are drained. */
static struct group_state *group_of(const struct trainer *t)
{
    tensor_id id = store_find(t->store, TENSOR_GROUP, PLAN_NONE, PLAN_NONE);
    return id == PLAN_NONE ? NULL : store_ptr(t->store, id, 0);
}

static const char *what_is_kept(const struct trainer *t)
{
    return t->has_checkpoint ? "The last checkpoint is kept" : "No checkpoint was written";
}

/* Writes a text such as ", first in layer 3 (block)" to `buf`, or "" if the layer is not known. */
static void name_layer(const struct trainer *t, uint32_t layer, char *buf, size_t size)
{
    buf[0] = '\0';
    if (layer < t->plan->n_layers)
        snprintf(buf, size, ", first in layer %u (%s)", layer, t->job->graph->layers[layer].type);
}

/* Finds the layer in which training first diverged, for a job without decisions. Of the layers whose weights
 * are no longer finite, the last one was first, because the backward pass starts at the end of the chain. */
static uint32_t find_ruined(struct trainer *t)
{
    exec_run(t->exec, PROGRAM_FLUSH, NULL);
    for (uint32_t l = t->plan->n_layers; l-- > 0;)
        if (graph_updates(t->job->graph, l) &&
            !all_finite(state_block(t, l, false), t->job->graph->layers[l].size.w / sizeof(float)))
            return l;
    return STEP_NO_LAYER;
}

static int check_finite(struct trainer *t, double loss, const struct step_decision *d, struct err *err)
{
    bool skip = t->spec->train.skip_nonfinite, skipped = d != NULL && d->apply == 0;
    char layer[64];
    if ((isfinite(loss) && !skipped) || (skip && skipped))
        return 0;
    name_layer(t, skipped ? d->bad_layer : d == NULL ? find_ruined(t) : STEP_NO_LAYER, layer, sizeof layer);
    return err_set(
        err, -EDOM, "%s at step %" PRIu64 "%s: training has diverged. %s; %s",
        isfinite(loss) ? "a gradient is not finite" : "the loss is not finite", t->known + 1, layer,
        what_is_kept(t),
        skip ? "lower optimizer.lr or set train.grad_clip"
             : "lower optimizer.lr, set train.grad_clip, or skip such steps with train.on_nonfinite "
               "\"skip\"");
}

static void tell(const struct trainer *t, const struct train_progress *p)
{
    if (t->options->progress != NULL)
        t->options->progress(t->options->ctx, p);
}

/* Waits for the oldest training step whose result was not read yet, and records its result. */
static int read_step(struct trainer *t, struct err *err)
{
    uint64_t step = t->known;
    int r = exec_wait(t->exec, step);
    if (r < 0)
        return err_set(err, r, "the devices failed in step %" PRIu64 ": %s", step + 1, strerror(-r));
    uint32_t batch = t->spec->train.global_batch;
    const struct step_decision *decision = decision_of(t, step);
    bool skipped = decision != NULL && decision->apply == 0;
    double loss = sum_results(t, step).loss / (double)t->targets[step % PLAN_RING];
    double norm = decision != NULL ? sqrt(decision->sumsq) : NAN;
    r = check_finite(t, loss, decision, err);
    if (r < 0)
        return r;
    uint64_t now = clock_now_ns();
    struct device_counters c;
    count(t, &c);
    struct metrics_step m = {
        .step = step + 1,
        .loss = loss,
        .lr = spec_lr(t->spec, step),
        .grad_norm = norm,
        .samples_per_s = batch / ((double)(now - t->last_ns + 1) * 1e-9),
        .in_bytes = t->report->cycle.in,
        .out_bytes = t->report->cycle.out,
        .peer_bytes = t->report->cycle.peer,
        .stall_s = stall_s(t, &c),
        .skipped = skipped,
    };
    t->last_ns = now;
    t->last_wait_ns = c.compute_wait_ns;
    t->known++;
    t->report->loss = loss;
    t->report->skipped_steps += skipped;
    r = metrics_train(t->metrics, &m, err);
    tell(t, &(struct train_progress){.event = PROGRESS_STEP,
                                     .step = t->known,
                                     .total_steps = t->spec->resolved.total_steps,
                                     .loss = loss,
                                     .lr = m.lr,
                                     .samples_per_s = m.samples_per_s,
                                     .stall_share = stall_share(&c),
                                     .skipped = skipped});
    return r;
}

static int read_all(struct trainer *t, struct err *err)
{
    int r = 0;
    while (r == 0 && t->known < t->step)
        r = read_step(t, err);
    return r;
}

/* ---- evaluation ---- */

static int eval_batch(struct trainer *t, uint64_t first, struct step_result *sum, uint64_t *targets,
                      struct err *err)
{
    uint32_t batch = t->spec->train.global_batch;
    uint64_t left = t->job->val->n_samples - first;
    uint32_t valid = left < batch ? (uint32_t)left : batch;
    for (uint32_t i = 0; i < valid; i++)
        t->indices[i] = first + i;
    uint64_t counted = 0;
    int r = fill_slots(t, t->job->val, valid, 0, &counted, err);
    if (r < 0)
        return r;
    struct step_args args = {.valid_rows = valid, .grad_scale = 1.0f};
    r = run_program(t, PROGRAM_EVAL, &args, err);
    struct step_result s = sum_results(t, 0);
    sum->loss += s.loss;
    sum->correct += s.correct;
    *targets += counted;
    return r;
}

/* Starts to measure the time of the next training step now, so that an evaluation or a checkpoint before it
 * does not count. */
static void restart_clock(struct trainer *t)
{
    struct device_counters c;
    count(t, &c);
    t->last_ns = clock_now_ns();
    t->last_wait_ns = c.compute_wait_ns;
}

/* Returns the perplexity e^loss of a language model, or NaN for other models. A perplexity of 10 means that
 * the model is as unsure as if it chose among 10 equally likely tokens. */
static double perplexity(const struct trainer *t, double loss)
{
    return t->spec->tokens ? exp(loss) : NAN;
}

/* Evaluates the model on the validation data: runs the program exit, then the program eval for every batch,
 * then the program entry. The results of all earlier steps must have been read. */
static int evaluate(struct trainer *t, struct err *err)
{
    uint64_t n = t->job->val->n_samples, targets = 0;
    struct step_result sum = {0};
    int r = run_program(t, PROGRAM_EXIT, NULL, err);
    for (uint64_t first = 0; r == 0 && first < n; first += t->spec->train.global_batch)
        r = eval_batch(t, first, &sum, &targets, err);
    if (r == 0 && targets == 0)
        r = fail_no_targets("data.val", err);
    if (r == 0)
        r = run_program(t, PROGRAM_ENTRY, NULL, err);
    if (r < 0)
        return r;
    t->eval = (struct checkpoint_eval){true, sum.loss / (double)targets, sum.correct / (double)targets};
    t->eval_step = t->step;
    t->report->evaluated = true;
    t->report->val_loss = t->eval.loss;
    t->report->val_accuracy = t->eval.accuracy;
    t->report->val_perplexity = perplexity(t, t->eval.loss);
    r = metrics_eval(t->metrics, t->step, t->eval.loss, t->eval.accuracy, t->report->val_perplexity, err);
    tell(t, &(struct train_progress){.event = PROGRESS_EVAL,
                                     .step = t->step,
                                     .total_steps = t->spec->resolved.total_steps,
                                     .val_loss = t->eval.loss,
                                     .val_accuracy = t->eval.accuracy,
                                     .val_perplexity = t->report->val_perplexity});
    return r;
}

/* ---- checkpoints ---- */

/* Checks that all weights and the optimizer state are finite before a new checkpoint replaces a good one. A
 * finite loss alone does not prove that they are. */
static int check_state(struct trainer *t, struct err *err)
{
    for (uint32_t l = 0; l < t->plan->n_layers; l++) {
        const struct graph_layer *g = &t->job->graph->layers[l];
        const char *what = NULL;
        if (graph_updates(t->job->graph, l) &&
            !all_finite(state_block(t, l, false), g->size.w / sizeof(float)))
            what = "weights";
        else if (g->k_bytes > 0 && !all_finite(state_block(t, l, true), g->k_bytes / sizeof(float)))
            what = "optimizer moments";
        if (what != NULL)
            return err_set(err, -EDOM,
                           "%s of layer %u are not finite after step %" PRIu64
                           ": training has diverged. %s; lower optimizer.lr or set train.grad_clip",
                           what, l, t->step, what_is_kept(t));
    }
    return 0;
}

static struct checkpoint_data checkpoint_of(const struct trainer *t)
{
    return (struct checkpoint_data){
        .step = t->step,
        .data_position = t->step * t->spec->train.global_batch,
        .spec = t->spec,
        .numerics = devset_numerics(t->devices),
        .loss = t->report->loss,
        .skipped_steps = t->report->skipped_steps,
        .group = group_of(t),
        .eval = t->eval_step == t->step ? t->eval : (struct checkpoint_eval){0},
        .tensors = &t->tensors,
    };
}

/* Writes a checkpoint. The results of all training steps must have been read, so that the last loss is known
 * to be finite. */
static int checkpoint(struct trainer *t, struct err *err)
{
    int r = run_program(t, PROGRAM_FLUSH, NULL, err);
    if (r == 0)
        r = check_state(t, err);
    if (r == 0)
        r = metrics_sync(t->metrics, err);
    if (r < 0)
        return r;
    struct checkpoint_data data = checkpoint_of(t);
    r = checkpoint_save(t->out, &data, err);
    t->has_checkpoint |= r == 0;
    if (r == 0)
        r = checkpoint_prune(t->out, t->spec->checkpoint.keep, t->spec->checkpoint.best, err);
    if (r == 0)
        tell(t, &(struct train_progress){.event = PROGRESS_CHECKPOINT,
                                         .step = t->step,
                                         .total_steps = t->spec->resolved.total_steps});
    return r;
}

/* ---- start and end ---- */

/* Sets the initial weights of a new job. They are drawn at random, or they come from a Hugging Face
 * folder. */
static int init_weights(struct trainer *t, struct err *err)
{
    struct hf *f;
    int r;
    if (t->spec->from != NULL) {
        r = hf_open(t->spec->from, &f, err);
        if (r < 0)
            return r;
        r = hf_load(f, t->tensors.model, t->tensors.n_model, err);
        hf_close(f);
        return r;
    }
    for (uint32_t l = 0; l < t->spec->model.n_layers; l++)
        if (graph_updates(t->job->graph, l))
            layer_init(&t->spec->model.layers[l], t->spec->seed, state_block(t, l, false));
    return 0;
}

static int check_same_spec(const struct trainer *t, const struct checkpoint_info *info, struct err *err)
{
    if (info->spec_hash == spec_hash(t->spec))
        return 0;
    return err_set_at(err, -EEXIST, t->out->name,
                      "the output holds a checkpoint (step %" PRIu64
                      ") of a job with another spec; choose another "
                      "output, or remove that directory to start afresh",
                      info->step);
}

static int check_not_beyond(const struct trainer *t, uint64_t step, struct err *err)
{
    uint64_t total = t->spec->resolved.total_steps;
    if (step <= total)
        return 0;
    return err_set_at(err, -EEXIST, t->out->name,
                      "the output holds a checkpoint of step %" PRIu64 ", beyond the %" PRIu64
                      " steps that the spec asks for; ask for more steps, or choose another output",
                      step, total);
}

/* Loads the weights and the optimizer state from the newest checkpoint. If the job has no checkpoint, sets
 * initial weights. */
static int restore(struct trainer *t, struct err *err)
{
    uint64_t step;
    struct checkpoint *c = NULL;
    int r = checkpoint_clean(t->out, err);
    if (r < 0)
        return r;
    r = checkpoint_latest(t->out, &step, err);
    if (r == -ENOENT)
        return init_weights(t, err);
    if (r == 0)
        r = checkpoint_open(t->out, step, &c, err);
    if (r == 0)
        r = check_same_spec(t, checkpoint_info(c), err);
    if (r == 0)
        r = check_not_beyond(t, step, err);
    if (r == 0)
        r = checkpoint_read(c, &t->tensors, err);
    if (r == 0) {
        const struct checkpoint_info *info = checkpoint_info(c);
        t->step = t->known = info->step;
        t->has_checkpoint = true;
        t->report->resumed_from = info->step;
        t->report->loss = info->loss;
        t->report->skipped_steps = info->skipped_steps;
        if (group_of(t) != NULL)
            *group_of(t) = info->group;
        t->report->numerics_changed = strcmp(info->numerics, devset_numerics(t->devices)) != 0;
        t->eval = info->eval;
        t->eval_step = info->step;
        t->report->evaluated = info->eval.valid;
        t->report->val_loss = info->eval.loss;
        t->report->val_accuracy = info->eval.accuracy;
        t->report->val_perplexity = perplexity(t, info->eval.loss);
        tell(t, &(struct train_progress){.event = PROGRESS_RESUME,
                                         .step = info->step,
                                         .total_steps = t->spec->resolved.total_steps,
                                         .numerics_changed = t->report->numerics_changed});
    }
    checkpoint_close(c);
    return r;
}

/* Removes the result.json of an earlier run, because only a job that has ended has a result, and this job has
 * steps left. */
static int forget_result(const struct trainer *t, struct err *err)
{
    int r = fs_remove_tree(t->out->fd, RUN_RESULT_FILE);
    return r < 0 ? fs_fail(err, r, t->out->name, RUN_RESULT_FILE, "remove") : 0;
}

static int open_devices(struct trainer *t, struct err *err)
{
    struct devset_config c = {
        .backend = t->job->backend,
        .n_devices = t->plan->n_devices,
        .device_index = t->job->real_devices ? t->job->device_index : NULL,
        .threads = t->job->threads,
        .link_bytes_per_s = t->options->link_bytes_per_s,
        .peer_bytes_per_s = t->options->peer_bytes_per_s,
        .delay_seed = t->options->delay_seed,
    };
    struct device_blame blame;
    c.blame = &blame;
    for (uint32_t i = 0; i < c.n_devices; i++)
        c.capacity_bytes[i] = t->plan->devices[i].lease_bytes;
    int r = devset_open(&c, &t->devices, err);
    if (r < 0)
        job_blame_devices(t->job, &blame, err);
    return r;
}

static int start(struct trainer *t, struct err *err)
{
    int r = open_devices(t, err);
    if (r == 0)
        r = store_create(t->devices, t->plan, &t->store, err);
    if (r < 0)
        return r;
    struct exec_config c = {t->plan, &t->spec->model, &t->spec->optimizer, t->devices, t->store};
    r = exec_create(&c, &t->exec, err);
    if (r < 0)
        return r;
    checkpoint_tensors_init(&t->tensors, &t->spec->model, &t->spec->optimizer, state_block, t);
    t->indices = calloc(t->spec->train.global_batch, sizeof *t->indices);
    if (t->indices == NULL)
        return err_set(err, -ENOMEM, "no memory for a batch of %u", t->spec->train.global_batch);
    r = restore(t, err);
    if (r == 0 && t->step < t->spec->resolved.total_steps)
        r = forget_result(t, err);
    if (r == 0)
        r = metrics_open(t->out, t->step, &t->metrics, err);
    if (r == 0)
        r = run_program(t, PROGRAM_ENTRY, NULL, err);
    if (r == 0 && t->options->trace != NULL)
        run_trace_start(t->options->trace, t->job, t->exec, t->step);
    return r;
}

static uint64_t hash_weights(struct trainer *t)
{
    uint64_t h = 0xcbf29ce484222325ull; /* FNV-1a, over 32-bit words */
    for (uint32_t l = 0; l < t->plan->n_layers; l++) {
        const struct graph *g = t->job->graph;
        uint64_t n = graph_updates(g, l) ? g->layers[l].size.w / sizeof(uint32_t) : 0;
        const char *w = n > 0 ? state_block(t, l, false) : NULL;
        for (uint64_t i = 0; i < n; i++) {
            uint32_t word;
            memcpy(&word, w + i * sizeof word, sizeof word);
            h = (h ^ word) * 0x100000001b3ull;
        }
    }
    return h;
}

static int finish_training(struct trainer *t, struct err *err)
{
    int r = run_program(t, PROGRAM_EXIT, NULL, err);
    if (r < 0)
        return r;
    if (t->options->trace != NULL)
        run_trace_end(t->options->trace, t->exec);
    t->report->weights_hash = hash_weights(t);
    if (t->report->stopped)
        return 0;
    /* Remove old checkpoints once more, because an earlier run may have been killed before it removed
     * them. */
    r = checkpoint_prune(t->out, t->spec->checkpoint.keep, t->spec->checkpoint.best, err);
    if (r < 0)
        return r;
    struct checkpoint_data data = checkpoint_of(t);
    return checkpoint_export_weights(t->out, "model.safetensors", &data, err);
}

static void close_trainer(struct trainer *t)
{
    metrics_close(t->metrics);
    exec_destroy(t->exec);
    checkpoint_tensors_finish(&t->tensors);
    store_destroy(t->store);
    devset_close(t->devices);
    free(t->indices);
}

static int loop(struct trainer *t, struct err *err)
{
    const struct spec *s = t->spec;
    uint64_t total = s->resolved.total_steps;
    int r = 0;
    restart_clock(t);
    while (r == 0 && t->step < total) {
        r = enqueue_step(t, err);
        bool last = t->step == total, stop = atomic_load(&stop_requested);
        bool scheduled = last || spec_due(s, &s->checkpoint.every, t->step), save = scheduled || stop;
        /* checkpoint.best compares the evaluations of checkpoints, so every scheduled checkpoint needs an
         * evaluation. */
        bool compare = scheduled && s->checkpoint.best != BEST_NONE;
        bool eval = t->job->val != NULL && (last || compare || spec_due(s, &s->eval, t->step));
        if (r == 0 && !eval && !save) {
            if (t->step - t->known >= PLAN_RING)
                r = read_step(t, err);
            continue;
        }
        if (r == 0)
            r = read_all(t, err);
        if (r == 0 && eval)
            r = evaluate(t, err);
        if (r == 0 && save)
            r = checkpoint(t, err);
        restart_clock(t);
        if (stop && !last) {
            t->report->stopped = true;
            break;
        }
    }
    return r;
}

static void fill_report(struct trainer *t, uint64_t start_ns)
{
    struct train_report *rep = t->report;
    struct device_counters c;
    count(t, &c);
    rep->steps_done = t->step;
    rep->total_steps = t->spec->resolved.total_steps;
    rep->seconds = (double)(clock_now_ns() - start_ns) * 1e-9;
    uint64_t made = rep->steps_done - rep->resumed_from;
    rep->samples_per_s = rep->seconds > 0 ? (double)(made * t->spec->train.global_batch) / rep->seconds : 0;
    rep->stall_share = stall_share(&c);
    if (isnan(rep->stall_share) && t->options->trace != NULL) {
        rep->stall_share = run_trace_stall(t->options->trace, t->plan);
        rep->stall_steps = isnan(rep->stall_share) ? 0 : t->options->trace->steps;
    }
    rep->counted_in = c.in_bytes;
    rep->counted_out = c.out_bytes;
    rep->counted_peer = c.peer_bytes;
}

/* Records a failure of the run: how many steps are done, and which devices are at fault. This must happen
 * before the device set is closed, because only an open device set knows the devices at fault. */
static void fail(struct trainer *t, struct err *err)
{
    struct device_blame blame;
    t->report->steps_done = t->known;
    if (t->devices == NULL)
        return;
    devset_blame(t->devices, &blame);
    job_blame_devices(t->job, &blame, err);
}

int train_run(struct prepared_job *j, const struct outdir *out, const struct train_options *o,
              struct train_report *ret, struct err *err)
{
    *ret = (struct train_report){.loss = NAN};
    struct trainer t = {.job = j, .spec = j->spec, .plan = j->plan, .out = out, .options = o, .report = ret};
    plan_count_bytes(t.plan, PROGRAM_CYCLE, &ret->cycle);
    int r = start(&t, err);
    uint64_t start_ns = clock_now_ns();
    if (r == 0)
        r = loop(&t, err);
    if (r == 0)
        r = finish_training(&t, err);
    if (r == 0)
        fill_report(&t, start_ns);
    else
        fail(&t, err);
    if (t.devices != NULL)
        snprintf(ret->numerics, sizeof ret->numerics, "%s", devset_numerics(t.devices));
    close_trainer(&t);
    return r;
}
