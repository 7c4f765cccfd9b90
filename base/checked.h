/* Arithmetic that detects overflow, for numbers that come from a user and can have any value. */
#ifndef BASE_CHECKED_H
#define BASE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

/* Stores a + b in *ret and returns true. If the sum overflows, returns false and does not change *ret. */
static inline bool checked_add(uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *ret = r;
    return true;
}

/* Stores a * b in *ret and returns true. If the product overflows, returns false and does not change
 * *ret. */
static inline bool checked_mul(uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *ret = r;
    return true;
}

/* Rounds `v` up to a multiple of `to`, which must be a power of two. Overflow is not detected, so the caller
 * must know that the result fits. */
static inline uint64_t round_up(uint64_t v, uint64_t to)
{
    return (v + to - 1) & ~(to - 1);
}

#endif
