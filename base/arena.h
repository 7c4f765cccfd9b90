/* An arena: memory that is allocated piece by piece and freed in one call. Each graph, machine and plan lives
 * in an arena of its own.
 *
 * An allocation never returns NULL. When the system has no memory, it logs an error and aborts the program.
 * This is acceptable because an arena holds small internal data. Work that may need much memory runs in a
 * scope of bounded work (bounded.h); there, a failed allocation ends the scope instead. Tensors are never
 * stored in an arena.
 *
 * An arena is not thread-safe. It belongs to the thread that builds the data in it.
 */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>

struct arena;

struct arena *arena_create(void);
/* Frees the arena and all memory that was allocated from it. `a` may be NULL. */
void arena_destroy(struct arena *a);

/* Returns `bytes` bytes of zeroed memory, aligned to 16 bytes. The memory is valid until arena_destroy. Every
 * call returns a different pointer, even if `bytes` is 0. */
void *arena_alloc(struct arena *a, size_t bytes);
/* Returns a zeroed array of `count` elements of `size` bytes each. If count * size overflows, the call fails
 * as if memory had run out. */
void *arena_alloc_array(struct arena *a, size_t count, size_t size);
/* Copies the `bytes` bytes at `p` into the arena and returns a pointer to the copy. */
void *arena_memdup(struct arena *a, const void *p, size_t bytes);
/* Copies the string `s` into the arena and returns a pointer to the copy. */
char *arena_strdup(struct arena *a, const char *s);

/* Counterparts of malloc, calloc, realloc and free for small internal data. They abort instead of returning
 * NULL.
 *
 * In a scope of bounded work (bounded.h) they charge the scope, and a failed allocation ends the scope
 * instead of aborting. Memory that was allocated in a scope must be freed with xfree while the scope is open.
 * Outside a scope xfree is the same as free. */
void *xmalloc(size_t bytes);
void *xcalloc(size_t count, size_t size); /* zeroed; an overflow counts as out-of-memory */
void *xrealloc(void *p, size_t bytes);
void xfree(void *p); /* p may be NULL */

#endif
