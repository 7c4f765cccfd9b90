/* The few calls of NVML that discovery uses. NVML (libnvidia-ml.so.1) comes with the driver and is loaded
 * at run time, so nothing needs to be linked. Without the library, only the facts that it knows are
 * missing. Its functions are declared in nvml.c because not every toolkit has the header. The interface is
 * stable.
 */
#ifndef KERNELS_CUDA_NVML_H
#define KERNELS_CUDA_NVML_H

#include <stdbool.h>

#include "kernels/device.h"

struct nvml; /* the library, loaded and initialized */

/* Loads and initializes NVML. Returns NULL if that fails. */
struct nvml *nvml_open(void);
/* Shuts NVML down and unloads the library. n may be NULL. */
void nvml_close(struct nvml *n);

/* Fills in the facts that NVML knows about the device with the bus id in d: the generation and width of
 * its link, and its NUMA node. Unknown fields stay unchanged. n may be NULL. Free memory does not come
 * from NVML, because the CUDA runtime knows better how much memory this process can really use. */
void nvml_describe(const struct nvml *n, struct device_info *d);

#endif
