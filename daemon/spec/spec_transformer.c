/* Reads the description of a GPT-2 or Llama model and builds the chain of layers. A spec can describe the
 * model by the name of a size, by its shape, by a Hugging Face config, or by a Hugging Face folder.
 *
 * Files are opened only for {"from": DIR}, by the function spec_options.read_folder.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/arena.h"
#include "base/checked.h"
#include "daemon/spec/hf_config.h"
#include "daemon/spec/spec_private.h"

/* The shapes that the key "size" of a model can name. If `kv_heads` is 0, the model has as many kv_heads as
 * heads. If `hidden` is 0, usual_hidden computes the hidden width. */
static const struct named_size {
    const char *name;
    uint32_t layers, width, heads, kv_heads, hidden;
    bool tied;
} gpt2_sizes[] =
    {
        {"124M", 12, 768, 12, 0, 0, true},  {"355M", 24, 1024, 16, 0, 0, true},
        {"774M", 36, 1280, 20, 0, 0, true}, {"1.5B", 48, 1600, 25, 0, 0, true},
        {"2.7B", 32, 2560, 32, 0, 0, true}, {"6.7B", 32, 4096, 32, 0, 0, true},
        {"10B", 48, 4096, 32, 0, 0, true},  {NULL, 0, 0, 0, 0, 0, false},
},
  llama_sizes[] = {
      {"15M", 6, 288, 6, 0, 768, true},     {"42M", 8, 512, 8, 0, 1376, true},
      {"110M", 12, 768, 12, 0, 2048, true}, {"1.1B", 22, 2048, 32, 4, 5632, false},
      {"3B", 26, 3200, 32, 0, 8640, false}, {"7B", 32, 4096, 32, 0, 11008, false},
      {NULL, 0, 0, 0, 0, 0, false},
};

#define NAMES_MAX 8

/* Reads the key "size", such as "124M", and copies the shape with this name to `t`. If the key is absent, `t`
 * stays unchanged. If there is no shape with this name, reports the mistake and returns false. */
static bool take_named_size(struct json_obj *o, const struct named_size *sizes, struct transformer *t)
{
    static const char *const nothing_later[] = {NULL};
    const char *names[NAMES_MAX] = {NULL};
    int which = -1;

    for (uint32_t i = 0; sizes[i].name; i++)
        names[i] = sizes[i].name;
    if (!spec_take_choice(o, "size", JSON_OPTIONAL, names, nothing_later, &which))
        return o->status == 0;
    t->layers = sizes[which].layers;
    t->width = sizes[which].width;
    t->heads = sizes[which].heads;
    t->kv_heads = sizes[which].kv_heads;
    t->hidden = sizes[which].hidden;
    t->tied = sizes[which].tied;
    return true;
}

/* Returns the usual hidden width of the mlp. In GPT-2, the hidden width is 4 times the width of the model.
 * The mlp of Llama has three matrices instead of two. So in Llama, the hidden width is 8/3 times the width of
 * the model, rounded up to a multiple of 256. */
static uint32_t usual_hidden(const struct transformer *t)
{
    if (t->arch == ARCH_GPT2)
        return 4 * t->width;
    return (uint32_t)(((uint64_t)t->width * 8 / 3 + 255) / 256 * 256);
}

static void take_shape(struct json_obj *o, struct transformer *t)
{
    enum json_need need = t->layers > 0 ? JSON_OPTIONAL : JSON_REQUIRED;

    spec_take_u32(o, "layers", need, 1, 8000, &t->layers);
    spec_take_u32(o, "width", need, 1, 1u << 24, &t->width);
    if (spec_take_u32(o, "heads", need, 1, 1u << 16, &t->heads))
        t->kv_heads = 0;
    spec_take_u32(o, "hidden", JSON_OPTIONAL, 1, 1u << 24, &t->hidden);
    spec_take_u32(o, "vocab", JSON_OPTIONAL, 2, 1u << 24, &t->vocab);
    spec_take_u32(o, "positions", JSON_OPTIONAL, 1, 1u << 24, &t->positions);
    json_take_bool(o, "tied", JSON_OPTIONAL, &t->tied);
    if (t->arch == ARCH_LLAMA)
        spec_take_u32(o, "kv_heads", JSON_OPTIONAL, 1, 1u << 16, &t->kv_heads);
    t->kv_heads = t->kv_heads ? t->kv_heads : t->heads;
    t->hidden = t->hidden ? t->hidden : usual_hidden(t);
}

/* Reads the keys of a model that do not affect the sizes of its layers, such as dropout. `init_std` is the
 * value of init.std in the spec, or 0 if the spec does not set it. */
static void take_numbers(struct json_obj *o, float init_std, struct transformer *t)
{
    double dropout = 0, eps = (double)t->eps, theta = (double)t->rope_theta, std = (double)t->init_std;
    const char *names[ACT_COUNT + 1] = {NULL};
    static const char *const nothing_later[] = {NULL};
    int act;

    spec_take_float(o, "dropout", JSON_OPTIONAL, SPEC_FRACTION, &dropout);
    t->embd_dropout = t->attn_dropout = t->resid_dropout = (float)dropout;
    spec_take_float(o, "eps", JSON_OPTIONAL, SPEC_POSITIVE, &eps);
    t->eps = (float)eps;
    if (spec_take_float(o, "init_std", JSON_OPTIONAL, SPEC_POSITIVE, &std) && init_std > 0)
        json_fail(o, "init_std", -EINVAL, "init.std gives the same number; keep one of them");
    t->init_std = (float)std;
    if (t->arch == ARCH_LLAMA) {
        spec_take_float(o, "rope_theta", JSON_OPTIONAL, SPEC_POSITIVE, &theta);
        t->rope_theta = (float)theta;
        return;
    }
    memcpy(names, act_names, sizeof act_names);
    if (spec_take_choice(o, "activation", JSON_OPTIONAL, names, nothing_later, &act))
        t->act = (enum act)act;
}

/* Copies to the transformer `t` the standard deviations that the section `init` of the spec sets. */
static void apply_init(const struct spec *s, struct transformer *t)
{
    if (s->init.std > 0)
        t->init_std = s->init.std;
    t->proj_std = s->init.proj_std;
    t->embedding_std = s->init.embedding_std;
}

/* Checks the transformer `t` and builds its chain of layers for samples of `context` tokens. If `context` is
 * 0, a sample has as many tokens as the model has positions. */
static int build_chain(const struct spec_reader *r, struct transformer *t, const char *path, uint32_t context)
{
    struct spec *s = r->s;
    uint64_t row;
    int status = transformer_check(t, path, r->err);

    if (status < 0)
        return status;
    apply_init(s, t);
    if (context == 0)
        context = t->positions;
    if (context > t->positions && t->arch == ARCH_GPT2)
        return err_set_at(r->err, -EINVAL, "model.context",
                          "%" PRIu32 " tokens are more than the %" PRIu32
                          " positions of the model; write at most %" PRIu32,
                          context, t->positions, t->positions);
    if (!checked_mul(context, t->width, &row) || row > SPEC_MAX_DIM)
        return err_set_at(r->err, -EINVAL, "model.context",
                          "%" PRIu32 " tokens of %" PRIu32
                          " elements are more than %u elements; use a shorter context",
                          context, t->width, SPEC_MAX_DIM);
    s->transformer = arena_memdup(s->arena, t, sizeof *t);
    transformer_build(t, context, 0, s->arena, &s->model);
    s->tokens = true;
    s->seq = s->features = context;
    s->vocab = s->classes = t->vocab;
    return 0;
}

int spec_read_transformer(const struct spec_reader *r, const struct json *node, enum transformer_arch arch)
{
    struct transformer t = {
        .arch = arch,
        .vocab = arch == ARCH_GPT2 ? 50257 : 32000,
        .act = ACT_GELU,
        .tied = arch == ARCH_GPT2,
        .eps = 1e-5f,
        .rope_theta = arch == ARCH_LLAMA ? 10000.0f : 0,
        .init_std = 0.02f,
    };
    uint32_t context = 0;
    const char *type;
    struct json_obj o;

    json_obj_begin(&o, node, "model", r->err);
    json_take_string(&o, "type", JSON_REQUIRED, &type);
    spec_take_u32(&o, "context", JSON_OPTIONAL, 1, 1u << 24, &context);
    t.positions = context ? context : arch == ARCH_GPT2 ? 1024 : 2048;
    if (take_named_size(&o, arch == ARCH_GPT2 ? gpt2_sizes : llama_sizes, &t)) {
        take_shape(&o, &t);
        take_numbers(&o, r->s->init.std, &t);
    }
    if (json_obj_end(&o) < 0)
        return o.status;
    return build_chain(r, &t, "model", context);
}

int spec_read_hf(const struct spec_reader *r, const struct json *node)
{
    const struct json *config = NULL;
    struct transformer t;
    uint32_t context = 0;
    double dropout = -1;
    struct json_obj o;
    int status;

    json_obj_begin(&o, node, "model", r->err);
    json_take(&o, "config", JSON_OPTIONAL, &config);
    spec_take_path(r, &o, "from", JSON_OPTIONAL, &r->s->from);
    spec_take_u32(&o, "context", JSON_OPTIONAL, 1, 1u << 24, &context);
    spec_take_float(&o, "dropout", JSON_OPTIONAL, SPEC_FRACTION, &dropout);
    if (config && r->s->from)
        json_fail(&o, "config", -EINVAL,
                  "a folder has its own config.json; keep one of \"from\" and \"config\"");
    if (json_obj_end(&o) < 0)
        return o.status;
    r->s->tokens = true;
    if (r->s->from && !r->options->read_folder) {
        /* The folder was not opened, so the size of its vocabulary is unknown. Accept every token id. */
        r->s->vocab = UINT32_MAX;
        return 0;
    }
    status = config ? hf_config_read(config, "model.config", &t, r->err)
                    : r->options->read_folder(r->s->from, &t, &r->s->from_crc, r->err);
    if (status < 0)
        return status;
    if (dropout >= 0)
        t.embd_dropout = t.attn_dropout = t.resid_dropout = (float)dropout;
    return build_chain(r, &t, config ? "model.config" : r->s->from, context);
}
