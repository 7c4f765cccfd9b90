/* Allocations that may fail. They are for data whose size a user or a model decides: lines, specs,
 * answers, database rows.
 *
 * Each function returns NULL when memory runs out, and the caller turns that into -ENOMEM. The result is
 * freed with free(). Small internal structures use xmalloc and its family (base/arena.h), which abort
 * instead.
 *
 * mem_fail_nth is for tests. It makes one future allocation fail. A test can run a request with the first
 * allocation failing, then with the second, and so on until a run passes without a failure. Any thread may
 * call these functions.
 */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *mem_alloc(size_t bytes);
void *mem_calloc(size_t count, size_t size); /* zeroed; NULL also on overflow */
void *mem_realloc(void *p, size_t bytes);    /* on failure `p` stays valid and unchanged */
char *mem_strdup(const char *s);

/* Makes the nth allocation from now on fail. If `n` is 1, the next allocation fails. If `n` is 0, no
 * allocation fails. The allocations of all threads are counted. */
void mem_fail_nth(uint64_t n);
/* Returns true if the allocation that mem_fail_nth has chosen has already failed. */
bool mem_has_failed(void);

#endif
