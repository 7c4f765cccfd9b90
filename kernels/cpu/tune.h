/* Finds out by trials which of two variants of a computation is faster on this machine. Both variants give
 * the same bits, and variant 0 is the default. The results are stored in a tuning table, which starts as all
 * zeros. Any thread may use a table at any time. */
#ifndef KERNELS_CPU_TUNE_H
#define KERNELS_CPU_TUNE_H

#include <stdint.h>

#define TUNE_PAIRS 8 /* largest number of trials per variant */
/* If variant 1 has clearly won this many of its TUNE_PAIRS trials, it is used from then on. */
#define TUNE_WINS 7
/* The number of different computations that a table can hold. If the table is full, every computation that is
 * not in it uses variant 0. */
#define TUNE_SLOTS 512

/* The trials of one computation. */
struct tune_slot {
    _Atomic uint64_t key;        /* which computation this is; 0 if free */
    _Atomic uint64_t default_ns; /* time of the default's latest trial */
    _Atomic uint32_t tries;      /* trials started so far, of both variants */
    _Atomic uint32_t wins;       /* clear wins of the alternative */
    _Atomic uint32_t losses;
};

/* A hash table with one slot for each computation. The hash of the computation's key decides where the search
 * for its slot begins. */
struct tune_table {
    struct tune_slot slots[TUNE_SLOTS];
};

/* Returns the variant (0 or 1) to use for the computation `key`, which must not be 0. If *ret_slot is not
 * NULL afterwards, this computation is a trial: the caller must measure its time and pass the time to
 * tune_note. */
uint32_t tune_choose(struct tune_table *t, uint64_t key, struct tune_slot **ret_slot);
/* Records that a trial of `variant` took `ns` nanoseconds. A trial of variant 1 is compared with the latest
 * trial of variant 0, and counts as a win or a loss of variant 1. */
void tune_note(struct tune_slot *slot, uint32_t variant, uint64_t ns);

#endif
