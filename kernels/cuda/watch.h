/* Reports memory accesses to a tool that looks for races, if there is one. Such a tool sees streams,
 * events, kernels and copies. It does not see what a host function accesses, nor that the contents of some
 * memory are no longer needed. Without a tool these functions do nothing. */
#ifndef KERNELS_CUDA_WATCH_H
#define KERNELS_CUDA_WATCH_H

#include "kernels/op.h"

/* Returns whether a race detector is present. */
bool watch_is_on(void);

/* watch_op and watch_write are called from within a host function, before it accesses the memory. watch_op
 * reports all arrays that op_ranges lists for the call. */
void watch_op(const struct op_call *call);
void watch_write(const void *p, uint64_t bytes);

#endif
