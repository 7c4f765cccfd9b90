/* The permutation that shuffles samples, and the small sequential generator. Philox itself is in rng.h.
 *
 * rng_permute is a Feistel network with Philox as its round function. A Feistel network is a bijection of its
 * domain for any round function. So no table is stored, and each position can be computed on its own:
 * resuming at step N costs the same as starting at step 0.
 *
 * The network has two halves of equal width, so its domain is a power of four, the least one that holds n. A
 * result outside 0..n-1 is fed into the network again until it is inside. This ends, because the network is a
 * permutation and the first input was inside. It takes fewer than four passes on average, because the domain
 * is smaller than 4n.
 *
 * The functions are pure, except that a struct rng counts its numbers and belongs to one thread.
 */
#include "base/rng.h"

#include <assert.h>

/* In theory, four rounds of a Feistel network are enough for a pseudorandom permutation. Two more rounds
 * give better results if there are few samples. */
enum { FEISTEL_ROUNDS = 6 };

/* Returns the number of bits in each half of the Feistel network: the smallest h for which 4^h is at least
 * n. */
static int half_bits(uint64_t n)
{
    int bits = n > 1 ? 64 - __builtin_clzll(n - 1) : 0;

    return (bits + 1) / 2;
}

static uint64_t feistel(uint64_t seed, uint32_t epoch, uint64_t x, int half)
{
    uint32_t mask = (uint32_t)((UINT64_C(1) << half) - 1);
    uint32_t left = (uint32_t)(x >> half), right = (uint32_t)x & mask;

    for (uint32_t round = 0; round < FEISTEL_ROUNDS; round++) {
        struct rng_block f = rng_philox(seed, right, round, rng_word2(RNG_SHUFFLE, 0), epoch);
        uint32_t next = left ^ (f.v[0] & mask);
        left = right;
        right = next;
    }
    return (uint64_t)left << half | right;
}

uint64_t rng_permute(uint64_t seed, uint32_t epoch, uint64_t i, uint64_t n)
{
    int half = half_bits(n);

    assert(n >= 1 && i < n);
    do
        i = feistel(seed, epoch, i, half);
    while (i >= n);
    return i;
}

/* Computes a block of four random words and returns only one of them. This is slow, but the state of the
 * generator is only two numbers. */
uint32_t rng_next(struct rng *r)
{
    uint64_t block = r->at / 4;
    uint32_t word = (uint32_t)(r->at % 4);

    r->at++;
    return rng_philox(r->seed, (uint32_t)block, (uint32_t)(block >> 32), rng_word2(RNG_TEST, 0), 0).v[word];
}

uint32_t rng_below(struct rng *r, uint32_t n)
{
    assert(n >= 1);
    return (uint32_t)((uint64_t)rng_next(r) * n >> 32);
}
