/* Measures how fast data can be copied between host and device, in both directions, and between devices. It
 * uses only the interface in kernels/device.h, so it can measure every backend. */
#ifndef DAEMON_WORKER_PROBE_MEASURE_H
#define DAEMON_WORKER_PROBE_MEASURE_H

#include "base/err.h"
#include "scheduler/topology.h"

#define MEASURE_BYTES (64ull << 20) /* size of one copy */
/* Number of timed copies. Their median determines the rate. */
#define MEASURE_REPEATS 15
/* Copies between virtual devices cycle through this many bytes. */
#define MEASURE_COLD_BYTES (128ull << 20)

/* Measures the rates of links and peers with copies of MEASURE_BYTES bytes, and stores them in `t`. If `t`
 * has no real devices, measures `virtual_devices` virtual ones (at least 1) and leaves the matrix of peers
 * empty. Returns -ENOSPC if a device has too little free memory. */
int measure(struct topology *t, uint32_t virtual_devices, struct err *err);

/* Same as `measure`, but with copies of `bytes` bytes, which must be a multiple of DEVICE_ALIGN. The size
 * matters for virtual devices, because copies that fit into the processor's caches are several times
 * faster. */
int measure_copies(struct topology *t, uint32_t virtual_devices, uint64_t bytes, struct err *err);

#endif
