/* exp, tanh and what is made of them, as plain arithmetic that compilers turn into vector code.
 *
 * Only + - * / and selections, in a fixed order and without fused multiply-add: the same bits on every
 * instruction set, scalar or vector. (The C library's own vary with the machine, and a vector version of it
 * with the position in the array.) Arguments of exp are clamped to +-80, so that nothing on the way is a
 * denormal. NaN in gives NaN out: each clamp is written so that a failed comparison passes the value through.
 * Errors: tests/unit/test_ops.c.
 */
#ifndef KERNELS_CPU_VMATH_H
#define KERNELS_CPU_VMATH_H

#include <stdint.h>
#include <string.h>

#ifndef VMATH_INLINE
#define VMATH_INLINE static inline __attribute__((always_inline)) /* kernels/cuda/ compiles it for devices */
#endif

#define VMATH_EXP_MAX 80.0f

VMATH_INLINE float vmath_clamp(float x, float most)
{
    x = x > most ? most : x;
    return x < -most ? -most : x;
}

/* e^x for |x| <= 80, clamped beyond; within 1.5 ulp. x = n ln 2 + r, |r| <= ln 2 / 2, and a polynomial for
 * e^r. */
VMATH_INLINE float vmath_exp(float x)
{
    const float round_magic =
        12582912.0f; /* 1.5 * 2^23: adding it leaves the nearest integer in the low bits */

    x = vmath_clamp(x, VMATH_EXP_MAX);
    float t = x * 1.44269504f + round_magic;
    float n = t - round_magic;
    float r = x - n * 0.693359375f; /* ln 2 in two parts; the first has few bits, so the product is exact */
    r = r - n * -2.12194440e-4f;

    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = ((p * r) * r + r) + 1.0f;

    uint32_t bits; /* 2^n; a product, not a sum of exponents, so that NaN stays NaN */
    memcpy(&bits, &t, sizeof bits);
    bits = (bits << 23) + 0x3f800000u;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

/* Within 3 ulp. */
VMATH_INLINE float vmath_tanh(float x)
{
    float a = __builtin_fabsf(x);
    float z = x * x;

    float p = -5.70498872745e-3f;
    p = p * z + 2.06390887954e-2f;
    p = p * z + -5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z + -3.33332819422e-1f;
    float near = (p * z) * x + x;

    float far = 1.0f - 2.0f / (vmath_exp(2.0f * a) + 1.0f);
    return a < 0.625f ? near : __builtin_copysignf(far, x);
}

/* gelu in its tanh form is x * s(v), s the logistic function, v = 2 sqrt(2/pi) (x + 0.044715 x^3). Written
 * so, it has no cancellation at negative x. Beyond +-12 it is exactly 0 or x in float; clamping there keeps
 * x^3 finite. */
#define VMATH_GELU_SCALE 1.59576912f
#define VMATH_GELU_CUBE  0.044715f

struct vmath_gelu {
    float x; /* clamped */
    float x2;
    float e; /* exp(-v) */
    float s; /* 1 / (1 + e) */
};

VMATH_INLINE struct vmath_gelu vmath_gelu_parts(float x)
{
    struct vmath_gelu g;

    g.x = vmath_clamp(x, 12.0f);
    g.x2 = g.x * g.x;
    float v = VMATH_GELU_SCALE * (g.x * (1.0f + VMATH_GELU_CUBE * g.x2));
    g.e = vmath_exp(-v);
    g.s = 1.0f / (1.0f + g.e);
    g.s = v < -VMATH_EXP_MAX ? 0.0f : g.s;
    return g;
}

VMATH_INLINE float vmath_gelu(float x)
{
    return x * vmath_gelu_parts(x).s;
}

/* s + x s' with s' = s (1 - s) v' = e s^2 v' */
VMATH_INLINE float vmath_gelu_slope(float x)
{
    struct vmath_gelu g = vmath_gelu_parts(x);
    float dv = VMATH_GELU_SCALE * (1.0f + (3.0f * VMATH_GELU_CUBE) * g.x2);
    return g.s + (g.x * ((g.e * g.s) * g.s)) * dv;
}

VMATH_INLINE float vmath_relu(float x)
{
    return x < 0.0f ? 0.0f : x;
}

VMATH_INLINE float vmath_tanh_slope(float x)
{
    float t = vmath_tanh(x);
    return 1.0f - t * t;
}

#endif
