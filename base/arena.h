/* Memory that is freed in one call. Data that flows (graph, machine, plan) lives in one arena each.
 *
 * Allocation never fails. It aborts, because what lives here is small and internal; what may be large is built in a scope
 * of bounded work (bounded.h), which ends early instead. Tensor storage does not live here. Not thread-safe: an arena
 * belongs to whoever builds the data in it.
 */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>

struct arena;

struct arena *arena_create(void);
void arena_destroy(struct arena *a); /* takes NULL */

/* Zeroed, aligned to 16 bytes. */
void *arena_alloc(struct arena *a, size_t bytes);
void *arena_alloc_array(struct arena *a, size_t count, size_t size); /* aborts on overflow */
void *arena_memdup(struct arena *a, const void *p, size_t bytes);
char *arena_strdup(struct arena *a, const char *s);

/* malloc and friends that abort instead of returning NULL, for small internal scratch. In a scope of bounded work
 * (bounded.h) the scope is charged, and ends early instead of aborting; there memory must be freed by xfree. Anywhere else
 * xfree is free. */
void *xmalloc(size_t bytes);
void *xcalloc(size_t count, size_t size);
void *xrealloc(void *p, size_t bytes);
void xfree(void *p); /* takes NULL */

#endif
