/* Declarations that the source files of the training loop share. Only train*.c includes this header.
 *
 *     train.c         runs the phases of the job one after another, and fills in the report
 *     train_phase.c   one phase: its store and executor, its steps, its evaluations
 *     train_save.c    checkpoints, resuming, initial weights, and weights between phases
 *     train_count.c   the bytes that the devices moved, against the bytes that the plans promise
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
    /* The weights of each layer of the model that is not in the current phase. NULL for layers that are in
     * the phase, and for layers without weights. */
    void **parked;
    /* The outputs of each forward-only phase. NULL for a phase whose outputs are not available. */
    struct kept **kept;
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
    /* The samples of one batch, each given by its index in the data set. */
    uint64_t *indices;
    /* The number of targets that count for the loss, for each training step whose result was not read yet.
     * targets[slot * cycle_steps + step] belongs to the step `step` of the cycle in the host slot `slot`. */
    uint64_t *targets;
    /* The arguments of the next run of the cycle, one for each of its steps. */
    struct step_args *args;
    /* Number of training steps that the job had done before this phase: those of all earlier phases. A
     * forward-only phase may run again after a resume in a later phase. Then it is the number of steps of the
     * checkpoint. */
    uint64_t before;
    /* Number of steps of this phase enqueued. A forward-only phase counts its batches. */
    uint64_t step;
    /* The number of training steps of this phase whose results were read, or of batches. All steps from
     * `known` to `step` run under the plan in use. */
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
    return t->phase->inputs == PHASE_DATA ? NULL : t->kept[t->phase->inputs];
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

/* Returns the host's copy of the values that all weight updates of a step read, or NULL if there are no such
 * values. The copy is up to date only while all streams are empty. */
struct group_state *train_group(const struct trainer *t);
/* Returns the perplexity e^loss of a language model, or NaN for other models. A perplexity of 10 means that
 * the model is as unsure as if it chose among 10 equally likely tokens. */
double train_perplexity(const struct trainer *t, double loss);
/* Runs a program other than the cycle, such as an evaluation, and then checks that the devices moved the
 * planned number of bytes. */
int train_run_program(struct trainer *t, enum program_kind k, const struct step_args *args, struct err *err);

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
/* Returns the index in the phase of the last layer whose weights are no longer finite, or STEP_NO_LAYER if
 * there is none. */
uint32_t train_find_ruined(const struct trainer *t);
/* Returns a sentence for messages about a failure, which says whether a checkpoint is kept. */
const char *train_what_is_kept(const struct trainer *t);

/* ---- train_count.c ---- */

/* Adds the bytes that one run of program `k` moves, according to its plan, to the bytes that the devices
 * should have moved so far. */
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
