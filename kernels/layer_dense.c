/* dense: y = dropout(act(x w^T + b)); bias, activation and dropout are optional.
 *
 * S is the pre-activation z where there is an activation, for its backward pass; without one nothing is
 * saved. The backward pass carries the gradient from y to z in scratch; where neither dropout nor activation
 * changes it, dy is already the gradient of z and there is no scratch. Calls only the sink: the thread is the
 * caller's.
 */
#include "kernels/layer_impl.h"

static bool has_act(const struct layer *l)
{
    return l->act != ACT_NONE;
}

static bool has_dropout(const struct layer *l)
{
    return l->dropout > 0.0f;
}

static uint64_t weight_count(const struct layer *l)
{
    return (uint64_t)l->in * l->out;
}

static void dense_sizes(const struct layer *l, uint32_t rows, struct layer_sizes *ret)
{
    uint64_t z = layer_bytes(rows, l->out);

    *ret = (struct layer_sizes){
        .w = layer_bytes(l->out, l->in) + (l->bias ? layer_bytes(l->out, 1) : 0),
        .x = layer_bytes(rows, l->in),
        .y = z,
        .s = has_act(l) ? z : 0,
        .scratch_bwd = has_act(l) || has_dropout(l) ? z : 0,
    };
}

static void dense_cost(const struct layer *l, uint32_t rows, struct layer_cost *ret)
{
    uint64_t w = layer_bytes(l->out, l->in), x = layer_bytes(rows, l->in), z = layer_bytes(rows, l->out);
    uint64_t product = 2 * (uint64_t)rows * l->in * l->out;

    *ret = (struct layer_cost){
        .fwd_flops = product,
        .bwd_flops = 2 * product,
        .fwd_bytes = x + w + z,
        .bwd_bytes = (z + x + 2 * w) + (z + w + x), /* weight, data */
    };
    if (l->bias) {
        ret->fwd_bytes += 2 * z;
        ret->bwd_bytes += z;
    }
    if (has_act(l)) {
        ret->fwd_bytes += 2 * z;
        ret->bwd_bytes += 3 * z;
    }
    if (has_dropout(l)) {
        ret->fwd_bytes += 2 * z;
        ret->bwd_bytes += 2 * z;
    }
}

static uint32_t dense_params(const struct layer *l, struct layer_param ret[4])
{
    ret[0] = (struct layer_param){
        .name = "weight",
        .rank = 2,
        .shape = {l->out, l->in},
        .count = weight_count(l),
        .init = INIT_UNIFORM_FAN_IN,
        .fan_in = l->in,
    };
    if (!l->bias)
        return 1;
    ret[1] = (struct layer_param){
        .name = "bias",
        .rank = 1,
        .shape = {l->out},
        .offset = weight_count(l) * sizeof(float),
        .count = l->out,
        .init = INIT_UNIFORM_FAN_IN,
        .fan_in = l->in,
    };
    return 2;
}

static int fwd_linear(const struct layer *l, const struct layer_io *io, float *z, const struct op_sink *sink)
{
    int r = LAYER_LAUNCH(io, sink, linear_fwd, .x = io->x, .w = io->w, .y = z, .rows = io->rows, .in = l->in,
                         .out = l->out);
    if (r || !l->bias)
        return r;
    return LAYER_LAUNCH(io, sink, bias_fwd, .y = z, .b = io->w + weight_count(l), .rows = io->rows,
                        .n = l->out);
}

static int dense_fwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    float *z = has_act(l) && io->s ? io->s : io->y;
    int r;

    if (!z)
        return 0; /* recompute of a layer that saves nothing */
    r = fwd_linear(l, io, z, sink);
    if (r || !io->y)
        return r;
    if (has_act(l))
        r = LAYER_LAUNCH(io, sink, act_fwd, .x = z, .y = io->y, .n = (uint64_t)io->rows * l->out,
                         .act = l->act);
    if (!r && has_dropout(l))
        r = LAYER_LAUNCH(io, sink, dropout, .x = io->y, .y = io->y, .rows = io->rows, .n = l->out,
                         .layer = l->id, .first_row = io->first_row, .p = l->dropout);
    return r;
}

/* The gradient of z: in scratch, or dy itself. */
static int bwd_to_z(const struct layer *l, const struct layer_io *io, const struct op_sink *sink,
                    const float **ret)
{
    const float *d = io->dy;
    int r = 0;

    if (has_dropout(l)) {
        r = LAYER_LAUNCH(io, sink, dropout, .x = d, .y = io->scratch, .rows = io->rows, .n = l->out,
                         .layer = l->id, .first_row = io->first_row, .p = l->dropout);
        d = io->scratch;
    }
    if (!r && has_act(l)) {
        r = LAYER_LAUNCH(io, sink, act_bwd, .x = io->s, .dy = d, .dx = io->scratch,
                         .n = (uint64_t)io->rows * l->out, .act = l->act);
        d = io->scratch;
    }
    *ret = d;
    return r;
}

static int dense_bwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    const float *dz;
    int r = bwd_to_z(l, io, sink, &dz);

    if (!r && l->bias)
        r = LAYER_LAUNCH(io, sink, bias_bwd, .dy = dz, .db = io->dw + weight_count(l), .rows = io->rows,
                         .n = l->out, .accumulate = io->accumulate);
    if (!r)
        r = LAYER_LAUNCH(io, sink, linear_bwd_weight, .dy = dz, .x = io->x, .dw = io->dw, .rows = io->rows,
                         .in = l->in, .out = l->out, .accumulate = io->accumulate);
    if (!r && io->dx)
        r = LAYER_LAUNCH(io, sink, linear_bwd_data, .dy = dz, .w = io->w, .dx = io->dx, .rows = io->rows,
                         .in = l->in, .out = l->out);
    return r;
}

const struct layer_type layer_dense = {
    .name = "dense",
    .sizes = dense_sizes,
    .cost = dense_cost,
    .params = dense_params,
    .fwd = dense_fwd,
    .bwd = dense_bwd,
};
