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
#include "scheduler/policy/sizes.h"

/* The value of phase.inputs that stands for the samples of the data set. */
#define PHASE_DATA UINT32_MAX

/* One phase of a job. The job's method makes it, job_plan adds graphs and plan, and the training loop and the
 * reports read it. It lives as long as the prepared job.
 *
 * A training phase does `steps` training steps, on batches from the endless stream of samples. A forward-only
 * phase has no training steps: it runs every training sample once, in the order of the data set, and keeps
 * the outputs of its last layer (kept.h). A later phase can take these outputs as its inputs. Its targets
 * still come from the data set. */
struct phase {
    /* The position of this phase in the job's list of phases, from 0. */
    uint32_t number;
    /* The name for messages, such as "training". It has only letters, digits and spaces. */
    const char *name;
    /* The layers that the phase computes. They keep the ids and keys that they have in the whole model. The
     * last layer of a training phase is a loss. The last layer of a forward-only phase is not. */
    struct model model;
    bool training;
    /* The number of samples in a training step, or in a batch of a forward-only phase. */
    uint32_t batch;
    /* The micro-batch size and the number of replicas: `asked` has the user's numbers, where 0 means "auto",
     * and `sizes` has the numbers in use. The numbers in use are also in spec.resolved.phases. */
    struct spec_sizes asked, sizes;
    /* The number of the phase whose sizes this phase uses: this phase itself, or an earlier phase with the
     * same batch. Outputs that are kept should be computed with the micro-batch size with which their layers
     * were trained. */
    uint32_t sizes_as;
    /* The number of training steps. 0 if the phase is forward-only. */
    uint64_t steps;
    /* The number of training steps in one run of the plan's cycle. A forward-only phase always runs one batch
     * at a time. */
    uint32_t cycle_steps;
    struct optimizer optimizer;
    /* True if updates with gradients that are not finite are skipped. */
    bool skip_nonfinite;
    struct spec_rate rate;
    /* True if the phase computes the whole model. Only such a phase can evaluate the model on the validation
     * data. */
    bool evaluates;
    /* Where the inputs come from: PHASE_DATA for the data set, or the number of an earlier forward-only phase
     * that keeps its outputs. */
    uint32_t inputs;

    /* The graph of cycle_steps training steps, or of one batch of a forward-only phase. job_plan makes all
     * graphs and plans; they are NULL before. */
    struct graph *graph;
    /* The graph of one evaluation batch. NULL if the phase is forward-only. */
    struct graph *eval_graph;
    struct plan *plan; /* verified */
    /* Graphs and a plan for a single training step. The steps that remain before an evaluation, a checkpoint
     * or the end of the phase run under this plan. All members are NULL if cycle_steps is 1. */
    struct {
        struct graph *graph, *eval_graph;
        struct plan *plan; /* verified */
    } single;
    uint64_t held_bytes; /* memory of all graphs and plans of the phase */
    /* True if a size of this phase is "auto" and no earlier run of this job has chosen it, so that this run
     * chooses the size. `choice` then says which sizes were considered. */
    bool resolved_now;
    struct sizes_choice choice;
    /* The scores of `plan` and of its alternatives, from the search that made `plan`. */
    struct plan_report report;
};

/* The phases of a job. A method fills the list, the prepared job owns it, and phases_finish frees it. */
struct phase_list {
    struct phase *at;
    uint32_t n;
    /* Owns the memory of the list: the array `at`, and the arrays of layers that phase_take_layers makes.
     * phases_finish frees all of it at once. A phase that computes the whole model uses the layers of the spec
     * instead, which the list does not own. */
    struct arena *arena;
};

/* A training method: its name in job files, and the function that makes the phases of a job. The function
 * adds phases to an empty list with phase_add. The numbers of samples and of training steps are known by
 * then. The function returns -EINVAL with a message if the method cannot train this job. */
struct method {
    const char *name;
    int (*make_phases)(const struct spec *s, struct phase_list *ret, struct err *err);
};

/* All training methods, indexed by enum method_id. */
extern const struct method methods[METHOD_COUNT];

/* Makes the phases of a job with the job's training method. The spec must be resolved, and must outlive the
 * list. Call phases_finish even after a failure. */
int phases_make(const struct spec *s, struct phase_list *ret, struct err *err);
/* Frees the phases with their graphs and plans. A zero-initialized struct is also allowed. */
void phases_finish(struct phase_list *list);

/* Destroys the graphs of a phase, except for the graphs in p->single. */
void phase_drop_graphs(struct phase *p);

/* Adds a phase to the list and returns the phase. The new phase trains the whole model by backpropagation, as
 * the spec says. The caller may then change the phase. The pointer is valid until the next call. */
struct phase *phase_add(struct phase_list *list, const struct spec *s, const char *name);

/* Gives the phase the layers `first` to `end` - 1 of the spec's model. If `loss` is not NULL, it becomes the
 * last layer. If a layer in the range uses the weights of another layer, the other layer must be in the range
 * too. */
void phase_take_layers(struct phase_list *list, struct phase *p, const struct spec *s, uint32_t first,
                       uint32_t end, const struct layer *loss);

/* Returns the index within the phase of the layer with the id `id`, or PLAN_NONE if the phase does not have
 * this layer. */
uint32_t phase_find_layer(const struct phase *p, uint32_t id);

/* Returns the number of bytes that training would need if nothing ever moved between host and device: for the
 * state and the inputs of all layers, and for what forward passes save or use as workspace. Returns 0 if the
 * phase has no graph yet. */
uint64_t phase_everything_bytes(const struct phase *p);

/* Returns the bytes of host memory for the tensors of the phase. If the phase has two plans, they take turns
 * on the same memory, so the larger need counts. The phase must have its plans. */
uint64_t phase_host_bytes(const struct phase *p);

/* Returns the number of the phase that needs the most memory (phase_everything_bytes). If several phases need
 * equally much, returns the first of them. Reports and `tutti plan` show this phase. */
uint32_t phases_largest(const struct phase_list *list);

/* Returns the number of training steps of all phases before `phase`. If `phase` is list->n, these are all
 * steps of the job. */
uint64_t phases_steps_before(const struct phase_list *list, uint32_t phase);

/* Returns the number of the last phase whose inputs are the outputs of the forward-only phase `phase`.
 * Returns `phase` itself if there is no such phase. */
uint32_t phases_last_reader(const struct phase_list *list, uint32_t phase);

#endif
