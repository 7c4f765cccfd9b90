/* The block and residual layers, which consist of inner layers. A block is a chain, y = f(x). A residual
 * adds its input, y = x + f(x). To a plan, each of them is one layer with one W, one S, one input and one
 * output (DESIGN section 2).
 *
 * W holds the W blocks of the inner layers, one after another. S holds the output and the own S of each
 * inner layer, in order. The output of the last inner layer is y, so it is not in S.
 *
 * The workspace of an inner layer's forward pass lies in the part of S that later inner layers will fill.
 * If that part is too small, the workspace lies beside S. A forward pass without S uses the same layout in
 * its scratch, with the workspace behind the place of S.
 *
 * The scratch of the backward pass holds two gradients between inner layers and the largest scratch of any
 * inner layer. Two gradients are enough, because no more are needed at a time.
 *
 * All functions run in the caller's thread and have no effect besides their launches.
 */
#include <stdio.h>
#include <string.h>

#include "kernels/layer_impl.h"

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The state of a loop over the inner layers of a block: the current inner layer, and where its weights and
 * saved values lie in the weights and saved values of the block. */
struct inner_walk {
    const struct layer *l; /* the current inner layer */
    struct layer_sizes size;
    /* The offset of the current layer's weights in the block's weights. */
    uint64_t w;
    /* The offsets of the current layer's input and output in the block's saved values. The first layer's
     * input is not saved, so `x` is not used there. The last layer's output is not saved, so `y` is not used
     * there. */
    uint64_t x, y;
    /* The values that the current layer saves are the bytes [s, end) of the block's saved values. The bytes
     * from `end` on belong to later layers. */
    uint64_t s, end;
};

static void inner_walk_begin(struct inner_walk *k)
{
    *k = (struct inner_walk){0};
}

/* Moves `k` to inner layer `i`. Each call adds the sizes of the previous layer to the offsets. Therefore call
 * this function for i = 0, 1, 2 and so on, without gaps. */
static void inner_walk_to(struct inner_walk *k, const struct layer *outer, uint32_t i, uint32_t rows)
{
    k->w += k->size.w;
    k->x = k->y;
    k->y = k->end;
    k->l = &outer->inner[i];
    layer_type(k->l)->sizes(k->l, rows, &k->size);
    k->s = k->y + (i + 1 < outer->n_inner ? layer_round(k->size.y) : 0);
    k->end = k->s + layer_round(k->size.s);
}

static uint64_t saved_bytes(const struct layer *outer, uint32_t rows)
{
    struct inner_walk k;

    inner_walk_begin(&k);
    for (uint32_t i = 0; i < outer->n_inner; i++)
        inner_walk_to(&k, outer, i, rows);
    return k.end;
}

/* Returns the workspace, in bytes, that the current inner layer needs in its forward pass. */
static uint64_t needed_workspace(const struct inner_walk *k)
{
    return k->size.s > 0 ? k->size.room : k->size.scratch_fwd;
}

/* Returns true if the current inner layer can place its workspace at the end of the block's saved values.
 * That memory is still free, because only later layers write to it. `saved` is the size in bytes of all saved
 * values of the block. */
static bool fits_in_s(const struct inner_walk *k, uint64_t saved)
{
    return needed_workspace(k) <= saved - k->end;
}

/* Returns the size in bytes of the largest gradient that one inner layer passes to another. Sets *ret_n to
 * the number of such gradients that must be in scratch memory at the same time. */
static uint64_t gradient_bytes(const struct layer *outer, uint32_t rows, uint32_t *ret_n)
{
    uint64_t most = 0;

    for (uint32_t i = 1; i < outer->n_inner; i++)
        most = max_u64(most, layer_round(layer_act_bytes(outer, rows, layer_in(&outer->inner[i]))));
    *ret_n = outer->n_inner < 2 ? 0 : outer->n_inner == 2 ? 1 : 2;
    return most;
}

static void block_sizes(const struct layer *l, uint32_t rows, struct layer_sizes *ret)
{
    uint64_t scratch = 0, gradient;
    uint32_t gradients;
    struct inner_walk k;

    *ret = layer_sizes_of(l, rows);
    ret->s = saved_bytes(l, rows);
    inner_walk_begin(&k);
    for (uint32_t i = 0; i < l->n_inner; i++) {
        inner_walk_to(&k, l, i, rows);
        ret->w += k.size.w;
        if (!fits_in_s(&k, ret->s))
            ret->room = max_u64(ret->room, needed_workspace(&k));
        scratch = max_u64(scratch, k.size.scratch_bwd);
    }
    gradient = gradient_bytes(l, rows, &gradients);
    ret->scratch_fwd = ret->s + ret->room;
    /* If no inner layer saves anything, the block saves nothing. `room` is the workspace of a forward pass
     * that saves values, so the block does not need it. */
    if (ret->s == 0)
        ret->room = 0;
    ret->scratch_bwd = gradients * gradient + scratch;
}

static void block_cost(const struct layer *l, uint32_t rows, struct layer_cost *ret)
{
    *ret = (struct layer_cost){0};
    for (uint32_t i = 0; i < l->n_inner; i++) {
        struct layer_cost c;
        layer_type(&l->inner[i])->cost(&l->inner[i], rows, &c);
        ret->fwd_flops += c.fwd_flops;
        ret->bwd_flops += c.bwd_flops;
        ret->fwd_bytes += c.fwd_bytes;
        ret->bwd_bytes += c.bwd_bytes;
    }
}

static void residual_cost(const struct layer *l, uint32_t rows, struct layer_cost *ret)
{
    uint64_t n = (uint64_t)rows * layer_in(l), x = layer_act_bytes(l, rows, layer_in(l));

    block_cost(l, rows, ret);
    ret->fwd_flops += n;
    ret->bwd_flops += n;
    ret->fwd_bytes += 3 * x;
    ret->bwd_bytes += 3 * x;
}

/* Puts the name of an inner layer and a dot in front of the parameter's name, as in "attn.qkv.weight". A
 * `prefix` of NULL changes nothing. */
static void add_prefix(struct layer_param *p, const char *prefix)
{
    char name[sizeof p->name];

    if (!prefix)
        return;
    snprintf(name, sizeof name, "%s.%s", prefix, p->name);
    memcpy(p->name, name, sizeof name);
}

static uint32_t block_params(const struct layer *l, struct layer_param *ret)
{
    uint32_t n = 0;
    struct inner_walk k;

    inner_walk_begin(&k);
    for (uint32_t i = 0; i < l->n_inner; i++) {
        inner_walk_to(&k, l, i, 1);
        uint32_t more = layer_type(k.l)->params(k.l, ret ? ret + n : NULL);
        for (uint32_t j = n; ret && j < n + more; j++) {
            ret[j].offset += k.w;
            add_prefix(&ret[j], k.l->name);
        }
        n += more;
    }
    return n;
}

static int block_fwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    uint64_t saved = saved_bytes(l, io->rows);
    void *s = io->s ? io->s : io->scratch, *room = io->s ? io->scratch : layer_at(io->scratch, saved);
    struct inner_walk k;
    int r = 0;

    inner_walk_begin(&k);
    for (uint32_t i = 0; !r && i < l->n_inner; i++) {
        inner_walk_to(&k, l, i, io->rows);
        struct layer_io in = *io;
        in.w = layer_at_const(io->w, k.w);
        in.x = i > 0 ? layer_at(s, k.x) : io->x;
        in.y = i + 1 < l->n_inner ? layer_at(s, k.y) : io->y;
        in.s = k.size.s > 0 ? layer_at(s, k.s) : NULL;
        in.scratch = fits_in_s(&k, saved) ? layer_at(s, k.end) : room;
        r = layer_type(k.l)->fwd(k.l, &in, sink);
    }
    return r;
}

static int residual_fwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    int r = block_fwd(l, io, sink);

    if (r || !io->y)
        return r;
    return LAYER_LAUNCH(io, sink, add, .y = io->y, .x = io->x, .n = (uint64_t)io->rows * layer_in(l),
                        .dtype = l->dtype);
}

/* Runs the backward pass of inner layer `i`. Two buffers in scratch memory, half[0] and half[1], hold
 * gradients. Layer i reads the gradient of its output from half[i % 2] and writes the gradient of its input
 * to the other buffer. */
static int bwd_inner(const struct layer *l, const struct layer_io *io, uint32_t i, const struct op_sink *sink)
{
    uint32_t gradients;
    uint64_t gradient = gradient_bytes(l, io->rows, &gradients);
    void *half[2] = {io->scratch, layer_at(io->scratch, gradient)};
    struct inner_walk k;

    inner_walk_begin(&k);
    for (uint32_t j = 0; j <= i; j++)
        inner_walk_to(&k, l, j, io->rows);
    struct layer_io in = *io;
    in.w = layer_at_const(io->w, k.w);
    in.dw = layer_dw_at(l, io->dw, k.w);
    in.x = i > 0 ? layer_at(io->s, k.x) : io->x;
    in.s = k.size.s > 0 ? layer_at(io->s, k.s) : NULL;
    in.dy = i + 1 < l->n_inner ? half[i % 2] : io->dy;
    in.dx = i > 0 ? half[(i + 1) % 2] : io->dx;
    in.scratch = layer_at(io->scratch, gradients * gradient);
    return layer_type(k.l)->bwd(k.l, &in, sink);
}

static int block_bwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    int r = 0;

    for (uint32_t i = l->n_inner; !r && i-- > 0;)
        r = bwd_inner(l, io, i, sink);
    return r;
}

static int residual_bwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    int r = block_bwd(l, io, sink);

    if (r || !io->dx)
        return r;
    return LAYER_LAUNCH(io, sink, add, .y = io->dx, .x = io->dy, .n = (uint64_t)io->rows * layer_in(l),
                        .dtype = l->dtype);
}

const struct layer_type layer_block = {
    .name = "block",
    .sizes = block_sizes,
    .cost = block_cost,
    .params = block_params,
    .fwd = block_fwd,
    .bwd = block_bwd,
};

const struct layer_type layer_residual = {
    .name = "residual",
    .sizes = block_sizes,
    .cost = residual_cost,
    .params = block_params,
    .fwd = residual_fwd,
    .bwd = residual_bwd,
};
