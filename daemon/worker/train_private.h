/* Declarations that the source files of the training loop share. Only train*.c includes this header.
 *
 *     train.c           runs the phases of the job one after another, and fills in the report
 *     train_phase.c     one phase: its stores and executors, and its training steps
 *     train_fill.c      the inputs and targets of a batch, and the sums of its results
 *     train_eval.c      evaluations on the validation data
 *     train_outputs.c   forward-only phases: computes outputs and keeps them
 *     train_save.c      checkpoints, resuming, initial weights, and weights between phases
 *     train_count.c     the bytes that the devices moved, against the bytes that the plans promise
 */
#ifndef WORKER_TRAIN_PRIVATE_H
#define WORKER_TRAIN_PRIVATE_H

#include "daemon/worker/kept.h"
#include "daemon/worker/metrics.h"
#include "daemon/worker/model/checkpoint.h"
#include "daemon/worker/train.h"
#include "kernels/device.h"
#include "swap/exec.h"
#include "swap/store.h"

/* The position of a job in its training. All phases before `phase` are done. In phase `phase`, `step`
 * training steps are done. */
struct train_position {
    uint32_t phase;
    uint64_t step;
};

/* A plan of the current phase, with its store and its executor. train_enter makes one such struct for each
 * plan of the phase, and train_leave frees it. The stores of all plans use the same memory, so only one of
 * the executors may be in use at a time. */
struct train_cycle {
    const struct plan *plan;
    struct store *store;
    struct exec *exec;
};

/* The outputs that a forward-only phase has kept. A member is NULL if these outputs are not available. */
struct train_outputs {
    struct kept *train, *val; /* of the training samples and of the validation samples */
};

/* Where the inputs and targets of a batch come from. The data set always has the targets. `inputs` is NULL if
 * the inputs are the samples of the data set, too. */
struct train_source {
    const struct dataset *data;
    const struct kept *inputs;
};

/* Says where the tensors of one training step are. `slot` is the number of their host slot. `step` is the
 * number of the training step within the run of the cycle. */
struct train_place {
    uint64_t slot;
    uint32_t step;
};

/* The loss scale of a decision group before the step whose result is read next. The devices have the same
 * numbers in the group state, but their copy may be ahead by the steps whose results were not read yet. */
struct train_scale {
    float scale; /* 1 if losses are not scaled */
    uint32_t good_steps;
};

/* The state of the training loop during one run. train_run creates it on its stack. */
struct trainer {
    /* The job and its state. The following members live from the start of train_run to its end. */
    struct prepared_job *job;
    const struct spec *spec;
    const struct outdir *out;
    const struct train_options *options;
    struct train_report *report;
    struct devset *devices;
    struct metrics *metrics;
    /* The checkpoint from which this run resumes. NULL if the run does not resume from a checkpoint.
     * train_load_state closes the checkpoint and sets this member to NULL. */
    struct checkpoint *resume;
    /* True if the weights of all layers were initialized or loaded. */
    bool loaded;
    /* The weights of each layer that is not in the current phase, by the id of the layer. NULL for layers
     * that are in the phase, and for layers without weights. */
    void **parked;
    /* The outputs of each phase. Only forward-only phases have outputs. */
    struct train_outputs *outputs;
    /* Numbers of bytes that the devices should have moved so far according to the plans. train_check_counters
     * compares them with the devices' own counters. */
    uint64_t planned_in, planned_out, planned_peer;
    /* Numbers of bytes that the training steps of this run have moved. Only steps whose result is known
     * count. */
    struct plan_bytes moved;
    /* The time of the first step of this run. 0 before that step. */
    uint64_t start_ns;
    /* The result of the last evaluation. It is valid only while train_steps_done equals `eval_step`. */
    struct checkpoint_eval eval;
    uint64_t eval_step;
    bool has_checkpoint;

    /* The current phase, from train_enter to train_leave. */
    struct phase *phase;
    /* The plans of the phase. `whole` is the plan with all steps of a cycle, and `single` is the plan with
     * one step. If a cycle has only one step, `single` is all zeros. */
    struct train_cycle whole, single;
    /* The plan in use, with its store and its executor. The three members are copies of those of `whole` or
     * of `single`. */
    const struct plan *plan;
    struct store *store;
    struct exec *exec;
    /* The bytes that one run of the cycle moves under the plan in use. */
    struct plan_bytes cycle;
    /* The weights of all layers and the optimizer state of the phase, as a list for checkpoints. */
    struct checkpoint_tensors tensors;
    /* The losses of the phase, as indices of its layers in ascending order. A forward-only phase has none. */
    uint32_t *losses, n_losses;
    /* Elements i of both arrays have the results of loss i. Training steps and evaluations fill in `blocks`.
     * `last_blocks` has the results of the training step that was read last. */
    struct metrics_block *blocks, *last_blocks;
    struct step_result *sums; /* the sums of each loss in an evaluation */
    /* A copy of the group state of each decision group, for checkpoints. NULL if the phase has no group
     * states. */
    struct group_state *groups;
    struct train_scale *scales; /* [n_groups] */
    /* The samples of one batch, each given by its index in the data set. */
    uint64_t *indices;
    /* The number of targets that count for the loss, for each training step whose result was not read yet.
     * targets[slot * cycle_steps + step] belongs to the step `step` of the cycle in the host slot `slot`. */
    uint64_t *targets;
    /* The arguments of the next run of the cycle. args[step * n_groups + group] belongs to a decision group
     * in a step of the run. */
    struct step_args *args;
    /* Number of training steps that the job had done before this phase: those of all earlier phases. A
     * forward-only phase may run again after a resume in a later phase. In that case, this is the number of
     * steps of the checkpoint. */
    uint64_t before;
    /* The number of steps of this phase that were enqueued. In a forward-only phase, a step is a batch. */
    uint64_t step;
    /* The number of steps of this phase whose results were read. All steps from `known` to `step` run under
     * the plan in use. */
    uint64_t known;
    uint64_t last_ns; /* time of the last read result */
    /* Total waiting time of all compute streams at the moment last_ns, in nanoseconds. */
    uint64_t last_wait_ns;
};

/* Returns the number of training steps that were enqueued, counting all phases. */
static inline uint64_t train_steps_done(const struct trainer *t)
{
    return t->before + (t->phase->training ? t->step : 0);
}

/* Returns the number of training steps whose results were read, counting all phases. */
static inline uint64_t train_steps_known(const struct trainer *t)
{
    return t->before + (t->phase != NULL && t->phase->training ? t->known : 0);
}

/* Returns the kept outputs that are the inputs of the current phase, or NULL if the phase takes its inputs
 * from the data set. */
static inline const struct kept *train_inputs(const struct trainer *t)
{
    return t->phase->inputs == PHASE_DATA ? NULL : t->outputs[t->phase->inputs].train;
}

/* Returns whether the current phase is the last one of the job. */
static inline bool train_is_last_phase(const struct trainer *t)
{
    return t->phase->number + 1 == t->job->phases.n;
}

/* ---- train.c ---- */

/* Reports an event to the caller of train_run. First fills in the members that all events have, such as
 * total_steps. */
void train_tell(const struct trainer *t, struct train_progress *p);

/* ---- train_phase.c ---- */

/* Makes `p` the current phase: creates the stores and the executors of its plans, and moves the weights of
 * its layers from parked memory (train_unpark) to a store. */
int train_enter(struct trainer *t, struct phase *p, struct err *err);
/* Runs the current phase from step t->step to its end, or until a stop is requested. The weights must have
 * been loaded. Afterwards the host has the newest weights and optimizer state. */
int train_run_phase(struct trainer *t, struct err *err);
/* Ends the current phase and frees its stores and its executors. The weights of its layers are lost, unless
 * train_park_all was called before. Does nothing if there is no current phase. */
void train_leave(struct trainer *t);

/* Returns the host's copy of the group state of a decision group: the values that the weight updates of a
 * step read. Returns NULL if there are no such values. The copy is up to date only while all streams are
 * empty. */
struct group_state *train_group(const struct trainer *t, uint32_t group);
/* Sets t->scales from the group states. All streams must be empty, and no result may be unread. */
void train_take_scales(const struct trainer *t);
/* Writes the name of a layer of the phase to `buf`, for messages. The name is "layer 3", where 3 is the
 * number of the layer in the model, or the name of a layer that the training method has added, such as
 * "heads.0.out". */
void train_name_layer(const struct trainer *t, uint32_t layer, char *buf, size_t size);
/* Makes the plan for the next training step the plan in use, and runs its program `entry`. The old plan must
 * not be between its programs `entry` and `exit`. */
int train_enter_cycle(struct trainer *t, struct err *err);
/* Enqueues one run of the cycle, with the arguments of all its steps. */
int train_enqueue_cycle(struct trainer *t, const struct step_args *args, struct err *err);
/* Waits until training step `step` of the phase is complete. In a forward-only phase, waits for the batch
 * with the number `step`. */
int train_wait(struct trainer *t, uint64_t step, struct err *err);
/* Runs a program other than the cycle, such as an evaluation, and then checks that the devices moved the
 * planned number of bytes. */
int train_run_program(struct trainer *t, enum program_kind k, const struct step_args *args, struct err *err);

/* ---- train_fill.c ---- */

/* Returns where the current phase takes its inputs and targets from, for one split of the data. */
struct train_source train_source_of(const struct trainer *t, enum data_split split);
/* Returns the place of step `i` in the run of the cycle that begins at training step `first`. */
struct train_place train_place_of(const struct trainer *t, uint64_t first, uint32_t i);
/* Fills the inputs and targets of one training step with the first `valid` samples in t->indices. `at` is the
 * place of the step's tensors. *ret_targets receives the number of targets that count for the loss. */
int train_fill(struct trainer *t, const struct train_source *from, uint32_t valid, struct train_place at,
               uint64_t *ret_targets, struct err *err);
/* Reports that no target of a batch counts for the loss. The loss is the mean over the targets that count, so
 * the loss would be undefined. `of` names the batch in the message. */
int train_fail_no_targets(const char *of, struct err *err);
/* Returns the sum over all micro-batches of the results of loss number `loss`. */
struct step_result train_result(const struct trainer *t, uint32_t loss, struct train_place at);

/* ---- train_eval.c ---- */

/* Evaluates the current phase on the validation data. Runs the program `exit`, then the program `eval` for
 * every batch, and then the program `entry`. The results of all earlier steps must have been read. */
int train_evaluate(struct trainer *t, struct err *err);
/* Records how well the parts of the current phase learn their label vectors, by the losses in t->blocks.
 * These come from an evaluation if `evaluated` is true, and otherwise from the training step that was read
 * last. This is no evaluation of the model, because the numbers are about parts of the model. */
int train_record_labels(struct trainer *t, bool evaluated, struct err *err);
/* Returns the perplexity e^loss of a language model, or NaN for other models. A perplexity of 10 means that
 * the model is as unsure as if it chose among 10 equally likely tokens. */
double train_perplexity(const struct trainer *t, double loss);

/* ---- train_outputs.c ---- */

/* Checks that the disk of the output directory has room for all outputs that the phases keep, if they are not
 * in host memory. Called before the first phase. */
int train_check_disk(const struct trainer *t, struct err *err);
/* Runs the current phase, which is forward-only, and keeps its outputs in t->outputs. */
int train_keep_outputs(struct trainer *t, struct err *err);

/* ---- train_save.c ---- */

/* Opens the newest checkpoint, if there is one, and finds the position at which the run starts. If the
 * checkpoint was written at the end of a phase, the run starts at the next phase. */
int train_find_position(struct trainer *t, struct train_position *ret, struct err *err);
/* Initializes the weights of all layers, from the checkpoint if there is one. Call this function in the first
 * phase of the run. */
int train_load_weights(struct trainer *t, struct err *err);
/* Sets the number of steps that the current phase has done. If the checkpoint was written in this phase, also
 * reads the optimizer state from the checkpoint. Closes the checkpoint in every case. The inputs of the phase
 * must be available before this call. */
int train_load_state(struct trainer *t, uint64_t step, struct err *err);
/* Moves the weights of the current phase's layers from parked memory to the store. Parked memory is host
 * memory for layers outside the current phase. Also allocates parked memory for the other layers. */
int train_unpark(struct trainer *t, struct err *err);
/* Copies the weights of the current phase's layers from the store to parked memory. All streams must be
 * empty, and the host must have the newest values. */
int train_park_all(struct trainer *t, struct err *err);
/* Returns the address of a layer's weights, optimizer state or buffers. Can be passed as a
 * checkpoint_block_fn. `ctx` is the trainer, and `layer` is an index in the whole model. Returns NULL for
 * optimizer state that the phase does not have. */
void *train_block(void *ctx, uint32_t layer, enum tensor_kind kind);
/* Writes a checkpoint. The results of all training steps must have been read, so that the last loss is known
 * to be finite. */
int train_checkpoint(struct trainer *t, struct err *err);
/* Computes the hash of all weights for the report. If the job is done, also writes model.safetensors. The
 * host must have the newest weights and optimizer state. */
int train_finish_weights(struct trainer *t, struct err *err);
/* Returns the index in the phase of the last layer of a decision group whose weights are no longer finite, or
 * PLAN_NONE if there is none. */
uint32_t train_find_ruined(const struct trainer *t, uint32_t group);
/* Returns a sentence for messages about a failure, which says whether a checkpoint is kept. */
const char *train_what_is_kept(const struct trainer *t);

/* ---- train_count.c ---- */

/* Adds the bytes that the plan promises for one run of program `k` to t->planned_in, t->planned_out and
 * t->planned_peer. */
void train_promise(struct trainer *t, enum program_kind k);
/* Adds up the counters of all devices. */
void train_count(const struct trainer *t, struct device_counters *sum);
/* Returns the fraction of time in which the compute streams of the devices waited. Returns NaN if the devices
 * do not count this time or have not computed yet. */
double train_stall_share(const struct device_counters *c);
/* Returns how many seconds a device waited since t->last_ns, as an average over all devices. Returns NaN if
 * the devices do not count this time. */
double train_stall_s(const struct trainer *t, const struct device_counters *c);
/* Compares the bytes that the devices have moved with the bytes that the plans say. All streams must be
 * empty. If the numbers differ, execution does not follow the plan, and the run must end. */
int train_check_counters(struct trainer *t, struct err *err);
/* Starts to measure the time of the next training step now, so that an evaluation or a checkpoint before this
 * step does not count. */
void train_restart_clock(struct trainer *t);

#endif
