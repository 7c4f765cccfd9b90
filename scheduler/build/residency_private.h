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

/* One use of an operand by a task. This stage (residency) decides which segment, that is, which copy of the
 * tensor, the task uses. */
struct operand_use {
    const struct graph_operand *op;
    tensor_id tensor; /* op->tensor */
    enum access access;
    uint32_t pos; /* of its task */
    struct extent of;
    /* The segment that the task uses. Residency sets it. SEGMENT_NONE means the copy in host memory. */
    uint32_t segment;
};

/* All uses of one tensor, in issue order. struct residency owns the uses and the array. */
struct tensor_uses {
    tensor_id tensor;
    struct operand_use **at;
    uint32_t n;
};

/* Facts about a segment that only this stage needs. r->lives.at[i] belongs to segment i of the draft. */
struct life {
    uint32_t last; /* position of the last use */
    /* Position of the last write that must be spilled or sent to another device. PLAN_NONE if there is no
     * such write. */
    uint32_t produced;
    /* The segment must be dropped in this slot or earlier. The device's next copy of the same tensor starts
     * in this slot. */
    uint32_t limit;
    bool spilled, sent;
};

/* The kinds of entries. An entry is an instruction that will be added to the draft. The entries of a slot run
 * in the order of this list, so that memory is freed before it is needed. ENTRY_FREE drops a copy that no
 * other entry of the slot uses. ENTRY_DROP drops a copy that is spilled or sent earlier in the slot. */
enum entry_class { ENTRY_FREE, ENTRY_SPILL, ENTRY_SEND, ENTRY_DROP, ENTRY_FETCH, ENTRY_GATHER, ENTRY_TASK };

/* An instruction that will be added to the draft. Entries are collected tensor by tensor and then sorted into
 * issue order. */
struct entry {
    uint32_t slot;
    enum entry_class cls;
    /* Among entries with the same slot and class, lower numbers come first. For a fetch, this is the position
     * of the first use. */
    uint32_t seq;
    /* A move goes from segment `from` to segment `to`. If the entry is an ENTRY_TASK, `from` is the position
     * of the task. */
    uint32_t from, to;
    struct extent of; /* bytes that a move carries */
};

/* All spans, or all items, of one device. Both are called units here. The tasks of unit i are at positions
 * first[i] to last[i]. */
struct units {
    uint32_t *first, *last;
    uint32_t n;
};

/* A send of an activation straight to another device. `produced` is the position of the write, and `read` the
 * position of the first read on the other device. */
struct direct_send {
    uint32_t produced, read;
};

/* A fetch of a value that the same device held earlier. residency_gaps makes a struct gap from each
 * reload. */
struct reload {
    /* The use that needs the fetch, as an index in residency.uses. */
    uint32_t use;
    /* The copy in segment `from` was dropped, and its value was later fetched into segment `to`. */
    uint32_t from, to;
    /* Number of moves that are saved if the copy stays: 1 for the fetch alone, 2 for the fetch and a
     * spill. */
    uint32_t saves;
};

/* Two segments that are one copy, because the copy stays on the device from the end of a cycle (`last`) to
 * the start of the next (`first`). */
struct joined {
    uint32_t last, first;
};

/* The working state of one call of draft_residency, which frees it at the end. */
struct residency {
    struct draft *d;
    const struct order *o;
    const struct graph *g;
    const struct knobs *knobs;
    /* A copy of the order's tasks. Here, the spans and the items of each device have the numbers 0, 1, 2,
     * .... */
    struct todo *todos;
    uint32_t n;
    struct units *spans, *items; /* per device */
    VEC(struct operand_use) uses;
    /* Task p has the operands uses[use_first[p]] to uses[use_first[p + 1] - 1]. */
    uint32_t *use_first;
    VEC(struct life) lives;
    VEC(struct entry) entries;
    /* The direct sends planned so far for the current layer and kind of tensor. When the next layer or kind
     * begins, the list is emptied. */
    VEC(struct direct_send) direct;
    tensor_id direct_base;    /* first tensor of that layer and kind */
    const gap_list *retained; /* gaps to close; may be NULL */
    VEC(struct reload) reloads;
    VEC(struct joined) joined;
    struct arena *arena;
};

/* The newest value of a tensor, or of one piece of a tensor. Says which task wrote the value and which
 * devices have it. Every write starts a new value, except a write by a REC, which computes an old value
 * again. The function that plans a tensor keeps a struct value on its stack and updates it at each use. */
struct value {
    tensor_id tensor;
    struct extent of; /* the whole tensor, or the piece */
    /* The segment into which the value was written. SEGMENT_NONE if the value was written on the host. */
    uint32_t producer;
    /* Position of the task that wrote the value. PLAN_NONE if the value is older than the program. */
    uint32_t produced;
    /* Number of pieces written so far, if several tasks write the value piece by piece. */
    uint32_t pieces;
    /* Whether the host has the value, or gets it by a spill that is already planned. */
    bool at_host;
    bool read; /* some task has read the value */
    /* Whether the host itself needs the value. If not, a spill of the value serves only later fetches. */
    bool home;
    uint32_t fetches; /* fetches of this value so far */
    /* Number of times that a device fetched the value although it held the value earlier. */
    uint32_t reloads;
    uint32_t reload;              /* index of the last reload, or PLAN_NONE */
    uint32_t current[DEVICE_MAX]; /* segment with the newest value, or SEGMENT_NONE */
    /* previous[d] is the last segment of this tensor on device d, even if the value in it is old.
     * SEGMENT_NONE if there was no such segment. */
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

/* Lists the spans and the items of every device. Also renumbers the spans and the items in r->todos, so that
 * their numbers have no gaps. */
void residency_units(struct residency *r);
/* Returns whether the copy that the task at `pos` uses stays until the end of the task's span. If false, it
 * stays only until the end of the item. */
bool residency_by_span(const struct residency *r, tensor_id tensor, uint32_t pos);
/* Returns the slot in which to fetch a tensor for the task at position `pos`. The slot comes early enough
 * that the fetch overlaps with compute. */
uint32_t residency_fetch_slot(const struct residency *r, tensor_id tensor, uint32_t pos);
/* Returns the slot in which to drop a segment. The caller must have planned all uses and moves of the
 * segment. */
uint32_t residency_drop_slot(const struct residency *r, uint32_t seg);
/* Returns whether the copy in segment `seg` stays on its device until position `pos`, where the copy is used
 * again. If not, the copy is dropped and fetched again. */
bool residency_keeps(const struct residency *r, uint32_t seg, uint32_t pos);
/* Returns whether draft_retain chose to keep the device's copy until use `u`. Without this choice, the value
 * would be fetched again for `u`. */
bool residency_retains(const struct residency *r, const struct operand_use *u);

/* ---- residency_values.c ---- */

/* Adds a segment that is first used at position `pos`, and returns its number. The caller must also add the
 * entry that creates the segment, such as a fetch. */
uint32_t residency_segment(struct residency *r, tensor_id tensor, uint32_t device, uint32_t pos,
                           struct extent of);
/* Returns the value that the bytes `of` of a tensor have before the program starts. Only the host has this
 * value at that time. */
struct value residency_first_value(tensor_id tensor, struct extent of);
/* Plans one use on a device and sets u->segment, which is a copy that the device already has or a new
 * copy. */
void residency_use(struct residency *r, struct value *v, struct operand_use *u);
/* Plans one use on the host. A read needs a spill of the value to the host first. After a write, all copies
 * on devices are out of date. */
void residency_use_on_host(struct residency *r, struct value *v, const struct operand_use *u);
/* Must be called when a value is overwritten or no longer read. If the value was spilled only for reloads,
 * counts the spill as a saving of the last reload. */
void residency_settle(struct residency *r, const struct value *v);
/* Plans a spill of the newest value, unless the host already has it. */
void residency_bring_home(struct residency *r, struct value *v);
/* Plans a spill of the bytes `of` of segment `seg`. The task at position `produced` writes these bytes, and
 * the spill comes just after this task. */
void residency_spill(struct residency *r, uint32_t seg, uint32_t produced, struct extent of);
/* Must be called when a spill or a send from segment `seg` is planned, so that the drop comes late enough.
 * The task at position `produced` wrote the value. */
void residency_leaves(struct residency *r, uint32_t seg, uint32_t produced);
/* Adds the drop of a segment. The caller must already have planned all uses and moves of the segment. */
void residency_end(struct residency *r, uint32_t seg);

/* ---- residency_shares.c ---- */

/* Plans all uses of a tensor of a layer's state, if the state is divided into shares that several devices
 * own. */
void residency_shared(struct residency *r, const struct tensor_uses *uses);

/* ---- residency_program.c ---- */

/* Writes the instructions of the draft: all tasks, with the planned moves and drops between them. */
void residency_write(struct residency *r);
/* Sets *ret to the gaps of the finished draft (the times between a drop and the next fetch of the same
 * value), sorted by gap.use. */
void residency_gaps(const struct residency *r, gap_list *ret);

#endif
