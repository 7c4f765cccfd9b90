/* Implements sampler.h: samples a token.
 *
 * The random number is a function of the seed and the number of the token (base/rng.h). A text is therefore
 * the same on every machine that computes the same logits, and asking for more tokens continues the same
 * text. Probabilities are summed in double and in the order of ids, so that the result does not depend on how
 * the k largest logits were found.
 */
#include "daemon/worker/model/sampler.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/rng.h"

static bool is_larger(const float *logits, uint32_t a, uint32_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static uint32_t find_largest(const float *logits, uint32_t vocab)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* Moves the id at position `at` down to its place in the heap. The heap contains the ids of the largest
 * logits found so far, with the smallest of these logits at the top. */
static void sift_down(const float *logits, uint32_t *heap, uint32_t n, uint32_t at)
{
    for (;;) {
        uint32_t least = at;
        for (uint32_t child = 2 * at + 1; child <= 2 * at + 2 && child < n; child++)
            if (is_larger(logits, heap[least], heap[child]))
                least = child;
        if (least == at)
            return;
        uint32_t moved = heap[at];
        heap[at] = heap[least];
        heap[least] = moved;
        at = least;
    }
}

/* Returns the id of the token with the k-th largest logit. `heap` is scratch memory for `k` ids. */
static uint32_t find_kth_largest(const float *logits, uint32_t vocab, uint32_t k, uint32_t *heap)
{
    for (uint32_t i = 0; i < k; i++)
        heap[i] = i;
    for (uint32_t i = k; i-- > 0;)
        sift_down(logits, heap, k, i);
    for (uint32_t i = k; i < vocab; i++) {
        if (!is_larger(logits, i, heap[0]))
            continue;
        heap[0] = i;
        sift_down(logits, heap, k, 0);
    }
    return heap[0];
}

/* Returns the n-th random number for this seed. It has 53 random bits and is uniform in [0, 1). */
static double random_unit(uint64_t seed, uint64_t n)
{
    struct rng_block b = rng_philox(seed, (uint32_t)n, (uint32_t)(n >> 32), rng_word2(RNG_SAMPLE, 0), 0);
    return (double)((uint64_t)(b.v[0] >> 5) << 26 | b.v[1] >> 6) * 0x1p-53;
}

/* Returns the weight of token `i` in the random choice. Weights are proportional to probabilities. `best` is
 * the likeliest token, and its weight is 1. `least` is the token with the k-th largest logit. A token with a
 * smaller logit than `least` has weight 0. */
static double weigh(const struct sampler *s, const float *logits, uint32_t best, uint32_t least, uint32_t i)
{
    if (is_larger(logits, least, i))
        return 0;
    return exp(((double)logits[i] - (double)logits[best]) / s->temperature);
}

uint32_t sampler_choose(const struct sampler *s, const float *logits, uint32_t vocab, uint64_t n,
                        uint32_t *order)
{
    uint32_t best = find_largest(logits, vocab), k = s->top_k > 0 && s->top_k < vocab ? s->top_k : vocab;
    double sum = 0, at = 0;
    if (s->temperature <= 0 || k == 1)
        return best;
    uint32_t least = find_kth_largest(logits, vocab, k, order);
    for (uint32_t i = 0; i < vocab; i++)
        sum += weigh(s, logits, best, least, i);
    double want = random_unit(s->seed, n) * sum;
    for (uint32_t i = 0; i < vocab; i++) {
        at += weigh(s, logits, best, least, i);
        if (at > want)
            return i;
    }
    /* The loop above finds a token unless rounding made `want` equal to `sum`. In that case, return the
     * likeliest token. */
    return best;
}
