/* Copies memory between the host and virtual devices. */
#ifndef KERNELS_CPU_COPY_H
#define KERNELS_CPU_COPY_H

#include <stdint.h>

struct pool;

/* Copies like memcpy. Large blocks bypass the caches. Other threads see the copy after a lock or an atomic
 * says that it is done. Any thread may call it. */
void cpu_copy(void *dst, const void *src, uint64_t bytes);

/* Copies like cpu_copy, but the threads of the pool share the work if the block is large. */
void cpu_copy_pieces(void *dst, const void *src, uint64_t bytes, struct pool *pool);

#endif
