/* Inside the cpu backend: which of two ways to do the same thing is the faster one on this machine, found by trying. For ways
 * whose results have the same bits: which one is taken shows in nothing but the time.
 *
 * A table is zero at the start. Any thread, at any time.
 */
#ifndef KERNELS_CPU_TUNE_H
#define KERNELS_CPU_TUNE_H

#include <stdint.h>

#define WAYS_PAIRS 8 /* tries of either way, in turn, at most */
#define WAYS_WINS  7 /* of which the other way must be clearly faster in so many, to be taken from then on */
#define WAYS_SLOTS 512 /* things that a table knows; of more than that, the default is taken */

struct ways_slot {
    _Atomic uint64_t key;        /* 0: nobody's yet */
    _Atomic uint64_t default_ns; /* the last time of the default */
    _Atomic uint32_t tries;      /* handed out so far */
    _Atomic uint32_t wins;       /* of the other way */
    _Atomic uint32_t losses;
};

struct ways {
    struct ways_slot slots[WAYS_SLOTS];
};

/* The way to do the thing of that key (not 0): 0, the default, or 1. Where this is a try, *ret_slot is set, and the time is wanted;
 * else it is NULL. */
uint32_t ways_choose(struct ways *w, uint64_t key, struct ways_slot **ret_slot);
void ways_note(struct ways_slot *slot, uint32_t way, uint64_t ns);

#endif
