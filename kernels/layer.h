/* Layers are the links of a model's chain, and they are made of ops. A layer knows its sizes, its
 * parameters and its cost, and it turns its forward and backward pass into launches. It knows nothing
 * about devices or plans, and the caller passes pointers to all memory.
 *
 * A new layer is one file in kernels/, one row in layers.def and, if it has settings, one struct in
 * layer_settings.h.
 *
 * Blocks (DESIGN section 2): W and dW are one contiguous block each, with the parameters one after another
 * and without padding. S holds the values that the forward pass saves for the backward pass, and scratch
 * is workspace. Each micro-batch has its own S and its own scratch.
 *
 * The second half of this file describes optimizers: the state K of a layer and the launch that updates W.
 */
#ifndef KERNELS_LAYER_H
#define KERNELS_LAYER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/dtype.h"
#include "kernels/layer_settings.h"
#include "kernels/op.h"
#include "kernels/shape.h"

struct layer_type;

/* One layer of a model, as the spec describes it. The builder of the model fills it in and model_number
 * adds id and key. After that it is const. A layer may be copied by assignment.
 *
 * A row of rank 2 is a sequence: dim[0] tokens of dim[1] elements, one token after another. A row of any
 * other rank counts as one token. Attention combines the tokens of a row. All other layers treat every token
 * alike and independently. The input of an embedding is a sequence of tokens with one id each. */
struct layer {
    const struct layer_type *type; /* for example &layer_dense */
    /* The position of the layer in the chain, starting at 0. An inner layer has the id of its outer
     * layer. */
    uint32_t id;
    /* The number that selects the layer's sequence of random numbers. A layer in the chain has its id as key.
     * An inner layer has the key that layer_inner_key returns. */
    uint32_t key;
    /* `dtype` is the type of activations: of X, Y, their gradients, and most arrays in S and in the
     * workspace. Token ids and statistics are exceptions, because they are always int32 and float.
     * `w_dtype` is the type of W. The gradient dW is float, whatever the type of W. Inner layers have the
     * types of their outer layer. Both types are equal: DTYPE_F32, DTYPE_BF16 or DTYPE_F16. DTYPE_F32 is 0,
     * so a builder of models need not set it. */
    enum dtype dtype, w_dtype;
    /* `in` is the shape of a row of the input, and `out` is the shape of a row of the output. The output of a
     * loss has rank 0. A row has at most UINT32_MAX elements. */
    struct shape in, out;
    /* If `tied` is true, the layer has no weights of its own and uses the weights of the earlier layer
     * `owner`. */
    bool tied;
    uint32_t owner;
    /* How the gradients of all layers that use this layer's weights are combined: averaged if this field is
     * true, added up if it is false. */
    bool mean_uses;

    /* An inner layer's name, which becomes the prefix of its parameter names. For example, "attn" gives
     * "attn.qkv.weight". */
    const char *name;
    /* The chain of layers inside a block or a residual. NULL for other kinds of layers. */
    const struct layer *inner;
    uint32_t n_inner;

    /* The settings of the layer's own kind. */
    union {
        struct activation_settings activation;
        struct attention_settings attention;
        struct dense_settings dense;
        struct dropout_settings dropout;
        struct embedding_settings embedding;
        struct label_vectors_settings label_vectors;
        struct lm_head_settings lm_head;
        struct mlp_settings mlp;
        struct norm_settings norm;
        struct positions_settings positions;
        struct softmax_xent_settings softmax_xent;
    };
};

/* LAYER_MAX_ID is the largest id that a layer may have. LAYER_MAX_INNER is the largest number of inner layers
 * that one layer may contain. */
#define LAYER_MAX_ID    ((1u << 14) - 1)
#define LAYER_MAX_INNER 1023u
/* Returns the key of inner layer number `n` inside layer `id`. The key selects the layer's sequence of random
 * numbers. The inner layers of all nesting levels are numbered together, from 1, in the order of the
 * chain. */
static inline uint32_t layer_inner_key(uint32_t id, uint32_t n)
{
    return n << 14 | id;
}

/* A neural network: its layers in the order of the forward pass. Usually the layers form a chain whose last
 * layer is the loss. If they are connected in another way, the caller of graph_build (scheduler/graph.h)
 * describes the connections. */
struct model {
    struct layer *layers;
    uint32_t n_layers;
};

/* Sets the id and the key of every layer and every inner layer. The function writes to the inner layers. They
 * must therefore be in writable memory, although `inner` points to const. */
void model_number(const struct model *m);
/* Sets the types of one layer and of all layers inside it. `dtype` becomes the type of activations and of
 * weights. The inner layers must be in writable memory, as with model_number. */
void layer_set_types(struct layer *l, enum dtype dtype);
/* Calls layer_set_types for every layer of the model. */
void model_set_types(const struct model *m, enum dtype dtype);

/* The sizes in bytes of a layer's arrays, for a given number of rows. Size 0 means that the layer has no such
 * array. Only the weights W, the input X, the output Y and the targets T have an element type. The layer
 * itself divides the other arrays into parts of various types. */
struct layer_sizes {
    uint64_t w; /* W; the size of dW is layer_dw_bytes */
    /* The size of the buffers B, and also of the statistics of one micro-batch. */
    uint64_t b;
    uint64_t x; /* X, and also dX */
    uint64_t y; /* output; 0 for a loss */
    uint64_t s;
    uint64_t room; /* forward workspace when S is saved */
    /* The size in bytes of the forward workspace when S is not saved. This workspace includes space for S. */
    uint64_t scratch_fwd;
    uint64_t scratch_bwd;
    uint64_t target; /* losses: the targets T */
    uint64_t result; /* losses: the results R */
    /* The element types of the weights W, the input X, the output Y and the targets T. The gradient of X has
     * the type of X. */
    enum dtype w_dtype, x_dtype, y_dtype, target_dtype;
};

/* The type of the gradient dW of a layer's weights. Gradients of many micro-batches are added up in dW, so it
 * is float even if the weights have 16 bits. */
#define LAYER_DW_DTYPE DTYPE_F32

/* Returns the number of elements of W. */
static inline uint64_t layer_w_elements(const struct layer_sizes *s)
{
    return dtype_elements(s->w_dtype, s->w);
}
/* Returns the size in bytes of the gradient dW, which has one element for each weight. */
static inline uint64_t layer_dw_bytes(const struct layer_sizes *s)
{
    return layer_w_elements(s) * dtype_size(LAYER_DW_DTYPE);
}

/* The number of arithmetic operations and the memory traffic of a layer for `rows` rows. The planner
 * estimates times from these numbers if it has no measured times. */
struct layer_cost {
    uint64_t fwd_flops, bwd_flops;
    uint64_t fwd_bytes, bwd_bytes; /* bytes that the ops read and write */
};

/* How a parameter gets its initial values. The choice depends on the parameter's class and on the standard
 * deviation (std) that its layer gives:
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

/* A parameter: one named tensor inside a layer's weights, such as the weight matrix or the bias. The
 * parameters fill the weights without padding, in the order in which layer_type.params lists them. */
struct layer_param {
    char name[64]; /* for example "weight", "bias", "attn.qkv.weight" */
    enum dtype dtype;
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

/* The arguments of a layer's forward or backward pass, with pointers to all memory. Pointers that the pass
 * does not use are NULL. */
struct layer_io {
    const struct step_args *step;
    uint32_t rows;
    uint32_t first_row; /* position of row 0 in the batch */
    /* Used in a backward pass. If true, the gradient is added to the old dw. If false, the gradient replaces
     * the old dw, as in the first micro-batch of a step. */
    bool accumulate;
    /* The weights `w` have the layer's type `w_dtype`. The input `x` has the layer's type `dtype`, or
     * consists of int32 token ids. */
    const void *w, *x;
    const float *b; /* the buffers B, or NULL */
    /* Used in a forward pass of training. The statistics of the micro-batch are written to this array, and
     * `fold` later adds them to the buffers. This pointer is NULL if the layer has no buffers, in a
     * recompute, and in an evaluation. */
    float *stat;
    /* A forward pass writes the output of the layer to this array. The pointer is NULL in a recompute, which
     * computes only the saved values `s`. */
    void *y;
    /* The values that are saved for the backward pass. A forward pass writes them, or saves nothing if this
     * pointer is NULL. A backward pass reads them. */
    void *s;
    float *dw;
    void *dx; /* NULL in the first layer */
    const void *dy;
    /* The workspace. Its size in a backward pass is layer_sizes.scratch_bwd. Its size in a forward pass is
     * layer_sizes.room if `s` is not NULL, and layer_sizes.scratch_fwd otherwise. */
    void *scratch;
    const void *target;
    struct step_result *result;
    /* Used in the backward pass of a loss, if losses are scaled: the group state, which has the loss scale.
     * NULL otherwise. */
    const struct group_state *group;
};

/* The functions of one kind of layer. Each kind has its own file, which defines one constant of this type,
 * for example layer_dense. The functions keep no state. */
struct layer_type {
    const char *name;
    bool is_loss;
    /* True for a loss whose forward pass does nothing in training. The backward pass then computes both the
     * loss and the gradient. */
    bool loss_in_bwd;
    void (*sizes)(const struct layer *l, uint32_t rows, struct layer_sizes *ret);
    void (*cost)(const struct layer *l, uint32_t rows, struct layer_cost *ret);
    /* Writes the layer's parameters to `ret` and returns their number. If `ret` is NULL, the function only
     * counts the parameters. */
    uint32_t (*params)(const struct layer *l, struct layer_param *ret);
    /* Describes the layer's buffers in `ret` and returns their number. If `ret` is NULL, the function only
     * counts the buffers. The offsets in `ret` count from the start of the layer's buffers. This pointer is
     * NULL if this kind of layer has no buffers. */
    uint32_t (*buffers)(const struct layer *l, struct layer_param *ret);
    /* Fills the layer's buffers with their initial values. Each value depends only on the seed, the key of
     * the layer and the position in the buffers. This pointer is NULL if the buffers start with zeros. */
    void (*init_buffers)(const struct layer *l, uint64_t seed, void *b);
    int (*fwd)(const struct layer *l, const struct layer_io *io, const struct op_sink *sink);
    int (*bwd)(const struct layer *l, const struct layer_io *io, const struct op_sink *sink);
    /* Updates the layer's buffers `b` with the statistics of one micro-batch, after the backward pass. The
     * executor calls `fold` for one micro-batch after another, in ascending order. This pointer is NULL if
     * training does not change the buffers. */
    int (*fold)(const struct layer *l, const struct step_args *step, float *b, const float *stat,
                const struct op_sink *sink);
};

/* Declares the layer_type of each kind in layers.def, for example layer_dense. */
#define LAYER(name) extern const struct layer_type layer_##name;
#include "kernels/layers.def"
#undef LAYER
/* The layer_type of every kind, in the order of layers.def. The last element is NULL. A layer may also have a
 * type that is not in this table. */
extern const struct layer_type *const layer_types[];

static inline const struct layer_type *layer_type(const struct layer *l)
{
    return l->type;
}

/* layer_in returns the number of elements in a row of the input. layer_out returns the number of elements in
 * a row of the output, which is 0 for a loss. */
uint32_t layer_in(const struct layer *l);
uint32_t layer_out(const struct layer *l);
/* layer_seq returns the number of tokens in a row. layer_width returns the number of elements in a token of
 * the input. layer_width_out returns the number of elements in a token of the output. */
static inline uint32_t layer_seq(const struct layer *l)
{
    return l->in.rank == 2 ? l->in.dim[0] : 1;
}
static inline uint32_t layer_width(const struct layer *l)
{
    return layer_in(l) / layer_seq(l);
}
static inline uint32_t layer_width_out(const struct layer *l)
{
    return layer_out(l) / layer_seq(l);
}

/* Fills `w` with the initial weights of the layer. The array has one float for each weight, whatever the type
 * of W: if W has 16 bits, the floats are the master weights. Each value depends only on the seed, the key of
 * the layer and the position in `w`, so every machine computes the same values. */
void layer_init(const struct layer *l, uint64_t seed, float *w);

enum optimizer_kind { OPTIMIZER_ADAMW, OPTIMIZER_SGD, OPTIMIZER_COUNT };
extern const char *const optimizer_names[OPTIMIZER_COUNT];

/* An optimizer and its settings, as the spec of the job gives them. */
struct optimizer {
    enum optimizer_kind kind;
    float beta1, beta2, eps; /* adamw only */
    float momentum;          /* sgd only; 0 means no momentum */
    float weight_decay;
    /* A bit mask of the parameter classes without weight decay. For example, the bit 1 << PARAM_BIAS is set
     * if biases do not decay. */
    uint32_t no_decay;
    double clip; /* largest gradient norm; 0 means no clipping */
    /* True if the weights W have a 16-bit type. The optimizer state K then begins with the part "master", the
     * same weights in float. Updates change the master weights, and W is their rounded copy. */
    bool master;
    /* Only for weights in fp16: settings of the loss scale. growth_steps is 0 if losses are not scaled. */
    struct loss_scaling scaling;
};

/* One part of the optimizer state K of a layer, such as AdamW's first moment. optimizer_parts lists the parts
 * of a layer. The graph stores the list, and whatever divides K reads it: shares, checkpoints, the executor.
 * The parts lie in K one after another. The first part begins at byte 0, each part begins where the part
 * before ends, and the last part ends with K. For example, AdamW has two parts for a W of 10 floats:
 * exp_avg, bytes 0 to 40, and exp_avg_sq, bytes 40 to 80. */
struct state_part {
    /* The name of the part, such as "exp_avg". The names of tensors in checkpoints end with the name of their
     * part. This pointer is NULL in graphs that are made from a profile table. */
    const char *name;
    enum dtype dtype;
    /* The number of elements. If the part has one element for each weight, element i belongs to weight i. */
    uint64_t elements;
    /* The part takes the bytes [begin, end) of the optimizer state. There may be a gap at the end, which
     * aligns the next part if it has larger elements. */
    uint64_t begin, end;
    /* True if the part holds the master weights. It is then the first part, and its elements are floats. In
     * files, the master weights are the parameters of the model, and not a part of the optimizer state. */
    bool is_master;
};

#define OPTIMIZER_PARTS 3 /* largest number of parts of K */
/* The largest number of layers that use the same weights. */
#define OPTIMIZER_USES OP_USES
/* Lists the parts of the optimizer state for a layer with `w_elements` weights, and returns their number.
 * AdamW has the parts exp_avg and exp_avg_sq, called m and v in formulas. SGD with momentum has the part
 * momentum_buffer, called v. SGD without momentum has no such parts. If the optimizer keeps master weights,
 * the part "master" comes before all others. */
uint32_t optimizer_parts(const struct optimizer *o, uint64_t w_elements,
                         struct state_part ret[OPTIMIZER_PARTS]);
/* Returns the size in bytes of the optimizer state for a layer with `w_elements` weights. */
uint64_t optimizer_k_bytes(const struct optimizer *o, uint64_t w_elements);

/* One part of the group state, which is one field of struct group_state. A checkpoint stores the part under
 * the name `name` if `saved` is true. */
struct group_part {
    const char *name;
    enum dtype dtype; /* F32, U32 or U64 */
    size_t offset;    /* offset in struct group_state */
    /* True if a checkpoint stores this part. The other parts need not be stored, because the task DECIDE
     * computes them again in every step whose update is applied. */
    bool saved;
};
/* Returns the number of parts of the optimizer's group state, and sets *ret to an array of these parts.
 * `decision` is true if the job clips gradients, skips steps or scales losses. SGD has no parts if `decision`
 * is false. */
uint32_t optimizer_group_parts(const struct optimizer *o, bool decision, const struct group_part **ret);
/* Returns the size in bytes of the group state, or 0 if the optimizer has no group state. The fields about
 * the loss scale, which come last in struct group_state, exist only if losses are scaled. */
uint64_t optimizer_group_bytes(const struct optimizer *o, bool decision);

/* The memory that one update reads and writes: `n` consecutive weights of a layer, and the same elements of
 * each gradient and of each part of the optimizer state. */
struct optimizer_io {
    void *w;
    /* The gradients of these weights, one from each layer that uses them. */
    struct op_gradients g;
    /* Only the first optimizer_parts() pointers are used. */
    void *k[OPTIMIZER_PARTS];
    const struct group_state *group; /* NULL: no scale, no bias correction */
    uint64_t n;
    enum dtype dtype; /* of w */
    bool no_decay;
};
/* Sets io->k[0], io->k[1] and so on to the parts of `k`, the whole optimizer state of a layer. io->n must be
 * the number of all weights of this layer. `k` may be NULL if the optimizer has no state. */
void optimizer_split(const struct optimizer *o, void *k, struct optimizer_io *io);
/* The elements [begin, end) of a layer's weights. Weight decay applies to all of them or to none. */
struct optimizer_range {
    uint64_t begin, end;
    bool no_decay;
};
/* Cuts the elements [begin, end) of a layer's weights into ranges. A new range starts wherever weight decay
 * starts or stops. Writes the ranges to `ret` and returns their number. If `ret` is NULL, the function only
 * counts the ranges. */
uint32_t optimizer_ranges(const struct optimizer *o, const struct layer *l, uint64_t begin, uint64_t end,
                          struct optimizer_range *ret);
/* Returns an optimizer_io for the elements [begin, end) of *io. Both numbers count from the start of the
 * range that *io describes. */
struct optimizer_io optimizer_part(const struct optimizer *o, const struct optimizer_io *io, uint64_t begin,
                                   uint64_t end);
/* Launches one op, which updates the weights in the range that `io` describes. */
int optimizer_update(const struct optimizer *o, const struct step_args *step, const struct optimizer_io *io,
                     const struct op_sink *sink);

#endif
