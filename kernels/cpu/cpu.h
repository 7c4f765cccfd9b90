/* The inside of the cpu backend: the table of ops, and the pool of threads that share the work of one op.
 *
 * A pool never changes the order of a sum. The shape alone decides how work is cut into pieces, and each
 * piece writes its own part of the output. */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/op.h"

struct pool;

/* Creates a pool. Each pool_run uses up to `threads` threads, including the caller. Returns a negative
 * errno if a thread cannot be started. */
int pool_create(uint32_t threads, struct pool **ret);
/* Stops the threads and frees the pool. No pool_run may be in progress. p may be NULL. */
void pool_destroy(struct pool *p);
/* Calls fn(ctx, i) once for every i < n and returns when all calls are done. They run in any order, on any
 * thread of the pool. Several threads may call pool_run at a time. Allocates nothing. */
void pool_run(struct pool *p, void (*fn)(void *ctx, uint32_t i), void *ctx, uint32_t n);
/* Returns a view of the pool for work that must not slow down ops, such as copies. It uses the same
 * threads. While all cores are busy, the caller sleeps and other threads run its pieces. Pieces must be
 * short and must not call pool_run. The view is freed with `p`. */
struct pool *pool_background(struct pool *p);

/* Prepares a thread for running ops. Every such thread must call this first. It turns off the threading
 * inside libraries. */
void cpu_thread_init(void);

/* Returns the calling thread's scratch buffer of at least `bytes` bytes. It is aligned to a cache line,
 * its contents are undefined, and it is valid until the thread's next call. Aborts if there is no memory. */
void *cpu_thread_memory(size_t bytes);

/* The function of one op, and the table of all of them. It returns when the op is done. The threads of the
 * pool share the work. */
typedef void cpu_op_fn(const struct op_call *call, struct pool *pool);
extern cpu_op_fn *const cpu_ops[OP_COUNT];

/* Names everything in this backend that affects the bits of results, such as "avx512 oneDNN 2.6.3". */
const char *cpu_numerics(void);

#endif
