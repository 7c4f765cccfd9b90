/* Helpers that the layers (layer_*.c) share. All other code includes layers.def and layer.h instead. */
#ifndef KERNELS_LAYER_IMPL_H
#define KERNELS_LAYER_IMPL_H

#include <stddef.h>

#include "kernels/layer.h"

#define LAYER(name) extern const struct layer_type layer_##name;
#include "kernels/layers.def"
#undef LAYER

/* Sends one op to the sink, as in LAYER_LAUNCH(io, sink, bias_fwd, .y = ..., ...). Gives 0 or a negative
 * errno. */
#define LAYER_LAUNCH(io, sink, name, ...)                                                                    \
    ((sink)->launch((sink)->ctx,                                                                             \
                    &(struct op_call){.op = OP_##name, .step = (io)->step, .name = {__VA_ARGS__}}))

/* Returns the bytes of a float array [a][b], or 2^60 on overflow. Several such sizes can be added without
 * another overflow. */
static inline uint64_t layer_bytes(uint32_t a, uint32_t b)
{
    const uint64_t most = UINT64_C(1) << 60;
    uint64_t n = (uint64_t)a * b;
    return n < most / sizeof(float) ? n * sizeof(float) : most;
}

/* Rounds a size up to whole cache lines, so that the next array is aligned for vector code. */
static inline uint64_t layer_round(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Returns the address `bytes` bytes after the start of `block`, or NULL if `block` is NULL. */
static inline float *layer_at(float *block, uint64_t bytes)
{
    return block ? block + bytes / sizeof(float) : NULL;
}
static inline const float *layer_at_const(const float *block, uint64_t bytes)
{
    return block ? block + bytes / sizeof(float) : NULL;
}

/* layer_seq returns the number of tokens per row. layer_width and layer_width_out return the number of
 * elements in a token of the input or output. */
static inline uint32_t layer_seq(const struct layer *l)
{
    return l->seq > 1 ? l->seq : 1;
}
static inline uint32_t layer_width(const struct layer *l)
{
    return l->in / layer_seq(l);
}
static inline uint32_t layer_width_out(const struct layer *l)
{
    return l->out / layer_seq(l);
}
/* Returns the number of tokens in `rows` rows. */
static inline uint32_t layer_tokens(const struct layer *l, uint32_t rows)
{
    return rows * layer_seq(l);
}

/* Applies the layer's dropout to its result or to the gradient of its result. Without dropout, it launches
 * nothing and `to` stays unchanged. */
int layer_drop(const struct layer *l, const struct layer_io *io, const float *from, float *to,
               const struct op_sink *sink);

/* The arguments of layer_linear_bwd, the backward pass of y = x w^T + b. It always computes `dw`. It
 * computes `db` and `dx` only if they are not NULL. */
struct layer_linear {
    const float *dy, *x, *w;
    float *dw, *db, *dx;
    uint32_t rows, in, out; /* rows: number of tokens */
};
int layer_linear_bwd(const struct layer_io *io, const struct layer_linear *p, const struct op_sink *sink);

/* The params() function of a layer kind that has no parameters. */
static inline uint32_t layer_no_params(const struct layer *l, struct layer_param *ret)
{
    (void)l;
    (void)ret;
    return 0;
}

/* Collects the parameters of a layer for its params() function, in the order of W. */
struct layer_params {
    const struct layer *l;
    struct layer_param *at; /* output array, or NULL to only count */
    uint32_t n;
    uint64_t offset; /* total size so far, in bytes */
};
/* Adds a parameter of the shape [a][b], or [a] if `b` is 0. enum param_init shows how class, `std` and
 * `fan_in` decide its initial values. */
void layer_add_param(struct layer_params *p, const char *name, enum param_class class, uint32_t a, uint32_t b,
                     float std, uint32_t fan_in);

#endif
