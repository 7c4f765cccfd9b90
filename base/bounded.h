/* Bounded work: a computation whose memory is limited and that can be stopped at any time.
 *
 * bounded_run calls a function. While that function runs, the scope of the call is open on its thread:
 *
 * - Everything that the thread gets from xmalloc, xcalloc, xrealloc, arenas and vectors is charged to the scope. A request
 *   that would pass the limit, or that the system cannot satisfy, ends the scope with -ENOMEM.
 * - Long loops call bounded_poll. Once in `poll_every` calls, bounded_poll calls the caller's `stop`. When `stop` returns
 *   true, the scope ends with -ECANCELED.
 *
 * Ending a scope early frees all memory that the function has got inside the scope and returns from bounded_run by longjmp.
 * PostgreSQL ends queries in the same way (memory contexts and CHECK_FOR_INTERRUPTS). The alternative, an error code from
 * every function that allocates or loops, would touch each of the planner's stages and each of their callers.
 *
 * A function that runs in a scope must keep to three rules:
 *
 * 1. It owns no resource but memory: no open file, no lock.
 * 2. It frees memory with xfree (vec_free, arena_destroy, strbuf_finish do so), never with free.
 * 3. It does not change an object from outside the scope so that the object refers to memory from inside, unless the caller
 *    of bounded_run resets the object after an early end.
 *
 * When the function returns by itself, whatever memory it still holds becomes ordinary memory of its caller.
 *
 * Without an open scope bounded_poll does nothing and the allocation functions abort when there is no memory. Scopes do not
 * nest. Each thread has a scope of its own, so other threads are not affected.
 */
#ifndef BASE_BOUNDED_H
#define BASE_BOUNDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bounded {
    uint64_t limit_bytes;    /* most bytes at any one time; 0: no limit */
    bool (*stop)(void *ctx); /* true: end the scope; NULL: never. Called on the thread that works. */
    void *ctx;
    uint32_t poll_every; /* calls of bounded_poll from one question to the next; 0: BOUNDED_POLL_EVERY */

    /* Set by bounded_run. */
    uint64_t peak_bytes; /* most bytes that were in use at any one time */
    uint64_t held_bytes; /* in use at the end: what the function leaves to its caller */
    uint64_t asked;      /* how often `stop` was called */
    bool ended_early;    /* by the limit or by `stop`; all memory of the scope was freed */
};

#define BOUNDED_POLL_EVERY 1024

/* Calls work(arg) in a scope. Returns what `work` returns, or -ENOMEM or -ECANCELED when the scope ended early. */
int bounded_run(struct bounded *b, int (*work)(void *arg), void *arg);

/* ---- for code that may run in a scope ---- */

extern _Thread_local uint32_t bounded_polls_left; /* until the next question */

void bounded_ask(void);

/* A step of a long loop. Call it at least once per few microseconds of work; it costs a decrement. */
static inline void bounded_poll(void)
{
    if (--bounded_polls_left == 0)
        bounded_ask();
}

/* The same as n calls, for a loop whose steps are too short to be counted one by one. */
static inline void bounded_poll_steps(size_t n)
{
    if (n >= bounded_polls_left)
        bounded_ask();
    else
        bounded_polls_left -= (uint32_t)n;
}

/* ---- for the allocation functions of arena.c ---- */

bool bounded_is_open(void); /* a scope is open on this thread */
/* Before an allocation of `bytes`, in place of the block `old` where that is not NULL: ends the scope when the limit would be
 * passed. */
void bounded_charge(const void *old, size_t bytes);
/* After it: the block p, of `bytes`, belongs to the scope. */
void bounded_remember(void *p, size_t bytes);
/* Before p is freed or moved. False when p does not belong to the scope; *ret_bytes is only set when it does. */
bool bounded_forget(void *p, size_t *ret_bytes);
/* The system has no memory: ends the scope with -ENOMEM. Returns when no scope is open. */
void bounded_no_memory(void);

#endif
