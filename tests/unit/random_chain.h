/* Random models and machines for property tests: everything follows from one seed. */
#ifndef TESTS_RANDOM_CHAIN_H
#define TESTS_RANDOM_CHAIN_H

#include <string.h>

#include "base/rng.h"
#include "kernels/layer.h"
#include "scheduler/graph.h"
#include "scheduler/machine.h"

#define RANDOM_MAX_LAYERS 12

struct random_chain {
    struct layer layers[RANDOM_MAX_LAYERS];
    struct model model;
    struct optimizer optimizer;
    uint32_t rows, n_micro;
    uint32_t n_replicas; /* that share these; 0: one */
    bool skip_nonfinite;
};

static inline struct layer random_layer(struct rng *r, uint32_t id, uint32_t in, uint32_t max_width)
{
    struct layer l = {.id = id, .in = in, .out = in};
    switch (rng_below(r, 6)) {
    case 0:
        l.kind = LAYER_activation;
        l.act = ACT_RELU + rng_below(r, 3);
        return l;
    case 1:
        l.kind = LAYER_dropout;
        l.dropout = 0.25f;
        return l;
    }
    l.kind = LAYER_dense;
    l.out = 1 + rng_below(r, max_width);
    l.bias = rng_below(r, 4) != 0;
    l.act = rng_below(r, ACT_COUNT);
    l.dropout = rng_below(r, 3) == 0 ? 0.1f : 0;
    return l;
}

/* At least one layer has weights. Loss: softmax cross-entropy or, now and then, mean squared error. */
static inline void random_chain(struct random_chain *c, struct rng *r, uint32_t max_width)
{
    memset(c, 0, sizeof *c);
    uint32_t n = 1 + rng_below(r, RANDOM_MAX_LAYERS - 1), width = 1 + rng_below(r, max_width);
    bool trained = false;
    for (uint32_t i = 0; i < n; i++) {
        c->layers[i] = random_layer(r, i, width, max_width);
        if (i == n - 1 && !trained)
            c->layers[i] =
                (struct layer){.kind = LAYER_dense, .id = i, .in = width, .out = 1 + rng_below(r, max_width)};
        trained |= c->layers[i].kind == LAYER_dense;
        width = c->layers[i].out;
    }
    c->layers[n] =
        (struct layer){.kind = rng_below(r, 4) == 0 ? LAYER_mse : LAYER_softmax_xent, .id = n, .in = width};
    c->model = (struct model){c->layers, n + 1};
    c->rows = 1 + rng_below(r, 20);
    c->n_micro = 1 + rng_below(r, 5);
    c->skip_nonfinite = rng_below(r, 8) == 0;
    c->optimizer = (struct optimizer){
        .kind = rng_below(r, 2) ? OPTIMIZER_ADAMW : OPTIMIZER_SGD,
        .beta1 = 0.9f,
        .beta2 = 0.999f,
        .eps = 1e-8f,
        .momentum = rng_below(r, 2) ? 0.9f : 0,
        .weight_decay = 0.01f,
        .clip = rng_below(r, 2) ? 0.5 : 0,
    };
}

static inline int random_graph(const struct random_chain *c, bool training, struct graph **ret)
{
    struct graph_config config = {.model = &c->model,
                                  .optimizer = &c->optimizer,
                                  .rows = c->rows,
                                  .n_micro = c->n_micro,
                                  .n_replicas = c->n_replicas,
                                  .training = training,
                                  .skip_nonfinite = c->skip_nonfinite};
    return graph_build(&config, ret, NULL);
}

#endif
