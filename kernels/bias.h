/* AdamW's bias correction, 1 / (1 - beta^t), in plain arithmetic. It gives the same bits in C code and in
 * kernels/cuda/, and it does not depend on the C library.
 *
 * beta^t is computed by repeated squaring on pairs of doubles, hi + lo. A pair carries about 100 bits of
 * every product, so the result is the double nearest to the true value. After rounding to float, it equals
 * the result of the C library's pow, for every beta in use and for 3 million steps (tests/unit/test_bias.c
 * tries some thousands of each).
 *
 * The code uses only + - * and /. It finds the rounding error of a product by splitting the factors into
 * halves whose products are exact. This works only if the compiler does not contract products and sums
 * into fused multiply-adds. Files that include this header are therefore compiled without contraction.
 *
 * All functions are pure. Any thread may call them.
 */
#ifndef KERNELS_BIAS_H
#define KERNELS_BIAS_H

#include <stdint.h>

#ifndef BIAS_INLINE
#define BIAS_INLINE static inline /* kernels/cuda/ has another definition for devices */
#endif

/* A number with about twice the precision of a double. The value is hi + lo. `hi` is the double that is
 * nearest to the value, and `lo` is the small difference. */
struct bias_pair {
    double hi, lo;
};

/* Splits x into a sum of two numbers with at most 26 bits each. The product of two such numbers fits into the
 * 53 bits of a double, so the product has no rounding error. */
BIAS_INLINE struct bias_pair bias_split(double x)
{
    const double c = 134217729.0 * x; /* 2^27 + 1 */
    const double hi = c - (c - x);
    const struct bias_pair halves = {hi, x - hi};

    return halves;
}

/* Returns the product a * b, with about 100 correct bits. */
BIAS_INLINE struct bias_pair bias_multiply(struct bias_pair a, struct bias_pair b)
{
    const struct bias_pair x = bias_split(a.hi), y = bias_split(b.hi);
    const double product = a.hi * b.hi;
    const double rounding = (((x.hi * y.hi - product) + x.hi * y.lo) + x.lo * y.hi) + x.lo * y.lo;
    const double rest = rounding + (a.hi * b.lo + a.lo * b.hi);
    const double sum = product + rest;
    const struct bias_pair result = {sum, rest - (sum - product)};

    return result;
}

/* Returns beta to the power t, rounded to the nearest double. beta must be at least 0 and less than 1. */
BIAS_INLINE double bias_power(double beta, uint64_t t)
{
    struct bias_pair result = {1, 0}, square = {beta, 0};

    for (; t > 0; t >>= 1) {
        if (t & 1)
            result = bias_multiply(result, square);
        square = bias_multiply(square, square);
    }
    return result.hi;
}

/* Returns AdamW's bias correction after t updates, which is 1 / (1 - beta^t). t must be at least 1. */
BIAS_INLINE float bias_correction(float beta, uint64_t t)
{
    return (float)(1.0 / (1.0 - bias_power((double)beta, t)));
}

#endif
