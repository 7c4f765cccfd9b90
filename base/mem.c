/* Implements the allocations of mem.h. The counter of mem_fail_nth is atomic, because several threads may
 * allocate memory for the same request. */
#include "base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Only tests set this counter. 1 means that the next allocation fails, 2 means that the allocation after it
 * fails, and so on. 0 means that no allocation fails. */
static _Atomic uint64_t until_failure;
static atomic_bool has_failed;

void mem_fail_nth(uint64_t n)
{
    atomic_store(&has_failed, false);
    atomic_store(&until_failure, n);
}

bool mem_has_failed(void)
{
    return atomic_load(&has_failed);
}

/* Counts one allocation. Returns true if this allocation is the one that mem_fail_nth has chosen to fail. */
static bool must_fail(void)
{
    uint64_t left = atomic_load_explicit(&until_failure, memory_order_relaxed);

    while (left > 0)
        if (atomic_compare_exchange_weak(&until_failure, &left, left - 1))
            break;
    if (left != 1)
        return false;
    atomic_store(&has_failed, true);
    return true;
}

void *mem_alloc(size_t bytes)
{
    return must_fail() ? NULL : malloc(bytes ? bytes : 1);
}

void *mem_calloc(size_t count, size_t size)
{
    if (must_fail())
        return NULL;
    return count && size ? calloc(count, size) : calloc(1, 1);
}

void *mem_realloc(void *p, size_t bytes)
{
    return must_fail() ? NULL : realloc(p, bytes ? bytes : 1);
}

char *mem_strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *copy = mem_alloc(n);

    return copy ? memcpy(copy, s, n) : NULL;
}
