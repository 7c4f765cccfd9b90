/* Data that residency.c and residency_shares.c share. No other file includes this header.
 *
 * While moves and drops are collected, they have no position in the program yet. A slot says where they
 * belong relative to the tasks: slot 3p is just before task p, 3p + 1 is the task itself, 3p + 2 is just
 * after it. In these two files, `pos` is the index of a task in the merged order.
 */
#ifndef SCHEDULER_BUILD_RESIDENCY_PRIVATE_H
#define SCHEDULER_BUILD_RESIDENCY_PRIVATE_H

#include "scheduler/build/build.h"

/* Value of segment.end as long as no instruction drops the segment. */
#define NO_END UINT32_MAX

/* The use of one operand by one task. Residency decides which segment the task uses for this operand. */
struct use {
    const struct graph_operand *op;
    tensor_id tensor; /* op->tensor */
    enum access access;
    uint32_t pos; /* of its task */
    struct extent of;
    /* The segment that the task uses, which residency sets. SEGMENT_NONE means the copy in host memory. */
    uint32_t segment;
};

/* What only residency needs to know about a segment. Entry i of residency.lives describes segment i of the
 * draft. */
struct life {
    uint32_t last; /* position of the last use */
    /* Position of the last write that must be spilled or sent to another device. PLAN_NONE if there is no
     * such write. */
    uint32_t produced;
    /* The segment must end at this slot or earlier, because the device's next copy of the same tensor starts
     * there. */
    uint32_t limit;
    bool spilled, sent;
};

/* The kinds of entries, in the order in which they stand within a slot: entries that free memory come before
 * entries that need it. ENTRY_FREE drops a copy that has no moves in this slot. */
enum entry_class { ENTRY_FREE, ENTRY_SPILL, ENTRY_SEND, ENTRY_DROP, ENTRY_FETCH, ENTRY_GATHER, ENTRY_TASK };

/* A future instruction of the draft. Entries are collected tensor by tensor, and then sorted into issue
 * order. */
struct entry {
    uint32_t slot;
    enum entry_class cls;
    /* The order among entries of the same class and slot: lower numbers come first. For a fetch, this is the
     * position of the task that first uses the copy. */
    uint32_t seq;
    /* The segments from which and to which a move goes. For ENTRY_TASK, `from` is the position of the
     * task. */
    uint32_t from, to;
    struct extent of; /* bytes that a move carries */
};

/* The spans or the items of one device. Unit i consists of the tasks from position first[i] to position
 * last[i]. */
struct units {
    uint32_t *first, *last;
    uint32_t n;
};

/* A direct send of an activation to another device: the positions at which the activation is written and
 * first read. can_send uses these to limit how many sent activations wait at the receiver. */
struct direct_send {
    uint32_t produced, read;
};

/* A fetch of a value that the same device held earlier. list_gaps turns each reload into a struct gap. */
struct reload {
    /* Index of the operand use that made the fetch necessary. */
    uint32_t use;
    /* The segment that was dropped, and the segment that was fetched later with the same value. */
    uint32_t from, to;
    /* Number of moves that would be saved if the copy stayed: the fetch, and sometimes also a spill. */
    uint32_t saves;
};

/* The working state of one call of draft_residency, which frees it at the end. */
struct residency {
    struct draft *d;
    const struct order *o;
    const struct graph *g;
    const struct knobs *knobs;
    /* A copy of the order's todos, in which the spans and items have numbers without gaps. */
    struct todo *todos;
    uint32_t n;
    struct units *spans, *items; /* per device */
    VEC(struct use) uses;
    /* The operands of task p are uses[use_first[p]] to uses[use_first[p + 1] - 1]. */
    uint32_t *use_first;
    VEC(struct life) lives;
    VEC(struct entry) entries;
    /* Direct sends that are planned so far, for activations of the current layer and tensor kind. */
    VEC(struct direct_send) direct;
    tensor_id direct_base;    /* first tensor of that layer and kind */
    const gap_list *retained; /* gaps to close; may be NULL */
    VEC(struct reload) reloads;
    /* Segment numbers in pairs. The first segment of each pair is merged into the second, because both are
     * one copy that lives across cycles. */
    VEC(uint32_t) merged;
    struct arena *arena;
};

/* The newest value of a tensor: which task wrote it, and which devices have it. Every write starts a new
 * value, except the write of a REC, which repeats an old value. */
struct value {
    tensor_id tensor;
    /* The segment into which the value was written. SEGMENT_NONE if the value was written on the host. */
    uint32_t producer;
    /* Position of the task that wrote the value. PLAN_NONE if the value was written before the program
     * starts. */
    uint32_t produced;
    /* Number of pieces written so far, if several tasks write the value piece by piece. */
    uint32_t pieces;
    /* Whether the host has the value, or gets it by a spill that is already in `entries`. */
    bool at_host;
    bool read; /* some task has read the value */
    /* Whether the host itself needs the value. If not, a spill of the value serves only later fetches. */
    bool home;
    uint32_t fetches; /* fetches of this value so far */
    /* Number of times that a device fetched the value although it held the value earlier. */
    uint32_t reloads;
    uint32_t reload;              /* index of the last reload, or PLAN_NONE */
    uint32_t current[DEVICE_MAX]; /* segment with the newest value, or SEGMENT_NONE */
    /* Per device: its last segment of this tensor, even if the value in it is old. SEGMENT_NONE if the device
     * never had one. */
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

/* Adds a segment whose first use is at position `pos`, and returns the segment's number. The caller must also
 * add the entry that creates the segment, for example a fetch. */
uint32_t residency_segment(struct residency *r, tensor_id tensor, uint32_t device, uint32_t pos,
                           struct extent of);
/* Returns the slot in which to fetch a tensor for the use at position `pos`. The slot is some spans or items
 * earlier (the lead), so that the fetch overlaps with compute. */
uint32_t residency_fetch_slot(const struct residency *r, tensor_id tensor, uint32_t pos);
/* Returns whether a segment stays on its device from its last use so far until the use at position `pos`. */
bool residency_keeps(const struct residency *r, uint32_t seg, uint32_t pos);
/* Plans one use of a tensor on a device. If the device has no copy of the tensor, starts a copy by a write, a
 * send or a fetch. */
void residency_use(struct residency *r, struct value *v, struct use *u);
/* Starts a new value, which the task at position `pos` writes into segment `producer`. All other copies of
 * the tensor become stale. */
void residency_new_value(struct value *v, uint32_t producer, uint32_t pos);
/* Adds a spill of the bytes in `of`, just after the task at position `produced` has written them. */
void residency_spill(struct residency *r, uint32_t seg, uint32_t produced, struct extent of);
/* Adds the drop of a segment. The caller must have added all uses and moves of the segment before. */
void residency_end(struct residency *r, uint32_t seg);

/* Plans all uses of a state tensor that several devices share. `sorted` lists the indices of the `n` uses in
 * issue order. */
void residency_shared(struct residency *r, tensor_id tensor, const uint32_t *sorted, uint32_t n);

#endif
