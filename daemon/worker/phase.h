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
 * A phase is a chain of layers with one loss, or a graph with several losses (phase.links). In local updates,
 * for example, each block of layers has a loss and a decision group of its own.
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
#include "daemon/worker/labels.h"
#include "scheduler/graph.h"
#include "scheduler/plan.h"
#include "scheduler/policy/sizes.h"

/* The value of phase.inputs that stands for the samples of the data set. */
#define PHASE_DATA UINT32_MAX

/* What the evaluations of a phase measure on the validation data. */
enum phase_eval {
    /* The phase makes no evaluations. */
    PHASE_EVAL_NONE,
    /* The whole model is evaluated: its loss, and its accuracy for a classification. */
    PHASE_EVAL_MODEL,
    /* A part of the model is evaluated against the label vectors that are its targets (layer_label_vectors).
     * The loss is the error against the vectors, and the accuracy is the share of samples that are nearest
     * to the vector of their own class. */
    PHASE_EVAL_LABELS
};

/* What keeps the planner from choosing more training steps for a cycle. */
enum phase_limit {
    PHASE_LIMIT_NONE, /* the planner has not chosen the number */
    PHASE_LIMIT_GAIN,
    PHASE_LIMIT_SLOWER,
    PHASE_LIMIT_DEVICE,
    PHASE_LIMIT_HOST,
    PHASE_LIMIT_PLAN,
    PHASE_LIMIT_TIME,
    PHASE_LIMIT_BREAKS,
    PHASE_LIMIT_MOST,
    PHASE_LIMIT_COUNT
};
/* Words for reports, such as "device memory". */
extern const char *const phase_limit_names[PHASE_LIMIT_COUNT];

/* An input X that the trainer fills with label vectors: each row is the vector of the sample's class.
 * `reader` is the first layer that reads this input. `loss` is the layer that has the vectors, a loss of
 * type label_vectors. Both fields are indices of layers in the phase. */
struct phase_source {
    uint32_t reader, loss;
};

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
    /* The layers that the phase computes. They keep the ids and keys that they have in the list of all
     * layers (phase_list.all). The last layer of a training phase is a loss, and this loss is the loss of the
     * phase in progress lines. The last layer of a forward-only phase is not a loss. */
    struct model model;
    /* How the layers are connected, one link for each layer. NULL means that they form a chain. */
    const struct graph_link *links;
    /* How the layers are connected in evaluations. NULL means as in `links`. */
    const struct graph_link *eval_links;
    /* Inputs of training that come neither from the data set nor from kept outputs. Element i is for the
     * source i + 1 of the links (graph_link.source). */
    const struct phase_source *sources;
    uint32_t n_sources;
    bool training;
    /* The number of samples in a training step, or in a batch of a forward-only phase. */
    uint32_t batch;
    /* The micro-batch size and the number of replicas: `asked` has the user's numbers, where 0 means "auto",
     * and `sizes` has the numbers in use. The numbers in use are also in spec.resolved.phases. */
    struct spec_sizes asked, sizes;
    /* The number of the phase whose sizes this phase uses: this phase itself, or an earlier phase with the
     * same batch. For example, a phase that keeps outputs uses the sizes with which its layers were
     * trained. */
    uint32_t sizes_as;
    /* The number of training steps. 0 if the phase is forward-only. */
    uint64_t steps;
    /* The number of training steps in one run of the plan's cycle. A forward-only phase always runs one batch
     * at a time. */
    uint32_t cycle_steps;
    /* True if the planner chooses cycle_steps. The number changes no bit of the result. */
    bool cycle_auto;
    enum phase_limit cycle_limit; /* set if cycle_auto */
    /* The decision groups of the phase, which are numbered from 0. Each layer is in one group
     * (links[].group), and a chain is a single group. Every group has its own optimizer and its own
     * learning rate, but all optimizers are of the same kind. */
    uint32_t n_groups;
    struct optimizer *optimizer; /* [n_groups] */
    struct spec_rate *rate;      /* [n_groups] */
    /* True if updates with gradients that are not finite are skipped. */
    bool skip_nonfinite;
    enum phase_eval eval;
    /* How well each loss against label vectors is learned, in the order of these losses in the phase. Empty
     * if the targets are those of the data set. */
    struct labels *labels; /* [n_labels] */
    uint32_t n_labels;
    /* Where the inputs come from: PHASE_DATA for the data set, or the number of an earlier forward-only phase
     * that keeps its outputs. In the second case, evaluations read the outputs that the earlier phase keeps
     * for the validation samples. */
    uint32_t inputs;
    /* Used only in a forward-only phase. The outputs stay in files with this prefix, such as "outputs-1".
     * NULL if the outputs end with the process. */
    const char *keep_as;

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
    /* All layers that any phase computes: first the layers of the model, and then the layers that the method
     * has added with phases_add_layer, such as the loss at the end of a part of the model. The id of a layer
     * is its index in this list. The added layers are not a part of the trained model: checkpoints store
     * their weights in a file of their own, and model.safetensors does not have them. */
    struct model all;
    uint32_t n_model; /* number of layers of the model */
    enum dtype dtype; /* the type of weights and activations, for added layers */
    /* The number of layers for which all.layers has room. 0 as long as it is the array of the spec. */
    uint32_t room;
    /* Owns the memory of the arrays in this struct, and of everything that the phases point to. phases_finish
     * frees all of it at once. */
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

/* Makes an empty list of phases for the model of the spec. phases_make calls it. */
void phases_init(struct phase_list *list, const struct spec *s);

/* Adds a copy of `layer`, which has no inner layers, to the list of all layers, and sets its id and its
 * key. Also sets its types, which follow from the precision of the job. `name` becomes the prefix of the
 * layer's tensors in checkpoints, such as "heads.1.out". *ret becomes
 * the added layer, which is valid until the list is freed. Returns -EINVAL with a message if a model can
 * have no more layers. */
int phases_add_layer(struct phase_list *list, const struct layer *layer, const char *name,
                     const struct layer **ret, struct err *err);

/* Adds a phase to the list and returns the phase. The new phase trains the whole model by backpropagation, as
 * the spec says. The caller may then change the phase. The pointer is valid until the next call. */
struct phase *phase_add(struct phase_list *list, const struct spec *s, const char *name);

/* Gives the phase `n` losses against label vectors, which have not been judged yet. `kappa` and `classes` are
 * as in struct labels. */
void phase_set_labels(struct phase_list *list, struct phase *p, uint32_t n, double kappa, uint32_t classes);

/* Gives the phase `n` decision groups. Each gets a copy of the optimizer and the learning rate that the phase
 * has for its first group. */
void phase_set_groups(struct phase_list *list, struct phase *p, uint32_t n);

/* Gives the phase the layers `first` to `end` - 1 of the model. If `loss` is not NULL, it becomes the last
 * layer. If a layer in the range uses the weights of another layer, the other layer must be in the range
 * too. */
void phase_take_layers(struct phase_list *list, struct phase *p, uint32_t first, uint32_t end,
                       const struct layer *loss);

/* Returns the number of losses of the phase. If `ret` is not NULL, writes their indices in the phase to it,
 * in ascending order. */
uint32_t phase_losses(const struct phase *p, uint32_t *ret);

/* Returns the decision group of layer number `layer` of the phase. */
uint32_t phase_group(const struct phase *p, uint32_t layer);

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

/* Returns whether the forward-only phase `phase` must keep its outputs for the validation samples too. This
 * is so if a phase that evaluates reads its outputs, directly or through other forward-only phases. */
bool phases_keep_val(const struct phase_list *list, uint32_t phase);

#endif
