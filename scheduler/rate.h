/* Arithmetic with durations in whole nanoseconds. The profile and the simulator use the same functions, so
 * that both round in the same way. */
#ifndef SCHEDULER_RATE_H
#define SCHEDULER_RATE_H

#include <stdint.h>

/* Returns the time in nanoseconds, rounded up, of `amount` units at `per_s` units per second. The time is 0
 * if `per_s` is 0, and at most UINT64_MAX. */
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
