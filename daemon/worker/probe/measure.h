/* Measures how fast data can be copied between host and device, in both directions, and between devices. It
 * only uses the interface in kernels/device.h, so it can measure every backend. */
#ifndef DAEMON_WORKER_PROBE_MEASURE_H
#define DAEMON_WORKER_PROBE_MEASURE_H

#include "base/err.h"
#include "scheduler/topology.h"

#define MEASURE_BYTES      (64ull << 20)  /* size of one copy */
#define MEASURE_REPEATS    15             /* number of timed copies; the rate comes from their median */
#define MEASURE_COLD_BYTES (128ull << 20) /* bytes that copies between virtual devices cycle through */

/* Measures the rates of links and peers with copies of MEASURE_BYTES bytes and stores them in `t`. If `t` has
 * no real devices, `virtual_devices` of them (at least 1) are measured, and the matrix of peers stays empty.
 * Returns -ENOSPC if a device has too little free memory. */
int measure(struct topology *t, uint32_t virtual_devices, struct err *err);

/* Measures like `measure`, but with copies of `bytes` bytes, a multiple of DEVICE_ALIGN. The size matters for
 * virtual devices: a copy that fits into the processor's caches is several times faster than a larger one. */
int measure_copies(struct topology *t, uint32_t virtual_devices, uint64_t bytes, struct err *err);

#endif
