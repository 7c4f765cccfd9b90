/* The two 16-bit floating point types, and conversions between them and float.
 *
 *     type   sign, exponent, fraction bits   largest value       smallest value above 0
 *     BF16   1, 8, 7                         3.39e38             9.2e-41 (subnormal)
 *     F16    1, 5, 10                        65504               6.0e-8 (subnormal)
 *
 * Every 16-bit number is also a float, so widening is exact. Rounding takes the nearest 16-bit number. If two
 * are equally near, it takes the one whose last bit is 0, as IEEE 754 and PyTorch do. A float that is too
 * large becomes infinite, and a NaN stays a NaN.
 *
 * Everything here uses integer operations only. So the bits are the same on every processor, and the state of
 * the floating point unit, such as flushing subnormal numbers to 0, has no influence. The functions for one
 * number are inline and have no branches, so loops over them become vector code.
 */
#ifndef KERNELS_HALF_H
#define KERNELS_HALF_H

#include <stdint.h>
#include <string.h>

#include "kernels/dtype.h"

static inline uint32_t half_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float half_float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Returns `yes` if `condition` is 1 and `no` if it is 0, without a branch. */
static inline uint32_t half_choose(uint32_t condition, uint32_t yes, uint32_t no)
{
    const uint32_t mask = 0u - condition;
    return (yes & mask) | (no & ~mask);
}

/* Returns the bits of the float with the value of the BF16 number `v`. */
static inline uint32_t bf16_bits(uint16_t v)
{
    return (uint32_t)v << 16;
}

/* Returns the BF16 number nearest to the float with the bits `x`. */
static inline uint16_t bf16_of_bits(uint32_t x)
{
    const uint32_t is_nan = (x & 0x7fffffffu) > 0x7f800000u;
    const uint32_t rounded = x + 0x7fffu + (x >> 16 & 1);

    return (uint16_t)half_choose(is_nan, (x | 0x400000u) >> 16, rounded >> 16);
}

/* Returns the bits of the float with the value of the F16 number `v`. */
static inline uint32_t f16_bits(uint16_t v)
{
    const uint32_t sign = (uint32_t)(v & 0x8000u) << 16, rest = v & 0x7fffu;
    /* A normal number: the fraction moves by 13 bits, and the exponent has another bias. */
    const uint32_t normal = (rest << 13) + ((127u - 15u) << 23);
    /* Infinity and NaN: the largest exponent stays the largest. */
    const uint32_t special = rest << 13 | 0x7f800000u;
    /* A subnormal number is rest * 2^-24. As a float it is normal, with the exponent of its highest bit. */
    const uint32_t top = 31u - (uint32_t)__builtin_clz(rest | 1u);
    const uint32_t subnormal =
        half_choose(rest != 0, ((top + 103u) << 23) | (rest << (23u - top) & 0x7fffffu), 0);

    return sign | half_choose(rest >= 0x7c00u, special, half_choose(rest >= 0x400u, normal, subnormal));
}

/* Returns the F16 number nearest to the float with the bits `x`. */
static inline uint16_t f16_of_bits(uint32_t x)
{
    const uint32_t sign = x >> 16 & 0x8000u, size = x & 0x7fffffffu;
    /* From 2^-14 on the result is normal: drop 13 bits of the fraction and round. A carry may reach the
     * exponent, which is right. */
    const uint32_t normal = (size - ((127u - 15u) << 23) + 0xfffu + (size >> 13 & 1)) >> 13;
    /* Below 2^-14 the result is a multiple of 2^-24. Numbers below 2^-25 become 0. */
    const uint32_t exponent = size >> 23, shift = half_choose(exponent > 101u, 126u - exponent, 25u) & 31u;
    const uint32_t fraction = half_choose(exponent > 101u, (size & 0x7fffffu) | 0x800000u, 0);
    const uint32_t subnormal =
        (fraction + half_choose(shift > 0, (1u << ((shift - 1) & 31u)) - 1u, 0) + (fraction >> shift & 1)) >>
        shift;
    const uint32_t is_nan = size > 0x7f800000u, is_large = size >= 0x477ff000u; /* rounds to 65536 or more */
    const uint32_t finite = half_choose(size >= 0x38800000u, normal, subnormal);

    return (uint16_t)(sign | half_choose(is_nan, 0x7e00u | (size >> 13 & 0x3ffu),
                                         half_choose(is_large, 0x7c00u, finite)));
}

/* The same conversions for values instead of bits. */
static inline float bf16_to_float(uint16_t v)
{
    return half_float_of(bf16_bits(v));
}
static inline uint16_t bf16_from_float(float x)
{
    return bf16_of_bits(half_float_bits(x));
}
static inline float f16_to_float(uint16_t v)
{
    return half_float_of(f16_bits(v));
}
static inline uint16_t f16_from_float(float x)
{
    return f16_of_bits(half_float_bits(x));
}

/* Copies n elements of type `dtype` to floats. `dtype` is F32, BF16 or F16. The arrays must not overlap. */
void half_widen(enum dtype dtype, const void *from, float *ret, uint64_t n);
/* Rounds n floats to elements of type `dtype`, which is F32, BF16 or F16. The arrays must not overlap. */
void half_round(enum dtype dtype, const float *from, void *ret, uint64_t n);

#endif
