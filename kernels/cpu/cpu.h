/* Inside the cpu backend: the ops' table, and the pool of threads that share one op's work.
 *
 * A pool never chooses an order of summation: an op cuts its work into pieces by shape alone, and each piece
 * writes its own part of the output.
 */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/op.h"

struct pool;

/* `threads` work on one pool_run, the caller included; 1: the caller alone. */
int pool_create(uint32_t threads, struct pool **ret);
void pool_destroy(struct pool *p); /* takes NULL; no pool_run may be under way */
/* fn(ctx, i) for every i < n, each once, in any order, on any of the threads; returns when all are done.
 * Several threads may call at the same time. Sleeps when idle; allocates nothing. */
void pool_run(struct pool *p, void (*fn)(void *ctx, uint32_t i), void *ctx, uint32_t n);
/* The same threads for work that should not take a core from an op, as copies: the caller works only where there is a core to
 * spare, else it sleeps while those threads that have one do the pieces (short ones, please) between theirs. A piece of such a run
 * must not run another. Belongs to p. */
struct pool *pool_aside(struct pool *p);

/* First thing in every thread that may call an op: keeps the libraries' own threading off. */
void cpu_thread_init(void);

/* Of at least so many bytes, at a line of a cache, without meaning; the calling thread's until it asks again. No device's memory: it
 * is to cores what registers and shared memory are to a GPU. Aborts where there is none. */
void *cpu_thread_memory(size_t bytes);

typedef void cpu_op_fn(const struct op_call *call, struct pool *pool);
extern cpu_op_fn *const cpu_ops[OP_COUNT];

/* "avx512 oneDNN 2.6.3": what the bits of this backend depend on. */
const char *cpu_numerics(void);

#endif
