/* exp, tanh, the normal distribution and the activation functions made of them, in plain arithmetic that
 * compilers turn into vector code.
 *
 * The code uses only + - * / and selections, in a fixed order and without fused multiply-add. So it gives
 * the same bits on every instruction set, scalar or vector. The C library's functions cannot be used,
 * because their results vary with the machine. Results of their vector versions also vary with the
 * position in the array.
 *
 * Arguments of exp are clamped to +-80, so that no intermediate value is denormal. If the argument is NaN,
 * the result is NaN: every clamp is written so that a failed comparison passes the value through.
 * tests/unit/test_ops.c measures the errors.
 */
#ifndef KERNELS_VMATH_H
#define KERNELS_VMATH_H

#include <stdint.h>
#include <string.h>

#ifndef VMATH_INLINE
/* Code in kernels/cuda/ defines this macro before it includes this file, so that the functions also compile
 * for GPUs. */
#define VMATH_INLINE static inline __attribute__((always_inline))
#endif

#define VMATH_EXP_MAX 80.0f

VMATH_INLINE float vmath_clamp(float x, float most)
{
    x = x > most ? most : x;
    return x < -most ? -most : x;
}

/* To compute e^x, write x = n ln 2 + r with an integer n. Then e^x = 2^n e^r. To find n, add this magic
 * number to x / ln 2. The addition rounds x / ln 2 to an integer, so that the low bits of the sum contain
 * n. */
#define VMATH_ROUND_MAGIC 12582912.0f /* 1.5 * 2^23 */

VMATH_INLINE float vmath_exp_steps(float x)
{
    return x * 1.44269504f + VMATH_ROUND_MAGIC;
}

/* Returns r = x - n ln 2. `t` is the result of vmath_exp_steps, and contains the integer n. The constant ln 2
 * is split into two parts, so that n times the first part has no rounding error. */
VMATH_INLINE float vmath_exp_rest(float x, float t)
{
    float n = t - VMATH_ROUND_MAGIC;
    float r = x - n * 0.693359375f;
    return r - n * -2.12194440e-4f;
}

/* Returns 2^n e^r. `t` is the result of vmath_exp_steps, and contains the integer n. The polynomial for e^r
 * is precise even if |r| is slightly more than ln 2 / 2. */
VMATH_INLINE float vmath_exp_finish(float r, float t)
{
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = ((p * r) * r + r) + 1.0f;

    /* 2^n is computed separately and then multiplied by p, so that a NaN in p stays a NaN. Adding n to the
     * exponent bits of p could turn a NaN into a number. */
    uint32_t bits;
    memcpy(&bits, &t, sizeof bits);
    bits = (bits << 23) + 0x3f800000u;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

/* Returns e^x for x between -80 and 80. The error is at most 1.5 ulp (units in the last place). If x is
 * outside this range, the nearest end of the range is used instead. */
VMATH_INLINE float vmath_exp(float x)
{
    x = vmath_clamp(x, VMATH_EXP_MAX);
    float t = vmath_exp_steps(x);
    return vmath_exp_finish(vmath_exp_rest(x, t), t);
}

/* Returns tanh(x) with an error of at most 3 ulp (units in the last place). */
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

/* The tanh form of gelu is x * s(v), where s is the logistic function and v = 2 sqrt(2/pi) (x + 0.044715
 * x^3). This form is precise even at negative x. The code clamps x to the range from -12 to 12, so that x^3
 * stays small. */
#define VMATH_GELU_SCALE 1.59576912f
#define VMATH_GELU_CUBE  0.044715f

struct vmath_gelu {
    float x; /* x, clamped to +-12 */
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

/* The function is gelu(x) = x s(v), and this is its derivative: s + x s'. Here s' = s (1 - s) v'. The code
 * computes s (1 - s) as e s^2, where e = exp(-v). */
VMATH_INLINE float vmath_gelu_slope(float x)
{
    struct vmath_gelu g = vmath_gelu_parts(x);
    float dv = VMATH_GELU_SCALE * (1.0f + (3.0f * VMATH_GELU_CUBE) * g.x2);
    return g.s + (g.x * ((g.e * g.s) * g.s)) * dv;
}

/* The erf form of gelu is x * Phi(x), where Phi is the normal distribution. With a = |x|, Phi(-a) =
 * e^(-a^2/2) / (a + 1.5) * P(t), where t = (a - 3.5) / (a + 3.5) and P is a polynomial that is nearly
 * constant. This form does not lose precision at negative x, where Phi is small. For |x| > 12.6, gelu is 0
 * or x. a^2 is kept in two parts, because the exponential magnifies its rounding error a^2 times. */
#define VMATH_NORMAL_MAX 12.6f

struct vmath_normal {
    float x;       /* x, clamped to +-VMATH_NORMAL_MAX */
    float below;   /* Phi(x) */
    float density; /* e^(-x^2/2) / sqrt(2 pi) */
};

/* Clears the 12 low bits of `a`. The result has 12 significant bits, so its square fits into a float without
 * rounding. */
VMATH_INLINE float vmath_upper_half(float a)
{
    uint32_t bits;
    memcpy(&bits, &a, sizeof bits);
    bits &= 0xfffff000u;
    memcpy(&a, &bits, sizeof a);
    return a;
}

/* Returns e^(-a^2/2). */
VMATH_INLINE float vmath_exp_half_square(float a)
{
    float h = vmath_upper_half(a);
    float upper = -0.5f * (h * h), lower = -0.5f * ((a - h) * (a + h));
    float t = vmath_exp_steps(upper);
    return vmath_exp_finish(vmath_exp_rest(upper, t) + lower, t);
}

VMATH_INLINE struct vmath_normal vmath_normal(float x)
{
    struct vmath_normal g;

    g.x = vmath_clamp(x, VMATH_NORMAL_MAX);
    float a = __builtin_fabsf(g.x), far = a + 3.5f, near = a + 1.5f, u = 1.0f / (far * near);
    float t = ((a - 3.5f) * near) * u;
    float p = 1.397356731e-04f;
    p = p * t + 1.580531731e-04f;
    p = p * t + -1.213025644e-03f;
    p = p * t + -3.999643507e-04f;
    p = p * t + 9.597804142e-03f;
    p = p * t + -2.072867466e-02f;
    p = p * t + 7.227921506e-03f;
    p = p * t + 6.371483365e-02f;
    p = p * t + -1.912824187e-01f;
    p = p * t + 5.317257640e-01f;
    float e = vmath_exp_half_square(a), tail = e * ((far * u) * p);
    /* If `a` is VMATH_NORMAL_MAX, the tail becomes a - a, which is 0. If `a` is NaN, the comparison is false,
     * and the tail becomes a - a, which is NaN too. */
    tail = a < VMATH_NORMAL_MAX ? tail : a - a;
    g.below = x < 0.0f ? tail : 1.0f - tail;
    g.density = e * 0.398942280f;
    return g;
}

VMATH_INLINE float vmath_gelu_erf(float x)
{
    return x * vmath_normal(x).below;
}

VMATH_INLINE float vmath_gelu_erf_slope(float x)
{
    struct vmath_normal g = vmath_normal(x);
    return g.below + g.x * g.density;
}

/* Intermediate values of silu(x) = x * s(x), where s is the logistic function. For x < -80, s is set to 0. */
struct vmath_silu {
    float x; /* x, clamped to +-80 */
    float e; /* exp(-x) */
    float s; /* 1 / (1 + e) */
};

VMATH_INLINE struct vmath_silu vmath_silu_parts(float x)
{
    struct vmath_silu g;

    g.x = vmath_clamp(x, VMATH_EXP_MAX);
    g.e = vmath_exp(-g.x);
    g.s = 1.0f / (1.0f + g.e);
    g.s = x < -VMATH_EXP_MAX ? 0.0f : g.s;
    return g;
}

VMATH_INLINE float vmath_silu(float x)
{
    return x * vmath_silu_parts(x).s;
}

/* Returns the derivative of silu, which is s + x s'. The derivative of s is s' = s (1 - s). The code computes
 * s' as e s^2, where e = exp(-x). */
VMATH_INLINE float vmath_silu_slope(float x)
{
    struct vmath_silu g = vmath_silu_parts(x);
    return g.s + g.x * ((g.e * g.s) * g.s);
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
