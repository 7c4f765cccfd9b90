/* Copies memory between the host and virtual devices. */
#ifndef KERNELS_CPU_COPY_H
#define KERNELS_CPU_COPY_H

#include <stdint.h>

struct pool;

/* Copies like memcpy, with the same contract. Large blocks bypass the caches. A thread that learns through
 * a lock or an atomic that the copy is done sees all of it. Any thread may call it. */
void cpu_copy(void *dst, const void *src, uint64_t bytes);

/* Copies like cpu_copy, but the pool's threads share the work of a large block. */
void cpu_copy_pieces(void *dst, const void *src, uint64_t bytes, struct pool *pool);

#endif
