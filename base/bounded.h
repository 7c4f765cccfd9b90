/* Bounded work: a computation whose memory is limited and that can be stopped at any time.
 *
 * bounded_run calls a function. While that function runs, a scope is open on its thread:
 *
 * - Everything that the thread gets from xmalloc, xcalloc, xrealloc, arenas and vectors is charged to the
 *   scope. A request that would exceed the limit, or that the system cannot satisfy, ends the scope with
 *   -ENOMEM.
 * - Long loops call bounded_poll. Once in `poll_every` calls, bounded_poll calls the caller's `stop`. When
 *   `stop` returns true, the scope ends with -ECANCELED.
 *
 * When a scope ends early, all memory that was allocated in it is freed and bounded_run returns, by longjmp.
 * PostgreSQL ends queries in the same way (memory contexts and CHECK_FOR_INTERRUPTS). The alternative, an
 * error code from every function that allocates or loops, would touch each of the planner's stages and each
 * of their callers.
 *
 * A function that runs in a scope must keep to three rules:
 *
 * 1. It owns no resource but memory: no open file, no lock.
 * 2. It frees memory with xfree (vec_free, arena_destroy and strbuf_finish do so), never with free.
 * 3. It does not store pointers to memory of the scope in objects from outside the scope, unless the caller
 *    of bounded_run resets those objects after an early end.
 *
 * When the function returns by itself, the memory that it still holds becomes ordinary memory of its caller.
 *
 * Without an open scope, bounded_poll does nothing and the allocation functions abort when there is no
 * memory. Scopes do not nest. Each thread has its own scope, so a scope does not affect other threads.
 */
#ifndef BASE_BOUNDED_H
#define BASE_BOUNDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The limits and the results of one scope. The caller sets the first four fields, and bounded_run sets the
 * others. */
struct bounded {
    /* The largest number of bytes that the function may use at a time. 0 means no limit. */
    uint64_t limit_bytes;
    /* Returns true to end the scope. It is called on the thread that runs the function. May be NULL. */
    bool (*stop)(void *ctx);
    void *ctx; /* passed to `stop` */
    /* The number of calls of bounded_poll per call of `stop`. 0 means BOUNDED_POLL_EVERY. */
    uint32_t poll_every;

    uint64_t peak_bytes; /* most bytes in use at one time */
    /* The number of bytes that the function still had in use when it returned. The caller owns this memory
     * now. */
    uint64_t held_bytes;
    uint64_t asked; /* calls of `stop` */
    /* True when the limit or `stop` ended the scope. In this case all memory of the scope has been freed. */
    bool ended_early;
};

#define BOUNDED_POLL_EVERY 1024

/* Calls work(arg) in a new scope and returns its result. Returns -ENOMEM or -ECANCELED when the scope
 * ended early. Scopes do not nest. */
int bounded_run(struct bounded *b, int (*work)(void *arg), void *arg);

/* ---- functions for code inside a scope ---- */

extern _Thread_local uint32_t bounded_polls_left; /* calls of bounded_poll until `stop` is called */

/* Calls the `stop` function of the open scope, if there is one. Ends the scope when `stop` returns true. */
void bounded_ask(void);

/* Call this in every long loop, at least once every few microseconds. It lets the scope stop there, and
 * costs one decrement. */
static inline void bounded_poll(void)
{
    if (--bounded_polls_left == 0)
        bounded_ask();
}

/* Does the same as `n` calls of bounded_poll. Use it in loops whose iterations are very short. */
static inline void bounded_poll_steps(size_t n)
{
    if (n >= bounded_polls_left)
        bounded_ask();
    else
        bounded_polls_left -= (uint32_t)n;
}

/* ---- functions for the allocators in arena.c ---- */

/* Returns true when a scope is open on this thread. */
bool bounded_is_open(void);
/* Call this before an allocation of `bytes` bytes. It ends the scope when that would exceed the limit.
 * `old` is the block that realloc will replace, or NULL. */
void bounded_charge(const void *old, size_t bytes);
/* Call this after an allocation. It records that the block of `bytes` bytes at `p` belongs to the scope. */
void bounded_remember(void *p, size_t bytes);
/* Removes the block `p` from the scope and returns true. Call this before `p` is freed or reallocated.
 * *ret_bytes is the block's size. Returns false when the block does not belong to the scope. */
bool bounded_forget(void *p, size_t *ret_bytes);
/* Call this when the system has no memory. It ends the open scope with -ENOMEM. It returns only when no
 * scope is open. */
void bounded_no_memory(void);

#endif
