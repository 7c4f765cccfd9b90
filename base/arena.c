/* Implements the arena, and xmalloc and its family, declared in arena.h.
 *
 * An arena is a list of chunks. An allocation takes the next bytes of the first chunk. Chunks double in size
 * up to 1 MiB: an arena with three strings stays small, and an arena with a million instructions needs few
 * chunks. A large request gets a chunk of its own, placed second in the list, so that small requests continue
 * to fill the first chunk.
 *
 * Chunks come from calloc, so all memory of an arena is zeroed. For a big chunk calloc gets zeroed pages from
 * the kernel and need not write them.
 *
 * Under AddressSanitizer the unused part of a chunk is poisoned and allocations are 16 bytes apart. An
 * overrun from one allocation into the next is then reported, as it would be with malloc.
 *
 * An arena belongs to one thread. Any thread may call xmalloc and its family.
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

struct arena_chunk {
    struct arena_chunk *next;
    size_t size; /* bytes of `data` */
    size_t used; /* bytes of `data` that were handed out */
    _Alignas(ALIGN) unsigned char data[];
};

struct arena {
    struct arena_chunk *chunks; /* the first chunk is being filled */
    size_t next_size;           /* bytes of the next chunk */
};

static _Noreturn void out_of_memory(size_t bytes)
{
    /* If a scope is open (a function with a memory limit runs, see bounded.h), bounded_no_memory ends the
     * scope and does not return. */
    bounded_no_memory();
    log_error("out of memory: cannot get %zu bytes", bytes);
    abort();
}

/* get, get_zeroed and get_more allocate memory with malloc, calloc and realloc. While a scope of bounded.h is
 * open, they use the functions of mem.h instead, so that a test can make an allocation fail. */
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
        /* realloc failed, so the old block is still allocated. Register the old block with the scope again,
         * so that it is freed if the scope ends early. */
        bounded_remember(p, before);
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
    for (struct arena_chunk *c = a->chunks, *next; c; c = next) {
        next = c->next;
        unpoison(c->data, c->size);
        xfree(c);
    }
    xfree(a);
}

static struct arena_chunk *chunk_create(size_t size)
{
    struct arena_chunk *c;

    if (size > SIZE_MAX - sizeof *c)
        out_of_memory(size);
    c = xcalloc(1, sizeof *c + size);
    c->size = size;
    poison(c->data, size);
    return c;
}

/* Returns a chunk of the arena that has at least `need` unused bytes. Creates a new chunk if necessary. */
static struct arena_chunk *chunk_for(struct arena *a, size_t need)
{
    struct arena_chunk *first = a->chunks, *c;

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
    struct arena_chunk *c;
    size_t need;
    void *p;

    if (bytes > SIZE_MAX - ALIGN - RED_ZONE)
        out_of_memory(bytes);
    /* Give a request for 0 bytes some space too, so that every call returns a different pointer. */
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
