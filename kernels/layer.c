/* The table of layer kinds, and the initial weights. Pure functions over constant data, any thread. */
#include <math.h>

#include "base/rng.h"
#include "kernels/layer_impl.h"

const struct layer_type *const layer_types[LAYER_COUNT] = {
#define LAYER(name) [LAYER_##name] = &layer_##name,
#include "kernels/layers.def"
#undef LAYER
};

/* Word `at % 4` of the block at / 4: `at` counts the elements of the whole W block, so a parameter's numbers
 * do not depend on how many a call fills. */
static float init_unit(uint64_t seed, uint32_t layer, uint64_t at)
{
    uint64_t block = at / 4;
    struct rng_block b =
        rng_philox(seed, (uint32_t)block, (uint32_t)(block >> 32), rng_word2(RNG_INIT, layer), 0);
    return rng_unit(b.v[at % 4]);
}

static void init_uniform(const struct layer *l, uint64_t seed, const struct layer_param *p, float *w)
{
    uint64_t first = p->offset / sizeof *w;
    float bound = (float)(1.0 / sqrt((double)p->fan_in));

    for (uint64_t i = first; i < first + p->count; i++)
        w[i] = (2.0f * init_unit(seed, l->id, i) - 1.0f) * bound;
}

void layer_init(const struct layer *l, uint64_t seed, float *w)
{
    struct layer_param params[4];
    uint32_t n = layer_type(l)->params(l, params);

    for (uint32_t i = 0; i < n; i++)
        switch (params[i].init) {
        case INIT_UNIFORM_FAN_IN:
            init_uniform(l, seed, &params[i], w);
            break;
        }
}
