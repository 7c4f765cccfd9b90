/* Allocations that may fail, for whatever a user or a model sizes: lines, specs, answers, rows of the state.
 *
 * Each function returns NULL when memory runs out, and the caller turns that into -ENOMEM. The result is freed with
 * free(). Small internal structures use xmalloc and its family (base/arena.h), which abort.
 *
 * mem_fail_nth is for tests. It makes one of the coming allocations fail, so that a test can run a request with the
 * first allocation failing, then with the second, and so on until a run passes without a failure. Any thread.
 */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *mem_alloc(size_t bytes);
void *mem_calloc(size_t count, size_t size); /* zeroed; NULL also when the product overflows */
void *mem_realloc(void *p, size_t bytes);    /* on failure `p` is unchanged */
char *mem_strdup(const char *s);

/* The nth allocation from now on fails, once; 1 is the next one, 0 cancels. Counts the allocations of all threads. */
void mem_fail_nth(uint64_t n);
/* Whether the allocation that mem_fail_nth asked for has been reached and has failed. */
bool mem_has_failed(void);

#endif
