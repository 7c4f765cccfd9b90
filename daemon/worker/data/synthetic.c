/* Computes synthetic samples: a task of any size that a model can learn, without any storage.
 *
 * For models of numbers, every sample has a random class. Its features are the prototype of the class,
 * uniform in [0, 1), plus noise, uniform in [-noise, noise). Training and validation use the same prototypes.
 *
 * For models of tokens, every token has a fixed successor, a function of data.seed and the token. With the
 * probability `noise` a random token comes instead of the successor. Small ids are drawn more often than
 * large ones, as a text has few frequent words. A model first learns which tokens are frequent, and then
 * which token follows which.
 *
 * Every number is a pure function of data.seed, split, sample and element. It is made with Philox, the
 * generator that dropout uses, and with + - * on floats only, so that the bits do not depend on the order of
 * samples, the machine or the threads.
 */
#include "daemon/worker/data/synthetic.h"

#include "base/rng.h"

/* Numbers of independent streams of random numbers. The numbers of STREAM_NEXT decide which token follows
 * which token. STREAM_TOKENS is for the tokens of training samples, and STREAM_TOKENS + 1 is for the tokens
 * of validation samples. */
enum { STREAM_NEXT = 5, STREAM_TOKENS = 6 };

/* Returns the number of the random stream for the labels of this split. Only labels come from this stream, so
 * they are independent of all other random numbers. */
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

/* Turns 32 random bits into a token id. The bits stand for a number u in [0, 1), and the id is vocab * u^4.
 * Small ids are therefore common, as in real text: half of all ids are in the first sixteenth of the
 * vocabulary. */
static uint32_t draw_token(const struct dataset *d, uint32_t bits)
{
    uint64_t square = (uint64_t)bits * bits >> 32;

    return (uint32_t)((square * square >> 32) * d->vocab >> 32);
}

static uint32_t next_token(const struct dataset *d, uint32_t token)
{
    return draw_token(d, rng_philox(d->seed, 0, token, rng_word2(RNG_DATA, STREAM_NEXT), 0).v[0]);
}

void synthetic_tokens(const struct dataset *d, uint64_t index, int32_t *ids, int32_t *targets)
{
    uint32_t stream = rng_word2(RNG_DATA, STREAM_TOKENS + (uint32_t)d->split), token = 0;
    struct rng_block b = {0};

    for (uint32_t i = 0; i <= d->seq; i++) {
        if (i % 2 == 0)
            b = rng_philox(d->seed, i / 2, (uint32_t)index, stream, (uint32_t)(index >> 32));
        const uint32_t *v = &b.v[i % 2 ? 2 : 0];
        token = i == 0 || rng_unit(v[0]) < d->noise ? draw_token(d, v[1]) : next_token(d, token);
        if (ids && i < d->seq)
            ids[i] = (int32_t)token;
        if (targets && i > 0)
            targets[i - 1] = (int32_t)token;
    }
}
