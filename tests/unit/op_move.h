/* A call of an op on the same arrays elsewhere: in the memory of a device, or back. */
#ifndef TESTS_UNIT_OP_MOVE_H
#define TESTS_UNIT_OP_MOVE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/op.h"

static inline uintptr_t move_word(uintptr_t p, const void *from, size_t bytes, const void *to)
{
    return p - (uintptr_t)from < bytes ? p - (uintptr_t)from + (uintptr_t)to : p;
}

/* The call with all its pointers into [from, from + bytes) moved to the same place in another region. Goes through
 * the arguments a word at a time: whatever points into the region is a pointer, since sizes are smaller and pairs
 * of floats larger than any address. So a new op needs nothing here. */
static inline struct op_call op_move(const struct op_call *call, const void *from, size_t bytes,
                                     const void *to)
{
    struct op_call moved = *call;
    unsigned char *raw = (unsigned char *)&moved;
    uintptr_t word;

    for (size_t at = offsetof(struct op_call, act_bwd); at + sizeof word <= sizeof moved; at += sizeof word) {
        memcpy(&word, raw + at, sizeof word);
        word = move_word(word, from, bytes, to);
        memcpy(raw + at, &word, sizeof word);
    }
    return moved;
}

#endif
