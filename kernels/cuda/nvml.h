/* The few functions of NVML, NVIDIA's management library, that return facts about devices. The library comes
 * with the driver and is loaded at run time. If it is missing, only these facts are missing. nvml.c declares
 * the functions itself, because some CUDA toolkits lack the header. */
#ifndef KERNELS_CUDA_NVML_H
#define KERNELS_CUDA_NVML_H

#include <stdbool.h>

#include "kernels/device.h"

struct nvml; /* the library, loaded and initialized */

/* Loads and initializes NVML. Returns NULL if the library is missing or does not work. */
struct nvml *nvml_open(void);
/* Shuts NVML down and unloads the library. `n` may be NULL. */
void nvml_close(struct nvml *n);

/* Sets the PCIe link and the NUMA node of the device whose bus id is in `d`. A field that NVML does not know
 * stays unchanged. This function does not set the free memory, because the CUDA runtime gives a better value
 * for this process. `n` may be NULL. */
void nvml_describe(const struct nvml *n, struct device_info *d);

#endif
