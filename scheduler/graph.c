/* Builds the task graph of backpropagation over a chain: which tasks a step has, in the method's sequential
 * order, and which version of which tensor each of them reads and writes. graph.h explains versions.
 *
 * The graph knows nothing of machines. Everything is allocated in one arena; sizes that a user chose are
 * checked for overflow here once, so that the stages behind may add and multiply freely.
 */
#include "scheduler/graph.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/checked.h"
#include "base/vec.h"
#include "scheduler/table.h"

#define GRAPH_MAX_BYTES (1ull << 53)
#define GRAPH_MAX_TASKS (1u << 20)

struct builder {
    struct graph *g;
    VEC(struct graph_tensor) tensors;
    VEC(struct graph_task) tasks;
    VEC(struct graph_operand) operands;
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

static tensor_id *first_slot(struct graph *g, enum tensor_kind kind, uint32_t layer)
{
    return &g->tensor_first[(size_t)kind * g->n_layers + layer];
}

/* A per-layer tensor, or one for each micro-batch when `per_micro`; nothing when it has no bytes. */
static void add_tensor(struct builder *b, enum tensor_kind kind, uint32_t layer, bool per_micro,
                       uint64_t bytes, uint32_t writes)
{
    struct graph *g = b->g;
    if (bytes == 0)
        return;
    bool persistent = kind == TENSOR_W || kind == TENSOR_K || kind == TENSOR_B;
    bool external = (kind == TENSOR_X && layer == 0) || kind == TENSOR_TARGET || kind == TENSOR_RESULT ||
                    kind == TENSOR_DECISION;
    bool no_layer = kind == TENSOR_TARGET || kind == TENSOR_RESULT || kind == TENSOR_DECISION;
    *first_slot(g, kind, layer) = (tensor_id)b->tensors.n;
    for (uint32_t j = 0; j < (per_micro ? g->n_micro : 1); j++)
        vec_push(&b->tensors, (struct graph_tensor){
                                  .kind = kind,
                                  .layer = no_layer ? PLAN_NONE : layer,
                                  .micro = per_micro ? j : PLAN_NONE,
                                  .replica = per_micro || kind == TENSOR_DW ? 0 : PLAN_NONE,
                                  .bytes = bytes,
                                  .writes_per_step = writes,
                                  .persistent = persistent,
                                  .external = external,
                              });
}

/* State first, so that its host offsets are the same in every plan of the model. The evaluation graph has the
 * tensors of a decision too, though no task of it: ids must be those of the training graph. */
static void add_tensors(struct builder *b, bool decision)
{
    struct graph *g = b->g;
    uint32_t last = g->n_layers - 1, update = g->training ? 1 : 0;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        if (g->layers[l].tied)
            *first_slot(g, TENSOR_W, l) = *first_slot(g, TENSOR_W, g->layers[l].owner);
        else
            add_tensor(b, TENSOR_W, l, false, g->layers[l].size.w, update);
        add_tensor(b, TENSOR_K, l, false, g->layers[l].k_bytes, update);
        add_tensor(b, TENSOR_B, l, false, g->layers[l].b_bytes, 0);
    }
    for (uint32_t l = 0; l < g->n_layers; l++) {
        const struct layer_sizes *s = &g->layers[l].size;
        bool backward = l >= g->first_trained;
        add_tensor(b, TENSOR_DW, l, false, s->w, g->n_micro);
        if (decision && graph_updates(g, l))
            add_tensor(b, TENSOR_SUMSQ, l, false, sizeof(double), 1);
        add_tensor(b, TENSOR_X, l, true, s->x, 1);
        add_tensor(b, TENSOR_S, l, true, s->s, 1);
        add_tensor(b, TENSOR_WORK, l, true, s->scratch_fwd, 1);
        if (has_dx(g, l))
            add_tensor(b, TENSOR_DX, l, true, s->x, 1);
        if (backward)
            add_tensor(b, TENSOR_SCRATCH, l, true, s->scratch_bwd, 1);
    }
    add_tensor(b, TENSOR_TARGET, last, true, g->layers[last].size.target, 1);
    add_tensor(b, TENSOR_RESULT, last, true, g->layers[last].size.result, 1);
    if (decision)
        add_tensor(b, TENSOR_DECISION, last, false, sizeof(struct step_decision), 1);
}

/* ---- tasks ---- */

static void add_operand(struct builder *b, enum tensor_kind kind, uint32_t layer, uint32_t micro,
                        enum access access, uint32_t read_version, uint32_t write_version, bool optional)
{
    tensor_id t = graph_tensor_find(b->g, kind, layer, micro);
    if (t == PLAN_NONE)
        return;
    vec_push(&b->operands, (struct graph_operand){t, access, optional, read_version, write_version});
    b->tasks.at[b->tasks.n - 1].n_operands++;
}

static void add_read(struct builder *b, enum tensor_kind kind, uint32_t layer, uint32_t micro,
                     uint32_t version)
{
    add_operand(b, kind, layer, micro, ACCESS_READ, version, 0, false);
}

/* A workspace may be left out only by a forward that saves S in its place. */
static void add_write(struct builder *b, enum tensor_kind kind, uint32_t layer, uint32_t micro)
{
    bool optional = kind == TENSOR_S ||
                    (kind == TENSOR_WORK && graph_tensor_find(b->g, TENSOR_S, layer, micro) != PLAN_NONE);
    add_operand(b, kind, layer, micro, ACCESS_WRITE, 0, 1, optional);
}

static void begin_task(struct builder *b, enum instr_kind kind, uint32_t layer, uint32_t micro,
                       enum task_place place)
{
    struct graph *g = b->g;
    uint32_t *first = &g->task_first[(size_t)kind * g->n_layers + (layer == PLAN_NONE ? 0 : layer)];
    if (*first == PLAN_NONE)
        *first = (uint32_t)b->tasks.n;
    vec_push(&b->tasks, (struct graph_task){
                            .kind = kind,
                            .layer = layer,
                            .micro = micro,
                            .replica = micro == PLAN_NONE ? PLAN_NONE : 0,
                            .place = place,
                            .operand = (uint32_t)b->operands.n,
                        });
}

static void add_fwd(struct builder *b, uint32_t l, uint32_t j)
{
    begin_task(b, INSTR_FWD, l, j, PLACE_DEVICE);
    add_read(b, TENSOR_W, l, PLAN_NONE, 0);
    add_read(b, TENSOR_B, l, PLAN_NONE, 0);
    add_read(b, TENSOR_X, l, j, 1);
    if (is_loss(b->g, l)) {
        add_read(b, TENSOR_TARGET, l, j, 1);
        add_write(b, TENSOR_RESULT, l, j);
    } else {
        add_write(b, TENSOR_X, l + 1, j);
    }
    add_write(b, TENSOR_S, l, j);
    add_write(b, TENSOR_WORK, l, j);
}

static void add_bwd(struct builder *b, uint32_t l, uint32_t j)
{
    begin_task(b, INSTR_BWD, l, j, PLACE_DEVICE);
    add_read(b, TENSOR_W, l, PLAN_NONE, 0);
    add_read(b, TENSOR_B, l, PLAN_NONE, 0);
    add_read(b, TENSOR_X, l, j, 1);
    add_read(b, TENSOR_S, l, j, 1);
    if (is_loss(b->g, l))
        add_read(b, TENSOR_TARGET, l, j, 1);
    else
        add_read(b, TENSOR_DX, l + 1, j, 1);
    add_operand(b, TENSOR_DW, l, PLAN_NONE, j == 0 ? ACCESS_WRITE : ACCESS_RW, j, j + 1, false);
    if (has_dx(b->g, l))
        add_write(b, TENSOR_DX, l, j);
    add_write(b, TENSOR_SCRATCH, l, j);
}

/* The gradients of all uses of a layer's W, in ascending order of layers. */
static void read_gradients(struct builder *b, uint32_t layer)
{
    struct graph *g = b->g;
    add_read(b, TENSOR_DW, layer, PLAN_NONE, g->n_micro);
    for (uint32_t l = layer + 1; l < g->n_layers; l++)
        if (g->layers[l].tied && g->layers[l].owner == layer)
            add_read(b, TENSOR_DW, l, PLAN_NONE, g->n_micro);
}

static void add_updates(struct builder *b)
{
    struct graph *g = b->g;
    if (g->decision) {
        for (uint32_t l = 0; l < g->n_layers; l++) {
            if (!graph_updates(g, l))
                continue;
            begin_task(b, INSTR_NORM, l, PLAN_NONE, PLACE_ANY);
            read_gradients(b, l);
            add_write(b, TENSOR_SUMSQ, l, PLAN_NONE);
        }
        begin_task(b, INSTR_DECIDE, PLAN_NONE, PLAN_NONE, PLACE_HOST);
        for (uint32_t l = 0; l < g->n_layers; l++)
            add_read(b, TENSOR_SUMSQ, l, PLAN_NONE, 1);
        add_write(b, TENSOR_DECISION, g->n_layers - 1, PLAN_NONE);
    }
    for (uint32_t l = 0; l < g->n_layers; l++) {
        if (!graph_updates(g, l))
            continue;
        begin_task(b, INSTR_UPD, l, PLAN_NONE, PLACE_ANY);
        read_gradients(b, l);
        add_read(b, TENSOR_DECISION, g->n_layers - 1, PLAN_NONE, 1);
        add_operand(b, TENSOR_W, l, PLAN_NONE, ACCESS_RW, 0, 1, false);
        add_operand(b, TENSOR_K, l, PLAN_NONE, ACCESS_RW, 0, 1, false);
    }
}

static void add_tasks(struct builder *b)
{
    struct graph *g = b->g;
    for (uint32_t j = 0; j < g->n_micro; j++) {
        for (uint32_t l = 0; l < g->n_layers; l++)
            add_fwd(b, l, j);
        for (uint32_t l = g->n_layers; g->training && l-- > g->first_trained;)
            add_bwd(b, l, j);
        if (j == 0)
            g->task_stride = (uint32_t)b->tasks.n;
    }
    if (g->training)
        add_updates(b);
}

/* ---- checks ---- */

static int check_tasks(uint32_t n_layers, uint32_t n_micro, struct err *err)
{
    if ((uint64_t)n_layers * 2 * n_micro > GRAPH_MAX_TASKS)
        return err_set_at(err, -EINVAL, "train",
                          "%u layers x %u micro-batches are more tasks than a plan can hold; "
                          "use a larger train.micro_batch",
                          n_layers, n_micro);
    return 0;
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
    return check_tasks(m->n_layers, c->n_micro, err);
}

/* Elements per row times rows times 4 must be far from overflow before a layer computes its sizes. */
static int check_layer_size(const struct layer *l, uint32_t rows, struct err *err)
{
    uint64_t widest = l->in > l->out ? l->in : l->out, v;
    bool ok = checked_mul(l->in, l->out ? l->out : 1, &v) && checked_mul(v, 16, &v) && v <= GRAPH_MAX_BYTES &&
              checked_mul(widest, rows, &v) && checked_mul(v, 16, &v) && v <= GRAPH_MAX_BYTES;
    if (!ok)
        return err_set_at(err, -EOVERFLOW, "model", "layer %u (%u x %u) is too large to address", l->id,
                          l->in, l->out);
    return 0;
}

/* After a layer is described: its part of the total, and whether it is the first with weights. */
static int account_layer(struct graph *g, uint32_t l, uint64_t *total, struct err *err)
{
    const struct graph_layer *gl = &g->layers[l];
    uint64_t per_micro =
                 2 * gl->size.x + gl->size.s + gl->size.scratch_fwd + gl->size.scratch_bwd + gl->size.target,
             all;
    if (!checked_mul(per_micro, g->n_micro, &all) ||
        !checked_add(all, 2 * gl->size.w + gl->k_bytes + gl->b_bytes, &all) ||
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
        layer_type(layer)->sizes(layer, c->rows, &gl->size);
        layer_type(layer)->cost(layer, c->rows, &gl->cost);
        gl->k_bytes = optimizer_state_bytes(c->optimizer, gl->size.w);
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
        table_at(t, l, g->rows, &at);
        gl->type = is_loss(g, l) ? "loss" : "layer";
        gl->size =
            (struct layer_sizes){.w = t->layers[l].w, .x = at.x, .s = at.s, .scratch_fwd = at.fwd_work};
        gl->k_bytes = t->layers[l].k;
        gl->b_bytes = t->layers[l].b;
        gl->tied = t->layers[l].tied;
        gl->owner = t->layers[l].owner;
        if (at.x == 0)
            return err_set_at(err, -EINVAL, "layers", "layer %u has no input at micro-batch %u", l, g->rows);
        int r = account_layer(g, l, &total, err);
        if (r < 0)
            return r;
        if (l > 0)
            g->layers[l - 1].size.y = at.x;
    }
    return 0;
}

static struct graph *new_graph(uint32_t n_layers, uint32_t rows, uint32_t n_micro, bool training,
                               bool decision)
{
    struct arena *arena = arena_create();
    struct graph *g = arena_alloc(arena, sizeof *g);
    *g = (struct graph){
        .n_layers = n_layers,
        .n_micro = n_micro,
        .n_replicas = 1,
        .rows = rows,
        .first_trained = n_layers,
        .training = training,
        .decision = training && decision,
        .layers = arena_alloc_array(arena, n_layers, sizeof *g->layers),
        .tensor_first =
            arena_alloc_array(arena, (size_t)TENSOR_KIND_COUNT * n_layers, sizeof *g->tensor_first),
        .task_first = arena_alloc_array(arena, (size_t)INSTR_KIND_COUNT * n_layers, sizeof *g->task_first),
        .arena = arena,
    };
    memset(g->tensor_first, 0xff, sizeof *g->tensor_first * TENSOR_KIND_COUNT * n_layers);
    memset(g->task_first, 0xff, sizeof *g->task_first * INSTR_KIND_COUNT * n_layers);
    return g;
}

/* Tensors and tasks of a graph whose layers are described. */
static void fill_graph(struct graph *g, bool decision)
{
    struct builder b = {.g = g};
    add_tensors(&b, decision);
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
}

int graph_build(const struct graph_config *config, struct graph **ret, struct err *err)
{
    int r = check_chain(config, err);
    if (r < 0)
        return r;
    bool decision = config->optimizer->clip > 0 || config->skip_nonfinite;
    struct graph *g =
        new_graph(config->model->n_layers, config->rows, config->n_micro, config->training, decision);
    r = describe_layers(g, config, err);
    if (r < 0) {
        graph_destroy(g);
        return r;
    }
    fill_graph(g, decision);
    *ret = g;
    return 0;
}

int graph_build_table(const struct table *t, uint32_t micro_batch, uint32_t n_micro, bool training,
                      struct graph **ret, struct err *err)
{
    if (micro_batch == 0 || n_micro == 0)
        return err_set_at(err, -EINVAL, "batch", "a step needs at least one row and one micro-batch");
    int r = check_tasks(t->n_layers, n_micro, err);
    if (r < 0)
        return r;
    struct graph *g = new_graph(t->n_layers, micro_batch, n_micro, training, false);
    r = describe_table(g, t, err);
    if (r < 0) {
        graph_destroy(g);
        return r;
    }
    fill_graph(g, false);
    *ret = g;
    return 0;
}

void graph_destroy(struct graph *g)
{
    if (g != NULL)
        arena_destroy(g->arena);
}

tensor_id graph_tensor_find(const struct graph *g, enum tensor_kind kind, uint32_t layer, uint32_t micro)
{
    if (kind == TENSOR_TARGET || kind == TENSOR_RESULT || kind == TENSOR_DECISION)
        layer = g->n_layers - 1;
    if (layer >= g->n_layers || (unsigned)kind >= TENSOR_KIND_COUNT)
        return PLAN_NONE;
    tensor_id first = g->tensor_first[(size_t)kind * g->n_layers + layer];
    if (first == PLAN_NONE || micro == PLAN_NONE)
        return first;
    return micro < g->n_micro ? first + micro : PLAN_NONE;
}

uint32_t graph_task_find(const struct graph *g, enum instr_kind kind, uint32_t layer, uint32_t micro)
{
    if (kind == INSTR_REC)
        kind = INSTR_FWD;
    if (kind == INSTR_DECIDE)
        layer = 0;
    if (layer >= g->n_layers || (unsigned)kind >= INSTR_KIND_COUNT)
        return PLAN_NONE;
    uint32_t first = g->task_first[(size_t)kind * g->n_layers + layer];
    if (first == PLAN_NONE || micro == PLAN_NONE)
        return first;
    return micro < g->n_micro ? first + micro * g->task_stride : PLAN_NONE;
}
