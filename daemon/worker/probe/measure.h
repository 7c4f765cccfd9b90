/* Measures how fast data are copied between host and devices, and between devices. Works with every
 * backend, because it uses only kernels/device.h. */
#ifndef DAEMON_WORKER_PROBE_MEASURE_H
#define DAEMON_WORKER_PROBE_MEASURE_H

#include "base/err.h"
#include "scheduler/topology.h"

#define MEASURE_BYTES (64ull << 20) /* size of one copy */
/* Number of timed copies. Their median determines the rate. */
#define MEASURE_REPEATS 15
/* Copies between virtual devices cycle through this many bytes. */
#define MEASURE_COLD_BYTES (128ull << 20)

/* Measures the rates of links and peers with copies of MEASURE_BYTES bytes. Stores them in `t`. Without
 * real devices, measures `virtual_devices` virtual ones, at least 1, and no peers. Returns -ENOSPC if a
 * device has too little free memory. */
int measure(struct topology *t, uint32_t virtual_devices, struct err *err);

/* Works like `measure`, with copies of `bytes` bytes. `bytes` must be a multiple of DEVICE_ALIGN. Small
 * copies between virtual devices are faster, because they fit into the caches. */
int measure_copies(struct topology *t, uint32_t virtual_devices, uint64_t bytes, struct err *err);

#endif
