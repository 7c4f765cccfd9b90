/* Times layers and updates on a device of this machine: what a task costs on an otherwise idle devset, by the marks of its
 * stream, so that it is the same for every backend.
 *
 * Order of calls: timer_open, then timer_layer and timer_update as needed, timer_close. One thread; blocks.
 */
#ifndef DAEMON_WORKER_PROBE_TIME_LAYERS_H
#define DAEMON_WORKER_PROBE_TIME_LAYERS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/layer.h"

/* Beyond so many bytes in turn, nothing is found in a cache any more. */
#define TIMER_COLD_BYTES (128ull << 20)

struct timer;

struct timer_config {
    const char *backend;
    const uint32_t *device_index; /* of the device; NULL: the first, or a virtual one */
    uint32_t threads;
    uint64_t bytes; /* of host memory: the most that a layer or an update needs */
    /* Of device memory: the most that a layer needs, and better TIMER_COLD_BYTES more; updates where they fit. */
    uint64_t device_bytes;
};

/* What the device needs for one layer of so many rows, and for an update. */
uint64_t timer_layer_bytes(const struct layer *l, uint32_t rows);
uint64_t timer_update_bytes(const struct optimizer *o, uint64_t w_bytes);

int timer_open(const struct timer_config *c, struct timer **ret, struct err *err);
void timer_close(struct timer *t); /* takes NULL */

/* Seconds, the median of several after a warm-up. The backward adds to dW; `dx`: the gradient of the input is wanted. */
int timer_layer(struct timer *t, const struct layer *l, bool dx, uint32_t rows, double *ret_fwd_s,
                double *ret_bwd_s, struct err *err);
/* *ret_device_s is 0 where the update does not fit on the device. */
int timer_update(struct timer *t, const struct optimizer *o, uint64_t w_bytes, double *ret_host_s,
                 double *ret_device_s, struct err *err);
/* Bytes per second of a copy within host memory. */
uint64_t timer_host_copy(struct timer *t);

#endif
