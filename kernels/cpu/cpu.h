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

/* Creates a pool in which `threads` threads work on one pool_run, including the caller. With 1, the caller
 * works alone. Returns a negative errno if a thread cannot be started. */
int pool_create(uint32_t threads, struct pool **ret);
/* Stops the threads and frees the pool. No pool_run may be in progress. Takes NULL. */
void pool_destroy(struct pool *p);
/* Calls fn(ctx, i) once for every i < n, in any order and on any of the threads, and returns when all
 * calls are done. Several threads may call pool_run at the same time. Idle threads sleep. Nothing is
 * allocated. */
void pool_run(struct pool *p, void (*fn)(void *ctx, uint32_t i), void *ctx, uint32_t n);
/* Returns a second view of the pool, for work that should not take a core from an op, such as copies. A
 * pool_run on it uses the same threads. Its caller works on its pieces only while a core is free.
 * Otherwise the caller sleeps, and threads that do have a core run these pieces between their own. The
 * pieces should be short, and a piece must not call pool_run. The view belongs to p and lives as long. */
struct pool *pool_aside(struct pool *p);

/* Must be called first in every thread that may run an op. It turns off the threading inside libraries. */
void cpu_thread_init(void);

/* Returns the calling thread's scratch buffer: at least `bytes` long, cache-line aligned, uninitialized,
 * valid until the thread's next call. The buffer does not count as memory of a device; it is to a core
 * what registers and shared memory are to a GPU. Aborts if there is no memory. */
void *cpu_thread_memory(size_t bytes);

/* The function of one op, and the table of all these functions. An op runs in the calling thread and
 * shares its work with the threads of the pool. */
typedef void cpu_op_fn(const struct op_call *call, struct pool *pool);
extern cpu_op_fn *const cpu_ops[OP_COUNT];

/* Returns what the bits of this backend's results depend on, such as "avx512 oneDNN 2.6.3". */
const char *cpu_numerics(void);

#endif
