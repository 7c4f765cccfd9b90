/* Ops: the mathematics, one struct of arguments each. Layers are made of ops; backends implement them.
 *
 * Contract of every op (DESIGN section 5): the bits of its result depend on its arguments' values and shapes
 * only, never on the number of threads, the alignment of an address or what else runs. All matrices are
 * row-major, dense, float32; pointers are 4-byte aligned at least (8 for double) and outputs do not overlap
 * inputs unless the op says so. An op never allocates memory that a model's size decides.
 */
#ifndef KERNELS_OP_H
#define KERNELS_OP_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/step.h"

enum op {
#define OP(name) OP_##name,
#include "kernels/ops.def"
#undef OP
    OP_COUNT
};

extern const char *const op_names[OP_COUNT];

enum act { /* gelu: the tanh form; silu: x * sigmoid(x) */
           ACT_NONE,
           ACT_RELU,
           ACT_GELU,
           ACT_TANH,
           ACT_GELU_ERF,
           ACT_SILU,
           ACT_COUNT
};
extern const char *const act_names[ACT_COUNT];

struct op_linear_fwd { /* y[rows][out] = act(x[rows][in] * w[out][in]^T + b[out]) */
    const float *x, *w;
    const float *b; /* NULL: none */
    float *z;       /* what the activation was applied to, [rows][out]; NULL: not wanted. Without one: NULL */
    float *y;
    uint32_t rows, in, out;
    enum act act;
};
struct op_linear_bwd_data { /* dx[rows][in] = dy[rows][out] * w[out][in], times act'(z) where there is a z */
    const float *dy, *w;
    const float *z; /* [rows][in]; NULL: none */
    float *dx;
    uint32_t rows, in, out;
    enum act act;
};
struct op_linear_bwd_weight { /* dw[out][in] = (accumulate ? dw : 0) + dy^T * x */
    const float *dy, *x;
    float *dw;
    uint32_t rows, in, out;
    bool accumulate;
};
struct op_bias_fwd { /* y[rows][n] = x[rows][n] + b[n]; y may be x */
    const float *x, *b;
    float *y;
    uint32_t rows, n;
};
struct op_bias_bwd { /* db[n] = (accumulate ? db : 0) + column sums of dy[rows][n] */
    const float *dy;
    float *db;
    uint32_t rows, n;
    bool accumulate;
};
struct op_act_fwd { /* y = act(x); y may be x */
    const float *x;
    float *y;
    uint64_t n;
    enum act act;
};
struct op_act_bwd { /* dx = dy * act'(x), x the input of the forward; dx may be dy */
    const float *x, *dy;
    float *dx;
    uint64_t n;
    enum act act;
};
struct op_dropout { /* y = keep ? x / (1 - p) : 0, forward and backward alike; y may be x. Identity when the
                     * step does not train. Element e of the row at position q of the global batch is kept iff
                     * rng_unit(word e % 4 of rng_quad(step->seed, e / 4, q, rng_word2(RNG_DROPOUT, layer),
                     *          (uint32_t)step->step)) >= p. */
    const float *x;
    float *y;
    uint32_t rows, n;
    uint32_t layer;     /* key */
    uint32_t first_row; /* position of row 0 in the global batch */
    float p;
};
struct op_embedding_fwd { /* y[rows][n] = table[id of the row] */
    const int32_t *ids;   /* [rows], 0 <= id < vocab */
    const float *table;   /* [vocab][n] */
    float *y;
    uint32_t rows, n, vocab;
};
struct op_embedding_bwd { /* dtable[id of the row] += dy[row], rows in ascending order */
    const int32_t *ids;
    const float *dy;
    float *dtable;
    uint32_t rows, n, vocab;
};
/* Normalization of each row: layer norm, y = (x - mean) * rstd * w + b with rstd = 1 / sqrt(var + eps), or with `rms`
 * y = x * rstd * w with rstd = 1 / sqrt(mean(x^2) + eps) (b NULL, mean 0). */
struct op_rownorm_fwd {
    const float *x, *w;
    const float *b; /* NULL: none */
    float *y;       /* NULL: only the statistics */
    float *stats;   /* [rows][2]: mean, rstd; NULL: not wanted */
    uint32_t rows, n;
    float eps;
    bool rms;
};
struct op_rownorm_bwd {
    const float *x, *w, *stats, *dy;
    float *dx; /* NULL: not wanted; may be dy */
    float *dw; /* (accumulate ? dw : 0) + column sums of dy * xhat */
    float *db; /* likewise of dy; NULL: none */
    uint32_t rows, n;
    bool rms, accumulate;
};
/* Causal self-attention of `rows` sequences of `seq` tokens: y = dropout(softmax(q k^T / sqrt(head) +
 * mask)) v for each of `heads` heads; head h uses key and value h / (heads / kv_heads). A token of qkv
 * holds its queries [heads][head], then its keys [kv_heads][head], then its values. lse is the logarithm
 * of each softmax's sum: of exp(score), [rows] [heads][seq]. Scores are dropped as op_dropout does, with
 * RNG_SCORES: the score of query q and key k in head h is element ((first_head + h) * seq + q) * seq + k
 * of the row, a number of 64 bits. first_head is the number of head 0 among the heads of the layer; an op
 * on some of the heads then drops what an op on all of them would drop. Neither ever holds all scores of a
 * head. */
struct op_attention_fwd {
    const float *qkv; /* [rows][seq][(heads + 2 kv_heads) * head] */
    float *y;         /* [rows][seq][heads * head] */
    float *lse;
    uint32_t rows, seq, heads, kv_heads, head;
    uint32_t layer, first_row, first_head; /* of dropout */
    float p;
};
struct op_attention_bwd { /* dqkv, laid out as qkv */
    const float *qkv, *y, *lse, *dy;
    float *dqkv;
    float *scratch; /* [rows][heads][seq], without meaning before and after */
    uint32_t rows, seq, heads, kv_heads, head;
    uint32_t layer, first_row, first_head; /* of dropout */
    float p;
};
/* Rotates, in place, the first `heads` heads of every token of x[rows][seq][n] by its position t: the pair (i, i + head/2)
 * by the angle t * theta^(-2i/head), backwards where `inverse`. */
struct op_rope {
    float *x;
    uint32_t rows, seq, n;
    uint32_t heads, head; /* heads * head <= n */
    float theta;
    bool inverse;
};
struct op_swiglu_fwd { /* y[rows][n] = silu(x[row][0..n-1]) * x[row][n..2n-1] */
    const float *x;
    float *y;
    uint32_t rows, n;
};
struct op_swiglu_bwd { /* dx[rows][2n]; may be x */
    const float *x, *dy;
    float *dx;
    uint32_t rows, n;
};
struct op_zero { /* y[n] = 0 */
    float *y;
    uint64_t n;
};
/* Softmax and cross entropy, the loss, its gradient or both. Row i is target i % seq of the sample at position
 * first_row / seq + i / seq of the global batch. It counts iff that position is < step->valid_rows and its target is not
 * negative (ignored). With smoothing s, only when the step trains: (1 - s) * loss + s * mean over all classes c of the loss
 * were c the target. */
struct op_softmax_xent {
    const float *x;        /* logits [rows][n] */
    const int32_t *target; /* [rows], < n */
    struct step_result *
        result; /* (accumulate ? *result : 0) + sums over the rows that count, in their order; NULL: not wanted */
    float *dx; /* gradient * step->grad_scale, 0 in rows that do not count; may be x; NULL: not wanted */
    uint32_t rows, n;
    uint32_t first_row, seq; /* in targets; targets per sample, at least 1 */
    float smoothing;
    bool accumulate;
};
struct op_mse_fwd {          /* result->loss = sum over the valid rows of mean((x - target)^2); correct = 0 */
    const float *x, *target; /* [rows][n] each */
    struct step_result *result;
    uint32_t rows, n, first_row;
};
struct op_mse_bwd { /* dx = 2 (x - target) / n * step->grad_scale; 0 in padded rows */
    const float *x, *target;
    float *dx;
    uint32_t rows, n, first_row;
};
struct op_sgd { /* g = dw * scale; v = momentum * v + (g + weight_decay * w); w -= lr * v.
                 * v NULL: no momentum */
    float *w;
    const float *dw, *dw2; /* dw2: gradient of a second use of w: dw + dw2 stands for dw; NULL: none */
    float *v;
    const struct group_state *group; /* NULL: apply, scale 1 */
    uint64_t n;
    float momentum, weight_decay;
};
struct op_adamw { /* decoupled weight decay, as PyTorch: w -= lr*wd*w; m,v;
                   * w -= lr * (m*bc1) / (sqrt(v*bc2)+eps) */
    float *w;
    const float *dw, *dw2; /* as in op_sgd */
    float *m, *v;
    const struct group_state *group; /* its bc1 and bc2; NULL: apply, scale 1, bc1 and bc2 1 */
    uint64_t n;
    float beta1, beta2, eps, weight_decay;
};
struct op_add { /* y += x, element by element */
    float *y;
    const float *x;
    uint64_t n;
};
struct op_sumsq {        /* *sum = sum of (x + x2)^2 in double, over fixed blocks of the index */
    const float *x, *x2; /* x2 NULL: sum of x^2 */
    double *sum;
    uint64_t n;
};
struct
    op_norm_add { /* decision->sumsq = (first ? 0 : decision->sumsq) + *sum; bad_layer = *sum is not finite ? layer :
                      * first ? STEP_NO_LAYER : bad_layer */
    const double *sum;
    struct step_decision *decision;
    bool first;
    uint32_t layer;
};
struct
    op_decide { /* apply = decision->sumsq is finite, in decision and in group. If it applies, in group: t += 1; scale =
                    * clip > 0 && norm > clip ? clip / (norm + 1e-6) : 1; bias_correct1, 2 = 1 / (1 - beta1, 2 ^ t) */
    struct step_decision *decision; /* NULL: no gradient is looked at; it applies, scale 1 */
    struct group_state *group;
    double clip; /* 0: no clipping */
    float beta1, beta2;
};

/* One launch. Copied by value into a stream's queue; `step` must live until the launch has run. */
struct op_call {
    enum op op;
    const struct step_args *step;
    union {
#define OP(name) struct op_##name name;
#include "kernels/ops.def"
#undef OP
    };
};

/* An array that a call touches. */
struct op_range {
    const void *at;
    uint64_t bytes;
    bool write; /* written, or read and written; false: only read */
};
#define OP_RANGES 7 /* of one call, at most */

/* All arrays of a call, each once, and no byte that is not one of them: the contents of these and `step` are what
 * the result is made of. An op may leave some alone, as an update that is not to be applied. Returns how many. */
uint32_t op_ranges(const struct op_call *call, struct op_range ret[OP_RANGES]);

/* Where a layer sends its launches: a stream of a device, or a test that runs them at once. */
struct op_sink {
    int (*launch)(void *ctx, const struct op_call *call); /* 0 or negative errno */
    void *ctx;
};

#endif
