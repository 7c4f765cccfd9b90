/* The few calls of NVML that discovery uses. NVML (libnvidia-ml.so.1) comes with the driver and is loaded
 * at run time, so nothing needs to be linked. Without the library, only the facts that it knows are
 * missing. Its functions are declared in nvml.c because not every toolkit has the header; the interface is
 * stable.
 */
#ifndef KERNELS_CUDA_NVML_H
#define KERNELS_CUDA_NVML_H

#include <stdbool.h>

#include "kernels/device.h"

struct nvml; /* the library, loaded and initialized */

/* Loads and initializes NVML. Returns NULL if that fails. */
struct nvml *nvml_open(void);
/* Shuts NVML down and unloads it. Takes NULL. */
void nvml_close(struct nvml *n);

/* Fills in what NVML knows about the device with the bus id in d: the generation and width of its link,
 * and its NUMA node. Fields that NVML does not know stay unchanged. n may be NULL. Free memory is not
 * taken from NVML. The CUDA runtime gives the amount that this process could really use, which also
 * accounts for other processes and for a slice of a device. */
void nvml_describe(const struct nvml *n, struct device_info *d);

#endif
