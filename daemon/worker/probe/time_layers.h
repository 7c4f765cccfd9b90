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

/* When repetitions cycle through this many bytes, no processor cache still holds the data of an earlier
 * one. */
#define TIMER_COLD_BYTES (128ull << 20)

struct timer;

/* What timer_open needs to know. The caller fills it in, and it only needs to live during the call. */
struct timer_config {
    const char *backend;
    /* The index of the device. NULL means the first device, or a virtual one. */
    const uint32_t *device_index;
    uint32_t threads;
    /* Bytes of host memory, at least as many as the largest layer or update needs. */
    uint64_t bytes;
    /* Bytes of device memory: at least as many as the largest layer needs. TIMER_COLD_BYTES more give better
     * times, and an update is timed on the device only if it fits. */
    uint64_t device_bytes;
};

/* Returns the bytes that timer_layer needs on the device for a layer with `rows` samples. */
uint64_t timer_layer_bytes(const struct layer *l, uint32_t rows);

/* Returns the bytes that timer_update needs for an update of `w_bytes` bytes of weights. */
uint64_t timer_update_bytes(const struct optimizer *o, uint64_t w_bytes);

/* Opens the device and allocates memory for measuring. */
int timer_open(const struct timer_config *c, struct timer **ret, struct err *err);

/* Closes the device and frees the timer. `t` may be NULL. */
void timer_close(struct timer *t);

/* Measures the forward and the backward pass of a layer with `rows` samples. Stores the median times in
 * seconds in *ret_fwd_s and *ret_bwd_s. The backward pass adds to dW, and computes the gradient of the input
 * if `dx` is true. Returns -ENOSPC if the layer does not fit into the memory of the timer. */
int timer_layer(struct timer *t, const struct layer *l, bool dx, uint32_t rows, double *ret_fwd_s,
                double *ret_bwd_s, struct err *err);

/* Measures an update of `w_bytes` bytes of weights on the host and on the device, in seconds. Stores 0 in
 * *ret_device_s if the update does not fit on the device. */
int timer_update(struct timer *t, const struct optimizer *o, uint64_t w_bytes, double *ret_host_s,
                 double *ret_device_s, struct err *err);

/* Returns the bytes per second of a copy within host memory. */
uint64_t timer_host_copy(struct timer *t);

#endif
