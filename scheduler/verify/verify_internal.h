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

/* Maximum number of instructions in a program. With this limit, the verifier can count the instructions of
 * all runs that it executes in 32 bits. */
#define VERIFY_MAX_INSTRS (1u << 26)

/* The home of a tensor: the byte range of host memory that no other tensor may use. The range includes all
 * slots of the tensor. */
struct host_range {
    uint64_t offset, end;
    tensor_id tensor;
};

/* The state of one call of plan_verify: its arguments, and what the checks have found so far. */
struct verify {
    const struct plan *plan;
    const struct graph *train, *eval; /* eval may be NULL */
    const struct machine *machine;
    struct verify_report *report; /* may be NULL */
    struct err *err;
    uint32_t total; /* violations found */
    bool stop;      /* the plan must not be executed */
    /* How many runs back the waits of the cycle reach at most. With 2, some instruction waits for an
     * instruction of the run before the previous run. */
    uint32_t max_distance;
    /* task_of[k][i] is the task of instruction i of program k, as an index in graph.tasks. PLAN_NONE if the
     * instruction is no task. */
    uint32_t *task_of[PROGRAM_COUNT];
    /* reported[k][i] has bit n set if a violation of invariant n was already reported for instruction i of
     * program k. */
    uint16_t *reported[PROGRAM_COUNT];
    /* reported_tensor[t] has bit 11 * k + n set if a violation of invariant n was already reported for tensor
     * t after program k. */
    uint64_t *reported_tensor;
    VEC(struct host_range) homes; /* sorted by address */
};

/* Returns the graph whose tasks a program runs. NULL for the eval program if there is no eval graph. */
static inline const struct graph *verify_graph(const struct verify *v, enum program_kind k)
{
    return k == PROGRAM_EVAL ? v->eval : v->train;
}

/* ---- reports (verify.c) ---- */

/* Reports a violation at instruction `instr`, or PLAN_NONE if no single instruction is wrong. An instruction
 * is reported only once per invariant. */
void violate(struct verify *v, int invariant, enum program_kind k, uint32_t instr, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* Reports that a tensor violates an invariant after program `k`. Each invariant is reported only once for a
 * tensor and a program. */
void violate_tensor(struct verify *v, int invariant, enum program_kind k, tensor_id t, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* Reports a violation and sets v->stop. The plan is then not executed. */
#define refuse(v, ...) ((v)->stop = true, violate((v), __VA_ARGS__))

/* A name for a message. Functions return this struct by value, so that several names fit into one message. */
struct name {
    char s[112];
};

/* Functions that return names for messages. Examples of their results:
 *
 *     name_tensor  "dW3/r0"
 *     name_instr   "cycle#7 FWD l1 m0 on d0.compute"
 *     name_task    "FWD l1 m0"
 *     name_range   "W3[0..512)", or "W3" for the whole tensor
 *     name_place   "d0:3072" or "host:4096" */
struct name name_tensor(const struct verify *v, tensor_id t);
struct name name_instr(const struct verify *v, enum program_kind k, uint32_t instr);
struct name name_task(const struct graph_task *t);
struct name name_range(const struct verify *v, tensor_id t, uint64_t begin, uint64_t end);
struct name name_place(uint32_t loc, uint64_t addr);

/* ---- checks without execution ---- */

/* Checks the counts and array pointers of the plan (invariant 10). All later checks can then read the arrays
 * safely. */
void verify_header(struct verify *v);
/* Checks every number that is used as an array index or added to an address (invariant 10). */
void verify_indices(struct verify *v);
/* Checks the tensors, their places in host memory, the leases, the boundary copies and the form of every
 * instruction (invariant 10). */
void verify_agree(struct verify *v);
/* Checks that every address is inside the memory that was leased on its device (invariant 3). */
void verify_lease(struct verify *v);
/* Checks that an instruction waits only for earlier instructions, or for instructions of earlier runs
 * (invariant 8). Sets v->max_distance. */
void verify_waits(struct verify *v);
/* Checks that every task runs exactly once per training step, and that the terms of each sum are added in the
 * right order (invariant 6). */
void verify_tasks(struct verify *v);

/* ---- operands of tasks (verify_operands.c) ---- */

/* Checks that instruction `i` has the operands of its task in the graph, and that all of them are at location
 * `loc` (invariant 10). */
void verify_operands(struct verify *v, enum program_kind k, uint32_t i, const struct graph_task *task,
                     uint32_t loc);

/* Returns how many operands at the start of `ops` belong to operand `go` of the graph's task. Only the
 * optimizer state K may have several operands. */
static inline uint32_t operands_for(const struct plan_operand *ops, uint32_t n_ops,
                                    const struct graph_operand *go)
{
    uint32_t n = 0;
    while (n < n_ops && ops[n].tensor == go->tensor && ops[n].access == go->access)
        n++;
    return n;
}

/* Returns the first W or dW operand of a RED or UPD, or NULL. Its byte range is the share of the task that
 * the instruction does. */
const struct plan_operand *share_operand(const struct verify *v, enum program_kind k, uint32_t i);

/* ---- address ranges (verify_space.c) ---- */

/* One execution of an instruction, in one run of a program. */
struct verify_event {
    /* The instruction's stream, and its number among all instructions executed on this stream, counted from
     * 1. `seq` is 0 for an event before all instructions. */
    uint32_t stream, seq;
    uint32_t instr; /* index in the program */
    uint16_t program, run;
};

struct verify_copy;

/* A range of addresses of a device or of the host, from lo to hi - 1. A copy has these addresses, or a
 * dropped copy had them. */
struct verify_extent {
    uint64_t lo, hi;
    struct verify_copy *owner; /* NULL: the copy was dropped */
    /* Tensor of the copy at these addresses or, if they are free, of the last copy there. */
    tensor_id tensor;
    struct verify_event dropped; /* the drop, when owner is NULL */
    uint32_t priority;           /* heap order of the treap */
    struct verify_extent *left, *right;
};

/* All extents of one device, or of the host, in a treap (a kind of search tree) that is sorted by address. */
struct verify_space {
    struct verify_extent *root;
    uint32_t random; /* state of the priority generator */
};

typedef void extent_fn(struct verify_extent *e, void *ctx);

/* Frees all extents. */
void space_finish(struct verify_space *s);

/* Calls `fn` for every extent between `lo` and `hi`, in ascending order, after extents that extend beyond
 * this range are split. `fn` must not change addresses. */
void space_visit(struct verify_space *s, uint64_t lo, uint64_t hi, extent_fn *fn, void *ctx);

/* Replaces all extents between addresses `lo` and `hi` with a single extent, which belongs to copy
 * `owner`. */
void space_replace(struct verify_space *s, uint64_t lo, uint64_t hi, struct verify_copy *owner,
                   tensor_id tensor);

/* ---- copies and accesses (verify_copy.c) ---- */

typedef VEC(struct verify_event) event_vec;

/* A byte range of a copy in which all bytes have the same version, the same last writer and the same
 * readers. */
struct verify_segment {
    uint64_t begin, end; /* byte range of the tensor */
    uint64_t version;
    struct verify_event writer; /* the last write */
    /* Reads since the last write. If one of these reads is certainly done before another one starts, only the
     * later one is kept. */
    event_vec readers;
};

/* A copy of a tensor or of a part of a tensor. There are three sorts:
 *
 *   on a device         exists from its first write until its last byte is dropped
 *   at home             in host memory, at the address that only this tensor has; exists all the time, but
 *                       may have no bytes
 *   on the host         in host memory, of a tensor without a home; exists from its first write until its
 *   for a while         last byte is overwritten by another copy. The host has no drops */
struct verify_copy {
    tensor_id tensor;
    uint32_t loc; /* device, or PLAN_HOST */
    bool home;    /* the copy is at home */
    /* The address that byte 0 of the tensor has in this copy, or would have, modulo 2^64. Different copies of
     * a tensor at one location have different bases. */
    uint64_t base;
    /* The segments in ascending order. They do not overlap. Bytes between segments have no value. */
    VEC(struct verify_segment) segments;
    struct verify_copy *next; /* in the list of verify_state.away */
    size_t index;             /* in verify_state.live */
    /* Whether an error in the addresses of this copy was already reported. Further errors are then not
     * reported. */
    bool clobbered;
};

/* The state of one abstract execution, which runs no task, but tracks where all bytes are and which
 * instructions are certainly done. */
struct verify_state {
    struct verify *v;
    const struct plan *plan;
    const struct graph *graph;
    uint32_t n_streams;
    /* Vector clocks. clocks[s * n_streams + t] is the number of instructions of stream t that are certainly
     * done when the next instruction of stream s starts. */
    uint32_t *clocks;
    /* The row of `clocks` that belongs to the stream of the current instruction. */
    uint32_t *clock;
    struct verify_event now; /* the instruction being executed */
    /* newest[t] is the highest version of tensor t that exists. */
    uint64_t *newest;
    /* away[t] is a list of the copies of tensor t. The copy at the tensor's home is not in the list. The
     * home is the place in host memory that only this tensor uses. */
    struct verify_copy **away;
    /* All copies of all tensors, except the copies at home. */
    VEC(struct verify_copy *) live;
    /* home[t] is the copy of tensor t at its home. */
    struct verify_copy *home;
    /* overwritten[t] is the last instruction that overwrote tensor t in host memory in the run in which t was
     * written there. Its `seq` is 0 if there is none. */
    struct verify_event *overwritten;
    /* spaces[d] is for device d. The last one is for host memory outside the homes. */
    struct verify_space spaces[DEVICE_MAX + 1];
};

/* Initialises a state in which no tensor has a value. The caller frees the state with state_finish. */
void state_init(struct verify_state *st, struct verify *v, const struct graph *g);
void state_finish(struct verify_state *st);

/* Returns whether event `e` is certainly done before the current instruction starts. */
static inline bool event_ordered(const struct verify_state *st, const struct verify_event *e)
{
    return st->clock[e->stream] >= e->seq;
}

/* Returns the copy of a tensor at its home, the place in host memory that only this tensor uses. Returns NULL
 * if the tensor has no home. */
struct verify_copy *copy_home(struct verify_state *st, tensor_id t);

/* Finds the copy of tensor `t` at location `loc` whose base is `base`. Ignores the copy at the tensor's home
 * in host memory. */
struct verify_copy *copy_find(struct verify_state *st, tensor_id t, uint32_t loc, uint64_t base);

/* Creates an empty copy of tensor `t` at location `loc`. On the host, the new copy is not the one at the
 * tensor's home. */
struct verify_copy *copy_create(struct verify_state *st, tensor_id t, uint32_t loc, uint64_t base);

/* Returns the index of the first segment of copy `c` that ends after byte `at`. */
size_t copy_seek(const struct verify_copy *c, uint64_t at);

/* Sets *ret_begin and *ret_end to the first range in begin..end that the copy does not have. Returns false if
 * the copy has all bytes of begin..end. */
bool copy_gap(const struct verify_copy *c, uint64_t begin, uint64_t end, uint64_t *ret_begin,
              uint64_t *ret_end);

/* Splits each segment that extends beyond `begin` or `end`. Returns the index of the first segment in
 * begin..end. Sets *ret_end to the index after the last segment in begin..end. */
size_t copy_slice(struct verify_copy *c, uint64_t begin, uint64_t end, size_t *ret_end);

/* Returns the number of bytes that a copy has. */
uint64_t copy_bytes(const struct verify_copy *c);

/* These functions read, write or drop bytes begin..end of a copy for the current instruction. They report
 * every conflicting access that may still be under way. */
void copy_read(struct verify_state *st, struct verify_copy *c, uint64_t begin, uint64_t end);
/* Also checks that the addresses of new bytes are free and aligned. */
void copy_write(struct verify_state *st, struct verify_copy *c, uint64_t begin, uint64_t end,
                uint64_t version);
/* Drops the bytes begin..end of a copy. If the copy has no bytes left, frees the copy. */
void copy_drop(struct verify_state *st, struct verify_copy *c, uint64_t begin, uint64_t end);

/* Gives version `version` to bytes begin..end of a copy, like copy_write, but reports nothing. `st` may be
 * NULL if `c` is a copy at home. */
void copy_fill(struct verify_state *st, struct verify_copy *c, uint64_t begin, uint64_t end,
               uint64_t version);
/* Removes the bytes begin..end from a copy, like copy_drop, but reports nothing. */
void copy_forget(struct verify_state *st, struct verify_copy *c, uint64_t begin, uint64_t end);

/* ---- execution (verify_run.c) ---- */

/* Executes all programs abstractly, without computing anything. Reports violations of the invariants 1 to 5,
 * 7 and 9. */
void verify_run(struct verify *v);

#endif
