/* Time from an amount and a rate, in whole nanoseconds: the one formula that profile and simulator share. */
#ifndef SCHEDULER_RATE_H
#define SCHEDULER_RATE_H

#include <stdint.h>

/* ceil(amount * 1e9 / per_s), in 128 bits because bytes * 1e9 overflows 64 from 18 GB on. A rate of 0 means
 * unlimited, as in device.h, and takes no time; a time beyond 64 bits is UINT64_MAX. */
static inline uint64_t rate_ns(uint64_t amount, uint64_t per_s)
{
    if (per_s == 0)
        return 0;
    unsigned __int128 ns = ((unsigned __int128)amount * 1000000000u + per_s - 1) / per_s;
    return ns > UINT64_MAX ? UINT64_MAX : (uint64_t)ns;
}

/* Sums of such times stop at UINT64_MAX instead of wrapping. */
static inline uint64_t ns_add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static inline uint64_t ns_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

#endif
