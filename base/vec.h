/* A growable array of any type: `VEC(struct instr) v = {0}; vec_push(&v, x); v.at[i]; vec_free(&v)`. */
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

#define vec_reserve(v, want)                                                                                 \
    ((v)->cap >= (want) ? (void)0                                                                            \
                        : (void)((v)->cap = (want) > 2 * (v)->cap ? (want) : 2 * (v)->cap,                   \
                                 (v)->at = xrealloc((v)->at, (v)->cap * sizeof *(v)->at)))

#define vec_push(v, ...) (vec_reserve(v, (v)->n + 1), (v)->at[(v)->n++] = (__VA_ARGS__))

#define vec_free(v) (xfree((v)->at), (v)->at = NULL, (v)->n = (v)->cap = 0)

#endif
