/* Finds the least time of a training step of a tiny chain on one device by trying every possibility. The
 * search shares no code with the planner or with the bound on time, which is measured against it
 * (docs/bound.md).
 *
 * What is enumerated: every order of the tasks; forward tasks with and without S; every choice of blocks
 * that leave the device to make room, and for S and Y whether they go to the host or are lost and computed
 * again; every set of W and K that stay on the device from step to step; and the place of every update.
 *
 * What is minimized: the time of the busiest resource, which is the compute stream, the link in, the link
 * out or the host's stream. Resources never wait for each other here, with one exception: the forward and
 * backward tasks of a step and the update of layer 0 follow one another, wherever that update is. A real
 * schedule of the same choices takes at least as long, so the bound must not exceed this time.
 *
 * Layers 0 to n_layers - 1 have weights. They are followed by a loss without weights, whose backward task
 * reads the last Y. All bytes of a task are on the device while it runs, and the blocks on the device never
 * exceed the capacity. A step ends with the same blocks on the device with which it began. */
#ifndef TESTS_BRUTE_TIME_H
#define TESTS_BRUTE_TIME_H

#include <stdint.h>

#define BRUTE_TIME_LAYERS 3
#define BRUTE_TIME_MICROS 3

struct brute_time_layer {
    uint32_t w, k, s, y;                                 /* bytes; dW is as large as W */
    uint32_t fwd_ns, bwd_ns, upd_device_ns, upd_host_ns; /* fwd_ns and bwd_ns: of one micro-batch */
};

struct brute_time_case {
    uint32_t n_layers, n_micros;
    uint32_t capacity;
    struct brute_time_layer layers[BRUTE_TIME_LAYERS];
    uint32_t loss_ns;       /* backward task of the loss */
    uint32_t in_ns, out_ns; /* time of a byte on the link from and to the host */
};

/* Returns the least time of a step in nanoseconds, or UINT32_MAX if the chain does not fit the device. Adds
 * the number of visited states to *states. */
uint32_t brute_time(const struct brute_time_case *c, uint64_t *states);

#endif
