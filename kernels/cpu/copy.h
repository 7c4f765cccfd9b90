/* Copies memory between the host and virtual devices. */
#ifndef KERNELS_CPU_COPY_H
#define KERNELS_CPU_COPY_H

#include <stdint.h>

struct pool;

/* Copies like memcpy and with the same contract. Large blocks bypass the caches. Other threads see the
 * whole copy once a lock or an atomic tells them that it is done. Any thread may call it. */
void cpu_copy(void *dst, const void *src, uint64_t bytes);

/* Copies like cpu_copy, but the threads of the pool share the work if the block is large. */
void cpu_copy_pieces(void *dst, const void *src, uint64_t bytes, struct pool *pool);

#endif
