/* Functions that decide which elements dropout keeps. The comment of op_dropout in kernels/op.h describes the
 * rule. */
#ifndef KERNELS_CUDA_DROPOUT_CUH
#define KERNELS_CUDA_DROPOUT_CUH

#include "kernels/op.h"

#define RNG_INLINE static inline __host__ __device__
#include "base/rng.h"

/* The arguments of dropout. A kernel gets this struct by value. */
struct dropout {
    uint64_t seed;
    uint32_t first_row, word2, step;
    float p;
};

static inline struct dropout dropout_of(const struct step_args *step, enum rng_purpose purpose,
                                        uint32_t layer, uint32_t first_row, float p)
{
    struct dropout d;

    d.seed = step->seed;
    d.first_row = first_row;
    d.word2 = rng_word2(purpose, layer);
    d.step = (uint32_t)step->step;
    d.p = p;
    return d;
}

/* Returns four bits, one for each of four elements of a row. Bit w is set if dropout keeps element 4 * quad +
 * w. */
static __device__ __forceinline__ unsigned dropout_kept(const struct dropout *d, uint32_t row, uint64_t quad)
{
    const struct rng_block random = rng_quad(d->seed, quad, d->first_row + row, d->word2, d->step);
    unsigned kept = 0;

    for (unsigned w = 0; w < 4; w++)
        kept |= (unsigned)(rng_unit(random.v[w]) >= d->p) << w;
    return kept;
}

#endif
