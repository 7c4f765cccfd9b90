/* Bump allocation in chunks that are freed together, and the malloc family that aborts.
 *
 * Why chunks from calloc: what the arena hands out is zeroed without touching it twice, and fresh pages of a
 * big chunk come zeroed from the kernel. A request that would waste much of a chunk gets one of its own, put
 * behind the current chunk, so that small requests go on filling that one. Chunks double up to a limit: an
 * arena with three strings stays small, one with a million instructions needs few calls.
 *
 * Under AddressSanitizer the unused rest of a chunk is poisoned and allocations are kept 16 bytes apart, so
 * an overrun from one allocation into the next is caught as it would be with malloc.
 *
 * Not thread-safe (see the header); xmalloc and friends are for any thread.
 */
#include "base/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/bounded.h"
#include "base/log.h"
#include "base/mem.h"

#if defined(__SANITIZE_ADDRESS__)
#define ARENA_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ARENA_ASAN 1
#endif
#endif

#ifdef ARENA_ASAN
#include <sanitizer/asan_interface.h>
#define poison(p, n)   __asan_poison_memory_region(p, n)
#define unpoison(p, n) __asan_unpoison_memory_region(p, n)
enum { RED_ZONE = 16 };
#else
#define poison(p, n)   ((void)(p), (void)(n))
#define unpoison(p, n) ((void)(p), (void)(n))
enum { RED_ZONE = 0 };
#endif

enum { ALIGN = 16, FIRST_CHUNK = 4096, LAST_CHUNK = 1 << 20 };

struct chunk {
    struct chunk *next;
    size_t size, used; /* of data */
    _Alignas(ALIGN) unsigned char data[];
};

struct arena {
    struct chunk *chunks; /* the first is the one being filled */
    size_t next_size;
};

static _Noreturn void out_of_memory(size_t bytes)
{
    bounded_no_memory(); /* returns when no scope is open */
    log_error("out of memory: cannot get %zu bytes", bytes);
    abort();
}

/* In a scope an allocation may fail, so it counts as one of those that a test can choose to fail (mem.h). */

static void *get(size_t bytes)
{
    return bounded_is_open() ? mem_alloc(bytes) : malloc(bytes ? bytes : 1);
}

static void *get_zeroed(size_t bytes)
{
    return bounded_is_open() ? mem_calloc(1, bytes) : calloc(bytes ? bytes : 1, 1);
}

static void *get_more(void *p, size_t bytes)
{
    return bounded_is_open() ? mem_realloc(p, bytes) : realloc(p, bytes ? bytes : 1);
}

void *xmalloc(size_t bytes)
{
    bounded_charge(NULL, bytes);
    void *p = get(bytes);

    if (!p)
        out_of_memory(bytes);
    bounded_remember(p, bytes);
    return p;
}

void *xcalloc(size_t count, size_t size)
{
    size_t bytes;

    if (__builtin_mul_overflow(count, size, &bytes))
        out_of_memory(SIZE_MAX);
    bounded_charge(NULL, bytes);
    void *p = get_zeroed(bytes);

    if (!p)
        out_of_memory(bytes);
    bounded_remember(p, bytes);
    return p;
}

void *xrealloc(void *p, size_t bytes)
{
    size_t before = 0;

    bounded_charge(p, bytes);
    bool known = bounded_forget(p, &before);
    void *q = get_more(p, bytes);

    if (!q && known)
        bounded_remember(p, before); /* so that the end of the scope frees it */
    if (!q)
        out_of_memory(bytes);
    bounded_remember(q, bytes);
    return q;
}

void xfree(void *p)
{
    size_t bytes;

    bounded_forget(p, &bytes);
    free(p);
}

struct arena *arena_create(void)
{
    struct arena *a = xcalloc(1, sizeof *a);

    a->next_size = FIRST_CHUNK;
    return a;
}

void arena_destroy(struct arena *a)
{
    if (!a)
        return;
    for (struct chunk *c = a->chunks, *next; c; c = next) {
        next = c->next;
        unpoison(c->data, c->size);
        xfree(c);
    }
    xfree(a);
}

static struct chunk *chunk_create(size_t size)
{
    struct chunk *c;

    if (size > SIZE_MAX - sizeof *c)
        out_of_memory(size);
    c = xcalloc(1, sizeof *c + size);
    c->size = size;
    poison(c->data, size);
    return c;
}

/* A chunk with room for `need` bytes, linked into the arena. */
static struct chunk *chunk_for(struct arena *a, size_t need)
{
    struct chunk *first = a->chunks, *c;

    if (first && first->size - first->used >= need)
        return first;
    if (first && need > a->next_size / 4) {
        c = chunk_create(need);
        c->next = first->next;
        first->next = c;
        return c;
    }
    c = chunk_create(need > a->next_size ? need : a->next_size);
    if (a->next_size < LAST_CHUNK)
        a->next_size *= 2;
    c->next = first;
    a->chunks = c;
    return c;
}

void *arena_alloc(struct arena *a, size_t bytes)
{
    struct chunk *c;
    size_t need;
    void *p;

    if (bytes > SIZE_MAX - ALIGN - RED_ZONE)
        out_of_memory(bytes);
    /* An empty request still takes room: every pointer that was handed out is distinct. */
    need = ((bytes ? bytes : 1) + ALIGN - 1) / ALIGN * ALIGN + RED_ZONE;
    c = chunk_for(a, need);
    p = c->data + c->used;
    c->used += need;
    unpoison(p, bytes);
    return p;
}

void *arena_alloc_array(struct arena *a, size_t count, size_t size)
{
    size_t bytes;

    if (__builtin_mul_overflow(count, size, &bytes))
        out_of_memory(SIZE_MAX);
    return arena_alloc(a, bytes);
}

void *arena_memdup(struct arena *a, const void *p, size_t bytes)
{
    void *q = arena_alloc(a, bytes);

    if (bytes)
        memcpy(q, p, bytes);
    return q;
}

char *arena_strdup(struct arena *a, const char *s)
{
    return arena_memdup(a, s, strlen(s) + 1);
}
