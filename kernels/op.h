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

enum act { ACT_NONE, ACT_RELU, ACT_GELU, ACT_TANH, ACT_COUNT }; /* gelu: the tanh form */
extern const char *const act_names[ACT_COUNT];

struct op_linear_fwd { /* y[rows][out] = x[rows][in] * w[out][in]^T */
    const float *x, *w;
    float *y;
    uint32_t rows, in, out;
};
struct op_linear_bwd_data { /* dx[rows][in] = dy[rows][out] * w[out][in] */
    const float *dy, *w;
    float *dx;
    uint32_t rows, in, out;
};
struct op_linear_bwd_weight { /* dw[out][in] = (accumulate ? dw : 0) + dy^T * x */
    const float *dy, *x;
    float *dw;
    uint32_t rows, in, out;
    bool accumulate;
};
struct op_bias_fwd { /* y[rows][n] += b[n], in place */
    float *y;
    const float *b;
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
                     * rng_unit(word e % 4 of rng_philox(step->seed, e / 4, q,
                     *          rng_word2(RNG_DROPOUT, layer), (uint32_t)step->step)) >= p. */
    const float *x;
    float *y;
    uint32_t rows, n;
    uint32_t layer;     /* key */
    uint32_t first_row; /* position of row 0 in the global batch */
    float p;
};
struct op_softmax_xent_fwd { /* result: sums over the rows whose position is < step->valid_rows */
    const float *x;          /* logits [rows][n] */
    const int32_t *target;   /* [rows], 0 <= target < n */
    struct step_result *result;
    uint32_t rows, n, first_row;
};
struct op_softmax_xent_bwd { /* dx = (softmax(x) - onehot(target)) * step->grad_scale; 0 in padded rows */
    const float *x;
    const int32_t *target;
    float *dx;
    uint32_t rows, n, first_row;
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
    const float *dw;
    float *v;
    const struct step_decision *decision; /* NULL: apply, scale 1 */
    uint64_t n;
    float momentum, weight_decay;
};
struct op_adamw { /* decoupled weight decay, as PyTorch: w -= lr*wd*w; m,v;
                   * w -= lr * (m*bc1) / (sqrt(v*bc2)+eps) */
    float *w;
    const float *dw;
    float *m, *v;
    const struct step_decision *decision; /* NULL: apply, scale 1 */
    uint64_t n;
    float beta1, beta2, eps, weight_decay;
};
struct op_add { /* y += x, element by element */
    float *y;
    const float *x;
    uint64_t n;
};
struct op_sumsq { /* *sum = sum of x^2 in double, over fixed blocks of the index */
    const float *x;
    double *sum;
    uint64_t n;
};
struct op_norm_add { /* decision->sumsq = (first ? 0 : decision->sumsq) + *sum */
    const double *sum;
    struct step_decision *decision;
    bool first;
};
struct op_decide { /* apply = sumsq is finite; scale = clip > 0 && norm > clip ? clip / (norm + 1e-6) : 1 */
    struct step_decision *decision;
    double clip; /* 0: no clipping */
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
#define OP_RANGES 5 /* of one call, at most */

/* All arrays of a call, each once, and no byte that is not one of them: the contents of these and `step` are what
 * the result is made of. An op may leave some alone, as an update that is not to be applied. Returns how many. */
uint32_t op_ranges(const struct op_call *call, struct op_range ret[OP_RANGES]);

/* Where a layer sends its launches: a stream of a device, or a test that runs them at once. */
struct op_sink {
    int (*launch)(void *ctx, const struct op_call *call); /* 0 or negative errno */
    void *ctx;
};

#endif
