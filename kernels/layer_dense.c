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

/* Returns the size in bytes of the weight matrix. The bias comes after the matrix. */
static uint64_t matrix_bytes(const struct layer *l)
{
    return layer_w_bytes(l, layer_width_out(l), layer_width(l));
}

static void dense_sizes(const struct layer *l, uint32_t rows, struct layer_sizes *ret)
{
    uint64_t z = layer_act_bytes(l, rows, layer_out(l));

    *ret = layer_sizes_of(l, rows);
    ret->w = matrix_bytes(l) + (l->dense.bias ? layer_w_bytes(l, layer_width_out(l), 1) : 0);
    ret->s = has_act(l) ? z : 0;
    ret->scratch_bwd = has_act(l) || has_dropout(l) ? z : 0;
}

static void dense_cost(const struct layer *l, uint32_t rows, struct layer_cost *ret)
{
    uint64_t w = matrix_bytes(l), x = layer_act_bytes(l, rows, layer_in(l)),
             z = layer_act_bytes(l, rows, layer_out(l));
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
    struct layer_params p = {.l = l, .at = ret, .dtype = l->w_dtype};

    layer_add_param(&p, "weight", PARAM_MATRIX, layer_width_out(l), layer_width(l), l->dense.init_std,
                    layer_width(l));
    if (l->dense.bias)
        layer_add_param(&p, "bias", PARAM_BIAS, layer_width_out(l), 0, l->dense.init_std, layer_width(l));
    return p.n;
}

static int dense_fwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    bool saves = has_act(l) && io->s;
    /* If io->y is NULL, only the saved values io->s are wanted. The op then applies no activation, and writes
     * its result directly to io->s. */
    void *y = io->y ? io->y : saves ? io->s : NULL;
    int r;

    if (!y)
        return 0; /* recompute of a layer that saves nothing */
    r = LAYER_LAUNCH(io, sink, linear_fwd, .x = io->x, .w = io->w,
                     .b = l->dense.bias ? layer_at_const(io->w, matrix_bytes(l)) : NULL,
                     .z = saves && io->y ? io->s : NULL, .y = y, .rows = layer_tokens(l, io->rows),
                     .in = layer_width(l), .out = layer_width_out(l), .act = io->y ? l->dense.act : ACT_NONE,
                     .dtype = l->dtype, .w_dtype = l->w_dtype, .y_dtype = l->dtype);
    return r || !io->y ? r : layer_drop(l, l->dense.dropout, io, y, y, sink);
}

/* Computes the gradient of z, which is the input of the activation, and sets *ret to its address. The
 * gradient is in scratch memory. If the layer has neither activation nor dropout, the gradient is io->dy
 * itself. */
static int bwd_to_z(const struct layer *l, const struct layer_io *io, const struct op_sink *sink,
                    const void **ret)
{
    const void *d = has_dropout(l) ? io->scratch : io->dy;
    int r = layer_drop(l, l->dense.dropout, io, io->dy, io->scratch, sink);

    if (!r && has_act(l)) {
        r = LAYER_LAUNCH(io, sink, act_bwd, .x = io->s, .dy = d, .dx = io->scratch,
                         .n = (uint64_t)io->rows * layer_out(l), .act = l->dense.act, .dtype = l->dtype);
        d = io->scratch;
    }
    *ret = d;
    return r;
}

static int dense_bwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    const void *dz;
    int r = bwd_to_z(l, io, sink, &dz);
    const struct layer_linear p = {
        .dy = dz,
        .x = io->x,
        .w = io->w,
        .dw = io->dw,
        .db = l->dense.bias ? layer_dw_at(l, io->dw, matrix_bytes(l)) : NULL,
        .dx = io->dx,
        .rows = layer_tokens(l, io->rows),
        .in = layer_width(l),
        .out = layer_width_out(l),
    };

    return r ? r : layer_linear_bwd(l, io, &p, sink);
}

const struct layer_type layer_dense = {
    .name = "dense",
    .sizes = dense_sizes,
    .cost = dense_cost,
    .params = dense_params,
    .fwd = dense_fwd,
    .bwd = dense_bwd,
};
