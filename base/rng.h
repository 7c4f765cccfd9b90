/* Counter-based random numbers (Philox4x32-10): a value is a pure function of its key and counter, so any
 * step of any job can be recomputed in any order, on any device, by any number of threads.
 *
 * Counter words: {element / 4, row position in the global batch, purpose << 24 | layer, step}.
 */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdint.h>

#ifndef RNG_INLINE
#define RNG_INLINE static inline /* kernels/cuda/ compiles the same code for devices */
#endif

enum rng_purpose { RNG_INIT, RNG_DROPOUT, RNG_SHUFFLE, RNG_DATA, RNG_TEST, RNG_SAMPLE, RNG_SCORES, RNG_PURPOSE_COUNT };

struct rng_block {
    uint32_t v[4];
};

RNG_INLINE struct rng_block rng_philox(uint64_t seed, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (struct rng_block){{c0, c1, c2, c3}};
}

RNG_INLINE uint32_t rng_word2(enum rng_purpose purpose, uint32_t layer)
{
    return (uint32_t)purpose << 24 | layer;
}

/* Uniform in [0, 1) with 24 bits: exact in float. */
RNG_INLINE float rng_unit(uint32_t bits)
{
    return (float)(bits >> 8) * 0x1p-24f;
}

/* The position of sample `i` of `n` in epoch `epoch`: a keyed permutation of 0..n-1, O(1) per call
 * (a Feistel network over the next power of four, walked until it lands below n). n >= 1, i < n. */
uint64_t rng_permute(uint64_t seed, uint32_t epoch, uint64_t i, uint64_t n);

/* A small sequential generator for tests and delays. */
struct rng {
    uint64_t seed, at;
};
uint32_t rng_next(struct rng *r);
uint32_t rng_below(struct rng *r, uint32_t n); /* unbiased enough for tests: n well below 2^32 */

#endif
