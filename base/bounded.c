/* Implements the scopes of bounded work; bounded.h has the rules for code that runs in them.
 *
 * A scope records each of its allocated blocks in a hash table with open addressing, from the block's address
 * to the bytes charged for it. A header in front of every block would be simpler. But a block may outlive its
 * scope, and then its new owner frees it with free, which would not know about the header.
 *
 * The table doubles when it is half full. It is charged to the scope like other memory, because a plan may
 * consist of millions of small blocks.
 */
#include "base/bounded.h"

#include <assert.h>
#include <errno.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdlib.h>

#define FIRST_SLOTS    256
#define BLOCK_OVERHEAD 16 /* bytes that malloc itself needs per block */
/* If a scope has used more than this number of bytes, its freed memory is given back to the system. */
#define TRIM_ABOVE (1 << 20)

/* One slot of a scope's hash table. A used slot describes a block of memory that was allocated in the
 * scope. */
struct bounded_block {
    void *at;     /* NULL: the slot is unused */
    size_t bytes; /* bytes charged for the block, with BLOCK_OVERHEAD */
};

/* An open scope of bounded work. The struct lives on the stack of bounded_run. */
struct scope {
    struct bounded *b;
    jmp_buf end; /* where an early end jumps to */
    int failure; /* the negative errno of an early end */
    struct bounded_block *slots;
    size_t n_slots; /* a power of two */
    size_t n_used;  /* at most half of n_slots */
    uint64_t bytes; /* bytes charged now */
};

static _Thread_local struct scope *open_scope; /* NULL: no scope is open */
_Thread_local uint32_t bounded_polls_left = UINT32_MAX;

static _Noreturn void end_early(struct scope *s, int failure)
{
    s->failure = failure;
    longjmp(s->end, 1);
}

bool bounded_is_open(void)
{
    return open_scope != NULL;
}

/* ---- the table ---- */

static size_t slot_of(const struct scope *s, const void *p)
{
    uint64_t h = (uint64_t)(uintptr_t)p * 0x9e3779b97f4a7c15u;
    return (size_t)(h >> 32) & (s->n_slots - 1);
}

/* Returns the index of the slot that holds block `p`. If `p` is not in the table, returns the index of the
 * free slot where it belongs. */
static size_t find_slot(const struct scope *s, const void *p)
{
    size_t i = slot_of(s, p);
    while (s->slots[i].at != NULL && s->slots[i].at != p)
        i = (i + 1) & (s->n_slots - 1);
    return i;
}

/* Doubles the number of slots. */
static int grow_table(struct scope *s)
{
    struct bounded_block *old = s->slots;
    size_t n_old = s->n_slots, n = n_old > 0 ? 2 * n_old : FIRST_SLOTS;
    struct bounded_block *slots = calloc(n, sizeof *slots);
    if (slots == NULL)
        return -ENOMEM;
    s->slots = slots;
    s->n_slots = n;
    s->bytes += (n - n_old) * sizeof *slots;
    for (size_t i = 0; i < n_old; i++)
        if (old[i].at != NULL)
            s->slots[find_slot(s, old[i].at)] = old[i];
    free(old);
    return 0;
}

/* Empties slot `i`. find_slot stops at an empty slot, so this function moves up any later block that
 * find_slot could otherwise not reach. */
static void clear_slot(struct scope *s, size_t i)
{
    size_t mask = s->n_slots - 1;
    for (size_t next = (i + 1) & mask; s->slots[next].at != NULL; next = (next + 1) & mask) {
        size_t home = slot_of(s, s->slots[next].at);
        if (((next - home) & mask) < ((next - i) & mask))
            continue; /* its home is after the gap */
        s->slots[i] = s->slots[next];
        i = next;
    }
    s->slots[i] = (struct bounded_block){0};
    s->n_used--;
}

/* ---- allocation ---- */

void bounded_charge(const void *old, size_t bytes)
{
    struct scope *s = open_scope;
    if (s == NULL)
        return;
    if (2 * (s->n_used + 1) > s->n_slots && grow_table(s) < 0)
        end_early(s, -ENOMEM);
    uint64_t limit = s->b->limit_bytes, before = old != NULL ? s->slots[find_slot(s, old)].bytes : 0;
    uint64_t after = s->bytes - before + bytes + BLOCK_OVERHEAD;
    if (limit > 0 && after > limit)
        end_early(s, -ENOMEM);
}

void bounded_remember(void *p, size_t bytes)
{
    struct scope *s = open_scope;
    if (s == NULL)
        return;
    s->slots[find_slot(s, p)] = (struct bounded_block){p, bytes + BLOCK_OVERHEAD};
    s->n_used++;
    s->bytes += bytes + BLOCK_OVERHEAD;
    if (s->bytes > s->b->peak_bytes)
        s->b->peak_bytes = s->bytes;
}

bool bounded_forget(void *p, size_t *ret_bytes)
{
    struct scope *s = open_scope;
    if (s == NULL || p == NULL || s->n_slots == 0)
        return false;
    size_t i = find_slot(s, p);
    if (s->slots[i].at == NULL)
        return false; /* the block was allocated outside the scope */
    *ret_bytes = s->slots[i].bytes - BLOCK_OVERHEAD;
    s->bytes -= s->slots[i].bytes;
    clear_slot(s, i);
    return true;
}

void bounded_no_memory(void)
{
    if (open_scope != NULL)
        end_early(open_scope, -ENOMEM);
}

/* ---- polls ---- */

static uint32_t poll_every(const struct bounded *b)
{
    return b->poll_every > 0 ? b->poll_every : BOUNDED_POLL_EVERY;
}

void bounded_ask(void)
{
    struct scope *s = open_scope;
    bounded_polls_left = s != NULL ? poll_every(s->b) : UINT32_MAX;
    if (s == NULL || s->b->stop == NULL)
        return;
    s->b->asked++;
    if (s->b->stop(s->b->ctx))
        end_early(s, -ECANCELED);
}

/* ---- scopes ---- */

static void free_all(struct scope *s)
{
    for (size_t i = 0; i < s->n_slots; i++)
        free(s->slots[i].at);
}

/* If the scope used much memory, returns the freed memory to the system. Otherwise malloc would keep it in
 * the process, which may never need so much again. */
static void return_memory(const struct bounded *b)
{
    if (b->peak_bytes > TRIM_ABOVE)
        malloc_trim(0);
}

/* Calls work(arg). If the scope ends early, longjmp returns to this function, which then frees the scope's
 * memory. setjmp is not in bounded_run, because longjmp may spoil the local variables of the function that
 * calls setjmp. */
static int run_in(struct scope *s, int (*work)(void *arg), void *arg)
{
    if (setjmp(s->end) == 0)
        return work(arg);
    s->b->ended_early = true;
    free_all(s);
    return s->failure;
}

int bounded_run(struct bounded *b, int (*work)(void *arg), void *arg)
{
    struct scope s = {.b = b};
    assert(open_scope == NULL);
    b->peak_bytes = b->held_bytes = b->asked = 0;
    b->ended_early = false;
    open_scope = &s;
    bounded_polls_left = poll_every(b);
    int r = run_in(&s, work, arg);
    open_scope = NULL;
    bounded_polls_left = UINT32_MAX;
    if (!b->ended_early)
        b->held_bytes = s.bytes - s.n_slots * sizeof *s.slots;
    free(s.slots);
    return_memory(b);
    return r;
}
