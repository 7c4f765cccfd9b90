/* Implements transformer.h: checks the sizes of a transformer and builds its chain of layers, one block after
 * another. */
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

/* The arguments of transformer_build, with defaults filled in. Every function that makes a layer gets a
 * pointer to this struct. */
struct transformer_builder {
    const struct transformer *t;
    struct arena *arena;
    uint32_t seq; /* tokens in a sequence */
    float proj_std, embedding_std;
};

/* Returns a layer of `kind`, with the fields set that are the same for all layers whose rows are
 * [seq][width]. */
static struct layer layer_over(const struct transformer_builder *b, enum layer_kind kind)
{
    uint32_t n = b->seq * b->t->width;
    return (struct layer){
        .kind = kind, .in = n, .out = n, .seq = b->seq, .init_std = b->t->init_std, .proj_std = b->proj_std};
}

static struct layer make_norm(const struct transformer_builder *b)
{
    struct layer l = layer_over(b, LAYER_norm);
    l.rms = b->t->arch == ARCH_LLAMA;
    l.bias = !l.rms;
    l.eps = b->t->eps;
    return l;
}

static struct layer make_attention(const struct transformer_builder *b)
{
    struct layer l = layer_over(b, LAYER_attention);
    l.bias = b->t->arch == ARCH_GPT2;
    l.heads = b->t->heads;
    l.kv_heads = b->t->kv_heads;
    l.rope_theta = b->t->arch == ARCH_LLAMA ? b->t->rope_theta : 0;
    l.score_dropout = b->t->attn_dropout;
    l.dropout = b->t->resid_dropout;
    return l;
}

static struct layer make_mlp(const struct transformer_builder *b)
{
    struct layer l = layer_over(b, LAYER_mlp);
    l.bias = b->t->arch == ARCH_GPT2;
    l.hidden = b->t->hidden;
    l.gated = b->t->arch == ARCH_LLAMA;
    l.act = l.gated ? ACT_NONE : b->t->act;
    l.dropout = b->t->resid_dropout;
    return l;
}

/* Returns a residual layer. It computes x + part(norm(x)), where x is its input and `part` is an attention or
 * an mlp. */
static struct layer make_residual(const struct transformer_builder *b, const char *norm_name,
                                  const char *name, struct layer part)
{
    struct layer *inner = arena_alloc_array(b->arena, 2, sizeof *inner), l = layer_over(b, LAYER_residual);
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
    struct layer *inner = arena_alloc_array(b->arena, 2, sizeof *inner), l = layer_over(b, LAYER_block);
    inner[0] = make_residual(b, "ln_1", "attn", make_attention(b));
    inner[1] = make_residual(b, "ln_2", "mlp", make_mlp(b));
    l.inner = inner;
    l.n_inner = 2;
    return l;
}

static struct layer make_embedding(const struct transformer_builder *b)
{
    struct layer l = layer_over(b, LAYER_embedding);
    l.init_std = b->embedding_std;
    l.in = b->seq;
    l.vocab = b->t->vocab;
    return l;
}

static struct layer make_positions(const struct transformer_builder *b)
{
    struct layer l = layer_over(b, LAYER_positions);
    l.init_std = b->embedding_std;
    l.positions = b->t->positions;
    l.dropout = b->t->embd_dropout;
    return l;
}

static struct layer make_head(const struct transformer_builder *b, float smoothing)
{
    struct layer l = layer_over(b, LAYER_lm_head);
    l.out = 0;
    l.vocab = b->t->vocab;
    l.smoothing = smoothing;
    l.tied = b->t->tied;
    l.owner = 0;
    return l;
}

/* Returns the standard deviation for the initial weights of attn.proj and mlp.proj. GPT-2's default is
 * init_std divided by the square root of the number of residual layers, of which each block has two. */
static float proj_std(const struct transformer *t)
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
        .proj_std = proj_std(t),
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
