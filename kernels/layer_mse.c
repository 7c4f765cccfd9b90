/* The mse layer is a loss. It computes the mean of (x - target)^2 over the elements of a row. The targets are
 * floats [rows][in]. The forward pass saves nothing. All functions run in the caller's thread. */
#include "kernels/layer_impl.h"

static void mse_sizes(const struct layer *l, uint32_t rows, struct layer_sizes *ret)
{
    *ret = layer_sizes_of(l, rows);
    ret->target = layer_bytes_of(DTYPE_F32, rows, layer_in(l));
    ret->target_dtype = DTYPE_F32;
    ret->result = sizeof(struct step_result);
}

static void mse_cost(const struct layer *l, uint32_t rows, struct layer_cost *ret)
{
    uint64_t n = (uint64_t)rows * layer_in(l), x = layer_act_bytes(l, rows, layer_in(l)),
             target = layer_bytes_of(DTYPE_F32, rows, layer_in(l));

    *ret = (struct layer_cost){
        .fwd_flops = 3 * n,
        .bwd_flops = 3 * n,
        .fwd_bytes = x + target,
        .bwd_bytes = 2 * x + target,
    };
}

static int mse_fwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    return LAYER_LAUNCH(io, sink, mse_fwd, .x = io->x, .target = io->target, .result = io->result,
                        .rows = io->rows, .n = layer_in(l), .first_row = io->first_row, .dtype = l->dtype);
}

static int mse_bwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    if (!io->dx)
        return 0;
    return LAYER_LAUNCH(io, sink, mse_bwd, .x = io->x, .target = io->target, .dx = io->dx, .rows = io->rows,
                        .n = layer_in(l), .first_row = io->first_row, .group = io->group, .dtype = l->dtype);
}

const struct layer_type layer_mse = {
    .name = "mse",
    .is_loss = true,
    .sizes = mse_sizes,
    .cost = mse_cost,
    .params = layer_no_params,
    .fwd = mse_fwd,
    .bwd = mse_bwd,
};
