/* The method `local`: local updates (Laskin, Metz et al., 2020). docs/methods.md says when to use it.
 *
 * The model is cut into blocks. Each block has a loss of its own and is a decision group: no gradient
 * crosses from one block to another. All blocks are trained in one phase, whose graph has the blocks one
 * after another:
 *
 *     X -> block 0 -+-> block 1 -+-> block 2 -> loss of the model
 *                   +-> head 0   +-> head 1
 *
 * A head turns the outputs of its block into a loss of the same form as the loss of the model. The heads have
 * weights of their own and are added to the model for the training. The last block needs no head.
 *
 * Overlapping blocks share layers. A shared layer has one forward pass and two backward passes: the second
 * is that of a twin of the layer, which returns no gradient to the block below. The weights of the layer
 * belong to the lower block, and their update takes the mean of both gradients.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "daemon/worker/methods.h"

/* The graph of the phase while it is being made. */
struct chain {
    struct phase_list *list;
    const struct spec *spec;
    struct layer *layers;
    struct graph_link *links;
    uint32_t n;
    uint32_t *at; /* at[i]: index in `layers` of model layer i, or of its newest twin */
};

static uint32_t add_link(struct chain *c, const struct layer *l, struct graph_link link)
{
    c->layers[c->n] = *l;
    /* The links say who uses whose weights. */
    c->layers[c->n].tied = link.owner != PLAN_NONE;
    c->layers[c->n].owner = link.owner != PLAN_NONE ? link.owner : 0;
    c->links[c->n] = link;
    return c->n++;
}

static struct graph_link link_to(uint32_t input, uint32_t group)
{
    return (struct graph_link){.input = input, .twin_of = PLAN_NONE, .owner = PLAN_NONE, .group = group};
}

/* Returns the index of the layer whose outputs model layer `layer` reads, or PLAN_NONE if it reads the input
 * of the model. */
static uint32_t input_of(const struct chain *c, uint32_t layer)
{
    return layer > 0 ? c->at[layer - 1] : PLAN_NONE;
}

/* Adds a layer of the model to block `block`. `first` is true for the first layer of a block, which returns
 * no gradient. */
static void add_model_layer(struct chain *c, uint32_t layer, uint32_t block, bool first)
{
    const struct layer *l = &c->spec->model.layers[layer];
    struct graph_link link = link_to(input_of(c, layer), block);
    link.stop = first && block > 0;
    if (l->tied)
        link.owner = c->at[l->owner];
    c->at[layer] = add_link(c, l, link);
}

/* Adds a twin of a model layer that is also in the block before. The twin runs only backward, with the
 * gradient of the new block. `first` is as in add_model_layer. */
static void add_twin(struct chain *c, uint32_t layer, uint32_t lower_block, bool first)
{
    uint32_t original = c->at[layer];
    struct graph_link link = link_to(first ? c->links[original].input : input_of(c, layer), lower_block);
    link.twin_of = original;
    link.stop = first;
    if (layer_type(&c->layers[original])->params(&c->layers[original], NULL) > 0) {
        link.owner = original;
        c->layers[original].mean_uses = true;
    }
    struct layer twin = c->layers[original];
    c->at[layer] = add_link(c, &twin, link);
}

/* Adds one layer of the head of block `block` after layer `input`. `part` is the name of the layer, such as
 * "out". */
static int add_head_layer(struct chain *c, uint32_t block, uint32_t input, const struct layer *l,
                          const char *part, uint32_t *ret, struct err *err)
{
    const struct layer *added;
    char name[64];
    snprintf(name, sizeof name, "heads.%" PRIu32 ".%s", block, part);
    int r = phases_add_layer(c->list, l, arena_strdup(c->list->arena, name), &added, err);
    if (r == 0)
        *ret = add_link(c, added, link_to(input, block));
    return r;
}

/* Returns a dense layer that turns rows of the shape `in` into rows with `width` units for each token. */
static struct layer make_dense(const struct shape *in, uint32_t width, enum act act)
{
    struct layer l = {.type = &layer_dense, .in = *in, .out = *in, .dense = {.bias = true, .act = act}};
    l.out.dim[in->rank - 1] = width;
    return l;
}

/* Returns the last norm of the model, or a layer norm if the model has none. The heads of a transformer begin
 * with such a norm. */
static struct layer make_norm(const struct spec *s, const struct shape *in)
{
    struct layer l = {.type = &layer_norm, .norm = {.bias = true, .eps = 1e-5f}};
    for (uint32_t i = 0; i < s->model.n_layers; i++)
        if (s->model.layers[i].type == &layer_norm)
            l = s->model.layers[i];
    l.in = l.out = *in;
    return l;
}

/* Returns the loss at the end of a head over rows of the shape `in`. If the loss of the model has weights, as
 * in transformers, the loss of the head has weights of its own. */
static struct layer make_loss(const struct spec *s, const struct shape *in)
{
    struct layer l = s->model.layers[s->model.n_layers - 1];
    l.in = *in;
    l.tied = false;
    l.owner = 0;
    return l;
}

/* Adds the head of block `block`. Its layers are a norm if the model is one of tokens, a hidden layer if the
 * job asks for one, a projection to the classes unless the loss includes one, and the loss. */
static int add_head(struct chain *c, uint32_t block, uint32_t end, struct err *err)
{
    const struct spec *s = c->spec;
    const struct layer *loss = &s->model.layers[s->model.n_layers - 1];
    struct layer l;
    struct shape shape = c->layers[end].out;
    uint32_t at = end;
    int r = 0;
    if (s->tokens) {
        l = make_norm(s, &shape);
        r = add_head_layer(c, block, at, &l, "norm", &at, err);
    }
    if (r == 0 && s->local.head_hidden > 0) {
        l = make_dense(&shape, s->local.head_hidden, s->tokens ? ACT_GELU : ACT_RELU);
        shape = l.out;
        r = add_head_layer(c, block, at, &l, "hidden", &at, err);
    }
    if (r == 0 && layer_type(loss)->params(loss, NULL) == 0) {
        l = make_dense(&shape, loss->in.dim[loss->in.rank - 1], ACT_NONE);
        shape = l.out;
        r = add_head_layer(c, block, at, &l, "out", &at, err);
    }
    l = make_loss(s, &shape);
    return r < 0 ? r
                 : add_head_layer(c, block, at, &l, layer_type(loss)->params(loss, NULL) > 0 ? "out" : "loss",
                                  &at, err);
}

/* Adds a block with its head. `next` is the first model layer that is in no earlier block. */
static int add_block(struct chain *c, uint32_t block, uint32_t next, struct err *err)
{
    const struct spec_local *local = &c->spec->local;
    const struct spec_block *b = &local->blocks[block];
    bool last = block + 1 == local->n_blocks;
    uint32_t end = last ? c->spec->model.n_layers - 1 : b->last;
    for (uint32_t l = b->first; l <= end; l++)
        if (l < next)
            add_twin(c, l, block - 1, l == b->first);
        else
            add_model_layer(c, l, block, l == b->first);
    return last ? 0 : add_head(c, block, c->at[end], err);
}

int method_local(const struct spec *s, struct phase_list *ret, struct err *err)
{
    const struct spec_local *local = &s->local;
    struct phase *p = phase_add(ret, s, "training");
    /* A head has at most five layers, and a layer that two blocks share has one twin. */
    uint32_t most = 2 * s->model.n_layers + 5 * local->n_blocks, next = 0;
    struct chain c = {.list = ret,
                      .spec = s,
                      .layers = arena_alloc_array(ret->arena, most, sizeof *c.layers),
                      .links = arena_alloc_array(ret->arena, most, sizeof *c.links),
                      .at = arena_alloc_array(ret->arena, s->model.n_layers, sizeof *c.at)};
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < local->n_blocks; i++) {
        r = add_block(&c, i, next, err);
        next = local->blocks[i].last + 1;
    }
    if (r < 0)
        return r;
    assert(c.n <= most);
    p->model = (struct model){c.layers, c.n};
    p->links = c.links;
    p->cycle_steps = local->resident_steps > 0 ? local->resident_steps : 1;
    p->cycle_auto = local->resident_steps == 0 && local->scheme != LOCAL_OVERLAPPING && local->n_blocks > 1;
    phase_set_groups(ret, p, local->n_blocks);
    for (uint32_t i = 0; i < local->n_blocks; i++)
        p->rate[i] = local->rates[i];
    return 0;
}
