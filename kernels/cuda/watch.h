/* What a tool that looks for races is told, where there is one: it sees streams, events, kernels and copies, but not
 * what a host function touches, nor that the contents of some memory have come to an end. Without a tool these do
 * nothing. */
#ifndef KERNELS_CUDA_WATCH_H
#define KERNELS_CUDA_WATCH_H

#include "kernels/op.h"

bool watch_is_on(void);

/* From within a host function, before it touches anything. */
void watch_op(const struct op_call *call); /* on the host; all of op_ranges */
void watch_write(const void *p, uint64_t bytes);

#endif
