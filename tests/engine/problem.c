/* See problem.h. */
#include "tests/engine/problem.h"

#include <math.h>
#include <stdlib.h>

#include "base/arena.h"
#include "kernels/half.h"

static uint32_t classes(const struct layer *loss)
{
    return loss->type == &layer_lm_head ? loss->lm_head.vocab : layer_in(loss);
}

/* Targets of a row. */
static uint32_t targets(const struct layer *loss)
{
    return layer_seq(loss);
}

static uint32_t draw(const struct engine_case *c, uint64_t step, uint32_t micro, uint32_t what, uint32_t i)
{
    return rng_philox(c->seed, i, micro, rng_word2(RNG_DATA, what), (uint32_t)step).v[0];
}

/* Ids, and the targets of all tokens; some are ignored. */
static void fill_tokens(const struct engine_case *c, uint64_t step, const struct layer *loss, uint32_t micro,
                        int32_t *x, int32_t *target)
{
    for (uint32_t i = 0; i < c->chain.rows * targets(loss); i++) {
        uint32_t label = draw(c, step, micro, 1, i);
        x[i] = (int32_t)(draw(c, step, micro, 0, i) % classes(loss));
        target[i] = label % 7 == 0 ? -1 : (int32_t)(label % classes(loss));
    }
}

void problem_fill(const struct engine_case *c, uint64_t step, uint32_t loss_layer, uint32_t micro, void *x,
                  void *target)
{
    const struct random_chain *k = &c->chain;
    const struct layer *loss = &k->layers[loss_layer];
    uint32_t n = k->rows * layer_in(&k->layers[0]), width = classes(loss);
    struct layer_sizes size;
    layer_type(&k->layers[0])->sizes(&k->layers[0], k->rows, &size);
    if (size.x_dtype == DTYPE_I32) {
        fill_tokens(c, step, loss, micro, x, target);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        float one = rng_unit(draw(c, step, micro, 0, i)) * 2 - 1;
        if (i == n / 2 && step < engine_steps(c) && step < 32 && c->nan_steps & 1u << step)
            one = NAN;
        half_round(size.x_dtype, &one, (char *)x + i * dtype_size(size.x_dtype), 1);
    }
    for (uint32_t i = 0; i < k->rows; i++) {
        uint32_t label = draw(c, step, micro, 1, i) % width;
        if (loss->type != &layer_mse) {
            ((int32_t *)target)[i] = (int32_t)label;
            continue;
        }
        for (uint32_t e = 0; e < width; e++)
            ((float *)target)[i * width + e] = e == label;
    }
}

struct step_args problem_args(const struct engine_case *c, uint64_t step, uint32_t group)
{
    uint32_t batch = c->chain.rows * c->chain.n_micro;
    const struct layer *last = &c->chain.layers[c->chain.model.n_layers - 1];
    return (struct step_args){
        .step = step,
        .seed = c->seed + 1,
        .lr = 0.05f / (float)(step + 1) / (float)(group + 1),
        .grad_scale = 1.0f / (float)(batch * targets(last)),
        .valid_rows = batch,
        .training = 1,
    };
}

struct step_args problem_eval_args(const struct engine_case *c)
{
    uint32_t batch = c->chain.rows * c->chain.n_micro;
    return (struct step_args){.step = 0, .valid_rows = batch - batch / 3, .grad_scale = 1};
}

void problem_init(const struct engine_case *c, uint32_t layer, void *w, float *master)
{
    const struct layer *l = &c->chain.layers[layer];
    struct layer_sizes size;
    layer_type(l)->sizes(l, c->chain.rows, &size);
    if (size.w_dtype == DTYPE_F32) {
        layer_init(l, c->seed, w);
        return;
    }
    /* A layer that is never updated has no optimizer state, and so no master weights. */
    float *floats = master != NULL ? master : xcalloc(layer_w_elements(&size), sizeof *floats);
    layer_init(l, c->seed, floats);
    half_round(size.w_dtype, floats, w, layer_w_elements(&size));
    if (floats != master)
        free(floats);
}

void problem_init_group(const struct engine_case *c, uint32_t group, struct group_state *state)
{
    const struct optimizer *o = &random_optimizers(&c->chain)[group];
    if (o->scaling.growth_steps > 0)
        state->loss_scale = o->scaling.start;
}

uint64_t problem_hash(uint64_t h, const void *p, uint64_t bytes)
{
    const unsigned char *b = p;
    for (uint64_t i = 0; i < bytes; i++)
        h = (h ^ b[i]) * 0x100000001b3ull;
    return h;
}
