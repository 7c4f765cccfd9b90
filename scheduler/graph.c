/* Builds the task graph of backpropagation over a chain of layers, as graph.h describes it.
 *
 * The order of calls is: check the input, describe the layers (sizes and costs), then add the tensors,
 * then the tasks with their operands. The lists grow in a struct builder and are copied into the
 * graph's arena at the end.
 *
 * All sizes that depend on the user's numbers are checked for overflow here. The later stages of planning
 * rely on this and add and multiply sizes without checks.
 */
#include "scheduler/graph.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/bounded.h"
#include "base/checked.h"
#include "base/vec.h"
#include "scheduler/table.h"

#define GRAPH_MAX_BYTES (1ull << 53)

/* The index entry for kind number k and layer l. The tensor kind and the task kind with the number k share
 * this entry. */
struct graph_entry {
    /* Id of the first tensor, or PLAN_NONE, and the number of tensors. Their ids are consecutive. */
    uint32_t tensor, n_tensors;
    uint32_t task, n_tasks; /* first element and count, in graph_index.tasks */
};

/* Finds a tensor or a task in constant time, by its kind, its layer, and its micro-batch or replica. */
struct graph_index {
    /* Indexed by [kind][layer]. A tensor kind and a task kind with the same number share an entry. */
    struct graph_entry *entries;
    uint32_t *tasks; /* indices in graph.tasks; PLAN_NONE: no such task */
};

/* A graph under construction. Its lists still grow and are copied into the graph at the end. */
struct builder {
    struct graph *g;
    VEC(struct graph_tensor) tensors;
    VEC(struct graph_task) tasks;
    VEC(struct graph_operand) operands;
    /* Per layer: the next layer that uses the same weights W, or PLAN_NONE. */
    uint32_t *next_use;
};

static bool has_dx(const struct graph *g, uint32_t layer)
{
    return g->first_trained < g->n_layers && layer > g->first_trained;
}

static bool is_loss(const struct graph *g, uint32_t layer)
{
    return layer == g->n_layers - 1;
}

/* ---- tensors ---- */

/* Returns whether tensors of this kind belong to no particular layer. The index stores such tensors under the
 * last layer. */
static bool is_of_no_layer(enum tensor_kind kind)
{
    return kind == TENSOR_TARGET || kind == TENSOR_RESULT || kind == TENSOR_DECISION || kind == TENSOR_GROUP;
}

static struct graph_entry *entry_of(const struct graph *g, uint32_t kind, uint32_t layer)
{
    return &g->index->entries[(size_t)kind * g->n_layers + layer];
}

static uint32_t replica_micros(const struct graph *g, uint32_t layer)
{
    return graph_micros(g, layer) / g->n_replicas;
}

/* Returns the number of rows in one X tensor of a layer. X connects the layer with the layer before it, and
 * it has the rows of the larger of their two micro-batches. */
static uint32_t input_rows(const struct graph *g, uint32_t layer)
{
    uint32_t own = g->layers[layer].rows, before = layer > 0 ? g->layers[layer - 1].rows : 0;
    return own > before ? own : before;
}

/* Returns the number of pieces in one X tensor of a layer. X connects two layers: the larger of their
 * micro-batch sizes, divided by the smaller, is the number of pieces. */
static uint32_t input_pieces(const struct graph *g, uint32_t layer)
{
    uint32_t own = g->layers[layer].rows, before = layer > 0 ? g->layers[layer - 1].rows : own;
    return own > before ? own / before : before / own;
}

/* Adds `count` tensors of one kind for one layer: one per replica, one per micro-batch, or just one,
 * depending on the kind. Adds nothing if `bytes` is 0. */
static void add_tensor(struct builder *b, enum tensor_kind kind, uint32_t layer, uint32_t count,
                       uint64_t bytes, uint32_t writes)
{
    struct graph *g = b->g;
    if (bytes == 0)
        return;
    bool per_replica = kind == TENSOR_DW;
    bool per_micro = kind == TENSOR_X || kind == TENSOR_DX || kind == TENSOR_S || kind == TENSOR_WORK ||
                     kind == TENSOR_ROOM || kind == TENSOR_SCRATCH || kind == TENSOR_TARGET ||
                     kind == TENSOR_RESULT;
    uint32_t pieces = kind == TENSOR_X || kind == TENSOR_DX ? input_pieces(g, layer) : 1;
    bool persistent = kind == TENSOR_W || kind == TENSOR_K || kind == TENSOR_B || kind == TENSOR_GROUP;
    bool external = (kind == TENSOR_X && layer == 0) || kind == TENSOR_TARGET || kind == TENSOR_RESULT ||
                    kind == TENSOR_DECISION;
    bool no_layer = is_of_no_layer(kind);
    entry_of(g, kind, layer)->tensor = (tensor_id)b->tensors.n;
    entry_of(g, kind, layer)->n_tensors = count;
    bounded_poll_steps(count);
    for (uint32_t j = 0; j < count; j++)
        vec_push(&b->tensors,
                 (struct graph_tensor){
                     .kind = kind,
                     .layer = no_layer ? PLAN_NONE : layer,
                     .micro = per_micro ? j : PLAN_NONE,
                     .replica = per_replica ? j
                                : per_micro ? j / (count / g->n_replicas)
                                            : PLAN_NONE,
                     .bytes = bytes,
                     .pieces = pieces,
                     .writes_per_step = per_replica && j == 0 ? writes + g->n_replicas - 1 : writes,
                     .persistent = persistent,
                     .external = external,
                 });
}

/* Adds all tensors. W, K and B come first, so that their offsets in host memory are the same in every plan of
 * the model. Training and evaluation graphs have the same tensors with the same ids. */
static void add_tensors(struct builder *b, bool decision, uint64_t group_bytes)
{
    struct graph *g = b->g;
    uint32_t last = g->n_layers - 1, update = g->training ? 1 : 0;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        if (g->layers[l].tied)
            entry_of(g, TENSOR_W, l)->tensor = entry_of(g, TENSOR_W, g->layers[l].owner)->tensor;
        else
            add_tensor(b, TENSOR_W, l, 1, g->layers[l].size.w, update);
        add_tensor(b, TENSOR_K, l, 1, g->layers[l].k_bytes, update);
        add_tensor(b, TENSOR_B, l, 1, g->layers[l].b_bytes, 0);
    }
    for (uint32_t l = 0; l < g->n_layers; l++) {
        const struct layer_sizes *s = &g->layers[l].size;
        bool backward = l >= g->first_trained;
        uint32_t micros = graph_micros(g, l),
                 inputs = (uint32_t)((uint64_t)micros * g->layers[l].rows / input_rows(g, l));
        add_tensor(b, TENSOR_DW, l, g->n_replicas, s->w, replica_micros(g, l));
        if (decision && graph_updates(g, l))
            add_tensor(b, TENSOR_SUMSQ, l, 1, sizeof(double), 1);
        add_tensor(b, TENSOR_X, l, inputs, s->x, 1);
        add_tensor(b, TENSOR_S, l, micros, s->s, 1);
        add_tensor(b, TENSOR_WORK, l, micros, s->scratch_fwd, 1);
        add_tensor(b, TENSOR_ROOM, l, micros, s->room, 1);
        if (has_dx(g, l))
            add_tensor(b, TENSOR_DX, l, inputs, s->x, 1);
        if (backward)
            add_tensor(b, TENSOR_SCRATCH, l, micros, s->scratch_bwd, 1);
    }
    add_tensor(b, TENSOR_TARGET, last, graph_micros(g, last), g->layers[last].size.target, 1);
    add_tensor(b, TENSOR_RESULT, last, graph_micros(g, last), g->layers[last].size.result, 1);
    if (decision)
        add_tensor(b, TENSOR_DECISION, last, 1, sizeof(struct step_decision), 1);
    add_tensor(b, TENSOR_GROUP, last, 1, group_bytes, update);
}

/* ---- tasks ---- */

/* Adds an operand to the last task. Adds nothing if the graph has no such tensor. `which` is the micro-batch
 * or the replica of the tensor. */
static void add_operand(struct builder *b, enum role role, enum tensor_kind kind, uint32_t layer,
                        uint32_t which, enum access access, uint32_t read_version, uint32_t write_version,
                        bool optional)
{
    tensor_id t = graph_tensor_find(b->g, kind, layer, which);
    if (t == PLAN_NONE)
        return;
    uint64_t bytes = b->tensors.at[t].bytes;
    vec_push(&b->operands,
             (struct graph_operand){t, access, role, optional, read_version, write_version, 0, bytes});
    b->tasks.at[b->tasks.n - 1].n_operands++;
}

/* Adds X or dX of layer `of` as an operand of a task of layer `user`. If the tensor has more rows than a
 * micro-batch of `user`, the task uses only one piece of the tensor. */
static void add_input(struct builder *b, enum role role, enum tensor_kind kind, uint32_t of, uint32_t user,
                      uint32_t micro, enum access access)
{
    const struct graph *g = b->g;
    uint32_t pieces = input_rows(g, of) / g->layers[user].rows;
    size_t before = b->operands.n;
    add_operand(b, role, kind, of, micro / pieces, access, access == ACCESS_READ ? 1 : 0,
                access == ACCESS_READ ? 0 : 1, false);
    if (b->operands.n == before)
        return;
    struct graph_operand *o = &b->operands.at[before];
    uint64_t piece = o->end / pieces;
    o->begin = micro % pieces * piece;
    o->end = o->begin + piece;
}

static void add_read(struct builder *b, enum role role, enum tensor_kind kind, uint32_t layer, uint32_t which,
                     uint32_t version)
{
    add_operand(b, role, kind, layer, which, ACCESS_READ, version, 0, false);
}

/* Adds an operand that the task writes. S and both kinds of workspace are optional, because a FWD either
 * saves S and works in TENSOR_ROOM, or saves nothing and works in TENSOR_WORK. */
static void add_write(struct builder *b, enum role role, enum tensor_kind kind, uint32_t layer,
                      uint32_t micro)
{
    bool optional = kind == TENSOR_S || kind == TENSOR_ROOM ||
                    (kind == TENSOR_WORK && graph_tensor_find(b->g, TENSOR_S, layer, micro) != PLAN_NONE);
    add_operand(b, role, kind, layer, micro, ACCESS_WRITE, 0, 1, optional);
}

static void begin_task(struct builder *b, enum instr_kind kind, uint32_t layer, uint32_t micro,
                       uint32_t replica, enum task_place place)
{
    struct graph *g = b->g;
    uint32_t which = micro != PLAN_NONE ? micro : replica != PLAN_NONE ? replica : 0;
    bounded_poll();
    g->index->tasks[entry_of(g, kind, layer == PLAN_NONE ? 0 : layer)->task + which] = (uint32_t)b->tasks.n;
    vec_push(&b->tasks, (struct graph_task){
                            .kind = kind,
                            .layer = layer,
                            .micro = micro,
                            .replica = replica,
                            .place = place,
                            .operand = (uint32_t)b->operands.n,
                        });
}

static void add_fwd(struct builder *b, uint32_t l, uint32_t j)
{
    begin_task(b, INSTR_FWD, l, j, graph_replica(b->g, l, j), PLACE_DEVICE);
    if (b->g->training && b->g->layers[l].loss_in_bwd) {
        add_input(b, ROLE_X, TENSOR_X, l, l, j, ACCESS_READ);
        return;
    }
    add_read(b, ROLE_W, TENSOR_W, l, PLAN_NONE, 0);
    add_read(b, ROLE_B, TENSOR_B, l, PLAN_NONE, 0);
    add_input(b, ROLE_X, TENSOR_X, l, l, j, ACCESS_READ);
    if (is_loss(b->g, l)) {
        add_read(b, ROLE_TARGET, TENSOR_TARGET, l, j, 1);
        add_write(b, ROLE_RESULT, TENSOR_RESULT, l, j);
    } else {
        add_input(b, ROLE_Y, TENSOR_X, l + 1, l, j, ACCESS_WRITE);
    }
    add_write(b, ROLE_S, TENSOR_S, l, j);
    add_write(b, ROLE_SCRATCH, TENSOR_WORK, l, j);
    add_write(b, ROLE_SAVE_WORK, TENSOR_ROOM, l, j);
}

static void add_bwd(struct builder *b, uint32_t l, uint32_t j)
{
    uint32_t replica = graph_replica(b->g, l, j), nth = j % replica_micros(b->g, l);
    begin_task(b, INSTR_BWD, l, j, replica, PLACE_DEVICE);
    add_read(b, ROLE_W, TENSOR_W, l, PLAN_NONE, 0);
    add_read(b, ROLE_B, TENSOR_B, l, PLAN_NONE, 0);
    add_input(b, ROLE_X, TENSOR_X, l, l, j, ACCESS_READ);
    add_read(b, ROLE_S, TENSOR_S, l, j, 1);
    if (is_loss(b->g, l))
        add_read(b, ROLE_TARGET, TENSOR_TARGET, l, j, 1);
    else
        add_input(b, ROLE_DY, TENSOR_DX, l + 1, l, j, ACCESS_READ);
    add_operand(b, ROLE_DW, TENSOR_DW, l, replica, nth == 0 ? ACCESS_WRITE : ACCESS_RW, nth, nth + 1, false);
    if (has_dx(b->g, l))
        add_input(b, ROLE_DX, TENSOR_DX, l, l, j, ACCESS_WRITE);
    if (b->g->layers[l].loss_in_bwd)
        add_write(b, ROLE_RESULT, TENSOR_RESULT, l, j);
    add_write(b, ROLE_SCRATCH, TENSOR_SCRATCH, l, j);
}

/* Makes the current task read the gradient dW of every layer that uses the weights of `layer`. The layers
 * come in ascending order. */
static void read_gradients(struct builder *b, uint32_t layer)
{
    struct graph *g = b->g;
    for (uint32_t l = layer; l != PLAN_NONE; l = b->next_use[l])
        add_read(b, ROLE_DW, TENSOR_DW, l, 0, replica_micros(g, l) + g->n_replicas - 1);
}

/* Adds the RED tasks, which add the gradients dW of all further replicas to the dW of replica 0. */
static void add_reductions(struct builder *b)
{
    struct graph *g = b->g;
    for (uint32_t l = 0; l < g->n_layers; l++)
        for (uint32_t r = 1; r < g->n_replicas && g->layers[l].size.w > 0; r++) {
            uint32_t done = replica_micros(g, l);
            begin_task(b, INSTR_RED, l, PLAN_NONE, r, PLACE_ANY);
            add_operand(b, ROLE_DW, TENSOR_DW, l, 0, ACCESS_RW, done + r - 1, done + r, false);
            add_read(b, ROLE_DW_OTHER, TENSOR_DW, l, r, done);
        }
}

static void add_norms(struct builder *b)
{
    struct graph *g = b->g;
    for (uint32_t l = 0; g->decision && l < g->n_layers; l++) {
        if (!graph_updates(g, l))
            continue;
        begin_task(b, INSTR_NORM, l, PLAN_NONE, PLAN_NONE, PLACE_ANY);
        read_gradients(b, l);
        add_write(b, ROLE_SUMSQ, TENSOR_SUMSQ, l, PLAN_NONE);
    }
}

/* Adds the DECIDE task. It reads the squared norms of all gradients, if there are any. Otherwise GROUP is its
 * only operand. */
static void add_decide(struct builder *b)
{
    struct graph *g = b->g;
    if (!g->has_group)
        return;
    begin_task(b, INSTR_DECIDE, PLAN_NONE, PLAN_NONE, PLAN_NONE, PLACE_HOST);
    for (uint32_t l = 0; l < g->n_layers; l++)
        add_read(b, ROLE_SUMSQ, TENSOR_SUMSQ, l, PLAN_NONE, 1);
    add_write(b, ROLE_DECISION, TENSOR_DECISION, g->n_layers - 1, PLAN_NONE);
    add_operand(b, ROLE_GROUP, TENSOR_GROUP, g->n_layers - 1, PLAN_NONE, ACCESS_RW, 0, 1, false);
}

static void add_updates(struct builder *b)
{
    struct graph *g = b->g;
    add_norms(b);
    add_decide(b);
    for (uint32_t l = 0; l < g->n_layers; l++) {
        if (!graph_updates(g, l))
            continue;
        begin_task(b, INSTR_UPD, l, PLAN_NONE, PLAN_NONE, PLACE_ANY);
        read_gradients(b, l);
        add_read(b, ROLE_GROUP, TENSOR_GROUP, g->n_layers - 1, PLAN_NONE, 1);
        add_operand(b, ROLE_W, TENSOR_W, l, PLAN_NONE, ACCESS_RW, 0, 1, false);
        add_operand(b, ROLE_K, TENSOR_K, l, PLAN_NONE, ACCESS_RW, 0, 1, false);
    }
}

static uint32_t common_divisor(uint32_t a, uint32_t b)
{
    return b == 0 ? a : common_divisor(b, a % b);
}

/* Adds all tasks. FWD and BWD tasks are added block by block. A block is the smallest number of rows that
 * contains whole micro-batches of every layer. If all layers have the same rows, a block is one
 * micro-batch. */
static void add_tasks(struct builder *b)
{
    struct graph *g = b->g;
    uint32_t blocks = g->n_micro;
    for (uint32_t l = 0; l < g->n_layers; l++)
        blocks = common_divisor(blocks, graph_micros(g, l));
    for (uint32_t block = 0; block < blocks; block++) {
        for (uint32_t l = 0; l < g->n_layers; l++)
            for (uint32_t n = graph_micros(g, l) / blocks, j = block * n; j < (block + 1) * n; j++)
                add_fwd(b, l, j);
        for (uint32_t l = g->n_layers; g->training && l-- > g->first_trained;)
            for (uint32_t n = graph_micros(g, l) / blocks, j = block * n; j < (block + 1) * n; j++)
                add_bwd(b, l, j);
    }
    if (!g->training)
        return;
    add_reductions(b);
    add_updates(b);
}

/* ---- checks ---- */

static int check_replicas(uint32_t n_micro, uint32_t n_replicas, struct err *err)
{
    if (n_replicas > 1 && n_micro % n_replicas != 0)
        return err_set_at(err, -EINVAL, "train.replicas", "%u replicas cannot share %u micro-batches",
                          n_replicas, n_micro);
    return 0;
}

static int check_tasks(uint32_t n_layers, uint32_t n_micro, struct err *err)
{
    uint64_t tasks = 2 * (uint64_t)n_layers * n_micro;
    if (tasks <= GRAPH_MAX_TASKS)
        return 0;
    uint32_t most = GRAPH_MAX_TASKS / 2 / n_layers; /* most micro-batches that a step may have */
    if (most == 0)
        return err_set_at(err, -EINVAL, "model", "%u layers are more than the %u that a plan can hold",
                          n_layers, GRAPH_MAX_TASKS / 2);
    return err_set_at(
        err, -EINVAL, "train",
        "%u layers x %u micro-batches are %llu tasks, more tasks than a plan can hold (at most %u); "
        "use a larger train.micro_batch, so that a step has at most %u micro-batches",
        n_layers, n_micro, (unsigned long long)tasks, GRAPH_MAX_TASKS, most);
}

static int check_chain(const struct graph_config *c, struct err *err)
{
    const struct model *m = c->model;
    if (m->n_layers < 2)
        return err_set_at(err, -EINVAL, "model", "a model needs at least one layer and a loss");
    if (c->rows == 0 || c->n_micro == 0)
        return err_set_at(err, -EINVAL, "train", "a step needs at least one row and one micro-batch");
    for (uint32_t l = 0; l < m->n_layers; l++) {
        if (layer_type(&m->layers[l])->is_loss != (l == m->n_layers - 1))
            return err_set_at(err, -EINVAL, "model", "layer %u: the loss must be the last layer, and only it",
                              l);
        if (l > 0 && m->layers[l].in != m->layers[l - 1].out)
            return err_set_at(err, -EINVAL, "model", "layer %u takes %u inputs but layer %u gives %u outputs",
                              l, m->layers[l].in, l - 1, m->layers[l - 1].out);
    }
    int r = check_tasks(m->n_layers, c->n_micro, err);
    return r < 0 ? r : check_replicas(c->n_micro, c->n_replicas, err);
}

/* Checks that the sizes of one layer are within the limits. This also finds overflow, because a size that
 * would overflow is set to a value far above the limit. */
static int check_layer_size(const struct layer *l, uint32_t rows, struct err *err)
{
    struct layer_sizes s;
    uint64_t tokens;
    bool ok = checked_mul(rows, l->seq > 1 ? l->seq : 1, &tokens) &&
              tokens <= UINT32_MAX; /* kernels count rows in 32 bits */
    if (ok) {
        layer_type(l)->sizes(l, rows, &s);
        ok = s.w <= GRAPH_MAX_BYTES / 4 && s.x <= GRAPH_MAX_BYTES / 4 && s.y <= GRAPH_MAX_BYTES / 4 &&
             s.s <= GRAPH_MAX_BYTES / 4 && s.room <= GRAPH_MAX_BYTES / 4 &&
             s.scratch_fwd <= GRAPH_MAX_BYTES / 4 && s.scratch_bwd <= GRAPH_MAX_BYTES / 4;
    }
    if (!ok)
        return err_set_at(err, -EOVERFLOW, "model", "layer %u (%u x %u) is too large to address", l->id,
                          l->in, l->out);
    return 0;
}

/* Adds the bytes of a layer to *total and checks that the sum is within the limit. Sets `first_trained` when
 * it meets the first layer with weights. */
static int account_layer(struct graph *g, uint32_t l, uint64_t *total, struct err *err)
{
    const struct graph_layer *gl = &g->layers[l];
    uint64_t per_micro = 2 * gl->size.x + gl->size.s + gl->size.room + gl->size.scratch_fwd +
                         gl->size.scratch_bwd + gl->size.target,
             sums, all;
    if (!checked_mul(per_micro, graph_micros(g, l), &all) || !checked_mul(gl->size.w, g->n_replicas, &sums) ||
        !checked_add(all, sums, &all) || !checked_add(all, gl->size.w + gl->k_bytes + gl->b_bytes, &all) ||
        !checked_add(*total, all, total) || *total > GRAPH_MAX_BYTES)
        return err_set_at(err, -EOVERFLOW, "model", "the model's tensors exceed 2^53 bytes at layer %u", l);
    if (gl->size.w > 0 && g->first_trained == g->n_layers)
        g->first_trained = l;
    return 0;
}

static int describe_layers(struct graph *g, const struct graph_config *c, struct err *err)
{
    uint64_t total = 0;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        const struct layer *layer = &c->model->layers[l];
        struct graph_layer *gl = &g->layers[l];
        int r = check_layer_size(layer, c->rows, err);
        if (r < 0)
            return r;
        gl->type = layer_type(layer)->name;
        gl->rows = c->rows;
        layer_type(layer)->sizes(layer, c->rows, &gl->size);
        layer_type(layer)->cost(layer, c->rows, &gl->cost);
        gl->tied = layer->tied;
        gl->owner = layer->owner;
        gl->loss_in_bwd = layer_type(layer)->loss_in_bwd;
        gl->k_bytes = gl->tied ? 0 : optimizer_state_bytes(c->optimizer, gl->size.w);
        r = account_layer(g, l, &total, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int describe_table(struct graph *g, const struct table *t, struct err *err)
{
    uint64_t total = 0;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        struct graph_layer *gl = &g->layers[l];
        struct table_point at;
        table_at(t, l, gl->rows, &at);
        gl->type = is_loss(g, l) ? "loss" : "layer";
        gl->size =
            (struct layer_sizes){.w = t->layers[l].w, .x = at.x, .s = at.s, .scratch_fwd = at.fwd_work};
        /* Round the size of X up to a multiple of the number of pieces, so that all pieces have equal
         * sizes. */
        uint32_t pieces = input_pieces(g, l);
        gl->size.x = input_rows(g, l) > gl->rows ? at.x * pieces : (at.x + pieces - 1) / pieces * pieces;
        gl->k_bytes = t->layers[l].k;
        gl->b_bytes = t->layers[l].b;
        gl->tied = t->layers[l].tied;
        gl->owner = t->layers[l].owner;
        if (at.x == 0)
            return err_set_at(err, -EINVAL, "layers", "layer %u has no input at micro-batch %u", l, gl->rows);
        int r = account_layer(g, l, &total, err);
        if (r < 0)
            return r;
        if (l > 0)
            g->layers[l - 1].size.y = at.x;
    }
    return 0;
}

/* Allocates an index with one empty entry for every combination of kind and layer. */
static void new_index(struct graph *g)
{
    struct graph_index *index = arena_alloc(g->arena, sizeof *index);
    uint32_t kinds = TENSOR_KIND_COUNT + INSTR_KIND_COUNT, n = 0; /* enough for either enum */
    g->index = index;
    index->entries = arena_alloc_array(g->arena, (size_t)kinds * g->n_layers, sizeof *index->entries);
    for (uint32_t k = 0; k < kinds; k++)
        for (uint32_t l = 0; l < g->n_layers; l++) {
            uint32_t tasks = k == INSTR_FWD || k == INSTR_BWD ? graph_micros(g, l)
                             : k == INSTR_RED                 ? g->n_replicas
                                                              : 1;
            *entry_of(g, k, l) = (struct graph_entry){PLAN_NONE, 0, n, tasks};
            n += tasks;
        }
    index->tasks = arena_alloc_array(g->arena, n, sizeof *index->tasks);
    memset(index->tasks, 0xff, n * sizeof *index->tasks);
}

static struct graph *new_graph(uint32_t n_layers, uint32_t rows, uint32_t n_micro, uint32_t n_replicas,
                               bool training, bool decision)
{
    struct arena *arena = arena_create();
    struct graph *g = arena_alloc(arena, sizeof *g);
    *g = (struct graph){
        .n_layers = n_layers,
        .n_micro = n_micro,
        .n_replicas = n_replicas > 0 ? n_replicas : 1,
        .rows = rows,
        .first_trained = n_layers,
        .training = training,
        .decision = training && decision,
        .layers = arena_alloc_array(arena, n_layers, sizeof *g->layers),
        .arena = arena,
    };
    return g;
}

/* Links each layer that owns weights with the layers that are tied to it, in ascending order. The links are
 * stored in `next_use`. */
static void link_uses(struct builder *b)
{
    const struct graph *g = b->g;
    /* Per layer that owns weights: the last layer linked to it so far. */
    uint32_t *last = xmalloc(g->n_layers * sizeof *last);
    b->next_use = xmalloc(g->n_layers * sizeof *b->next_use);
    for (uint32_t l = 0; l < g->n_layers; l++) {
        last[l] = l;
        b->next_use[l] = PLAN_NONE;
        if (!g->layers[l].tied)
            continue;
        b->next_use[last[g->layers[l].owner]] = l;
        last[g->layers[l].owner] = l;
    }
    xfree(last);
}

/* Adds the tensors and the tasks to a graph whose layers are already described. */
static void fill_graph(struct graph *g, bool decision, uint64_t group_bytes)
{
    struct builder b = {.g = g};
    g->has_group = group_bytes > 0;
    link_uses(&b);
    new_index(g);
    add_tensors(&b, decision, group_bytes);
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
    int r = check_chain(config, err);
    if (r < 0)
        return r;
    bool decision = config->optimizer->clip > 0 || config->skip_nonfinite;
    struct graph *g = new_graph(config->model->n_layers, config->rows, config->n_micro, config->n_replicas,
                                config->training, decision);
    r = describe_layers(g, config, err);
    if (r < 0) {
        graph_destroy(g);
        return r;
    }
    *ret = g;
    return 0;
}

int graph_build(const struct graph_config *config, struct graph **ret, struct err *err)
{
    bool decision = config->optimizer->clip > 0 || config->skip_nonfinite;
    int r = graph_describe(config, ret, err);
    if (r == 0)
        fill_graph(*ret, decision, optimizer_group_bytes(config->optimizer, decision));
    return r;
}

/* Checks the micro-batch sizes. Each size must divide the rows of a replica. For two neighbouring layers, one
 * size must divide the other. */
static int check_sizes(const struct table *t, const struct graph_sizes *s, struct err *err)
{
    uint32_t replicas = s->replicas > 0 ? s->replicas : 1, most = 0;
    if (s->batch == 0 || s->batch % replicas != 0)
        return err_set_at(err, -EINVAL, "batch", "%u rows cannot be shared by %u replicas", s->batch,
                          replicas);
    for (uint32_t l = 0; l < t->n_layers; l++) {
        uint32_t rows = s->rows[l], before = l > 0 ? s->rows[l - 1] : rows;
        if (rows == 0 || s->batch / replicas % rows != 0)
            return err_set_at(err, -EINVAL, "batch",
                              "micro-batches of %u rows do not divide the %u of a replica", rows,
                              s->batch / replicas);
        if (rows % before != 0 && before % rows != 0)
            return err_set_at(
                err, -EINVAL, "batch",
                "layer %u has micro-batches of %u rows and the layer before of %u: neither divides the "
                "other",
                l, rows, before);
        if (s->batch / rows > most)
            most = s->batch / rows;
    }
    return check_tasks(t->n_layers, most, err);
}

int graph_build_sizes(const struct table *t, const struct graph_sizes *sizes, bool training,
                      struct graph **ret, struct err *err)
{
    int r = check_sizes(t, sizes, err);
    if (r < 0)
        return r;
    uint32_t least = sizes->rows[0];
    for (uint32_t l = 1; l < t->n_layers; l++)
        least = sizes->rows[l] < least ? sizes->rows[l] : least;
    struct graph *g = new_graph(t->n_layers, least, sizes->batch / least, sizes->replicas, training, false);
    for (uint32_t l = 0; l < t->n_layers; l++)
        g->layers[l].rows = sizes->rows[l];
    r = describe_table(g, t, err);
    if (r < 0) {
        graph_destroy(g);
        return r;
    }
    fill_graph(g, false, 0);
    *ret = g;
    return 0;
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

tensor_id graph_tensor_find(const struct graph *g, enum tensor_kind kind, uint32_t layer, uint32_t which)
{
    if (is_of_no_layer(kind))
        layer = g->n_layers - 1;
    if (layer >= g->n_layers || (unsigned)kind >= TENSOR_KIND_COUNT)
        return PLAN_NONE;
    const struct graph_entry *e = entry_of(g, kind, layer);
    if (e->tensor == PLAN_NONE || which == PLAN_NONE)
        return e->tensor;
    return which < e->n_tensors ? e->tensor + which : PLAN_NONE;
}

uint32_t graph_task_find(const struct graph *g, enum instr_kind kind, uint32_t layer, uint32_t which)
{
    if (kind == INSTR_REC)
        kind = INSTR_FWD;
    if (kind == INSTR_DECIDE)
        layer = 0;
    if (layer >= g->n_layers || (unsigned)kind >= INSTR_KIND_COUNT)
        return PLAN_NONE;
    const struct graph_entry *e = entry_of(g, kind, layer);
    if (which == PLAN_NONE)
        which = 0;
    return which < e->n_tasks ? g->index->tasks[e->task + which] : PLAN_NONE;
}
