/* Counter-based random numbers (Philox4x32-10): a value is a pure function of its key and counter, so any
 * step of any job can be recomputed in any order, on any device, by any number of threads.
 *
 * Dropout numbers the elements of a row. Four consecutive elements (a quad) share one block of random
 * numbers:
 *
 *     counter word 0   low 32 bits of the quad's number, element / 4
 *     counter word 1   position of the row in the global batch
 *     counter word 2   purpose << 24 | layer
 *     counter word 3   step
 *     key              seed; the high 32 bits of the quad's number are added to its high half
 *
 * The other counter words have no room for the high bits of the quad's number. A job has one seed, so two
 * different (quad, row, purpose, layer, step) of a job never share both key and counter: no two elements
 * repeat each other's numbers by construction. Other purposes lay out the words where they draw their
 * numbers.
 *
 * Pure functions; any thread.
 */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdint.h>

#ifndef RNG_INLINE
#define RNG_INLINE static inline /* kernels/cuda/ compiles the same code for devices */
#endif

enum rng_purpose {
    RNG_INIT,
    RNG_DROPOUT,
    RNG_SHUFFLE,
    RNG_DATA,
    RNG_TEST,
    RNG_SAMPLE,
    RNG_SCORES,
    RNG_PURPOSE_COUNT
};

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

/* The key for a quad of elements. Rows of fewer than 2^34 elements have the seed itself. */
RNG_INLINE uint64_t rng_quad_key(uint64_t seed, uint64_t quad)
{
    return seed + (quad >> 32 << 32);
}

/* The random numbers of elements 4 * quad to 4 * quad + 3 of a row. */
RNG_INLINE struct rng_block rng_quad(uint64_t seed, uint64_t quad, uint32_t row, uint32_t word2,
                                     uint32_t step)
{
    return rng_philox(rng_quad_key(seed, quad), (uint32_t)quad, row, word2, step);
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
