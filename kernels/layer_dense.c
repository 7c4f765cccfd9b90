/* The dense layer: y = dropout(act(x w^T + b)). Bias, activation and dropout are optional.
 *
 * If the layer has an activation, S is the activation's input z, which the backward pass needs. Otherwise
 * nothing is saved. The backward pass turns the gradient of y into the gradient of z in scratch. If there
 * is neither dropout nor activation, dy is already the gradient of z, and no scratch is needed.
 *
 * All functions run in the caller's thread and have no effect besides their launches.
 */
#include "kernels/layer_impl.h"

static bool has_act(const struct layer *l)
{
    return l->dense.act != ACT_NONE;
}

static bool has_dropout(const struct layer *l)
{
    return l->dense.dropout > 0.0f;
}

static uint64_t weight_count(const struct layer *l)
{
    return (uint64_t)layer_width(l) * layer_width_out(l);
}

static void dense_sizes(const struct layer *l, uint32_t rows, struct layer_sizes *ret)
{
    uint64_t z = layer_bytes(rows, layer_out(l));

    *ret = (struct layer_sizes){
        .w = layer_bytes(layer_width_out(l), layer_width(l)) +
             (l->dense.bias ? layer_bytes(layer_width_out(l), 1) : 0),
        .x = layer_bytes(rows, layer_in(l)),
        .y = z,
        .s = has_act(l) ? z : 0,
        .scratch_bwd = has_act(l) || has_dropout(l) ? z : 0,
    };
}

static void dense_cost(const struct layer *l, uint32_t rows, struct layer_cost *ret)
{
    uint64_t w = layer_bytes(layer_width_out(l), layer_width(l)), x = layer_bytes(rows, layer_in(l)),
             z = layer_bytes(rows, layer_out(l));
    uint64_t product = 2 * (uint64_t)rows * layer_in(l) * layer_width_out(l);

    *ret = (struct layer_cost){
        .fwd_flops = product,
        .bwd_flops = 2 * product,
        .fwd_bytes = x + w + z,
        .bwd_bytes = (z + x + 2 * w) + (z + w + x), /* for dw, then for dx */
    };
    if (l->dense.bias)
        ret->bwd_bytes += z;
    if (has_act(l)) {
        ret->fwd_bytes += z;
        ret->bwd_bytes += 3 * z;
    }
    if (has_dropout(l)) {
        ret->fwd_bytes += 2 * z;
        ret->bwd_bytes += 2 * z;
    }
}

static uint32_t dense_params(const struct layer *l, struct layer_param *ret)
{
    struct layer_params p = {.l = l, .at = ret};

    layer_add_param(&p, "weight", PARAM_MATRIX, layer_width_out(l), layer_width(l), l->dense.init_std,
                    layer_width(l));
    if (l->dense.bias)
        layer_add_param(&p, "bias", PARAM_BIAS, layer_width_out(l), 0, l->dense.init_std, layer_width(l));
    return p.n;
}

static int dense_fwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    bool saves = has_act(l) && io->s;
    /* A recompute needs only S, and its io->y is NULL. The op then applies no activation, and its output z,
     * which is the input of the activation, goes directly to S. */
    float *y = io->y ? io->y : saves ? io->s : NULL;
    int r;

    if (!y)
        return 0; /* recompute of a layer that saves nothing */
    r = LAYER_LAUNCH(io, sink, linear_fwd, .x = io->x, .w = io->w,
                     .b = l->dense.bias ? io->w + weight_count(l) : NULL, .z = saves && io->y ? io->s : NULL,
                     .y = y, .rows = layer_tokens(l, io->rows), .in = layer_width(l),
                     .out = layer_width_out(l), .act = io->y ? l->dense.act : ACT_NONE);
    return r || !io->y ? r : layer_drop(l, l->dense.dropout, io, y, y, sink);
}

/* Computes the gradient of z, which is the input of the activation, and sets *ret to its address. The
 * gradient is in scratch memory. If the layer has neither activation nor dropout, the gradient is io->dy
 * itself. */
static int bwd_to_z(const struct layer *l, const struct layer_io *io, const struct op_sink *sink,
                    const float **ret)
{
    const float *d = has_dropout(l) ? io->scratch : io->dy;
    int r = layer_drop(l, l->dense.dropout, io, io->dy, io->scratch, sink);

    if (!r && has_act(l)) {
        r = LAYER_LAUNCH(io, sink, act_bwd, .x = io->s, .dy = d, .dx = io->scratch,
                         .n = (uint64_t)io->rows * layer_out(l), .act = l->dense.act);
        d = io->scratch;
    }
    *ret = d;
    return r;
}

static int dense_bwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    const float *dz;
    int r = bwd_to_z(l, io, sink, &dz);
    const struct layer_linear p = {
        .dy = dz,
        .x = io->x,
        .w = io->w,
        .dw = io->dw,
        .db = l->dense.bias ? io->dw + weight_count(l) : NULL,
        .dx = io->dx,
        .rows = layer_tokens(l, io->rows),
        .in = layer_width(l),
        .out = layer_width_out(l),
    };

    return r ? r : layer_linear_bwd(io, &p, sink);
}

const struct layer_type layer_dense = {
    .name = "dense",
    .sizes = dense_sizes,
    .cost = dense_cost,
    .params = dense_params,
    .fwd = dense_fwd,
    .bwd = dense_bwd,
};
