/* Reads the section `model` and turns the types "mlp" and "chain" into a chain of layers (kernels/layer.h).
 * The other types are in spec_transformer.c.
 *
 * A linear map together with its activation and dropout becomes a single layer (layer_dense), because one
 * layer saves less for the backward pass than three.
 *
 * Sizes are checked as layers are added, so that later code can multiply them without checks. The number of
 * layers is limited. That limit also bounds the cost of nested repeats: an empty block is refused, so every
 * repetition adds at least one layer.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/checked.h"
#include "base/vec.h"
#include "daemon/spec/spec_private.h"
#include "daemon/spec/transformer.h"

/* The largest number of bytes that all weights of a model may take together. Weights, their gradients and two
 * optimizer moments then stay below SPEC_MAX_BYTES. */
#define MAX_WEIGHT_BYTES (SPEC_MAX_BYTES / 8)

/* A chain of layers that is being read. Each residual or block has its own chain_builder for its inner
 * layers. */
struct chain_builder {
    const struct spec_reader *r;
    VEC(struct layer) layers;
    /* The shape of the last layer's output for one sample. The shape is {1, {width}} for a vector of `width`
     * numbers, and {2, {tokens, width}} for a sequence of tokens. A row of token ids is a sequence with one
     * id per token. */
    struct shape row;
    /* The number of different token ids, if a row consists of token ids. 0 after a layer that turns token ids
     * into numbers, such as an embedding. */
    uint32_t vocab;
    uint64_t weight_bytes; /* weights of all layers so far */
    bool inside;           /* the layers are inside another layer */
    bool trained;          /* at least one layer has weights */
    bool ended;            /* the last layer is a loss */
};

/* Returns the number of tokens in one output row of the last layer. The number is 1 for a model without
 * sequences. */
static uint32_t row_tokens(const struct chain_builder *b)
{
    return b->row.rank == 2 ? b->row.dim[0] : 1;
}

/* Returns the number of elements per token in an output row of the last layer. */
static uint32_t row_width(const struct chain_builder *b)
{
    return b->row.dim[b->row.rank - 1];
}

/* Returns the shape of a row that has `width` elements per token, and as many tokens as the output of the
 * last layer. */
static struct shape row_of_width(const struct chain_builder *b, uint32_t width)
{
    struct shape s = b->row;

    s.dim[s.rank - 1] = width;
    return s;
}

static int fail_not_tokens(const struct chain_builder *b, const char *path, const char *op)
{
    if (b->vocab > 0)
        return err_set_at(b->r->err, -EINVAL, path,
                          "%s works on vectors; put {\"op\":\"embedding\",\"out\":64} first", op);
    return err_set_at(
        b->r->err, -EINVAL, path,
        "%s works on sequences; give \"input\": {\"tokens\": 64, \"vocab\": 256} and begin with "
        "{\"op\":\"embedding\",\"out\":64}",
        op);
}

static int check_place(const struct chain_builder *b, const char *path, const struct layer *l)
{
    const char *name = layer_type(l)->name;
    const bool takes_ids = l->type == &layer_embedding;

    if (b->ended)
        return err_set_at(b->r->err, -EINVAL, path,
                          "comes after the loss, which must be the last layer; remove it or move it");
    if (takes_ids && b->vocab == 0)
        return err_set_at(b->r->err, -EINVAL, path,
                          "an %s must be the first layer of a model with "
                          "\"input\": {\"tokens\": 64, \"vocab\": 256}",
                          name);
    if (!takes_ids && b->vocab > 0)
        return fail_not_tokens(b, path, name);
    if (b->row.rank != 2 &&
        (l->type == &layer_attention || l->type == &layer_positions || l->type == &layer_lm_head))
        return fail_not_tokens(b, path, name);
    return 0;
}

/* Returns -EINVAL with a message if a row of the shape `out` would have too many elements. */
static int check_row(const struct chain_builder *b, const char *path, const struct shape *out)
{
    uint32_t n;

    if (shape_elements(out, &n) && n <= SPEC_MAX_DIM)
        return 0;
    return err_set_at(b->r->err, -EINVAL, path,
                      "%" PRIu32 " tokens of %" PRIu32
                      " elements are more than %u elements; make one smaller",
                      row_tokens(b), out->dim[out->rank - 1], SPEC_MAX_DIM);
}

/* Adds the layer `l` to the chain and sets the position and the input of the layer. `path` is the layer's
 * place in the spec, for messages. If l.out is empty, the output gets the same shape as the input. The caller
 * must set l.out if the output has another shape. A loss has no output. */
static int add_layer(struct chain_builder *b, const char *path, struct layer l)
{
    struct layer_sizes size;
    int r = check_place(b, path, &l);

    if (r < 0)
        return r;
    if (b->layers.n >= SPEC_MAX_LAYERS)
        return err_set_at(b->r->err, -EINVAL, path, "the model has more than %u layers; use fewer",
                          SPEC_MAX_LAYERS);
    l.id = l.key = (uint32_t)b->layers.n;
    l.in = b->row;
    if (l.out.rank == 0 && !layer_type(&l)->is_loss)
        l.out = l.in;
    r = check_row(b, path, &l.out);
    if (r < 0)
        return r;
    layer_type(&l)->sizes(&l, 1, &size);
    if (!checked_add(b->weight_bytes, l.tied ? 0 : size.w, &b->weight_bytes) ||
        b->weight_bytes > MAX_WEIGHT_BYTES)
        return err_set_at(b->r->err, -EINVAL, path,
                          "with this layer of %" PRIu32 " x %" PRIu32
                          " the weights take more than 2^50 bytes; make it smaller",
                          layer_width(&l), layer_width_out(&l));
    b->trained |= size.w > 0;
    b->ended = layer_type(&l)->is_loss;
    if (!b->ended)
        b->row = l.out;
    b->vocab = 0;
    vec_push(&b->layers, l);
    return 0;
}

/* ------------------------------------------------------------------------- keys that mlp and chain share */

static int read_token_input(struct chain_builder *b, const struct json *node)
{
    struct spec *s = b->r->s;
    uint32_t tokens = 1;
    struct json_obj o;

    json_obj_begin(&o, node, "model.input", b->r->err);
    spec_take_u32(&o, "tokens", JSON_REQUIRED, 2, SPEC_MAX_DIM, &tokens);
    spec_take_u32(&o, "vocab", JSON_REQUIRED, 2, 1u << 24, &b->vocab);
    b->row = shape_sequence(tokens, 1);
    s->tokens = true;
    s->seq = s->features = tokens;
    s->vocab = b->vocab;
    return json_obj_end(&o);
}

/* Reads the shape of a sample. A sample with several dimensions, such as [28,28], becomes a vector, because
 * all existing layers treat the elements of a sample as one list. */
static int read_input(struct chain_builder *b, const struct json *node)
{
    static const char path[] = "model.input";
    uint64_t product = 1, dim;
    char at[64];
    size_t i = 0;
    int r;

    if (json_type(node) == JSON_OBJECT)
        return read_token_input(b, node);
    if (json_type(node) != JSON_ARRAY) {
        r = json_u64(node, path, &product, b->r->err);
        if (r < 0)
            return r;
    } else {
        if (json_array_size(node) == 0)
            return err_set_at(b->r->err, -EINVAL, path, "must have at least one dimension, e.g. [28,28]");
        for (const struct json *d = json_array_first(node); d; d = json_array_next(d), i++) {
            json_path_index(at, sizeof at, path, i);
            r = json_u64(d, at, &dim, b->r->err);
            if (r < 0)
                return r;
            if (!checked_mul(product, dim, &product) || product > SPEC_MAX_DIM)
                return err_set_at(b->r->err, -EINVAL, at, "the input has more than %u elements",
                                  SPEC_MAX_DIM);
        }
    }
    if (product < 1 || product > SPEC_MAX_DIM)
        return err_set_at(b->r->err, -EINVAL, path, "must have from 1 to %u elements, found %" PRIu64,
                          SPEC_MAX_DIM, product);
    b->r->s->features = (uint32_t)product;
    b->row = shape_vector((uint32_t)product);
    return 0;
}

static const char *const loss_names[] = {"mse", "softmax_xent", NULL};

/* Adds a loss as the last layer, unless the chain already ends with a loss. The output width of the layer
 * before the loss is the number of classes. `width_path` is the place in the spec that sets this width, for
 * messages. */
static int add_loss(struct chain_builder *b, int loss, const char *width_path)
{
    struct spec *s = b->r->s;
    const struct layer_type *type = loss == 0 ? &layer_mse : &layer_softmax_xent;

    if (b->ended)
        return 0;
    if (s->tokens && type == &layer_mse)
        return err_set_at(b->r->err, -EINVAL, "model.loss",
                          "mse does not work for tokens; write \"softmax_xent\", or end the layers with "
                          "{\"op\":\"lm_head\"}");
    if (s->tokens && row_width(b) < s->vocab)
        return err_set_at(b->r->err, -EINVAL, width_path,
                          "the last layer gives %" PRIu32
                          " classes per token, but the vocabulary has %" PRIu32
                          "; end the layers with {\"op\":\"lm_head\"} or a linear of that width",
                          row_width(b), s->vocab);
    if (type == &layer_softmax_xent && row_width(b) < 2)
        return err_set_at(
            b->r->err, -EINVAL, width_path,
            "softmax_xent needs at least 2 classes; write 2, or \"loss\": \"mse\" for one output");
    s->classes = row_width(b);
    s->mse = type == &layer_mse;
    return add_layer(b, "model.loss", (struct layer){.type = type});
}

static const char *const no_names[] = {NULL};

static bool take_layer_activation(struct json_obj *o, enum act *ret)
{
    const char *names[ACT_COUNT + 1] = {NULL};
    int act;

    memcpy(names, act_names, sizeof act_names);
    if (!spec_take_choice(o, "activation", JSON_OPTIONAL, names, no_names, &act))
        return false;
    *ret = (enum act)act;
    return true;
}

/* ------------------------------------------------------------------------------------------ mlp */

static int add_hidden(struct chain_builder *b, const struct json *node, const struct layer *like)
{
    struct layer l = *like;
    uint64_t width;
    char at[64];
    size_t i = 0;
    int r = 0;

    if (json_type(node) != JSON_ARRAY)
        return err_set_at(b->r->err, -EINVAL, "model.hidden", "must be an array of widths, e.g. [1024,1024]");
    for (const struct json *h = json_array_first(node); h && r == 0; h = json_array_next(h), i++) {
        json_path_index(at, sizeof at, "model.hidden", i);
        r = json_u64(h, at, &width, b->r->err);
        if (r < 0)
            return r;
        if (width < 1 || width > SPEC_MAX_DIM)
            return err_set_at(b->r->err, -EINVAL, at, "a width must be from 1 to %u, found %" PRIu64,
                              SPEC_MAX_DIM, width);
        l.out = row_of_width(b, (uint32_t)width);
        r = add_layer(b, at, l);
    }
    return r;
}

static int read_mlp(struct chain_builder *b, const struct json *node)
{
    struct layer hidden = {.type = &layer_dense, .dense = {.act = ACT_RELU, .bias = true}}, last;
    const struct json *input = NULL, *widths = NULL;
    const char *type;
    double dropout = 0;
    uint32_t classes = 0;
    int loss = 1, r;
    struct json_obj o;

    json_obj_begin(&o, node, "model", b->r->err);
    json_take_string(&o, "type", JSON_REQUIRED, &type);
    json_take(&o, "input", JSON_REQUIRED, &input);
    json_take(&o, "hidden", JSON_REQUIRED, &widths);
    spec_take_u32(&o, "classes", JSON_REQUIRED, 1, SPEC_MAX_DIM, &classes);
    take_layer_activation(&o, &hidden.dense.act);
    spec_take_float(&o, "dropout", JSON_OPTIONAL, SPEC_FRACTION, &dropout);
    json_take_bool(&o, "bias", JSON_OPTIONAL, &hidden.dense.bias);
    json_take_enum(&o, "loss", JSON_OPTIONAL, loss_names, &loss);
    r = json_obj_end(&o);
    if (r < 0)
        return r;
    hidden.dense.dropout = (float)dropout;
    hidden.dense.init_std = b->r->s->init.std;
    last = hidden;
    last.dense.act = ACT_NONE;
    last.dense.dropout = 0;
    r = read_input(b, input);
    if (r == 0)
        r = add_hidden(b, widths, &hidden);
    if (r < 0)
        return r;
    last.out = row_of_width(b, classes);
    r = add_layer(b, "model.classes", last);
    return r < 0 ? r : add_loss(b, loss, "model.classes");
}

/* ------------------------------------------------------------------------------------------ chain */

enum chain_op {
    OP_ATTENTION,
    OP_DROPOUT,
    OP_EMBEDDING,
    OP_GELU,
    OP_GELU_ERF,
    OP_LAYERNORM,
    OP_LINEAR,
    OP_LM_HEAD,
    OP_MLP,
    OP_POSITIONS,
    OP_RELU,
    OP_RMSNORM,
    OP_SILU,
    OP_SWIGLU,
    OP_TANH,
};
static const char *const chain_ops[] = {
    "attention", "dropout",   "embedding", "gelu",    "gelu_erf", "layernorm", "linear", "lm_head",
    "mlp",       "positions", "relu",      "rmsnorm", "silu",     "swiglu",    "tanh",   NULL};
static const char *const later_ops[] = {"add", "avgpool", "batchnorm", "conv", "flatten", "maxpool", NULL};

static void take_dropout(struct json_obj *o, const char *key, enum json_need need, float *ret)
{
    double p = 0;

    if (spec_take_float(o, key, need, SPEC_FRACTION, &p))
        *ret = (float)p;
}

static void read_linear(const struct chain_builder *b, struct json_obj *o, struct layer *l)
{
    uint32_t out = 0;

    l->type = &layer_dense;
    l->dense.bias = true;
    spec_take_init(b->r, o, &l->dense.init_std, NULL);
    spec_take_u32(o, "out", JSON_REQUIRED, 1, SPEC_MAX_DIM, &out);
    l->out = row_of_width(b, out);
    json_take_bool(o, "bias", JSON_OPTIONAL, &l->dense.bias);
    take_layer_activation(o, &l->dense.act);
    take_dropout(o, "dropout", JSON_OPTIONAL, &l->dense.dropout);
}

static void read_norm(struct json_obj *o, struct layer *l, bool rms)
{
    double eps = 1e-5;

    l->type = &layer_norm;
    l->norm.rms = rms;
    l->norm.bias = !rms;
    if (!rms)
        json_take_bool(o, "bias", JSON_OPTIONAL, &l->norm.bias);
    spec_take_float(o, "eps", JSON_OPTIONAL, SPEC_POSITIVE, &eps);
    l->norm.eps = (float)eps;
}

static void read_attention(const struct chain_builder *b, struct json_obj *o, struct layer *l)
{
    struct attention_settings *a = &l->attention;
    uint32_t width = row_width(b);
    double theta = 0;

    l->type = &layer_attention;
    a->bias = true;
    spec_take_init(b->r, o, &a->init_std, &a->proj_std);
    spec_take_u32(o, "heads", JSON_REQUIRED, 1, 1u << 16, &a->heads);
    a->kv_heads = a->heads;
    spec_take_u32(o, "kv_heads", JSON_OPTIONAL, 1, 1u << 16, &a->kv_heads);
    spec_take_float(o, "rope_theta", JSON_OPTIONAL, SPEC_POSITIVE, &theta);
    a->rope_theta = (float)theta;
    json_take_bool(o, "bias", JSON_OPTIONAL, &a->bias);
    take_dropout(o, "dropout", JSON_OPTIONAL, &a->dropout);
    take_dropout(o, "score_dropout", JSON_OPTIONAL, &a->score_dropout);
    if (a->heads > 0 && width % a->heads != 0)
        json_fail(o, "heads", -EINVAL,
                  "%" PRIu32 " heads do not divide a width of %" PRIu32 "; change one of them", a->heads,
                  width);
    else if (a->kv_heads > 0 && a->heads % a->kv_heads != 0)
        json_fail(o, "kv_heads", -EINVAL, "%" PRIu32 " do not divide %" PRIu32 " heads; write a divisor",
                  a->kv_heads, a->heads);
    else if (theta > 0 && a->heads > 0 && width / a->heads % 2 != 0)
        json_fail(o, "rope_theta", -EINVAL,
                  "a head has %" PRIu32 " elements, but rotary positions turn pairs; make width / heads even",
                  width / a->heads);
}

static void read_mlp_op(const struct chain_builder *b, struct json_obj *o, struct layer *l, bool gated)
{
    struct mlp_settings *m = &l->mlp;

    l->type = &layer_mlp;
    spec_take_init(b->r, o, &m->init_std, &m->proj_std);
    m->gated = gated;
    m->bias = !gated;
    m->act = gated ? ACT_NONE : ACT_GELU;
    spec_take_u32(o, "hidden", JSON_REQUIRED, 1, 1u << 24, &m->hidden);
    json_take_bool(o, "bias", JSON_OPTIONAL, &m->bias);
    if (!gated)
        take_layer_activation(o, &m->act);
    take_dropout(o, "dropout", JSON_OPTIONAL, &m->dropout);
}

static void read_positions(const struct chain_builder *b, struct json_obj *o, struct layer *l)
{
    l->type = &layer_positions;
    l->positions.count = row_tokens(b);
    spec_take_embedding_init(b->r, o, &l->positions.init_std);
    spec_take_u32(o, "count", JSON_OPTIONAL, row_tokens(b), 1u << 24, &l->positions.count);
    take_dropout(o, "dropout", JSON_OPTIONAL, &l->positions.dropout);
}

/* Reads an lm_head layer. If the lm_head is tied, it uses the weights of the embedding. The embedding must
 * then be the first layer of the chain. */
static void read_lm_head(const struct chain_builder *b, struct json_obj *o, struct layer *l)
{
    const struct layer *first = b->layers.n > 0 ? &b->layers.at[0] : NULL;
    const struct json *init;

    l->type = &layer_lm_head;
    l->lm_head.vocab = b->r->s->vocab;
    b->r->s->classes = l->lm_head.vocab;
    json_take_bool(o, "tied", JSON_OPTIONAL, &l->tied);
    /* A tied lm_head has no weights of its own, so it has no initial weights either. */
    if (!l->tied)
        spec_take_init(b->r, o, &l->lm_head.init_std, NULL);
    else if (json_take(o, "init", JSON_OPTIONAL, &init))
        json_fail(o, "init", -EINVAL,
                  "a tied lm_head uses the weights of the embedding; move \"init\" to the embedding");
    if (b->inside)
        json_fail(o, "op", -EINVAL, "the loss must be the last layer of the model, not inside another layer");
    else if (l->tied && (!first || first->type != &layer_embedding || !shape_equal(&first->out, &b->row)))
        json_fail(
            o, "tied", -EINVAL,
            "needs an embedding as the first layer, as wide as the last; write false, or change a width");
}

static void read_embedding(const struct chain_builder *b, struct json_obj *o, struct layer *l)
{
    uint32_t out = 0;

    l->type = &layer_embedding;
    l->embedding.vocab = b->vocab;
    spec_take_embedding_init(b->r, o, &l->embedding.init_std);
    spec_take_u32(o, "out", JSON_REQUIRED, 1, 1u << 24, &out);
    l->out = row_of_width(b, out);
    if (b->inside)
        json_fail(o, "op", -EINVAL,
                  "an embedding must be the first layer of the model, not inside another layer");
}

static void read_op_keys(const struct chain_builder *b, enum chain_op op, struct json_obj *o, struct layer *l)
{
    switch (op) {
    case OP_ATTENTION:
        read_attention(b, o, l);
        break;
    case OP_DROPOUT:
        l->type = &layer_dropout;
        take_dropout(o, "p", JSON_REQUIRED, &l->dropout.p);
        break;
    case OP_EMBEDDING:
        read_embedding(b, o, l);
        break;
    case OP_LAYERNORM:
    case OP_RMSNORM:
        read_norm(o, l, op == OP_RMSNORM);
        break;
    case OP_LINEAR:
        read_linear(b, o, l);
        break;
    case OP_LM_HEAD:
        read_lm_head(b, o, l);
        break;
    case OP_MLP:
    case OP_SWIGLU:
        read_mlp_op(b, o, l, op == OP_SWIGLU);
        break;
    case OP_POSITIONS:
        read_positions(b, o, l);
        break;
    case OP_GELU:
        l->activation.act = ACT_GELU;
        break;
    case OP_GELU_ERF:
        l->activation.act = ACT_GELU_ERF;
        break;
    case OP_RELU:
        l->activation.act = ACT_RELU;
        break;
    case OP_SILU:
        l->activation.act = ACT_SILU;
        break;
    case OP_TANH:
        l->activation.act = ACT_TANH;
        break;
    }
}

static int read_op(struct chain_builder *b, const struct json *node, const char *path)
{
    struct layer l = {.type = &layer_activation};
    struct json_obj o;
    int op = -1, r;

    json_obj_begin(&o, node, path, b->r->err);
    if (spec_take_choice(&o, "op", JSON_REQUIRED, chain_ops, later_ops, &op))
        read_op_keys(b, (enum chain_op)op, &o, &l);
    r = json_obj_end(&o);
    return r < 0 ? r : add_layer(b, path, l);
}

static int read_layers(struct chain_builder *b, const struct json *node, const char *path);

static int read_repeat(struct chain_builder *b, const struct json *node, const char *path)
{
    const struct json *block = NULL;
    uint64_t times = 0;
    char inside[256];
    struct json_obj o;
    int r;

    json_obj_begin(&o, node, path, b->r->err);
    spec_take_u64(&o, "repeat", JSON_REQUIRED, 1, SPEC_MAX_LAYERS, &times);
    json_take(&o, "block", JSON_REQUIRED, &block);
    r = json_obj_end(&o);
    json_path_key(inside, sizeof inside, path, "block");
    for (uint64_t i = 0; r == 0 && i < times; i++)
        r = read_layers(b, block, inside);
    return r;
}

static uint32_t count_inner(const struct layer *l)
{
    uint32_t n = l->n_inner;
    for (uint32_t i = 0; i < l->n_inner; i++)
        n += count_inner(&l->inner[i]);
    return n;
}

/* Gives the inner layers of a residual or block the names "0", "1" and so on. The names of parameters begin
 * with these names, so that no two parameters of a checkpoint have the same name. */
static void name_inner(struct arena *arena, struct layer *layers, size_t n)
{
    char name[24];

    for (size_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%zu", i);
        layers[i].name = arena_strdup(arena, name);
    }
}

/* Reads {"residual": [...]} or {"block": [...]}. The listed layers become the inner layers of a single new
 * layer of the chain. */
static int read_composite(struct chain_builder *b, const struct json *node, const char *path, const char *key)
{
    struct layer l = {.type = strcmp(key, "residual") == 0 ? &layer_residual : &layer_block};
    struct chain_builder in = {.r = b->r, .row = b->row, .weight_bytes = b->weight_bytes, .inside = true};
    const struct json *list = NULL;
    char inside[256];
    struct json_obj o;
    int r;

    json_obj_begin(&o, node, path, b->r->err);
    json_take(&o, key, JSON_REQUIRED, &list);
    r = json_obj_end(&o);
    json_path_key(inside, sizeof inside, path, key);
    if (r == 0 && b->vocab > 0)
        r = fail_not_tokens(b, path, key);
    if (r == 0)
        r = read_layers(&in, list, inside);
    name_inner(b->r->s->arena, in.layers.at, in.layers.n);
    l.out = in.row;
    l.n_inner = (uint32_t)in.layers.n;
    l.inner = r == 0 ? arena_memdup(b->r->s->arena, in.layers.at, in.layers.n * sizeof *in.layers.at) : NULL;
    vec_free(&in.layers);
    if (r < 0)
        return r;
    if (l.type == &layer_residual && !shape_equal(&l.out, &b->row))
        return err_set_at(b->r->err, -EINVAL, path,
                          "the output of a residual must be as wide as its input, but %" PRIu32
                          " elements go in and %" PRIu32 " come out",
                          row_width(b), row_width(&in));
    if (count_inner(&l) > LAYER_MAX_INNER)
        return err_set_at(b->r->err, -EINVAL, path, "a layer may have at most %u layers inside",
                          LAYER_MAX_INNER);
    return add_layer(b, path, l);
}

static int read_link(struct chain_builder *b, const struct json *node, const char *path)
{
    if (json_type(node) == JSON_OBJECT && json_get(node, "repeat"))
        return read_repeat(b, node, path);
    if (json_type(node) == JSON_OBJECT && json_get(node, "residual"))
        return read_composite(b, node, path, "residual");
    if (json_type(node) == JSON_OBJECT && json_get(node, "block"))
        return read_composite(b, node, path, "block");
    return read_op(b, node, path);
}

/* Reads an array of layers. An element of the array may be another array of layers. The nesting cannot go on
 * endlessly, because the depth of a JSON document is limited. */
static int read_layers(struct chain_builder *b, const struct json *node, const char *path)
{
    char at[256];
    size_t i = 0;
    int r = 0;

    if (json_type(node) != JSON_ARRAY || json_array_size(node) == 0)
        return err_set_at(b->r->err, -EINVAL, path, "must be an array of at least one layer");
    for (const struct json *l = json_array_first(node); l && r == 0; l = json_array_next(l), i++) {
        json_path_index(at, sizeof at, path, i);
        r = read_link(b, l, at);
    }
    return r;
}

static int read_chain(struct chain_builder *b, const struct json *node)
{
    const struct json *input = NULL, *layers = NULL;
    const char *type;
    struct json_obj o;
    int loss = 1, r;

    json_obj_begin(&o, node, "model", b->r->err);
    json_take_string(&o, "type", JSON_REQUIRED, &type);
    json_take(&o, "input", JSON_REQUIRED, &input);
    json_take(&o, "layers", JSON_REQUIRED, &layers);
    json_take_enum(&o, "loss", JSON_OPTIONAL, loss_names, &loss);
    r = json_obj_end(&o);
    if (r == 0)
        r = read_input(b, input);
    if (r == 0)
        r = read_layers(b, layers, "model.layers");
    if (r == 0 && !b->trained)
        r = err_set_at(
            b->r->err, -EINVAL, "model.layers",
            "no layer has weights, so there is nothing to train; add {\"op\":\"linear\",\"out\":10}");
    return r < 0 ? r : add_loss(b, loss, "model.layers");
}

/* ------------------------------------------------------------------------------------------ all types */

static int read_by_type(struct chain_builder *b, const struct json *node)
{
    static const char *const types[] = {"mlp", "chain", "gpt2", "llama", NULL};
    static const char *const later[] = {"resnet", "vgg", NULL};
    struct json_obj o;
    int type = 0;

    if (json_type(node) == JSON_OBJECT && (json_get(node, "from") || json_get(node, "config")))
        return spec_read_hf(b->r, node);
    json_obj_begin(&o, node, "model", b->r->err);
    spec_take_choice(&o, "type", JSON_REQUIRED, types, later, &type);
    if (o.status < 0)
        return json_obj_end(&o);
    if (type >= 2)
        return spec_read_transformer(b->r, node, type == 2 ? ARCH_GPT2 : ARCH_LLAMA);
    return type == 0 ? read_mlp(b, node) : read_chain(b, node);
}

int spec_read_model(const struct spec_reader *r, const struct json *node)
{
    struct chain_builder b = {.r = r};
    int status = read_by_type(&b, node);

    if (status == 0 && b.layers.n > 0) {
        r->s->model.n_layers = (uint32_t)b.layers.n;
        r->s->model.layers = arena_memdup(r->s->arena, b.layers.at, b.layers.n * sizeof *b.layers.at);
        model_number(&r->s->model);
    }
    vec_free(&b.layers);
    return status;
}
