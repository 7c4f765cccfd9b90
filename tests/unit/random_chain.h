/* Makes random models and machines for property tests. One seed determines everything. */
#ifndef TESTS_RANDOM_CHAIN_H
#define TESTS_RANDOM_CHAIN_H

#include <string.h>

#include "base/rng.h"
#include "kernels/layer.h"
#include "scheduler/graph.h"
#include "scheduler/machine.h"

#define RANDOM_MAX_LAYERS 12
#define LINKED_MAX_LAYERS 20 /* of graphs that are no chains, tests/unit/random_linked.h */
#define RANDOM_MAX_GROUPS 4

struct random_chain {
    struct layer layers[LINKED_MAX_LAYERS];
    struct model model;
    struct optimizer optimizer;
    uint32_t rows, n_micro;
    uint32_t n_replicas; /* that share these; 0: one */
    uint32_t steps;      /* of a cycle; 0: one */
    bool skip_nonfinite;
    /* Only where the layers form no plain chain (linked): how they are connected, and the optimizers of their
     * decision groups. */
    bool linked;
    struct graph_link links[LINKED_MAX_LAYERS];
    struct optimizer optimizers[RANDOM_MAX_GROUPS];
    uint32_t n_groups;
};

static inline const struct optimizer *random_optimizers(const struct random_chain *c)
{
    return c->linked ? c->optimizers : &c->optimizer;
}

static inline struct layer random_layer(struct rng *r, uint32_t id, uint32_t in, uint32_t max_width)
{
    struct layer l = {.id = id, .in = shape_vector(in), .out = shape_vector(in)};
    switch (rng_below(r, 6)) {
    case 0:
        l.type = &layer_activation;
        l.activation.act = ACT_RELU + rng_below(r, 3);
        return l;
    case 1:
        l.type = &layer_dropout;
        l.dropout.p = 0.25f;
        return l;
    }
    l.type = &layer_dense;
    l.out = shape_vector(1 + rng_below(r, max_width));
    l.dense.bias = rng_below(r, 4) != 0;
    l.dense.act = rng_below(r, ACT_COUNT);
    l.dense.dropout = rng_below(r, 3) == 0 ? 0.1f : 0;
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
            c->layers[i] = (struct layer){.type = &layer_dense,
                                          .id = i,
                                          .in = shape_vector(width),
                                          .out = shape_vector(1 + rng_below(r, max_width))};
        trained |= c->layers[i].type == &layer_dense;
        width = layer_out(&c->layers[i]);
    }
    c->layers[n] = (struct layer){
        .type = rng_below(r, 4) == 0 ? &layer_mse : &layer_softmax_xent, .id = n, .in = shape_vector(width)};
    c->model = (struct model){c->layers, n + 1};
    model_number(&c->model);
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

/* The insides of transformer blocks: the same for every chain, so that a chain may be copied. */
#define RANDOM_SEQ   4
#define RANDOM_WIDTH 12
#define RANDOM_OVER(type_, key_)                                                                             \
    .type = &(type_), .key = key_, .in = {2, {RANDOM_SEQ, RANDOM_WIDTH}},                                    \
    .out = {2, {RANDOM_SEQ, RANDOM_WIDTH}}
static const struct layer random_gpt_attention[] = {
    {RANDOM_OVER(layer_norm, 101), .norm = {.bias = true, .eps = 1e-5f}, .name = "ln_1"},
    {RANDOM_OVER(layer_attention, 102),
     .attention = {.heads = 3,
                   .kv_heads = 3,
                   .bias = true,
                   .score_dropout = 0.1f,
                   .dropout = 0.1f,
                   .init_std = 0.3f,
                   .proj_std = 0.2f},
     .name = "attn"},
};
static const struct layer random_gpt_mlp[] = {
    {RANDOM_OVER(layer_norm, 103), .norm = {.bias = true, .eps = 1e-5f}, .name = "ln_2"},
    {RANDOM_OVER(layer_mlp, 104),
     .mlp =
         {.hidden = 20, .bias = true, .act = ACT_GELU, .dropout = 0.1f, .init_std = 0.3f, .proj_std = 0.2f},
     .name = "mlp"},
};
static const struct layer random_llama_attention[] = {
    {RANDOM_OVER(layer_norm, 105), .norm = {.rms = true, .eps = 1e-5f}, .name = "ln_1"},
    {RANDOM_OVER(layer_attention, 106),
     .attention = {.heads = 2, .kv_heads = 1, .rope_theta = 100, .init_std = 0.3f, .proj_std = 0.2f},
     .name = "attn"},
};
static const struct layer random_llama_mlp[] = {
    {RANDOM_OVER(layer_norm, 107), .norm = {.rms = true, .eps = 1e-5f}, .name = "ln_2"},
    {RANDOM_OVER(layer_mlp, 108), .mlp = {.hidden = 16, .gated = true, .init_std = 0.3f, .proj_std = 0.2f},
     .name = "mlp"},
};
static const struct layer random_gpt_halves[] = {
    {RANDOM_OVER(layer_residual, 0), .inner = random_gpt_attention, .n_inner = 2},
    {RANDOM_OVER(layer_residual, 0), .inner = random_gpt_mlp, .n_inner = 2},
};
static const struct layer random_llama_halves[] = {
    {RANDOM_OVER(layer_residual, 0), .inner = random_llama_attention, .n_inner = 2},
    {RANDOM_OVER(layer_residual, 0), .inner = random_llama_mlp, .n_inner = 2},
};

/* Draws a language model that reads tokens and whose head may be tied to its embedding. random_chain draws
 * the number of micro-batches and the optimizer. */
static inline void random_transformer(struct random_chain *c, struct rng *r)
{
    random_chain(c, r, 8);
    uint32_t n = 0, blocks = 1 + rng_below(r, 5), vocab = 17 + rng_below(r, 30);
    bool gpt = rng_below(r, 2), tied = rng_below(r, 3) > 0;
    memset(c->layers, 0, sizeof c->layers);
    c->layers[n++] = (struct layer){.type = &layer_embedding,
                                    .in = shape_sequence(RANDOM_SEQ, 1),
                                    .out = shape_sequence(RANDOM_SEQ, RANDOM_WIDTH),
                                    .embedding = {.vocab = vocab, .init_std = 0.3f}};
    if (gpt)
        c->layers[n++] =
            (struct layer){RANDOM_OVER(layer_positions, n),
                           .positions = {.count = RANDOM_SEQ + 1, .dropout = 0.1f, .init_std = 0.3f}};
    for (uint32_t i = 0; i < blocks; i++, n++)
        c->layers[n] = (struct layer){RANDOM_OVER(layer_block, n),
                                      .inner = gpt ? random_gpt_halves : random_llama_halves, .n_inner = 2};
    c->layers[n] =
        (struct layer){RANDOM_OVER(layer_norm, n), .norm = {.rms = !gpt, .bias = gpt, .eps = 1e-5f}};
    n++;
    c->layers[n] = (struct layer){
        .type = &layer_lm_head,
        .key = n,
        .in = shape_sequence(RANDOM_SEQ, RANDOM_WIDTH),
        .tied = tied,
        .lm_head = {.vocab = vocab, .smoothing = rng_below(r, 2) ? 0.1f : 0, .init_std = 0.3f}};
    for (uint32_t i = 0; i <= n; i++)
        c->layers[i].id = i;
    c->model = (struct model){c->layers, n + 1};
    c->rows = 1 + rng_below(r, 5);
    c->optimizer.no_decay = rng_below(r, 2) ? 1u << PARAM_BIAS | 1u << PARAM_NORM : 0;
}

/* Returns a copy of a block's inner layers with another type. The copies are static, so that a chain may be
 * copied, and the same call always writes the same values. */
static inline const struct layer *random_retyped(const struct layer *inner, uint32_t n, enum dtype dtype)
{
    static struct {
        const struct layer *from;
        enum dtype dtype;
        struct layer to[2];
    } copies[24];
    uint32_t i = 0;
    while (copies[i].from != NULL && (copies[i].from != inner || copies[i].dtype != dtype))
        i++;
    copies[i].from = inner;
    copies[i].dtype = dtype;
    for (uint32_t k = 0; k < n; k++) {
        copies[i].to[k] = inner[k];
        copies[i].to[k].dtype = copies[i].to[k].w_dtype = dtype;
        if (inner[k].n_inner > 0)
            copies[i].to[k].inner = random_retyped(inner[k].inner, inner[k].n_inner, dtype);
    }
    return copies[i].to;
}

/* Gives all layers weights and activations of a type. With 16 bits, the optimizers keep master weights. With
 * F16, they also scale losses. */
static inline void random_precision(struct random_chain *c, enum dtype dtype)
{
    for (uint32_t l = 0; l < c->model.n_layers; l++) {
        c->layers[l].dtype = c->layers[l].w_dtype = dtype;
        if (c->layers[l].n_inner > 0)
            c->layers[l].inner = random_retyped(c->layers[l].inner, c->layers[l].n_inner, dtype);
    }
    for (uint32_t i = 0; i <= RANDOM_MAX_GROUPS; i++) {
        struct optimizer *o = i < RANDOM_MAX_GROUPS ? &c->optimizers[i] : &c->optimizer;
        o->master = dtype != DTYPE_F32;
        o->scaling = (struct loss_scaling){.start = 64, .growth_steps = dtype == DTYPE_F16 ? 2 : 0};
    }
}

/* Returns the precision of a case: fp32 for half of the seeds, bf16 for a third, fp16 for a sixth. It is not
 * drawn from the generator of the case, so the cases in fp32 are those of before there were precisions. */
static inline enum dtype random_dtype(uint32_t seed)
{
    return seed % 2 == 0 ? DTYPE_F32 : seed % 6 == 5 ? DTYPE_F16 : DTYPE_BF16;
}

static inline int random_graph(const struct random_chain *c, bool training, struct graph **ret)
{
    struct graph_config config = {.model = &c->model,
                                  .links = c->linked ? c->links : NULL,
                                  .optimizer = random_optimizers(c),
                                  .n_groups = c->n_groups,
                                  .steps = c->steps,
                                  .rows = c->rows,
                                  .n_micro = c->n_micro,
                                  .n_replicas = c->n_replicas,
                                  .training = training,
                                  .skip_nonfinite = c->skip_nonfinite};
    return graph_build(&config, ret, NULL);
}

#endif
