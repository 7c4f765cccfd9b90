/* The softmax_xent layer is a loss: the cross entropy of softmax(x) and the right class. The targets are the
 * numbers of the right classes, as int32. There is one target for each row, or one for each token of a row.
 * The forward pass saves nothing. All functions run in the caller's thread. */
#include "kernels/layer_impl.h"

static void softmax_xent_sizes(const struct layer *l, uint32_t rows, struct layer_sizes *ret)
{
    *ret = layer_sizes_of(l, rows);
    ret->target = layer_bytes_of(DTYPE_I32, rows, layer_seq(l));
    ret->target_dtype = DTYPE_I32;
    ret->result = sizeof(struct step_result);
}

static void softmax_xent_cost(const struct layer *l, uint32_t rows, struct layer_cost *ret)
{
    uint64_t n = (uint64_t)rows * layer_in(l), x = layer_act_bytes(l, rows, layer_in(l)),
             target = layer_bytes_of(DTYPE_I32, rows, layer_seq(l));

    *ret = (struct layer_cost){
        .fwd_flops = 3 * n,
        .bwd_flops = 3 * n,
        .fwd_bytes = x + target,
        .bwd_bytes = 2 * x + target,
    };
}

/* Launches the op that computes either the loss or its gradient. For the loss, `dx` is NULL. For the
 * gradient, `result` is NULL. */
static int launch_xent(const struct layer *l, const struct layer_io *io, const struct op_sink *sink,
                       struct step_result *result, void *dx)
{
    uint32_t seq = layer_seq(l);

    return LAYER_LAUNCH(io, sink, softmax_xent, .x = io->x, .target = io->target, .result = result, .dx = dx,
                        .rows = io->rows * seq, .n = layer_width(l), .first_row = io->first_row * seq,
                        .seq = seq, .smoothing = l->softmax_xent.smoothing, .group = io->group,
                        .dtype = l->dtype, .dx_dtype = l->dtype);
}

static int softmax_xent_fwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    return launch_xent(l, io, sink, io->result, NULL);
}

static int softmax_xent_bwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    return io->dx ? launch_xent(l, io, sink, NULL, io->dx) : 0;
}

const struct layer_type layer_softmax_xent = {
    .name = "softmax_xent",
    .is_loss = true,
    .sizes = softmax_xent_sizes,
    .cost = softmax_xent_cost,
    .params = layer_no_params,
    .fwd = softmax_xent_fwd,
    .bwd = softmax_xent_bwd,
};
