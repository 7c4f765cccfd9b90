/* Makes random graphs whose layers do not form a chain. They have forks, several losses, several decision
 * groups, shared weights, twins, and layers with buffers. The state of the random generator determines the
 * graph. */
#ifndef TESTS_RANDOM_LINKED_H
#define TESTS_RANDOM_LINKED_H

#include "tests/unit/layer_running.h"
#include "tests/unit/random_chain.h"

/* Counts of what a random graph has. A test adds them up to check that its cases have everything. */
struct linked_features {
    uint32_t losses, forks, stops, twins, tied, means, groups, buffers;
};

static inline struct graph_link linked_to(uint32_t input, uint32_t group)
{
    return (struct graph_link){.input = input, .twin_of = PLAN_NONE, .owner = PLAN_NONE, .group = group};
}

static inline struct layer linked_dense(uint32_t in, uint32_t out, struct rng *r)
{
    return (struct layer){
        .type = &layer_dense,
        .in = shape_vector(in),
        .out = shape_vector(out),
        .dense = {.bias = true, .act = rng_below(r, ACT_COUNT), .dropout = rng_below(r, 4) == 0 ? 0.1f : 0}};
}

/* Adds a layer and returns its number. */
static inline uint32_t linked_add(struct random_chain *c, struct layer l, struct graph_link link)
{
    const uint32_t n = c->model.n_layers++;
    c->layers[n] = l;
    c->links[n] = link;
    return n;
}

/* Returns whether a layer already returns its gradient to `to`. */
static inline bool linked_is_taken(const struct random_chain *c, uint32_t to)
{
    for (uint32_t l = 0; l < c->model.n_layers; l++)
        if (c->links[l].input == to && !c->links[l].stop)
            return true;
    return false;
}

/* Returns the number of layers that use the weights of `owner`, including the owner. */
static inline uint32_t linked_uses(const struct random_chain *c, uint32_t owner)
{
    uint32_t n = 1;
    for (uint32_t l = 0; l < c->model.n_layers; l++)
        n += c->links[l].owner == owner;
    return n;
}

/* Adds a twin of layer `of` for a second gradient, and returns the twin's number. */
static inline uint32_t linked_twin(struct random_chain *c, uint32_t of, bool stop)
{
    struct graph_link link = c->links[of];
    link.twin_of = of;
    link.owner = link.owner != PLAN_NONE ? link.owner : of;
    link.stop = stop;
    return linked_add(c, c->layers[of], link);
}

/* Gives the layers their numbers. A twin has the number and the random keys of its original. */
static inline void linked_number(struct random_chain *c)
{
    model_number(&c->model);
    for (uint32_t l = 0; l < c->model.n_layers; l++)
        if (c->links[l].twin_of != PLAN_NONE) {
            c->layers[l].id = c->layers[c->links[l].twin_of].id;
            c->layers[l].key = c->layers[c->links[l].twin_of].key;
        }
}

/* Picks a layer that another layer can read: neither a loss nor a twin. The newest layer is the most
 * likely. */
static inline uint32_t linked_pick_input(const struct random_chain *c, struct rng *r)
{
    const uint32_t n = c->model.n_layers;
    uint32_t l = rng_below(r, 3) > 0 ? n - 1 : rng_below(r, n);
    while (c->layers[l].type->is_loss || c->links[l].twin_of != PLAN_NONE)
        l = (l + n - 1) % n;
    return l;
}

/* Connects a new layer with `input`. If another layer already returns a gradient there, the new layer stops
 * its gradient, or returns it to a twin. */
static inline struct graph_link linked_reader(struct random_chain *c, uint32_t input, uint32_t group,
                                              struct rng *r, struct linked_features *f)
{
    const uint32_t owner = c->links[input].owner != PLAN_NONE ? c->links[input].owner : input;
    struct graph_link link = linked_to(input, group);
    f->forks += linked_is_taken(c, input);
    link.stop = linked_is_taken(c, input) || rng_below(r, 6) == 0;
    if (linked_is_taken(c, input) && rng_below(r, 2) && c->model.n_layers + 4 < LINKED_MAX_LAYERS &&
        linked_uses(c, owner) < OP_USES) {
        link.input = linked_twin(c, input, true);
        link.stop = false;
        f->twins++;
    }
    f->stops += link.stop;
    return link;
}

static inline void linked_optimizers(struct random_chain *c, struct rng *r)
{
    for (uint32_t i = 0; i < RANDOM_MAX_GROUPS; i++) {
        c->optimizers[i] = c->optimizer;
        c->optimizers[i].kind = rng_below(r, 2) ? OPTIMIZER_ADAMW : OPTIMIZER_SGD;
        c->optimizers[i].clip = rng_below(r, 2) ? 0.5 : 0;
    }
}

/* Adds a loss that reads `input`, with the targets of a classification or of a regression. */
static inline void linked_loss(struct random_chain *c, uint32_t input, struct rng *r,
                               struct linked_features *f)
{
    struct layer l = {.type = rng_below(r, 3) == 0 ? &layer_mse : &layer_softmax_xent,
                      .in = c->layers[input].out};
    linked_add(c, l, linked_to(input, c->links[input].group));
    f->losses++;
}

static inline bool linked_is_read(const struct random_chain *c, uint32_t l)
{
    for (uint32_t r = l + 1; r < c->model.n_layers; r++)
        if (c->links[r].input == l || (c->links[r].twin_of == l && linked_is_taken(c, r)))
            return true;
    return false;
}

/* Draws a graph of dense layers and layers with buffers, all of one width. Every output that no layer reads
 * feeds a loss, as long as there is room for more layers. */
static inline void random_linked(struct random_chain *c, struct rng *r, struct linked_features *f)
{
    random_chain(c, r, 8); /* for the numbers of rows and micro-batches, and the optimizer */
    memset(c->layers, 0, sizeof c->layers);
    *f = (struct linked_features){0};
    c->linked = true;
    c->model = (struct model){c->layers, 0};
    c->n_groups = 1 + rng_below(r, 3);
    linked_optimizers(c, r);
    const uint32_t width = 2 + rng_below(r, 20), n = 2 + rng_below(r, 6);
    linked_add(c, linked_dense(width, width, r), linked_to(PLAN_NONE, 0));
    for (uint32_t i = 1; i < n; i++) {
        const uint32_t input = linked_pick_input(c, r);
        struct graph_link link = linked_reader(c, input, rng_below(r, c->n_groups), r, f);
        struct layer l = linked_dense(width, width, r);
        const uint32_t owner = linked_pick_input(c, r);
        if (rng_below(r, 5) == 0) {
            l = (struct layer){.type = &layer_running, .in = shape_vector(width), .out = shape_vector(width)};
            f->buffers++;
        } else if (rng_below(r, 2) == 0 && c->layers[owner].type == &layer_dense &&
                   c->links[owner].owner == PLAN_NONE && linked_uses(c, owner) < OP_USES) {
            link.owner = owner;
            link.group = c->links[owner].group;
            c->layers[owner].mean_uses = rng_below(r, 2);
            f->tied++;
            f->means += c->layers[owner].mean_uses;
        }
        linked_add(c, l, link);
    }
    for (uint32_t l = 0, end = c->model.n_layers; l < end; l++)
        if (c->links[l].twin_of == PLAN_NONE && !linked_is_read(c, l) &&
            (c->model.n_layers + 1 < LINKED_MAX_LAYERS || f->losses == 0))
            linked_loss(c, l, r, f);
    f->groups = c->n_groups;
    linked_number(c);
}

/* Makes a graph by hand that has everything: a fork, two losses, two decision groups, one W used three times,
 * a twin, and buffers. Layers 0 to 6 are group 0, and layers 7 and 8 are group 1.
 *
 *     X -> 0 dense -> 1 dense (W1) -> 2 dense (W1) -+-> 3 running (B) -> 4 dense -> 5 softmax_xent
 *                                                   |
 *                     6, twin of 2 (W1 once more) <-+-> 7 dense -> 8 mse
 *
 * The output of layer 2 is read by layer 3, which returns its gradient to layer 2, and by layer 7, which
 * returns it to the twin. The gradients of the three uses of W1 are averaged. The caller sets rows,
 * micro-batches and replicas. */
static inline void linked_by_hand(struct random_chain *c, struct rng *r, uint32_t width, uint32_t classes)
{
    random_chain(c, r, 8); /* for the optimizer */
    memset(c->layers, 0, sizeof c->layers);
    c->linked = true;
    c->model = (struct model){c->layers, 0};
    c->n_groups = 2;
    linked_optimizers(c, r);
    for (uint32_t l = 0; l < 3; l++)
        linked_add(c, linked_dense(width, width, r), linked_to(l > 0 ? l - 1 : PLAN_NONE, 0));
    c->links[2].owner = 1;
    c->layers[1].mean_uses = true;
    linked_add(c,
               (struct layer){.type = &layer_running, .in = shape_vector(width), .out = shape_vector(width)},
               linked_to(2, 0));
    linked_add(c, linked_dense(width, classes, r), linked_to(3, 0));
    linked_add(c, (struct layer){.type = &layer_softmax_xent, .in = shape_vector(classes)}, linked_to(4, 0));
    linked_twin(c, 2, true);
    linked_add(c, linked_dense(width, width, r), linked_to(6, 1));
    linked_add(c, (struct layer){.type = &layer_mse, .in = shape_vector(width)}, linked_to(7, 1));
    linked_number(c);
}

#endif
