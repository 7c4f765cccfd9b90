/* What translated kernels are made of: the meaning of PTX instructions in C. Included by the output of
 * ptx2c.py and by nothing else. Registers hold bits; as_f32 and of_f32 go between bits and numbers.
 * Compile with -ffp-contract=off (an fma is one only where PTX says so) and -fwrapv (integers wrap). */
#ifndef CUDASIM_PTXRT_H
#define CUDASIM_PTXRT_H

#include <fenv.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "half.h"
#include "simt.h"

extern const struct simt_module cudasim_module;

/* ---- bits and memory ---------------------------------------------------- */

#define BITS(T, U, name)                                                                                     \
    static inline T as_##name(U u)                                                                           \
    {                                                                                                        \
        T f;                                                                                                 \
        memcpy(&f, &u, sizeof f);                                                                            \
        return f;                                                                                            \
    }                                                                                                        \
    static inline U of_##name(T f)                                                                           \
    {                                                                                                        \
        U u;                                                                                                 \
        memcpy(&u, &f, sizeof u);                                                                            \
        return u;                                                                                            \
    }
BITS(float, uint32_t, f32)
BITS(double, uint64_t, f64)

#define MEMORY(n)                                                                                            \
    static inline uint##n##_t load##n(const void *p)                                                         \
    {                                                                                                        \
        uint##n##_t v;                                                                                       \
        memcpy(&v, p, sizeof v);                                                                             \
        return v;                                                                                            \
    }                                                                                                        \
    static inline void store##n(void *p, uint##n##_t v)                                                      \
    {                                                                                                        \
        memcpy(p, &v, sizeof v);                                                                             \
    }
MEMORY(8)
MEMORY(16)
MEMORY(32)
MEMORY(64)

/* ---- floats ------------------------------------------------------------- */

static inline float ftz(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

static inline double saturate(double x)
{
    return x > 0 ? x < 1 ? x : 1 : 0; /* NaN: 0 */
}

/* Of two zeros -0 is less; of a number and NaN the number, unless NaN is to win. */
#define MIN_MAX(T, name)                                                                                     \
    static inline T min_##name(T a, T b, int nan)                                                            \
    {                                                                                                        \
        if (isnan(a) || isnan(b))                                                                            \
            return nan ? (T)NAN : isnan(a) ? b : a;                                                          \
        return a < b || (a == b && signbit(a)) ? a : b;                                                      \
    }                                                                                                        \
    static inline T max_##name(T a, T b, int nan)                                                            \
    {                                                                                                        \
        if (isnan(a) || isnan(b))                                                                            \
            return nan ? (T)NAN : isnan(a) ? b : a;                                                          \
        return a > b || (a == b && !signbit(a)) ? a : b;                                                     \
    }
MIN_MAX(float, f32)
MIN_MAX(double, f64)

/* Other roundings than to nearest. volatile keeps the operation between the two changes of mode. */
#define ROUNDED(T, name, op)                                                                                 \
    static __attribute__((noinline, unused)) T name##_rounded(int mode, T a, T b)                            \
    {                                                                                                        \
        volatile T x = a, y = b, r;                                                                          \
        fesetround(mode);                                                                                    \
        r = x op y;                                                                                          \
        fesetround(FE_TONEAREST);                                                                            \
        return r;                                                                                            \
    }
ROUNDED(float, add_f32, +)
ROUNDED(float, sub_f32, -)
ROUNDED(float, mul_f32, *)
ROUNDED(float, div_f32, /)
ROUNDED(double, add_f64, +)
ROUNDED(double, sub_f64, -)
ROUNDED(double, mul_f64, *)
ROUNDED(double, div_f64, /)

#define ROUNDED_FMA(T, name, f)                                                                              \
    static __attribute__((noinline, unused)) T name##_rounded(int mode, T a, T b, T c)                       \
    {                                                                                                        \
        volatile T x = a, y = b, z = c, r;                                                                   \
        fesetround(mode);                                                                                    \
        r = f(x, y, z);                                                                                      \
        fesetround(FE_TONEAREST);                                                                            \
        return r;                                                                                            \
    }
ROUNDED_FMA(float, fma_f32, fmaf)
ROUNDED_FMA(double, fma_f64, fma)

#define ROUNDED_TO_F32(T, name)                                                                              \
    static __attribute__((noinline, unused)) float f32_from_##name##_rounded(int mode, T a)                  \
    {                                                                                                        \
        volatile T x = a;                                                                                    \
        volatile float r;                                                                                    \
        fesetround(mode);                                                                                    \
        r = (float)x;                                                                                        \
        fesetround(FE_TONEAREST);                                                                            \
        return r;                                                                                            \
    }
ROUNDED_TO_F32(double, f64)
ROUNDED_TO_F32(int64_t, s)
ROUNDED_TO_F32(uint64_t, u)

/* These read and give the upper half of a double only. */
static inline double upper_half(double x)
{
    return as_f64(of_f64(x) & 0xffffffff00000000ULL);
}

static inline double rcp_approx_f64(double x)
{
    return upper_half(1 / upper_half(x));
}

static inline double rsqrt_approx_f64(double x)
{
    return upper_half(1 / sqrt(upper_half(x)));
}

/* To integers: what does not fit becomes the nearest that does; NaN becomes 0, or the highest bit. */
static inline int64_t to_s(double x, int bits, int nan)
{
    int64_t highest = (int64_t)(1ULL << (bits - 1));

    if (isnan(x))
        return nan ? highest : 0;
    if (x >= ldexp(1, bits - 1))
        return (int64_t)((1ULL << (bits - 1)) - 1);
    if (x < -ldexp(1, bits - 1))
        return -(int64_t)((1ULL << (bits - 1)) - 1) - 1;
    return (int64_t)x;
}

static inline uint64_t to_u(double x, int bits, int nan)
{
    if (isnan(x))
        return nan ? 1ULL << (bits - 1) : 0;
    if (x >= ldexp(1, bits))
        return bits == 64 ? ~0ULL : (1ULL << bits) - 1;
    return x > 0 ? (uint64_t)x : 0;
}

/* ---- integers ----------------------------------------------------------- */

/* Division by zero has no defined result, but may not stop the program. */
static inline int64_t div_s(int64_t a, int64_t b)
{
    return b == 0 ? -1 : b == -1 ? -a : a / b;
}

static inline int64_t rem_s(int64_t a, int64_t b)
{
    return b == 0 ? a : b == -1 ? 0 : a % b;
}

static inline uint64_t div_u(uint64_t a, uint64_t b)
{
    return b == 0 ? ~0ULL : a / b;
}

static inline uint64_t rem_u(uint64_t a, uint64_t b)
{
    return b == 0 ? a : a % b;
}

static inline uint64_t low_bits(uint32_t n)
{
    return n >= 64 ? ~0ULL : (1ULL << n) - 1;
}

static inline uint32_t clz(uint64_t x, int bits)
{
    return (uint32_t)(x ? __builtin_clzll(x) - (64 - bits) : bits);
}

static inline uint32_t bfind(uint64_t x, int bits, int shift_amount)
{
    if (!x)
        return ~0u;
    return shift_amount ? clz(x, bits) : (uint32_t)bits - 1 - clz(x, bits);
}

static inline uint64_t brev(uint64_t x, int bits)
{
    uint64_t r = 0;

    for (int i = 0; i < bits; i++)
        r |= (x >> i & 1) << (bits - 1 - i);
    return r;
}

static inline uint64_t bfe_u(uint64_t x, uint32_t at, uint32_t n, uint32_t bits)
{
    at &= 255;
    n &= 255;
    return at >= bits ? 0 : (x >> at) & low_bits(n);
}

static inline uint64_t bfe_s(int64_t x, uint32_t at, uint32_t n, uint32_t bits)
{
    at &= 255;
    n &= 255;
    if (n == 0)
        return 0;
    if (at + n > bits)
        n = at >= bits ? 0 : bits - at;
    if (n == 0)
        return (uint64_t)(x >> 63);
    return (uint64_t)((int64_t)((uint64_t)x << (64 - at - n)) >> (64 - n));
}

static inline uint64_t bfi(uint64_t a, uint64_t b, uint32_t at, uint32_t n, uint32_t bits)
{
    at &= 255;
    n &= 255;
    return at >= bits ? b : (b & ~(low_bits(n) << at)) | ((a & low_bits(n)) << at);
}

static inline uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector)
{
    uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t r = 0;

    for (int i = 0; i < 4; i++) {
        uint32_t k = selector >> (4 * i) & 15, byte = (uint32_t)(bytes >> (8 * (k & 7)) & 255);
        if (k & 8) /* its sign, in all bits */
            byte = byte & 128 ? 255 : 0;
        r |= byte << (8 * i);
    }
    return r;
}

static inline uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, uint32_t table)
{
    uint32_t r = 0;

    for (uint32_t i = 0; i < 8; i++)
        if (table >> i & 1)
            r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return r;
}

/* Funnel shifts of b:a. */
static inline uint32_t shf_l(uint32_t a, uint32_t b, uint32_t n)
{
    return n == 0 ? b : n >= 32 ? a : b << n | a >> (32 - n);
}

static inline uint32_t shf_r(uint32_t a, uint32_t b, uint32_t n)
{
    return n == 0 ? a : n >= 32 ? b : a >> n | b << (32 - n);
}

static inline uint32_t shf_l_wrap(uint32_t a, uint32_t b, uint32_t n)
{
    return shf_l(a, b, n & 31);
}

static inline uint32_t shf_l_clamp(uint32_t a, uint32_t b, uint32_t n)
{
    return shf_l(a, b, n);
}

static inline uint32_t shf_r_wrap(uint32_t a, uint32_t b, uint32_t n)
{
    return shf_r(a, b, n & 31);
}

static inline uint32_t shf_r_clamp(uint32_t a, uint32_t b, uint32_t n)
{
    return shf_r(a, b, n);
}

/* ---- shuffles ----------------------------------------------------------- */

/* c holds the bounds: a mask that keeps lanes in their segment, and the last lane of it. Outside, a lane
 * gets its own value. */
static inline uint32_t shfl(uint32_t mask, uint32_t value, uint32_t c, int from, int up, int *found,
                            uint32_t loc)
{
    int lane = (int)simt_lane(), segment = (int)(c >> 8 & 31),
        last = (lane & segment) | ((int)(c & 31) & ~segment);

    *found = up ? from >= last : from <= last;
    return (uint32_t)simt_exchange(mask, value, (uint32_t)(*found ? from : lane), loc);
}

static inline uint32_t shfl_down(uint32_t mask, uint32_t value, uint32_t b, uint32_t c, int *found,
                                 uint32_t loc)
{
    return shfl(mask, value, c, (int)(simt_lane() + (b & 31)), 0, found, loc);
}

static inline uint32_t shfl_up(uint32_t mask, uint32_t value, uint32_t b, uint32_t c, int *found,
                               uint32_t loc)
{
    return shfl(mask, value, c, (int)simt_lane() - (int)(b & 31), 1, found, loc);
}

static inline uint32_t shfl_bfly(uint32_t mask, uint32_t value, uint32_t b, uint32_t c, int *found,
                                 uint32_t loc)
{
    return shfl(mask, value, c, (int)(simt_lane() ^ (b & 31)), 0, found, loc);
}

static inline uint32_t shfl_idx(uint32_t mask, uint32_t value, uint32_t b, uint32_t c, int *found,
                                uint32_t loc)
{
    uint32_t segment = c >> 8 & 31;

    return shfl(mask, value, c, (int)((simt_lane() & segment) | (b & ~segment & 31)), 0, found, loc);
}

#endif
