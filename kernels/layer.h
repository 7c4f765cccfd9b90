/* Layers: links of the model's chain, made of ops. A layer knows its sizes, its parameters, its cost, and how
 * its forward and backward pass become launches. It knows no device and no plan: blocks come in as pointers.
 *
 * A new layer is one file in kernels/ and one row in layers.def.
 *
 * Blocks (DESIGN section 2): W, dW one contiguous block each, parameters one after another without padding;
 * S what the forward saves for the backward, scratch its workspace: one block each per micro-batch.
 */
#ifndef KERNELS_LAYER_H
#define KERNELS_LAYER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/op.h"

enum layer_kind {
#define LAYER(name) LAYER_##name,
#include "kernels/layers.def"
#undef LAYER
    LAYER_COUNT
};

/* Sequences: a row of a layer with seq > 1 is [seq][in / seq], a token after another, and the layer does the same to each
 * token, but for attention, where they meet. */
struct layer {
    enum layer_kind kind;
    uint32_t id;      /* position in the chain, of an inner layer that of the outermost one */
    uint32_t key;     /* of its random numbers: the id; inner layers have others, see layer_inner_key */
    uint32_t in, out; /* elements per row; loss layers: out = 0 */
    uint32_t seq;     /* tokens per row; 0 is 1 */
    bool bias;        /* dense, norm, attention, mlp */
    enum act act;     /* dense, activation, mlp */
    float
        dropout; /* dense, dropout, positions, attention, mlp, of the result: probability of zero; 0 for none */

    bool rms;                 /* norm: RMS norm, not layer norm */
    float eps;                /* norm */
    uint32_t heads, kv_heads; /* attention; kv_heads divides heads, which divides in / seq */
    float rope_theta;         /* attention: base of the rotary positions; 0: none */
    float score_dropout;      /* attention */
    uint32_t hidden;          /* mlp: width of its inside */
    bool gated;               /* mlp: swiglu in place of act */
    uint32_t vocab;           /* embedding, lm_head */
    uint32_t positions;       /* positions: how many it has, at least seq */
    float smoothing;          /* losses: of labels */
    float init_std;           /* initial weights are N(0, init_std^2) and biases 0; 0: see enum param_init */
    float proj_std;           /* attention, mlp: the same for "proj", which writes to the residual */
    bool tied;                /* lm_head: its W is that of an earlier layer, `owner`, of the same size */
    uint32_t owner;

    const char *name;          /* inner layers: before the names of its parameters, "attn" */
    const struct layer *inner; /* block, residual: a chain of its own */
    uint32_t n_inner;
};

/* The key of the n-th inner layer of layer `id`, n from 1 in their order, nested ones in their place. */
#define LAYER_MAX_INNER 1023u
static inline uint32_t layer_inner_key(uint32_t id, uint32_t n)
{
    return n << 14 | id;
}
#define LAYER_MAX_ID ((1u << 14) - 1)

/* The chain. The last layer is the loss. */
struct model {
    struct layer *layers;
    uint32_t n_layers;
};

/* Gives every layer its id, and it and those inside their keys. Inner layers are written to, const as they are after. */
void model_number(const struct model *m);

/* Bytes per block, for `rows` rows where a block has rows. 0: the layer has no such block. */
struct layer_sizes {
    uint64_t w; /* W and dW */
    uint64_t x; /* input; its gradient likewise */
    uint64_t y; /* output (the next layer's input); 0 for the loss */
    uint64_t s;
    uint64_t room;        /* what a forward pass works in that saves S */
    uint64_t scratch_fwd; /* what one works in that does not: S and more */
    uint64_t scratch_bwd;
    uint64_t target; /* loss layers */
    uint64_t result; /* loss layers */
};

struct layer_cost { /* of one micro-batch of `rows` rows */
    uint64_t fwd_flops, bwd_flops;
    uint64_t fwd_bytes, bwd_bytes; /* memory read and written by the ops */
};

/* Initial values follow from the class of a parameter and from the standard deviation that its layer gives:
 *
 *     class       std > 0       std 0
 *     matrix      N(0, std^2)   uniform by fan-in
 *     bias        0             uniform by the fan-in of its matrix
 *     embedding   N(0, std^2)   N(0, LAYER_EMBEDDING_STD^2)
 *     norm        1             1; the bias of a norm is 0
 */
enum param_init {
    INIT_UNIFORM_FAN_IN, /* U(-1/sqrt(fan_in), 1/sqrt(fan_in)), as PyTorch's Linear does */
    INIT_NORMAL,         /* N(0, std^2) */
    INIT_ONES,
    INIT_ZEROS,
};
#define LAYER_EMBEDDING_STD 0.02f
enum param_class { PARAM_MATRIX, PARAM_BIAS, PARAM_NORM, PARAM_EMBEDDING, PARAM_CLASS_COUNT };
extern const char *const param_class_names[PARAM_CLASS_COUNT]; /* "matrix", "bias", "norm", "embedding" */

struct layer_param {
    char name[64]; /* "weight", "bias", "attn.qkv.weight" */
    uint32_t rank;
    uint64_t shape[4];
    uint64_t offset; /* bytes from the start of W */
    uint64_t count;  /* elements */
    enum param_class class;
    enum param_init init;
    uint32_t fan_in;
    float std;
    uint32_t key; /* of its random numbers: the layer's */
};

/* Pointers for one launch of a layer; those that do not apply are NULL. */
struct layer_io {
    const struct step_args *step;
    uint32_t rows;
    uint32_t first_row; /* position of row 0 in the global batch */
    bool accumulate;    /* bwd: add to dw (micro-batches after the first) */
    const float *w, *x;
    float *y;       /* fwd: NULL when only S is wanted (recompute of a pack's last layer) */
    float *s;       /* fwd: NULL when nothing is saved; bwd: read */
    float *dw, *dx; /* dx NULL: not wanted (first layer) */
    const float *dy;
    float *scratch; /* fwd: of `room` bytes where S is saved, else of `scratch_fwd` */
    const void *target;
    struct step_result *result;
};

struct layer_type {
    const char *name;
    bool is_loss;
    bool takes_ids;   /* its input is token ids, int32 in the place of floats */
    bool loss_in_bwd; /* when training, fwd does nothing, and bwd computes the loss beside its gradient */
    void (*sizes)(const struct layer *l, uint32_t rows, struct layer_sizes *ret);
    void (*cost)(const struct layer *l, uint32_t rows, struct layer_cost *ret);
    uint32_t (*params)(const struct layer *l, struct layer_param *ret); /* how many; NULL: only counts */
    int (*fwd)(const struct layer *l, const struct layer_io *io, const struct op_sink *sink);
    int (*bwd)(const struct layer *l, const struct layer_io *io, const struct op_sink *sink);
};

extern const struct layer_type *const layer_types[LAYER_COUNT];

static inline const struct layer_type *layer_type(const struct layer *l)
{
    return layer_types[l->kind];
}

/* Fills a W block with its initial values: a pure function of (seed, layer id, element). */
void layer_init(const struct layer *l, uint64_t seed, float *w);

enum optimizer_kind { OPTIMIZER_ADAMW, OPTIMIZER_SGD, OPTIMIZER_COUNT };
extern const char *const optimizer_names[OPTIMIZER_COUNT];

struct optimizer {
    enum optimizer_kind kind;
    float beta1, beta2, eps; /* adamw */
    float momentum;          /* sgd */
    float weight_decay;
    uint32_t no_decay; /* classes of parameters without decay, a bit 1 << class for each */
    double clip;       /* global norm; 0: none */
};

/* K is one or more parts, each as long as W, one behind another: adamw m then v; sgd v, or nothing without momentum. */
#define OPTIMIZER_PARTS 2 /* at most */
uint32_t optimizer_parts(const struct optimizer *o);
/* Bytes of K for a W block of w_bytes. */
uint64_t optimizer_state_bytes(const struct optimizer *o, uint64_t w_bytes);

/* The group state by its parts: one row for each field of struct group_state, one element each. Graph and plan treat the
 * state as one block; a checkpoint writes and reads the saved parts by their names. */
enum group_type { GROUP_U64, GROUP_U32, GROUP_F32 };
struct group_part {
    const char *name;
    enum group_type type;
    size_t offset; /* in struct group_state */
    bool
        saved; /* a checkpoint keeps it; DECIDE makes the other parts anew in every step that is not skipped */
};
/* How many parts the group state of this optimizer has; *ret is the first. `decision`: the job clips gradients or skips
 * steps. Plain SGD without a decision has none, and then there is no GROUP tensor. */
uint32_t optimizer_group_parts(const struct optimizer *o, bool decision, const struct group_part **ret);
/* Bytes of the GROUP tensor; 0 where there is none. */
uint64_t optimizer_group_bytes(const struct optimizer *o, bool decision);

/* What an update works on: a W block, or a range of it with the same range of dW and of each part of K. */
struct optimizer_io {
    float *w;
    const float *dw, *dw2;           /* dw2: of the weights' second use; NULL: there is none */
    float *k[OPTIMIZER_PARTS];       /* the first optimizer_parts of them */
    const struct group_state *group; /* NULL: apply, with neither scale nor bias correction */
    uint64_t w_bytes;
    bool no_decay;
};
/* The parts of a whole K block: io->w_bytes are W's. NULL without K. */
void optimizer_split(const struct optimizer *o, float *k, struct optimizer_io *io);
/* Bytes begin..end of a layer's W, cut where the decay changes. */
struct optimizer_range {
    uint64_t begin, end;
    bool no_decay;
};
/* How many; ret NULL: only counts. */
uint32_t optimizer_ranges(const struct optimizer *o, const struct layer *l, uint64_t begin, uint64_t end,
                          struct optimizer_range *ret);
/* The io of a part of what *io is of: bytes begin..end from its start. */
struct optimizer_io optimizer_part(const struct optimizer *o, const struct optimizer_io *io, uint64_t begin,
                                   uint64_t end);
/* One launch. */
int optimizer_update(const struct optimizer *o, const struct step_args *step, const struct optimizer_io *io,
                     const struct op_sink *sink);

#endif
