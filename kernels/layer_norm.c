/* The norm layer computes the layer norm or the RMS norm of every token. It saves the mean and the reciprocal
 * standard deviation of each token in S. All functions run in the caller's thread. */
#include "kernels/layer_impl.h"

static void norm_sizes(const struct layer *l, uint32_t rows, struct layer_sizes *ret)
{
    *ret = (struct layer_sizes){
        .w = layer_bytes(layer_width(l), l->norm.bias ? 2 : 1),
        .x = layer_bytes(rows, layer_in(l)),
        .y = layer_bytes(rows, layer_out(l)),
        .s = layer_bytes(layer_tokens(l, rows), 2),
    };
}

static void norm_cost(const struct layer *l, uint32_t rows, struct layer_cost *ret)
{
    uint64_t n = (uint64_t)rows * layer_in(l), x = layer_bytes(rows, layer_in(l)),
             w = layer_bytes(layer_width(l), 2);

    *ret = (struct layer_cost){
        .fwd_flops = 8 * n,
        .bwd_flops = 16 * n,
        .fwd_bytes = 2 * x + w,
        .bwd_bytes = 5 * x + 2 * w,
    };
}

static uint32_t norm_params(const struct layer *l, struct layer_param *ret)
{
    struct layer_params p = {.l = l, .at = ret};

    layer_add_param(&p, "weight", PARAM_NORM, layer_width(l), 0, 0, 0);
    if (l->norm.bias)
        layer_add_param(&p, "bias", PARAM_BIAS, layer_width(l), 0, 1, 0);
    return p.n;
}

static int norm_fwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    if (!io->y && !io->s)
        return 0;
    return LAYER_LAUNCH(io, sink, rownorm_fwd, .x = io->x, .w = io->w,
                        .b = l->norm.bias ? io->w + layer_width(l) : NULL, .y = io->y, .stats = io->s,
                        .rows = layer_tokens(l, io->rows), .n = layer_width(l), .eps = l->norm.eps,
                        .rms = l->norm.rms);
}

static int norm_bwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    return LAYER_LAUNCH(io, sink, rownorm_bwd, .x = io->x, .w = io->w, .stats = io->s, .dy = io->dy,
                        .dx = io->dx, .dw = io->dw, .db = l->norm.bias ? io->dw + layer_width(l) : NULL,
                        .rows = layer_tokens(l, io->rows), .n = layer_width(l), .rms = l->norm.rms,
                        .accumulate = io->accumulate);
}

const struct layer_type layer_norm = {
    .name = "norm",
    .sizes = norm_sizes,
    .cost = norm_cost,
    .params = norm_params,
    .fwd = norm_fwd,
    .bwd = norm_bwd,
};
