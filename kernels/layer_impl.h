/* What the layers' files share; layers.def and layer.h are for everybody else. */
#ifndef KERNELS_LAYER_IMPL_H
#define KERNELS_LAYER_IMPL_H

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

/* params() of a layer that has none. */
static inline uint32_t layer_no_params(const struct layer *l, struct layer_param ret[4])
{
    (void)l;
    (void)ret;
    return 0;
}

#endif
