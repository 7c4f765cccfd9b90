/* The inside of the cpu backend: the table of ops, and the pool of threads that share the work of one op.
 *
 * A pool never influences the order of a sum. An op cuts its work into pieces by shape alone, and each
 * piece writes its own part of the output. */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/op.h"

struct pool;

/* Creates a pool. Each pool_run uses up to `threads` threads, including the caller. If `threads` is 1, the
 * caller works alone. Returns a negative errno if a thread cannot be started. */
int pool_create(uint32_t threads, struct pool **ret);
/* Stops the threads and frees the pool. No pool_run may be in progress. p may be NULL. */
void pool_destroy(struct pool *p);
/* Calls fn(ctx, i) once for every i < n and returns when all calls are done. The calls run in any order
 * and on any thread of the pool. Several threads may call pool_run at the same time. Allocates nothing. */
void pool_run(struct pool *p, void (*fn)(void *ctx, uint32_t i), void *ctx, uint32_t n);
/* Returns a second view of the pool, for work that should not take a core from an op, such as copies. A
 * pool_run on this view uses the same threads. While all cores are busy, its caller sleeps, and threads
 * that have a core run its pieces between their own. Pieces should be short and must not call pool_run.
 * The view is freed together with p. */
struct pool *pool_background(struct pool *p);

/* Every thread that may run an op must call this function first. It turns off the threading inside
 * libraries. */
void cpu_thread_init(void);

/* Returns the calling thread's scratch buffer. It has at least `bytes` bytes, is aligned to a cache line,
 * and is valid until the thread's next call. The contents are undefined. The buffer does not count as
 * device memory. Aborts if there is no memory. */
void *cpu_thread_memory(size_t bytes);

/* The function of one op, and the table of the functions of all ops. The caller waits until the op is
 * done, and the threads of the pool share the work. */
typedef void cpu_op_fn(const struct op_call *call, struct pool *pool);
extern cpu_op_fn *const cpu_ops[OP_COUNT];

/* Returns a string that names everything in this backend that affects the bits of results, such as "avx512
 * oneDNN 2.6.3". */
const char *cpu_numerics(void);

#endif
