/* Data that residency.c and residency_shares.c share. No other file includes this header.
 *
 * While moves and drops are collected, they have no position in the program yet. A slot says where they
 * belong relative to the tasks: slot 3p is just before task p, 3p + 1 is the task itself, 3p + 2 is just
 * after it. In these two files, `pos` is the index of a task in the merged order.
 */
#ifndef SCHEDULER_BUILD_RESIDENCY_PRIVATE_H
#define SCHEDULER_BUILD_RESIDENCY_PRIVATE_H

#include "scheduler/build/build.h"

/* Value of segment.end while the segment has no drop. */
#define NO_END UINT32_MAX

/* One operand of one task. Residency decides which segment the operand uses. */
struct use {
    tensor_id tensor;
    enum access access;
    uint32_t pos; /* of its task */
    struct extent of;
    /* Set by residency. SEGMENT_NONE stands for the copy in host memory. */
    uint32_t segment;
};

/* What only residency needs to know about a segment. Both have the same index. */
struct life {
    uint32_t last; /* position of the last use */
    /* Position of the newest write that is spilled or sent, or PLAN_NONE if no write is. */
    uint32_t produced;
    /* Latest slot at which the segment may end. The device's next copy of the tensor starts there. */
    uint32_t limit;
    bool spilled, sent;
};

/* The kinds of entries, in their order within a slot. Entries that free memory come first. ENTRY_FREE drops a
 * copy without moves in this slot. */
enum entry_class { ENTRY_FREE, ENTRY_SPILL, ENTRY_SEND, ENTRY_DROP, ENTRY_FETCH, ENTRY_GATHER, ENTRY_TASK };

/* An instruction for the draft. Entries are collected tensor by tensor and then sorted. */
struct entry {
    uint32_t slot;
    enum entry_class cls;
    /* Order of the entries within a class. For a fetch, the position of the first use. */
    uint32_t seq;
    /* Source and destination segments. For ENTRY_TASK, `from` is the position of the task. */
    uint32_t from, to;
    struct extent of; /* bytes that a move carries */
};

/* The spans or the items of one device. Unit i has the tasks from position first[i] to last[i]. */
struct units {
    uint32_t *first, *last;
    uint32_t n;
};

/* A direct send of an activation to another device: when it is written and when it is first read. can_send
 * limits how many wait there. */
struct direct_send {
    uint32_t produced, read;
};

/* A fetch of a value that the same device held earlier. It later becomes a struct gap. */
struct reload {
    /* Index of the use that needed the fetch. */
    uint32_t use;
    /* The segment that was dropped, and the segment that was fetched later. */
    uint32_t from, to;
    /* Number of moves saved if the copy stayed: the fetch, and sometimes a spill. */
    uint32_t saves;
};

/* The working state of one call of draft_residency. */
struct residency {
    struct draft *d;
    const struct order *o;
    const struct graph *g;
    const struct knobs *knobs;
    /* A copy of the order's todos, in which spans and items are renumbered without gaps. */
    struct todo *todos;
    uint32_t n;
    struct units *spans, *items; /* per device */
    VEC(struct use) uses;
    /* Task p has the uses from use_first[p] to use_first[p + 1] - 1. */
    uint32_t *use_first;
    VEC(struct life) lives;
    VEC(struct entry) entries;
    /* Sends of the layer and tensor kind that is being planned. */
    VEC(struct direct_send) direct;
    tensor_id direct_base;    /* first tensor of that layer and kind */
    const gap_list *retained; /* gaps to close; may be NULL */
    VEC(struct reload) reloads;
    /* Pairs of segment numbers. In each pair, the first segment is merged into the second. */
    VEC(uint32_t) merged;
    struct arena *arena;
};

/* The newest value of a tensor: where it was written and which devices have it. Every write starts a new
 * value, except in a REC. */
struct value {
    tensor_id tensor;
    /* Segment that has the original value. SEGMENT_NONE if the original is on the host. */
    uint32_t producer;
    /* Position of the write. PLAN_NONE if the value was written before the program. */
    uint32_t produced;
    /* Number of pieces written so far, for a value that is written piece by piece. */
    uint32_t pieces;
    /* Whether the host has the value, or will get it by a spill in `entries`. */
    bool at_host;
    bool read; /* some task has read the value */
    /* Whether the host needs the value itself, and not only for later fetches. */
    bool home;
    uint32_t fetches; /* fetches of this value so far */
    /* Number of fetches by a device that held the value earlier. */
    uint32_t reloads;
    uint32_t reload;              /* index of the last reload, or PLAN_NONE */
    uint32_t current[DEVICE_MAX]; /* segment with the newest value, or SEGMENT_NONE */
    /* Per device: its last segment of the tensor, current or stale, or SEGMENT_NONE. */
    uint32_t previous[DEVICE_MAX];
};

static inline uint32_t slot_before(uint32_t pos)
{
    return 3 * pos;
}
static inline uint32_t slot_after(uint32_t pos)
{
    return 3 * pos + 2;
}

/* Adds a segment whose first use is at `pos`. Returns its number. The caller must add an entry that creates
 * it. */
uint32_t residency_segment(struct residency *r, tensor_id tensor, uint32_t device, uint32_t pos,
                           struct extent of);
/* Returns the slot of a fetch for the use at `pos`. It is `lead` spans or items before that use. */
uint32_t residency_fetch_slot(const struct residency *r, tensor_id tensor, uint32_t pos);
/* Returns whether a segment stays on its device from its last use until the use at `pos`. */
bool residency_keeps(const struct residency *r, uint32_t seg, uint32_t pos);
/* Plans one use on a device. Uses the existing copy, or starts one by a write, a send or a fetch. */
void residency_use(struct residency *r, struct value *v, struct use *u);
/* Starts a new value, written at `pos` into segment `producer`. All other copies become stale. */
void residency_new_value(struct value *v, uint32_t producer, uint32_t pos);
/* Adds a spill of the extent `of`, just after the task at position `produced` has written it. */
void residency_spill(struct residency *r, uint32_t seg, uint32_t produced, struct extent of);
/* Adds the drop of a segment. All its uses and moves must have been added before. */
void residency_end(struct residency *r, uint32_t seg);

/* Plans all uses of a tensor of state that several devices share. `sorted` lists the `n` uses in issue
 * order. */
void residency_shared(struct residency *r, tensor_id tensor, const uint32_t *sorted, uint32_t n);

#endif
