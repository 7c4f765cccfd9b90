/* The embedding layer turns tokens into vectors. Each row of the input is a sequence of int32 token ids. The
 * weights are a table [vocab][width], with one vector for each id. Token ids have no gradient, so the
 * backward pass sets the gradient of the input to zero. All functions run in the caller's thread. */
#include "kernels/layer_impl.h"

static uint64_t table_bytes(const struct layer *l)
{
    return layer_w_bytes(l, l->embedding.vocab, layer_width_out(l));
}

static uint64_t ids_bytes(const struct layer *l, uint32_t rows)
{
    return layer_bytes_of(DTYPE_I32, rows, layer_in(l));
}

static void embedding_sizes(const struct layer *l, uint32_t rows, struct layer_sizes *ret)
{
    *ret = layer_sizes_of(l, rows);
    ret->w = table_bytes(l);
    ret->x = ids_bytes(l, rows);
    ret->x_dtype = DTYPE_I32;
}

static void embedding_cost(const struct layer *l, uint32_t rows, struct layer_cost *ret)
{
    uint64_t n = (uint64_t)rows * layer_out(l), x = ids_bytes(l, rows),
             y = layer_act_bytes(l, rows, layer_out(l));

    *ret = (struct layer_cost){
        .fwd_flops = n,
        .bwd_flops = n,
        .fwd_bytes = x + 2 * y,
        .bwd_bytes = x + 3 * y + table_bytes(l),
    };
}

static uint32_t embedding_params(const struct layer *l, struct layer_param *ret)
{
    struct layer_params p = {.l = l, .at = ret, .dtype = l->w_dtype};

    layer_add_param(&p, "weight", PARAM_EMBEDDING, l->embedding.vocab, layer_width_out(l),
                    l->embedding.init_std, 0);
    return p.n;
}

static int embedding_fwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    if (!io->y)
        return 0;
    return LAYER_LAUNCH(io, sink, embedding_fwd, .ids = io->x, .table = io->w, .y = io->y,
                        .rows = layer_tokens(l, io->rows), .n = layer_width_out(l),
                        .vocab = l->embedding.vocab, .dtype = l->dtype, .w_dtype = l->w_dtype);
}

static int embedding_bwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    int r = 0;

    if (!io->accumulate)
        r = LAYER_LAUNCH(io, sink, zero, .y = io->dw,
                         .bytes = layer_bytes_of(LAYER_DW_DTYPE, l->embedding.vocab, layer_width_out(l)));
    if (!r)
        r = LAYER_LAUNCH(io, sink, embedding_bwd, .ids = io->x, .dy = io->dy, .dtable = io->dw,
                         .rows = layer_tokens(l, io->rows), .n = layer_width_out(l),
                         .vocab = l->embedding.vocab, .dtype = l->dtype);
    if (!r && io->dx)
        r = LAYER_LAUNCH(io, sink, zero, .y = io->dx, .bytes = ids_bytes(l, io->rows));
    return r;
}

const struct layer_type layer_embedding = {
    .name = "embedding",
    .sizes = embedding_sizes,
    .cost = embedding_cost,
    .params = embedding_params,
    .fwd = embedding_fwd,
    .bwd = embedding_bwd,
};
