/* What the layers' files share; layers.def and layer.h are for everybody else. */
#ifndef KERNELS_LAYER_IMPL_H
#define KERNELS_LAYER_IMPL_H

#include <stddef.h>

#include "kernels/layer.h"

#define LAYER(name) extern const struct layer_type layer_##name;
#include "kernels/layers.def"
#undef LAYER

/* LAYER_LAUNCH(io, sink, bias_fwd, .y = ..., ...): one launch, 0 or negative errno. */
#define LAYER_LAUNCH(io, sink, name, ...)                                                                    \
    ((sink)->launch((sink)->ctx,                                                                             \
                    &(struct op_call){.op = OP_##name, .step = (io)->step, .name = {__VA_ARGS__}}))

/* Bytes of an array [a][b] of float. What overflows is so much that no machine has it, yet leaves room for
 * sums. */
static inline uint64_t layer_bytes(uint32_t a, uint32_t b)
{
    const uint64_t most = UINT64_C(1) << 60;
    uint64_t n = (uint64_t)a * b;
    return n < most / sizeof(float) ? n * sizeof(float) : most;
}

/* Where the next array of a block begins: vectors like to start on a line of the cache. */
static inline uint64_t layer_round(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Floats at a distance in bytes. NULL stays NULL. */
static inline float *layer_at(float *block, uint64_t bytes)
{
    return block ? block + bytes / sizeof(float) : NULL;
}
static inline const float *layer_at_const(const float *block, uint64_t bytes)
{
    return block ? block + bytes / sizeof(float) : NULL;
}

/* Tokens per row, and how many elements of the input and of the output each has. */
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
/* Of all rows. */
static inline uint32_t layer_tokens(const struct layer *l, uint32_t rows)
{
    return rows * layer_seq(l);
}

/* The dropout of a layer's result, or of its gradient; one that has none launches nothing, and leaves `to` as it is. */
int layer_drop(const struct layer *l, const struct layer_io *io, const float *from, float *to,
               const struct op_sink *sink);

/* The gradients of a linear part, y = x w^T + b: of the bias and of x where there is room for them (NULL: not wanted), of
 * the weights always. */
struct layer_linear {
    const float *dy, *x, *w;
    float *dw, *db, *dx;
    uint32_t rows, in, out; /* rows: tokens */
};
int layer_linear_bwd(const struct layer_io *io, const struct layer_linear *p, const struct op_sink *sink);

/* params() of a layer that has none. */
static inline uint32_t layer_no_params(const struct layer *l, struct layer_param *ret)
{
    (void)l;
    (void)ret;
    return 0;
}

/* For params(): parameters one behind another, as they stand in W. */
struct layer_params {
    const struct layer *l;
    struct layer_param *at; /* NULL: only counted */
    uint32_t n;
    uint64_t offset;
};
/* Adds a parameter of the shape [a][b], or [a] with b = 0. `std` and `fan_in` decide its initial values:
 * see enum param_init. */
void layer_add_param(struct layer_params *p, const char *name, enum param_class class, uint32_t a, uint32_t b,
                     float std, uint32_t fan_in);

#endif
