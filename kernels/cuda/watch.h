/* These functions report memory accesses to a race detector. The detector itself cannot see which memory host
 * functions access, or when memory is no longer needed. Without a detector, the functions do nothing. */
#ifndef KERNELS_CUDA_WATCH_H
#define KERNELS_CUDA_WATCH_H

#include "kernels/op.h"

/* Returns true if a race detector is present. This is the case only in tests. */
bool watch_is_on(void);

/* A host function calls watch_op or watch_write before it accesses memory. watch_op reports all arrays that
 * the op `call` reads or writes. */
void watch_op(const struct op_call *call);
void watch_write(const void *p, uint64_t bytes);

#endif
