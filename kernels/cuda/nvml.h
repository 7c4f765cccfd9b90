/* The few calls of NVML (libnvidia-ml.so.1, which comes with the driver) that discovery uses, loaded at run time: there
 * is nothing to link, and without the library only these facts are missing. Declared here, because the header is not
 * part of every toolkit; the interface is stable.
 */
#ifndef KERNELS_CUDA_NVML_H
#define KERNELS_CUDA_NVML_H

#include <stdbool.h>

#include "kernels/device.h"

struct nvml; /* the library, loaded and initialized */

struct nvml *nvml_open(void);    /* NULL: not there */
void nvml_close(struct nvml *n); /* takes NULL */

/* Fills in what NVML knows of the device with this bus id: the link's generation and width, and the NUMA node. Leaves
 * what it does not know. What is free is not asked here: the runtime's answer counts other processes too, and is what
 * this process could really have, of a slice of a device as well. */
void nvml_describe(const struct nvml *n, struct device_info *d);

#endif
