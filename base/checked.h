/* Arithmetic on numbers that a user chose: overflow is reported, never wrapped. */
#ifndef BASE_CHECKED_H
#define BASE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

/* True on success; *ret is written only then. */
static inline bool checked_add(uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *ret = r;
    return true;
}

static inline bool checked_mul(uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *ret = r;
    return true;
}

/* Rounded up to a multiple of `to`, a power of two. */
static inline uint64_t round_up(uint64_t v, uint64_t to)
{
    return (v + to - 1) & ~(to - 1);
}

#endif
