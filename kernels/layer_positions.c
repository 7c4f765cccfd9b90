/* The positions layer: y = dropout(x + p), with in = out. p holds a learned vector for each of `count`
 * positions. The layer uses as many vectors as a row has tokens, and saves nothing. The positions are a
 * separate layer, so that the W of an embedding is only the token table and can be tied to an lm_head. All
 * functions run in the caller's thread and have no effect besides their launches.
 */
#include "kernels/layer_impl.h"

static void positions_sizes(const struct layer *l, uint32_t rows, struct layer_sizes *ret)
{
    *ret = layer_sizes_of(l, rows);
    ret->w = layer_w_bytes(l, l->positions.count, layer_width(l));
    ret->scratch_bwd = l->positions.dropout > 0 ? ret->x : 0;
}

static void positions_cost(const struct layer *l, uint32_t rows, struct layer_cost *ret)
{
    uint64_t n = (uint64_t)rows * layer_in(l), x = layer_act_bytes(l, rows, layer_in(l)),
             w = layer_w_bytes(l, l->positions.count, layer_width(l));

    *ret = (struct layer_cost){
        .fwd_flops = n,
        .bwd_flops = n,
        .fwd_bytes = 2 * x + w,
        .bwd_bytes = 3 * x + 2 * w,
    };
}

static uint32_t positions_params(const struct layer *l, struct layer_param *ret)
{
    struct layer_params p = {.l = l, .at = ret, .dtype = l->w_dtype};

    layer_add_param(&p, "weight", PARAM_EMBEDDING, l->positions.count, layer_width(l), l->positions.init_std,
                    0);
    return p.n;
}

static int positions_fwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    if (!io->y)
        return 0;
    int r = LAYER_LAUNCH(io, sink, bias_fwd, .x = io->x, .b = io->w, .y = io->y, .rows = io->rows,
                         .n = layer_in(l), .dtype = l->dtype, .w_dtype = l->w_dtype);
    return r ? r : layer_drop(l, l->positions.dropout, io, io->y, io->y, sink);
}

static int positions_bwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    uint64_t used = layer_w_bytes(l, layer_seq(l), layer_width(l)),
             rest = layer_bytes_of(LAYER_DW_DTYPE, l->positions.count - layer_seq(l), layer_width(l));
    const void *d = l->positions.dropout > 0 ? io->scratch : io->dy;
    int r = layer_drop(l, l->positions.dropout, io, io->dy, io->scratch, sink);

    if (!r && io->dx)
        r = LAYER_LAUNCH(io, sink, act_bwd, .x = io->x, .dy = d, .dx = io->dx,
                         .n = (uint64_t)io->rows * layer_in(l), .dtype = l->dtype);
    if (!r)
        r = LAYER_LAUNCH(io, sink, bias_bwd, .dy = d, .db = io->dw, .rows = io->rows, .n = layer_in(l),
                         .accumulate = io->accumulate, .dtype = l->dtype);
    if (!r && rest > 0 && !io->accumulate)
        r = LAYER_LAUNCH(io, sink, zero, .y = layer_dw_at(l, io->dw, used), .bytes = rest);
    return r;
}

const struct layer_type layer_positions = {
    .name = "positions",
    .sizes = positions_sizes,
    .cost = positions_cost,
    .params = positions_params,
    .fwd = positions_fwd,
    .bwd = positions_bwd,
};
