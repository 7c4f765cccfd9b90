/* How fast copies are: between host and device in both directions, and between devices; through the device interface,
 * so that any backend can be measured. */
#ifndef DAEMON_WORKER_PROBE_MEASURE_H
#define DAEMON_WORKER_PROBE_MEASURE_H

#include "base/err.h"
#include "scheduler/topology.h"

#define MEASURE_BYTES      (64ull << 20)  /* of one copy: on the host, and on each device */
#define MEASURE_REPEATS    15             /* of which the median counts, after one that does not */
#define MEASURE_COLD_BYTES (128ull << 20) /* of virtual devices: what copies go through in turn */

/* Fills in the link and peer rates of t. Where its devices are virtual, of `virtual_devices` of them (at least 1): then
 * there is no matrix of peers. */
int measure(struct topology *t, uint32_t virtual_devices, struct err *err);
/* The same with copies of so many bytes, a multiple of DEVICE_ALIGN: within the memory of one computer what fits its
 * caches is copied several times faster than what does not. */
int measure_copies(struct topology *t, uint32_t virtual_devices, uint64_t bytes, struct err *err);

#endif
