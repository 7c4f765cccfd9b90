/* Helpers that the files of the layers (layer_*.c) share. All other code uses layers.def and layer.h. */
#ifndef KERNELS_LAYER_IMPL_H
#define KERNELS_LAYER_IMPL_H

#include <stddef.h>

#include "kernels/layer.h"

#define LAYER(name) extern const struct layer_type layer_##name;
#include "kernels/layers.def"
#undef LAYER

/* LAYER_LAUNCH(io, sink, bias_fwd, .y = ..., ...) sends one op to the sink. Returns 0 or a negative errno. */
#define LAYER_LAUNCH(io, sink, name, ...)                                                                    \
    ((sink)->launch((sink)->ctx,                                                                             \
                    &(struct op_call){.op = OP_##name, .step = (io)->step, .name = {__VA_ARGS__}}))

/* Returns the bytes of an array [a][b] of float. A product that overflows gives 2^60, which no machine can
 * hold and which still leaves headroom for adding several such sizes. */
static inline uint64_t layer_bytes(uint32_t a, uint32_t b)
{
    const uint64_t most = UINT64_C(1) << 60;
    uint64_t n = (uint64_t)a * b;
    return n < most / sizeof(float) ? n * sizeof(float) : most;
}

/* Rounds up to the start of a cache line, where the next array of a block begins. Vector code prefers
 * aligned arrays. */
static inline uint64_t layer_round(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Returns the address `bytes` bytes into a block of floats. NULL stays NULL. */
static inline float *layer_at(float *block, uint64_t bytes)
{
    return block ? block + bytes / sizeof(float) : NULL;
}
static inline const float *layer_at_const(const float *block, uint64_t bytes)
{
    return block ? block + bytes / sizeof(float) : NULL;
}

/* layer_seq returns the tokens per row. layer_width and layer_width_out return the elements per token of
 * the input and of the output. */
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

/* Launches the dropout of a layer's result, or of that result's gradient. A layer without dropout launches
 * nothing and leaves `to` unchanged. */
int layer_drop(const struct layer *l, const struct layer_io *io, const float *from, float *to,
               const struct op_sink *sink);

/* The gradients of a linear part, y = x w^T + b. layer_linear_bwd always computes the weights' gradient
 * dw. It computes the bias gradient db and the input gradient dx only if their pointers are not NULL. */
struct layer_linear {
    const float *dy, *x, *w;
    float *dw, *db, *dx;
    uint32_t rows, in, out; /* rows: number of tokens */
};
int layer_linear_bwd(const struct layer_io *io, const struct layer_linear *p, const struct op_sink *sink);

/* The params() of a layer that has no parameters. */
static inline uint32_t layer_no_params(const struct layer *l, struct layer_param *ret)
{
    (void)l;
    (void)ret;
    return 0;
}

/* A list of parameters that a layer's params() fills. They stand in W one after another, in the order in
 * which they are added. */
struct layer_params {
    const struct layer *l;
    struct layer_param *at; /* output array; NULL: only count */
    uint32_t n;
    uint64_t offset; /* bytes of the parameters added so far */
};
/* Adds a parameter of the shape [a][b], or of the shape [a] if b is 0. `std` and `fan_in` decide its
 * initial values, as the table at enum param_init says. */
void layer_add_param(struct layer_params *p, const char *name, enum param_class class, uint32_t a, uint32_t b,
                     float std, uint32_t fan_in);

#endif
