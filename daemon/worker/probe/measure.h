/* Measures how fast data are copied between host and devices, and between two devices. It works with every
 * backend, because it uses only kernels/device.h. */
#ifndef DAEMON_WORKER_PROBE_MEASURE_H
#define DAEMON_WORKER_PROBE_MEASURE_H

#include "base/err.h"
#include "scheduler/topology.h"

#define MEASURE_BYTES (64ull << 20) /* size of one copy */
/* How many copies are timed for one rate. The rate is the median of their rates. */
#define MEASURE_REPEATS 15
/* Repeated copies between virtual devices go through this many bytes of memory in turn, so that the data are
 * not in the processor's caches. */
#define MEASURE_COLD_BYTES (128ull << 20)

/* Measures the rates of links and peer links with copies of MEASURE_BYTES bytes, and stores the rates in `t`.
 * Without real devices, it measures `virtual_devices` virtual devices, which must be at least 1. Returns
 * -ENOSPC if a device has too little free memory. */
int measure(struct topology *t, uint32_t virtual_devices, struct err *err);

/* Works like `measure`, but with copies of `bytes` bytes, which must be a multiple of DEVICE_ALIGN. Small
 * copies between virtual devices are faster, because they fit into the processor's caches. */
int measure_copies(struct topology *t, uint32_t virtual_devices, uint64_t bytes, struct err *err);

#endif
