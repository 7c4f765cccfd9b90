/* The task graph: which tasks one training step has, and which values each task reads and writes.
 *
 * The graph describes the computation, not how a machine carries it out. The builder turns a graph into a
 * plan, and the verifier compares the plan with the graph: the plan must have the same tasks (invariant 6)
 * with the same operands (invariant 10).
 *
 * Order. The tasks stand in a sequential order: for micro-batch 0 the FWD of all layers and then the BWD of
 * all layers in reverse, the same for micro-batch 1, and so on; then RED for each layer and replica; then
 * NORM for each layer, if gradients decide about the step; then DECIDE, if there is a group state; then UPD
 * for each layer. Every plan computes the same result as this order.
 *
 * Replicas. The micro-batches of a step are divided among n_replicas, in order. Each replica sums its own dW.
 * The RED of replica r adds that sum to the dW of replica 0, in ascending order of r, and NORM and UPD read
 * the total there. A replica is a number; the policy chooses its device.
 *
 * Rows. Each layer has its own micro-batch size, `rows`. Of two neighbouring layers, one size divides the
 * other. The X and dX between them have the larger size, and the layer with the smaller size reads and writes
 * them in pieces. For example, if layer 4 has 8 rows and layer 5 has 2, then X5 has 8 rows, and a FWD of
 * layer 5 reads a quarter of it. Graphs of jobs have one size for all layers.
 *
 * Decision group. A decision group is the set of layers whose updates one DECIDE covers: today, all layers.
 * Its state, the GROUP tensor (struct group_state), holds what UPD needs and what is unknown when the step is
 * enqueued: whether to apply the update, the scale of the gradients, and AdamW's bias corrections. GROUP
 * survives the step. DECIDE turns version 0 of the step into version 1, and every UPD reads version 1. If
 * gradients decide about the step (clipping, or skipping of steps with non-finite gradients), DECIDE reads
 * every SUMSQ and thus waits for all gradients. Otherwise DECIDE reads nothing of its step, and updates start
 * as early as they would without it.
 *
 * Versions. The version of a tensor counts the writes that its value has seen. A tensor with n writes
 * per step has the versions s*n to s*n + n during step s. An operand names a count within the step: the
 * count that it must see to read, and the count that it makes when it writes. For example, where a
 * replica has m micro-batches:
 *
 *     FWD reads W at 0; UPD turns W from 0 into 1, which is 0 of the next step
 *     BWD of the replica's first micro-batch writes dW at 1 without reading it
 *     BWD of the replica's micro-batch j >= 1 turns dW from j into j + 1
 *     RED of replica r turns the dW of replica 0 from m + r - 1 into m + r
 *
 * Every byte has its own version: a tensor that is written in pieces is at version 1 where its piece has been
 * written. A tensor that is not persistent has no value before the first write of a step. The loader writes X
 * of layer 0 and TARGET once per step, to their host copy, before the step starts. A REC repeats its FWD: it
 * reads and writes the same versions.
 */
#ifndef SCHEDULER_GRAPH_H
#define SCHEDULER_GRAPH_H

#include "kernels/layer.h"
#include "scheduler/plan.h"

/* One tensor of the graph. The tensor's id is its index in graph.tensors. All plans of this graph use the
 * same ids. */
struct graph_tensor {
    enum tensor_kind kind;
    uint32_t layer, micro, replica; /* PLAN_NONE where the kind has none */
    uint64_t bytes;
    /* Number of equal pieces that tasks read or write one at a time. It is 1 if every task uses the whole
     * tensor. */
    uint32_t pieces;
    uint32_t writes_per_step;
    /* Whether the tensor keeps its value from one training step to the next, like weights and optimizer
     * state. Activations do not. */
    bool persistent;
    /* Whether code outside the plan uses the tensor on the host: the loader writes X of layer 0 and TARGET,
     * and the trainer reads RESULT and DECISION. An external tensor has PLAN_RING host slots. */
    bool external;
};

/* One use of a tensor by a task, with the versions that the task reads and writes. */
struct graph_operand {
    tensor_id tensor;
    enum access access; /* READ, WRITE or RW */
    enum role role;
    /* Whether an instruction may leave this write out. A FWD writes either TENSOR_S and TENSOR_ROOM, or
     * TENSOR_WORK. A REC may leave out any of its writes. */
    bool optional;
    /* READ and RW only: the version that the tensor must have, as a number of writes within the training
     * step. */
    uint32_t read_version;
    /* WRITE and RW only: the version that the tensor gets, as a number of writes within the training step. */
    uint32_t write_version;
    /* The bytes of the tensor that the task uses: one piece, or the whole tensor. */
    uint64_t begin, end;
};

/* Where a task may run. FWD and BWD need a device (PLACE_DEVICE), and DECIDE needs the host (PLACE_HOST).
 * RED, NORM and UPD can run on a device or on the host (PLACE_ANY). */
enum task_place { PLACE_DEVICE, PLACE_HOST, PLACE_ANY };

/* One task of a training step. The graph has no REC tasks, because a REC is only a FWD that a plan runs a
 * second time. */
struct graph_task {
    enum instr_kind kind; /* FWD, BWD, RED, NORM, DECIDE or UPD */
    uint32_t layer, micro, replica;
    enum task_place place;
    uint32_t operand, n_operands; /* first operand and count, in graph.operands */
};

/* What planning needs to know about one layer: the sizes of its tensors, and the work of one micro-batch. */
struct graph_layer {
    /* Name of the layer's type, such as "dense", for messages. */
    const char *type;
    uint32_t rows; /* rows of a micro-batch */
    struct layer_sizes size;
    uint64_t k_bytes, b_bytes;
    /* Whether the layer uses the weights W of the earlier layer `owner`. A tied layer has its own gradient
     * dW, but no W, no K and no update. The owner's NORM and UPD add up the gradients of all layers that use
     * W. */
    bool tied;
    /* Tied layers only: the layer that owns the weights W. */
    uint32_t owner;
    /* Whether this is a loss layer that computes RESULT in its backward task. In training, its forward task
     * then only reads X. */
    bool loss_in_bwd;
    struct layer_cost cost; /* per micro-batch */
};

/* The graph of one training step, or of one evaluation. It does not change once it is built. The caller frees
 * the graph with graph_destroy. */
struct graph {
    uint32_t n_layers, n_replicas;
    /* Number of rows in a micro-batch. If layers have micro-batches of different sizes, this is the
     * smallest. */
    uint32_t rows;
    /* Number of micro-batches with `rows` rows in a training step, counting all replicas. */
    uint32_t n_micro;
    /* The first layer that has weights W. The backward pass ends there, because no earlier layer needs
     * gradients. Equal to `n_layers` if no layer has weights. */
    uint32_t first_trained;
    /* Whether the graph is for training. An evaluation graph has only the tasks of the forward pass. */
    bool training;
    /* Whether the gradients influence the update: they may be clipped, or a step with infinite or NaN
     * gradients may be skipped. If so, every UPD must wait for all gradients. */
    bool decision;
    /* Whether the graph has a GROUP tensor. In training, it then also has a DECIDE task, which writes this
     * tensor. */
    bool has_group;
    struct graph_layer *layers;
    struct graph_tensor *tensors;
    struct graph_task *tasks;
    struct graph_operand *operands;
    uint32_t n_tensors, n_tasks, n_operands;
    struct graph_index *index; /* for graph_tensor_find and graph_task_find */
    struct arena *arena;       /* owns all arrays, and this struct */
};

/* The input of graph_build: a model, its optimizer, and how a training step is divided into micro-batches. */
struct graph_config {
    const struct model *model;
    /* The optimizer, which determines the sizes of K and GROUP. If optimizer.clip is greater than 0, every
     * update waits for the norm of all gradients. */
    const struct optimizer *optimizer;
    uint32_t rows;    /* rows of a micro-batch */
    uint32_t n_micro; /* micro-batches of a step */
    /* Number of replicas. It must divide `n_micro`. 0 means one replica. */
    uint32_t n_replicas;
    bool training;
    /* Whether to skip the update of a step whose gradients are infinite or NaN. If true, every update waits
     * for all gradients. */
    bool skip_nonfinite;
};

struct table;

/* How a step is divided, for graph_build_sizes. */
struct graph_sizes {
    uint32_t batch;       /* rows of a step */
    uint32_t replicas;    /* number of replicas; 0: one */
    const uint32_t *rows; /* per layer: rows of a micro-batch */
};

/* Builds the graph of a model that is known only by its profile table. The graph serves only for planning, so
 * it has no decision and no targets. Returns -EINVAL if the micro-batch sizes do not divide the batch or each
 * other. */
int graph_build_sizes(const struct table *t, const struct graph_sizes *sizes, bool training,
                      struct graph **ret, struct err *err);

/* Builds a graph with one replica from a profile table. Every layer has micro-batches of `micro_batch` rows.
 * Returns the same errors as graph_build_sizes. */
int graph_build_table(const struct table *t, uint32_t micro_batch, uint32_t n_micro, bool training,
                      struct graph **ret, struct err *err);

/* Maximum number of FWD and BWD tasks in a training step. A graph of this size takes a few seconds and about
 * 2 GB of memory to plan, on a few devices. */
#define GRAPH_MAX_TASKS (1u << 18)

/* Builds the graph of a model. Training and evaluation graphs have the same tensors with the same ids.
 * Returns -EINVAL if the model has no layers, is not a valid chain, or needs more than GRAPH_MAX_TASKS tasks.
 * Returns -EOVERFLOW if all tensors together exceed 2^53 bytes. */
int graph_build(const struct graph_config *config, struct graph **ret, struct err *err);

/* Builds a graph that has only its layers, without tensors and tasks. Returns the same errors as
 * graph_build. */
int graph_describe(const struct graph_config *config, struct graph **ret, struct err *err);

/* Frees a graph and everything in it. Does nothing if `g` is NULL. */
void graph_destroy(struct graph *g);

/* Returns whether the graph has an UPD task for `layer`. In a graph with a decision, such a layer also has a
 * NORM task. */
static inline bool graph_updates(const struct graph *g, uint32_t layer)
{
    return g->layers[layer].size.w > 0 && !g->layers[layer].tied;
}

/* Returns how many micro-batches pass through `layer` in one training step, counting all replicas. */
static inline uint32_t graph_micros(const struct graph *g, uint32_t layer)
{
    return (uint32_t)((uint64_t)g->rows * g->n_micro / g->layers[layer].rows);
}
/* Returns the number of the replica that computes micro-batch `micro` of `layer`. */
static inline uint32_t graph_replica(const struct graph *g, uint32_t layer, uint32_t micro)
{
    return micro / (graph_micros(g, layer) / g->n_replicas);
}

/* Returns the id of a tensor, or PLAN_NONE if there is no such tensor. `which` is the replica for a dW, the
 * micro-batch for kinds that have one, such as X, and PLAN_NONE otherwise. For a tied layer, W is the owner's
 * W. */
tensor_id graph_tensor_find(const struct graph *g, enum tensor_kind kind, uint32_t layer, uint32_t which);

/* Returns the index of a task in graph.tasks, or PLAN_NONE if there is no such task. `which` is the
 * micro-batch for FWD and BWD, the replica for RED, and PLAN_NONE otherwise. For REC, returns the FWD that
 * the REC repeats. */
uint32_t graph_task_find(const struct graph *g, enum instr_kind kind, uint32_t layer, uint32_t which);

#endif
