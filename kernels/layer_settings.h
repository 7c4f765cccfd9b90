/* The settings of each kind of layer. struct layer (layer.h) holds the settings of its own kind in a union,
 * for example l->dense for a layer whose type is layer_dense. A kind that is missing here has no settings.
 *
 * All settings are plain data. The builder of the model fills them in, and the functions of the kind read
 * them. Several kinds have these settings:
 *
 *     bias       if true, the layer adds a learned bias
 *     dropout    the probability with which dropout sets an element of the output to 0; 0 means no dropout
 *     init_std   the standard deviation of the initial weights. If it is not 0, biases start at 0. If it is
 *                0, the table at enum param_init (layer.h) says how weights and biases start.
 *     proj_std   the same for the weights of "proj", the last matrix of the layer. The output of proj is
 *                added to the residual, so models often give it a smaller value.
 */
#ifndef KERNELS_LAYER_SETTINGS_H
#define KERNELS_LAYER_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/op.h"

struct activation_settings {
    enum act act;
};

struct attention_settings {
    /* The number of query heads, and the number of key and value heads. `heads` must be a multiple of
     * `kv_heads`, and the width of a token must be a multiple of `heads`. */
    uint32_t heads, kv_heads;
    bool bias;
    /* The base of the rotary positions. If the layer has no rotary positions, the base is 0. */
    float rope_theta;
    float score_dropout; /* probability that a score is dropped */
    float dropout;
    float init_std, proj_std;
};

struct dense_settings {
    bool bias;
    enum act act; /* applied to the product before dropout */
    float dropout;
    float init_std;
};

struct dropout_settings {
    float p; /* probability that an element becomes 0 */
};

struct embedding_settings {
    uint32_t vocab; /* number of token ids */
    float init_std;
};

struct label_vectors_settings {
    uint32_t classes; /* number of vectors */
    /* The vectors are drawn at random: each element is uniform between 0 and `scale`. */
    float scale;
};

struct lm_head_settings {
    uint32_t vocab;  /* number of token ids */
    float smoothing; /* label smoothing; 0 means none */
    float init_std;
};

struct mlp_settings {
    uint32_t hidden; /* width of the hidden vector */
    bool bias;
    bool gated;   /* swiglu instead of `act` */
    enum act act; /* not used if gated */
    float dropout;
    float init_std, proj_std;
};

struct norm_settings {
    bool bias;
    bool rms;  /* RMS norm instead of layer norm */
    float eps; /* added to the variance */
};

struct positions_settings {
    /* The number of learned positions. A row has at most this number of tokens. */
    uint32_t count;
    float dropout;
    float init_std;
};

struct softmax_xent_settings {
    float smoothing; /* label smoothing; 0 means none */
};

#endif
