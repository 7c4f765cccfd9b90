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

/* Repetitions of a measurement go through this many bytes of memory in turn, so that their data are not in
 * the processor's caches. */
#define TIMER_COLD_BYTES (128ull << 20)

struct timer;

/* The arguments of timer_open. The caller fills the struct in and may free it after the call. */
struct timer_config {
    const char *backend;
    /* The backend's number of the device to measure. NULL means the first real device, or a virtual
     * device. */
    const uint32_t *device_index;
    uint32_t threads;
    enum dtype dtype; /* type of activations and weights of all layers to measure */
    bool tf32;        /* as in struct devset_config */
    /* Bytes of host memory for measuring. They must be enough for the largest layer and for the largest
     * optimizer update. */
    uint64_t bytes;
    /* The number of bytes of device memory to measure with. The largest layer must fit into this memory. The
     * measured times are more accurate if the memory has TIMER_COLD_BYTES more. An optimizer update is timed
     * on the device only if the update fits into this memory. */
    uint64_t device_bytes;
};

/* Returns the number of bytes that timer_layer needs on the device for layer `l` with micro-batches of `rows`
 * samples. */
uint64_t timer_layer_bytes(const struct layer *l, uint32_t rows);

/* Returns the number of bytes that timer_update needs for an optimizer update of `w_bytes` bytes of weights,
 * whose elements have the type `w_dtype`. */
uint64_t timer_update_bytes(const struct optimizer *o, enum dtype w_dtype, uint64_t w_bytes);

/* Opens the device and allocates the host and device memory for measuring. */
int timer_open(const struct timer_config *c, struct timer **ret, struct err *err);

/* Closes the device and frees the timer. `t` may be NULL. */
void timer_close(struct timer *t);

/* Measures the forward and the backward pass of a layer with micro-batches of `rows` samples, and stores the
 * median times in seconds. The gradient of the input is computed only if `dx` is true. Returns -ENOSPC if the
 * layer does not fit into the timer's memory. */
int timer_layer(struct timer *t, const struct layer *l, bool dx, uint32_t rows, double *ret_fwd_s,
                double *ret_bwd_s, struct err *err);

/* Measures an optimizer update of `w_bytes` bytes of weights, whose elements have the type `w_dtype`, both on
 * the host and on the device. Stores the times in seconds. *ret_device_s is 0 if the update does not fit on
 * the device. */
int timer_update(struct timer *t, const struct optimizer *o, enum dtype w_dtype, uint64_t w_bytes,
                 double *ret_host_s, double *ret_device_s, struct err *err);

/* Returns how fast data are copied within host memory, in bytes per second. */
uint64_t timer_host_copy(struct timer *t);

#endif
