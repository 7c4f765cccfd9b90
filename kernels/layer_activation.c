/* The activation layer computes y = act(x) for every element x of its input. The layer saves nothing, because
 * the backward pass reads the input again. All functions run in the caller's thread. */
#include "kernels/layer_impl.h"

static void activation_sizes(const struct layer *l, uint32_t rows, struct layer_sizes *ret)
{
    *ret = layer_sizes_of(l, rows);
}

static void activation_cost(const struct layer *l, uint32_t rows, struct layer_cost *ret)
{
    uint64_t n = (uint64_t)rows * layer_in(l), x = layer_act_bytes(l, rows, layer_in(l));
    *ret = (struct layer_cost){.fwd_flops = n, .bwd_flops = n, .fwd_bytes = 2 * x, .bwd_bytes = 3 * x};
}

static int activation_fwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    if (!io->y)
        return 0;
    return LAYER_LAUNCH(io, sink, act_fwd, .x = io->x, .y = io->y, .n = (uint64_t)io->rows * layer_in(l),
                        .act = l->activation.act, .dtype = l->dtype);
}

static int activation_bwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    if (!io->dx)
        return 0;
    return LAYER_LAUNCH(io, sink, act_bwd, .x = io->x, .dy = io->dy, .dx = io->dx,
                        .n = (uint64_t)io->rows * layer_in(l), .act = l->activation.act, .dtype = l->dtype);
}

const struct layer_type layer_activation = {
    .name = "activation",
    .sizes = activation_sizes,
    .cost = activation_cost,
    .params = layer_no_params,
    .fwd = activation_fwd,
    .bwd = activation_bwd,
};
