/* The mlp layer: y = dropout(act(x fc^T + b) proj^T + b), with in = out. A gated mlp has swiglu(x fc^T +
 * b) in the middle, and fc computes both the gate and the values.
 *
 * S is the output of fc. The backward pass recomputes the activation from S, and later overwrites it with
 * the activation's gradient. All functions run in the caller's thread and have no effect besides their
 * launches.
 */
#include "kernels/layer_impl.h"

/* The dimensions of an mlp layer, in tokens or in elements. */
struct mlp_shape {
    uint32_t tokens, width;
    uint32_t fc, hidden; /* outputs of fc; inputs of proj */
};

static struct mlp_shape mlp_shape_of(const struct layer *l, uint32_t rows)
{
    return (struct mlp_shape){
        .tokens = layer_tokens(l, rows),
        .width = layer_width(l),
        .fc = l->mlp.gated ? 2 * l->mlp.hidden : l->mlp.hidden,
        .hidden = l->mlp.hidden,
    };
}

/* The byte offsets of an mlp layer's parameters in its weights. In order of their offsets, the parameters are
 * fc (at offset 0), the bias of fc, proj, and the bias of proj. */
struct mlp_weights {
    uint64_t fc_b, proj, proj_b, end;
};

static struct mlp_weights mlp_weights_of(const struct layer *l, const struct mlp_shape *s)
{
    struct mlp_weights w;

    w.fc_b = layer_w_bytes(l, s->fc, s->width);
    w.proj = w.fc_b + (l->mlp.bias ? layer_w_bytes(l, s->fc, 1) : 0);
    w.proj_b = w.proj + layer_w_bytes(l, s->width, s->hidden);
    w.end = w.proj_b + (l->mlp.bias ? layer_w_bytes(l, s->width, 1) : 0);
    return w;
}

/* Offsets in the scratch of the backward pass, in bytes. The input of proj comes first, at offset 0, and
 * its gradient overwrites it later. Without a gate, that gradient becomes the gradient of fc's output in
 * place, and d_fc is 0. With a gate, d_fc is the offset of a second array. If the layer has dropout, the
 * gradient of proj's output comes last. */
struct mlp_gradients {
    uint64_t d_fc, dy, end;
};

static struct mlp_gradients mlp_gradients_of(const struct layer *l, const struct mlp_shape *s)
{
    uint64_t hidden = layer_round(layer_act_bytes(l, s->tokens, s->hidden));
    struct mlp_gradients g;

    g.d_fc = l->mlp.gated ? hidden : 0;
    g.dy = g.d_fc + layer_round(layer_act_bytes(l, s->tokens, s->fc));
    g.end = g.dy + (l->mlp.dropout > 0 ? layer_round(layer_act_bytes(l, s->tokens, s->width)) : 0);
    return g;
}

static void mlp_sizes(const struct layer *l, uint32_t rows, struct layer_sizes *ret)
{
    struct mlp_shape s = mlp_shape_of(l, rows);
    uint64_t z = layer_act_bytes(l, s.tokens, s.fc), hidden = layer_act_bytes(l, s.tokens, s.hidden);

    *ret = layer_sizes_of(l, rows);
    ret->w = mlp_weights_of(l, &s).end;
    ret->s = z;
    ret->room = hidden;
    ret->scratch_fwd = layer_round(z) + hidden;
    ret->scratch_bwd = mlp_gradients_of(l, &s).end;
}

static void mlp_cost(const struct layer *l, uint32_t rows, struct layer_cost *ret)
{
    struct mlp_shape s = mlp_shape_of(l, rows);
    uint64_t w = mlp_weights_of(l, &s).end, x = layer_act_bytes(l, rows, layer_in(l)),
             z = layer_act_bytes(l, s.tokens, s.fc), hidden = layer_act_bytes(l, s.tokens, s.hidden);
    uint64_t products = 2 * (uint64_t)s.tokens * s.width * (s.fc + s.hidden);

    *ret = (struct layer_cost){
        .fwd_flops = products,
        .bwd_flops = 2 * products,
        .fwd_bytes = w + 2 * x + 2 * z + 2 * hidden,
        .bwd_bytes = 3 * w + 5 * x + 6 * z + 3 * hidden,
    };
}

static uint32_t mlp_params(const struct layer *l, struct layer_param *ret)
{
    struct layer_params p = {.l = l, .at = ret, .dtype = l->w_dtype};
    struct mlp_shape s = mlp_shape_of(l, 1);

    layer_add_param(&p, "fc.weight", PARAM_MATRIX, s.fc, s.width, l->mlp.init_std, s.width);
    if (l->mlp.bias)
        layer_add_param(&p, "fc.bias", PARAM_BIAS, s.fc, 0, l->mlp.init_std, s.width);
    layer_add_param(&p, "proj.weight", PARAM_MATRIX, s.width, s.hidden, l->mlp.proj_std, s.hidden);
    if (l->mlp.bias)
        layer_add_param(&p, "proj.bias", PARAM_BIAS, s.width, 0, l->mlp.proj_std, s.hidden);
    return p.n;
}

/* Launches the activation function on `z`, the output of fc. A gated mlp uses swiglu as its activation. */
static int mlp_activate(const struct layer *l, const struct layer_io *io, const struct mlp_shape *s,
                        const void *z, void *to, const struct op_sink *sink)
{
    if (l->mlp.gated)
        return LAYER_LAUNCH(io, sink, swiglu_fwd, .x = z, .y = to, .rows = s->tokens, .n = s->hidden,
                            .dtype = l->dtype);
    return LAYER_LAUNCH(io, sink, act_fwd, .x = z, .y = to, .n = (uint64_t)s->tokens * s->hidden,
                        .act = l->mlp.act, .dtype = l->dtype);
}

static int mlp_fwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    struct mlp_shape s = mlp_shape_of(l, io->rows);
    struct mlp_weights w = mlp_weights_of(l, &s);
    void *z = io->s ? io->s : io->scratch;
    void *hidden = io->s ? io->scratch : layer_at(z, layer_round(layer_act_bytes(l, s.tokens, s.fc)));
    const void *fc_b = l->mlp.bias ? layer_at_const(io->w, w.fc_b) : NULL;
    bool fused = !l->mlp.gated && l->mlp.act != ACT_NONE && io->y;

    int r = fused ? LAYER_LAUNCH(io, sink, linear_fwd, .x = io->x, .w = io->w, .b = fc_b, .z = z, .y = hidden,
                                 .rows = s.tokens, .in = s.width, .out = s.fc, .act = l->mlp.act,
                                 .dtype = l->dtype, .w_dtype = l->w_dtype, .y_dtype = l->dtype)
                  : LAYER_LAUNCH(io, sink, linear_fwd, .x = io->x, .w = io->w, .b = fc_b, .y = z,
                                 .rows = s.tokens, .in = s.width, .out = s.fc, .dtype = l->dtype,
                                 .w_dtype = l->w_dtype, .y_dtype = l->dtype);
    if (r || !io->y)
        return r;
    if (!fused)
        r = mlp_activate(l, io, &s, z, hidden, sink);
    if (!r)
        r = LAYER_LAUNCH(io, sink, linear_fwd, .x = hidden, .w = layer_at_const(io->w, w.proj),
                         .b = l->mlp.bias ? layer_at_const(io->w, w.proj_b) : NULL, .y = io->y,
                         .rows = s.tokens, .in = s.hidden, .out = s.width, .dtype = l->dtype,
                         .w_dtype = l->w_dtype, .y_dtype = l->dtype);
    return r ? r : layer_drop(l, l->mlp.dropout, io, io->y, io->y, sink);
}

/* Computes `d_fc`, the gradient of fc's output, from `dy`, the gradient of proj's output. */
static int mlp_bwd_inside(const struct layer *l, const struct layer_io *io, const struct mlp_shape *s,
                          const void *dy, void *d_hidden, void *d_fc, const struct op_sink *sink)
{
    struct mlp_weights w = mlp_weights_of(l, s);
    const void *proj = layer_at_const(io->w, w.proj);

    if (!l->mlp.gated)
        return LAYER_LAUNCH(io, sink, linear_bwd_data, .dy = dy, .w = proj, .z = io->s, .dx = d_fc,
                            .rows = s->tokens, .in = s->hidden, .out = s->width, .act = l->mlp.act,
                            .dtype = l->dtype, .w_dtype = l->w_dtype);
    int r = LAYER_LAUNCH(io, sink, linear_bwd_data, .dy = dy, .w = proj, .dx = d_hidden, .rows = s->tokens,
                         .in = s->hidden, .out = s->width, .dtype = l->dtype, .w_dtype = l->w_dtype);
    return r ? r
             : LAYER_LAUNCH(io, sink, swiglu_bwd, .x = io->s, .dy = d_hidden, .dx = d_fc, .rows = s->tokens,
                            .n = s->hidden, .dtype = l->dtype);
}

static int mlp_bwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    struct mlp_shape s = mlp_shape_of(l, io->rows);
    struct mlp_weights w = mlp_weights_of(l, &s);
    struct mlp_gradients g = mlp_gradients_of(l, &s);
    void *hidden = io->scratch, *d_fc = layer_at(io->scratch, g.d_fc), *dropped = layer_at(io->scratch, g.dy);
    const void *dy = l->mlp.dropout > 0 ? dropped : io->dy;
    const struct layer_linear fc = {
        .dy = d_fc,
        .x = io->x,
        .w = io->w,
        .dw = io->dw,
        .db = l->mlp.bias ? layer_dw_at(l, io->dw, w.fc_b) : NULL,
        .dx = io->dx,
        .rows = s.tokens,
        .in = s.width,
        .out = s.fc,
    };
    const struct layer_linear proj = {
        /* The field dx stays NULL, so layer_linear_bwd does not compute the gradient of proj's input. The
         * function mlp_bwd_inside computes this gradient. */
        .dy = dy,
        .x = hidden,
        .dw = layer_dw_at(l, io->dw, w.proj),
        .db = l->mlp.bias ? layer_dw_at(l, io->dw, w.proj_b) : NULL,
        .rows = s.tokens,
        .in = s.hidden,
        .out = s.width,
    };

    int r = layer_drop(l, l->mlp.dropout, io, io->dy, dropped, sink);
    if (!r)
        r = mlp_activate(l, io, &s, io->s, hidden, sink);
    if (!r)
        r = layer_linear_bwd(l, io, &proj, sink);
    if (!r)
        r = mlp_bwd_inside(l, io, &s, dy, hidden, d_fc, sink);
    return r ? r : layer_linear_bwd(l, io, &fc, sink);
}

const struct layer_type layer_mlp = {
    .name = "mlp",
    .sizes = mlp_sizes,
    .cost = mlp_cost,
    .params = mlp_params,
    .fwd = mlp_fwd,
    .bwd = mlp_bwd,
};
