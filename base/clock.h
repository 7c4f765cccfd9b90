/* Functions that read the time. They call hooks, so that a test can replace the clock. Programs measure
 * intervals with the monotonic clock and show dates from the wall clock. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

/* The functions behind clock_now_ns, clock_wall_ns and clock_sleep_ns. `ctx` is passed to each of them. A
 * hook that is NULL means the system's clock, so a test sets only the hooks that it needs. */
struct clock_hooks {
    uint64_t (*monotonic_ns)(void *ctx);
    uint64_t (*wall_ns)(void *ctx);
    void (*sleep_ns)(void *ctx, uint64_t ns);
    void *ctx;
};

/* Installs a copy of `hooks`. NULL restores the system's clock. Call this before other threads start. */
void clock_set_hooks(const struct clock_hooks *hooks);

uint64_t clock_now_ns(void);  /* nanoseconds of the monotonic clock */
uint64_t clock_wall_ns(void); /* nanoseconds since 1970 */
void clock_sleep_ns(uint64_t ns);

#endif
