/* The few functions of NVML, NVIDIA's management library, that find facts about devices. The library comes
 * with the driver and is loaded at run time. Without the library, only these facts are missing. nvml.c
 * declares the functions itself, because not every CUDA toolkit has the header. */
#ifndef KERNELS_CUDA_NVML_H
#define KERNELS_CUDA_NVML_H

#include <stdbool.h>

#include "kernels/device.h"

struct nvml; /* the library, loaded and initialized */

/* Loads and initializes NVML. Returns NULL if the library is missing or does not work. */
struct nvml *nvml_open(void);
/* Shuts NVML down and unloads the library. `n` may be NULL. */
void nvml_close(struct nvml *n);

/* Fills in the PCIe link and the NUMA node of the device whose bus id is in `d`. If NVML does not know a
 * value, the field stays unchanged. The free memory is not filled in, because the CUDA runtime gives a better
 * value for this process. `n` may be NULL. */
void nvml_describe(const struct nvml *n, struct device_info *d);

#endif
