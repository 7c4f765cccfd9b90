/* The copy between host and virtual devices. */
#ifndef KERNELS_CPU_COPY_H
#define KERNELS_CPU_COPY_H

#include <stdint.h>

struct pool;

/* memcpy, in its contract; large blocks go past the caches. Whoever learns of the end of the copy through a
 * lock or an atomic sees all of it. Any thread. */
void cpu_copy(void *dst, const void *src, uint64_t bytes);

/* The same, large blocks in pieces by the pool's threads. */
void cpu_copy_pieces(void *dst, const void *src, uint64_t bytes, struct pool *pool);

#endif
