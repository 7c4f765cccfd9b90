/* The norm layer computes the layer norm or the RMS norm of every token. It saves the mean and the reciprocal
 * standard deviation of each token for the backward pass. All functions run in the caller's thread. */
#include "kernels/layer_impl.h"

static void norm_sizes(const struct layer *l, uint32_t rows, struct layer_sizes *ret)
{
    *ret = layer_sizes_of(l, rows);
    ret->w = layer_w_bytes(l, layer_width(l), l->norm.bias ? 2 : 1);
    ret->s = layer_stat_bytes(layer_tokens(l, rows), 2);
}

static void norm_cost(const struct layer *l, uint32_t rows, struct layer_cost *ret)
{
    uint64_t n = (uint64_t)rows * layer_in(l), x = layer_act_bytes(l, rows, layer_in(l)),
             w = layer_w_bytes(l, layer_width(l), 2);

    *ret = (struct layer_cost){
        .fwd_flops = 8 * n,
        .bwd_flops = 16 * n,
        .fwd_bytes = 2 * x + w,
        .bwd_bytes = 5 * x + 2 * w,
    };
}

static uint32_t norm_params(const struct layer *l, struct layer_param *ret)
{
    struct layer_params p = {.l = l, .at = ret, .dtype = l->w_dtype};

    layer_add_param(&p, "weight", PARAM_NORM, layer_width(l), 0, 0, 0);
    if (l->norm.bias)
        layer_add_param(&p, "bias", PARAM_BIAS, layer_width(l), 0, 1, 0);
    return p.n;
}

/* Returns the byte offset of the bias in the layer's weights. The bias comes last. */
static uint64_t bias_at(const struct layer *l)
{
    return layer_w_bytes(l, layer_width(l), 1);
}

static int norm_fwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    if (!io->y && !io->s)
        return 0;
    return LAYER_LAUNCH(io, sink, rownorm_fwd, .x = io->x, .w = io->w,
                        .b = l->norm.bias ? layer_at_const(io->w, bias_at(l)) : NULL, .y = io->y,
                        .stats = io->s, .rows = layer_tokens(l, io->rows), .n = layer_width(l),
                        .eps = l->norm.eps, .rms = l->norm.rms, .dtype = l->dtype, .w_dtype = l->w_dtype);
}

static int norm_bwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    return LAYER_LAUNCH(io, sink, rownorm_bwd, .x = io->x, .w = io->w, .stats = io->s, .dy = io->dy,
                        .dx = io->dx, .dw = io->dw,
                        .db = l->norm.bias ? layer_dw_at(l, io->dw, bias_at(l)) : NULL,
                        .rows = layer_tokens(l, io->rows), .n = layer_width(l), .rms = l->norm.rms,
                        .accumulate = io->accumulate, .dtype = l->dtype, .w_dtype = l->w_dtype);
}

const struct layer_type layer_norm = {
    .name = "norm",
    .sizes = norm_sizes,
    .cost = norm_cost,
    .params = norm_params,
    .fwd = norm_fwd,
    .bwd = norm_bwd,
};
