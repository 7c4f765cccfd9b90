/* Measures how long layers and optimizer updates take on a device of this machine. Every task runs alone
 * while the device is otherwise idle, and marks on its stream give its duration, so that all backends are
 * measured in the same way.
 *
 * Order of calls: timer_open, then timer_layer, timer_update and timer_host_copy as needed, then timer_close.
 * All calls come from one thread and block.
 */
#ifndef DAEMON_WORKER_PROBE_TIME_LAYERS_H
#define DAEMON_WORKER_PROBE_TIME_LAYERS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/layer.h"

/* Repetitions cycle through this many bytes, so that the caches do not have their data. */
#define TIMER_COLD_BYTES (128ull << 20)

struct timer;

/* The arguments of timer_open. The caller fills them in and may free them after the call. */
struct timer_config {
    const char *backend;
    /* The index of the device. NULL means the first real device, or a virtual device. */
    const uint32_t *device_index;
    uint32_t threads;
    /* Bytes of host memory. Must be enough for the largest layer and the largest update. */
    uint64_t bytes;
    /* Bytes of device memory, enough for the largest layer. With TIMER_COLD_BYTES more, times are more
     * accurate. An update is timed on the device only if it fits. */
    uint64_t device_bytes;
};

/* Returns the number of bytes that timer_layer needs on the device for a layer with `rows` samples. */
uint64_t timer_layer_bytes(const struct layer *l, uint32_t rows);

/* Returns the number of bytes that timer_update needs for an update of `w_bytes` bytes of weights. */
uint64_t timer_update_bytes(const struct optimizer *o, uint64_t w_bytes);

/* Opens the device and allocates the memory for measuring. */
int timer_open(const struct timer_config *c, struct timer **ret, struct err *err);

/* Closes the device and frees the timer. `t` may be NULL. */
void timer_close(struct timer *t);

/* Measures the forward and backward pass of a layer with `rows` samples. Stores the median times in
 * seconds. The input's gradient is computed only if `dx` is true. Returns -ENOSPC if the layer does not
 * fit into the timer's memory. */
int timer_layer(struct timer *t, const struct layer *l, bool dx, uint32_t rows, double *ret_fwd_s,
                double *ret_bwd_s, struct err *err);

/* Measures an update of `w_bytes` bytes of weights on host and device. Stores the times in seconds.
 * *ret_device_s is 0 if it does not fit on the device. */
int timer_update(struct timer *t, const struct optimizer *o, uint64_t w_bytes, double *ret_host_s,
                 double *ret_device_s, struct err *err);

/* Returns the rate of copies within host memory, in bytes per second. */
uint64_t timer_host_copy(struct timer *t);

#endif
