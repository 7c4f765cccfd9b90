/* Synthetic samples: a task that can be learnt, of any size, without storage. Sample i of a split has a
 * random class c; its features are the prototype of c, uniform in [0, 1), plus noise, uniform in [-noise,
 * noise). Everything is a pure function of (data.seed, split, sample, element), so any order, machine and
 * number of threads gives the same bits: only + - * on floats, and the same Philox as dropout. Training and
 * validation share the prototypes.
 */
#include "daemon/worker/synthetic.h"

#include "base/rng.h"

/* The third counter word, beside the purpose: what a number is for. */
static uint32_t stream_label(const struct dataset *d)
{
    return rng_word2(RNG_DATA, 1 + 2 * (uint32_t)d->split);
}

static uint32_t stream_noise(const struct dataset *d)
{
    return rng_word2(RNG_DATA, 2 + 2 * (uint32_t)d->split);
}

uint32_t synthetic_label(const struct dataset *d, uint64_t index)
{
    struct rng_block b = rng_philox(d->seed, 0, (uint32_t)index, stream_label(d), (uint32_t)(index >> 32));

    return (uint32_t)((uint64_t)b.v[0] * d->classes >> 32);
}

void synthetic_row(const struct dataset *d, uint64_t index, float *x)
{
    uint32_t label = synthetic_label(d, index), stream = stream_noise(d);

    for (uint32_t f = 0; f < d->features; f += 4) {
        struct rng_block proto = rng_philox(d->seed, f / 4, label, rng_word2(RNG_DATA, 0), 0);
        struct rng_block noise = rng_philox(d->seed, f / 4, (uint32_t)index, stream, (uint32_t)(index >> 32));
        for (uint32_t i = 0; i < 4 && f + i < d->features; i++) {
            float away = d->noise * (2 * rng_unit(noise.v[i]) - 1);
            x[f + i] = rng_unit(proto.v[i]) + away;
        }
    }
}
