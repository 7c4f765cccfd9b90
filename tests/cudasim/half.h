/* Conversions between float and the numbers of 16 or 19 bits that GPUs compute with, as PTX defines them:
 * rounding takes the nearest number, and the even one of two that are equally near. Everything here works on
 * bits with integers, so no setting of the floating point unit has an influence.
 *
 *     bf16   1 bit sign, 8 bits exponent, 7 bits fraction
 *     f16    1 bit sign, 5 bits exponent, 10 bits fraction
 *     tf32   1 bit sign, 8 bits exponent, 10 bits fraction, stored as a float
 *
 * Rounding a NaN gives the NaN 0x7fff. Translated kernels and gemm.c include this file. */
#ifndef CUDASIM_HALF_H
#define CUDASIM_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t half_bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float half_with_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float as_bf16(uint16_t v)
{
    return half_with_bits((uint32_t)v << 16);
}

static inline uint16_t of_bf16(float x)
{
    const uint32_t bits = half_bits_of(x);

    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return 0x7fff;
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static inline float as_f16(uint16_t v)
{
    const uint32_t sign = (uint32_t)(v & 0x8000u) << 16, exponent = v >> 10 & 31, fraction = v & 0x3ffu;

    if (exponent == 31) /* infinity or NaN */
        return half_with_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent > 0)
        return half_with_bits(sign | (exponent + 112) << 23 | fraction << 13);
    if (fraction == 0)
        return half_with_bits(sign);
    /* A subnormal number is fraction * 2^-24. As a float it is normal. */
    const uint32_t shift = (uint32_t)__builtin_clz(fraction) - 21;
    return half_with_bits(sign | (113 - shift) << 23 | (fraction << (13 + shift) & 0x7fffffu));
}

static inline uint16_t of_f16(float x)
{
    const uint32_t bits = half_bits_of(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    const uint32_t exponent = size >> 23;

    if (size > 0x7f800000u)
        return 0x7fff;
    if (size >= 0x477ff000u) /* 65520, which rounds to 65536 */
        return (uint16_t)(sign | 0x7c00u);
    if (exponent < 102) /* less than 2^-25, half of the smallest number */
        return (uint16_t)sign;
    /* The number of bits of the significand that do not fit. */
    const uint32_t drop = exponent >= 113 ? 13 : 126 - exponent;
    const uint32_t significand = (size & 0x7fffffu) | 0x800000u;
    const uint32_t rest = significand & ((1u << drop) - 1), half = 1u << (drop - 1);
    uint32_t kept = significand >> drop;
    kept += rest > half || (rest == half && kept & 1);
    /* A carry out of the fraction raises the exponent, which is right. */
    return (uint16_t)(sign + (exponent >= 113 ? ((exponent - 112) << 10) + kept - 0x400u : kept));
}

/* Returns the TF32 number nearest to `x`. */
static inline float round_tf32(float x)
{
    const uint32_t bits = half_bits_of(x);

    if ((bits & 0x7fffffffu) >= 0x7f800000u) /* infinity or NaN */
        return x;
    return half_with_bits((bits + 0xfffu + (bits >> 13 & 1)) & ~0x1fffu);
}

#endif
