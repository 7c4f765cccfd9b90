/* Implements shape.h. The functions keep no state, so any thread may call them. */
#include "kernels/shape.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool shape_elements(const struct shape *s, uint32_t *ret)
{
    uint64_t n = s->rank > 0;

    for (uint32_t i = 0; i < s->rank; i++) {
        /* Both factors are below 2^32, so the product fits into 64 bits. */
        n *= s->dim[i];
        if (n > UINT32_MAX)
            return false;
    }
    *ret = (uint32_t)n;
    return true;
}

bool shape_equal(const struct shape *a, const struct shape *b)
{
    return a->rank == b->rank && memcmp(a->dim, b->dim, a->rank * sizeof a->dim[0]) == 0;
}

bool shape_same_elements(const struct shape *a, const struct shape *b)
{
    uint32_t in_a, in_b;

    return shape_equal(a, b) || (shape_elements(a, &in_a) && shape_elements(b, &in_b) && in_a == in_b);
}

const char *shape_text(const struct shape *s, char ret[SHAPE_TEXT_MAX])
{
    int at = snprintf(ret, SHAPE_TEXT_MAX, "%s", s->rank == 0 ? "nothing" : "");

    for (uint32_t i = 0; i < s->rank; i++)
        at += snprintf(ret + at, SHAPE_TEXT_MAX - (size_t)at, "%s%" PRIu32, i > 0 ? "x" : "", s->dim[i]);
    return ret;
}
