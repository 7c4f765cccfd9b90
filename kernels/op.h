/* The ops: the mathematics of training, with one struct of arguments for each op. Layers are made of ops,
 * and backends implement them.
 *
 * Every op keeps this contract (DESIGN section 5). The bits of its result depend only on the values, shapes
 * and types of its arguments. They never depend on the number of threads, on the alignment of an address or
 * on other work that runs at the same time. All matrices are row-major and dense. An array is aligned to the
 * size of its elements. Outputs must not overlap inputs unless the comment of the op allows it. An op never
 * allocates memory whose size depends on the model.
 *
 * Shapes are written as [rows][n]. A comment such as "y may be x" says that the op can work in place.
 *
 * Types. The pointer to an array says whether the type of its elements may differ from job to job:
 *
 *     void *               a type that the caller chooses. A field of the op's struct gives it:
 *                              dtype    activations and their gradients, such as x, y, z, dx and dy
 *                              w_dtype  weights, such as w, b and table
 *                              y_dtype, dx_dtype    the output, where it may differ from `dtype`
 *                          An op that has only one kind of array has only the field `dtype`.
 *     float *, double *    always this type: gradients of weights (dw, db, dtable), row statistics,
 *                          logarithms of sums, workspace of an op, parts of the optimizer state, targets of a
 *                          regression, squared norms
 *     int32_t *            token ids and classes
 *     struct *             results, the decision, the group state
 *
 * The caller takes the types from where the sizes of the arrays come from: from its layer (`dtype` and
 * `w_dtype` in layer.h) or from the plan. The table op_dtypes lists the fields of every op.
 *
 * `dtype` is DTYPE_F32, DTYPE_BF16 or DTYPE_F16. Each of the other types is equal to `dtype` or is DTYPE_F32.
 * In op_softmax_xent, dx may also have a 16-bit type while x, the logits, has the type DTYPE_F32.
 * Whatever the types are, an op computes in float: it turns every 16-bit element that it reads into a float,
 * which is exact, and it rounds every result once, when it writes it (kernels/half.h). All sums are float or
 * double. Matrix products may take two 16-bit operands as they are, because the products of their elements
 * are exact in float.
 *
 * A backend refuses a call with a type that it does not implement with -EINVAL when the call is launched.
 */
#ifndef KERNELS_OP_H
#define KERNELS_OP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"
#include "kernels/step.h"

/* All ops, in the order of ops.def. Each op has a struct for its arguments. For example, OP_linear_fwd takes
 * a struct op_linear_fwd. */
enum op {
#define OP(name) OP_##name,
#include "kernels/ops.def"
#undef OP
    OP_COUNT
};

extern const char *const op_names[OP_COUNT];

/* The activation functions. ACT_GELU is the tanh approximation of gelu, ACT_GELU_ERF is the exact gelu, and
 * ACT_SILU is x * sigmoid(x). */
enum act { ACT_NONE, ACT_RELU, ACT_GELU, ACT_TANH, ACT_GELU_ERF, ACT_SILU, ACT_COUNT };
extern const char *const act_names[ACT_COUNT];

/* The forward pass of a linear layer: y[rows][out] = act(x[rows][in] * w[out][in]^T + b[out]). */
struct op_linear_fwd {
    const void *x, *w;
    const void *b; /* bias, or NULL */
    /* If not NULL, the op also writes the activation's input to this array, [rows][out]. Must be NULL if
     * there is no activation. */
    void *z;
    void *y;
    uint32_t rows, in, out;
    enum act act;
    /* `dtype` is the type of x. `w_dtype` is the type of w and b. `y_dtype` is the type of y and z. The
     * activation is applied to the input that was rounded to y_dtype, whether z is written or not. So a
     * forward pass that saves z gives the same y as one that does not. */
    enum dtype dtype, w_dtype, y_dtype;
};
/* Computes the gradient of a linear layer's input: dx[rows][in] = dy[rows][out] * w[out][in]. If `z` is not
 * NULL, the op also multiplies each element of dx by act'(z), the slope of the preceding activation. */
struct op_linear_bwd_data {
    const void *dy, *w;
    /* If an activation produced the linear layer's input, `z` is the input of that activation, [rows][in].
     * Otherwise `z` is NULL. */
    const void *z;
    void *dx;
    uint32_t rows, in, out;
    enum act act;
    /* `dtype` is the type of dy, z and dx. `w_dtype` is the type of w. */
    enum dtype dtype, w_dtype;
};
/* Computes the gradient of a linear layer's weights: dw[out][in] = dy^T * x. If `accumulate` is true, the op
 * adds the gradient to the old dw. */
struct op_linear_bwd_weight {
    const void *dy, *x;
    float *dw;
    uint32_t rows, in, out;
    bool accumulate;
    enum dtype dtype; /* of dy and x */
};
/* Adds a bias to every row: y[rows][n] = x[rows][n] + b[n]. The op can work in place, with y equal to x. */
struct op_bias_fwd {
    const void *x, *b;
    void *y;
    uint32_t rows, n;
    /* `dtype` is the type of x and y. `w_dtype` is the type of b. */
    enum dtype dtype, w_dtype;
};
/* Computes the gradient of a bias: db[n] is the sum of column n of dy[rows][n]. If `accumulate` is true, the
 * op adds the sums to the old db. */
struct op_bias_bwd {
    const void *dy;
    float *db;
    uint32_t rows, n;
    bool accumulate;
    enum dtype dtype; /* of dy */
};
/* Applies an activation function to each element: y = act(x). The op can work in place, with y equal to x. */
struct op_act_fwd {
    const void *x;
    void *y;
    uint64_t n;
    enum act act;
    enum dtype dtype; /* of x and y */
};
/* Computes the gradient of an activation: dx = dy * act'(x), where `x` is the activation's input. The op can
 * work in place, with dx equal to dy. */
struct op_act_bwd {
    const void *x, *dy;
    void *dx;
    uint64_t n;
    enum act act;
    enum dtype dtype; /* of x, dy and dx */
};
/* Dropout: y = keep ? x / (1 - p) : 0. The backward pass applies the same op to the gradient. y may be x.
 * If the step does not train, y = x. Element e of the row at position q of the global batch is kept if
 *
 *     rng_unit(word e % 4 of rng_quad(step->seed, e / 4, q, rng_word2(RNG_DROPOUT, layer),
 *                                     (uint32_t)step->step)) >= p */
struct op_dropout {
    const void *x;
    void *y;
    uint32_t rows, n;
    uint32_t layer;     /* key of the layer's random numbers */
    uint32_t first_row; /* position of row 0 in the batch */
    float p;
    enum dtype dtype; /* of x and y */
};
/* Looks up one vector of the table for each token: y[row] = table[ids[row]]. */
struct op_embedding_fwd {
    const int32_t *ids; /* [rows], 0 <= id < vocab */
    const void *table;  /* [vocab][n] */
    void *y;
    uint32_t rows, n, vocab;
    enum dtype dtype, w_dtype; /* dtype: of y; w_dtype: of table */
};
/* Computes the gradient of the embedding table: dtable[ids[row]] += dy[row]. The rows are added in ascending
 * order, so that the bits of the sums are always the same. */
struct op_embedding_bwd {
    const int32_t *ids;
    const void *dy;
    float *dtable;
    uint32_t rows, n, vocab;
    enum dtype dtype; /* of dy */
};
/* Normalizes each row. Layer norm computes y = (x - mean) * rstd * w + b with rstd = 1 / sqrt(var + eps). If
 * `rms` is true, the op computes RMS norm instead: y = x * rstd * w with rstd = 1 / sqrt(mean(x^2) + eps).
 * `b` is then NULL, and the stored mean is 0. */
struct op_rownorm_fwd {
    const void *x, *w;
    const void *b; /* bias, or NULL */
    void *y;       /* NULL to compute only the statistics */
    /* The op writes the mean and the rstd of each row to this array, [rows][2]. The pointer may be NULL. */
    float *stats;
    uint32_t rows, n;
    float eps;
    bool rms;
    /* `dtype` is the type of x and y. `w_dtype` is the type of w and b. */
    enum dtype dtype, w_dtype;
};
/* Computes the gradients of op_rownorm_fwd. In the comments of the fields, xhat is the normalized row,
 * without the multiplication by w and the addition of b. */
struct op_rownorm_bwd {
    const void *x, *w, *dy;
    const float *stats;
    void *dx; /* may be dy, or NULL */
    /* The gradient of w: the sum of each column of dy * xhat. If `accumulate` is true, the op adds the sums
     * to the old dw. */
    float *dw;
    /* The gradient of b, which is the sum of each column of dy. If `accumulate` is true, the op adds the sums
     * to the old db. This pointer is NULL if there is no bias. */
    float *db;
    uint32_t rows, n;
    bool rms, accumulate;
    /* `dtype` is the type of x, dy and dx. `w_dtype` is the type of w. */
    enum dtype dtype, w_dtype;
};
/* Causal self-attention over `rows` sequences of `seq` tokens. Each of `heads` heads computes y =
 * dropout(softmax(q k^T / sqrt(head) + mask)) v. Query head h uses key and value head h / (heads /
 * kv_heads).
 *
 * A token of qkv holds its queries [heads][head], then its keys [kv_heads][head], then its values
 * [kv_heads][head]. lse, [rows][heads][seq], is the logarithm of each softmax's sum of exp(score).
 *
 * Scores are dropped in the same way as in op_dropout, but with RNG_SCORES. The score of query q and key k
 * in head h is element ((first_head + h) * seq + q) * seq + k of its row, as a 64-bit number. first_head
 * is the number of head 0 among all heads of the layer. An op on some of the heads therefore drops the
 * same scores as an op on all of them. The ops never hold all scores of a head in memory. */
struct op_attention_fwd {
    const void *qkv; /* [rows][seq][(heads + 2 kv_heads) * head] */
    void *y;         /* [rows][seq][heads * head] */
    float *lse;
    uint32_t rows, seq, heads, kv_heads, head;
    uint32_t layer, first_row, first_head; /* keys of dropout's random numbers */
    float p;
    enum dtype dtype; /* of qkv and y */
};
/* Computes the gradient of op_attention_fwd's input qkv. dqkv has the same layout as qkv: for each token its
 * queries, then its keys, then its values. */
struct op_attention_bwd {
    const void *qkv, *y, *dy;
    const float *lse;
    void *dqkv;
    float *scratch; /* [rows][heads][seq], workspace of the op */
    uint32_t rows, seq, heads, kv_heads, head;
    uint32_t layer, first_row, first_head; /* keys of dropout's random numbers */
    float p;
    enum dtype dtype; /* of qkv, y, dy and dqkv */
};
/* Rotates the first `heads` heads of each token in x[rows][seq][n], for models with rotary positions. At
 * position t, the pair of elements i and i + head/2 turns by the angle t * theta^(-2i/head). If `inverse` is
 * true, the pair turns by the same angle in the other direction. */
struct op_rope {
    void *x;
    uint32_t rows, seq, n;
    uint32_t heads, head; /* heads * head <= n */
    float theta;
    bool inverse;
    enum dtype dtype; /* of x */
};
/* A gated activation: y[row][i] = silu(x[row][i]) * x[row][n + i]. A row of x has 2n elements, and a row of
 * y has n elements. */
struct op_swiglu_fwd {
    const void *x;
    void *y;
    uint32_t rows, n;
    enum dtype dtype; /* of x and y */
};
/* Computes the gradient of op_swiglu_fwd's input, dx[rows][2n]. The op can work in place, with dx equal to
 * x. */
struct op_swiglu_bwd {
    const void *x, *dy;
    void *dx;
    uint32_t rows, n;
    enum dtype dtype; /* of x, dy and dx */
};
/* Sets the first `bytes` bytes of the array `y` to 0. Zero bytes are the number 0 in every element type, so
 * the op needs no type. */
struct op_zero {
    void *y;
    uint64_t bytes;
};
/* Softmax and cross entropy: the loss, its gradient, or both. Row i is target i % seq of the sample at
 * position first_row / seq + i / seq of the global batch. The row counts if that position is <
 * step->valid_rows and its target is not negative.
 *
 * Label smoothing s applies only when the step trains. The loss then becomes (1 - s) * loss + s * mean,
 * where mean is the average over all classes c of the loss with c as the target. */
struct op_softmax_xent {
    const void *x;         /* logits [rows][n] */
    const int32_t *target; /* [rows], < n; negative targets are ignored */
    /* The op writes the loss and the number of correct answers to *result. Both are sums over the rows,
     * except for padding and rows with a negative target. If `accumulate` is true, the op adds the sums to
     * the old values. This pointer may be NULL. */
    struct step_result *result;
    /* The op writes the gradient of x, multiplied by step->grad_scale, to this array. The gradient is 0 for
     * padding and for rows with a negative target. This pointer may be NULL. It may be equal to `x` if both
     * have the same type. */
    void *dx;
    uint32_t rows, n;
    /* `first_row` is the number of targets that come before row 0 in the global batch. `seq` is the number of
     * targets in a sample, which is at least 1. */
    uint32_t first_row, seq;
    float smoothing;
    bool accumulate;
    /* If not NULL, the gradient is also multiplied by group->loss_scale. The loss in *result is not. */
    const struct group_state *group;
    enum dtype dtype, dx_dtype; /* of x; of dx */
};
/* Computes the mean squared error. The op sets result->loss to the sum of mean((x - target)^2) over the rows
 * that are not padding, and result->correct to 0. */
struct op_mse_fwd {
    const void *x;       /* [rows][n] */
    const float *target; /* [rows][n] */
    struct step_result *result;
    uint32_t rows, n, first_row;
    /* If true, the op does not write result->correct. If false, the op sets result->correct to 0, because a
     * regression has no right answers to count. */
    bool keep_correct;
    enum dtype dtype; /* of x */
};
/* Computes the gradient of op_mse_fwd's input: dx = 2 (x - target) / n * step->grad_scale. Padding rows get
 * 0. */
struct op_mse_bwd {
    const void *x;
    const float *target;
    void *dx;
    uint32_t rows, n, first_row;
    const struct group_state *group; /* as in op_softmax_xent */
    enum dtype dtype;                /* of x and dx */
};
/* The largest number of gradients that an op can combine. */
#define OP_USES 8
/* The gradients of one weight array: dw[i] is the gradient from the i-th layer that uses these weights. An op
 * adds the gradients in float and in ascending order: ((dw[0] + dw[1]) + dw[2]) + .... If `mean` is true, the
 * op then multiplies the sum by the float 1/n. */
struct op_gradients {
    const float *dw[OP_USES]; /* the pointers dw[0] to dw[n - 1] are set */
    uint32_t n;               /* at least 1 */
    bool mean;
};
/* Updates weights by SGD: g = dw * scale; v = momentum * v + (g + weight_decay * w); w -= lr * v. Without
 * momentum, the pointer `v` is NULL and w -= lr * (g + weight_decay * w).
 *
 * If the weights have a 16-bit type, the formulas apply to `master`, the same weights in float. The op then
 * rounds each new master weight into `w`, and never reads the old `w`. So small updates are not lost. */
struct op_sgd {
    void *w;
    float *master; /* NULL if `dtype` is DTYPE_F32 */
    struct op_gradients g;
    float *v;
    /* The state that the decision of this step has written, which contains the scale. If this pointer is
     * NULL, the op always applies the update, and the scale is 1. */
    const struct group_state *group;
    uint64_t n;
    float momentum, weight_decay;
    enum dtype dtype; /* of w */
};
/* Updates weights by AdamW, with the formulas of PyTorch: w -= lr*wd*w; update m and v; w -= lr * (m*bc1) /
 * (sqrt(v*bc2)+eps). The bias corrections bc1 and bc2 come from `group`. `w` and `master` are as in op_sgd.
 * */
struct op_adamw {
    void *w;
    float *master; /* NULL if `dtype` is DTYPE_F32 */
    struct op_gradients g;
    float *m, *v;
    /* The state that the decision of this step has written. If this pointer is NULL, the op always applies
     * the update, and the scale, bc1 and bc2 are 1. */
    const struct group_state *group;
    uint64_t n;
    float beta1, beta2, eps, weight_decay;
    enum dtype dtype; /* of w */
};
/* Adds x to y, element by element. */
struct op_add {
    void *y;
    const void *x;
    uint64_t n;
    enum dtype dtype; /* of x and y */
};
/* Computes the squared norm of a gradient: *sum is the sum of the squares of the combined gradients. The op
 * adds in double precision and in blocks of a fixed size. So the order of the additions never changes, and
 * the bits of the result are always the same. */
struct op_sumsq {
    struct op_gradients g;
    double *sum;
    uint64_t n;
};
/* Adds *sum, the sum of squares of one layer, to the total decision->sumsq. If *sum is infinite or NaN, sets
 * decision->bad_layer to `layer`. If `first` is true, the op begins by setting the total to 0 and
 * decision->bad_layer to STEP_NO_LAYER.
 *
 * If `other` is true, the sum belongs to a layer of another decision group with the same loss scale. The op
 * then adds it only if it is infinite or NaN, so that the step is skipped. */
struct op_norm_add {
    const double *sum;
    struct step_decision *decision;
    bool first;
    uint32_t layer;
    bool other;
};
/* Decides whether the update of a step is applied. Sets `apply` in `decision` and in `group` to 1 if
 * decision->sumsq is finite, and to 0 otherwise. If the update is applied, the op also changes `group`: t
 * += 1; scale = clip > 0 && norm > clip ? clip / (norm + 1e-6) : 1; bias_correct1 = 1 / (1 - beta1^t);
 * bias_correct2 = 1 / (1 - beta2^t). */
struct op_decide {
    /* The decision of the step. The op reads its field `sumsq` and writes its field `apply`. If this pointer
     * is NULL, the update of every step is applied, and the scale is 1. */
    struct step_decision *decision;
    struct group_state *group;
    double clip; /* 0 means no clipping */
    float beta1, beta2;
    /* If this number is not 0, the losses of this step were multiplied by the old group->loss_scale, and
     * `decision` is not NULL. The op divides the norm and the scale of the update by it. If the norm is not
     * finite, the new loss scale is half of the old one. After growth_steps steps with a finite norm in a
     * row, it is twice the old one, but at most LOSS_SCALE_MOST. */
    uint32_t growth_steps;
};

/* One launch of an op, with its arguments. A stream copies this struct into its queue, but it does not copy
 * *step. So *step must stay valid until the launch has run. */
struct op_call {
    enum op op;
    const struct step_args *step;
    union {
#define OP(name) struct op_##name name;
#include "kernels/ops.def"
#undef OP
    };
};

/* The largest number of type fields that the arguments of an op have. */
#define OP_DTYPES 3
/* The fields of an op's arguments that give types of elements: their number, and their offsets in struct
 * op_call. For example, the row of linear_fwd has n = 2 and the offsets of linear_fwd.dtype and
 * linear_fwd.w_dtype. The row of decide has n = 0. */
struct op_dtypes {
    uint32_t n;
    size_t at[OP_DTYPES];
};
extern const struct op_dtypes op_dtypes[OP_COUNT];

/* Returns true if every type in the arguments of `call` is one of `types`, a bit mask with the bits
 * 1 << DTYPE_F32 and so on. Returns true for ops without types. Backends use this function to refuse calls
 * with types that they do not implement. */
bool op_has_only(const struct op_call *call, uint32_t types);

/* One array that an op_call reads or writes. */
struct op_range {
    const void *at;
    uint64_t bytes;
    bool write; /* false: the call only reads it */
};
#define OP_RANGES (OP_USES + 5) /* largest number of arrays in one call */

/* Lists all arrays that a call may read or write. Each array is listed once, with its exact size in bytes.
 * Returns the number of arrays. The result of the op depends only on these arrays, the shapes in `call` and
 * the values in *step. */
uint32_t op_ranges(const struct op_call *call, struct op_range ret[OP_RANGES]);

/* The receiver of the ops that a layer launches. The receiver is a stream of a device, or a test that runs
 * each op immediately. */
struct op_sink {
    int (*launch)(void *ctx, const struct op_call *call); /* 0 or negative errno */
    void *ctx;
};

#endif
