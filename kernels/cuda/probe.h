/* What CUDA finds on this machine: `probe` of the cuda backend. */
#ifndef KERNELS_CUDA_PROBE_H
#define KERNELS_CUDA_PROBE_H

#include "kernels/device.h"

/* devset_probe of device.h. -ENODEV with the reason when there is no device that can be used. */
int cuda_probe(uint64_t asked, struct device_info *ret, uint32_t max, uint32_t *ret_n, struct err *err);

#endif
