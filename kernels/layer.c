/* The table of layer kinds, the initial weights, and launches that several kinds have in common. Pure functions over
 * constant data, any thread. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/rng.h"
#include "kernels/layer_impl.h"

const struct layer_type *const layer_types[LAYER_COUNT] = {
#define LAYER(name) [LAYER_##name] = &layer_##name,
#include "kernels/layers.def"
#undef LAYER
};

const char *const param_class_names[PARAM_CLASS_COUNT] = {
    [PARAM_MATRIX] = "matrix",
    [PARAM_BIAS] = "bias",
    [PARAM_NORM] = "norm",
    [PARAM_EMBEDDING] = "embedding",
};

int layer_drop(const struct layer *l, const struct layer_io *io, const float *from, float *to,
               const struct op_sink *sink)
{
    if (l->dropout <= 0)
        return 0;
    return LAYER_LAUNCH(io, sink, dropout, .x = from, .y = to, .rows = io->rows, .n = l->out, .layer = l->key,
                        .first_row = io->first_row, .p = l->dropout);
}

int layer_linear_bwd(const struct layer_io *io, const struct layer_linear *p, const struct op_sink *sink)
{
    int r = 0;

    if (p->db)
        r = LAYER_LAUNCH(io, sink, bias_bwd, .dy = p->dy, .db = p->db, .rows = p->rows, .n = p->out,
                         .accumulate = io->accumulate);
    if (!r)
        r = LAYER_LAUNCH(io, sink, linear_bwd_weight, .dy = p->dy, .x = p->x, .dw = p->dw, .rows = p->rows,
                         .in = p->in, .out = p->out, .accumulate = io->accumulate);
    if (!r && p->dx)
        r = LAYER_LAUNCH(io, sink, linear_bwd_data, .dy = p->dy, .w = p->w, .dx = p->dx, .rows = p->rows,
                         .in = p->in, .out = p->out);
    return r;
}

static enum param_init init_of(enum param_class class, float std)
{
    switch (class) {
    case PARAM_NORM:
        return INIT_ONES;
    case PARAM_BIAS:
        return std > 0.0f ? INIT_ZEROS : INIT_UNIFORM_FAN_IN;
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
            .rank = b ? 2 : 1,
            .shape = {a, b ? b : 0},
            .offset = p->offset,
            .count = count,
            .class = class,
            .init = init_of(class, std),
            .fan_in = fan_in,
            .std = std,
            .key = p->l->key,
        };
        snprintf(to->name, sizeof to->name, "%s", name);
    }
    p->offset += count * sizeof(float);
    p->n++;
}

/* Word `at % 4` of the block at / 4: `at` counts the elements from the start of the layer's (or inner layer's) own
 * parameters, so a parameter's numbers do not depend on how many a call fills. */
static float init_unit(uint64_t seed, uint32_t key, uint64_t at)
{
    uint64_t block = at / 4;
    struct rng_block b =
        rng_philox(seed, (uint32_t)block, (uint32_t)(block >> 32), rng_word2(RNG_INIT, key), 0);
    return rng_unit(b.v[at % 4]);
}

/* Two uniform numbers make two normal ones (Box and Muller), for elements 2i and 2i + 1. */
static float init_normal(uint64_t seed, uint32_t key, uint64_t at)
{
    uint64_t pair = at & ~UINT64_C(1);
    double u = 1.0 - (double)init_unit(seed, key, pair), v = (double)init_unit(seed, key, pair + 1);
    double r = sqrt(-2.0 * log(u)), angle = 2.0 * 3.14159265358979323846 * v;
    return (float)(at & 1 ? r * sin(angle) : r * cos(angle));
}

static float initial(const struct layer_param *p, uint64_t seed, uint64_t at)
{
    switch (p->init) {
    case INIT_UNIFORM_FAN_IN:
        return (2.0f * init_unit(seed, p->key, at) - 1.0f) * (float)(1.0 / sqrt((double)p->fan_in));
    case INIT_NORMAL:
        return init_normal(seed, p->key, at) * p->std;
    case INIT_ONES:
        return 1.0f;
    case INIT_ZEROS:
        break;
    }
    return 0.0f;
}

/* Random numbers are counted from the first parameter of the same key: a layer's own, or an inner layer's. */
void layer_init(const struct layer *l, uint64_t seed, float *w)
{
    uint32_t n = layer_type(l)->params(l, NULL);
    struct layer_param *params = xcalloc(n + 1, sizeof *params);
    uint64_t first = 0;

    layer_type(l)->params(l, params);
    for (uint32_t i = 0; i < n; i++) {
        const struct layer_param *p = &params[i];
        uint64_t begin = p->offset / sizeof *w;
        if (i > 0 && p->key != params[i - 1].key)
            first = begin;
        for (uint64_t k = begin; k < begin + p->count; k++)
            w[k] = initial(p, seed, k - first);
    }
    free(params);
}

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
