/* Loops over the conversions of half.h. Each element is converted alone, so the bits do not depend on how the
 * caller cuts an array. Any thread may call these functions. */
#include "kernels/half.h"

#include <assert.h>

#include "kernels/clones.h"

CPU_CLONES static void widen_bf16(const uint16_t *restrict from, float *restrict to, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        to[i] = bf16_to_float(from[i]);
}

CPU_CLONES static void widen_f16(const uint16_t *restrict from, float *restrict to, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        to[i] = f16_to_float(from[i]);
}

CPU_CLONES static void round_bf16(const float *restrict from, uint16_t *restrict to, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        to[i] = bf16_from_float(from[i]);
}

CPU_CLONES static void round_f16(const float *restrict from, uint16_t *restrict to, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        to[i] = f16_from_float(from[i]);
}

void half_widen(enum dtype dtype, const void *from, float *ret, uint64_t n)
{
    if (dtype == DTYPE_F32)
        memcpy(ret, from, n * sizeof *ret);
    else if (dtype == DTYPE_BF16)
        widen_bf16(from, ret, n);
    else if (dtype == DTYPE_F16)
        widen_f16(from, ret, n);
    else
        assert(!"no floating point type of at most 32 bits");
}

void half_round(enum dtype dtype, const float *from, void *ret, uint64_t n)
{
    if (dtype == DTYPE_F32)
        memcpy(ret, from, n * sizeof *from);
    else if (dtype == DTYPE_BF16)
        round_bf16(from, ret, n);
    else if (dtype == DTYPE_F16)
        round_f16(from, ret, n);
    else
        assert(!"no floating point type of at most 32 bits");
}
