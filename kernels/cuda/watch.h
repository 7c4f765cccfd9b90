/* Reports memory accesses to a tool that looks for races, if there is one. Such a tool sees streams,
 * events, kernels and copies. It does not see the memory accesses of host functions, and it does not know
 * when the contents of memory are no longer needed. Without a tool these functions do nothing. */
#ifndef KERNELS_CUDA_WATCH_H
#define KERNELS_CUDA_WATCH_H

#include "kernels/op.h"

/* Returns true if a race detector is present. */
bool watch_is_on(void);

/* A host function calls watch_op or watch_write before it accesses memory. watch_op reports all arrays
 * that op_ranges lists for the call. */
void watch_op(const struct op_call *call);
void watch_write(const void *p, uint64_t bytes);

#endif
