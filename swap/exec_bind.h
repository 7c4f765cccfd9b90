/* Bound programs: plan instructions in which everything that stays the same from run to run is resolved. This
 * header is private to the executor.
 *
 * bind_program runs once per program when an executor is created. Afterwards exec.c needs neither the plan's
 * operands nor its tensor table: a bound instruction names its layer, its addresses and its events. Two
 * things still depend on the step: the slot of a ring tensor's host copy (operands with `ring` set), and
 * struct step_args.
 */
#ifndef SWAP_EXEC_BIND_H
#define SWAP_EXEC_BIND_H

#include "base/arena.h"
#include "base/err.h"
#include "kernels/layer.h"
#include "scheduler/plan.h"
#include "swap/exec.h"

/* The part that an operand plays in its instruction. */
enum role {
    ROLE_W,
    ROLE_DW,       /* in BWD the gradient of its replica; in other tasks that of replica 0, the sum */
    ROLE_DW_OTHER, /* RED: gradient of the other replica, which is added to ROLE_DW */
    ROLE_DW_TIED,  /* NORM, UPD: gradient of the layer that uses the same weights, added to ROLE_DW */
    ROLE_K,        /* the whole K or, if each part is an operand of its own, the first part */
    ROLE_K_LAST = ROLE_K + OPTIMIZER_PARTS - 1,
    ROLE_X,
    ROLE_Y,
    ROLE_DX,
    ROLE_DY,
    ROLE_S,
    ROLE_SCRATCH,
    ROLE_SAVE_WORK, /* FWD, REC: workspace of a forward pass that saves S */
    ROLE_TARGET,
    ROLE_RESULT,
    ROLE_SUMSQ,    /* squared norm; DECIDE has one for each layer with weights, in ascending order */
    ROLE_DECISION, /* written by DECIDE, read by the trainer */
    ROLE_GROUP,    /* group state: updated by DECIDE, read by UPD */
    ROLE_SRC,      /* source of a move */
    ROLE_DST,      /* destination of a move; the copy that a DROP ends */
    ROLE_COUNT
};

/* An operand with its address. The address of an operand with `ring` set is computed again in every step. */
struct bound_operand {
    enum role role;
    bool ring;        /* host copy with several slots: its address is store_ptr(tensor, step) + begin */
    tensor_id tensor; /* set for operands of tasks and for rings */
    uint64_t begin;   /* ring only: first byte of the tensor */
    char *at;         /* address; NULL for a ring */
};

/* A wait that stream order does not imply. */
struct bound_wait {
    uint32_t instr;    /* index of the instruction to wait for, in the same program */
    uint32_t distance; /* runs back: 0 is the same run */
};

/* One instruction, ready to be enqueued. */
struct bound_instr {
    enum instr_kind kind;
    uint32_t stream;
    uint32_t step;                  /* index into the run's step_args */
    const struct layer *layer;      /* NULL for DECIDE, moves and DROP */
    uint32_t first_row;             /* FWD, REC, BWD: first row of the micro-batch within the batch */
    bool accumulate;                /* BWD: adds to dW instead of overwriting it */
    bool split;                     /* UPD: every part of K is an operand with a role of its own */
    struct optimizer_range *ranges; /* UPD: ranges of equal weight decay, relative to its first byte */
    uint32_t n_ranges;
    uint64_t bytes; /* size of the operand of a move or DROP; for RED, NORM and UPD size of dW or the share */
    uint32_t operand, n_operands;
    uint32_t wait, n_waits;
    /* Range in the program's events: run r records event + r % n_events. The range is empty if no instruction
     * of another stream waits for this one. */
    uint32_t event, n_events;
};

/* A bound program. The executor holds one for each program of the plan. */
struct bound_program {
    struct bound_instr *instrs;
    struct bound_operand *operands;
    struct bound_wait *waits;
    uint32_t *streams; /* the streams that have instructions, ascending */
    uint32_t n_instrs, n_operands, n_waits, n_streams;
    uint32_t n_events; /* number of events that the executor has to create */
    bool needs_args;   /* the program has tasks or ring operands, so a run needs step_args */
};

/* Binds one program of config->plan. The arrays of *ret are allocated from `arena`. Returns -EINVAL for an
 * instruction that cannot be executed; `err` names it. Plans are verified before they come here, so this
 * catches plans that belong to another model or optimizer. */
int bind_program(const struct exec_config *config, enum program_kind kind, struct arena *arena,
                 struct bound_program *ret, struct err *err);

#endif
