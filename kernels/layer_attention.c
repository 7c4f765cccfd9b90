/* The attention layer: causal self-attention with its projections, y = dropout(attend(x qkv^T + b) proj^T
 * + b), with in = out. Several query heads may share keys and values, and positions may be rotary.
 * op_attention_fwd (op.h) describes the order of a token's queries, keys and values.
 *
 * S holds qkv after the rotation, the attended values, and the logarithms of the softmax sums. All
 * functions run in the caller's thread and have no effect besides their launches.
 */
#include "kernels/layer_impl.h"

/* The dimensions of an attention layer, in tokens or in elements. */
struct attention_shape {
    uint32_t tokens, width; /* tokens in all rows; elements per token */
    uint32_t head, qkv;     /* elements per head; per token of qkv */
};

static struct attention_shape attention_shape_of(const struct layer *l, uint32_t rows)
{
    uint32_t width = layer_width(l), head = width / l->attention.heads;

    return (struct attention_shape){
        .tokens = layer_tokens(l, rows),
        .width = width,
        .head = head,
        .qkv = (l->attention.heads + 2 * l->attention.kv_heads) * head,
    };
}

/* The byte offsets of an attention layer's parameters in its weights. In order of their offsets, the
 * parameters are qkv (at offset 0), the bias of qkv, proj, and the bias of proj. */
struct attention_weights {
    uint64_t qkv_b, proj, proj_b, end;
};

static struct attention_weights attention_weights_of(const struct layer *l, const struct attention_shape *s)
{
    struct attention_weights w;

    w.qkv_b = layer_w_bytes(l, s->qkv, s->width);
    w.proj = w.qkv_b + (l->attention.bias ? layer_w_bytes(l, s->qkv, 1) : 0);
    w.proj_b = w.proj + layer_w_bytes(l, s->width, s->width);
    w.end = w.proj_b + (l->attention.bias ? layer_w_bytes(l, s->width, 1) : 0);
    return w;
}

/* The byte offsets of the arrays that the forward pass saves for the backward pass. A further array, qkv, is
 * at offset 0. */
struct attention_saved {
    uint64_t attended, lse, end;
};

static struct attention_saved attention_saved_of(const struct layer *l, const struct attention_shape *s)
{
    struct attention_saved a;

    a.attended = layer_round(layer_act_bytes(l, s->tokens, s->qkv));
    a.lse = a.attended + layer_round(layer_act_bytes(l, s->tokens, s->width));
    a.end = a.lse + layer_round(layer_stat_bytes(s->tokens, l->attention.heads));
    return a;
}

/* The byte offsets of gradients in the scratch memory of the backward pass. If the layer has dropout, a
 * further gradient, that of proj's output, is at offset 0. */
struct attention_gradients {
    uint64_t attended, qkv, scratch, end;
};

static struct attention_gradients attention_gradients_of(const struct layer *l,
                                                         const struct attention_shape *s)
{
    struct attention_gradients g;

    g.attended = l->attention.dropout > 0 ? layer_round(layer_act_bytes(l, s->tokens, s->width)) : 0;
    g.qkv = g.attended + layer_round(layer_act_bytes(l, s->tokens, s->width));
    g.scratch = g.qkv + layer_round(layer_act_bytes(l, s->tokens, s->qkv));
    g.end = g.scratch + layer_round(layer_stat_bytes(s->tokens, l->attention.heads));
    return g;
}

static void attention_sizes(const struct layer *l, uint32_t rows, struct layer_sizes *ret)
{
    struct attention_shape s = attention_shape_of(l, rows);
    struct attention_saved a = attention_saved_of(l, &s);

    *ret = layer_sizes_of(l, rows);
    ret->w = attention_weights_of(l, &s).end;
    ret->s = a.end;
    ret->scratch_fwd = a.end;
    ret->scratch_bwd = attention_gradients_of(l, &s).end;
}

static void attention_cost(const struct layer *l, uint32_t rows, struct layer_cost *ret)
{
    struct attention_shape s = attention_shape_of(l, rows);
    uint64_t w = attention_weights_of(l, &s).end, x = layer_act_bytes(l, rows, layer_in(l)),
             qkv = layer_act_bytes(l, s.tokens, s.qkv);
    uint64_t projections = 2 * (uint64_t)s.tokens * s.width * (s.qkv + s.width);
    /* The number of arithmetic operations of the products q k^T and p v. The causal mask skips half of each
     * product, so both together take as many operations as one full product. */
    uint64_t scores = 2 * (uint64_t)s.tokens * layer_seq(l) * s.width;

    *ret = (struct layer_cost){
        .fwd_flops = projections + scores,
        .bwd_flops = 2 * projections + 5 * scores / 2,
        .fwd_bytes = w + 4 * x + 2 * qkv,
        .bwd_bytes = 3 * w + 8 * x + 5 * qkv,
    };
}

static uint32_t attention_params(const struct layer *l, struct layer_param *ret)
{
    struct layer_params p = {.l = l, .at = ret, .dtype = l->w_dtype};
    struct attention_shape s = attention_shape_of(l, 1);

    layer_add_param(&p, "qkv.weight", PARAM_MATRIX, s.qkv, s.width, l->attention.init_std, s.width);
    if (l->attention.bias)
        layer_add_param(&p, "qkv.bias", PARAM_BIAS, s.qkv, 0, l->attention.init_std, s.width);
    layer_add_param(&p, "proj.weight", PARAM_MATRIX, s.width, s.width, l->attention.proj_std, s.width);
    if (l->attention.bias)
        layer_add_param(&p, "proj.bias", PARAM_BIAS, s.width, 0, l->attention.proj_std, s.width);
    return p.n;
}

/* If the layer has rotary positions, launches the op that rotates queries and keys. Otherwise launches
 * nothing. */
static int attention_rotate(const struct layer *l, const struct layer_io *io, const struct attention_shape *s,
                            void *qkv, bool inverse, const struct op_sink *sink)
{
    if (l->attention.rope_theta <= 0)
        return 0;
    return LAYER_LAUNCH(io, sink, rope, .x = qkv, .rows = io->rows, .seq = layer_seq(l), .n = s->qkv,
                        .heads = l->attention.heads + l->attention.kv_heads, .head = s->head,
                        .theta = l->attention.rope_theta, .inverse = inverse, .dtype = l->dtype);
}

static int attention_fwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    struct attention_shape s = attention_shape_of(l, io->rows);
    struct attention_weights w = attention_weights_of(l, &s);
    struct attention_saved a = attention_saved_of(l, &s);
    void *qkv = io->s ? io->s : io->scratch, *attended = layer_at(qkv, a.attended);

    int r = LAYER_LAUNCH(io, sink, linear_fwd, .x = io->x, .w = io->w,
                         .b = l->attention.bias ? layer_at_const(io->w, w.qkv_b) : NULL, .y = qkv,
                         .rows = s.tokens, .in = s.width, .out = s.qkv, .dtype = l->dtype,
                         .w_dtype = l->w_dtype, .y_dtype = l->dtype);
    if (!r)
        r = attention_rotate(l, io, &s, qkv, false, sink);
    if (!r)
        r = LAYER_LAUNCH(io, sink, attention_fwd, .qkv = qkv, .y = attended, .lse = layer_at(qkv, a.lse),
                         .rows = io->rows, .seq = layer_seq(l), .heads = l->attention.heads,
                         .kv_heads = l->attention.kv_heads, .head = s.head, .layer = l->key,
                         .first_row = io->first_row, .p = l->attention.score_dropout, .dtype = l->dtype);
    if (r || !io->y)
        return r;
    r = LAYER_LAUNCH(io, sink, linear_fwd, .x = attended, .w = layer_at_const(io->w, w.proj),
                     .b = l->attention.bias ? layer_at_const(io->w, w.proj_b) : NULL, .y = io->y,
                     .rows = s.tokens, .in = s.width, .out = s.width, .dtype = l->dtype,
                     .w_dtype = l->w_dtype, .y_dtype = l->dtype);
    return r ? r : layer_drop(l, l->attention.dropout, io, io->y, io->y, sink);
}

static int attention_bwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    struct attention_shape s = attention_shape_of(l, io->rows);
    struct attention_weights w = attention_weights_of(l, &s);
    struct attention_saved a = attention_saved_of(l, &s);
    struct attention_gradients g = attention_gradients_of(l, &s);
    const void *attended = layer_at(io->s, a.attended);
    void *d_attended = layer_at(io->scratch, g.attended), *d_qkv = layer_at(io->scratch, g.qkv);
    const struct layer_linear qkv = {
        .dy = d_qkv,
        .x = io->x,
        .w = io->w,
        .dw = io->dw,
        .db = l->attention.bias ? layer_dw_at(l, io->dw, w.qkv_b) : NULL,
        .dx = io->dx,
        .rows = s.tokens,
        .in = s.width,
        .out = s.qkv,
    };
    const struct layer_linear proj = {
        .dy = l->attention.dropout > 0 ? io->scratch : io->dy,
        .x = attended,
        .w = layer_at_const(io->w, w.proj),
        .dw = layer_dw_at(l, io->dw, w.proj),
        .db = l->attention.bias ? layer_dw_at(l, io->dw, w.proj_b) : NULL,
        .dx = d_attended,
        .rows = s.tokens,
        .in = s.width,
        .out = s.width,
    };

    int r = layer_drop(l, l->attention.dropout, io, io->dy, io->scratch, sink);
    if (!r)
        r = layer_linear_bwd(l, io, &proj, sink);
    if (!r)
        r = LAYER_LAUNCH(io, sink, attention_bwd, .qkv = io->s, .y = attended, .lse = layer_at(io->s, a.lse),
                         .dy = d_attended, .dqkv = d_qkv, .scratch = layer_at(io->scratch, g.scratch),
                         .rows = io->rows, .seq = layer_seq(l), .heads = l->attention.heads,
                         .kv_heads = l->attention.kv_heads, .head = s.head, .layer = l->key,
                         .first_row = io->first_row, .p = l->attention.score_dropout, .dtype = l->dtype);
    if (!r)
        r = attention_rotate(l, io, &s, d_qkv, true, sink);
    return r ? r : layer_linear_bwd(l, io, &qkv, sink);
}

const struct layer_type layer_attention = {
    .name = "attention",
    .sizes = attention_sizes,
    .cost = attention_cost,
    .params = attention_params,
    .fwd = attention_fwd,
    .bwd = attention_bwd,
};
