/* Helper functions for the layer files (layer_*.c). All other code includes layer.h instead. */
#ifndef KERNELS_LAYER_IMPL_H
#define KERNELS_LAYER_IMPL_H

#include <stddef.h>

#include "kernels/layer.h"

/* Passes one op with its arguments to the sink. The value of the macro is 0 or a negative errno. Example:
 * LAYER_LAUNCH(io, sink, bias_fwd, .y = y, .x = x, .b = b, .rows = rows, .n = n). */
#define LAYER_LAUNCH(io, sink, name, ...)                                                                    \
    ((sink)->launch((sink)->ctx,                                                                             \
                    &(struct op_call){.op = OP_##name, .step = (io)->step, .name = {__VA_ARGS__}}))

/* Returns the size in bytes of an array [a][b] of elements of type `dtype`. The result is at most 2^60, even
 * if the size is larger, so that callers can add several sizes without an overflow. */
static inline uint64_t layer_bytes_of(enum dtype dtype, uint32_t a, uint32_t b)
{
    const uint64_t most = UINT64_C(1) << 60;
    uint64_t bytes;
    return dtype_bytes(dtype, (uint64_t)a * b, &bytes) && bytes < most ? bytes : most;
}
/* Each of these three functions returns the size in bytes of an array [a][b]. The array contains activations
 * or their gradients, weights or their gradients, or statistics or buffers. Statistics and buffers are float
 * in every layer. */
static inline uint64_t layer_act_bytes(const struct layer *l, uint32_t a, uint32_t b)
{
    return layer_bytes_of(l->dtype, a, b);
}
static inline uint64_t layer_w_bytes(const struct layer *l, uint32_t a, uint32_t b)
{
    return layer_bytes_of(l->w_dtype, a, b);
}
static inline uint64_t layer_stat_bytes(uint32_t a, uint32_t b)
{
    return layer_bytes_of(DTYPE_F32, a, b);
}

/* Returns the sizes of the input X and the output Y, and the types of X, Y and the weights W. Every kind of
 * layer starts from this struct and adds its other sizes. The output of a loss has no elements, so its Y has
 * 0 bytes. */
static inline struct layer_sizes layer_sizes_of(const struct layer *l, uint32_t rows)
{
    return (struct layer_sizes){
        .x = layer_act_bytes(l, rows, layer_in(l)),
        .y = layer_act_bytes(l, rows, layer_out(l)),
        .w_dtype = l->w_dtype,
        .x_dtype = l->dtype,
        .y_dtype = l->dtype,
    };
}

/* Rounds a size in bytes up to whole cache lines of 64 bytes, so that the next array is aligned for vector
 * code. */
static inline uint64_t layer_round(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Returns the address that lies `bytes` bytes after the start of `block`, or NULL if `block` is NULL. */
static inline void *layer_at(void *block, uint64_t bytes)
{
    return block ? (char *)block + bytes : NULL;
}
static inline const void *layer_at_const(const void *block, uint64_t bytes)
{
    return block ? (const char *)block + bytes : NULL;
}
/* Returns the gradient of the weights that begin `w_bytes` bytes after the start of the layer's weights W.
 * The gradient dW has one float for each weight, so its offsets are not those of W if the weights have 16
 * bits. Returns NULL if `dw` is NULL. */
static inline float *layer_dw_at(const struct layer *l, float *dw, uint64_t w_bytes)
{
    return dw ? dw + dtype_elements(l->w_dtype, w_bytes) : NULL;
}

/* Returns the total number of tokens in `rows` rows. */
static inline uint32_t layer_tokens(const struct layer *l, uint32_t rows)
{
    return rows * layer_seq(l);
}

/* Launches dropout with probability `p` on the layer's result, or on the gradient of its result. If `p` is 0,
 * the function launches nothing and does not write to `to`. */
int layer_drop(const struct layer *l, float p, const struct layer_io *io, const void *from, void *to,
               const struct op_sink *sink);

/* The arguments of layer_linear_bwd, which computes the gradients of y = x w^T + b. The gradient `dw` is
 * always computed. The gradients `db` and `dx` are computed only if these pointers are not NULL. */
struct layer_linear {
    const void *dy, *x, *w;
    float *dw, *db;
    void *dx;
    uint32_t rows, in, out; /* rows: number of tokens */
};
int layer_linear_bwd(const struct layer *l, const struct layer_io *io, const struct layer_linear *p,
                     const struct op_sink *sink);

/* Fills `ret` with the first `n` uniform random numbers in [0, 1) of a layer's sequence. Each number depends
 * only on the seed, the key of the layer and the position of the number in the sequence. */
void layer_uniform(uint64_t seed, uint32_t key, uint64_t n, float *ret);

/* The `params` function of layers that have no parameters. */
static inline uint32_t layer_no_params(const struct layer *l, struct layer_param *ret)
{
    (void)l;
    (void)ret;
    return 0;
}

/* Collects the parameters of one layer, in the order in which they are stored. The `params` function of each
 * kind passes this struct to layer_add_param. */
struct layer_params {
    const struct layer *l;
    struct layer_param *at; /* output array, or NULL to only count */
    /* The type of all parameters. For parameters in the weights, this is the layer's w_dtype. For buffers, it
     * is DTYPE_F32. */
    enum dtype dtype;
    uint32_t n;
    uint64_t offset; /* total size so far, in bytes */
};
/* Adds a parameter of shape [a][b], or of shape [a] if `b` is 0. `class`, `std` and `fan_in` determine the
 * initial values. The comment of enum param_init describes how. */
void layer_add_param(struct layer_params *p, const char *name, enum param_class class, uint32_t a, uint32_t b,
                     float std, uint32_t fan_in);

#endif
