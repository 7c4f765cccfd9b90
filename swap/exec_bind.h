/* Bound programs: plan instructions in which everything that stays the same from run to run is resolved. This
 * header is private to the executor.
 *
 * bind_program runs once per program when an executor is created. Afterwards exec.c needs neither the plan's
 * operands nor its tensor table: a bound instruction names its layer, its addresses and its events. Two
 * things still depend on the run: the slot of a ring tensor's host copy (operands with `ring` set), and
 * struct step_args.
 */
#ifndef SWAP_EXEC_BIND_H
#define SWAP_EXEC_BIND_H

#include "base/arena.h"
#include "base/err.h"
#include "kernels/layer.h"
#include "scheduler/plan.h"
#include "swap/exec.h"

/* An operand of an instruction, with its address. If `ring` is true, the address depends on the run. */
struct bound_operand {
    enum role role; /* ROLE_NONE in moves and drops */
    /* The number of earlier operands of the same instruction with the same role. For example, the second part
     * of the optimizer state K has nth 1. */
    uint32_t nth;
    /* True for a tensor that has several slots in host memory. The address of the operand is then
     * store_ptr(tensor, number of the run) + begin. */
    bool ring;
    /* The tensor. This field is set only for operands of tasks, and if `ring` is true. */
    tensor_id tensor;
    uint64_t begin; /* ring only: first byte of the tensor */
    char *at;       /* address; NULL for a ring */
};

/* A wait that must be enqueued. bind_waits has left out all waits that are always fulfilled (see
 * wait_is_implied in exec_bind.c). */
struct bound_wait {
    /* The index of the instruction to wait for. It is in the same program. */
    uint32_t instr;
    uint32_t distance; /* runs back: 0 is the same run */
};

/* One instruction, ready to be enqueued. */
struct bound_instr {
    enum instr_kind kind;
    uint32_t stream;
    /* The index of this instruction's arguments in the step_args of the run. */
    uint32_t args;
    /* For tasks, the decision group of the layer (the layers that share one DECIDE task). For DECIDE, its own
     * group. */
    uint32_t group;
    const struct layer *layer; /* NULL for DECIDE, moves and DROP */
    /* Used in FWD, REC and BWD. The number of the micro-batch's first row, counted from the start of the
     * batch. */
    uint32_t first_row;
    bool accumulate; /* BWD: add to dW, do not overwrite */
    /* Used in UPD. True if every part of the optimizer state K is an operand of its own. */
    bool split;
    /* Used in UPD. The ranges of weights to update. Positions count from the first weight of the task's
     * share. */
    struct optimizer_range *ranges;
    uint32_t n_ranges;
    uint64_t bytes;     /* move, DROP: number of bytes */
    uint64_t elements;  /* RED, NORM, UPD: number of elements of dW on which the task works */
    enum dtype w_dtype; /* UPD: the type of the weights */
    uint32_t operand, n_operands;
    uint32_t wait, n_waits;
    /* This instruction has the events `event` to event + n_events - 1, or none if no other stream waits for
     * it. Run r records event + r % n_events. */
    uint32_t event, n_events;
};

/* A bound program: a program of the plan whose instructions are ready to be enqueued. The executor has one
 * for each of the plan's five programs. */
struct bound_program {
    struct bound_instr *instrs;
    struct bound_operand *operands;
    struct bound_wait *waits;
    uint32_t *streams; /* the streams that have instructions, ascending */
    uint32_t n_instrs, n_operands, n_waits, n_streams;
    uint32_t n_events; /* events that the executor creates */
    /* True if a run of the program needs step_args. This is the case if the program has tasks, or operands
     * whose address depends on the run. */
    bool needs_args;
};

/* Returns the number of bytes that bind_program allocates for a program. The ranges of updates are not
 * included. */
uint64_t bound_program_bytes(const struct plan_program *from);

/* Binds one program of the plan: computes everything that is the same in every run. The arrays of *ret are
 * allocated from `arena`. */
int bind_program(const struct exec_config *config, enum program_kind kind, struct arena *arena,
                 struct bound_program *ret, struct err *err);

#endif
