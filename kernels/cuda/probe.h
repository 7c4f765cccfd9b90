/* Lists the CUDA devices of this machine: the `probe` function of the cuda backend. */
#ifndef KERNELS_CUDA_PROBE_H
#define KERNELS_CUDA_PROBE_H

#include "kernels/device.h"

/* Implements devset_probe of device.h. Returns -ENODEV, with the reason in err, if there is no usable
 * device. */
int cuda_probe(uint64_t asked, struct device_info *ret, uint32_t max, uint32_t *ret_n, struct err *err);

#endif
