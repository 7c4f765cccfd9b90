/* The lm_head layer, the loss of language models: the cross entropy of softmax(x w^T) against one token id
 * (int32) per token. Negative target ids are ignored. A tied lm_head uses the W of an embedding instead of
 * its own.
 *
 * The logits of a large vocabulary are larger than everything else. They therefore exist only for one chunk
 * of tokens at a time, in scratch. They are floats in every precision. In training, the forward pass does
 * nothing. The backward pass computes the logits of a chunk once and derives loss and gradients from them.
 * The size of a chunk depends only on the layer's shape, because it decides the order of the sums over
 * tokens.
 *
 * All functions run in the caller's thread and have no effect besides their launches.
 */
#include "kernels/layer_impl.h"

#define CHUNK_STEP 128u
/* A chunk of tokens may always have up to 4 million logits. If this limit were smaller, a small model would
 * compute many tiny chunks. */
#define CHUNK_SMALL (UINT64_C(1) << 22)

/* Returns the number of tokens in a chunk. The number of logits in a chunk is at most CHUNK_SMALL or a sixth
 * of the number of weights, whichever is larger. */
static uint32_t chunk_tokens(const struct layer *l, uint32_t rows)
{
    uint64_t tokens = (uint64_t)rows * layer_seq(l), few = CHUNK_SMALL / l->lm_head.vocab,
             share = layer_width(l) / 6;
    uint64_t chunk = (few > share ? few : share) / CHUNK_STEP * CHUNK_STEP;

    chunk = chunk < CHUNK_STEP ? CHUNK_STEP : chunk;
    return (uint32_t)(chunk < tokens ? chunk : tokens);
}

/* Returns the offset in scratch of the gradient of a chunk's logits, in bytes. The logits are floats at the
 * start of scratch. If activations are floats too, the gradient overwrites the logits. Otherwise it has the
 * type of the activations and follows the logits. */
static uint64_t gradient_at(const struct layer *l, uint32_t rows)
{
    return l->dtype == DTYPE_F32 ? 0 : layer_round(layer_stat_bytes(chunk_tokens(l, rows), l->lm_head.vocab));
}

static void lm_head_sizes(const struct layer *l, uint32_t rows, struct layer_sizes *ret)
{
    *ret = layer_sizes_of(l, rows);
    ret->w = layer_w_bytes(l, l->lm_head.vocab, layer_width(l));
    ret->scratch_fwd = layer_stat_bytes(chunk_tokens(l, rows), l->lm_head.vocab);
    ret->scratch_bwd = gradient_at(l, rows) + layer_act_bytes(l, chunk_tokens(l, rows), l->lm_head.vocab);
    ret->target = layer_bytes_of(DTYPE_I32, rows, layer_seq(l));
    ret->target_dtype = DTYPE_I32;
    ret->result = sizeof(struct step_result);
}

/* Computes the cost of the layer in training. In training the forward pass does nothing, and the backward
 * pass does all the work. */
static void lm_head_cost(const struct layer *l, uint32_t rows, struct layer_cost *ret)
{
    uint64_t tokens = (uint64_t)rows * layer_seq(l), x = layer_act_bytes(l, rows, layer_in(l)),
             w = layer_w_bytes(l, l->lm_head.vocab, layer_width(l)),
             logits = layer_stat_bytes((uint32_t)tokens, l->lm_head.vocab);
    uint64_t chunks = (tokens + chunk_tokens(l, rows) - 1) / chunk_tokens(l, rows);

    *ret = (struct layer_cost){
        .bwd_flops = 6 * (uint64_t)rows * layer_in(l) * l->lm_head.vocab,
        .bwd_bytes = 3 * x + (2 * chunks + 2 * chunks) * w + 6 * logits,
    };
}

static uint32_t lm_head_params(const struct layer *l, struct layer_param *ret)
{
    struct layer_params p = {.l = l, .at = ret, .dtype = l->w_dtype};

    if (!l->tied)
        layer_add_param(&p, "weight", PARAM_MATRIX, l->lm_head.vocab, layer_width(l), l->lm_head.init_std,
                        layer_width(l));
    return p.n;
}

/* A chunk: `n` tokens of a micro-batch that are processed together. `first` is the number of the first token.
 * `x` points to the input of these tokens, and `dx` to its gradient. `dx` is NULL if this gradient is not
 * needed. */
struct token_chunk {
    uint32_t first, n;
    const void *x;
    void *dx;
};

/* Launches the ops that compute the logits of a chunk and the loss of these logits. If `dx` is not NULL, the
 * ops also write the gradient of the logits to `dx`. */
static int logits_of(const struct layer *l, const struct layer_io *io, const struct token_chunk *c, void *dx,
                     const struct op_sink *sink)
{
    uint32_t seq = layer_seq(l), width = layer_width(l);
    int r =
        LAYER_LAUNCH(io, sink, linear_fwd, .x = c->x, .w = io->w, .y = io->scratch, .rows = c->n, .in = width,
                     .out = l->lm_head.vocab, .dtype = l->dtype, .w_dtype = l->w_dtype, .y_dtype = DTYPE_F32);
    if (r)
        return r;
    return LAYER_LAUNCH(io, sink, softmax_xent, .x = io->scratch,
                        .target = (const int32_t *)io->target + c->first, .result = io->result, .dx = dx,
                        .rows = c->n, .n = l->lm_head.vocab, .first_row = io->first_row * seq + c->first,
                        .seq = seq, .smoothing = l->lm_head.smoothing, .accumulate = c->first > 0,
                        .group = io->group, .dtype = DTYPE_F32, .dx_dtype = l->dtype);
}

static int bwd_chunk(const struct layer *l, const struct layer_io *io, const struct token_chunk *c,
                     const struct op_sink *sink)
{
    uint32_t width = layer_width(l);
    void *d_logits = layer_at(io->scratch, gradient_at(l, io->rows));
    int r = logits_of(l, io, c, d_logits, sink);

    if (!r)
        r = LAYER_LAUNCH(io, sink, linear_bwd_weight, .dy = d_logits, .x = c->x, .dw = io->dw, .rows = c->n,
                         .in = width, .out = l->lm_head.vocab, .accumulate = io->accumulate || c->first > 0,
                         .dtype = l->dtype);
    if (!r && c->dx)
        r = LAYER_LAUNCH(io, sink, linear_bwd_data, .dy = d_logits, .w = io->w, .dx = c->dx, .rows = c->n,
                         .in = width, .out = l->lm_head.vocab, .dtype = l->dtype, .w_dtype = l->w_dtype);
    return r;
}

static int for_chunks(const struct layer *l, const struct layer_io *io, bool backward,
                      const struct op_sink *sink)
{
    uint32_t tokens = io->rows * layer_seq(l), step = chunk_tokens(l, io->rows);
    int r = 0;

    for (uint32_t first = 0; !r && first < tokens; first += step) {
        uint32_t left = tokens - first;
        uint64_t at = layer_act_bytes(l, first, layer_width(l));
        struct token_chunk c = {.first = first,
                                .n = left < step ? left : step,
                                .x = layer_at_const(io->x, at),
                                .dx = layer_at(io->dx, at)};
        r = backward ? bwd_chunk(l, io, &c, sink) : logits_of(l, io, &c, NULL, sink);
    }
    return r;
}

/* Computes the loss in an evaluation. In training, io->result is NULL and this function does nothing, because
 * the backward pass computes the loss. */
static int lm_head_fwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    return io->result ? for_chunks(l, io, false, sink) : 0;
}

static int lm_head_bwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    return for_chunks(l, io, true, sink);
}

const struct layer_type layer_lm_head = {
    .name = "lm_head",
    .is_loss = true,
    .loss_in_bwd = true,
    .sizes = lm_head_sizes,
    .cost = lm_head_cost,
    .params = lm_head_params,
    .fwd = lm_head_fwd,
    .bwd = lm_head_bwd,
};
