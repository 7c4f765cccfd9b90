/* Phases and methods.
 *
 * A job trains in phases, one after another. A phase is one stretch of work under one plan: it has a chain of
 * layers, a batch, an optimizer, a schedule of learning rates, and a source of samples. A method turns the
 * spec of a job into the list of its phases. Backpropagation is one phase that trains the whole model. A
 * method that trains a model part by part has several phases, for example:
 *
 *     phase 0   trains layers 0 to 3, on the data set
 *     phase 1   computes the outputs of layer 3 for every training sample, and keeps them
 *     phase 2   trains layers 4 to 7, on the outputs that phase 1 kept
 *
 * A run of a plan covers one or more training steps (memory.cycle_steps). A phase with more than one has a
 * second plan, for one step, because evaluations, checkpoints and the end come at the steps that the job
 * names.
 *
 * Graphs, plans and executors know one phase each and no methods. Weights pass from phase to phase by the ids
 * of their layers. A phase starts with fresh optimizer state.
 *
 * A new method is one row in daemon/spec/methods.def and one file with the function method_NAME.
 */
#ifndef WORKER_PHASE_H
#define WORKER_PHASE_H

#include "base/err.h"
#include "daemon/spec/spec.h"
#include "scheduler/graph.h"
#include "scheduler/plan.h"

/* Value of phase.inputs: the inputs are the samples of the data set. */
#define PHASE_DATA UINT32_MAX

/* One phase of a job. The job's method makes it, job_plan adds graphs and plan, and the training loop and the
 * reports read it. It lives as long as the prepared job.
 *
 * A training phase does `steps` training steps, on batches from the endless stream of samples. A forward-only
 * phase has no training steps: it runs every training sample once, in the order of the data set, and keeps
 * the outputs of its last layer (kept.h). A later phase can take these outputs as its inputs. Its targets
 * still come from the data set. */
struct phase {
    uint32_t number;  /* position in the job's list of phases, from 0 */
    const char *name; /* for messages, such as "training": letters, digits and spaces */
    /* The layers that the phase computes. They keep the ids and keys that they have in the whole model. The
     * last layer of a training phase is a loss. The last layer of a forward-only phase is not. */
    struct model model;
    bool training;
    uint32_t batch; /* samples in a step, or in a batch of a forward-only phase */
    /* The sizes that the user asked for, and the sizes that are used. A 0 in `asked` means "auto". The
     * resolved sizes are also in spec.resolved.phases. */
    struct spec_sizes asked, sizes;
    /* The phase whose sizes this phase uses: its own number, or an earlier phase with the same batch. Outputs
     * that are kept should come from micro-batches of the size with which their layers were trained. */
    uint32_t sizes_as;
    uint64_t steps; /* training steps; 0 if the phase is forward-only */
    /* Training steps in one run of the cycle. A forward-only phase always runs one batch at a time. */
    uint32_t cycle_steps;
    struct optimizer optimizer;
    bool skip_nonfinite; /* skip updates with gradients that are not finite */
    struct spec_rate rate;
    /* Whether the phase computes the whole model, so that evaluations on the validation data make sense. */
    bool evaluates;
    /* Where the inputs come from: PHASE_DATA, or the number of an earlier forward-only phase. */
    uint32_t inputs;

    /* Made by job_plan; NULL before. */
    struct graph *graph;      /* cycle_steps training steps, or one batch of a forward-only phase */
    struct graph *eval_graph; /* one evaluation batch; NULL if the phase is forward-only */
    struct plan *plan;        /* verified */
    /* The same for a cycle of one training step. The steps that remain before an evaluation, a checkpoint or
     * the end run under this plan. All members are NULL if cycle_steps is 1. */
    struct {
        struct graph *graph, *eval_graph;
        struct plan *plan; /* verified */
    } single;
    uint64_t held_bytes; /* memory of all graphs and plans of the phase */
    /* True if no earlier run of this job has chosen the micro-batch size of this phase for "auto", so that
     * this run chooses the size. */
    bool resolved_now;
};

/* The phases of a job. A method fills the list, the prepared job owns it, and phases_finish frees it. */
struct phase_list {
    struct phase *at;
    uint32_t n;
    struct arena *arena; /* owns the array, and the layers of sub-chains */
};

/* A training method: its name in job files, and the function that makes the phases of a job. The function
 * adds phases to an empty list with phase_add. The spec is resolved, so the number of samples and of steps is
 * known. The function returns -EINVAL with a message if the method cannot train this job. */
struct method {
    const char *name;
    int (*make_phases)(const struct spec *s, struct phase_list *ret, struct err *err);
};

/* All methods. The index is an enum method_id. */
extern const struct method methods[METHOD_COUNT];

/* Makes the phases of a job by its method. The spec must be resolved, and must outlive the list. Call
 * phases_finish even after a failure. */
int phases_make(const struct spec *s, struct phase_list *ret, struct err *err);
/* Frees the phases with their graphs and plans. A struct of zeros is also allowed. */
void phases_finish(struct phase_list *list);

/* Destroys the graphs of a phase, but not those in `single`. */
void phase_drop_graphs(struct phase *p);

/* Adds a phase to the list and returns the phase. Until the caller changes it, the phase is the one of
 * backpropagation: it trains the whole model as the spec says. The pointer is valid until the next call. */
struct phase *phase_add(struct phase_list *list, const struct spec *s, const char *name);

/* Gives the phase the layers `first` to `end` - 1 of the spec's model. If `loss` is not NULL, it becomes the
 * last layer. A layer with tied weights needs its owner within the range. */
void phase_take_layers(struct phase_list *list, struct phase *p, const struct spec *s, uint32_t first,
                       uint32_t end, const struct layer *loss);

/* Returns the position of the layer with this id in the phase's chain, or PLAN_NONE if the phase does not
 * have the layer. */
uint32_t phase_find_layer(const struct phase *p, uint32_t id);

/* Returns the number of bytes that training would need if nothing ever moved between host and device: the
 * state, the inputs of all layers, and what forward passes save or use as workspace. Returns 0 if the phase
 * has no graph yet. */
uint64_t phase_everything_bytes(const struct phase *p);

/* Returns the bytes of host memory for the tensors of the phase. Its plans take turns on the same memory, so
 * this is the larger of their needs. The phase must have its plans. */
uint64_t phase_host_bytes(const struct phase *p);

/* Returns the number of the phase that needs the most memory (phase_everything_bytes). If phases are equal,
 * the first of them. Reports and `tutti plan` show this phase. */
uint32_t phases_largest(const struct phase_list *list);

/* Returns the number of training steps of all phases before `phase`. With `phase` equal to list->n, these are
 * all steps of the job. */
uint64_t phases_steps_before(const struct phase_list *list, uint32_t phase);

/* Returns the number of the last phase that takes the outputs of forward-only phase `phase` as its inputs, or
 * `phase` itself if no phase does. */
uint32_t phases_last_reader(const struct phase_list *list, uint32_t phase);

#endif
