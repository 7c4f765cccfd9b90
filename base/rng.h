/* Counter-based random numbers (Philox4x32-10). A random number is a pure function of a key and a counter. So
 * any step of a job can be recomputed in any order, on any device, and by any number of threads.
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
 * The four counter words are full, so the high bits of the quad's number go into the key. A job has one seed.
 * Therefore two different (quad, row, purpose, layer, step) of a job never have the same key and counter, and
 * no element repeats the random numbers of another. Other purposes define the counter words where they draw
 * their numbers.
 *
 * All functions are pure, except those of struct rng. Any thread may call them.
 */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdint.h>

#ifndef RNG_INLINE
/* Code in kernels/cuda/ defines RNG_INLINE before it includes this file, so that the functions also compile
 * for GPUs. */
#define RNG_INLINE static inline
#endif

/* The purposes of random numbers. Each purpose has its own sequence. Do not change the values of this enum,
 * because then the results of every job would change. */
enum rng_purpose {
    RNG_INIT,    /* initial weights */
    RNG_DROPOUT, /* dropout of activations */
    RNG_SHUFFLE, /* order of the samples in an epoch */
    RNG_DATA,    /* synthetic data */
    RNG_TEST,    /* struct rng */
    RNG_SAMPLE,  /* tokens that `tutti sample` generates */
    RNG_SCORES,  /* dropout of attention scores */
    RNG_PHASE,   /* seeds of the phases of a job */
    RNG_PURPOSE_COUNT
};

struct rng_block {
    uint32_t v[4];
};

/* Returns the block of four random words that Philox computes from the key `seed` and the counter (c0, c1,
 * c2, c3). */
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

/* Returns the word c2 of the counter of rng_philox. It combines a purpose and the number of a layer, which
 * must be less than 2^24. */
RNG_INLINE uint32_t rng_word2(enum rng_purpose purpose, uint32_t layer)
{
    return (uint32_t)purpose << 24 | layer;
}

/* Returns the seed for the random numbers of a job's phase. Phase 0 has the seed of the job. Every other
 * phase has a seed of its own, because each phase counts its steps from 0. With a common seed, all phases
 * would draw the same dropout. */
RNG_INLINE uint64_t rng_phase_seed(uint64_t seed, uint32_t phase)
{
    struct rng_block b = rng_philox(seed, phase, 0, rng_word2(RNG_PHASE, 0), 0);
    return phase == 0 ? seed : (uint64_t)b.v[0] << 32 | b.v[1];
}

/* Returns the key of rng_philox for quad number `quad` of a row. A quad is four consecutive elements. The key
 * is the seed plus a number, which is 0 for the first 2^34 elements of a row. */
RNG_INLINE uint64_t rng_quad_key(uint64_t seed, uint64_t quad)
{
    return seed + (quad >> 32 << 32);
}

/* Returns four random words, one for each of the elements 4 * quad to 4 * quad + 3 of a row. */
RNG_INLINE struct rng_block rng_quad(uint64_t seed, uint64_t quad, uint32_t row, uint32_t word2,
                                     uint32_t step)
{
    return rng_philox(rng_quad_key(seed, quad), (uint32_t)quad, row, word2, step);
}

/* Turns 32 random bits into a float that is at least 0 and less than 1. Uses only 24 of the bits, because a
 * float has 24 significant bits. */
RNG_INLINE float rng_unit(uint32_t bits)
{
    return (float)(bits >> 8) * 0x1p-24f;
}

/* Returns the number of the sample at position `i` of a shuffled epoch. Each of the `n` samples occurs at
 * exactly one position. The function needs no table, and its average time does not depend on `n`. Requires n
 * >= 1 and i < n. */
uint64_t rng_permute(uint64_t seed, uint32_t epoch, uint64_t i, uint64_t n);

/* A small generator for tests and random delays. Each call of rng_next returns the next random number. A
 * struct rng belongs to one thread. */
struct rng {
    uint64_t seed;
    uint64_t at; /* numbers drawn so far */
};
uint32_t rng_next(struct rng *r);
/* Returns a random number from 0 to n - 1. `n` must be at least 1 and should be far below 2^32, because the
 * numbers are not quite equally likely if `n` is very large. */
uint32_t rng_below(struct rng *r, uint32_t n);

#endif
