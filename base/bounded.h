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

/* The limits and the results of one scope. The caller sets the first four fields before it calls bounded_run.
 * bounded_run sets the other fields. */
struct bounded {
    /* The largest number of bytes that the function may have allocated at the same time. 0 means no
     * limit. */
    uint64_t limit_bytes;
    /* bounded_poll calls this function now and then, on the thread of the scope. If it returns true, the
     * scope ends early. For example, the function returns true when the user has cancelled the work. May be
     * NULL. */
    bool (*stop)(void *ctx);
    void *ctx; /* passed to `stop` */
    /* bounded_poll calls `stop` once in this number of calls. 0 means BOUNDED_POLL_EVERY. */
    uint32_t poll_every;

    uint64_t peak_bytes; /* most bytes in use at one time */
    /* The number of bytes that were still allocated when the function returned. From then on, this memory
     * belongs to the caller. */
    uint64_t held_bytes;
    uint64_t asked; /* calls of `stop` */
    /* True if the scope ended early, because the limit was reached, memory ran out, or `stop` returned true.
     * All memory of the scope is then already freed. */
    bool ended_early;
};

#define BOUNDED_POLL_EVERY 1024

/* Calls work(arg) in a new scope and returns its result. If memory runs out or the limit is reached, returns
 * -ENOMEM. If `stop` returned true, returns -ECANCELED. Scopes do not nest. */
int bounded_run(struct bounded *b, int (*work)(void *arg), void *arg);

/* ---- functions for code inside a scope ---- */

extern _Thread_local uint32_t bounded_polls_left; /* calls of bounded_poll until `stop` is called */

/* Calls the `stop` function of the open scope, if there is one, and ends the scope if `stop` returns
 * true. */
void bounded_ask(void);

/* Call this function in every long loop, at least once every few microseconds, so that a scope can end there.
 * Most calls only decrement a counter. */
static inline void bounded_poll(void)
{
    if (--bounded_polls_left == 0)
        bounded_ask();
}

/* Has the effect of `n` calls of bounded_poll. In a loop with very short iterations, call this function once
 * for every `n` iterations. */
static inline void bounded_poll_steps(size_t n)
{
    if (n >= bounded_polls_left)
        bounded_ask();
    else
        bounded_polls_left -= (uint32_t)n;
}

/* ---- functions for the allocators in arena.c ---- */

/* Returns true if a scope of bounded work is open on the calling thread. */
bool bounded_is_open(void);
/* Call this function before an allocation of `bytes` bytes. `old` is the block that a realloc will replace,
 * or NULL. If the allocation would exceed the limit, the scope ends. */
void bounded_charge(const void *old, size_t bytes);
/* Call this function after an allocation. It records that the block of `bytes` bytes at `p` belongs to the
 * scope. */
void bounded_remember(void *p, size_t bytes);
/* Call this function before block `p` is freed or reallocated. If the block belongs to the scope, removes it
 * from the scope, stores its size in *ret_bytes and returns true. Otherwise returns false. */
bool bounded_forget(void *p, size_t *ret_bytes);
/* Call this function when the system has no memory. If a scope is open, the scope ends with -ENOMEM and the
 * call does not return. If no scope is open, the call does nothing. */
void bounded_no_memory(void);

#endif
