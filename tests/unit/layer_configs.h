/* Some configurations of every kind of layer in layers.def, for tests that run every kind. A kind without
 * configurations here does not compile. */
#ifndef TESTS_UNIT_LAYER_CONFIGS_H
#define TESTS_UNIT_LAYER_CONFIGS_H

#include "kernels/layer.h"

#define DENSE(bias_, act_, dropout_)                                                                         \
    {                                                                                                        \
        .type = &layer_dense, .id = 3, .key = 3, .in = {1, {7}}, .out = {1, {5}}, .dense = {                 \
            .bias = bias_,                                                                                   \
            .act = act_,                                                                                     \
            .dropout = dropout_                                                                              \
        }                                                                                                    \
    }
#define DENSE_ALL(act)                                                                                       \
    DENSE(false, act, 0), DENSE(true, act, 0), DENSE(false, act, 0.4f), DENSE(true, act, 0.4f)

static const struct layer dense_configs[] = {
    DENSE_ALL(ACT_NONE),
    DENSE_ALL(ACT_RELU),
    DENSE_ALL(ACT_GELU),
    DENSE_ALL(ACT_TANH),
    {.type = &layer_dense, .in = {1, {1}}, .out = {1, {1}}, .dense = {.bias = true}},
    {.type = &layer_dense,
     .id = 1,
     .in = {1, {17}},
     .out = {1, {33}},
     .dense = {.bias = true, .act = ACT_GELU}},
    {.type = &layer_dense,
     .in = {2, {3, 4}},
     .out = {2, {3, 5}},
     .dense = {.bias = true, .act = ACT_SILU, .dropout = 0.3f}},
};
static const struct layer activation_configs[] = {
    {.type = &layer_activation, .in = {1, {9}}, .out = {1, {9}}, .activation = {.act = ACT_NONE}},
    {.type = &layer_activation, .in = {1, {9}}, .out = {1, {9}}, .activation = {.act = ACT_RELU}},
    {.type = &layer_activation, .in = {1, {9}}, .out = {1, {9}}, .activation = {.act = ACT_GELU}},
    {.type = &layer_activation, .in = {1, {9}}, .out = {1, {9}}, .activation = {.act = ACT_TANH}},
};
static const struct layer dropout_configs[] = {
    {.type = &layer_dropout, .id = 6, .key = 6, .in = {1, {11}}, .out = {1, {11}}, .dropout = {.p = 0.5f}},
};
static const struct layer mse_configs[] = {
    {.type = &layer_mse, .in = {1, {6}}},
    {.type = &layer_mse, .in = {1, {1}}},
};
static const struct layer label_vectors_configs[] = {
    {.type = &layer_label_vectors, .key = 7, .in = {1, {6}}, .label_vectors = {.classes = 3, .scale = 2}},
    {.type = &layer_label_vectors, .key = 7, .in = {1, {1}}, .label_vectors = {.classes = 2, .scale = 0.5f}},
};
static const struct layer softmax_xent_configs[] = {
    {.type = &layer_softmax_xent, .in = {1, {10}}},
    {.type = &layer_softmax_xent, .in = {1, {1}}},
    {.type = &layer_softmax_xent, .in = {2, {3, 7}}, .softmax_xent = {.smoothing = 0.2f}},
};
static const struct layer norm_configs[] = {
    {.type = &layer_norm, .in = {2, {3, 5}}, .out = {2, {3, 5}}, .norm = {.bias = true, .eps = 1e-5f}},
    {.type = &layer_norm, .in = {2, {3, 5}}, .out = {2, {3, 5}}, .norm = {.eps = 1e-5f}},
    {.type = &layer_norm, .in = {2, {3, 5}}, .out = {2, {3, 5}}, .norm = {.rms = true, .eps = 1e-3f}},
    {.type = &layer_norm, .in = {1, {7}}, .out = {1, {7}}, .norm = {.bias = true, .eps = 0.1f}},
};
static const struct layer embedding_configs[] = {
    {.type = &layer_embedding, .in = {2, {3, 1}}, .out = {2, {3, 4}}, .embedding = {.vocab = 6}},
    {.type = &layer_embedding, .in = {1, {1}}, .out = {1, {5}}, .embedding = {.vocab = 2}},
};
static const struct layer positions_configs[] = {
    {.type = &layer_positions, .key = 9, .in = {2, {3, 4}}, .out = {2, {3, 4}}, .positions = {.count = 3}},
    {.type = &layer_positions,
     .key = 9,
     .in = {2, {3, 4}},
     .out = {2, {3, 4}},
     .positions = {.count = 5, .dropout = 0.3f}},
};
#define ATTENTION .type = &layer_attention, .key = 4, .in = {2, {5, 8}}, .out = {2, {5, 8}}
static const struct layer attention_configs[] = {
    {ATTENTION, .attention = {.heads = 2, .kv_heads = 2, .bias = true}},
    {ATTENTION, .attention = {.heads = 1, .kv_heads = 1}},
    {ATTENTION, .attention = {.heads = 4, .kv_heads = 2, .rope_theta = 100}},
    {ATTENTION, .attention = {.heads = 4, .kv_heads = 1, .bias = true, .rope_theta = 10000, .dropout = 0.3f}},
    {ATTENTION, .attention = {.heads = 2, .kv_heads = 2, .bias = true, .score_dropout = 0.3f}},
};
#define MLP .type = &layer_mlp, .key = 5, .in = {2, {3, 4}}, .out = {2, {3, 4}}
static const struct layer mlp_configs[] = {
    {MLP, .mlp = {.hidden = 7, .bias = true, .act = ACT_GELU}},
    {MLP, .mlp = {.hidden = 7, .act = ACT_GELU_ERF}},
    {MLP, .mlp = {.hidden = 7, .act = ACT_NONE}},
    {MLP, .mlp = {.hidden = 7, .gated = true}},
    {MLP, .mlp = {.hidden = 7, .gated = true, .bias = true}},
    {MLP, .mlp = {.hidden = 7, .bias = true, .act = ACT_RELU, .dropout = 0.3f}},
    {MLP, .mlp = {.hidden = 7, .gated = true, .dropout = 0.3f}},
};
static const struct layer lm_head_configs[] = {
    {.type = &layer_lm_head, .in = {2, {3, 4}}, .lm_head = {.vocab = 9}},
    {.type = &layer_lm_head, .in = {2, {3, 4}}, .lm_head = {.vocab = 9, .smoothing = 0.1f}},
};

/* As transformers are made: a norm before each part. */
static const struct layer attention_part[] = {
    {.type = &layer_norm,
     .key = 21,
     .in = {2, {5, 4}},
     .out = {2, {5, 4}},
     .norm = {.bias = true, .eps = 1e-3f},
     .name = "ln"},
    {.type = &layer_attention,
     .key = 22,
     .in = {2, {5, 4}},
     .out = {2, {5, 4}},
     .attention =
         {.bias = true, .heads = 2, .kv_heads = 1, .rope_theta = 50, .dropout = 0.2f, .score_dropout = 0.2f},
     .name = "attn"},
};
static const struct layer mlp_part[] = {
    {.type = &layer_norm,
     .key = 23,
     .in = {2, {5, 4}},
     .out = {2, {5, 4}},
     .norm = {.rms = true, .eps = 1e-3f},
     .name = "ln"},
    {.type = &layer_mlp,
     .key = 24,
     .in = {2, {5, 4}},
     .out = {2, {5, 4}},
     .mlp = {.gated = true, .hidden = 6},
     .name = "mlp"},
};
static const struct layer uneven_part[] = {
    {.type = &layer_dense,
     .key = 25,
     .in = {2, {5, 4}},
     .out = {2, {5, 7}},
     .dense = {.act = ACT_GELU, .dropout = 0.2f},
     .name = "up"},
    {.type = &layer_activation, .in = {2, {5, 7}}, .out = {2, {5, 7}}, .activation = {.act = ACT_TANH}},
    {.type = &layer_dense,
     .key = 26,
     .in = {2, {5, 7}},
     .out = {2, {5, 3}},
     .dense = {.bias = true},
     .name = "down"},
};
static const struct layer halves[] = {
    {.type = &layer_residual, .in = {2, {5, 4}}, .out = {2, {5, 4}}, .inner = attention_part, .n_inner = 2},
    {.type = &layer_residual, .in = {2, {5, 4}}, .out = {2, {5, 4}}, .inner = mlp_part, .n_inner = 2},
    {.type = &layer_block,
     .in = {2, {5, 4}},
     .out = {2, {5, 3}},
     .inner = uneven_part,
     .n_inner = 3,
     .name = "end"},
};
static const struct layer residual_configs[] = {
    {.type = &layer_residual, .in = {2, {5, 4}}, .out = {2, {5, 4}}, .inner = attention_part, .n_inner = 2},
    {.type = &layer_residual, .in = {2, {5, 4}}, .out = {2, {5, 4}}, .inner = mlp_part, .n_inner = 2},
    {.type = &layer_residual, .in = {2, {5, 4}}, .out = {2, {5, 4}}, .inner = mlp_part, .n_inner = 1},
};
static const struct layer block_configs[] = {
    {.type = &layer_block, .in = {2, {5, 4}}, .out = {2, {5, 4}}, .inner = halves, .n_inner = 2},
    {.type = &layer_block, .in = {2, {5, 4}}, .out = {2, {5, 3}}, .inner = halves, .n_inner = 3},
    {.type = &layer_block, .in = {2, {5, 4}}, .out = {2, {5, 3}}, .inner = uneven_part, .n_inner = 3},
};

/* All configurations of one kind of layer. */
struct configs {
    const struct layer *at;
    uint32_t n;
};
#define LAYER(name)                                                                                          \
    static const struct configs name##_kind = {name##_configs,                                               \
                                               sizeof name##_configs / sizeof name##_configs[0]};
#include "kernels/layers.def"
#undef LAYER

#endif
