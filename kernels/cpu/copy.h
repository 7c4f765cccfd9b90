/* Functions that copy tensors between the host's memory and a virtual device, or between two virtual
 * devices. */
#ifndef KERNELS_CPU_COPY_H
#define KERNELS_CPU_COPY_H

#include <stdint.h>

struct pool;

/* Copies `bytes` bytes like memcpy, but large blocks bypass the caches. Another thread may read the copied
 * bytes after a lock or an atomic variable tells it that the copy is done. Any thread may call this
 * function. */
void cpu_copy(void *dst, const void *src, uint64_t bytes);

/* Copies `bytes` bytes like cpu_copy. If the block is large, the threads of the pool share the work. */
void cpu_copy_pieces(void *dst, const void *src, uint64_t bytes, struct pool *pool);

#endif
