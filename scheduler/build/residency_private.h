/* Data that residency.c and residency_shares.c share. No other file includes this header.
 *
 * While moves and drops are collected, they have no position in the program yet. A slot says where they
 * belong relative to the tasks: slot 3p is just before task p, 3p + 1 is the task itself, 3p + 2 is just
 * after it. In these two files, `pos` is the index of a task in the merged order.
 */
#ifndef SCHEDULER_BUILD_RESIDENCY_PRIVATE_H
#define SCHEDULER_BUILD_RESIDENCY_PRIVATE_H

#include "scheduler/build/build.h"

#define NO_END UINT32_MAX /* value of segment.end as long as the segment has no drop */

/* One operand of one task. Residency decides which segment it uses. */
struct use {
    tensor_id tensor;
    enum access access;
    uint32_t pos; /* of its task */
    struct extent of;
    uint32_t segment; /* filled in by this stage; SEGMENT_NONE: the host copy */
};

/* What residency knows about a segment beyond `struct segment`. It has the same index as the segment. */
struct life {
    uint32_t last;     /* position of the last use */
    uint32_t produced; /* position of the newest write that is spilled or sent; PLAN_NONE: nothing is */
    uint32_t limit;    /* latest slot for its end: the device's next copy of the tensor starts there */
    bool spilled, sent;
};

/* The kinds of entries, in their order within a slot: entries that free memory precede entries that take
 * it. ENTRY_FREE is a drop of a copy that left earlier than this slot, so it need not follow this slot's
 * moves. */
enum entry_class { ENTRY_FREE, ENTRY_SPILL, ENTRY_SEND, ENTRY_DROP, ENTRY_FETCH, ENTRY_GATHER, ENTRY_TASK };

/* An instruction that will be written into the draft. Entries are collected tensor by tensor, then sorted. */
struct entry {
    uint32_t slot;
    enum entry_class cls;
    uint32_t seq;      /* order within the class; for fetches it is the position of the first use */
    uint32_t from, to; /* segments; ENTRY_TASK: `from` is the position of the task */
    struct extent of;  /* bytes that a move carries */
};

/* The spans or the items of one device. Unit i runs from the task at position first[i] to that at last[i]. */
struct units {
    uint32_t *first, *last;
    uint32_t n;
};

/* A send of an activation directly to another device: the positions of its write and of its first read there.
 * can_send uses these to limit the micro-batches that wait at a receiver. */
struct direct_send {
    uint32_t produced, read;
};

/* A fetch of a value that the same device held earlier. It becomes a struct gap when the draft is
 * complete. */
struct reload {
    uint32_t use;      /* index of the use that needed the fetch */
    uint32_t from, to; /* the segment that was dropped, and the segment that was fetched */
    uint32_t saves;    /* moves saved if the copy stayed: the fetch, and a spill made only for this fetch */
};

/* The working state of one call of draft_residency. */
struct residency {
    struct draft *d;
    const struct order *o;
    const struct graph *g;
    const struct knobs *knobs;
    struct todo *todos; /* a copy of the order's todos, with spans and items renumbered without gaps */
    uint32_t n;
    struct units *spans, *items; /* per device */
    VEC(struct use) uses;
    uint32_t *use_first; /* uses of task p are use_first[p] .. use_first[p + 1] - 1 */
    VEC(struct life) lives;
    VEC(struct entry) entries;
    VEC(struct direct_send) direct; /* of the layer and tensor kind being planned */
    tensor_id direct_base;          /* first tensor of that layer and kind */
    const gap_list *retained;       /* gaps to close; may be NULL */
    VEC(struct reload) reloads;
    VEC(uint32_t) merged; /* pairs of segment numbers: the first segment is merged into the second */
    struct arena *arena;
};

/* The newest value of the tensor being planned: where it was written, and which devices hold copies of it. A
 * write by any task but a REC starts a new value. */
struct value {
    tensor_id tensor;
    uint32_t producer; /* segment that holds the original; SEGMENT_NONE: the host does */
    uint32_t produced; /* position of the write; PLAN_NONE: before the program */
    uint32_t pieces;   /* number of pieces written so far, for a value that is written piece by piece */
    bool at_host;      /* the host has the value, or will get it by a spill that is already an entry */
    bool read;         /* some task has read the value */
    bool home;         /* the host needs the value itself, not only for later fetches */
    uint32_t fetches;  /* fetches of this value so far */
    uint32_t reloads;  /* fetches by a device that held the value earlier */
    uint32_t reload;   /* index of the last reload, or PLAN_NONE */
    uint32_t current[DEVICE_MAX];  /* segment with the newest value, or SEGMENT_NONE */
    uint32_t previous[DEVICE_MAX]; /* last segment of the tensor, current or stale, or SEGMENT_NONE */
};

static inline uint32_t slot_before(uint32_t pos)
{
    return 3 * pos;
}
static inline uint32_t slot_after(uint32_t pos)
{
    return 3 * pos + 2;
}

/* Adds a segment whose first use is at `pos` and returns its number. Entries that create it follow later. */
uint32_t residency_segment(struct residency *r, tensor_id tensor, uint32_t device, uint32_t pos,
                           struct extent of);
/* Returns the slot of a fetch for the use at `pos`: `lead` spans or items before the unit of that task. */
uint32_t residency_fetch_slot(const struct residency *r, tensor_id tensor, uint32_t pos);
/* Returns whether a segment stays on its device from its last use until the use at `pos`. */
bool residency_keeps(const struct residency *r, uint32_t seg, uint32_t pos);
/* Plans one use on a device: continues the device's copy, or starts a new one by a write, a send or a
 * fetch. */
void residency_use(struct residency *r, struct value *v, struct use *u);
/* Starts a new value, written at `pos` into segment `producer`. All other copies become stale. */
void residency_new_value(struct value *v, uint32_t producer, uint32_t pos);
/* Adds a spill of `of`, just after the task at position `produced` wrote it. */
void residency_spill(struct residency *r, uint32_t seg, uint32_t produced, struct extent of);
/* Adds the drop of a segment. All its uses and moves must be known by now. */
void residency_end(struct residency *r, uint32_t seg);

/* Plans all uses of a tensor of state that several devices share. `sorted` lists the n uses in issue order.
 * Defined in residency_shares.c. */
void residency_shared(struct residency *r, tensor_id tensor, const uint32_t *sorted, uint32_t n);

#endif
