/* Describes the layers of a graph: checks the input, connects the layers, and computes sizes and costs.
 * graph.c calls these functions first, and then adds tensors and tasks.
 *
 * Sizes depend on numbers that the user chose, so they are checked for overflow here. All later stages rely
 * on this: they add and multiply sizes without checks.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/checked.h"
#include "scheduler/graph_private.h"

#define GRAPH_MAX_BYTES (1ull << 53)

/* Creates a graph with empty layers and groups, and without tensors and tasks. 0 groups or 0 steps mean
 * one. */
static struct graph *create_graph(uint32_t n_layers, uint32_t n_groups, uint32_t steps)
{
    struct arena *arena = arena_create();
    struct graph *g = arena_alloc(arena, sizeof *g);
    *g = (struct graph){
        .n_layers = n_layers,
        .n_groups = n_groups > 0 ? n_groups : 1,
        .steps = steps > 0 ? steps : 1,
        .arena = arena,
    };
    g->layers = arena_alloc_array(arena, n_layers, sizeof *g->layers);
    g->groups = arena_alloc_array(arena, g->n_groups, sizeof *g->groups);
    return g;
}

/* ---- checks of numbers ---- */

static int check_replicas(uint32_t n_micro, uint32_t n_replicas, struct err *err)
{
    if (n_replicas > 1 && n_micro % n_replicas != 0)
        return err_set_at(err, -EINVAL, "train.replicas", "%u replicas cannot share %u micro-batches",
                          n_replicas, n_micro);
    return 0;
}

/* Checks that a cycle does not have too many tasks. The error message names the setting that makes the number
 * too large. */
static int check_tasks(uint32_t n_layers, uint32_t n_micro, uint32_t steps, struct err *err)
{
    uint64_t tasks = 2 * (uint64_t)n_layers * n_micro;
    if (tasks <= GRAPH_MAX_TASKS / steps)
        return 0;
    if (tasks <= GRAPH_MAX_TASKS)
        return err_set_at(err, -EINVAL, "memory.cycle_steps",
                          "%u training steps of %llu tasks are more tasks than a plan can hold (at most %u); "
                          "use at most %llu steps in a cycle",
                          steps, (unsigned long long)tasks, GRAPH_MAX_TASKS,
                          (unsigned long long)(GRAPH_MAX_TASKS / tasks));
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

/* Checks that no size of a layer is above its limit. This also finds sizes that overflowed: they were set to
 * a value far above the limit. */
static int check_layer_size(const struct layer *l, uint32_t rows, struct err *err)
{
    struct layer_sizes s;
    uint64_t tokens;
    uint32_t elements;
    char in[SHAPE_TEXT_MAX], out[SHAPE_TEXT_MAX];
    bool ok = shape_elements(&l->in, &elements) && shape_elements(&l->out, &elements) &&
              checked_mul(rows, layer_seq(l), &tokens) &&
              tokens <= UINT32_MAX; /* kernels count rows in 32 bits */
    if (ok) {
        layer_type(l)->sizes(l, rows, &s);
        ok = layer_dw_bytes(&s) <= GRAPH_MAX_BYTES / 4 && s.b <= GRAPH_MAX_BYTES / 4 &&
             s.x <= GRAPH_MAX_BYTES / 4 && s.y <= GRAPH_MAX_BYTES / 4 && s.s <= GRAPH_MAX_BYTES / 4 &&
             s.room <= GRAPH_MAX_BYTES / 4 && s.scratch_fwd <= GRAPH_MAX_BYTES / 4 &&
             s.scratch_bwd <= GRAPH_MAX_BYTES / 4;
    }
    if (!ok)
        return err_set_at(err, -EOVERFLOW, "model", "layer %u (%s to %s) is too large to address", l->id,
                          shape_text(&l->in, in), shape_text(&l->out, out));
    return 0;
}

/* Adds the bytes of all tensors of a layer to *total. Returns an error if the sum is too large. */
static int account_layer(const struct graph *g, uint32_t l, uint64_t *total, struct err *err)
{
    const struct graph_layer *gl = &g->layers[l];
    uint64_t per_micro = 2 * gl->size.x + gl->size.y + gl->size.s + gl->size.room + gl->size.scratch_fwd +
                         gl->size.scratch_bwd + gl->size.target + gl->b_bytes,
             sums, step;
    if (!checked_mul(per_micro, graph_micros(g, l), &step) ||
        !checked_mul(gl->dw_bytes, g->n_replicas, &sums) || !checked_add(step, sums, &step) ||
        !checked_mul(step, g->steps, &step) ||
        !checked_add(step, gl->size.w + gl->k_bytes + gl->b_bytes, &step) ||
        !checked_add(*total, step, total) || *total > GRAPH_MAX_BYTES)
        return err_set_at(err, -EOVERFLOW, "model", "the model's tensors exceed 2^53 bytes at layer %u", l);
    return 0;
}

/* ---- connections ---- */

struct graph_link graph_chain_link(const struct model *m, uint32_t l)
{
    const struct layer *layer = &m->layers[l];
    return (struct graph_link){
        .input = l > 0 ? l - 1 : PLAN_NONE,
        .twin_of = PLAN_NONE,
        .owner = layer->tied ? layer->owner : PLAN_NONE,
    };
}

static void connect_layer(struct graph *g, uint32_t l, const struct graph_link *link)
{
    struct graph_layer *gl = &g->layers[l];
    gl->input = link->input;
    gl->source = link->source;
    gl->original = link->twin_of != PLAN_NONE ? link->twin_of : l;
    gl->reader = PLAN_NONE;
    gl->returns = !link->stop && link->input != PLAN_NONE; /* find_backward may still set it to false */
    gl->tied = link->owner != PLAN_NONE;
    gl->owner = gl->tied ? link->owner : l;
    gl->group = link->group;
}

/* Finds out which layers have a backward pass. A layer needs gradients if it has weights, or if it returns
 * its gradient to a layer that needs gradients. It has a backward pass if it needs gradients and one comes
 * back to it, or if it is a loss and needs gradients. Training and evaluation graphs of a model get the same
 * answer, so that they have the same tensors. */
static void find_backward(struct graph *g)
{
    bool *needs = xcalloc(g->n_layers, sizeof *needs);
    for (uint32_t l = 0; l < g->n_layers; l++) {
        struct graph_layer *gl = &g->layers[l];
        gl->returns = gl->returns && needs[gl->input];
        needs[l] = gl->size.w > 0 || gl->returns;
    }
    for (uint32_t l = g->n_layers; l-- > 0;) {
        struct graph_layer *gl = &g->layers[l];
        gl->backward = needs[l] && (gl->is_loss || gl->reader != PLAN_NONE);
        gl->returns = gl->returns && gl->backward;
        if (gl->returns)
            g->layers[gl->input].reader = l;
        if (gl->backward && gl->size.w > 0)
            g->layers[gl->owner].n_uses++;
    }
    xfree(needs);
}

/* ---- graphs of models ---- */

static int bad_link(struct err *err, uint32_t l, const char *what, uint32_t other)
{
    return err_set_at(err, -EINVAL, "model", "layer %u: %s (layer %u)", l, what, other);
}

/* Returns whether reading layer `a` is the same as reading layer `b`: they are the same layer, or twins with
 * the same original. PLAN_NONE stands for the loader. */
static bool same_input(const struct graph_link *links, uint32_t a, uint32_t b)
{
    if (a == PLAN_NONE || b == PLAN_NONE)
        return a == b;
    a = links[a].twin_of != PLAN_NONE ? links[a].twin_of : a;
    b = links[b].twin_of != PLAN_NONE ? links[b].twin_of : b;
    return a == b;
}

/* Checks how layer `l` is connected with earlier layers. Sets returned[i] to true if layer `l` returns a
 * gradient to layer i, which only one layer may do. */
static int check_link(const struct graph_config *c, uint32_t l, const struct graph_link *links,
                      bool *returned, struct err *err)
{
    const struct graph_link *link = &links[l];
    const struct layer *layer = &c->model->layers[l];
    uint32_t input = link->input;
    char in[SHAPE_TEXT_MAX], out[SHAPE_TEXT_MAX];
    if (input != PLAN_NONE && input >= l)
        return bad_link(err, l, "it reads a layer that does not come before it", input);
    if (input != PLAN_NONE && layer_type(&c->model->layers[input])->is_loss)
        return bad_link(err, l, "a loss has no output to read", input);
    if (input != PLAN_NONE && !shape_same_elements(&layer->in, &c->model->layers[input].out))
        return err_set_at(err, -EINVAL, "model", "layer %u takes rows of %s but layer %u gives rows of %s", l,
                          shape_text(&layer->in, in), input, shape_text(&c->model->layers[input].out, out));
    if (link->twin_of != PLAN_NONE && (link->twin_of >= l || links[link->twin_of].twin_of != PLAN_NONE))
        return bad_link(err, l, "it can only be the twin of an earlier layer that is no twin", link->twin_of);
    if (link->twin_of != PLAN_NONE && !same_input(links, input, links[link->twin_of].input))
        return bad_link(err, l, "a twin must have the input of its original", link->twin_of);
    if (link->twin_of != PLAN_NONE && layer_type(layer)->is_loss)
        return bad_link(err, l, "a loss receives no gradient, so it cannot have a twin", link->twin_of);
    if (link->owner != PLAN_NONE && (link->owner >= l || links[link->owner].owner != PLAN_NONE))
        return bad_link(err, l, "it can only use the weights of an earlier layer that owns them",
                        link->owner);
    if (link->owner != PLAN_NONE && links[link->owner].group != link->group)
        return bad_link(err, l, "it must be in the decision group of the layer whose weights it uses",
                        link->owner);
    if (link->group >= (c->n_groups > 0 ? c->n_groups : 1))
        return bad_link(err, l, "its decision group does not exist", l);
    if (input == PLAN_NONE || link->stop)
        return 0;
    if (returned[input])
        return bad_link(
            err, l, "two layers return a gradient to one layer, which needs a twin for the second", input);
    returned[input] = true;
    return 0;
}

static int check_links(const struct graph_config *c, const struct graph_link *links, struct err *err)
{
    const uint32_t n = c->model->n_layers;
    bool *returned = xcalloc(n, sizeof *returned);
    int r = 0;
    for (uint32_t l = 0; r == 0 && l < n; l++)
        r = check_link(c, l, links, returned, err);
    xfree(returned);
    return r;
}

static int check_model(const struct graph_config *c, struct err *err)
{
    const struct model *m = c->model;
    uint32_t losses = 0;
    if (c->n_groups > m->n_layers)
        return err_set_at(err, -EINVAL, "model", "%u decision groups are too many for %u layers", c->n_groups,
                          m->n_layers);
    if (m->n_layers < 1 || (c->training && m->n_layers < 2))
        return err_set_at(err, -EINVAL, "model", "a model needs at least one layer and a loss");
    if (c->rows == 0 || c->n_micro == 0)
        return err_set_at(err, -EINVAL, "train", "a step needs at least one row and one micro-batch");
    for (uint32_t l = 0; l < m->n_layers; l++) {
        bool loss = layer_type(&m->layers[l])->is_loss;
        losses += loss;
        if (!c->links && (loss ? l != m->n_layers - 1 : c->training && l == m->n_layers - 1))
            return err_set_at(err, -EINVAL, "model", "layer %u: the loss must be the last layer, and only it",
                              l);
    }
    if (c->training && losses == 0)
        return err_set_at(err, -EINVAL, "model", "a model needs at least one loss to be trained");
    int r = check_tasks(m->n_layers, c->n_micro, c->steps > 0 ? c->steps : 1, err);
    return r < 0 ? r : check_replicas(c->n_micro, c->n_replicas, err);
}

/* Lists the parts of a layer's optimizer state K. A tied layer has no K and therefore no parts. */
static void describe_parts(struct graph *g, struct graph_layer *gl, const struct optimizer *o)
{
    struct state_part parts[OPTIMIZER_PARTS];
    if (gl->tied || gl->size.w == 0)
        return;
    gl->n_parts = optimizer_parts(o, layer_w_elements(&gl->size), parts);
    gl->parts = arena_memdup(g->arena, parts, gl->n_parts * sizeof *parts);
    gl->k_bytes = gl->n_parts > 0 ? parts[gl->n_parts - 1].end : 0;
}

static int describe_layer(struct graph *g, uint32_t l, const struct graph_config *c, struct err *err)
{
    const struct layer *layer = &c->model->layers[l];
    struct graph_layer *gl = &g->layers[l];
    int r = check_layer_size(layer, c->rows, err);
    if (r < 0)
        return r;
    gl->type = layer_type(layer)->name;
    gl->rows = c->rows;
    layer_type(layer)->sizes(layer, c->rows, &gl->size);
    layer_type(layer)->cost(layer, c->rows, &gl->cost);
    gl->dw_bytes = layer_dw_bytes(&gl->size);
    gl->dw_dtype = LAYER_DW_DTYPE;
    gl->is_loss = layer_type(layer)->is_loss;
    gl->loss_in_bwd = layer_type(layer)->loss_in_bwd;
    describe_parts(g, gl, &c->optimizer[gl->group]);
    if (graph_has_fwd(g, l)) {
        gl->b_bytes = gl->size.b;
        gl->folds = gl->size.b > 0 && layer_type(layer)->fold != NULL;
        return 0;
    }
    /* A twin only runs backward, with the values S that its original saved. It has no S and no forward pass
     * of its own. */
    gl->size.s = gl->size.room = gl->size.scratch_fwd = gl->size.b = 0;
    gl->cost.fwd_flops = gl->cost.fwd_bytes = 0;
    return 0;
}

/* For each decision group, sets whether it has a decision and whether it has a state. A group without trained
 * weights has neither. */
static void find_groups(struct graph *g, const struct graph_config *c)
{
    for (uint32_t l = 0; l < g->n_layers; l++) {
        const uint32_t i = g->layers[l].group;
        const bool scales = c->optimizer[i].scaling.growth_steps > 0;
        const bool decision = c->optimizer[i].clip > 0 || c->skip_nonfinite || scales;
        if (!graph_trains(g, l))
            continue;
        g->groups[i].decision = decision;
        g->groups[i].state_bytes = optimizer_group_bytes(&c->optimizer[i], decision);
        g->groups[i].scales_loss = scales;
    }
}

/* Gives two decision groups the same loss scale, and with them all groups that have the scale of one of
 * them. */
static void join_scales(struct graph *g, uint32_t one, uint32_t other)
{
    uint32_t a = g->groups[one].scale, b = g->groups[other].scale;
    for (uint32_t i = 0; a != b && i < g->n_groups; i++)
        if (g->groups[i].scale == a || g->groups[i].scale == b)
            g->groups[i].scale = a < b ? a : b;
}

/* Finds the decision groups that have the same loss scale. A gradient comes from a loss of another group if a
 * layer returns a gradient to a layer of another group, or if it uses weights of another group. */
static void find_scales(struct graph *g)
{
    for (uint32_t i = 0; i < g->n_groups; i++)
        g->groups[i].scale = i;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        const struct graph_layer *gl = &g->layers[l];
        if (!gl->backward || !g->groups[gl->group].scales_loss)
            continue;
        join_scales(g, gl->group, g->layers[gl->owner].group);
        if (gl->returns)
            join_scales(g, gl->group, g->layers[gl->input].group);
    }
}

/* Checks that a layer reads elements of the type that its input has. If it uses the weights of another layer,
 * also checks their size and type. */
static int check_types(const struct graph *g, uint32_t l, struct err *err)
{
    const struct graph_layer *gl = &g->layers[l];
    const struct layer_sizes *own = &g->layers[gl->owner].size;
    if (gl->input != PLAN_NONE && gl->size.x_dtype != g->layers[gl->input].size.y_dtype)
        return err_set_at(err, -EINVAL, "model", "layer %u reads elements of type %s but layer %u writes %s",
                          l, dtype_names[gl->size.x_dtype], gl->input,
                          dtype_names[g->layers[gl->input].size.y_dtype]);
    if (gl->size.w != own->w || gl->size.w_dtype != own->w_dtype)
        return bad_link(err, l, "its weights have another size or type than those it should use", gl->owner);
    return 0;
}

static int describe_layers(struct graph *g, const struct graph_config *c, const struct graph_link *links,
                           struct err *err)
{
    uint64_t total = 0;
    int r = 0;
    for (uint32_t l = 0; r == 0 && l < g->n_layers; l++) {
        connect_layer(g, l, &links[l]);
        r = describe_layer(g, l, c, err);
        if (r == 0)
            r = account_layer(g, l, &total, err);
        if (r == 0)
            r = check_types(g, l, err);
    }
    if (r < 0)
        return r;
    find_backward(g);
    find_groups(g, c);
    find_scales(g);
    for (uint32_t l = 0; l < g->n_layers; l++) {
        /* If no gradient reaches the weights, they are never updated. The layer then has no optimizer
         * state. */
        if (g->layers[l].n_uses == 0)
            g->layers[l].k_bytes = g->layers[l].n_parts = 0;
        if (g->layers[l].n_uses > OPTIMIZER_USES)
            return err_set_at(err, -EINVAL, "model",
                              "%u layers use the weights of layer %u, and at most %d can use one W",
                              g->layers[l].n_uses, l, OPTIMIZER_USES);
    }
    return 0;
}

int graph_describe_model(const struct graph_config *c, struct graph **ret, struct err *err)
{
    const struct model *m = c->model;
    struct graph_link *chain = xcalloc(m->n_layers + 1, sizeof *chain);
    const struct graph_link *links = c->links ? c->links : chain;
    struct graph *g = NULL;
    for (uint32_t l = 0; l < m->n_layers; l++)
        chain[l] = graph_chain_link(m, l);
    int r = check_model(c, err);
    if (r == 0)
        r = check_links(c, links, err);
    if (r == 0) {
        g = create_graph(m->n_layers, c->n_groups, c->steps);
        g->rows = c->rows;
        g->n_micro = c->n_micro;
        g->n_replicas = c->n_replicas > 0 ? c->n_replicas : 1;
        g->training = c->training;
        r = describe_layers(g, c, links, err);
    }
    xfree(chain);
    if (r < 0) {
        graph_destroy(g);
        return r;
    }
    *ret = g;
    return 0;
}

/* ---- graphs of profile tables ---- */

uint32_t graph_input_rows(const struct graph *g, uint32_t layer, uint32_t *ret_least)
{
    uint32_t input = g->layers[layer].input, most = g->layers[layer].rows, least = most;
    if (input != PLAN_NONE) {
        uint32_t before = g->layers[input].rows;
        most = before > most ? before : most;
        least = before < least ? before : least;
    }
    *ret_least = least;
    return most;
}

/* Copies the parts of a layer's optimizer state K from the profile table. These parts have no names. */
static void describe_table_parts(struct graph *g, struct graph_layer *gl, const struct table_layer *tl)
{
    uint64_t at = 0;
    if (tl->k == 0)
        return;
    gl->n_parts = tl->n_k_parts > 0 ? tl->n_k_parts : 1;
    struct state_part *parts = arena_alloc_array(g->arena, gl->n_parts, sizeof *parts);
    for (uint32_t p = 0; p < gl->n_parts; p++) {
        const uint64_t bytes = tl->n_k_parts > 0 ? tl->k_parts[p] : tl->k;
        parts[p] = (struct state_part){.dtype = DTYPE_U8, .elements = bytes, .begin = at, .end = at + bytes};
        at += bytes;
    }
    gl->parts = parts;
}

/* Describes the layers of a table. A table has only sizes in bytes, so the tensors of the graph are blocks of
 * bytes. But if the weights have 16 bits, W and dW have types. Shares of both are then cut at the same
 * elements. */
static int describe_table(struct graph *g, const struct table *t, struct err *err)
{
    const bool half = dtype_size(t->dtype) < dtype_size(LAYER_DW_DTYPE);
    uint64_t total = 0;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        struct graph_layer *gl = &g->layers[l];
        struct table_point at;
        uint32_t least, most, pieces;
        table_at(t, l, gl->rows, &at);
        gl->is_loss = l == g->n_layers - 1;
        gl->type = gl->is_loss ? "loss" : "layer";
        gl->size = (struct layer_sizes){.w = t->layers[l].w,
                                        .x = at.x,
                                        .s = at.s,
                                        .scratch_fwd = at.fwd_work,
                                        .w_dtype = half ? t->dtype : DTYPE_U8,
                                        .x_dtype = DTYPE_U8,
                                        .y_dtype = DTYPE_U8,
                                        .target_dtype = DTYPE_U8};
        gl->dw_bytes = table_dw(t, l);
        gl->dw_dtype = half ? LAYER_DW_DTYPE : DTYPE_U8;
        gl->k_bytes = t->layers[l].k;
        describe_table_parts(g, gl, &t->layers[l]);
        gl->b_bytes = t->layers[l].b;
        connect_layer(g, l,
                      &(struct graph_link){.input = l > 0 ? l - 1 : PLAN_NONE,
                                           .twin_of = PLAN_NONE,
                                           .owner = t->layers[l].tied ? t->layers[l].owner : PLAN_NONE});
        /* The input may be divided into pieces of equal size. So round its size up to a multiple of the
         * number of pieces. */
        most = graph_input_rows(g, l, &least);
        pieces = most / least;
        gl->size.x = most > gl->rows ? at.x * pieces : (at.x + pieces - 1) / pieces * pieces;
        if (at.x == 0)
            return err_set_at(err, -EINVAL, "layers", "layer %u has no input at micro-batch %u", l, gl->rows);
        int r = account_layer(g, l, &total, err);
        if (r < 0)
            return r;
        if (l > 0)
            g->layers[l - 1].size.y = at.x;
    }
    find_backward(g);
    return 0;
}

/* Checks the micro-batch sizes. Each size must divide the number of rows of a replica. Of the sizes of two
 * neighbouring layers, one must divide the other. */
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
    return check_tasks(t->n_layers, most, 1, err);
}

int graph_describe_table(const struct table *t, const struct graph_sizes *sizes, bool training,
                         struct graph **ret, struct err *err)
{
    int r = check_sizes(t, sizes, err);
    if (r < 0)
        return r;
    uint32_t least = sizes->rows[0];
    for (uint32_t l = 1; l < t->n_layers; l++)
        least = sizes->rows[l] < least ? sizes->rows[l] : least;
    struct graph *g = create_graph(t->n_layers, 1, 1);
    g->rows = least;
    g->n_micro = sizes->batch / least;
    g->n_replicas = sizes->replicas > 0 ? sizes->replicas : 1;
    g->training = training;
    for (uint32_t l = 0; l < t->n_layers; l++)
        g->layers[l].rows = sizes->rows[l];
    r = describe_table(g, t, err);
    if (r < 0) {
        graph_destroy(g);
        return r;
    }
    *ret = g;
    return 0;
}
