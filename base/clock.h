/* Functions that read the time and sleep. Intervals use the monotonic clock, and dates use the wall clock. A
 * test can replace both clocks by hooks. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

/* Functions that replace the system's clocks in tests. If a hook is NULL, the system's own clock is used.
 * Each hook gets `ctx` as its first argument. */
struct clock_hooks {
    uint64_t (*monotonic_ns)(void *ctx);
    uint64_t (*wall_ns)(void *ctx);
    void (*sleep_ns)(void *ctx, uint64_t ns);
    void *ctx;
};

/* Installs a copy of `hooks`. If `hooks` is NULL, the system's clocks are used again. Call this function
 * before other threads start. */
void clock_set_hooks(const struct clock_hooks *hooks);

uint64_t clock_now_ns(void);  /* nanoseconds of the monotonic clock */
uint64_t clock_wall_ns(void); /* nanoseconds since 1970 */
void clock_sleep_ns(uint64_t ns);

#endif
