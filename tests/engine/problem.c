/* See problem.h. */
#include "tests/engine/problem.h"

#include <math.h>

static const struct layer *loss_of(const struct engine_case *c)
{
    return &c->chain.layers[c->chain.model.n_layers - 1];
}

static uint32_t classes(const struct engine_case *c)
{
    return loss_of(c)->kind == LAYER_lm_head ? loss_of(c)->vocab : loss_of(c)->in;
}

/* Targets of a row. */
static uint32_t targets(const struct engine_case *c)
{
    return loss_of(c)->seq > 1 ? loss_of(c)->seq : 1;
}

static bool is_mse(const struct engine_case *c)
{
    return loss_of(c)->kind == LAYER_mse;
}

static uint32_t draw(const struct engine_case *c, uint64_t step, uint32_t micro, uint32_t what, uint32_t i)
{
    return rng_philox(c->seed, i, micro, rng_word2(RNG_DATA, what), (uint32_t)step).v[0];
}

/* Ids, and the targets of all tokens; some are ignored. */
static void fill_tokens(const struct engine_case *c, uint64_t step, uint32_t micro, int32_t *x,
                        int32_t *target)
{
    for (uint32_t i = 0; i < c->chain.rows * targets(c); i++) {
        uint32_t label = draw(c, step, micro, 1, i);
        x[i] = (int32_t)(draw(c, step, micro, 0, i) % classes(c));
        target[i] = label % 7 == 0 ? -1 : (int32_t)(label % classes(c));
    }
}

void problem_fill(const struct engine_case *c, uint64_t step, uint32_t micro, float *x, void *target)
{
    const struct random_chain *k = &c->chain;
    uint32_t n = k->rows * k->layers[0].in, width = classes(c);
    if (layer_type(&k->layers[0])->takes_ids) {
        fill_tokens(c, step, micro, (int32_t *)(void *)x, target);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        x[i] = rng_unit(draw(c, step, micro, 0, i)) * 2 - 1;
    if (step < ENGINE_STEPS && c->nan_steps & 1u << step)
        x[n / 2] = NAN;
    for (uint32_t i = 0; i < k->rows; i++) {
        uint32_t label = draw(c, step, micro, 1, i) % width;
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
        .grad_scale = 1.0f / (float)(batch * targets(c)),
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
