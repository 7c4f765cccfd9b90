/* A stable merge sort, used instead of qsort for arrays that may be large.
 *
 * Equal elements keep their order, so the result does not depend on the C library. The sort also obeys a
 * scope of bounded work (bounded.h): its scratch memory, as large as the array, is charged to the scope, and
 * the scope can be stopped during the sort. The C library's qsort allocates memory that no scope counts, and
 * leaving it by longjmp from a comparison is not allowed.
 */
#ifndef BASE_SORT_H
#define BASE_SORT_H

#include <stddef.h>

/* Sorts an array of `n` elements of `size` bytes each. `compare` works as in qsort. `base` may be NULL if `n`
 * is 0. Elements that compare equal keep their order. */
void sort_array(void *base, size_t n, size_t size, int (*compare)(const void *a, const void *b));

#endif
