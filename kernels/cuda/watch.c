/* Implements watch.h. The race detector belongs to the simulator of CUDA in tests/cudasim. The simulator's
 * libcudart has a function that NVIDIA's libcudart lacks. The function is declared weak here, so that its
 * address is NULL with NVIDIA's library. Any thread may call these functions. */
#include "kernels/cuda/watch.h"

#include <stddef.h>

void cudasim_host_access(const void *p, size_t bytes, int write) __attribute__((weak));

bool watch_is_on(void)
{
    return cudasim_host_access != NULL;
}

void watch_op(const struct op_call *call)
{
    struct op_range ranges[OP_RANGES];

    if (!watch_is_on())
        return;
    const uint32_t n = op_ranges(call, ranges);
    for (uint32_t i = 0; i < n; i++)
        cudasim_host_access(ranges[i].at, ranges[i].bytes, ranges[i].write);
}

void watch_write(const void *p, uint64_t bytes)
{
    if (watch_is_on())
        cudasim_host_access(p, bytes, 1);
}
