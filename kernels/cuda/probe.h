/* Lists the CUDA devices of this machine. cuda_probe is the `probe` function of the cuda backend. */
#ifndef KERNELS_CUDA_PROBE_H
#define KERNELS_CUDA_PROBE_H

#include "kernels/device.h"

/* Implements devset_probe of device.h for CUDA devices. If no device is usable, returns -ENODEV, and `err`
 * says why. */
int cuda_probe(uint64_t asked, struct device_info *ret, uint32_t max, uint32_t *ret_n, struct err *err);

#endif
