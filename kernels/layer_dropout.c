/* The dropout layer computes y = x / (1 - p) for the elements that it keeps, and y = 0 for the others. It
 * saves nothing, because the mask can be computed again. The backward pass applies the same op to the
 * gradient. All functions run in the caller's thread. */
#include "kernels/layer_impl.h"

static void dropout_sizes(const struct layer *l, uint32_t rows, struct layer_sizes *ret)
{
    *ret = layer_sizes_of(l, rows);
}

static void dropout_cost(const struct layer *l, uint32_t rows, struct layer_cost *ret)
{
    uint64_t n = (uint64_t)rows * layer_in(l), x = layer_act_bytes(l, rows, layer_in(l));
    *ret = (struct layer_cost){.fwd_flops = n, .bwd_flops = n, .fwd_bytes = 2 * x, .bwd_bytes = 2 * x};
}

/* Launches the dropout op even if p is 0, because the layer must then copy its input to its output. The
 * helper function layer_drop would launch nothing. */
static int launch_dropout(const struct layer *l, const struct layer_io *io, const void *from, void *to,
                          const struct op_sink *sink)
{
    return LAYER_LAUNCH(io, sink, dropout, .x = from, .y = to, .rows = io->rows, .n = layer_in(l),
                        .layer = l->key, .first_row = io->first_row, .p = l->dropout.p, .dtype = l->dtype);
}

static int dropout_fwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    return io->y ? launch_dropout(l, io, io->x, io->y, sink) : 0;
}

static int dropout_bwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    return io->dx ? launch_dropout(l, io, io->dy, io->dx, sink) : 0;
}

const struct layer_type layer_dropout = {
    .name = "dropout",
    .sizes = dropout_sizes,
    .cost = dropout_cost,
    .params = layer_no_params,
    .fwd = dropout_fwd,
    .bwd = dropout_bwd,
};
