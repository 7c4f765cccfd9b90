/* Implements clock.h. Each function calls a hook. By default, the hooks read the system's clock. A test can
 * replace the hooks with clock_set_hooks, before other threads start. Any thread may call the other
 * functions. */
#include "base/clock.h"

#include <errno.h>
#include <stddef.h>
#include <time.h>

enum { NS_PER_S = 1000000000 };

static uint64_t read_clock(clockid_t id)
{
    struct timespec t;

    clock_gettime(id, &t); /* cannot fail for CLOCK_MONOTONIC and CLOCK_REALTIME */
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static uint64_t system_monotonic_ns(void *ctx)
{
    (void)ctx;
    return read_clock(CLOCK_MONOTONIC);
}

static uint64_t system_wall_ns(void *ctx)
{
    (void)ctx;
    return read_clock(CLOCK_REALTIME);
}

/* Sleeps until an absolute time. If a signal interrupts the sleep, the loop continues to sleep until the same
 * time, so interruptions do not make the sleep longer. */
static void system_sleep_ns(void *ctx, uint64_t ns)
{
    struct timespec until;

    (void)ctx;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(ns / NS_PER_S);
    until.tv_nsec += (long)(ns % NS_PER_S);
    if (until.tv_nsec >= NS_PER_S) {
        until.tv_nsec -= NS_PER_S;
        until.tv_sec++;
    }
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
}

static const struct clock_hooks system_hooks = {
    .monotonic_ns = system_monotonic_ns,
    .wall_ns = system_wall_ns,
    .sleep_ns = system_sleep_ns,
};

/* The hooks that are in use. Only clock_set_hooks changes them. */
static struct clock_hooks current = {
    .monotonic_ns = system_monotonic_ns,
    .wall_ns = system_wall_ns,
    .sleep_ns = system_sleep_ns,
};

void clock_set_hooks(const struct clock_hooks *hooks)
{
    current = hooks ? *hooks : system_hooks;
    if (!current.monotonic_ns)
        current.monotonic_ns = system_monotonic_ns;
    if (!current.wall_ns)
        current.wall_ns = system_wall_ns;
    if (!current.sleep_ns)
        current.sleep_ns = system_sleep_ns;
}

uint64_t clock_now_ns(void)
{
    return current.monotonic_ns(current.ctx);
}

uint64_t clock_wall_ns(void)
{
    return current.wall_ns(current.ctx);
}

void clock_sleep_ns(uint64_t ns)
{
    current.sleep_ns(current.ctx, ns);
}
