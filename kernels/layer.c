/* The table of layer kinds, the initial weights, and the launches of ops that several kinds of layers share.
 * The functions keep no state, so any thread may call them. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/rng.h"
#include "kernels/layer_impl.h"

const struct layer_type *const layer_types[] = {
#define LAYER(name) &layer_##name,
#include "kernels/layers.def"
#undef LAYER
    NULL,
};

const char *const param_class_names[PARAM_CLASS_COUNT] = {
    [PARAM_MATRIX] = "matrix",
    [PARAM_BIAS] = "bias",
    [PARAM_NORM] = "norm",
    [PARAM_EMBEDDING] = "embedding",
};

/* Returns the number of elements of a row. The builder of the model has checked that the number fits into 32
 * bits. */
static uint32_t row_elements(const struct shape *s)
{
    uint32_t n = 0;
    bool fits = shape_elements(s, &n);

    assert(fits);
    (void)fits;
    return n;
}

uint32_t layer_in(const struct layer *l)
{
    return row_elements(&l->in);
}

uint32_t layer_out(const struct layer *l)
{
    return row_elements(&l->out);
}

int layer_drop(const struct layer *l, float p, const struct layer_io *io, const void *from, void *to,
               const struct op_sink *sink)
{
    if (p <= 0)
        return 0;
    return LAYER_LAUNCH(io, sink, dropout, .x = from, .y = to, .rows = io->rows, .n = layer_out(l),
                        .layer = l->key, .first_row = io->first_row, .p = p, .dtype = l->dtype);
}

int layer_linear_bwd(const struct layer *l, const struct layer_io *io, const struct layer_linear *p,
                     const struct op_sink *sink)
{
    int r = 0;

    if (p->db)
        r = LAYER_LAUNCH(io, sink, bias_bwd, .dy = p->dy, .db = p->db, .rows = p->rows, .n = p->out,
                         .accumulate = io->accumulate, .dtype = l->dtype);
    if (!r)
        r = LAYER_LAUNCH(io, sink, linear_bwd_weight, .dy = p->dy, .x = p->x, .dw = p->dw, .rows = p->rows,
                         .in = p->in, .out = p->out, .accumulate = io->accumulate, .dtype = l->dtype);
    if (!r && p->dx)
        r = LAYER_LAUNCH(io, sink, linear_bwd_data, .dy = p->dy, .w = p->w, .dx = p->dx, .rows = p->rows,
                         .in = p->in, .out = p->out, .dtype = l->dtype, .w_dtype = l->w_dtype);
    return r;
}

static enum param_init init_of(enum param_class class, float std)
{
    switch (class) {
    case PARAM_NORM:
        return INIT_ONES;
    case PARAM_BIAS:
        return std > 0.0f ? INIT_ZEROS : INIT_UNIFORM_FAN_IN;
    case PARAM_EMBEDDING:
        return INIT_NORMAL;
    default:
        return std > 0.0f ? INIT_NORMAL : INIT_UNIFORM_FAN_IN;
    }
}

void layer_add_param(struct layer_params *p, const char *name, enum param_class class, uint32_t a, uint32_t b,
                     float std, uint32_t fan_in)
{
    uint64_t count = (uint64_t)a * (b ? b : 1);

    if (p->at) {
        struct layer_param *to = &p->at[p->n];
        *to = (struct layer_param){
            .dtype = p->dtype,
            .rank = b ? 2 : 1,
            .shape = {a, b ? b : 0},
            .offset = p->offset,
            .count = count,
            .class = class,
            .init = init_of(class, std),
            .fan_in = fan_in,
            .std = class == PARAM_EMBEDDING && std <= 0.0f ? LAYER_EMBEDDING_STD : std,
            .key = p->l->key,
        };
        snprintf(to->name, sizeof to->name, "%s", name);
    }
    p->offset += count * dtype_size(p->dtype);
    p->n++;
}

/* Each layer has a sequence of uniform random numbers, and number i belongs to element i of the layer's
 * parameters. This function writes the numbers 2 * pair and 2 * pair + 1 to `ret`. */
static void init_pair(uint64_t seed, uint32_t key, uint64_t pair, float ret[2])
{
    uint64_t block = pair / 2;
    struct rng_block b =
        rng_philox(seed, (uint32_t)block, (uint32_t)(block >> 32), rng_word2(RNG_INIT, key), 0);
    ret[0] = rng_unit(b.v[pair % 2 * 2]);
    ret[1] = rng_unit(b.v[pair % 2 * 2 + 1]);
}

void layer_uniform(uint64_t seed, uint32_t key, uint64_t n, float *ret)
{
    for (uint64_t i = 0; i < n; i += 2) {
        float x[2];
        init_pair(seed, key, i / 2, x);
        ret[i] = x[0];
        if (i + 1 < n)
            ret[i + 1] = x[1];
    }
}

/* Turns two uniform random numbers into two normally distributed random numbers, by the Box-Muller
 * transform. */
static void make_normal(float x[2])
{
    double u = 1.0 - (double)x[0], v = (double)x[1];
    double r = sqrt(-2.0 * log(u)), angle = 2.0 * 3.14159265358979323846 * v;
    x[0] = (float)(r * cos(angle));
    x[1] = (float)(r * sin(angle));
}

/* Fills w[0] to w[n - 1] with initial values. They are made from `n` consecutive random numbers of the
 * layer's sequence, and the first of these is number `from`. */
static void init_random(const struct layer_param *p, uint64_t seed, uint64_t from, uint64_t n, float *w)
{
    float bound = (float)(1.0 / sqrt((double)p->fan_in));

    for (uint64_t at = from; at < from + n;) {
        float x[2];
        init_pair(seed, p->key, at / 2, x);
        if (p->init == INIT_NORMAL)
            make_normal(x);
        do {
            float one = x[at % 2];
            *w++ = p->init == INIT_NORMAL ? one * p->std : (2.0f * one - 1.0f) * bound;
        } while (++at % 2 != 0 && at < from + n);
    }
}

static void init_param(const struct layer_param *p, uint64_t seed, uint64_t from, float *w)
{
    if (p->init == INIT_ONES || p->init == INIT_ZEROS)
        for (uint64_t k = 0; k < p->count; k++)
            w[k] = p->init == INIT_ONES ? 1.0f : 0.0f;
    else
        init_random(p, seed, from, p->count, w);
}

/* Initializes the parameters in the order in which they are stored in the weights. Each layer and each inner
 * layer has a key, which selects a sequence of random numbers. The first parameter with a new key begins at
 * the start of the key's sequence. */
void layer_init(const struct layer *l, uint64_t seed, float *w)
{
    uint32_t n = layer_type(l)->params(l, NULL);
    struct layer_param *params = xcalloc(n + 1, sizeof *params);
    uint64_t first = 0;

    layer_type(l)->params(l, params);
    for (uint32_t i = 0; i < n; i++) {
        const struct layer_param *p = &params[i];
        uint64_t begin = dtype_elements(p->dtype, p->offset);
        if (i > 0 && p->key != params[i - 1].key)
            first = begin;
        init_param(p, seed, begin - first, w + begin);
    }
    free(params);
}

/* Sets the id and the key of every layer inside `outer`, at all nesting levels. *n is the number of inner
 * layers that have their key already. */
static void number_inner(const struct layer *outer, uint32_t id, uint32_t *n)
{
    struct layer *inner = (struct layer *)(uintptr_t)outer->inner;

    for (uint32_t i = 0; i < outer->n_inner; i++) {
        inner[i].id = id;
        inner[i].key = layer_inner_key(id, ++*n);
        number_inner(&inner[i], id, n);
    }
}

void model_number(const struct model *m)
{
    for (uint32_t i = 0; i < m->n_layers; i++) {
        uint32_t n = 0;
        m->layers[i].id = m->layers[i].key = i;
        number_inner(&m->layers[i], i, &n);
    }
}

void layer_set_types(struct layer *l, enum dtype dtype)
{
    struct layer *inner = (struct layer *)(uintptr_t)l->inner;

    l->dtype = l->w_dtype = dtype;
    for (uint32_t i = 0; i < l->n_inner; i++)
        layer_set_types(&inner[i], dtype);
}

void model_set_types(const struct model *m, enum dtype dtype)
{
    for (uint32_t i = 0; i < m->n_layers; i++)
        layer_set_types(&m->layers[i], dtype);
}
