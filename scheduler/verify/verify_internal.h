/* Internal declarations of the verifier, shared by these files:
 *
 *   verify.c          plan_verify; reports and names
 *   verify_indices.c  [10]             every number that is used as an index
 *   verify_agree.c    [10] [3]         the plan against the graph, the leases and itself
 *   verify_operands.c [10]             the operands of tasks, with pieces and shares
 *   verify_tasks.c    [6] [8]          which tasks there are, their order, where waits point
 *   verify_space.c                     an ordered map of address ranges and their owners
 *   verify_copy.c     [2] [3] [4]      copies of tensors: bytes, versions, accesses and their order
 *   verify_run.c      [1] [5] [7] [9]  the abstract execution of the programs
 *
 * Numbers in brackets are invariants (verify.h). The first five files check the plan without executing it. If
 * they refuse something, they set v->stop, because executing the plan would be meaningless or unsafe. The
 * execution in verify_copy.c and verify_run.c relies on everything that they checked.
 */
#ifndef SCHEDULER_VERIFY_VERIFY_INTERNAL_H
#define SCHEDULER_VERIFY_VERIFY_INTERNAL_H

#include <stddef.h>

#include "base/vec.h"
#include "scheduler/verify/verify.h"

/* Maximum number of instructions in a program. It keeps the number of all executed instructions below
 * 2^32. */
#define VERIFY_MAX_INSTRS (1u << 26)

/* One call of plan_verify: its arguments, and the results of the checks so far. */
struct verify {
    const struct plan *plan;
    const struct graph *train, *eval; /* eval may be NULL */
    const struct machine *machine;
    struct verify_report *report; /* may be NULL */
    struct err *err;
    uint32_t total; /* violations found */
    bool stop;      /* the plan must not be executed */
    /* Largest distance of a wait in the cycle. */
    uint32_t max_distance;
    /* Per instruction: index of its graph task, or PLAN_NONE. */
    uint32_t *task_of[PROGRAM_COUNT];
    /* Per instruction: the invariants reported for it, as a set of bits. */
    uint16_t *reported[PROGRAM_COUNT];
    /* Per tensor: the violations reported for it, as bits 11 * program + invariant. */
    uint64_t *reported_tensor;
};

/* Returns the graph that has the tasks of a program. Returns NULL for eval if there is no eval graph. */
static inline const struct graph *verify_graph(const struct verify *v, enum program_kind k)
{
    return k == PROGRAM_EVAL ? v->eval : v->train;
}

/* ---- reports (verify.c) ---- */

/* Reports a violation at an instruction, or at none if `instr` is PLAN_NONE. Each invariant is reported once
 * per instruction, even if several runs violate it. */
void violate(struct verify *v, int invariant, enum program_kind k, uint32_t instr, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* Reports a violation for a tensor between two programs. Each invariant is reported once per tensor and
 * program. */
void violate_tensor(struct verify *v, int invariant, enum program_kind k, tensor_id t, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* Reports a violation like violate, and also prevents the abstract execution of the plan. */
#define refuse(v, ...) ((v)->stop = true, violate((v), __VA_ARGS__))

/* A name in a message. It is returned by value, so that one message can contain several names. */
struct name {
    char s[112];
};

/* Each of these returns a name such as:
 *
 *     name_tensor  "dW3/r0"
 *     name_instr   "cycle#7 FWD l1 m0 on d0.compute"
 *     name_task    "FWD l1 m0"
 *     name_range   "W3[0..512)", or "W3" for the whole tensor
 *     name_place   "d0:3072" or "the host" */
struct name name_tensor(const struct verify *v, tensor_id t);
struct name name_instr(const struct verify *v, enum program_kind k, uint32_t instr);
struct name name_task(const struct graph_task *t);
struct name name_range(const struct verify *v, tensor_id t, uint64_t begin, uint64_t end);
struct name name_place(uint32_t loc, uint64_t addr);

/* ---- checks without execution ---- */

/* Checks the counts and array pointers, so that the other checks can read the arrays (invariant 10). */
void verify_header(struct verify *v);
/* Checks every number that is used as an index or added to an address (invariant 10). */
void verify_indices(struct verify *v);
/* Checks tensors, host slots, leases, the boundary, and the form of every instruction (invariant 10). */
void verify_agree(struct verify *v);
/* Checks that every address is inside its lease (invariant 3). */
void verify_lease(struct verify *v);
/* Checks that waits point backwards (invariant 8). Sets v->max_distance. */
void verify_waits(struct verify *v);
/* Checks that every task runs exactly once per step, and that sums are in order (invariant 6). */
void verify_tasks(struct verify *v);

/* ---- operands of tasks (verify_operands.c) ---- */

/* Checks that instruction `i` has the operands of its graph task (invariant 10). All of them must be at
 * location `loc`. */
void verify_operands(struct verify *v, enum program_kind k, uint32_t i, const struct graph_task *task,
                     uint32_t loc);

/* Returns the number of operands at the start of `ops` that belong to graph operand `go`. It is 0 if the
 * instruction omits the operand. In a correct plan, only K can have more than one. */
static inline uint32_t operands_for(const struct plan_operand *ops, uint32_t n_ops,
                                    const struct graph_operand *go)
{
    uint32_t n = 0;
    while (n < n_ops && ops[n].tensor == go->tensor && ops[n].access == go->access)
        n++;
    return n;
}

/* Returns the first W or dW operand of a RED or UPD. Its byte range is the share that the instruction does.
 * Returns NULL for other tasks, or if there is no such operand. */
const struct plan_operand *share_operand(const struct verify *v, enum program_kind k, uint32_t i);

/* ---- address ranges of one device (verify_space.c) ---- */

/* One instruction in one run of a program. It is an event of the abstract execution. */
struct verify_event {
    /* Stream of the instruction, and its number in that stream. The first instruction has number 1. Events
     * before all instructions have number 0. */
    uint32_t stream, seq;
    uint32_t instr; /* index in the program */
    uint16_t program, run;
};

struct verify_copy;

/* A range of device addresses [lo, hi). It belongs to a live copy, or is free since a drop. */
struct verify_extent {
    uint64_t lo, hi;
    struct verify_copy *owner; /* NULL: the copy was dropped */
    /* Tensor of the current or last copy in this range. */
    tensor_id tensor;
    struct verify_event dropped; /* the drop, when owner is NULL */
    uint32_t priority;           /* heap order of the treap */
    struct verify_extent *left, *right;
};

/* All extents of one device, in a treap ordered by address. Addresses that were never used are in no
 * extent. */
struct verify_space {
    struct verify_extent *root;
    uint32_t random; /* state of the priority generator */
};

typedef void extent_fn(struct verify_extent *e, void *ctx);

/* Frees all extents. */
void space_finish(struct verify_space *s);

/* Calls `fn` for every extent between `lo` and `hi`, in ascending order. First splits extents that cross `lo`
 * or `hi`. `fn` must not change the fields `lo` and `hi`. */
void space_visit(struct verify_space *s, uint64_t lo, uint64_t hi, extent_fn *fn, void *ctx);

/* Replaces all extents between `lo` and `hi` with one extent that belongs to `owner`. */
void space_replace(struct verify_space *s, uint64_t lo, uint64_t hi, struct verify_copy *owner,
                   tensor_id tensor);

/* ---- copies and accesses (verify_copy.c) ---- */

typedef VEC(struct verify_event) event_vec;

/* A byte range of a copy. All its bytes have the same version and the same earlier accesses. */
struct verify_segment {
    uint64_t begin, end; /* byte range of the tensor */
    uint64_t version;
    struct verify_event writer; /* the last write */
    /* Reads since the last write. None of them is ordered before another. */
    event_vec readers;
};

/* A copy of a tensor or of a part of it. A device copy exists from its first write to its last drop. A host
 * copy always exists, and may be empty. */
struct verify_copy {
    tensor_id tensor;
    uint32_t loc; /* device, or PLAN_HOST */
    /* Address that byte 0 of the tensor has or would have on the device, modulo 2^64. A copy of only a
     * part of the tensor may not contain byte 0. */
    uint64_t base;
    /* Disjoint segments in ascending order. Bytes outside all segments have no value. */
    VEC(struct verify_segment) segments;
    struct verify_copy *next; /* next device copy of the same tensor */
    size_t index;             /* in verify_state.live */
    /* Whether this copy has been reported as misplaced. It is reported only once. */
    bool clobbered;
};

/* The state of one abstract execution: where all bytes are, and which instructions are known to be done. The
 * training programs share one state, and eval has its own. */
struct verify_state {
    struct verify *v;
    const struct plan *plan;
    const struct graph *graph;
    uint32_t n_streams, steps;
    /* Vector clocks. Element [s][t] is the number of instructions of stream t that stream s knows to be
     * done. */
    uint32_t *clocks;
    /* The row of `clocks` for the stream of `now`. */
    uint32_t *clock;
    struct verify_event now;         /* the instruction being executed */
    uint64_t *newest;                /* per tensor: highest version that exists */
    struct verify_copy **on_devices; /* per tensor: list of its device copies */
    VEC(struct verify_copy *) live;  /* all device copies */
    uint32_t *home_first;            /* per tensor: first host copy in `home` */
    /* The host copies. Each tensor has one, but a ring tensor has one for each step of the cycle. */
    struct verify_copy *home;
    uint32_t n_home;
    struct verify_space spaces[DEVICE_MAX];
};

/* Initialises a state with empty host copies and no device copies. `steps` is the number of steps per run.
 * The caller frees the state with state_finish. */
void state_init(struct verify_state *st, struct verify *v, const struct graph *g, uint32_t steps);
void state_finish(struct verify_state *st);

/* Returns whether event `e` is ordered before the instruction that is being executed. */
static inline bool event_ordered(const struct verify_state *st, const struct verify_event *e)
{
    return st->clock[e->stream] >= e->seq;
}

/* Returns the host copy of a tensor. For a ring tensor, `step` selects the slot. */
struct verify_copy *copy_home(struct verify_state *st, tensor_id t, uint32_t step);

/* Finds the copy of a tensor on a device by its base. The base is the address that byte 0 has or would have.
 * Returns NULL if there is no such copy. */
struct verify_copy *copy_find(struct verify_state *st, tensor_id t, uint32_t device, uint64_t base);

/* Creates an empty copy on a device. */
struct verify_copy *copy_create(struct verify_state *st, tensor_id t, uint32_t device, uint64_t base);

/* Returns the index of the first segment that ends after byte `at`. */
size_t copy_seek(const struct verify_copy *c, uint64_t at);

/* Finds the first range in begin..end that no segment covers. Returns false if all bytes are covered. */
bool copy_gap(const struct verify_copy *c, uint64_t begin, uint64_t end, uint64_t *ret_begin,
              uint64_t *ret_end);

/* Splits the segments that cross `begin` or `end`. Returns the index of the first segment in the range, and
 * sets *ret_end to the index after the last. */
size_t copy_slice(struct verify_copy *c, uint64_t begin, uint64_t end, size_t *ret_end);

/* Returns the number of bytes in a copy that have a value. */
uint64_t copy_bytes(const struct verify_copy *c);

/* These three functions are accesses by the current instruction, `st->now`. They report earlier conflicting
 * accesses that are not ordered before it (invariant 4). A write to new bytes also checks that their
 * addresses are free and aligned (invariants 2 and 3). */
void copy_read(struct verify_state *st, struct verify_copy *c, uint64_t begin, uint64_t end);
void copy_write(struct verify_state *st, struct verify_copy *c, uint64_t begin, uint64_t end,
                uint64_t version);
/* Drops the bytes begin..end. Frees the copy if no bytes are left. */
void copy_drop(struct verify_state *st, struct verify_copy *c, uint64_t begin, uint64_t end);

/* These two functions repair the state after a report, so that one defect is reported once. They act like
 * copy_write and copy_drop, but report nothing. Their accesses count as ordered before all instructions. For
 * a host copy, `st` may be NULL. */
void copy_fill(struct verify_state *st, struct verify_copy *c, uint64_t begin, uint64_t end,
               uint64_t version);
void copy_forget(struct verify_state *st, struct verify_copy *c, uint64_t begin, uint64_t end);

/* ---- execution (verify_run.c) ---- */

/* Executes all programs abstractly and reports violations of invariants 1 to 5, 7 and 9. */
void verify_run(struct verify *v);

#endif
