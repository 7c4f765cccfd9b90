/* The few NVML calls that find facts about devices. The library comes with the driver and is loaded at run
 * time. Without it, only these facts are missing. nvml.c declares its functions, because not every toolkit
 * has the header. */
#ifndef KERNELS_CUDA_NVML_H
#define KERNELS_CUDA_NVML_H

#include <stdbool.h>

#include "kernels/device.h"

struct nvml; /* the library, loaded and initialized */

/* Loads and initializes NVML. Returns NULL if that fails. */
struct nvml *nvml_open(void);
/* Shuts NVML down and unloads the library. n may be NULL. */
void nvml_close(struct nvml *n);

/* Fills in the PCIe link and the NUMA node of the device whose bus id is in `d`. Unknown fields stay
 * unchanged. `n` may be NULL. Free memory comes from the CUDA runtime instead, which knows better what
 * this process can use. */
void nvml_describe(const struct nvml *n, struct device_info *d);

#endif
