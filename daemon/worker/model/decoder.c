/* Implements decoder.h: runs a transformer on the host's compute stream.
 *
 * The queries, keys and values of a token only depend on the tokens up to it. The decoder therefore caches
 * them for the text so far, and a push computes them for the new tokens only. The attention operation is the
 * exception: it cannot begin in the middle of a text, so it computes all queries again, which costs little
 * compared with the projections that are saved. The cache holds the projections before rotary positions are
 * applied, because that operation also works on whole texts; it gets a copy.
 *
 * Norms and mlps are the layers of the chain, built for the number of new tokens. The final norm and the head
 * run for the last token only.
 *
 * All memory is host memory of the devset, in two blocks: the weights in the order of the chain, and the
 * working memory.
 */
#include "daemon/worker/model/decoder.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/checked.h"
#include "kernels/device.h"

/* The number of the host's stream. The numbers below LANE_COUNT belong to the streams of the only device. */
#define STREAM LANE_COUNT

struct decoder {
    struct transformer t;
    struct devset *devices;
    struct step_args step;
    uint32_t capacity; /* maximum number of tokens in a text */
    uint32_t length;   /* number of tokens in the text */
    uint32_t head;     /* number of elements in a head */
    /* Number of elements that a token's query, key and value have together. */
    uint32_t qkv;
    struct arena *arena;
    /* The layers of the model for a text of one token. This struct serves only to find the weights and their
     * sizes. */
    struct model model;
    enum dtype dtype; /* the type of activations and weights */
    /* w[l] points to the weights of layer l. For a tied lm_head, it points to the weights of the
     * embedding. */
    void **w;
    struct checkpoint_tensors tensors;
    char *weights, *work; /* the two blocks of memory */
    uint64_t weights_bytes, work_bytes;
    /* The following arrays are parts of `work`. */
    int32_t *ids; /* [capacity]: new tokens */
    /* The queries, keys and values of all tokens of the text so far. The array is [layers][capacity][qkv]. */
    void *cached;
    /* The queries, keys and values of one layer after rotary positions were applied. The array is
     * [capacity][qkv]. */
    void *rotated;
    void *x, *normed, *y, *attended; /* [capacity][width] */
    float *lse;                      /* [heads][capacity] */
    void *scratch;
    float *logits; /* [vocab] */
};

/* ---- memory ---- */

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + DEVICE_ALIGN - 1) & ~(uint64_t)(DEVICE_ALIGN - 1);
}

static uint64_t weight_bytes(const struct layer *l)
{
    struct layer_sizes size;
    layer_type(l)->sizes(l, 1, &size);
    return l->tied ? 0 : size.w;
}

static int lay_out_weights(struct decoder *d, struct err *err)
{
    for (uint32_t l = 0; l < d->model.n_layers; l++)
        d->weights_bytes += aligned(weight_bytes(&d->model.layers[l]));
    void *block = NULL;
    int r = devset_host_alloc(d->devices, d->weights_bytes, &block, err);
    if (r < 0)
        return r;
    char *at = d->weights = block;
    for (uint32_t l = 0; l < d->model.n_layers; l++) {
        const struct layer *layer = &d->model.layers[l];
        d->w[l] = layer->tied ? d->w[layer->owner] : at;
        at += aligned(weight_bytes(layer));
    }
    return 0;
}

static void *block_of(void *ctx, uint32_t layer, enum tensor_kind kind)
{
    const struct decoder *d = ctx;
    assert(kind == TENSOR_W); /* transformers have no buffers */
    return d->w[layer];
}

/* Returns a layer inside transformer block number `block`. `residual` selects one of the block's two residual
 * layers: 0 contains the attention, and 1 contains the mlp. `i` selects a layer inside the residual layer: 0
 * is the norm, and 1 is the attention or the mlp itself. */
static const struct layer *inside(const struct model *m, uint32_t block, uint32_t residual, uint32_t i)
{
    return &m->layers[block].inner[residual].inner[i];
}

/* Builds the chain of layers for a text of `tokens` tokens, with the decoder's types. */
static void build_chain(const struct decoder *d, uint32_t tokens, struct arena *arena, struct model *ret)
{
    transformer_build(&d->t, tokens, 0, arena, ret);
    model_set_types(ret, d->dtype);
}

/* Returns the number of bytes of scratch memory that the mlp of a block needs for `capacity` tokens. */
static uint64_t scratch_bytes(const struct decoder *d)
{
    struct arena *arena = arena_create();
    struct layer_sizes mlp;
    struct model m;
    build_chain(d, d->capacity, arena, &m);
    const struct layer *l = inside(&m, m.n_layers - 3, 1, 1);
    layer_type(l)->sizes(l, 1, &mlp);
    arena_destroy(arena);
    return mlp.scratch_fwd;
}

/* Reserves space for `n` elements of type `dtype` at the offset *at of the memory `base`. Returns the address
 * of the space and advances *at. If `base` is NULL, the function only advances *at, so that the caller learns
 * the total size. */
static void *take(char *base, uint64_t *at, enum dtype dtype, uint64_t n)
{
    void *p = base == NULL ? NULL : base + *at;
    *at += aligned(n * dtype_size(dtype));
    return p;
}

/* Returns the address of element `i` of an array of activations or of weights. */
static void *activation(const struct decoder *d, void *array, uint64_t i)
{
    return (char *)array + i * dtype_size(d->dtype);
}

static const void *weight(const struct decoder *d, const void *array, uint64_t i)
{
    return (const char *)array + i * dtype_size(d->dtype);
}

/* Places all arrays one after another in the memory d->work, and returns the number of bytes that the arrays
 * need together. If d->work is NULL, the function only computes this number, and the addresses of the arrays
 * are not valid. */
static uint64_t lay_out_work(struct decoder *d, uint64_t scratch)
{
    uint64_t at = 0, rows = (uint64_t)d->capacity * d->t.width, text = (uint64_t)d->capacity * d->qkv;
    d->ids = take(d->work, &at, DTYPE_I32, d->capacity);
    d->cached = take(d->work, &at, d->dtype, d->t.layers * text);
    d->rotated = take(d->work, &at, d->dtype, d->t.rope_theta > 0 ? text : 0);
    d->x = take(d->work, &at, d->dtype, rows);
    d->normed = take(d->work, &at, d->dtype, rows);
    d->y = take(d->work, &at, d->dtype, rows);
    d->attended = take(d->work, &at, d->dtype, rows);
    d->lse = take(d->work, &at, DTYPE_F32, (uint64_t)d->capacity * d->t.heads);
    d->scratch = take(d->work, &at, DTYPE_U8, scratch);
    d->logits = take(d->work, &at, DTYPE_F32, d->t.vocab);
    return at;
}

/* Allocates the working memory. A layer treats the whole text as one row. A row may have at most SPEC_MAX_DIM
 * elements, which limits the length of the text. */
static int alloc_work(struct decoder *d, struct err *err)
{
    uint64_t cached;
    void *block = NULL;
    if ((uint64_t)d->capacity * d->t.width > SPEC_MAX_DIM ||
        !checked_mul((uint64_t)d->capacity * d->qkv, d->t.layers, &cached) || cached > SPEC_MAX_BYTES / 8)
        return err_set(err, -ENOMEM,
                       "a text of %" PRIu32 " tokens is too long for a model with %" PRIu32
                       " elements per token; ask for fewer tokens",
                       d->capacity, d->t.width);
    uint64_t scratch = scratch_bytes(d);
    d->work_bytes = lay_out_work(d, scratch);
    int r = devset_host_alloc(d->devices, d->work_bytes, &block, err);
    if (r < 0)
        return r;
    d->work = block;
    lay_out_work(d, scratch);
    return 0;
}

/* ---- beginning and end ---- */

static int open_devices(struct decoder *d, uint32_t threads, struct err *err)
{
    struct devset_config c = {
        .backend = "cpu", .n_devices = 1, .capacity_bytes = {DEVICE_ALIGN}, .threads = threads};
    return devset_open(&c, &d->devices, err);
}

static int build(struct decoder *d, struct err *err)
{
    const struct optimizer none = {.kind = OPTIMIZER_SGD};
    d->arena = arena_create();
    build_chain(d, 1, d->arena, &d->model);
    d->w = arena_alloc_array(d->arena, d->model.n_layers, sizeof *d->w);
    int r = lay_out_weights(d, err);
    if (r == 0)
        r = alloc_work(d, err);
    if (r == 0)
        checkpoint_tensors_init(&d->tensors, &d->model, d->model.n_layers, &none, block_of, d);
    return r;
}

int decoder_create(const struct transformer *t, enum dtype dtype, uint32_t tokens, uint32_t threads,
                   struct decoder **ret, struct err *err)
{
    struct decoder *d = calloc(1, sizeof *d);
    if (d == NULL)
        return err_set(err, -ENOMEM, "no memory");
    d->t = *t;
    d->dtype = dtype;
    d->capacity = t->arch == ARCH_GPT2 && tokens > t->positions ? t->positions : tokens;
    d->head = t->width / t->heads;
    d->qkv = (t->heads + 2 * t->kv_heads) * d->head;
    d->step = (struct step_args){.valid_rows = UINT32_MAX};
    int r = open_devices(d, threads, err);
    if (r == 0)
        r = build(d, err);
    if (r < 0)
        decoder_destroy(d);
    else
        *ret = d;
    return r;
}

void decoder_destroy(struct decoder *d)
{
    if (d == NULL)
        return;
    checkpoint_tensors_finish(&d->tensors);
    if (d->work != NULL)
        devset_host_free(d->devices, d->work, d->work_bytes);
    if (d->weights != NULL)
        devset_host_free(d->devices, d->weights, d->weights_bytes);
    devset_close(d->devices);
    arena_destroy(d->arena);
    free(d);
}

const struct checkpoint_tensors *decoder_tensors(const struct decoder *d)
{
    return &d->tensors;
}

uint32_t decoder_length(const struct decoder *d)
{
    return d->length;
}

uint32_t decoder_capacity(const struct decoder *d)
{
    return d->capacity;
}

const float *decoder_logits(const struct decoder *d)
{
    return d->logits;
}

void decoder_reset(struct decoder *d)
{
    d->length = 0;
}

/* ---- one push ---- */

/* One call of decoder_push. */
struct push {
    struct decoder *d;
    struct model model; /* the chain for n tokens */
    /* Number of new tokens. They come after the d->length tokens that the text already has. */
    uint32_t n;
    struct op_sink sink;
};

static int launch(void *ctx, const struct op_call *call)
{
    const struct decoder *d = ctx;
    return devset_launch(d->devices, STREAM, call);
}

#define LAUNCH(p, name, ...)                                                                                 \
    launch((p)->d, &(struct op_call){.op = OP_##name, .step = &(p)->d->step, .name = {__VA_ARGS__}})

static int run_layer(const struct push *p, const struct layer *l, const void *w, const void *x, void *y)
{
    struct layer_io io = {.step = &p->d->step, .rows = 1, .w = w, .x = x, .y = y, .scratch = p->d->scratch};
    return layer_type(l)->fwd(l, &io, &p->sink);
}

/* Returns the address of the parameter `name` of a layer, or NULL if the layer has no such parameter. `w`
 * points to the layer's weights. */
static const void *find_param(const struct layer *l, const void *w, const char *name)
{
    struct layer_param params[8];
    uint32_t n = layer_type(l)->params(l, NULL);
    assert(n <= 8);
    layer_type(l)->params(l, params);
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(params[i].name, name) == 0)
            return (const char *)w + params[i].offset;
    return NULL;
}

/* Sets *ret to the array with the queries, keys and values of all tokens. For a model with rotary positions,
 * the function applies the positions to a copy in d->rotated, and *ret points to this copy. For other models,
 * *ret is `cached`. */
static int rotate(const struct push *p, void *cached, uint32_t seq, void **ret)
{
    const struct decoder *d = p->d;
    *ret = cached;
    if (d->t.rope_theta <= 0)
        return 0;
    *ret = d->rotated;
    int r = LAUNCH(p, act_fwd, .x = cached, .y = d->rotated, .n = (uint64_t)seq * d->qkv, .dtype = d->dtype);
    if (r < 0)
        return r;
    return LAUNCH(p, rope, .x = d->rotated, .rows = 1, .seq = seq, .n = d->qkv,
                  .heads = d->t.heads + d->t.kv_heads, .head = d->head, .theta = d->t.rope_theta,
                  .dtype = d->dtype);
}

/* Runs the attention of a block. It reads its input from d->normed and writes its output to d->y. */
static int attend(const struct push *p, const struct layer *l, const void *w, uint32_t block)
{
    const struct decoder *d = p->d;
    uint32_t seq = d->length + p->n, width = d->t.width;
    void *cached = activation(d, d->cached, (uint64_t)block * d->capacity * d->qkv), *qkv = NULL;
    int r = LAUNCH(p, linear_fwd, .x = d->normed, .w = find_param(l, w, "qkv.weight"),
                   .b = find_param(l, w, "qkv.bias"),
                   .y = activation(d, cached, (uint64_t)d->length * d->qkv), .rows = p->n, .in = width,
                   .out = d->qkv, .dtype = d->dtype, .w_dtype = d->dtype, .y_dtype = d->dtype);
    if (r == 0)
        r = rotate(p, cached, seq, &qkv);
    if (r == 0)
        r = LAUNCH(p, attention_fwd, .qkv = qkv, .y = d->attended, .lse = d->lse, .rows = 1, .seq = seq,
                   .heads = d->t.heads, .kv_heads = d->t.kv_heads, .head = d->head, .dtype = d->dtype);
    if (r < 0)
        return r;
    return LAUNCH(p, linear_fwd, .x = activation(d, d->attended, (uint64_t)d->length * width),
                  .w = find_param(l, w, "proj.weight"), .b = find_param(l, w, "proj.bias"), .y = d->y,
                  .rows = p->n, .in = width, .out = width, .dtype = d->dtype, .w_dtype = d->dtype,
                  .y_dtype = d->dtype);
}

/* Runs one transformer block on d->x: first computes x += attention(norm(x)), then x += mlp(norm(x)). */
static int run_block(const struct push *p, uint32_t layer, uint32_t block)
{
    const struct decoder *d = p->d;
    const void *w = d->w[layer];
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < 2; i++) {
        const struct layer *norm = inside(&p->model, layer, i, 0), *part = inside(&p->model, layer, i, 1);
        const void *part_w = (const char *)w + weight_bytes(norm);
        r = run_layer(p, norm, w, d->x, d->normed);
        if (r == 0)
            r = part->type == &layer_attention ? attend(p, part, part_w, block)
                                               : run_layer(p, part, part_w, d->normed, d->y);
        if (r == 0)
            r = LAUNCH(p, add, .y = d->x, .x = d->y, .n = (uint64_t)p->n * d->t.width, .dtype = d->dtype);
        w = (const char *)part_w + weight_bytes(part);
    }
    return r;
}

/* Stores the embeddings of the new tokens in d->x. For gpt2, also adds the embeddings of their positions. */
static int embed(const struct push *p)
{
    const struct decoder *d = p->d;
    uint32_t width = d->t.width;
    int r = run_layer(p, &p->model.layers[0], d->w[0], d->ids, d->x);
    if (r < 0 || d->t.arch != ARCH_GPT2)
        return r;
    return LAUNCH(p, bias_fwd, .x = d->x, .b = weight(d, d->w[1], (uint64_t)d->length * width), .y = d->x,
                  .rows = 1, .n = p->n * width, .dtype = d->dtype, .w_dtype = d->dtype);
}

/* Computes the logits of the token that follows the last token of the text. They are floats, even if the
 * model computes with 16 bits. */
static int run_head(const struct push *p)
{
    const struct decoder *d = p->d;
    uint32_t width = d->t.width, head = p->model.n_layers - 1;
    const struct layer *norm = &d->model.layers[head - 1]; /* built for one token */
    int r = run_layer(p, norm, d->w[head - 1], activation(d, d->x, (uint64_t)(p->n - 1) * width), d->normed);
    if (r < 0)
        return r;
    return LAUNCH(p, linear_fwd, .x = d->normed, .w = d->w[head], .y = d->logits, .rows = 1, .in = width,
                  .out = d->t.vocab, .dtype = d->dtype, .w_dtype = d->dtype, .y_dtype = DTYPE_F32);
}

static int enqueue(const struct push *p)
{
    uint32_t first = p->d->t.arch == ARCH_GPT2 ? 2 : 1;
    int r = embed(p);
    for (uint32_t i = 0; r == 0 && i < p->d->t.layers; i++)
        r = run_block(p, first + i, i);
    return r < 0 ? r : run_head(p);
}

static int check_logits(const struct decoder *d, struct err *err)
{
    const float *logits = decoder_logits(d);
    for (uint32_t i = 0; i < d->t.vocab; i++)
        if (!isfinite(logits[i]))
            return err_set(err, -EDOM,
                           "the logits after %" PRIu32
                           " tokens are not finite; the model may have diverged in training",
                           d->length);
    return 0;
}

int decoder_push(struct decoder *d, const int32_t *ids, uint32_t n, struct err *err)
{
    struct arena *arena = arena_create();
    struct push p = {.d = d, .n = n, .sink = {launch, d}};
    assert(n >= 1 && n <= d->capacity - d->length);
    build_chain(d, n, arena, &p.model);
    memcpy(d->ids, ids, n * sizeof *ids);
    int r = enqueue(&p), drained = devset_drain(d->devices);
    arena_destroy(arena);
    r = r < 0 ? r : drained;
    if (r < 0)
        return err_set(err, r, "the host failed to run the model: %s", strerror(-r));
    d->length += n;
    return check_logits(d, err);
}
