/* The graph: what must be computed, and on which tensors, whatever machine does it. It is the method's task
 * graph (invariant 6) and the measure of every operand list (invariant 10). Builder and verifier both take it
 * as input.
 *
 * Tasks stand in the method's sequential order: FWD of all layers and BWD in reverse for micro-batch 0, then
 * for micro-batch 1, ...; then RED per layer and replica, NORM per layer (where gradients decide about the step), DECIDE
 * (where there is a group state), then UPD per layer. Any plan computes what this order computes.
 *
 * Decision group. The layers whose updates one DECIDE covers: today all of them. Its state, the GROUP tensor (struct
 * group_state), holds what UPD needs and is not known when the step is enqueued: whether to apply, the scale of gradients,
 * AdamW's bias corrections. The tensor is persistent. DECIDE turns version 0 of the step into version 1, which every UPD
 * reads. Where gradients decide (clipping, skipping of steps that are not finite), DECIDE reads every SUMSQ and so waits
 * for all gradients; where they do not, DECIDE waits for nothing of its step, and updates begin as early as without it.
 *
 * Replicas. The micro-batches of a step are divided among n_replicas, in order. Each replica sums its own dW; RED of
 * replica r adds that to the sum of replica 0, in ascending order, and NORM and UPD read the result there. A replica is a
 * number and not a device.
 *
 * Rows. A layer has its micro-batch size, `rows`; the sizes of neighbours divide one another. The X (and dX) between two
 * layers has the larger of their sizes: it is written, or read, in as many pieces as that is larger, by byte range.
 * Graphs of jobs have one size for all layers.
 *
 * Versions. Within a step, the value of a tensor is identified by how many of the step's writes it has seen:
 * a tensor with n writes per step has, at step s, the versions s*n .. s*n + n. An operand that reads names
 * the count it must see, one that writes the count it produces. So FWD of step s reads W version s*1 + 0, UPD
 * turns it into s*1 + 1, which is the next step's 0; BWD of the replica's j-th micro-batch adds to dW version
 * s*n + j and makes it s*n + j + 1 (for j = 0 it writes without reading); RED of replica r goes on from m + r - 1 to
 * m + r with the dW of replica 0, where a replica has m micro-batches. Bytes have versions: what is written in pieces
 * has version 1 where the piece that is there has been written. A tensor that is not persistent has no value
 * before its first write of the step. External inputs (X of layer 0, TARGET) count one write per step, by the
 * loader, to their host copy, before the step starts. A REC does its FWD task again: it reads the same
 * versions and writes the same versions.
 */
#ifndef SCHEDULER_GRAPH_H
#define SCHEDULER_GRAPH_H

#include "kernels/layer.h"
#include "scheduler/plan.h"

struct graph_tensor {
    enum tensor_kind kind;
    uint32_t layer, micro, replica; /* PLAN_NONE where it does not apply */
    uint64_t bytes;
    uint32_t pieces; /* of equal size, in which tasks read or write it; 1: as a whole */
    uint32_t writes_per_step;
    bool persistent; /* W, K, B, GROUP: survives the step; its home is the host */
    bool external;   /* X of layer 0, TARGET: written by the loader; RESULT, DECISION: read by the trainer on
                      * the host after the step. These have PLAN_RING host slots. */
};

struct graph_operand {
    tensor_id tensor;
    enum access access; /* READ, WRITE or RW */
    bool
        optional; /* a write that an instruction may leave out: S (and its room) or work of a FWD, not both; any
                    * of a REC */
    uint32_t read_version;  /* count within the step; for READ and RW */
    uint32_t write_version; /* for WRITE and RW */
    uint64_t begin, end;    /* byte range of the tensor: a piece, or all of it */
};

enum task_place { PLACE_DEVICE, PLACE_HOST, PLACE_ANY }; /* FWD, BWD; DECIDE; RED, NORM, UPD */

struct graph_task {
    enum instr_kind kind; /* FWD, BWD, RED, NORM, DECIDE, UPD */
    uint32_t layer, micro, replica;
    enum task_place place;
    uint32_t operand, n_operands; /* range in graph->operands */
};

struct graph_layer {
    const char *type; /* "dense": for people */
    uint32_t rows;    /* of a micro-batch */
    struct layer_sizes size;
    uint64_t k_bytes, b_bytes;
    bool
        tied; /* it uses the W of an earlier layer, `owner`, and has a dW of its own, which the owner's NORM and UPD
                     * add up in ascending order of layers; it has neither W, K nor an update of its own */
    uint32_t owner;         /* tied layers only */
    bool loss_in_bwd;       /* the loss, when training: FWD only reads X, BWD writes RESULT */
    struct layer_cost cost; /* per micro-batch */
};

struct graph {
    uint32_t n_layers, n_replicas;
    uint32_t rows,
        n_micro; /* size and number of micro-batches, of all replicas; where layers differ, the smallest
                             * size, and the number of these */
    uint32_t first_trained; /* the first layer with W: BWD stops there; n_layers when none has W */
    bool training;          /* false: forward only (the eval program) */
    bool decision;  /* gradients decide about the step (clipping, or skipping of non-finite steps): every UPD
                             * waits for all of them */
    bool has_group; /* there is a GROUP tensor, and when training a DECIDE */
    struct graph_layer *layers;
    struct graph_tensor *tensors;
    struct graph_task *tasks;
    struct graph_operand *operands;
    uint32_t n_tensors, n_tasks, n_operands;
    struct graph_index *index; /* for the find functions */
    struct arena *arena;
};

struct graph_config {
    const struct model *model;
    const struct optimizer
        *optimizer;      /* gives the sizes of K and GROUP and, by clip, whether gradients decide */
    uint32_t rows;       /* of a micro-batch */
    uint32_t n_micro;    /* micro-batches of a step */
    uint32_t n_replicas; /* that share them; divides n_micro; 0: one */
    bool training;
    bool skip_nonfinite; /* a step whose gradient is not finite is skipped: needs the decision too */
};

/* The graph of a model of which only a profile is known, for planning: `micro_batch` rows, no decision, no targets. */
struct table;
struct graph_sizes {
    uint32_t batch;       /* rows of a step */
    uint32_t replicas;    /* 0: one */
    const uint32_t *rows; /* of each layer's micro-batch */
};
int graph_build_sizes(const struct table *t, const struct graph_sizes *sizes, bool training,
                      struct graph **ret, struct err *err);
/* One size for all, one replica. */
int graph_build_table(const struct table *t, uint32_t micro_batch, uint32_t n_micro, bool training,
                      struct graph **ret, struct err *err);

/* Forward and backward tasks of a step, at most. Time and memory for planning grow with them: this many take some seconds and,
 * on a few devices, about 2 GB (planning.h). */
#define GRAPH_MAX_TASKS (1u << 18)

/* Tensors have the same ids in the training and the evaluation graph of one model; the evaluation graph
 * merely has fewer tasks. -EINVAL for an empty or ill-formed chain and for more than
 * GRAPH_MAX_TASKS, -EOVERFLOW for sizes beyond 2^53. */
int graph_build(const struct graph_config *config, struct graph **ret, struct err *err);
/* The layers alone, without tensors and tasks: for planning_measure. The same refusals as graph_build's. */
int graph_describe(const struct graph_config *config, struct graph **ret, struct err *err);
void graph_destroy(struct graph *g);

/* Whether the layer has an UPD (and, with a decision, a NORM). */
static inline bool graph_updates(const struct graph *g, uint32_t layer)
{
    return g->layers[layer].size.w > 0 && !g->layers[layer].tied;
}

/* Micro-batches of a layer, of all replicas. */
static inline uint32_t graph_micros(const struct graph *g, uint32_t layer)
{
    return (uint32_t)((uint64_t)g->rows * g->n_micro / g->layers[layer].rows);
}
static inline uint32_t graph_replica(const struct graph *g, uint32_t layer, uint32_t micro)
{
    return micro / (graph_micros(g, layer) / g->n_replicas);
}

/* PLAN_NONE when there is none; the owner's W for a tied layer. `which` is the number of the micro-batch in the tensor's
 * own size, for a dW the replica, and PLAN_NONE for other tensors of a layer. */
tensor_id graph_tensor_find(const struct graph *g, enum tensor_kind kind, uint32_t layer, uint32_t which);
/* Index of the task, or PLAN_NONE. A REC is looked up as FWD. `which`: the micro-batch, or for a RED the replica. */
uint32_t graph_task_find(const struct graph *g, enum instr_kind kind, uint32_t layer, uint32_t which);

#endif
