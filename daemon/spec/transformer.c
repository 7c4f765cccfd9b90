/* Implements transformer.h: checks the sizes of a transformer, and builds its chain of layers block by
 * block. */
#include "daemon/spec/transformer.h"

#include <assert.h>
#include <errno.h>
#include <math.h>

const char *const transformer_arch_names[ARCH_COUNT + 1] = {"gpt2", "llama", NULL};

#define MAX_DIM (1u << 24)

int transformer_check(const struct transformer *t, const char *path, struct err *err)
{
    if (t->layers < 1 || t->layers > 8000)
        return err_set_at(err, -EINVAL, path, "the model has %u layers; a transformer has 1 to 8000",
                          t->layers);
    if (t->width < 1 || t->width > MAX_DIM || t->hidden < 1 || t->hidden > MAX_DIM)
        return err_set_at(err, -EINVAL, path, "width is %u and hidden is %u; each must be from 1 to %u",
                          t->width, t->hidden, MAX_DIM);
    if (t->heads < 1 || t->width % t->heads != 0)
        return err_set_at(err, -EINVAL, path, "%u heads do not divide a width of %u; change one of them",
                          t->heads, t->width);
    if (t->kv_heads < 1 || t->heads % t->kv_heads != 0)
        return err_set_at(err, -EINVAL, path,
                          "%u heads of keys and values do not divide %u heads; write a divisor", t->kv_heads,
                          t->heads);
    if (t->arch == ARCH_LLAMA && t->width / t->heads % 2 != 0)
        return err_set_at(err, -EINVAL, path,
                          "a head has %u elements, but rotary positions turn pairs; make width / heads even",
                          t->width / t->heads);
    if (t->vocab < 2 || t->vocab > MAX_DIM)
        return err_set_at(err, -EINVAL, path, "the vocabulary has %u tokens; it must have 2 to %u", t->vocab,
                          MAX_DIM);
    if (t->positions < 1 || t->positions > MAX_DIM)
        return err_set_at(err, -EINVAL, path, "the model has %u positions; it must have 1 to %u",
                          t->positions, MAX_DIM);
    return 0;
}

/* The arguments of transformer_build, with the defaults filled in. All functions that make a layer get a
 * pointer to this struct. */
struct transformer_builder {
    const struct transformer *t;
    struct arena *arena;
    uint32_t seq; /* tokens in a sequence */
    float proj_std, embedding_std;
};

/* Returns a layer of the given type whose input and output are sequences of the model's width. */
static struct layer layer_over(const struct transformer_builder *b, const struct layer_type *type)
{
    struct shape row = shape_sequence(b->seq, b->t->width);
    return (struct layer){.type = type, .in = row, .out = row};
}

static struct layer make_norm(const struct transformer_builder *b)
{
    struct layer l = layer_over(b, &layer_norm);
    l.norm.rms = b->t->arch == ARCH_LLAMA;
    l.norm.bias = !l.norm.rms;
    l.norm.eps = b->t->eps;
    return l;
}

static struct layer make_attention(const struct transformer_builder *b)
{
    struct layer l = layer_over(b, &layer_attention);
    l.attention = (struct attention_settings){
        .heads = b->t->heads,
        .kv_heads = b->t->kv_heads,
        .bias = b->t->arch == ARCH_GPT2,
        .rope_theta = b->t->arch == ARCH_LLAMA ? b->t->rope_theta : 0,
        .score_dropout = b->t->attn_dropout,
        .dropout = b->t->resid_dropout,
        .init_std = b->t->init_std,
        .proj_std = b->proj_std,
    };
    return l;
}

static struct layer make_mlp(const struct transformer_builder *b)
{
    struct layer l = layer_over(b, &layer_mlp);
    l.mlp = (struct mlp_settings){
        .hidden = b->t->hidden,
        .bias = b->t->arch == ARCH_GPT2,
        .gated = b->t->arch == ARCH_LLAMA,
        .act = b->t->arch == ARCH_LLAMA ? ACT_NONE : b->t->act,
        .dropout = b->t->resid_dropout,
        .init_std = b->t->init_std,
        .proj_std = b->proj_std,
    };
    return l;
}

/* Returns a residual layer. From its input x, the layer computes x + part(norm(x)), where `part` is an
 * attention or an mlp. */
static struct layer make_residual(const struct transformer_builder *b, const char *norm_name,
                                  const char *name, struct layer part)
{
    struct layer *inner = arena_alloc_array(b->arena, 2, sizeof *inner), l = layer_over(b, &layer_residual);
    inner[0] = make_norm(b);
    inner[0].name = norm_name;
    inner[1] = part;
    inner[1].name = name;
    l.inner = inner;
    l.n_inner = 2;
    return l;
}

static struct layer make_block(const struct transformer_builder *b)
{
    struct layer *inner = arena_alloc_array(b->arena, 2, sizeof *inner), l = layer_over(b, &layer_block);
    inner[0] = make_residual(b, "ln_1", "attn", make_attention(b));
    inner[1] = make_residual(b, "ln_2", "mlp", make_mlp(b));
    l.inner = inner;
    l.n_inner = 2;
    return l;
}

static struct layer make_embedding(const struct transformer_builder *b)
{
    struct layer l = layer_over(b, &layer_embedding);
    l.in = shape_sequence(b->seq, 1);
    l.embedding.vocab = b->t->vocab;
    l.embedding.init_std = b->embedding_std;
    return l;
}

static struct layer make_positions(const struct transformer_builder *b)
{
    struct layer l = layer_over(b, &layer_positions);
    l.positions.count = b->t->positions;
    l.positions.dropout = b->t->embd_dropout;
    l.positions.init_std = b->embedding_std;
    return l;
}

static struct layer make_head(const struct transformer_builder *b, float smoothing)
{
    struct layer l = layer_over(b, &layer_lm_head);
    l.out = (struct shape){0};
    l.lm_head.vocab = b->t->vocab;
    l.lm_head.smoothing = smoothing;
    l.lm_head.init_std = b->t->init_std;
    l.tied = b->t->tied;
    l.owner = 0;
    return l;
}

float transformer_proj_std(const struct transformer *t)
{
    if (t->proj_std > 0)
        return t->proj_std;
    return t->arch == ARCH_GPT2 ? t->init_std / sqrtf(2.0f * (float)t->layers) : t->init_std;
}

void transformer_build(const struct transformer *t, uint32_t context, float smoothing, struct arena *arena,
                       struct model *ret)
{
    struct transformer_builder b = {
        .t = t,
        .arena = arena,
        .seq = context,
        .proj_std = transformer_proj_std(t),
        .embedding_std = t->embedding_std > 0 ? t->embedding_std : t->init_std,
    };
    struct layer *l = arena_alloc_array(arena, t->layers + 4, sizeof *l);
    uint32_t n = 0;

    assert(context >= 1 && (context <= t->positions || t->arch == ARCH_LLAMA));
    l[n++] = make_embedding(&b);
    if (t->arch == ARCH_GPT2)
        l[n++] = make_positions(&b);
    for (uint32_t i = 0; i < t->layers; i++)
        l[n++] = make_block(&b);
    l[n++] = make_norm(&b);
    l[n++] = make_head(&b, smoothing);
    model_number(&(struct model){l, n});
    *ret = (struct model){l, n};
}
