/* Layers are the links of a model's chain, and they are made of ops. A layer knows its sizes, its
 * parameters and its cost, and it turns its forward and backward pass into launches. It knows nothing
 * about devices or plans: its blocks of memory come in as pointers.
 *
 * A new layer is one file in kernels/ and one row in layers.def.
 *
 * Blocks (DESIGN section 2): W and dW are one contiguous block each, with the parameters one after another
 * and without padding. S holds what the forward pass saves for the backward pass, and scratch is
 * workspace; each micro-batch has one block of either.
 *
 * The second half of this file describes optimizers: the state K of a layer and the launch that updates W.
 */
#ifndef KERNELS_LAYER_H
#define KERNELS_LAYER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/op.h"

/* All kinds of layers, in the order of layers.def. */
enum layer_kind {
#define LAYER(name) LAYER_##name,
#include "kernels/layers.def"
#undef LAYER
    LAYER_COUNT
};

/* One layer of a model, as the spec describes it. The builder of the model fills it in, model_number adds
 * id and key, and from then on it is const.
 *
 * A row of a layer with seq > 1 is a sequence [seq][in / seq], one token after another. The layer treats
 * every token alike and independently, except for attention, which combines the tokens of a row. Fields
 * whose comment names kinds are used by those kinds only. */
struct layer {
    enum layer_kind kind;
    /* Position of the layer in the chain. An inner layer has the id of its outermost layer. */
    uint32_t id;
    /* Key of the layer's random numbers. It equals the id, but inner layers use layer_inner_key. */
    uint32_t key;
    uint32_t in, out; /* elements per row; loss: out is 0 */
    uint32_t seq;     /* tokens per row; 0 means 1 */
    bool bias;        /* dense, norm, attention, mlp: has a bias */
    enum act act;     /* dense, activation, mlp: the activation function */
    /* dense, dropout, positions, attention, mlp: probability that an element of the result becomes 0. 0
     * means no dropout. */
    float dropout;

    bool rms;  /* norm: RMS norm instead of layer norm */
    float eps; /* norm: added to the variance */
    /* attention: numbers of query heads and of key heads. kv_heads divides heads, and heads divides in /
     * seq. */
    uint32_t heads, kv_heads;
    float rope_theta;    /* attention: rotary base; 0: not rotary */
    float score_dropout; /* attention: probability that a score is dropped */
    uint32_t hidden;     /* mlp: width of the hidden vector */
    bool gated;          /* mlp: swiglu instead of act */
    uint32_t vocab;      /* embedding, lm_head: number of token ids */
    uint32_t positions;  /* positions: number of positions, at least seq */
    float smoothing;     /* losses: label smoothing */
    /* Standard deviation of the initial weights; biases start at 0. If it is 0, the table at enum
     * param_init applies. */
    float init_std;
    /* attention, mlp: init_std of the matrix "proj", which writes to the residual. */
    float proj_std;
    /* lm_head: it shares W with an earlier layer of the same size, whose id is `owner`. */
    bool tied;
    uint32_t owner;

    /* Prefix of the parameter names of an inner layer, such as "attn". */
    const char *name;
    const struct layer *inner; /* block, residual: a chain of inner layers */
    uint32_t n_inner;
};

/* The largest id of a layer, and the most inner layers that one layer can have. */
#define LAYER_MAX_ID    ((1u << 14) - 1)
#define LAYER_MAX_INNER 1023u
/* Returns the random-number key of the n-th inner layer of layer `id`. n counts from 1 in the order of the
 * chain, and nested layers are counted where they stand. */
static inline uint32_t layer_inner_key(uint32_t id, uint32_t n)
{
    return n << 14 | id;
}

/* The chain of layers in the order of the forward pass. The last layer is the loss. */
struct model {
    struct layer *layers;
    uint32_t n_layers;
};

/* Sets the id and the key of every layer and of all inner layers. It casts away the const of `inner` to
 * write the inner layers, which are const afterwards. */
void model_number(const struct model *m);

/* The size in bytes of each block of memory that a layer needs, for `rows` rows if the block has rows. 0
 * means that the layer has no such block. */
struct layer_sizes {
    uint64_t w; /* W, and also dW */
    uint64_t x; /* X, and also dX */
    uint64_t y; /* output; 0 for a loss */
    uint64_t s;
    uint64_t room; /* forward workspace when S is saved */
    /* Forward workspace when S is not saved. It has space for S and more. */
    uint64_t scratch_fwd;
    uint64_t scratch_bwd;
    uint64_t target; /* losses: the targets T */
    uint64_t result; /* losses: the results R */
};

/* Arithmetic and memory traffic of one micro-batch of `rows` rows. The planner estimates times from it
 * when it has no measurement. */
struct layer_cost {
    uint64_t fwd_flops, bwd_flops;
    uint64_t fwd_bytes, bwd_bytes; /* memory that the ops read and write */
};

/* How a parameter gets its initial values. It follows from the parameter's class and from the standard
 * deviation that its layer gives:
 *
 *     class       std > 0       std 0
 *     matrix      N(0, std^2)   uniform by fan-in
 *     bias        0             uniform by the fan-in of its matrix
 *     embedding   N(0, std^2)   N(0, LAYER_EMBEDDING_STD^2)
 *     norm        1             1 (but the bias of a norm is always 0) */
enum param_init {
    INIT_UNIFORM_FAN_IN, /* U(-1/sqrt(fan_in), 1/sqrt(fan_in)), as in PyTorch's Linear */
    INIT_NORMAL,         /* N(0, std^2) */
    INIT_ONES,
    INIT_ZEROS,
};
#define LAYER_EMBEDDING_STD 0.02f
enum param_class { PARAM_MATRIX, PARAM_BIAS, PARAM_NORM, PARAM_EMBEDDING, PARAM_CLASS_COUNT };
extern const char *const param_class_names[PARAM_CLASS_COUNT]; /* "matrix", "bias", "norm", "embedding" */

/* One named parameter: a tensor inside a layer's W. layer_type.params lists them in the order in which
 * they stand in W, without padding. */
struct layer_param {
    char name[64]; /* for example "weight", "bias", "attn.qkv.weight" */
    uint32_t rank;
    uint64_t shape[4];
    uint64_t offset; /* bytes from the start of W */
    uint64_t count;  /* number of elements */
    enum param_class class;
    enum param_init init;
    uint32_t fan_in;
    float std;
    uint32_t key; /* key of its layer's random numbers */
};

/* The memory that one forward or backward pass of a layer works on. Pointers that do not apply to the pass
 * are NULL. */
struct layer_io {
    const struct step_args *step;
    uint32_t rows;
    uint32_t first_row; /* position of row 0 in the batch */
    /* bwd: add to dw instead of overwriting it, as every micro-batch after the first does. */
    bool accumulate;
    const float *w, *x;
    /* fwd: the output. NULL if only S is needed, as in the recompute of a pack's last layer. */
    float *y;
    /* fwd: where to save S, or NULL if nothing is saved. bwd: the S that the forward pass saved. */
    float *s;
    float *dw, *dx; /* dx NULL: not needed (first layer) */
    const float *dy;
    /* Workspace. fwd: `room` bytes if S is saved, otherwise `scratch_fwd` bytes. bwd: `scratch_bwd` bytes. */
    float *scratch;
    const void *target;
    struct step_result *result;
};

/* What a kind of layer can do. Each kind defines one constant of this type, named layer_<kind>, in its own
 * file. The functions are pure: they send launches to the sink and keep no state. */
struct layer_type {
    const char *name;
    bool is_loss;
    bool takes_ids; /* input is int32 ids, not floats */
    /* When training, fwd does nothing, and bwd computes the loss together with the gradient. */
    bool loss_in_bwd;
    void (*sizes)(const struct layer *l, uint32_t rows, struct layer_sizes *ret);
    void (*cost)(const struct layer *l, uint32_t rows, struct layer_cost *ret);
    /* Returns the number of parameters and writes them to ret. If ret is NULL, it only counts. */
    uint32_t (*params)(const struct layer *l, struct layer_param *ret);
    int (*fwd)(const struct layer *l, const struct layer_io *io, const struct op_sink *sink);
    int (*bwd)(const struct layer *l, const struct layer_io *io, const struct op_sink *sink);
};

/* The table of layer kinds, by enum layer_kind. */
extern const struct layer_type *const layer_types[LAYER_COUNT];

static inline const struct layer_type *layer_type(const struct layer *l)
{
    return layer_types[l->kind];
}

/* Fills a W block with its initial values. Each value depends only on seed, the layer's key and the
 * position of the element. */
void layer_init(const struct layer *l, uint64_t seed, float *w);

enum optimizer_kind { OPTIMIZER_ADAMW, OPTIMIZER_SGD, OPTIMIZER_COUNT };
extern const char *const optimizer_names[OPTIMIZER_COUNT];

/* An optimizer and its settings, as the spec gives them. */
struct optimizer {
    enum optimizer_kind kind;
    float beta1, beta2, eps; /* adamw only */
    float momentum;          /* sgd only; 0: no momentum */
    float weight_decay;
    /* Bit 1 << class is set for each class of parameters that has no weight decay. */
    uint32_t no_decay;
    double clip; /* largest gradient norm; 0: no clipping */
};

#define OPTIMIZER_PARTS 2 /* most parts of K */
/* Returns the number of parts of the optimizer state K. Each part is as long as the weights W, and the
 * parts stand one after another: m and v for adamw; v for sgd with momentum; nothing for sgd without
 * momentum. */
uint32_t optimizer_parts(const struct optimizer *o);
/* Returns the bytes of the optimizer state K that belongs to a W block of w_bytes. */
uint64_t optimizer_state_bytes(const struct optimizer *o, uint64_t w_bytes);

enum group_type { GROUP_U64, GROUP_U32, GROUP_F32 };
/* One part of the group state: a field of struct group_state, with a single element. Graphs and plans
 * treat the group state as one block. A checkpoint writes and reads the saved parts by their names. */
struct group_part {
    const char *name;
    enum group_type type;
    size_t offset; /* offset in struct group_state */
    /* Whether a checkpoint stores this part. DECIDE computes the other parts anew in every step that
     * is not skipped. */
    bool saved;
};
/* Returns the number of parts in the group state of this optimizer, and points *ret at the first part.
 * `decision` says whether the job clips gradients or skips steps. Plain SGD without a decision has no
 * group state, so there is no GROUP tensor. */
uint32_t optimizer_group_parts(const struct optimizer *o, bool decision, const struct group_part **ret);
/* Returns the bytes of the GROUP tensor, or 0 if there is none. */
uint64_t optimizer_group_bytes(const struct optimizer *o, bool decision);

/* The memory that an update works on: a layer's weights W, or a range of W together with the same range of
 * the gradient dW and of each part of the optimizer state K. */
struct optimizer_io {
    float *w;
    /* Gradient of W, and the gradient of its second use. dw2 is NULL if there is no second use. */
    const float *dw, *dw2;
    float *k[OPTIMIZER_PARTS];       /* the first optimizer_parts pointers are used */
    const struct group_state *group; /* NULL: apply without scale and bias correction */
    uint64_t w_bytes;
    bool no_decay;
};
/* Sets io->k to the parts of a whole block of optimizer state at k. Each part is io->w_bytes long. k may
 * be NULL if the optimizer has no state. */
void optimizer_split(const struct optimizer *o, float *k, struct optimizer_io *io);
/* The bytes begin..end of a layer's weights W. Either all parameters in this range have weight decay, or
 * none of them has. */
struct optimizer_range {
    uint64_t begin, end;
    bool no_decay;
};
/* Cuts the bytes begin..end of the layer's weights W wherever weight decay starts or stops. Returns the
 * number of ranges and writes them to ret. If ret is NULL, it only counts. */
uint32_t optimizer_ranges(const struct optimizer *o, const struct layer *l, uint64_t begin, uint64_t end,
                          struct optimizer_range *ret);
/* Returns the part of *io that covers the bytes begin..end, counted from the start of the range of W that
 * *io describes. */
struct optimizer_io optimizer_part(const struct optimizer *o, const struct optimizer_io *io, uint64_t begin,
                                   uint64_t end);
/* Launches the update of the range of W that io describes, as one op. */
int optimizer_update(const struct optimizer *o, const struct step_args *step, const struct optimizer_io *io,
                     const struct op_sink *sink);

#endif
