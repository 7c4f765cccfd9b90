/* Arithmetic with durations in whole nanoseconds. The profile and the simulator use the same functions, so
 * that both round in the same way. */
#ifndef SCHEDULER_RATE_H
#define SCHEDULER_RATE_H

#include <stdint.h>

/* Returns how long `amount` units take at a rate of `per_s` units per second. The result is in nanoseconds,
 * rounded up. A rate of 0 means that there is no limit, so the result is 0. UINT64_MAX stands for all results
 * above 64 bits. */
static inline uint64_t rate_ns(uint64_t amount, uint64_t per_s)
{
    if (per_s == 0)
        return 0;
    unsigned __int128 ns = ((unsigned __int128)amount * 1000000000u + per_s - 1) / per_s;
    return ns > UINT64_MAX ? UINT64_MAX : (uint64_t)ns;
}

/* Returns a + b, or UINT64_MAX if the sum overflows. */
static inline uint64_t ns_add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static inline uint64_t ns_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

#endif
