/* AdamW's bias correction, 1 / (1 - beta^t), as plain arithmetic: the same bits in the C compiler's code and in
 * kernels/cuda/, whatever the C library.
 *
 * beta^t is computed by repeated squaring on pairs of doubles, hi + lo, so that about 100 bits of every product are kept
 * and the result is the double nearest to the true value. Rounded to float at the end, that gives what the C library's
 * pow gives, for every beta in use and 3 million steps (tests/unit/test_bias.c tries some thousands of each). Only + - *
 * and /; the error of a product is found by splitting the factors into halves whose products are exact. The files that
 * include this are compiled without contraction, on which that relies.
 *
 * Pure; any thread.
 */
#ifndef KERNELS_BIAS_H
#define KERNELS_BIAS_H

#include <stdint.h>

#ifndef BIAS_INLINE
#define BIAS_INLINE static inline /* kernels/cuda/ compiles it for devices */
#endif

/* The number hi + lo, where hi is the double nearest to it. */
struct bias_pair {
    double hi, lo;
};

/* x in two halves of 26 bits each. */
BIAS_INLINE struct bias_pair bias_split(double x)
{
    const double c = 134217729.0 * x; /* 2^27 + 1 */
    const double hi = c - (c - x);
    const struct bias_pair halves = {hi, x - hi};

    return halves;
}

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

/* beta^t, rounded to the nearest double. 0 <= beta < 1. */
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

/* t >= 1. */
BIAS_INLINE float bias_correction(float beta, uint64_t t)
{
    return (float)(1.0 / (1.0 - bias_power((double)beta, t)));
}

#endif
