/* Implements hf_names.h: the tables of names, and the links that are made from them for a model.
 *
 * A table has a row for every tensor, with its shape in symbolic dimensions, in the order of the chain.
 * Consecutive rows with the same parameter are stacked in it: q, k and v, or gate and up. To support another
 * tensor, add a row.
 */
#include "daemon/worker/model/hf_names.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A dimension of a tensor, named after a size of the model. For example, WIDTH stands for transformer.width.
 * NONE means that there is no such dimension. */
enum dim { NONE, WIDTH, KV, QKV, HIDDEN, VOCAB, POSITIONS };

/* One row of a name table: a Hugging Face tensor, and the parameter of our model that corresponds to it. Both
 * names omit the part that contains the layer's number, such as "h.3.". */
struct name_row {
    const char *tensor, *param;
    /* The two dimensions of the tensor. b is NONE if the tensor has only one dimension. */
    enum dim a, b;
    bool transposed; /* tensor is the transpose of the parameter */
};

static const struct name_row gpt2_before[] = {
    {"wte.weight", "weight", VOCAB, WIDTH},
    {"wpe.weight", "weight", POSITIONS, WIDTH},
};
static const struct name_row gpt2_block[] = {
    {"ln_1.weight", "ln_1.weight", WIDTH},
    {"ln_1.bias", "ln_1.bias", WIDTH},
    {"attn.c_attn.weight", "attn.qkv.weight", WIDTH, QKV, true},
    {"attn.c_attn.bias", "attn.qkv.bias", QKV},
    {"attn.c_proj.weight", "attn.proj.weight", WIDTH, WIDTH, true},
    {"attn.c_proj.bias", "attn.proj.bias", WIDTH},
    {"ln_2.weight", "ln_2.weight", WIDTH},
    {"ln_2.bias", "ln_2.bias", WIDTH},
    {"mlp.c_fc.weight", "mlp.fc.weight", WIDTH, HIDDEN, true},
    {"mlp.c_fc.bias", "mlp.fc.bias", HIDDEN},
    {"mlp.c_proj.weight", "mlp.proj.weight", HIDDEN, WIDTH, true},
    {"mlp.c_proj.bias", "mlp.proj.bias", WIDTH},
};
static const struct name_row gpt2_after[] = {
    {"ln_f.weight", "weight", WIDTH},
    {"ln_f.bias", "bias", WIDTH},
};

static const struct name_row llama_before[] = {
    {"embed_tokens.weight", "weight", VOCAB, WIDTH},
};
static const struct name_row llama_block[] = {
    {"input_layernorm.weight", "ln_1.weight", WIDTH},
    {"self_attn.q_proj.weight", "attn.qkv.weight", WIDTH, WIDTH},
    {"self_attn.k_proj.weight", "attn.qkv.weight", KV, WIDTH},
    {"self_attn.v_proj.weight", "attn.qkv.weight", KV, WIDTH},
    {"self_attn.o_proj.weight", "attn.proj.weight", WIDTH, WIDTH},
    {"post_attention_layernorm.weight", "ln_2.weight", WIDTH},
    {"mlp.gate_proj.weight", "mlp.fc.weight", HIDDEN, WIDTH},
    {"mlp.up_proj.weight", "mlp.fc.weight", HIDDEN, WIDTH},
    {"mlp.down_proj.weight", "mlp.proj.weight", WIDTH, HIDDEN},
};
static const struct name_row llama_after[] = {
    {"norm.weight", "weight", WIDTH},
};

static const struct name_row head = {HF_HEAD, "weight", VOCAB, WIDTH};

#define ROWS(table) (table), sizeof(table) / sizeof(table)[0]

/* The names of an architecture. */
static const struct scheme {
    /* The name of a block's tensor begins with `prefix`, `block_name` and the number of the block, such as
     * "transformer.h.3.". */
    const char *prefix, *block_name;
    const struct name_row *before; /* layers before the blocks, one row each */
    size_t n_before;
    const struct name_row *block; /* the tensors of a block */
    size_t n_block;
    const struct name_row *after; /* the one layer after the blocks */
    size_t n_after;
    /* Names of constants, such as attention masks, that old folders may have. A name in this list omits
     * `prefix` and the name and number of the block. The list ends with NULL. */
    const char *constants[3];
} schemes[ARCH_COUNT] = {
    [ARCH_GPT2] = {"transformer.",
                   "h",
                   ROWS(gpt2_before),
                   ROWS(gpt2_block),
                   ROWS(gpt2_after),
                   {"attn.bias", "attn.masked_bias"}},
    [ARCH_LLAMA] = {"model.",
                    "layers",
                    ROWS(llama_before),
                    ROWS(llama_block),
                    ROWS(llama_after),
                    {"self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"}},
};

/* ------------------------------------------------------------------------------------------ links */

static uint64_t size_of(const struct transformer *t, enum dim d)
{
    uint64_t kv = (uint64_t)(t->width / t->heads) * t->kv_heads;

    switch (d) {
    case WIDTH:
        return t->width;
    case KV:
        return kv;
    case QKV:
        return t->width + 2 * kv;
    case HIDDEN:
        return t->hidden;
    case VOCAB:
        return t->vocab;
    case POSITIONS:
        return t->positions;
    case NONE:
        break;
    }
    return 1;
}

/* Adds the link that a row of a name table describes. `layer` is the index of the layer in our model. The
 * tensor's name is prefix + inner + row->tensor. `inner` names the block, such as "h.3.", or is "" outside of
 * the blocks. */
static void add_link(struct hf_names *names, const struct transformer *t, uint32_t layer, const char *prefix,
                     const char *inner, const struct name_row *row)
{
    struct hf_link *l = &names->links[names->n], *last = names->n > 0 ? l - 1 : NULL;
    char text[128];

    snprintf(text, sizeof text, "%s%s%s", prefix, inner, row->tensor);
    l->name = arena_strdup(names->arena, text);
    l->plain = l->name + strlen(prefix);
    snprintf(text, sizeof text, "layers.%" PRIu32 ".%s", layer, row->param);
    l->rank = row->b == NONE ? 1 : 2;
    l->shape[0] = size_of(t, row->a);
    l->shape[1] = size_of(t, row->b);
    l->transposed = row->transposed;
    if (last && strcmp(last->param, text) == 0) {
        l->param = last->param;
        l->row = last->row + last->shape[0];
    } else {
        l->param = arena_strdup(names->arena, text);
        names->n_params++;
    }
    names->n++;
}

/* Sets `rows` of every link to the number of rows of the whole parameter. A parameter may have several links,
 * each for some of its rows. All links must exist before this call. */
static void add_up_rows(struct hf_names *names)
{
    for (size_t i = names->n; i-- > 0;) {
        struct hf_link *l = &names->links[i], *next = i + 1 < names->n ? l + 1 : NULL;
        l->rows = next && next->param == l->param ? next->rows : l->row + l->shape[l->transposed];
    }
}

void hf_names_init(struct hf_names *names, const struct transformer *t)
{
    const struct scheme *s = &schemes[t->arch];
    uint32_t layer = 0;
    char inner[32];

    *names = (struct hf_names){.arena = arena_create()};
    names->links = arena_alloc_array(names->arena, s->n_before + t->layers * s->n_block + s->n_after + 1,
                                     sizeof *names->links);
    for (size_t i = 0; i < s->n_before; i++)
        add_link(names, t, layer++, s->prefix, "", &s->before[i]);
    for (uint32_t b = 0; b < t->layers; b++, layer++) {
        snprintf(inner, sizeof inner, "%s.%" PRIu32 ".", s->block_name, b);
        for (size_t i = 0; i < s->n_block; i++)
            add_link(names, t, layer, s->prefix, inner, &s->block[i]);
    }
    for (size_t i = 0; i < s->n_after; i++)
        add_link(names, t, layer, s->prefix, "", &s->after[i]);
    if (!t->tied)
        add_link(names, t, layer + 1, "", "", &head);
    add_up_rows(names);
}

void hf_names_finish(struct hf_names *names)
{
    arena_destroy(names->arena);
    *names = (struct hf_names){0};
}

uint64_t hf_link_columns(const struct hf_link *l)
{
    return l->rank == 1 ? 1 : l->shape[!l->transposed];
}

/* ------------------------------------------------------------------------------------------ constants */

/* Skips a block name such as "h.3." at the start of a tensor's name and returns the rest. Returns the whole
 * name if it does not start with a block name. */
static const char *skip_block(const struct transformer *t, const char *block, const char *name)
{
    size_t n = strlen(block);
    char *end;

    if (strncmp(name, block, n) != 0 || name[n] != '.' || name[n + 1] < '0' || name[n + 1] > '9')
        return name;
    return strtoull(name + n + 1, &end, 10) < t->layers && *end == '.' ? end + 1 : name;
}

bool hf_is_constant(const struct transformer *t, const char *name)
{
    const struct scheme *s = &schemes[t->arch];

    if (strncmp(name, s->prefix, strlen(s->prefix)) == 0)
        name += strlen(s->prefix);
    name = skip_block(t, s->block_name, name);
    for (int i = 0; s->constants[i]; i++)
        if (strcmp(name, s->constants[i]) == 0)
            return true;
    return false;
}

/* ------------------------------------------------------------------------------------------ binding */

static int compare_param_names(const void *a, const void *b)
{
    return strcmp((*(const struct st_tensor *const *)a)->name, (*(const struct st_tensor *const *)b)->name);
}

static int check_shape(const struct hf_link *l, const struct st_tensor *t, const char *from, struct err *err)
{
    uint64_t want[2] = {l->rows, hf_link_columns(l)};
    char needed[64], found[192];

    if (t->rank == l->rank && memcmp(t->shape, want, l->rank * sizeof want[0]) == 0)
        return 0;
    st_shape_text(needed, sizeof needed, l->rank, want);
    st_shape_text(found, sizeof found, t->rank, t->shape);
    return err_set_at(err, -EINVAL, from, "tensor \"%s\" is %s, but in this model it is %s", t->name, found,
                      needed);
}

static int bind_all(const struct hf_names *names, const struct st_tensor **sorted, size_t n, const char *from,
                    const struct st_tensor **to, struct err *err)
{
    for (size_t i = 0; i < names->n; i++) {
        const struct hf_link *l = &names->links[i];
        const struct st_tensor key = {.name = l->param}, *want = &key, **found;
        found = n > 0 ? bsearch(&want, sorted, n, sizeof *sorted, compare_param_names) : NULL;
        if (!found)
            return err_set_at(err, -EINVAL, from, "the tensor \"%s\" of this model is missing", l->param);
        int r = check_shape(l, *found, from, err);
        if (r < 0)
            return r;
        to[i] = *found;
    }
    if (n != names->n_params)
        return err_set_at(err, -EINVAL, from, "there are %zu tensors, but this model has %zu", n,
                          names->n_params);
    return 0;
}

int hf_names_bind(const struct hf_names *names, const struct st_tensor *params, size_t n, const char *from,
                  const struct st_tensor ***ret, struct err *err)
{
    const struct st_tensor **sorted = calloc(n + 1, sizeof *sorted), **to = calloc(names->n, sizeof *to);
    int r = -ENOMEM;

    if (!sorted || !to) {
        err_set_at(err, r, from, "no memory for lists of %zu tensors", n);
    } else {
        for (size_t i = 0; i < n; i++)
            sorted[i] = &params[i];
        qsort(sorted, n, sizeof *sorted, compare_param_names);
        r = bind_all(names, sorted, n, from, to, err);
    }
    free(sorted);
    if (r < 0)
        free(to);
    else
        *ret = to;
    return r;
}
