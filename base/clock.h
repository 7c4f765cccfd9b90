/* Time comes through hooks, so that tests own it. Monotonic for intervals, wall for what a person reads. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

struct clock_hooks {
    uint64_t (*monotonic_ns)(void *ctx);
    uint64_t (*wall_ns)(void *ctx);
    void (*sleep_ns)(void *ctx, uint64_t ns);
    void *ctx;
};

/* NULL restores the system's clock. Call before threads start. */
void clock_set_hooks(const struct clock_hooks *hooks);

uint64_t clock_now_ns(void);  /* monotonic */
uint64_t clock_wall_ns(void); /* since 1970 */
void clock_sleep_ns(uint64_t ns);

#endif
