/* Builds the task graph of a model. graph.h describes the graph.
 *
 * graph_layers.c first checks the input and describes the layers. This file then adds the tensors and the
 * tasks. While the lists grow, they belong to a struct builder. At the end they are copied into the graph's
 * arena.
 */
#include "scheduler/graph.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/bounded.h"
#include "base/vec.h"
#include "scheduler/graph_private.h"

/* Where to find all tensors of one kind for one layer (or decision group) and one training step. */
struct tensor_entry {
    /* Their ids are consecutive: `first`, first + 1, and so on. `n` is their number. If there are none,
     * `first` is PLAN_NONE. */
    uint32_t first, n;
};

/* Where to find all tasks of one kind for one layer (or decision group) and one training step. */
struct task_entry {
    uint32_t first, n; /* first element and count, in graph_index.tasks */
};

/* Finds a tensor or a task in constant time. Both arrays are indexed by [step][kind][of], where `of` is a
 * layer or a decision group. */
struct graph_index {
    struct tensor_entry *tensors;
    struct task_entry *task_entries;
    uint32_t *tasks; /* indices in graph.tasks; PLAN_NONE: no such task */
};

/* A graph under construction. Its lists grow, and at the end they are copied into the graph. */
struct builder {
    struct graph *g;
    /* The training step whose tensors or tasks are being added. */
    uint32_t step;
    VEC(struct graph_tensor) tensors;
    VEC(struct graph_task) tasks;
    VEC(struct graph_operand) operands;
    /* Lists of layers that share weights W and have a backward pass. next_use[l] is the layer after layer l
     * in its list, or PLAN_NONE. */
    uint32_t *next_use;
};

/* ---- kinds of tensors ---- */

/* Returns whether a tensor of this kind belongs to a decision group. All other kinds belong to a layer. */
static bool is_of_group(enum tensor_kind kind)
{
    return kind == TENSOR_DECISION || kind == TENSOR_GROUP;
}

static bool is_persistent(enum tensor_kind kind)
{
    return kind == TENSOR_W || kind == TENSOR_K || kind == TENSOR_B || kind == TENSOR_GROUP;
}

/* Returns whether there is one tensor of this kind for each micro-batch. */
static bool is_per_micro(enum tensor_kind kind)
{
    switch (kind) {
    case TENSOR_X:
    case TENSOR_Y:
    case TENSOR_DX:
    case TENSOR_S:
    case TENSOR_WORK:
    case TENSOR_ROOM:
    case TENSOR_SCRATCH:
    case TENSOR_STAT:
    case TENSOR_TARGET:
    case TENSOR_RESULT:
        return true;
    default:
        return false;
    }
}

static struct tensor_entry *tensor_entry(const struct graph *g, enum tensor_kind kind, uint32_t of,
                                         uint32_t step)
{
    size_t row = (size_t)(is_persistent(kind) ? 0 : step) * TENSOR_KIND_COUNT + kind;
    return &g->index->tensors[row * g->n_layers + of];
}

static struct task_entry *task_entry(const struct graph *g, enum instr_kind kind, uint32_t of, uint32_t step)
{
    return &g->index->task_entries[((size_t)step * INSTR_KIND_COUNT + kind) * g->n_layers + of];
}

static uint32_t replica_micros(const struct graph *g, uint32_t layer)
{
    return graph_micros(g, layer) / g->n_replicas;
}

/* ---- tensors ---- */

/* The tensors that one call of add_tensor adds: all tensors of one kind for one layer or decision group, in
 * one training step. */
struct tensor_set {
    enum tensor_kind kind;
    uint32_t of; /* the layer, or the decision group */
    /* How many tensors there are: one for each replica, one for each micro-batch, or just one. This depends
     * on the kind. */
    uint32_t count;
    /* Size of each tensor in bytes. If this is 0, no tensors are added. */
    uint64_t bytes;
    uint32_t writes; /* per training step */
    uint32_t pieces; /* 0 means 1 */
    bool external;
};

/* Returns the type of a tensor's elements. Returns DTYPE_U8 for tensors that are C structs, and for blocks of
 * several arrays. */
static enum dtype tensor_dtype(const struct graph *g, enum tensor_kind kind, uint32_t of)
{
    const struct layer_sizes *s = &g->layers[of].size;
    switch (kind) {
    case TENSOR_W:
        return s->w_dtype;
    case TENSOR_DW:
        return g->layers[of].dw_dtype;
    case TENSOR_X:
    case TENSOR_DX:
        return s->x_dtype;
    case TENSOR_Y:
        return s->y_dtype;
    case TENSOR_TARGET:
        return s->target_dtype;
    case TENSOR_SUMSQ:
        return DTYPE_F64;
    default:
        return DTYPE_U8;
    }
}

static void add_tensor(struct builder *b, const struct tensor_set *t)
{
    struct graph *g = b->g;
    if (t->bytes == 0)
        return;
    bool per_replica = t->kind == TENSOR_DW, per_micro = is_per_micro(t->kind),
         persistent = is_persistent(t->kind), of_group = is_of_group(t->kind);
    *tensor_entry(g, t->kind, t->of, b->step) = (struct tensor_entry){(tensor_id)b->tensors.n, t->count};
    bounded_poll_steps(t->count);
    for (uint32_t j = 0; j < t->count; j++) {
        uint32_t writes = per_replica && j == 0 ? t->writes + g->n_replicas - 1 : t->writes;
        vec_push(&b->tensors, (struct graph_tensor){
                                  .kind = t->kind,
                                  .layer = of_group ? PLAN_NONE : t->of,
                                  .micro = per_micro ? j : PLAN_NONE,
                                  .replica = per_replica ? j
                                             : per_micro ? j / (t->count / g->n_replicas)
                                                         : PLAN_NONE,
                                  .step = persistent ? PLAN_NONE : b->step,
                                  .group = of_group ? t->of : PLAN_NONE,
                                  .dtype = tensor_dtype(g, t->kind, t->of),
                                  .bytes = t->bytes,
                                  .pieces = t->pieces > 0 ? t->pieces : 1,
                                  .writes_per_cycle = persistent ? writes * g->steps : writes,
                                  .persistent = persistent,
                                  .external = t->external,
                              });
    }
}

/* Returns whether `layer` is the first of the layers that read the output of the same layer. The tensors Y
 * are added only for their first reader. */
static bool is_first_reader(const struct graph *g, uint32_t layer)
{
    uint32_t input = g->layers[layer].input, from;
    if (input == PLAN_NONE || !graph_has_fwd(g, layer))
        return false;
    from = g->layers[input].original;
    for (uint32_t l = from + 1; l < layer; l++) {
        uint32_t other = g->layers[l].input;
        if (other != PLAN_NONE && g->layers[other].original == from && graph_has_fwd(g, l))
            return false;
    }
    return true;
}

/* Returns whether there is an X that this layer reads, in this graph or in the training graph of the same
 * layers. */
static bool has_source(const struct graph_layer *gl)
{
    return gl->input == PLAN_NONE || gl->source > 0;
}

/* Returns the first layer with this source. In the tensor X, `layer` is the number of this layer. */
static uint32_t first_loaded(const struct graph *g, uint32_t source)
{
    uint32_t l = 0;
    while (l < g->n_layers && !(has_source(&g->layers[l]) && g->layers[l].source == source))
        l++;
    return l;
}

/* Adds the tensors of a layer's input: an output Y, or the X that the loader fills. Does not add them if an
 * earlier layer has the same input. */
static void add_input_tensors(struct builder *b, uint32_t l)
{
    const struct graph *g = b->g;
    const struct graph_layer *gl = &g->layers[l];
    uint32_t least, most = graph_input_rows(g, l, &least);
    struct tensor_set t = {
        .kind = TENSOR_X,
        .of = l,
        .count = (uint32_t)((uint64_t)g->rows * g->n_micro / most),
        .bytes = gl->size.x,
        .writes = 1,
        .pieces = most / least,
        .external = true,
    };
    if (has_source(gl) && graph_has_fwd(g, l) && first_loaded(g, gl->source) == l)
        add_tensor(b, &t);
    if (!is_first_reader(g, l))
        return;
    t.kind = TENSOR_Y;
    t.of = g->layers[gl->input].original;
    t.external = false;
    add_tensor(b, &t);
}

/* Adds those tensors of layer `l` that live only within a training step. */
static void add_layer_tensors(struct builder *b, uint32_t l)
{
    const struct graph *g = b->g;
    const struct graph_layer *gl = &g->layers[l];
    const struct layer_sizes *s = &gl->size;
    uint32_t micros = graph_micros(g, l), least, most = graph_input_rows(g, l, &least),
             inputs = (uint32_t)((uint64_t)g->rows * g->n_micro / most);
    if (gl->backward)
        add_tensor(b, &(struct tensor_set){TENSOR_DW, l, g->n_replicas, gl->dw_bytes, replica_micros(g, l)});
    if (graph_decides(g, l) && graph_trains(g, l))
        add_tensor(b, &(struct tensor_set){TENSOR_SUMSQ, l, 1, dtype_size(DTYPE_F64), 1});
    add_input_tensors(b, l);
    add_tensor(b, &(struct tensor_set){TENSOR_S, l, micros, s->s, 1});
    add_tensor(b, &(struct tensor_set){TENSOR_WORK, l, micros, s->scratch_fwd, 1});
    add_tensor(b, &(struct tensor_set){TENSOR_ROOM, l, micros, s->room, 1});
    if (gl->folds)
        add_tensor(b, &(struct tensor_set){TENSOR_STAT, l, micros, gl->b_bytes, 1});
    if (gl->returns)
        add_tensor(b, &(struct tensor_set){TENSOR_DX, l, inputs, s->x, 1, most / least});
    if (gl->backward)
        add_tensor(b, &(struct tensor_set){TENSOR_SCRATCH, l, micros, s->scratch_bwd, 1});
}

/* Adds the tensors that the loader writes or the trainer reads: targets, results, decisions, and outputs that
 * no layer reads. X is left out here, because add_input_tensors adds it. */
static void add_end_tensors(struct builder *b)
{
    const struct graph *g = b->g;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        const struct graph_layer *gl = &g->layers[l];
        uint32_t micros = graph_micros(g, l);
        if (gl->is_loss) {
            add_tensor(b, &(struct tensor_set){TENSOR_TARGET, l, micros, gl->size.target, 1, 1, true});
            add_tensor(b, &(struct tensor_set){TENSOR_RESULT, l, micros, gl->size.result, 1, 1, true});
        } else if (graph_has_fwd(g, l) && tensor_entry(g, TENSOR_Y, l, b->step)->first == PLAN_NONE) {
            add_tensor(b, &(struct tensor_set){TENSOR_Y, l, micros, gl->size.y, 1, 1, true});
        }
    }
    for (uint32_t i = 0; i < g->n_groups; i++)
        if (g->groups[i].decision)
            add_tensor(b,
                       &(struct tensor_set){TENSOR_DECISION, i, 1, sizeof(struct step_decision), 1, 1, true});
}

/* Adds all tensors. The persistent tensors W, K and B come first, so that all graphs of a model give them the
 * same places in host memory. */
static void add_tensors(struct builder *b)
{
    struct graph *g = b->g;
    uint32_t update = g->training ? 1 : 0;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        const struct graph_layer *gl = &g->layers[l];
        if (gl->tied)
            *tensor_entry(g, TENSOR_W, l, 0) = *tensor_entry(g, TENSOR_W, gl->owner, 0);
        else
            add_tensor(b, &(struct tensor_set){TENSOR_W, l, 1, gl->size.w, gl->n_uses > 0 ? update : 0});
        add_tensor(b, &(struct tensor_set){TENSOR_K, l, 1, gl->k_bytes, update});
        add_tensor(b, &(struct tensor_set){TENSOR_B, l, 1, gl->b_bytes, gl->folds ? update : 0});
    }
    for (b->step = 0; b->step < g->steps; b->step++) {
        for (uint32_t l = 0; l < g->n_layers; l++)
            add_layer_tensors(b, l);
        add_end_tensors(b);
    }
    b->step = 0;
    for (uint32_t i = 0; i < g->n_groups; i++)
        add_tensor(b, &(struct tensor_set){TENSOR_GROUP, i, 1, g->groups[i].state_bytes, update});
}

/* ---- operands ---- */

/* The arguments of add_operand: which tensor a task uses, and how. */
struct use {
    enum role role;
    enum tensor_kind kind;
    uint32_t of, which; /* as in graph_tensor_find */
    enum access access;
    uint32_t read_version, write_version; /* counts within the training step */
    bool optional;
};

/* Adds an operand to the task that was added last. Does nothing if the graph has no such tensor. */
static void add_operand(struct builder *b, const struct use *u)
{
    tensor_id t = graph_tensor_find(b->g, u->kind, u->of, u->which, b->step);
    if (t == PLAN_NONE)
        return;
    const struct graph_tensor *gt = &b->tensors.at[t];
    /* The versions in `u` count only the writes of this training step. Earlier steps have also written to
     * persistent tensors. */
    uint32_t before = gt->persistent ? gt->writes_per_cycle / b->g->steps * b->step : 0;
    vec_push(&b->operands, (struct graph_operand){
                               .tensor = t,
                               .access = u->access,
                               .role = u->role,
                               .optional = u->optional,
                               .read_version = u->access == ACCESS_WRITE ? 0 : before + u->read_version,
                               .write_version = u->access == ACCESS_READ ? 0 : before + u->write_version,
                               .end = gt->bytes,
                           });
    b->tasks.at[b->tasks.n - 1].n_operands++;
}

static void add_read(struct builder *b, enum role role, enum tensor_kind kind, uint32_t of, uint32_t which,
                     uint32_t version)
{
    add_operand(b, &(struct use){role, kind, of, which, ACCESS_READ, version, 0, false});
}

/* Adds an operand that the task writes. The plan chooses whether a FWD writes S and TENSOR_ROOM or only
 * TENSOR_WORK, so these are optional. */
static void add_write(struct builder *b, enum role role, enum tensor_kind kind, uint32_t of, uint32_t which)
{
    bool optional =
        kind == TENSOR_S || kind == TENSOR_ROOM ||
        (kind == TENSOR_WORK && graph_tensor_find(b->g, TENSOR_S, of, which, b->step) != PLAN_NONE);
    add_operand(b, &(struct use){role, kind, of, which, ACCESS_WRITE, 0, 1, optional});
}

/* Adds a Y, X or dX of `rows` rows as an operand of a task of layer `user`. The task may use only a piece of
 * the tensor. */
static void add_activation(struct builder *b, const struct use *u, uint32_t rows, uint32_t user,
                           uint32_t micro)
{
    uint32_t pieces = rows / b->g->layers[user].rows;
    size_t before = b->operands.n;
    struct use whole = *u;
    whole.which = micro / pieces;
    add_operand(b, &whole);
    if (b->operands.n == before)
        return;
    struct graph_operand *o = &b->operands.at[before];
    uint64_t piece = o->end / pieces;
    o->begin = micro % pieces * piece;
    o->end = o->begin + piece;
}

/* Adds the input of layer `l` to the operands that the current task reads. */
static void add_input(struct builder *b, uint32_t l, uint32_t micro)
{
    const struct graph *g = b->g;
    uint32_t input = g->layers[l].input, least, rows = graph_input_rows(g, l, &least);
    struct use u = {.role = ROLE_X, .access = ACCESS_READ, .read_version = 1};
    u.kind = input == PLAN_NONE ? TENSOR_X : TENSOR_Y;
    u.of = input == PLAN_NONE ? l : g->layers[input].original;
    add_activation(b, &u, rows, l, micro);
}

/* Returns the number of rows in each output tensor Y of layer `l`: the larger of the micro-batch sizes of its
 * writer and its first reader. */
static uint32_t output_rows(const struct graph *g, uint32_t l)
{
    for (uint32_t r = l + 1; r < g->n_layers; r++) {
        uint32_t input = g->layers[r].input, least;
        if (input != PLAN_NONE && g->layers[input].original == l)
            return graph_input_rows(g, r, &least);
    }
    return g->layers[l].rows;
}

/* ---- tasks ---- */

static void begin_task(struct builder *b, enum instr_kind kind, uint32_t of, uint32_t micro, uint32_t replica)
{
    struct graph *g = b->g;
    uint32_t which = micro != PLAN_NONE ? micro : replica != PLAN_NONE ? replica : 0;
    bool decide = kind == INSTR_DECIDE;
    bounded_poll();
    g->index->tasks[task_entry(g, kind, of, b->step)->first + which] = (uint32_t)b->tasks.n;
    vec_push(&b->tasks, (struct graph_task){
                            .kind = kind,
                            .layer = decide ? PLAN_NONE : of,
                            .micro = micro,
                            .replica = replica,
                            .step = b->step,
                            .group = decide ? of : g->layers[of].group,
                            .place = kind == INSTR_FWD || kind == INSTR_BWD ? PLACE_DEVICE : PLACE_ANY,
                            .operand = (uint32_t)b->operands.n,
                        });
}

static void add_fwd(struct builder *b, uint32_t l, uint32_t j)
{
    const struct graph *g = b->g;
    begin_task(b, INSTR_FWD, l, j, graph_replica(g, l, j));
    if (g->training && g->layers[l].loss_in_bwd) {
        add_input(b, l, j);
        return;
    }
    add_read(b, ROLE_W, TENSOR_W, l, PLAN_NONE, 0);
    add_read(b, ROLE_B, TENSOR_B, l, PLAN_NONE, 0);
    add_input(b, l, j);
    if (g->layers[l].is_loss) {
        add_read(b, ROLE_TARGET, TENSOR_TARGET, l, j, 1);
        add_write(b, ROLE_RESULT, TENSOR_RESULT, l, j);
    } else {
        const struct use y = {ROLE_Y, TENSOR_Y, l, 0, ACCESS_WRITE, 0, 1, false};
        add_activation(b, &y, output_rows(g, l), l, j);
    }
    add_write(b, ROLE_S, TENSOR_S, l, j);
    add_write(b, ROLE_SCRATCH, TENSOR_WORK, l, j);
    add_write(b, ROLE_SAVE_WORK, TENSOR_ROOM, l, j);
    if (g->training)
        add_write(b, ROLE_STAT, TENSOR_STAT, l, j);
}

/* Adds the BWD task of layer `l` for micro-batch `j`. The BWD of a twin reads the saved values S of the
 * twin's original. */
static void add_bwd(struct builder *b, uint32_t l, uint32_t j)
{
    const struct graph *g = b->g;
    const struct graph_layer *gl = &g->layers[l];
    uint32_t replica = graph_replica(g, l, j), nth = j % replica_micros(g, l), least;
    begin_task(b, INSTR_BWD, l, j, replica);
    add_read(b, ROLE_W, TENSOR_W, l, PLAN_NONE, 0);
    add_read(b, ROLE_B, TENSOR_B, gl->original, PLAN_NONE, 0);
    add_input(b, l, j);
    add_read(b, ROLE_S, TENSOR_S, gl->original, j, 1);
    if (gl->is_loss) {
        add_read(b, ROLE_TARGET, TENSOR_TARGET, l, j, 1);
        if (g->groups[gl->group].scales_loss)
            add_read(b, ROLE_GROUP, TENSOR_GROUP, gl->group, PLAN_NONE, 0);
    } else {
        const struct use dy = {ROLE_DY, TENSOR_DX, gl->reader, 0, ACCESS_READ, 1, 0, false};
        add_activation(b, &dy, graph_input_rows(g, gl->reader, &least), l, j);
    }
    add_operand(b, &(struct use){ROLE_DW, TENSOR_DW, l, replica, nth == 0 ? ACCESS_WRITE : ACCESS_RW, nth,
                                 nth + 1, false});
    if (gl->returns) {
        const struct use dx = {ROLE_DX, TENSOR_DX, l, 0, ACCESS_WRITE, 0, 1, false};
        add_activation(b, &dx, graph_input_rows(g, l, &least), l, j);
    }
    if (gl->loss_in_bwd)
        add_write(b, ROLE_RESULT, TENSOR_RESULT, l, j);
    add_write(b, ROLE_SCRATCH, TENSOR_SCRATCH, l, j);
}

/* Lets the current task read the complete gradient of the weights of `layer`: its own dW, and the dW of each
 * other layer that uses the same weights, in ascending order of layers. Example: an embedding (layer 0) and
 * the output layer 9 share one W. The update of layer 0 then reads the dW of layer 0 and the dW of layer 9.
 *
 * Only replica 0 has the complete sums. Each of them was written once for each micro-batch of replica 0, and
 * then once for each other replica that a RED task added. */
static void read_gradients(struct builder *b, uint32_t layer)
{
    struct graph *g = b->g;
    for (uint32_t l = layer; l != PLAN_NONE; l = b->next_use[l])
        add_read(b, ROLE_DW, TENSOR_DW, l, 0, replica_micros(g, l) + g->n_replicas - 1);
}

/* Adds the RED tasks. In each layer, the dW of replica 1 is added to the dW of replica 0, then the dW of
 * replica 2, and so on. */
static void add_reductions(struct builder *b)
{
    struct graph *g = b->g;
    for (uint32_t l = 0; l < g->n_layers; l++)
        for (uint32_t r = 1; r < g->n_replicas && g->layers[l].backward && g->layers[l].size.w > 0; r++) {
            uint32_t done = replica_micros(g, l);
            begin_task(b, INSTR_RED, l, PLAN_NONE, r);
            add_operand(b, &(struct use){ROLE_DW, TENSOR_DW, l, 0, ACCESS_RW, done + r - 1, done + r, false});
            add_read(b, ROLE_DW_OTHER, TENSOR_DW, l, r, done);
        }
}

/* Adds the NORM tasks of a decision group, which compute the squared norms of the gradients, if the group's
 * decision depends on gradients. */
static void add_norms(struct builder *b, uint32_t group)
{
    struct graph *g = b->g;
    for (uint32_t l = 0; g->groups[group].decision && l < g->n_layers; l++) {
        if (!graph_trains(g, l) || g->layers[l].group != group)
            continue;
        begin_task(b, INSTR_NORM, l, PLAN_NONE, PLAN_NONE);
        read_gradients(b, l);
        add_write(b, ROLE_SUMSQ, TENSOR_SUMSQ, l, PLAN_NONE);
    }
}

/* Adds the DECIDE task of a decision group, which decides once per step whether the group's updates are
 * applied and how much its gradients are scaled down. The task reads the squared norms of the group, and
 * those of all groups with the same loss scale, if there are any. It writes the decision for the trainer, and
 * advances the group state (GROUP) for the updates. A group in which no update needs the group state has no
 * DECIDE. */
static void add_decide(struct builder *b, uint32_t group)
{
    struct graph *g = b->g;
    if (g->groups[group].state_bytes == 0)
        return;
    begin_task(b, INSTR_DECIDE, group, PLAN_NONE, PLAN_NONE);
    for (uint32_t l = 0; l < g->n_layers; l++)
        if (g->groups[g->layers[l].group].scale == g->groups[group].scale)
            add_read(b, ROLE_SUMSQ, TENSOR_SUMSQ, l, PLAN_NONE, 1);
    add_write(b, ROLE_DECISION, TENSOR_DECISION, group, PLAN_NONE);
    add_operand(b, &(struct use){ROLE_GROUP, TENSOR_GROUP, group, PLAN_NONE, ACCESS_RW, 0, 1, false});
}

/* Adds the UPD task of layer `l`, which updates W and K with the gradients, and B with the statistics of all
 * micro-batches. */
static void add_update(struct builder *b, uint32_t l)
{
    struct graph *g = b->g;
    begin_task(b, INSTR_UPD, l, PLAN_NONE, PLAN_NONE);
    if (graph_trains(g, l)) {
        read_gradients(b, l);
        add_read(b, ROLE_GROUP, TENSOR_GROUP, g->layers[l].group, PLAN_NONE, 1);
        add_operand(b, &(struct use){ROLE_W, TENSOR_W, l, PLAN_NONE, ACCESS_RW, 0, 1, false});
        add_operand(b, &(struct use){ROLE_K, TENSOR_K, l, PLAN_NONE, ACCESS_RW, 0, 1, false});
    }
    if (!g->layers[l].folds)
        return;
    for (uint32_t j = 0; j < graph_micros(g, l); j++)
        add_read(b, ROLE_STAT, TENSOR_STAT, l, j, 1);
    add_operand(b, &(struct use){ROLE_B, TENSOR_B, l, PLAN_NONE, ACCESS_RW, 0, 1, false});
}

/* Adds the tasks at the end of a training step. For each decision group, these are the norms, then the
 * decision, then the updates. */
static void add_updates(struct builder *b)
{
    struct graph *g = b->g;
    for (uint32_t i = 0; i < g->n_groups; i++) {
        for (uint32_t k = i; k < g->n_groups; k++)
            if (g->groups[k].scale == i)
                add_norms(b, k);
        add_decide(b, i);
        for (uint32_t l = 0; l < g->n_layers; l++)
            if (graph_updates(g, l) && g->layers[l].group == i)
                add_update(b, l);
    }
}

static uint32_t common_divisor(uint32_t a, uint32_t b)
{
    return b == 0 ? a : common_divisor(b, a % b);
}

/* Adds the FWD and BWD tasks of one training step, in blocks. A block is the smallest number of rows that
 * contains only whole micro-batches of every layer. */
static void add_passes(struct builder *b)
{
    struct graph *g = b->g;
    uint32_t blocks = g->n_micro;
    for (uint32_t l = 0; l < g->n_layers; l++)
        blocks = common_divisor(blocks, graph_micros(g, l));
    for (uint32_t block = 0; block < blocks; block++) {
        for (uint32_t l = 0; l < g->n_layers; l++)
            for (uint32_t n = graph_micros(g, l) / blocks, j = block * n;
                 graph_has_fwd(g, l) && j < (block + 1) * n; j++)
                add_fwd(b, l, j);
        for (uint32_t l = g->n_layers; g->training && l-- > 0;)
            for (uint32_t n = graph_micros(g, l) / blocks, j = block * n;
                 g->layers[l].backward && j < (block + 1) * n; j++)
                add_bwd(b, l, j);
    }
}

static void add_tasks(struct builder *b)
{
    struct graph *g = b->g;
    for (b->step = 0; b->step < (g->training ? g->steps : 1); b->step++) {
        add_passes(b);
        if (!g->training)
            continue;
        add_reductions(b);
        add_updates(b);
    }
}

/* ---- the whole graph ---- */

/* Returns how many tasks of kind `kind` a layer or decision group can have in one training step. */
static uint32_t tasks_of(const struct graph *g, uint32_t kind, uint32_t layer)
{
    return kind == INSTR_FWD || kind == INSTR_BWD ? graph_micros(g, layer)
           : kind == INSTR_RED                    ? g->n_replicas
                                                  : 1;
}

/* Allocates the index, which is still empty. */
static void new_index(struct graph *g)
{
    struct graph_index *index = arena_alloc(g->arena, sizeof *index);
    const size_t rows = (size_t)g->steps * g->n_layers;
    uint32_t n = 0;
    g->index = index;
    index->tensors = arena_alloc_array(g->arena, rows * TENSOR_KIND_COUNT, sizeof *index->tensors);
    for (size_t i = 0; i < rows * TENSOR_KIND_COUNT; i++)
        index->tensors[i].first = PLAN_NONE;
    index->task_entries = arena_alloc_array(g->arena, rows * INSTR_KIND_COUNT, sizeof *index->task_entries);
    for (uint32_t s = 0; s < g->steps; s++)
        for (uint32_t k = 0; k < INSTR_KIND_COUNT; k++)
            for (uint32_t l = 0; l < g->n_layers; l++) {
                *task_entry(g, (enum instr_kind)k, l, s) = (struct task_entry){n, tasks_of(g, k, l)};
                n += tasks_of(g, k, l);
            }
    index->tasks = arena_alloc_array(g->arena, n, sizeof *index->tasks);
    memset(index->tasks, 0xff, n * sizeof *index->tasks);
}

/* Fills b->next_use. Each list begins with a layer that owns weights. Then follow the tied layers that use
 * these weights and have a backward pass, in ascending order. */
static void link_uses(struct builder *b)
{
    const struct graph *g = b->g;
    /* last[l] is the last layer in the list of layer l, which owns weights. */
    uint32_t *last = xmalloc(g->n_layers * sizeof *last);
    b->next_use = xmalloc(g->n_layers * sizeof *b->next_use);
    for (uint32_t l = 0; l < g->n_layers; l++) {
        last[l] = l;
        b->next_use[l] = PLAN_NONE;
        if (!g->layers[l].tied || !g->layers[l].backward)
            continue;
        b->next_use[last[g->layers[l].owner]] = l;
        last[g->layers[l].owner] = l;
    }
    xfree(last);
}

/* Adds the tensors and the tasks to graph `g`. The layers of the graph must already be described. */
static void fill_graph(struct graph *g)
{
    struct builder b = {.g = g};
    link_uses(&b);
    new_index(g);
    add_tensors(&b);
    add_tasks(&b);
    g->tensors = arena_memdup(g->arena, b.tensors.at, b.tensors.n * sizeof *b.tensors.at);
    g->tasks = arena_memdup(g->arena, b.tasks.at, b.tasks.n * sizeof *b.tasks.at);
    g->operands = arena_memdup(g->arena, b.operands.at, b.operands.n * sizeof *b.operands.at);
    g->n_tensors = (uint32_t)b.tensors.n;
    g->n_tasks = (uint32_t)b.tasks.n;
    g->n_operands = (uint32_t)b.operands.n;
    vec_free(&b.tensors);
    vec_free(&b.tasks);
    vec_free(&b.operands);
    xfree(b.next_use);
}

int graph_describe(const struct graph_config *config, struct graph **ret, struct err *err)
{
    return graph_describe_model(config, ret, err);
}

int graph_build(const struct graph_config *config, struct graph **ret, struct err *err)
{
    int r = graph_describe_model(config, ret, err);
    if (r == 0)
        fill_graph(*ret);
    return r;
}

int graph_build_sizes(const struct table *t, const struct graph_sizes *sizes, bool training,
                      struct graph **ret, struct err *err)
{
    int r = graph_describe_table(t, sizes, training, ret, err);
    if (r == 0)
        fill_graph(*ret);
    return r;
}

int graph_build_table(const struct table *t, uint32_t micro_batch, uint32_t n_micro, bool training,
                      struct graph **ret, struct err *err)
{
    uint64_t batch = (uint64_t)micro_batch * n_micro;
    if (micro_batch == 0 || n_micro == 0 || batch > UINT32_MAX)
        return err_set_at(err, -EINVAL, "batch", "a step needs at least one row and one micro-batch");
    uint32_t *rows = xcalloc(t->n_layers, sizeof *rows);
    for (uint32_t l = 0; l < t->n_layers; l++)
        rows[l] = micro_batch;
    const struct graph_sizes sizes = {.batch = (uint32_t)batch, .rows = rows};
    int r = graph_build_sizes(t, &sizes, training, ret, err);
    xfree(rows);
    return r;
}

void graph_destroy(struct graph *g)
{
    if (g != NULL)
        arena_destroy(g->arena);
}

/* ---- finding ---- */

tensor_id graph_tensor_find(const struct graph *g, enum tensor_kind kind, uint32_t of, uint32_t which,
                            uint32_t step)
{
    if (of >= (is_of_group(kind) ? g->n_groups : g->n_layers) || (unsigned)kind >= TENSOR_KIND_COUNT ||
        step >= g->steps)
        return PLAN_NONE;
    if (kind == TENSOR_X && has_source(&g->layers[of]))
        of = first_loaded(g, g->layers[of].source);
    const struct tensor_entry *e = tensor_entry(g, kind, of, step);
    if (e->first == PLAN_NONE || which == PLAN_NONE)
        return e->first;
    return which < e->n ? e->first + which : PLAN_NONE;
}

uint32_t graph_task_find(const struct graph *g, enum instr_kind kind, uint32_t of, uint32_t which,
                         uint32_t step)
{
    if (kind == INSTR_REC)
        kind = INSTR_FWD;
    if (of >= (kind == INSTR_DECIDE ? g->n_groups : g->n_layers) || (unsigned)kind >= INSTR_KIND_COUNT ||
        step >= g->steps)
        return PLAN_NONE;
    const struct task_entry *e = task_entry(g, kind, of, step);
    if (which == PLAN_NONE)
        which = 0;
    return which < e->n ? g->index->tasks[e->first + which] : PLAN_NONE;
}

bool graph_read_before(const struct graph *g, uint32_t layer, uint32_t end)
{
    for (uint32_t l = layer + 1; l < end; l++)
        if (g->layers[l].input != PLAN_NONE && g->layers[g->layers[l].input].original == layer)
            return true;
    return false;
}

bool graph_saves(const struct graph *g, uint32_t layer)
{
    bool saves = g->training && g->layers[layer].backward;
    for (uint32_t l = layer + 1; g->training && !saves && l < g->n_layers; l++)
        saves = g->layers[l].original == layer && g->layers[l].backward;
    return saves;
}
