/* The internal header of the cpu backend: the table of ops, and the pool of threads that share the work of
 * one op. The number of threads never changes the order of a sum: only the shape of an op decides how its
 * work is cut into pieces, and each piece writes its own part of the output. */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/op.h"

struct pool;

/* Creates a pool of threads. Up to `threads` threads then work on each pool_run, including the caller.
 * Returns a negative errno if a thread cannot be started. */
int pool_create(uint32_t threads, struct pool **ret);
/* Stops the threads and frees the pool. No call of pool_run may be in progress. `p` may be NULL. */
void pool_destroy(struct pool *p);
/* Calls fn(ctx, i) once for every i from 0 to n - 1, in any order and on any thread of the pool. Returns when
 * all calls are done. Several threads may call pool_run at the same time. The function allocates no
 * memory. */
void pool_run(struct pool *p, void (*fn)(void *ctx, uint32_t i), void *ctx, uint32_t n);
/* Returns a second handle of the pool `p`, for work that must not slow down ops, such as copies. The handle
 * uses the threads of `p` and is freed with `p`. If all cores are busy, a caller of pool_run with this handle
 * sleeps, and the pool's threads run the pieces later. Pieces must be short and must not call pool_run. */
struct pool *pool_background(struct pool *p);

/* Makes oneDNN use only one thread when the calling thread calls oneDNN. Tutti's own pool shares the work
 * between threads. Every thread must call this function before it runs its first op. */
void cpu_thread_init(void);

/* Returns a scratch buffer of at least `bytes` bytes that belongs to the calling thread. The buffer is not
 * initialized and begins at a cache line. It is valid until the thread calls this function again. Aborts if
 * there is no memory. */
void *cpu_thread_memory(size_t bytes);

/* A function that computes one op and returns when the op is done. The threads of the pool share the work.
 * The table cpu_ops has one such function for each op. */
typedef void cpu_op_fn(const struct op_call *call, struct pool *pool);
extern cpu_op_fn *const cpu_ops[OP_COUNT];

/* Returns a string that names the parts of this backend on which the bits of results depend, such as "avx512
 * oneDNN 2.6.3". The string holds for jobs whose matrix products are products of floats: F32 jobs, and F16
 * jobs, whose operands are widened. */
const char *cpu_numerics(void);
/* Returns the same for jobs in BF16, such as "avx512_bf16 oneDNN 2.6.3". On a processor that cannot multiply
 * BF16 numbers, the string is equal to cpu_numerics(), because operands are widened there. */
const char *cpu_numerics_bf16(void);

#endif
