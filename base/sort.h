/* A stable merge sort in place of qsort, for arrays that may be large.
 *
 * Equal elements keep their order, so the result does not depend on the C library. The scratch memory, as large as the
 * array, and the time are those of the caller's scope of bounded work (bounded.h): the C library's qsort gets memory that
 * nobody counts, and cannot be left from a comparison.
 */
#ifndef BASE_SORT_H
#define BASE_SORT_H

#include <stddef.h>

/* `compare` as for qsort. `base` may be NULL when n is 0. */
void sort_array(void *base, size_t n, size_t size, int (*compare)(const void *a, const void *b));

#endif
