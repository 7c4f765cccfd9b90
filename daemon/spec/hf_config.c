/* Implements hf_config.h: reads and writes config.json.
 *
 * Unlike the spec reader, this reader does not refuse unknown keys, because configs carry dozens of keys
 * about text generation, labels and versions. Instead it checks a list of keys that change the mathematics of
 * the model, and refuses the values that this program does not compute with.
 *
 * Every function does nothing once config_reader.r is negative, so the first mistake is the one that is
 * reported.
 */
#include "daemon/spec/hf_config.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/get.h"
#include "base/utf8.h"
#include "daemon/spec/spec.h"

/* The activation functions and their names in a config.json. An activation function may have several names.
 * hf_config_write uses the first one. */
static const struct {
    const char *name;
    enum act act;
} activations[] = {
    {"gelu_new", ACT_GELU},
    {"gelu_pytorch_tanh", ACT_GELU},
    {"gelu_fast", ACT_GELU},
    {"gelu", ACT_GELU_ERF},
    {"gelu_python", ACT_GELU_ERF},
    {"linear", ACT_NONE},
    {"relu", ACT_RELU},
    {"silu", ACT_SILU},
    {"swish", ACT_SILU},
    {"tanh", ACT_TANH},
};
enum { N_ACTIVATIONS = sizeof activations / sizeof activations[0] };

static const char *const architectures[ARCH_COUNT][2] = {
    [ARCH_GPT2] = {"GPT2LMHeadModel", "GPT2Model"},
    [ARCH_LLAMA] = {"LlamaForCausalLM", "LlamaModel"},
};

/* The state of hf_config_read while it reads one config.json. The struct lives on the stack of
 * hf_config_read. */
struct config_reader {
    const struct json *node; /* the config */
    const char *path;        /* its JSON path, for messages */
    struct err *err;
    int r; /* 0, or the first error */
};

/* ------------------------------------------------------------------------------------------ values */

static void key_path(const struct config_reader *c, const char *key, char *buf, size_t size)
{
    json_path_key(buf, size, c->path, key);
}

/* Writes `node` to `buf` as JSON text, for messages such as "found 3; ...". Text that does not fit into
 * `size` bytes is cut off. */
static void value_text(const struct json *node, char *buf, size_t size)
{
    /* The value comes from a user's file and may be huge. In the mode STRBUF_FAILS, a failed allocation does
     * not abort the process. */
    struct strbuf b = {.mode = STRBUF_FAILS};

    json_add(&b, node);
    utf8_copy(buf, size, b.at ? b.at : "a value");
    strbuf_finish(&b);
}

static void refuse(struct config_reader *c, const char *key, const struct json *node, int code,
                   const char *why)
{
    char path[256], value[96];

    key_path(c, key, path, sizeof path);
    value_text(node, value, sizeof value);
    c->r = err_set_at(c->err, code, path, "found %s; %s", value, why);
}

/* Returns the value of `key` in the config. Returns NULL if the key is absent, if its value is null, or if an
 * earlier value was wrong. */
static const struct json *find(const struct config_reader *c, const char *key)
{
    return c->r < 0 ? NULL : get_node(c->node, key);
}

/* Reads the whole number at `key` into *ret. The number must be from 1 to `most`. If the key is absent, *ret
 * stays unchanged. */
static void take_count(struct config_reader *c, const char *key, uint64_t most, uint32_t *ret)
{
    const struct json *node = find(c, key);
    char path[256], why[64];
    uint64_t v = 0;

    if (!node)
        return;
    key_path(c, key, path, sizeof path);
    c->r = json_u64(node, path, &v, c->err);
    if (c->r < 0)
        return;
    snprintf(why, sizeof why, "it must be from 1 to %" PRIu64, most);
    if (v < 1 || v > most)
        refuse(c, key, node, -EINVAL, why);
    else
        *ret = (uint32_t)v;
}

/* Reads a size that GPT-2 configs call `key` or `other`. If a config has both keys, their values must be
 * equal. */
static void take_count_or(struct config_reader *c, const char *key, const char *other, uint64_t most,
                          uint32_t *ret)
{
    uint32_t a = 0, b = 0;

    take_count(c, key, most, &a);
    take_count(c, other, most, &b);
    if (c->r < 0)
        return;
    if (a > 0 && b > 0 && a != b)
        refuse(c, other, json_get(c->node, other), -EINVAL,
               "its other name in the same config has a different value; remove one of them");
    else if (a > 0 || b > 0)
        *ret = a > 0 ? a : b;
}

/* Reads the number at `key` into *ret. The number must be at least `lo` and less than `hi`, even after it is
 * rounded to float32. If the key is absent, *ret stays unchanged. */
static void take_float(struct config_reader *c, const char *key, double lo, double hi, float *ret)
{
    const struct json *node = find(c, key);
    char path[256], why[120], rounded[48] = "";
    double v = 0;

    if (!node)
        return;
    key_path(c, key, path, sizeof path);
    c->r = json_double(node, path, &v, c->err);
    if (c->r < 0)
        return;
    if (v >= lo && v < hi && (float)v >= (float)hi)
        snprintf(rounded, sizeof rounded, "as a float32 it is %.8g; ", (double)(float)v);
    snprintf(why, sizeof why, "%sit must be at least %.8g and less than %.8g", rounded, lo, hi);
    if (!(v >= lo && v < hi) || (float)v >= (float)hi)
        refuse(c, key, node, -EINVAL, why);
    else
        *ret = (float)v;
}

static void take_bool(struct config_reader *c, const char *key, bool *ret)
{
    const struct json *node = find(c, key);
    char path[256];

    key_path(c, key, path, sizeof path);
    if (node)
        c->r = json_bool(node, path, ret, c->err);
}

static const char *take_text(struct config_reader *c, const char *key)
{
    const struct json *node = find(c, key);
    const char *text = NULL;
    char path[256];

    key_path(c, key, path, sizeof path);
    if (node)
        c->r = json_string(node, path, &text, c->err);
    return c->r < 0 ? NULL : text;
}

/* ------------------------------------------------------------------------------------------ refusals */

/* Refuses the config if `key` has a value other than `want`. A config without this key is accepted. The error
 * message ends with `why`. */
static void need_bool(struct config_reader *c, const char *key, bool want, const char *why)
{
    bool v = want;

    take_bool(c, key, &v);
    if (c->r == 0 && v != want)
        refuse(c, key, json_get(c->node, key), -EOPNOTSUPP, why);
}

static void need_size(struct config_reader *c, const char *key, uint32_t want, const char *why)
{
    uint32_t v = want;

    take_count(c, key, SPEC_MAX_DIM, &v);
    if (c->r == 0 && v != want)
        refuse(c, key, json_get(c->node, key), -EOPNOTSUPP, why);
}

/* Refuses the config unless `key` is absent, null or empty. The error message ends with `why`. */
static void need_nothing(struct config_reader *c, const char *key, const char *why)
{
    const struct json *node = find(c, key);
    enum json_type type = node ? json_type(node) : JSON_NULL;

    if (node && ((type != JSON_OBJECT && type != JSON_ARRAY) || json_array_first(node)))
        refuse(c, key, node, -EOPNOTSUPP, why);
}

static void refuse_common(struct config_reader *c)
{
    need_nothing(c, "quantization_config",
                 "quantized weights are not supported; save the model in float32 or bfloat16");
    need_nothing(c, "pruned_heads", "models with pruned heads are not supported");
    need_bool(c, "is_encoder_decoder", false, "models with an encoder are not supported");
}

/* ------------------------------------------------------------------------------------------ gpt2 */

static void take_activation_name(struct config_reader *c, enum act *ret)
{
    const char *name = take_text(c, "activation_function");

    if (!name)
        return;
    for (int i = 0; i < N_ACTIVATIONS; i++) {
        if (strcmp(name, activations[i].name) == 0) {
            *ret = activations[i].act;
            return;
        }
    }
    refuse(c, "activation_function", json_get(c->node, "activation_function"), -EOPNOTSUPP,
           "the supported activations are gelu_new, gelu_pytorch_tanh, gelu, relu, silu, tanh and linear");
}

static void read_gpt2(struct config_reader *c, struct transformer *t)
{
    *t = (struct transformer){.arch = ARCH_GPT2,
                              .layers = 12,
                              .width = 768,
                              .heads = 12,
                              .vocab = 50257,
                              .positions = 1024,
                              .act = ACT_GELU,
                              .tied = true,
                              .eps = 1e-5f,
                              .embd_dropout = 0.1f,
                              .attn_dropout = 0.1f,
                              .resid_dropout = 0.1f,
                              .init_std = 0.02f};
    take_count_or(c, "n_layer", "num_hidden_layers", SPEC_MAX_LAYERS, &t->layers);
    take_count_or(c, "n_embd", "hidden_size", SPEC_MAX_DIM, &t->width);
    take_count_or(c, "n_head", "num_attention_heads", SPEC_MAX_DIM, &t->heads);
    take_count_or(c, "n_positions", "max_position_embeddings", SPEC_MAX_DIM, &t->positions);
    take_count(c, "vocab_size", SPEC_MAX_DIM, &t->vocab);
    take_count(c, "n_inner", SPEC_MAX_DIM, &t->hidden);
    take_activation_name(c, &t->act);
    take_float(c, "layer_norm_epsilon", 0, 1, &t->eps);
    take_float(c, "embd_pdrop", 0, 1, &t->embd_dropout);
    take_float(c, "attn_pdrop", 0, 1, &t->attn_dropout);
    take_float(c, "resid_pdrop", 0, 1, &t->resid_dropout);
    take_bool(c, "tie_word_embeddings", &t->tied);
    need_bool(c, "scale_attn_weights", true, "attention scores without scaling are not supported");
    need_bool(c, "scale_attn_by_inverse_layer_idx", false,
              "attention scores scaled by the layer's number are not supported");
    need_bool(c, "add_cross_attention", false, "cross attention is not supported");
    t->kv_heads = t->heads;
    if (c->r == 0 && t->hidden == 0) {
        if (t->width > SPEC_MAX_DIM / 4)
            c->r = err_set_at(c->err, -EINVAL, c->path,
                              "a width of %" PRIu32 " makes the mlp too wide, because n_inner is not given",
                              t->width);
        t->hidden = 4 * t->width;
    }
}

/* ------------------------------------------------------------------------------------------ llama */

/* Returns true if the config does not scale the rotary angles. Such a config has the value "default" for the
 * key "rope_type", which older configs call "type". Or it has neither this key nor the key "factor". */
static bool rope_is_plain(const struct json *rope)
{
    const char *key = get_node(rope, "rope_type") ? "rope_type" : "type";

    if (!get_node(rope, key))
        return !get_node(rope, "factor");
    return strcmp(get_text(rope, key), "default") == 0;
}

/* Returns true if rotary positions are applied to all elements of each attention head, and not only to some
 * of them. */
static bool rope_is_whole(const struct json *rope)
{
    double share = 0;

    return !get_node(rope, "partial_rotary_factor") ||
           (get_number(rope, "partial_rotary_factor", &share) && share == 1);
}

static void check_rope(struct config_reader *c, const char *key)
{
    const struct json *rope = find(c, key);

    if (!rope)
        return;
    if (json_type(rope) != JSON_OBJECT)
        refuse(c, key, rope, -EINVAL, "expected an object or null");
    else if (!rope_is_plain(rope))
        refuse(c, key, rope, -EOPNOTSUPP, "only the rope_type \"default\" is supported");
    else if (!rope_is_whole(rope))
        refuse(c, key, rope, -EOPNOTSUPP, "rotary positions for only a part of each head are not supported");
}

/* Reads rope_theta, the base of the rotary angles. In older configs, this key is at the top level. In newer
 * configs, it is inside rope_parameters. */
static void take_rope(struct config_reader *c, float *ret)
{
    static const char *const inside[] = {"rope_parameters", "rope_scaling"};
    float top = 0;

    take_float(c, "rope_theta", 1, 1e30, &top);
    for (int i = 0; i < 2; i++) {
        char path[256];
        struct config_reader rope = {.err = c->err, .path = path};
        float theta = 0;
        check_rope(c, inside[i]);
        rope.node = find(c, inside[i]);
        if (!rope.node)
            continue;
        key_path(c, inside[i], path, sizeof path);
        take_float(&rope, "rope_theta", 1, 1e30, &theta);
        if (rope.r == 0 && theta > 0 && top > 0 && theta != top)
            refuse(&rope, "rope_theta", json_get(rope.node, "rope_theta"), -EINVAL,
                   "the config has a second rope_theta with another value; remove one of them");
        c->r = rope.r;
        top = theta > 0 ? theta : top;
    }
    if (top > 0)
        *ret = top;
}

static void read_llama(struct config_reader *c, struct transformer *t)
{
    const char *act;

    *t = (struct transformer){.arch = ARCH_LLAMA,
                              .layers = 32,
                              .width = 4096,
                              .heads = 32,
                              .hidden = 11008,
                              .vocab = 32000,
                              .positions = 2048,
                              .eps = 1e-6f,
                              .rope_theta = 10000.0f,
                              .init_std = 0.02f};
    take_count(c, "num_hidden_layers", SPEC_MAX_LAYERS, &t->layers);
    take_count(c, "hidden_size", SPEC_MAX_DIM, &t->width);
    take_count(c, "num_attention_heads", SPEC_MAX_DIM, &t->heads);
    t->kv_heads = t->heads;
    take_count(c, "num_key_value_heads", SPEC_MAX_DIM, &t->kv_heads);
    take_count(c, "intermediate_size", SPEC_MAX_DIM, &t->hidden);
    take_count(c, "vocab_size", SPEC_MAX_DIM, &t->vocab);
    take_count(c, "max_position_embeddings", SPEC_MAX_DIM, &t->positions);
    take_float(c, "rms_norm_eps", 0, 1, &t->eps);
    take_float(c, "attention_dropout", 0, 1, &t->attn_dropout);
    take_bool(c, "tie_word_embeddings", &t->tied);
    take_rope(c, &t->rope_theta);
    act = take_text(c, "hidden_act");
    if (act && strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        refuse(c, "hidden_act", json_get(c->node, "hidden_act"), -EOPNOTSUPP, "only silu is supported");
    need_bool(c, "attention_bias", false, "biases in attention are not supported");
    need_bool(c, "mlp_bias", false, "biases in the mlp are not supported");
    need_size(c, "pretraining_tp", 1, "only 1 is supported");
    if (c->r == 0 && t->width % t->heads == 0) /* otherwise transformer_check reports heads and width */
        need_size(c, "head_dim", t->width / t->heads, "only hidden_size / num_attention_heads is supported");
}

/* ------------------------------------------------------------------------------------------ which one */

static bool find_arch(const char *name, bool by_class, int *ret)
{
    for (int a = 0; a < ARCH_COUNT; a++) {
        if (by_class ? strcmp(name, architectures[a][0]) == 0 || strcmp(name, architectures[a][1]) == 0
                     : strcmp(name, transformer_arch_names[a]) == 0) {
            *ret = a;
            return true;
        }
    }
    return false;
}

/* Finds out whether the config describes a GPT-2 or a Llama model. The key model_type decides this. If the
 * key is absent, the first entry of `architectures` decides. */
static int take_arch(struct config_reader *c, int *ret)
{
    static const char why[] = "the supported models are GPT-2 (\"gpt2\") and Llama (\"llama\")";
    const struct json *list = get_array(c->node, "architectures"),
                      *first = list ? json_array_first(list) : NULL;
    const char *type = take_text(c, "model_type"), *class = NULL;

    if (c->r < 0)
        return c->r;
    if (type) {
        if (!find_arch(type, false, ret))
            refuse(c, "model_type", json_get(c->node, "model_type"), -EOPNOTSUPP, why);
        return c->r;
    }
    if (!first || json_type(first) != JSON_STRING) {
        char path[256];
        key_path(c, "model_type", path, sizeof path);
        c->r = err_set_at(c->err, -EINVAL, path, "missing; %s", why);
        return c->r;
    }
    c->r = json_string(first, "architectures", &class, c->err);
    if (c->r == 0 && !find_arch(class, true, ret))
        refuse(c, "architectures", list, -EOPNOTSUPP, why);
    return c->r;
}

int hf_config_read(const struct json *node, const char *path, struct transformer *ret, struct err *err)
{
    struct config_reader c = {.node = node, .path = path, .err = err};
    struct transformer t;
    int arch = 0;

    if (!node || json_type(node) != JSON_OBJECT)
        return err_set_at(err, -EINVAL, path, "expected an object, found %s",
                          node ? json_type_name(json_type(node)) : "nothing");
    if (take_arch(&c, &arch) < 0)
        return c.r;
    if (arch == ARCH_GPT2)
        read_gpt2(&c, &t);
    else
        read_llama(&c, &t);
    take_float(&c, "initializer_range", 1e-30, 1, &t.init_std);
    refuse_common(&c);
    if (c.r == 0)
        c.r = transformer_check(&t, path, err);
    if (c.r == 0)
        *ret = t;
    return c.r;
}

int hf_config_parse(const char *text, size_t bytes, const char *file, struct transformer *ret,
                    struct err *err)
{
    struct json *doc = NULL;
    struct err e = {0};
    int r = json_parse(text, bytes, file, false, &doc, err);

    if (r < 0)
        return r;
    r = hf_config_read(doc, "", ret, &e);
    json_free(doc);
    if (r < 0)
        err_set_at(err, r, file, "%s%s%s", e.path, e.path[0] ? ": " : "", e.msg);
    return r;
}

/* ------------------------------------------------------------------------------------------ writing */

/* Appends a float with as few digits as are needed to read the same float back. Whole numbers get ".0",
 * because the transformers package treats 1 and 1.0 differently. */
static void add_float(struct strbuf *b, const char *key, float v)
{
    char text[40];
    int digits = 1;

    do
        snprintf(text, sizeof text, "%.*g", digits, (double)v);
    while (strtof(text, NULL) != v && ++digits <= 9);
    /* "%.1f" prints whole floats below 1e9 exactly, for example 10000 as "10000.0". */
    if (v == floorf(v) && fabsf(v) < 1e9f)
        snprintf(text, sizeof text, "%.1f", (double)v);
    strbuf_addf(b, ",\n  \"%s\": %s", key, text);
}

static void add_size(struct strbuf *b, const char *key, uint32_t v)
{
    strbuf_addf(b, ",\n  \"%s\": %" PRIu32, key, v);
}

static void add_text(struct strbuf *b, const char *key, const char *v)
{
    strbuf_addf(b, ",\n  \"%s\": %s", key, v);
}

static const char *activation_name(enum act act)
{
    for (int i = 0; i < N_ACTIVATIONS; i++)
        if (activations[i].act == act)
            return activations[i].name;
    return "";
}

static void write_gpt2(const struct transformer *t, struct strbuf *b)
{
    add_size(b, "n_layer", t->layers);
    add_size(b, "n_embd", t->width);
    add_size(b, "n_head", t->heads);
    add_size(b, "n_inner", t->hidden);
    add_size(b, "n_positions", t->positions);
    strbuf_addf(b, ",\n  \"activation_function\": \"%s\"", activation_name(t->act));
    add_float(b, "layer_norm_epsilon", t->eps);
    add_float(b, "embd_pdrop", t->embd_dropout);
    add_float(b, "attn_pdrop", t->attn_dropout);
    add_float(b, "resid_pdrop", t->resid_dropout);
    add_text(b, "scale_attn_weights", "true");
    /* Token 50256 marks the end of a text in GPT-2's own tokenizer, which has 50257 tokens. A model with a
     * smaller vocabulary does not have this token. */
    add_text(b, "bos_token_id", t->vocab > 50256 ? "50256" : "null");
    add_text(b, "eos_token_id", t->vocab > 50256 ? "50256" : "null");
}

static void write_llama(const struct transformer *t, struct strbuf *b)
{
    add_size(b, "num_hidden_layers", t->layers);
    add_size(b, "hidden_size", t->width);
    add_size(b, "num_attention_heads", t->heads);
    add_size(b, "num_key_value_heads", t->kv_heads);
    add_size(b, "head_dim", t->width / t->heads);
    add_size(b, "intermediate_size", t->hidden);
    add_size(b, "max_position_embeddings", t->positions);
    add_text(b, "hidden_act", "\"silu\"");
    add_float(b, "rms_norm_eps", t->eps);
    add_float(b, "rope_theta", t->rope_theta);
    add_float(b, "attention_dropout", t->attn_dropout);
    add_text(b, "attention_bias", "false");
    add_text(b, "mlp_bias", "false");
    /* Write null for these ids. If they were absent, the transformers package would use its defaults, which
     * are right only for Llama's own tokenizer. */
    add_text(b, "bos_token_id", "null");
    add_text(b, "eos_token_id", "null");
}

void hf_config_write(const struct transformer *t, enum dtype dtype, struct strbuf *b)
{
    strbuf_addf(b, "{\n  \"architectures\": [\"%s\"]", architectures[t->arch][0]);
    strbuf_addf(b, ",\n  \"model_type\": \"%s\"", transformer_arch_names[t->arch]);
    add_size(b, "vocab_size", t->vocab);
    if (t->arch == ARCH_GPT2)
        write_gpt2(t, b);
    else
        write_llama(t, b);
    add_text(b, "tie_word_embeddings", t->tied ? "true" : "false");
    add_float(b, "initializer_range", t->init_std);
    add_text(b, "torch_dtype",
             dtype == DTYPE_BF16  ? "\"bfloat16\""
             : dtype == DTYPE_F16 ? "\"float16\""
                                  : "\"float32\"");
    strbuf_add(b, "\n}\n");
}
