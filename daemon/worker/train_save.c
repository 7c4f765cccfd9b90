/* Saves and loads the state of a job: checkpoints, resuming, initial weights, and the weights of layers that
 * are not in the current phase.
 *
 * The weights of the current phase's layers are in the phase's store, where the executor moves them. The
 * weights of all other layers are parked: each has a block of ordinary memory. A checkpoint has the weights
 * of all layers, wherever they are, and the optimizer state of the current phase. A job with one phase parks
 * nothing.
 *
 * If weights have 16 bits, files and parked memory have the master weights only, which are floats. The master
 * weights of a layer that the phase trains are in its optimizer state. Those of all other layers are parked,
 * even if the phase has the layer, because training does not change them. The 16-bit weights are made from
 * the master weights when a phase begins.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/model/hf.h"
#include "daemon/worker/model/weights.h"
#include "daemon/worker/train_private.h"
#include "kernels/half.h"

/* The smallest number that rounds to infinity in fp16. */
#define F16_OVERFLOW 65520.0f

/* ---- weights ---- */

/* Returns the memory of a tensor in the store of the current phase, or NULL if there is no such tensor.
 * `layer` is the index of the layer in the phase. */
static void *stored_block(const struct trainer *t, uint32_t layer, enum tensor_kind kind)
{
    tensor_id id = store_find(t->store, kind, layer, PLAN_NONE, 0);
    return id == PLAN_NONE ? NULL : store_ptr(t->store, id, 0);
}

/* Returns the master weights in the optimizer state of the current phase. Returns NULL if weights have no
 * master weights, and if the phase does not train the layer. `at` is the index of the layer in the phase. */
static float *stored_master(const struct trainer *t, uint32_t at)
{
    const struct graph_layer *g = &t->phase->graph->layers[at];
    for (uint32_t p = 0; p < g->n_parts; p++)
        if (g->parts[p].is_master)
            return (float *)((char *)stored_block(t, at, TENSOR_K) + g->parts[p].begin);
    return NULL;
}

/* Returns the weights of a layer as floats: the master weights if there are any, and otherwise the weights
 * themselves. `layer` is the layer's index in the whole model. */
static float *float_weights(const struct trainer *t, uint32_t layer)
{
    uint32_t at = phase_find_layer(t->phase, t->job->phases.all.layers[layer].id);
    if (at == PLAN_NONE || job_parks_master(t->phase, at))
        return t->parked[layer];
    return t->spec->optimizer.master ? stored_master(t, at) : stored_block(t, at, TENSOR_W);
}

void *train_block(void *ctx, uint32_t layer, enum tensor_kind kind)
{
    const struct trainer *t = ctx;
    const struct layer *l = &t->job->phases.all.layers[layer];
    uint32_t at = phase_find_layer(t->phase, l->id);
    if (kind == TENSOR_W)
        return float_weights(t, layer);
    if (at != PLAN_NONE)
        return stored_block(t, at, kind);
    /* In parked memory, the buffers (B) of a layer follow its weights. */
    return kind == TENSOR_B ? (char *)t->parked[layer] + job_master_bytes(l) : NULL;
}

/* Copies the weights and the buffers of a layer between parked memory and the store. Master weights that stay
 * in parked memory are not copied. `layer` is the layer's index in the whole model, and `at` is its index in
 * the current phase. */
static void copy_parked(const struct trainer *t, uint32_t layer, uint32_t at, bool to_store)
{
    const struct layer *l = &t->job->phases.all.layers[layer];
    const uint64_t bytes[] = {job_master_bytes(l), job_kept_bytes(l) - job_master_bytes(l)};
    void *const stored[] = {float_weights(t, layer), stored_block(t, at, TENSOR_B)};
    char *parked = t->parked[layer];
    for (uint32_t i = 0; i < 2; i++) {
        if (bytes[i] > 0 && stored[i] != NULL && stored[i] != parked)
            memcpy(to_store ? stored[i] : parked, to_store ? parked : stored[i], bytes[i]);
        parked += bytes[i];
    }
}

/* Makes the weights W of all layers of the phase from their master weights. Does nothing if the job has no
 * master weights. */
static void round_weights(const struct trainer *t)
{
    const struct model *m = &t->job->phases.all;
    for (uint32_t l = 0; t->spec->optimizer.master && l < m->n_layers; l++) {
        const struct layer *layer = &m->layers[l];
        uint32_t at = phase_find_layer(t->phase, layer->id);
        uint64_t n = job_master_bytes(layer) / sizeof(float);
        if (n > 0 && at != PLAN_NONE)
            half_round(layer->w_dtype, float_weights(t, l), stored_block(t, at, TENSOR_W), n);
    }
}

static int park_room(struct trainer *t, uint32_t layer, uint64_t bytes, struct err *err)
{
    if (t->parked[layer] == NULL)
        t->parked[layer] = malloc(bytes);
    if (t->parked[layer] == NULL)
        return err_set(err, -ENOMEM, "no memory for the weights of layer %u", layer);
    return 0;
}

int train_unpark(struct trainer *t, struct err *err)
{
    const struct model *m = &t->job->phases.all;
    int r = 0;
    for (uint32_t l = 0; r == 0 && l < m->n_layers; l++) {
        uint64_t bytes = job_kept_bytes(&m->layers[l]);
        uint32_t at = phase_find_layer(t->phase, m->layers[l].id);
        if (bytes == 0)
            continue;
        if (at != PLAN_NONE && t->parked[l] != NULL)
            copy_parked(t, l, at, true);
        if (at == PLAN_NONE || job_parks_master(t->phase, at)) {
            r = park_room(t, l, bytes, err);
        } else {
            free(t->parked[l]);
            t->parked[l] = NULL;
        }
    }
    if (r == 0)
        round_weights(t);
    return r;
}

int train_park_all(struct trainer *t, struct err *err)
{
    const struct model *m = &t->job->phases.all;
    for (uint32_t l = 0; l < m->n_layers; l++) {
        uint64_t bytes = job_kept_bytes(&m->layers[l]);
        uint32_t at = phase_find_layer(t->phase, m->layers[l].id);
        if (bytes == 0 || at == PLAN_NONE)
            continue;
        int r = park_room(t, l, bytes, err);
        if (r < 0)
            return r;
        copy_parked(t, l, at, false);
    }
    return 0;
}

static uint64_t hash_weights(struct trainer *t)
{
    uint64_t h = WEIGHTS_HASH_START;
    for (uint32_t l = 0; l < t->spec->model.n_layers; l++) {
        const struct layer *layer = &t->spec->model.layers[l];
        uint64_t n = job_master_bytes(layer) / sizeof(float);
        if (n > 0)
            h = weights_hash(h, float_weights(t, l), DTYPE_F32, n);
    }
    return h;
}

/* ---- checks ---- */

/* Returns whether all elements of an array of floats are finite. */
static bool all_finite(const float *v, uint64_t n)
{
    bool ok = true;
    for (uint64_t i = 0; i < n; i++)
        ok &= isfinite(v[i]) != 0;
    return ok;
}

/* Returns whether every part of a layer's optimizer state is finite. The master weights do not count, because
 * they are the layer's weights. */
static bool state_finite(const struct trainer *t, const struct graph_layer *g, uint32_t layer)
{
    const char *k = stored_block(t, layer, TENSOR_K);
    bool ok = true;
    for (uint32_t p = 0; k != NULL && p < g->n_parts; p++) {
        assert(g->parts[p].dtype == DTYPE_F32);
        if (!g->parts[p].is_master)
            ok &= all_finite((const float *)(k + g->parts[p].begin), g->parts[p].elements);
    }
    return ok;
}

const char *train_what_is_kept(const struct trainer *t)
{
    return t->has_checkpoint ? "The last checkpoint is kept" : "No checkpoint was written";
}

/* Returns whether the weights of a layer of the phase are finite, if the phase trains them. */
static bool weights_are_finite(const struct trainer *t, uint32_t layer)
{
    const struct graph *g = t->phase->graph;
    const float *master = graph_trains(g, layer) ? stored_master(t, layer) : NULL;
    if (!graph_trains(g, layer))
        return true;
    return all_finite(master != NULL ? master : stored_block(t, layer, TENSOR_W),
                      layer_w_elements(&g->layers[layer].size));
}

/* Returns whether no weight of a layer is too large for fp16. Always true if the layer has no weights in
 * fp16. */
static bool weights_fit(const struct trainer *t, uint32_t layer)
{
    const struct graph *g = t->phase->graph;
    const float *master = graph_trains(g, layer) ? stored_master(t, layer) : NULL;
    bool ok = true;
    if (master == NULL || g->layers[layer].size.w_dtype != DTYPE_F16)
        return true;
    for (uint64_t i = 0; i < layer_w_elements(&g->layers[layer].size); i++)
        ok &= fabsf(master[i]) < F16_OVERFLOW;
    return ok;
}

/* If the weights of several layers are not finite, the last of these layers diverged first, because the
 * backward pass of a decision group starts at its last layer. */
uint32_t train_find_ruined(const struct trainer *t, uint32_t group)
{
    for (uint32_t l = t->plan->n_layers; l-- > 0;)
        if (phase_group(t->phase, l) == group && !weights_are_finite(t, l))
            return l;
    return PLAN_NONE;
}

/* Checks that all weights and the optimizer state of the phase are finite, so that a good checkpoint is never
 * replaced by one with NaN or infinity. A finite loss alone does not prove that the weights are finite. */
static int check_state(struct trainer *t, struct err *err)
{
    char name[64];
    for (uint32_t l = 0; l < t->plan->n_layers; l++) {
        const char *what = NULL;
        if (!weights_are_finite(t, l))
            what = "weights";
        else if (!weights_fit(t, l))
            what = "the fp16 copies of weights";
        else if (!state_finite(t, &t->phase->graph->layers[l], l))
            what = "optimizer moments";
        if (what == NULL)
            continue;
        train_name_layer(t, l, name, sizeof name);
        return err_set(err, -EDOM,
                       "%s of %s are not finite after step %" PRIu64
                       ": training has diverged. %s; lower optimizer.lr or set train.grad_clip",
                       what, name, train_steps_done(t), train_what_is_kept(t));
    }
    return 0;
}

/* ---- saving ---- */

static struct checkpoint_data checkpoint_of(const struct trainer *t)
{
    const struct kept *inputs = train_inputs(t);
    return (struct checkpoint_data){
        .step = train_steps_done(t),
        .n_phases = t->job->phases.n,
        .phase = t->phase->number,
        .phase_step = t->step,
        .has_inputs = inputs != NULL,
        .inputs_crc = inputs != NULL ? kept_crc(inputs) : 0,
        .data_position = t->step * t->phase->batch,
        .spec = t->spec,
        .optimizer = t->phase->optimizer,
        .numerics = devset_numerics(t->devices),
        .loss = t->report->loss,
        .skipped_steps = t->report->skipped_steps,
        .groups = t->groups,
        .n_groups = t->groups != NULL ? t->phase->n_groups : 0,
        .eval = t->eval_step == train_steps_done(t) ? t->eval : (struct checkpoint_eval){0},
        .tensors = &t->tensors,
    };
}

/* Collects the evaluations against label vectors of all phases. *ret receives the memory of the list, which
 * the caller frees. */
static void collect_labels(const struct trainer *t, struct checkpoint_labels **ret,
                           struct checkpoint_data *data)
{
    const struct phase_list *phases = &t->job->phases;
    uint32_t most = 0;
    for (uint32_t i = 0; i < phases->n; i++)
        most += phases->at[i].n_labels;
    struct checkpoint_labels *list = xcalloc(most + 1, sizeof *list);
    data->labels = *ret = list;
    for (uint32_t i = 0; i < phases->n; i++)
        for (uint32_t k = 0; k < phases->at[i].n_labels; k++) {
            const struct labels *l = &phases->at[i].labels[k];
            if (l->known)
                list[data->n_labels++] = (struct checkpoint_labels){i, l->step, l->error, l->nearest};
        }
}

/* Returns the size of the group state of a decision group. Without loss scaling, it has only the first fields
 * of struct group_state. */
static uint64_t group_bytes(const struct trainer *t, uint32_t group)
{
    return t->phase->graph->groups[group].state_bytes;
}

/* Copies the group states of all decision groups to t->groups, if the phase has group states. */
static void collect_groups(struct trainer *t)
{
    for (uint32_t g = 0; t->groups != NULL && g < t->phase->n_groups; g++)
        memcpy(&t->groups[g], train_group(t, g), group_bytes(t, g));
}

int train_checkpoint(struct trainer *t, struct err *err)
{
    int r = train_run_program(t, PROGRAM_FLUSH, NULL, err);
    if (r == 0)
        r = check_state(t, err);
    if (r == 0)
        r = metrics_sync(t->metrics, err);
    if (r < 0)
        return r;
    collect_groups(t);
    struct checkpoint_data data = checkpoint_of(t);
    struct checkpoint_labels *labels;
    collect_labels(t, &labels, &data);
    r = checkpoint_save(t->out, &data, err);
    xfree(labels);
    t->has_checkpoint |= r == 0;
    if (r == 0)
        r = checkpoint_prune(t->out, t->spec->checkpoint.keep, t->spec->checkpoint.best, err);
    if (r == 0)
        train_tell(t, &(struct train_progress){.event = PROGRESS_CHECKPOINT, .step = train_steps_done(t)});
    return r;
}

int train_finish_weights(struct trainer *t, struct err *err)
{
    t->report->weights_hash = hash_weights(t);
    if (t->report->stopped)
        return 0;
    /* Remove old checkpoints once more, because an earlier run may have been killed before it removed
     * them. */
    int r = checkpoint_prune(t->out, t->spec->checkpoint.keep, t->spec->checkpoint.best, err);
    if (r < 0)
        return r;
    struct checkpoint_data data = checkpoint_of(t);
    return checkpoint_export_weights(t->out, "model.safetensors", &data, err);
}

/* ---- loading ---- */

/* Sets the initial weights and buffers of a layer. */
static void init_layer(struct trainer *t, uint32_t layer)
{
    const struct layer *l = &t->job->phases.all.layers[layer];
    if (job_master_bytes(l) > 0)
        layer_init(l, t->spec->seed, train_block(t, layer, TENSOR_W));
    if (layer_type(l)->init_buffers != NULL)
        layer_type(l)->init_buffers(l, t->spec->seed, train_block(t, layer, TENSOR_B));
}

/* Sets the initial weights of a new job. They are drawn at random, or they come from a Hugging Face
 * folder. */
static int init_weights(struct trainer *t, struct err *err)
{
    const struct phase_list *list = &t->job->phases;
    struct hf *f;
    uint32_t first = 0;
    if (t->spec->from != NULL) {
        int r = hf_open(t->spec->from, &f, err);
        if (r < 0)
            return r;
        r = hf_load(f, t->tensors.model, t->tensors.n_model, err);
        hf_close(f);
        if (r < 0)
            return r;
        first = list->n_model;
    }
    for (uint32_t l = first; l < list->all.n_layers; l++)
        init_layer(t, l);
    return 0;
}

static int check_same_spec(const struct trainer *t, const struct checkpoint_info *info, struct err *err)
{
    if (info->spec_hash == spec_hash(t->spec))
        return 0;
    int r = job_check_precision(t->out, t->spec, info->resolved, err);
    if (r < 0)
        return r;
    return err_set_at(err, -EEXIST, t->out->name,
                      "the output holds a checkpoint (step %" PRIu64
                      ") of a job with another spec; choose another "
                      "output, or remove that directory to start afresh",
                      info->step);
}

static int check_not_beyond(const struct trainer *t, const struct checkpoint_info *info, struct err *err)
{
    const struct phase_list *phases = &t->job->phases;
    uint64_t total = job_total_steps(t->job);
    if (info->step > total)
        return err_set_at(err, -EEXIST, t->out->name,
                          "the output holds a checkpoint of step %" PRIu64 ", beyond the %" PRIu64
                          " steps that the spec asks for; ask for more steps, or choose another output",
                          info->step, total);
    if (info->phase >= phases->n || info->phase_step > phases->at[info->phase].steps ||
        phases_steps_before(phases, info->phase) + info->phase_step != info->step)
        return err_set_at(err, -EEXIST, t->out->name,
                          "the output holds a checkpoint of step %" PRIu64 ", which is step %" PRIu64
                          " of phase %u there and not in this spec; choose another output",
                          info->step, info->phase_step, info->phase);
    return 0;
}

/* Copies numbers such as the losses from the checkpoint to the report, and the evaluations against label
 * vectors to the phases. */
static void take_figures(struct trainer *t, const struct checkpoint_info *info)
{
    struct train_report *rep = t->report;
    t->has_checkpoint = true;
    t->eval = info->eval;
    t->eval_step = info->step;
    rep->resumed_from = info->step;
    rep->loss = info->loss;
    rep->skipped_steps = info->skipped_steps;
    rep->numerics_changed = strcmp(info->numerics, devset_numerics(t->devices)) != 0;
    rep->evaluated = info->eval.valid;
    rep->val_loss = info->eval.loss;
    rep->val_accuracy = info->eval.accuracy;
    rep->val_perplexity = train_perplexity(t, info->eval.loss);
    for (uint32_t i = 0, part = 0; i < info->n_labels; i++) {
        const struct checkpoint_labels *l = &info->labels[i];
        const struct phase *p = l->phase < t->job->phases.n ? &t->job->phases.at[l->phase] : NULL;
        part = i > 0 && l->phase == l[-1].phase ? part + 1 : 0;
        if (p == NULL || part >= p->n_labels)
            continue;
        struct labels *to = &p->labels[part];
        to->known = true;
        to->step = l->step;
        to->error = l->error;
        to->nearest = l->nearest;
    }
}

int train_find_position(struct trainer *t, struct train_position *ret, struct err *err)
{
    uint64_t step;
    int r = checkpoint_clean(t->out, err);
    if (r < 0)
        return r;
    *ret = (struct train_position){0};
    r = checkpoint_latest(t->out, &step, err);
    if (r == -ENOENT)
        return 0;
    if (r == 0)
        r = checkpoint_open(t->out, step, &t->resume, err);
    if (r < 0)
        return r;
    const struct checkpoint_info *info = checkpoint_info(t->resume);
    r = check_same_spec(t, info, err);
    if (r == 0)
        r = check_not_beyond(t, info, err);
    if (r < 0)
        return r;
    take_figures(t, info);
    *ret = (struct train_position){info->phase, info->phase_step};
    if (info->phase_step == t->job->phases.at[info->phase].steps && info->phase + 1 < t->job->phases.n)
        *ret = (struct train_position){info->phase + 1, 0};
    return 0;
}

int train_load_weights(struct trainer *t, struct err *err)
{
    t->loaded = true;
    int r = t->resume == NULL ? init_weights(t, err) : checkpoint_read_weights(t->resume, &t->tensors, err);
    if (r == 0)
        round_weights(t);
    if (r == 0 && t->resume != NULL)
        train_tell(t, &(struct train_progress){.event = PROGRESS_RESUME,
                                               .step = checkpoint_info(t->resume)->step,
                                               .numerics_changed = t->report->numerics_changed});
    return r;
}

/* Checks the inputs of the phase, which this run has computed again. They must equal the inputs with which
 * the checkpoint was trained. If the numerics have changed, such as the instruction set, the inputs may
 * differ and are not checked. */
static int check_kept_inputs(const struct trainer *t, const struct checkpoint_info *info, struct err *err)
{
    const struct kept *inputs = train_inputs(t);
    if (inputs == NULL || !info->has_inputs || t->report->numerics_changed ||
        kept_crc(inputs) == info->inputs_crc)
        return 0;
    return err_set(err, -EPROTO,
                   "internal: the outputs that phase %u computed again have the CRC-32C %08" PRIx32
                   ", but the checkpoint of step %" PRIu64 " was trained on outputs with %08" PRIx32,
                   t->phase->inputs, kept_crc(inputs), info->step, info->inputs_crc);
}

/* Copies the group states of the checkpoint to the decision groups of the phase. A checkpoint has no group
 * states if they have no values that must be kept, as with SGD. */
static int take_groups(struct trainer *t, const struct checkpoint_info *info, struct err *err)
{
    const struct group_part *parts;
    bool kept = t->groups != NULL && optimizer_group_parts(t->phase->optimizer, false, &parts) > 0;
    uint32_t n = kept ? t->phase->n_groups : 0;
    if (n > info->n_groups)
        return err_set_at(err, -EBADMSG, t->out->name,
                          "the checkpoint of step %" PRIu64
                          " has the state of %u decision groups, but the job "
                          "has %u; choose another output",
                          info->step, info->n_groups, n);
    for (uint32_t g = 0; g < n; g++) {
        if (t->phase->optimizer[g].scaling.growth_steps > 0 && !(info->groups[g].loss_scale > 0))
            return err_set_at(err, -EBADMSG, t->out->name,
                              "the checkpoint of step %" PRIu64
                              " has no loss scale for decision group %u; choose another output",
                              info->step, g);
        memcpy(train_group(t, g), &info->groups[g], group_bytes(t, g));
    }
    train_take_scales(t);
    return 0;
}

int train_load_state(struct trainer *t, uint64_t step, struct err *err)
{
    int r = 0;
    t->step = t->known = step;
    if (t->resume != NULL && checkpoint_info(t->resume)->phase == t->phase->number) {
        const struct checkpoint_info *info = checkpoint_info(t->resume);
        r = step < t->phase->steps ? check_kept_inputs(t, info, err) : 0;
        if (r == 0)
            r = checkpoint_read_optimizer(t->resume, &t->tensors, err);
        if (r == 0)
            r = take_groups(t, info, err);
    }
    checkpoint_close(t->resume);
    t->resume = NULL;
    return r;
}
