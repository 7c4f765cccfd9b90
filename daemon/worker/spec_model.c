/* The model section: "mlp" and "chain" become the chain of layers that kernels/layer.h describes.
 *
 * A linear map with its activation and dropout is one layer (LAYER_dense): fewer blocks, less saved. Sizes
 * are checked as layers are added, so that no product of a user's numbers is ever computed unchecked further
 * on. The number of layers is capped, which also bounds what nested repeats can cost: an empty block is
 * refused, so every turn adds a layer.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/checked.h"
#include "base/vec.h"
#include "daemon/worker/spec_private.h"

#define MAX_WEIGHT_BYTES (SPEC_MAX_BYTES / 8) /* W, dW and two moments, with room to spare */

struct builder {
    const struct spec_reader *r;
    VEC(struct layer) layers;
    uint32_t width; /* elements per row after the last layer */
    uint64_t weight_bytes;
    bool trained; /* some layer has weights */
};

/* `path` is where the user asked for it. Fills in position and widths. */
static int add_layer(struct builder *b, const char *path, struct layer l)
{
    uint64_t bytes;

    if (b->layers.n >= SPEC_MAX_LAYERS)
        return err_set_at(b->r->err, -EINVAL, path, "the model has more than %u layers", SPEC_MAX_LAYERS);
    l.id = (uint32_t)b->layers.n;
    l.in = b->width;
    if (l.kind == LAYER_dense) {
        if (!checked_mul(l.in, l.out, &bytes) || !checked_add(bytes, l.bias ? l.out : 0, &bytes) ||
            !checked_mul(bytes, sizeof(float), &bytes) || !checked_add(bytes, b->weight_bytes, &bytes) ||
            bytes > MAX_WEIGHT_BYTES)
            return err_set_at(b->r->err, -EINVAL, path,
                              "with this layer of %" PRIu32 " x %" PRIu32
                              " the weights take more than 2^50 bytes; make it smaller",
                              l.in, l.out);
        b->weight_bytes = bytes;
        b->trained = true;
        b->width = l.out;
    } else if (l.kind == LAYER_mse || l.kind == LAYER_softmax_xent) {
        l.out = 0;
    } else {
        l.out = l.in;
    }
    vec_push(&b->layers, l);
    return 0;
}

/* ------------------------------------------------------------------------------------------ parts of both */

static int read_input(struct builder *b, const struct json *node)
{
    static const char path[] = "model.input";
    uint64_t product = 1, dim;
    char at[64];
    size_t i = 0;
    int r;

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
    b->width = b->r->s->features = (uint32_t)product;
    return 0;
}

static const char *const loss_names[] = {"mse", "softmax_xent", NULL};

/* Loss layers come last; what is before them decides the number of classes. */
static int add_loss(struct builder *b, int loss, const char *width_path)
{
    struct spec *s = b->r->s;
    enum layer_kind kind = loss == 0 ? LAYER_mse : LAYER_softmax_xent;

    if (kind == LAYER_softmax_xent && b->width < 2)
        return err_set_at(
            b->r->err, -EINVAL, width_path,
            "softmax_xent needs at least 2 classes; write 2, or \"loss\": \"mse\" for one output");
    s->classes = b->width;
    s->mse = kind == LAYER_mse;
    return add_layer(b, "model.loss", (struct layer){.kind = kind});
}

static const char *const no_names[] = {NULL};

static bool take_activation(struct json_obj *o, enum act *ret)
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

static int add_hidden(struct builder *b, const struct json *node, const struct layer *like)
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
        l.out = (uint32_t)width;
        r = add_layer(b, at, l);
    }
    return r;
}

static int read_mlp(struct builder *b, const struct json *node)
{
    struct layer hidden = {.kind = LAYER_dense, .act = ACT_RELU, .bias = true};
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
    take_activation(&o, &hidden.act);
    spec_take_float(&o, "dropout", JSON_OPTIONAL, spec_is_fraction, SPEC_FRACTION, &dropout);
    json_take_bool(&o, "bias", JSON_OPTIONAL, &hidden.bias);
    json_take_enum(&o, "loss", JSON_OPTIONAL, loss_names, &loss);
    r = json_obj_end(&o);
    if (r < 0)
        return r;
    hidden.dropout = (float)dropout;
    r = read_input(b, input);
    if (r == 0)
        r = add_hidden(b, widths, &hidden);
    if (r == 0)
        r = add_layer(b, "model.classes",
                      (struct layer){.kind = LAYER_dense, .out = classes, .bias = hidden.bias});
    return r < 0 ? r : add_loss(b, loss, "model.classes");
}

/* ------------------------------------------------------------------------------------------ chain */

enum chain_op { OP_DROPOUT, OP_GELU, OP_LINEAR, OP_RELU, OP_TANH };
static const char *const chain_ops[] = {"dropout", "gelu", "linear", "relu", "tanh", NULL};
static const char *const later_ops[] = {"add",     "attention", "avgpool", "batchnorm", "conv", "embedding",
                                        "flatten", "layernorm", "maxpool", "rmsnorm",   NULL};

static void read_linear(struct json_obj *o, struct layer *l)
{
    double dropout = 0;

    l->kind = LAYER_dense;
    l->bias = true;
    spec_take_u32(o, "out", JSON_REQUIRED, 1, SPEC_MAX_DIM, &l->out);
    json_take_bool(o, "bias", JSON_OPTIONAL, &l->bias);
    take_activation(o, &l->act);
    spec_take_float(o, "dropout", JSON_OPTIONAL, spec_is_fraction, SPEC_FRACTION, &dropout);
    l->dropout = (float)dropout;
}

static int read_op(struct builder *b, const struct json *node, const char *path)
{
    struct layer l = {.kind = LAYER_activation};
    double p = 0;
    struct json_obj o;
    int op = -1, r;

    json_obj_begin(&o, node, path, b->r->err);
    spec_take_choice(&o, "op", JSON_REQUIRED, chain_ops, later_ops, &op);
    if (op == OP_LINEAR) {
        read_linear(&o, &l);
    } else if (op == OP_DROPOUT) {
        l.kind = LAYER_dropout;
        spec_take_float(&o, "p", JSON_REQUIRED, spec_is_fraction, SPEC_FRACTION, &p);
        l.dropout = (float)p;
    } else {
        l.act = op == OP_RELU ? ACT_RELU : op == OP_GELU ? ACT_GELU : ACT_TANH;
    }
    r = json_obj_end(&o);
    return r < 0 ? r : add_layer(b, path, l);
}

static int read_layers(struct builder *b, const struct json *node, const char *path);

static int read_repeat(struct builder *b, const struct json *node, const char *path)
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

static int read_link(struct builder *b, const struct json *node, const char *path)
{
    if (json_type(node) == JSON_OBJECT && json_get(node, "repeat"))
        return read_repeat(b, node, path);
    if (json_type(node) == JSON_OBJECT && json_get(node, "residual"))
        return err_set_at(
            b->r->err, -EOPNOTSUPP, path,
            "\"residual\" is not supported yet; this version has the ops dropout, gelu, linear, relu, "
            "tanh and {\"repeat\": n, \"block\": [...]}");
    return read_op(b, node, path);
}

/* Recursion is bounded by the depth of JSON documents. */
static int read_layers(struct builder *b, const struct json *node, const char *path)
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

static int read_chain(struct builder *b, const struct json *node)
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

/* ------------------------------------------------------------------------------------------ */

static int read_by_type(struct builder *b, const struct json *node)
{
    static const char *const types[] = {"mlp", "chain", NULL};
    static const char *const later[] = {"gpt2", "llama", "resnet", "vgg", NULL};
    static const char words[] = "this version builds models of type \"mlp\" and \"chain\"";
    struct json_obj o;
    int type = 0;

    json_obj_begin(&o, node, "model", b->r->err);
    spec_refuse_key(&o, "from", words);
    spec_refuse_key(&o, "config", words);
    spec_take_choice(&o, "type", JSON_REQUIRED, types, later, &type);
    if (o.status < 0)
        return json_obj_end(&o);
    return type == 0 ? read_mlp(b, node) : read_chain(b, node);
}

int spec_read_model(const struct spec_reader *r, const struct json *node)
{
    struct builder b = {.r = r};
    int status = read_by_type(&b, node);

    if (status == 0) {
        r->s->model.n_layers = (uint32_t)b.layers.n;
        r->s->model.layers = arena_memdup(r->s->arena, b.layers.at, b.layers.n * sizeof *b.layers.at);
    }
    vec_free(&b.layers);
    return status;
}
