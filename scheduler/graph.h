/* The task graph: which tasks one cycle of training has, and which values each task reads and writes.
 *
 * The graph describes the computation, not how a machine carries it out. The builder turns a graph into a
 * plan, and the verifier compares the plan with the graph: the plan must have the same tasks (invariant 6)
 * with the same operands (invariant 10). Nothing after the graph knows how layers are connected, or by which
 * method a model is trained: it only sees tasks and operands.
 *
 * Layers. The layers stand in an order in which every layer comes after the layers whose values it uses.
 * Usually they form a chain: each layer reads the output of the layer before it, and the last layer is the
 * loss. struct graph_link connects them in other ways:
 *
 *     fork    Several layers may read one output. Each of them may return a gradient to the layer that wrote
 *             the output, or none (`stop`).
 *     losses  Any number of layers may be losses. Each loss has its own targets and results.
 *     uses    Several layers may use the weights W of one layer, their owner. Each use has its own gradient
 *             dW. The owner's NORM and UPD combine the gradients in ascending order of layers: they add them,
 *             or take their mean if the owner says so (layer.mean_uses).
 *     twins   A layer that receives two gradients runs backward twice, once for each gradient. The second
 *             backward pass belongs to a twin. A twin is a layer without a FWD task. Its BWD reads the input
 *             and the S of its original, the layer that it is a twin of. A layer whose input is a twin reads
 *             the output of the original, but returns its gradient to the twin.
 *     groups  A decision group is the set of layers whose updates one DECIDE task covers.
 *
 * Example: a chain of layers 0, 1, 2 whose layer 1 also feeds a loss of its own, layer 3. Layer 2 is the
 * other loss. Layers 2 and 3 both read the output of layer 1. If only layer 3 returns a gradient (layer 2 has
 * `stop`), layers 0 and 1 learn from layer 3 alone.
 *
 * Order. The tasks stand in a sequential order, one training step after another. Every plan computes the
 * same result as this order. The order of one step is:
 *
 *     1. for each micro-batch: FWD of all layers, then BWD of all layers in reverse
 *     2. RED of each layer and replica
 *     3. for each decision group: NORM of each layer, if gradients decide about the step; DECIDE, if the
 *        group has a state; UPD of each layer. Of groups with the same loss scale, all NORM come first
 *
 * Steps. A graph covers one cycle: `steps` training steps, one after another. Values that live within a
 * training step, such as activations, are tensors of their own in each step. Weights, optimizer state,
 * buffers and the group state are one tensor for all steps. An evaluation graph has the tensors of the
 * training graph, but only the forward tasks of step 0.
 *
 * Replicas. The micro-batches of a step are divided among n_replicas, in order. Each replica sums its own dW.
 * The RED of replica r adds that sum to the dW of replica 0, in ascending order of r, and NORM and UPD read
 * the total there. A replica is a number; the policy chooses its device.
 *
 * Rows. Each layer has its own micro-batch size, `rows`. Of two connected layers, one size divides the
 * other. The Y and dX between them have the larger size, and the layer with the smaller size reads and writes
 * them in pieces. For example, if layer 4 has 8 rows and layer 5 has 2, then Y4 has 8 rows, and a FWD of
 * layer 5 reads a quarter of it. Graphs of jobs have one size for all layers.
 *
 * Group state. The GROUP tensor of a decision group (struct group_state) holds the values that UPD needs and
 * that nobody knows yet when the step is enqueued: whether to apply the update, the scale of the gradients,
 * and AdamW's bias corrections. GROUP keeps its value from step to step. In step s of the cycle, DECIDE turns
 * version s of GROUP into version s + 1, and every UPD of the step reads version s + 1. If gradients decide
 * about the step (clipping, or skipping of steps with non-finite gradients), DECIDE reads every SUMSQ of the
 * group and thus waits for all gradients of the group. Otherwise GROUP is the only operand of DECIDE, and
 * DECIDE delays no update.
 *
 * Buffers. A layer may have buffers B that training changes without gradients, such as running means. The
 * FWD of each micro-batch reads B and writes its contribution, STAT. The layer's UPD folds the STAT of all
 * micro-batches into B, in ascending order. It does so even if the decision skips the step.
 *
 * Versions. The version of a tensor counts the writes that its value has seen. A tensor with n writes
 * per cycle has the versions c*n to c*n + n during cycle c. An operand names a count within the cycle: the
 * count that it must see to read, and the count that it makes when it writes. For example, where a
 * replica has m micro-batches and a cycle has one step:
 *
 *     FWD reads W at 0; UPD turns W from 0 into 1, which is 0 of the next cycle
 *     BWD of the replica's first micro-batch writes dW at 1 without reading it
 *     BWD of the replica's micro-batch j >= 1 turns dW from j into j + 1
 *     RED of replica r turns the dW of replica 0 from m + r - 1 into m + r
 *
 * Every byte has its own version: a tensor that is written in pieces is at version 1 where its piece has been
 * written. A tensor that is not persistent has no value before its first write in a cycle. The loader writes
 * X and TARGET once per cycle, to their host copy, before the cycle starts. A REC repeats its FWD: it reads
 * and writes the same versions.
 */
#ifndef SCHEDULER_GRAPH_H
#define SCHEDULER_GRAPH_H

#include "kernels/layer.h"
#include "scheduler/plan.h"

/* One tensor of the graph. Its id is its index in graph.tensors. All plans of the graph use the same ids. */
struct graph_tensor {
    enum tensor_kind kind;
    uint32_t layer, micro, replica; /* PLAN_NONE where the kind has none */
    /* The training step within the cycle. PLAN_NONE if the tensor is persistent. */
    uint32_t step;
    /* The decision group, if the kind is GROUP or DECISION. Otherwise PLAN_NONE. */
    uint32_t group;
    enum dtype dtype; /* as in struct plan_tensor */
    uint64_t bytes;
    /* Number of equal pieces into which the tensor is divided. A task uses one piece or the whole tensor. */
    uint32_t pieces;
    uint32_t writes_per_cycle;
    /* Whether the tensor keeps its value from one training step to the next, like weights and optimizer
     * state. Activations do not. */
    bool persistent;
    /* Whether the loader writes the tensor or the trainer reads it, on the host. Such a tensor has PLAN_RING
     * slots in host memory. */
    bool external;
};

/* One tensor that a task uses, and the versions that the task reads and writes. */
struct graph_operand {
    tensor_id tensor;
    enum access access; /* READ, WRITE or RW */
    enum role role;
    /* Whether a plan may leave out this write. For example, only a FWD that saves S writes TENSOR_S. */
    bool optional;
    /* If the task reads the tensor: the version that the tensor must then have, which is the number of
     * earlier writes to the tensor in this cycle. */
    uint32_t read_version;
    /* If the task writes the tensor: the version that the tensor has afterwards, which is the number of
     * writes to the tensor in this cycle, including this one. */
    uint32_t write_version;
    /* The byte range that the task uses. It is the whole tensor, or one piece of the tensor. */
    uint64_t begin, end;
};

/* Where a task may run. FWD and BWD run only on a device (PLACE_DEVICE). RED, NORM, DECIDE and UPD run on a
 * device or on the host (PLACE_ANY). */
enum task_place { PLACE_DEVICE, PLACE_ANY };

/* One task of a cycle. A graph has no REC tasks: a recomputation (REC) is a FWD that a plan runs again. */
struct graph_task {
    enum instr_kind kind;           /* FWD, BWD, RED, NORM, DECIDE or UPD */
    uint32_t layer, micro, replica; /* PLAN_NONE where the kind has none */
    uint32_t step;                  /* training step within the cycle */
    /* Decision group of the layer. For DECIDE, the group of the DECIDE itself. */
    uint32_t group;
    enum task_place place;
    uint32_t operand, n_operands; /* first operand and count, in graph.operands */
};

/* What planning has to know about a layer. Layers are named by their index in graph.layers. */
struct graph_layer {
    /* Name of the layer's type, such as "dense", for messages. */
    const char *type;
    uint32_t rows; /* rows of a micro-batch */
    /* The sizes and types of the layer's blocks. In graphs that are made from a profile table, every type is
     * DTYPE_U8, because the table has only sizes in bytes. Only weights in 16 bits and their gradients have
     * types there. */
    struct layer_sizes size;
    uint64_t dw_bytes; /* of the gradient dW of the weights */
    enum dtype dw_dtype;
    uint64_t k_bytes, b_bytes;
    /* The parts of the optimizer state K, which together fill K. The optimizer defines them. In a graph made
     * from a profile table, the table defines them. */
    const struct state_part *parts;
    uint32_t n_parts;
    struct layer_cost cost; /* per micro-batch */

    /* The layer that writes this layer's input, or PLAN_NONE for the loader. If `input` is a twin, the input
     * is the output of the twin's original. */
    uint32_t input;
    uint32_t source; /* as in struct graph_link */
    /* The layer whose FWD tasks compute the output and the saved values S. This is the layer itself or, for a
     * twin, its original. */
    uint32_t original;
    /* The layer that returns the gradient of this layer's output. The gradient is the dX tensor of `reader`.
     * PLAN_NONE if no layer returns a gradient. */
    uint32_t reader;
    /* Whether the layer has a backward pass in training, because the weights of this layer or of earlier
     * layers need its gradient. */
    bool backward;
    /* Whether BWD computes dX, the gradient that is returned to `input`. */
    bool returns;
    bool is_loss;
    /* Whether this is a loss that computes its result in the backward task. In training, its forward task
     * then only reads X. */
    bool loss_in_bwd;
    /* Whether UPD updates the buffers B with the statistics of the forward passes (STAT). */
    bool folds;

    /* Whether the layer is tied: it uses the weights W of the earlier layer `owner`. It has a gradient dW of
     * its own, but no K and no update. */
    bool tied;
    /* The layer that owns the weights W. This is the layer itself, unless it is tied. */
    uint32_t owner;
    /* Used only if the layer owns weights W. The number of layers that use W and have BWD tasks. UPD reads
     * the dW of each of them. */
    uint32_t n_uses;
    uint32_t group; /* decision group */
};

/* A decision group: layers whose updates depend on the same DECIDE task. */
struct graph_group {
    /* Whether the decision depends on the gradients, so that every UPD of the group waits for all gradients
     * of the group. */
    bool decision;
    /* The size of the group's GROUP tensor, or 0 if it has none. If it has one, a training graph also has a
     * DECIDE task, which writes the tensor. */
    uint64_t state_bytes;
    /* Whether the backward tasks of the group's losses read the GROUP tensor, for the loss scale. They read
     * the value that the decision of the step before has written. */
    bool scales_loss;
    /* The first of the groups that have the same loss scale as this one. Groups have the same loss scale if
     * losses are scaled and a gradient of one of them comes from a loss of another, because an
     * update undoes only the loss scale of its own group. The DECIDE of each of these groups reads every
     * SUMSQ of all of them. So an overflow in one of them skips the step of all, and their loss scales never
     * differ. A group that shares its loss scale with no other has its own number here. */
    uint32_t scale;
};

/* The graph of one training cycle or of one evaluation. It never changes after graph_build. The caller frees
 * it with graph_destroy. */
struct graph {
    uint32_t n_layers, n_replicas, n_groups;
    /* Number of rows in a micro-batch. If the layers have micro-batches of different sizes, this is the size
     * of the smallest. */
    uint32_t rows;
    /* Number of micro-batches of `rows` rows in a training step, for all replicas together. */
    uint32_t n_micro;
    uint32_t steps; /* training steps of a cycle */
    /* Whether the graph is for training. An evaluation graph has only the tasks of the forward pass. */
    bool training;
    struct graph_layer *layers;
    struct graph_group *groups;
    struct graph_tensor *tensors;
    struct graph_task *tasks;
    struct graph_operand *operands;
    uint32_t n_tensors, n_tasks, n_operands;
    struct graph_index *index; /* for graph_tensor_find and graph_task_find */
    struct arena *arena;       /* owns all arrays, and this struct */
};

/* How one layer of a model is connected with earlier layers. A field that names no layer is PLAN_NONE. The
 * caller of graph_build may free the links afterwards. */
struct graph_link {
    /* The layer whose output this layer reads. PLAN_NONE means that the layer reads X, which the loader
     * fills. */
    uint32_t input;
    bool stop; /* no gradient goes back to `input` */
    /* Which X the layer reads if `input` is PLAN_NONE. All layers with the same source read the same X. 0 is
     * the input of the model. An evaluation graph may connect a layer that has another source with an earlier
     * layer instead. The X of the source then exists, but nothing reads it, so that both graphs have the same
     * tensors. */
    uint32_t source;
    /* The original of this twin, an earlier layer. The model must have the same layer at both places. */
    uint32_t twin_of;
    /* The earlier layer whose weights W this layer uses instead of weights of its own. */
    uint32_t owner;
    uint32_t group; /* decision group */
};

/* Returns the link of layer number `l` in a simple chain, where each layer reads the output of the layer
 * before. */
struct graph_link graph_chain_link(const struct model *m, uint32_t l);

/* The input of graph_build: the model, its optimizers, and the way in which a training step is divided into
 * micro-batches. */
struct graph_config {
    const struct model *model;
    /* One link for each layer of the model. NULL means that the layers form a chain. */
    const struct graph_link *links;
    /* The optimizers, one for each decision group. If an optimizer clips gradients, the updates of its group
     * wait for all gradients of the group. */
    const struct optimizer *optimizer;
    uint32_t n_groups; /* number of decision groups; 0 means one */
    uint32_t rows;     /* rows of a micro-batch */
    uint32_t n_micro;  /* micro-batches of a step */
    /* Number of replicas. It must divide `n_micro`. 0 means one replica. */
    uint32_t n_replicas;
    /* Number of training steps in a cycle. 0 means one. */
    uint32_t steps;
    bool training;
    /* Whether a step with infinite or NaN gradients is skipped. Every update then waits for all gradients of
     * its decision group. */
    bool skip_nonfinite;
};

struct table;

/* How a step is divided, for graph_build_sizes. */
struct graph_sizes {
    uint32_t batch;       /* rows of a step */
    uint32_t replicas;    /* number of replicas; 0: one */
    const uint32_t *rows; /* per layer: rows of a micro-batch */
};

/* Builds a graph for planning only, without decisions and targets. Micro-batch sizes must divide the batch,
 * and of two neighbouring layers one size must divide the other. */
int graph_build_sizes(const struct table *t, const struct graph_sizes *sizes, bool training,
                      struct graph **ret, struct err *err);

/* Builds a graph from a profile table. It has one replica, and every micro-batch has `micro_batch` rows.
 * Returns the same errors as graph_build_sizes. */
int graph_build_table(const struct table *t, uint32_t micro_batch, uint32_t n_micro, bool training,
                      struct graph **ret, struct err *err);

/* Maximum number of FWD and BWD tasks in a cycle. Planning this many takes a few seconds and about 2 GB of
 * memory. */
#define GRAPH_MAX_TASKS (1u << 18)

/* Builds the graph of a model. Training and evaluation graphs have the same tensors with the same ids.
 * Returns -EOVERFLOW if the tensors have more than 2^53 bytes. */
int graph_build(const struct graph_config *config, struct graph **ret, struct err *err);

/* Builds a graph with layers, but without tensors and tasks. Returns the same errors as graph_build. */
int graph_describe(const struct graph_config *config, struct graph **ret, struct err *err);

/* Frees a graph and everything in it. Does nothing if `g` is NULL. */
void graph_destroy(struct graph *g);

/* Returns whether the tensor has a home: an address in host memory that no other tensor ever uses. */
static inline bool graph_has_home(const struct graph_tensor *t)
{
    return t->persistent || t->external;
}

/* Returns whether the layer owns weights W that training changes. Only such layers have an optimizer state K
 * and, if their group has a decision, a NORM task. */
static inline bool graph_trains(const struct graph *g, uint32_t layer)
{
    const struct graph_layer *l = &g->layers[layer];
    return l->size.w > 0 && !l->tied && l->n_uses > 0;
}

/* Returns whether `layer` has an UPD task. This task updates weights, or buffers, or both. */
static inline bool graph_updates(const struct graph *g, uint32_t layer)
{
    return graph_trains(g, layer) || g->layers[layer].folds;
}

/* Returns whether a layer's update waits for a decision that depends on the gradients. */
static inline bool graph_decides(const struct graph *g, uint32_t layer)
{
    return g->groups[g->layers[layer].group].decision;
}

/* Returns whether the layer has FWD tasks. All layers have them, except twins. */
static inline bool graph_has_fwd(const struct graph *g, uint32_t layer)
{
    return g->layers[layer].original == layer;
}

/* Returns whether one of the layers from layer + 1 to end - 1 reads the output of `layer`. */
bool graph_read_before(const struct graph *g, uint32_t layer, uint32_t end);

/* Returns whether any backward pass reads the saved values S of `layer`: its own backward pass, or that of a
 * twin. */
bool graph_saves(const struct graph *g, uint32_t layer);

/* Returns the number of micro-batches of `layer` in one training step, for all replicas together. */
static inline uint32_t graph_micros(const struct graph *g, uint32_t layer)
{
    return (uint32_t)((uint64_t)g->rows * g->n_micro / g->layers[layer].rows);
}

/* Returns the number of the replica that computes micro-batch `micro` of `layer`. */
static inline uint32_t graph_replica(const struct graph *g, uint32_t layer, uint32_t micro)
{
    return micro / (graph_micros(g, layer) / g->n_replicas);
}

/* Returns the size of the largest micro-batch of all layers that write or read the input of `layer`. Sets
 * *ret_least to the size of the smallest. */
uint32_t graph_input_rows(const struct graph *g, uint32_t layer, uint32_t *ret_least);

/* Returns the id of a tensor of training step `step`, or PLAN_NONE if there is no such tensor. `of` is the
 * layer, or the decision group for GROUP and DECISION. `which` is the replica for a dW, the micro-batch for
 * kinds that have one, such as Y, and PLAN_NONE otherwise. For a tied layer, W is the owner's W. All steps
 * share the persistent tensors. X is the same tensor for every layer that reads the loader's input. */
tensor_id graph_tensor_find(const struct graph *g, enum tensor_kind kind, uint32_t of, uint32_t which,
                            uint32_t step);

/* Returns the index of a task in graph.tasks, or PLAN_NONE. `of` is a layer or a decision group, `which` a
 * micro-batch or a replica. For REC, returns the FWD. */
uint32_t graph_task_find(const struct graph *g, enum instr_kind kind, uint32_t of, uint32_t which,
                         uint32_t step);

#endif
