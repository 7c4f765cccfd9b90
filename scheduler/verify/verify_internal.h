/* Shared by the files of the verifier, and by nothing else.
 *
 *   verify.c          plan_verify; reports and names
 *   verify_indices.c  [10]             every number that is used as an index
 *   verify_agree.c    [10] [3]         what the plan says, against graph, leases and itself
 *   verify_operands.c [10]             the operands of tasks: pieces, shares
 *   verify_tasks.c    [6] [8]          which tasks there are, their order, where waits point
 *   verify_space.c                     an ordered map of address ranges: who is or was there
 *   verify_copy.c     [2] [3] [4]      copies of tensors: bytes, versions, accesses and their order
 *   verify_run.c      [1] [5] [7] [9]  the unrolled execution
 *
 * The static files run first. What they refuse (v->stop) would make an execution meaningless or unsafe, so it
 * is not tried; everything in verify_copy.c and verify_run.c may rely on what they checked.
 */
#ifndef SCHEDULER_VERIFY_VERIFY_INTERNAL_H
#define SCHEDULER_VERIFY_VERIFY_INTERNAL_H

#include <stddef.h>

#include "base/vec.h"
#include "scheduler/verify/verify.h"

/* With PLAN_MAX_DISTANCE, event numbers of the whole execution stay below 2^32. */
#define VERIFY_MAX_INSTRS (1u << 26)

struct verify {
    const struct plan *plan;
    const struct graph *train, *eval; /* eval may be NULL */
    const struct machine *machine;
    struct verify_report *report; /* may be NULL */
    struct err *err;
    uint32_t total;
    bool stop;                         /* something was refused: do not execute */
    uint32_t max_distance;             /* of the cycle's waits */
    uint32_t *task_of[PROGRAM_COUNT];  /* per instruction: index of its graph task; PLAN_NONE for moves */
    uint16_t *reported[PROGRAM_COUNT]; /* per instruction: bit i: invariant i was reported */
    uint64_t *reported_tensor;         /* per tensor: bit 11 * program + invariant */
};

/* The graph that a program's tasks come from; NULL for eval without an eval graph. */
static inline const struct graph *verify_graph(const struct verify *v, enum program_kind k)
{
    return k == PROGRAM_EVAL ? v->eval : v->train;
}

/* ---- reports (verify.c) ---- */

/* One violation. The same invariant at the same instruction is reported once, however many runs meet it. */
void violate(struct verify *v, int invariant, enum program_kind k, uint32_t instr, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* The same for what is wrong with a tensor between programs: once for each tensor, program and invariant. */
void violate_tensor(struct verify *v, int invariant, enum program_kind k, tensor_id t, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* violate, and no execution. */
#define refuse(v, ...) ((v)->stop = true, violate((v), __VA_ARGS__))

struct name { /* returned by value, so that a message can hold several */
    char s[112];
};
struct name name_tensor(const struct verify *v, tensor_id t);
struct name name_instr(const struct verify *v, enum program_kind k, uint32_t instr);
struct name name_task(const struct graph_task *t);
struct name name_range(const struct verify *v, tensor_id t, uint64_t begin, uint64_t end);
struct name name_place(uint32_t loc, uint64_t addr);

/* ---- static checks ---- */

void verify_header(struct verify *v);  /* counts and pointers: refuses before anything is indexed */
void verify_indices(struct verify *v); /* every id, range and number that is used as an index */
void verify_agree(struct verify *v); /* [10] tensors, host slots, leases, boundary, shapes of instructions */
void verify_lease(struct verify *v); /* [3] */
void verify_waits(struct verify *v); /* [8]; sets max_distance */
void verify_tasks(struct verify *v); /* [6] */

/* ---- operands of tasks (verify_operands.c) ---- */

/* [10]: the operands of instruction i, which does the task, are the task's, all at loc. */
void verify_operands(struct verify *v, enum program_kind k, uint32_t i, const struct graph_task *task,
                     uint32_t loc);

/* How many of a plan's operands, from the first on, stand for the graph's: none where that is left out, one, or of K in a
 * share one for each part. No task has a tensor twice. */
static inline uint32_t operands_for(const struct plan_operand *ops, uint32_t n_ops,
                                    const struct graph_operand *go)
{
    uint32_t n = 0;
    while (n < n_ops && ops[n].tensor == go->tensor && ops[n].access == go->access)
        n++;
    return n;
}

/* The operand of a RED or UPD whose range says which share it does: its first W or dW. NULL: there is none, or another task. */
const struct plan_operand *share_operand(const struct verify *v, enum program_kind k, uint32_t i);

/* ---- address ranges of one device (verify_space.c) ---- */

/* An instruction of the unrolled execution. seq counts the instructions of its stream, from 1; 0 is an event
 * before everything. */
struct event {
    uint32_t stream, seq;
    uint32_t instr;
    uint16_t program, run;
};

struct copy;

struct extent { /* a live range of a copy, or the place where one was dropped and nobody is since */
    uint64_t lo, hi;
    struct copy *owner;   /* NULL: dropped */
    tensor_id tensor;     /* whose copy it is or was */
    struct event dropped; /* owner == NULL: by whom */
    uint32_t priority;
    struct extent *left, *right;
};

struct space {
    struct extent *root;
    uint32_t random;
};

typedef void extent_fn(struct extent *e, void *ctx);

void space_finish(struct space *s);
/* Cuts extents at lo and hi and calls fn for those in between, in ascending order. fn may change all but lo,
 * hi. */
void space_visit(struct space *s, uint64_t lo, uint64_t hi, extent_fn *fn, void *ctx);
/* Replaces what is in lo..hi by one live extent. */
void space_replace(struct space *s, uint64_t lo, uint64_t hi, struct copy *owner, tensor_id tensor);

/* ---- copies and accesses (verify_copy.c) ---- */

typedef VEC(struct event) event_vec;

struct segment { /* bytes of a copy with one version and one history */
    uint64_t begin, end;
    uint64_t version;
    struct event writer;
    event_vec readers; /* since the writer; none of them ordered before another */
};

struct copy {
    tensor_id tensor;
    uint32_t loc;  /* device, or PLAN_HOST */
    uint64_t base; /* on a device: where byte 0 is, modulo 2^64 (a share may lie below its begin) */
    VEC(struct segment) segments; /* ascending, disjoint; bytes in none are not valid */
    struct copy *next;            /* of the same tensor, on another device or with another base */
    size_t index;                 /* in state->live */
    bool clobbered;               /* its being there was reported: no further reports about that */
};

struct state { /* of one execution */
    struct verify *v;
    const struct plan *plan;
    const struct graph *graph;
    uint32_t n_streams, steps;
    uint32_t *clocks;         /* [stream][stream]: what each stream knows to be done */
    uint32_t *clock;          /* row of the stream of `now` */
    struct event now;         /* the instruction being executed */
    uint64_t *newest;         /* per tensor: highest version that exists */
    struct copy **on_devices; /* per tensor: list of its device copies */
    VEC(struct copy *) live;  /* all device copies */
    uint32_t *home_first; /* per tensor: index in home; a ring tensor has a copy for each step of the cycle */
    struct copy *home;
    uint32_t n_home;
    struct space spaces[DEVICE_MAX];
};

void state_init(struct state *st, struct verify *v, const struct graph *g, uint32_t steps);
void state_finish(struct state *st);

static inline bool event_ordered(const struct state *st, const struct event *e)
{
    return st->clock[e->stream] >= e->seq;
}

struct copy *copy_home(struct state *st, tensor_id t, uint32_t step);
/* The one with this base, of the copies that the device may have; NULL when there is none. */
struct copy *copy_find(struct state *st, tensor_id t, uint32_t device, uint64_t base);
struct copy *copy_create(struct state *st, tensor_id t, uint32_t device, uint64_t base);
/* Index of the first segment that ends after `at`. */
size_t copy_seek(const struct copy *c, uint64_t at);
/* The first range in begin..end that is not valid. */
bool copy_gap(const struct copy *c, uint64_t begin, uint64_t end, uint64_t *ret_begin, uint64_t *ret_end);
/* Makes segments begin and end there; returns the index of the first in the range, *ret_end that after the
 * last. */
size_t copy_slice(struct copy *c, uint64_t begin, uint64_t end, size_t *ret_end);
uint64_t copy_bytes(const struct copy *c);

/* Accesses by st->now. All report [4]; a write of bytes that were not valid claims their addresses, [2] [3]. */
void copy_read(struct state *st, struct copy *c, uint64_t begin, uint64_t end);
void copy_write(struct state *st, struct copy *c, uint64_t begin, uint64_t end, uint64_t version);
/* Frees the copy when nothing is left of it. */
void copy_drop(struct state *st, struct copy *c, uint64_t begin, uint64_t end);

/* Repairs after a report: the same effects, as by nobody, never reported. For a copy of the host st may be NULL. */
void copy_fill(struct state *st, struct copy *c, uint64_t begin, uint64_t end, uint64_t version);
void copy_forget(struct state *st, struct copy *c, uint64_t begin, uint64_t end);

/* ---- execution (verify_run.c) ---- */

void verify_run(struct verify *v); /* [1] [2] [3] [4] [5] [7] [9] */

#endif
