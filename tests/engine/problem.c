/* See problem.h. */
#include "tests/engine/problem.h"

#include <math.h>

static uint32_t classes(const struct engine_case *c)
{
    return c->chain.layers[c->chain.model.n_layers - 1].in;
}

static bool is_mse(const struct engine_case *c)
{
    return c->chain.layers[c->chain.model.n_layers - 1].kind == LAYER_mse;
}

void problem_fill(const struct engine_case *c, uint64_t step, uint32_t micro, float *x, void *target)
{
    const struct random_chain *k = &c->chain;
    uint32_t n = k->rows * k->layers[0].in, width = classes(c);
    for (uint32_t i = 0; i < n; i++)
        x[i] = rng_unit(rng_philox(c->seed, i, micro, rng_word2(RNG_DATA, 0), (uint32_t)step).v[0]) * 2 - 1;
    if (c->nan_step != 0 && step == c->nan_step)
        x[n / 2] = NAN;
    for (uint32_t i = 0; i < k->rows; i++) {
        uint32_t label = rng_philox(c->seed, i, micro, rng_word2(RNG_DATA, 1), (uint32_t)step).v[0] % width;
        if (!is_mse(c)) {
            ((int32_t *)target)[i] = (int32_t)label;
            continue;
        }
        for (uint32_t e = 0; e < width; e++)
            ((float *)target)[i * width + e] = e == label;
    }
}

struct step_args problem_args(const struct engine_case *c, uint64_t step)
{
    uint32_t batch = c->chain.rows * c->chain.n_micro;
    return (struct step_args){
        .step = step,
        .seed = c->seed + 1,
        .lr = 0.05f / (float)(step + 1),
        .bias_correct1 = (float)(1 / (1 - pow(0.9, (double)step + 1))),
        .bias_correct2 = (float)(1 / (1 - pow(0.999, (double)step + 1))),
        .grad_scale = 1.0f / (float)batch,
        .valid_rows = batch,
        .training = 1,
    };
}

struct step_args problem_eval_args(const struct engine_case *c)
{
    uint32_t batch = c->chain.rows * c->chain.n_micro;
    return (struct step_args){.step = 0, .valid_rows = batch - batch / 3, .grad_scale = 1};
}

uint64_t problem_hash(uint64_t h, const void *p, uint64_t bytes)
{
    const unsigned char *b = p;
    for (uint64_t i = 0; i < bytes; i++)
        h = (h ^ b[i]) * 0x100000001b3ull;
    return h;
}
