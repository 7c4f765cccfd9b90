/* Redirects a call of an op to the same arrays at another address: in the memory of a device, or back. */
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

/* Returns a copy of `call` in which every pointer into [from, from + bytes) points to the same offset in the
 * region `to`. The function examines the arguments word by word and treats each word that lies in the region
 * as a pointer. This is safe because sizes are smaller than any address and pairs of floats are larger. A new
 * op therefore needs no code here. */
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
