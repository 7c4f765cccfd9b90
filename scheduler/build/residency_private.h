/* Data that the files residency*.c share. No other file includes this header.
 *
 *   residency.c          the stage itself, and one function for each class of lifetime
 *   residency_slots.c    when a copy is fetched, how long it stays, when it is dropped
 *   residency_values.c   which copy a task uses, and which move creates that copy
 *   residency_shares.c   the class `shared`: state that several devices share
 *   residency_program.c  writes the draft from the collected moves and drops, and lists the gaps
 *
 * While moves and drops are collected, they have no position in the program yet. A slot says where they
 * belong relative to the tasks: slot 3p is just before task p, 3p + 1 is the task itself, 3p + 2 is just
 * after it. In these files, `pos` is the index of a task in the merged order.
 */
#ifndef SCHEDULER_BUILD_RESIDENCY_PRIVATE_H
#define SCHEDULER_BUILD_RESIDENCY_PRIVATE_H

#include "scheduler/build/build.h"

/* Value of segment.end as long as no instruction drops the segment. */
#define NO_END UINT32_MAX

/* The use of one operand by one task. Residency decides which segment the task uses for this operand. */
struct operand_use {
    const struct graph_operand *op;
    tensor_id tensor; /* op->tensor */
    enum access access;
    uint32_t pos; /* of its task */
    struct extent of;
    /* The segment that the task uses, which residency sets. SEGMENT_NONE means the copy in host memory. */
    uint32_t segment;
};

/* All uses of one tensor, in issue order. The stage plans each tensor from this list alone. The array and the
 * uses belong to struct residency. */
struct tensor_uses {
    tensor_id tensor;
    struct operand_use **at;
    uint32_t n;
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

/* A fetch of a value that the same device held earlier. residency_gaps turns each reload into a struct
 * gap. */
struct reload {
    /* Index of the operand use that made the fetch necessary. */
    uint32_t use;
    /* The segment that was dropped, and the segment that was fetched later with the same value. */
    uint32_t from, to;
    /* Number of moves that would be saved if the copy stayed: the fetch, and sometimes also a spill. */
    uint32_t saves;
};

/* Two segments that are one copy: `last` is the copy at the end of a cycle, and `first` is the same copy at
 * the start of the next cycle. residency_write merges both into one segment. */
struct joined {
    uint32_t last, first;
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
    VEC(struct operand_use) uses;
    /* The operands of task p are uses[use_first[p]] to uses[use_first[p + 1] - 1]. */
    uint32_t *use_first;
    VEC(struct life) lives;
    VEC(struct entry) entries;
    /* Direct sends that are planned so far, for activations of the current layer and tensor kind. */
    VEC(struct direct_send) direct;
    tensor_id direct_base;    /* first tensor of that layer and kind */
    const gap_list *retained; /* gaps to close; may be NULL */
    VEC(struct reload) reloads;
    VEC(struct joined) joined;
    struct arena *arena;
};

/* The newest value of a tensor, or of one piece of a tensor: which task wrote it, and which devices have it.
 * Every write starts a new value, except the write of a REC, which repeats an old value. The function that
 * plans a tensor has one struct value on its stack and updates it from use to use. */
struct value {
    tensor_id tensor;
    struct extent of; /* the whole tensor, or the piece */
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

/* ---- residency_slots.c ---- */

/* Lists the spans and the items of every device, and renumbers them in r->todos without gaps. */
void residency_units(struct residency *r);
/* Returns the slot in which to fetch a tensor for the use at position `pos`. The slot is some spans or items
 * earlier (the lead), so that the fetch overlaps with compute. */
uint32_t residency_fetch_slot(const struct residency *r, tensor_id tensor, uint32_t pos);
/* Returns the slot in which a segment is dropped. All uses and moves of the segment must be known. */
uint32_t residency_drop_slot(const struct residency *r, uint32_t seg);
/* Returns whether a segment stays on its device from its last use so far until the use at position `pos`. */
bool residency_keeps(const struct residency *r, uint32_t seg, uint32_t pos);
/* Returns whether retention closes the gap before `u`. If so, the device's copy stays until this use. */
bool residency_retains(const struct residency *r, const struct operand_use *u);

/* ---- residency_values.c ---- */

/* Adds a segment whose first use is at position `pos`, and returns the segment's number. The caller must also
 * add the entry that creates the segment, for example a fetch. */
uint32_t residency_segment(struct residency *r, tensor_id tensor, uint32_t device, uint32_t pos,
                           struct extent of);
/* Returns the value that the bytes `of` of a tensor have before the program: only the host has this value. */
struct value residency_first_value(tensor_id tensor, struct extent of);
/* Plans one use on a device, which continues the device's copy or starts a copy by a write, a send or a
 * fetch. Sets u->segment. */
void residency_use(struct residency *r, struct value *v, struct operand_use *u);
/* Plans one use on the host: a read spills the value before, and a write makes all device copies stale. */
void residency_use_on_host(struct residency *r, struct value *v, const struct operand_use *u);
/* Ends the bookkeeping for a value that is overwritten or not read any more. If the value was spilled only
 * for fetches that retention can avoid, records that retention also avoids the spill. */
void residency_settle(struct residency *r, const struct value *v);
/* Adds a spill of the newest value, unless the host already has this value. */
void residency_bring_home(struct residency *r, struct value *v);
/* Adds a spill of the bytes in `of`, just after the task at position `produced` has written them. */
void residency_spill(struct residency *r, uint32_t seg, uint32_t produced, struct extent of);
/* Records that the value in segment `seg`, written at position `produced`, is spilled or sent. The drop of
 * the segment then leaves time for this move. */
void residency_leaves(struct residency *r, uint32_t seg, uint32_t produced);
/* Adds the drop of a segment. The caller must have added all uses and moves of the segment before. */
void residency_end(struct residency *r, uint32_t seg);

/* ---- residency_shares.c ---- */

/* Plans all uses of a state tensor that several devices share. */
void residency_shared(struct residency *r, const struct tensor_uses *uses);

/* ---- residency_program.c ---- */

/* Writes the instructions of the draft: all tasks, and all entries between them. */
void residency_write(struct residency *r);
/* Sets *ret to the gaps of the finished draft, sorted by gap.use. */
void residency_gaps(const struct residency *r, gap_list *ret);

#endif
