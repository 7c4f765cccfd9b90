/* A growable array of any type:
 *
 *     VEC(struct instr) v = {0};
 *     vec_push(&v, x);           // appends x; v.n is the number of elements
 *     use(v.at[0]);
 *     vec_free(&v);
 *
 * The elements may move when the array grows, so a pointer to an element is valid only until the next
 * vec_push. The memory comes from xrealloc (base/arena.h): running out of memory aborts, or ends the scope of
 * bounded work.
 */
#ifndef BASE_VEC_H
#define BASE_VEC_H

#include <stddef.h>
#include <stdlib.h>

#include "base/arena.h"

#define VEC(type)                                                                                            \
    struct {                                                                                                 \
        type *at;                                                                                            \
        size_t n, cap;                                                                                       \
    }

/* Makes space for `want` elements in total. */
#define vec_reserve(v, want)                                                                                 \
    ((v)->cap >= (want) ? (void)0                                                                            \
                        : (void)((v)->cap = (want) > 2 * (v)->cap ? (want) : 2 * (v)->cap,                   \
                                 (v)->at = xrealloc((v)->at, (v)->cap * sizeof *(v)->at)))

#define vec_push(v, ...) (vec_reserve(v, (v)->n + 1), (v)->at[(v)->n++] = (__VA_ARGS__))

/* Frees the elements of a vector. The vector is then empty and can be used again. */
#define vec_free(v) (xfree((v)->at), (v)->at = NULL, (v)->n = (v)->cap = 0)

#endif
