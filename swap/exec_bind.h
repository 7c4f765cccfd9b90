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
    /* The gradient. BWD writes the gradient of one replica. All other tasks use the sum, which replica 0
     * holds. */
    ROLE_DW,
    /* Used in RED. The gradient of another replica, which is added to ROLE_DW. */
    ROLE_DW_OTHER,
    /* Used in NORM and UPD. The gradient from a second layer with the same weights. It is added to
     * ROLE_DW. */
    ROLE_DW_TIED,
    /* The whole K. If each part is an operand of its own, this is the first part. */
    ROLE_K,
    ROLE_K_LAST = ROLE_K + OPTIMIZER_PARTS - 1,
    ROLE_X,
    ROLE_Y,
    ROLE_DX,
    ROLE_DY,
    ROLE_S,
    ROLE_SCRATCH,
    /* Used in FWD and REC. The workspace of a forward pass that saves S. */
    ROLE_SAVE_WORK,
    ROLE_TARGET,
    ROLE_RESULT,
    /* A squared norm. DECIDE has one for each layer with weights, in ascending order of layers. */
    ROLE_SUMSQ,
    ROLE_DECISION, /* written by DECIDE, read by the trainer */
    /* The group state. DECIDE updates it and UPD reads it. */
    ROLE_GROUP,
    ROLE_SRC, /* source of a move */
    /* The destination of a move, or the copy that a DROP ends. */
    ROLE_DST,
    ROLE_COUNT
};

/* An operand with its address. If `ring` is set, the address is computed again in every step. */
struct bound_operand {
    enum role role;
    /* True for a host copy with several slots. Its address is store_ptr(tensor, step) + begin. */
    bool ring;
    /* Set for the operands of tasks and for all ring operands. */
    tensor_id tensor;
    uint64_t begin; /* ring only: first byte of the tensor */
    char *at;       /* address; NULL for a ring */
};

/* A wait that is not already implied by the order of a stream. */
struct bound_wait {
    /* The index of the instruction to wait for. It is in the same program. */
    uint32_t instr;
    uint32_t distance; /* runs back: 0 is the same run */
};

/* One instruction, ready to be enqueued. */
struct bound_instr {
    enum instr_kind kind;
    uint32_t stream;
    uint32_t step;             /* index into the run's step_args */
    const struct layer *layer; /* NULL for DECIDE, moves and DROP */
    /* Used in FWD, REC and BWD. The first row of the micro-batch within the batch. */
    uint32_t first_row;
    bool accumulate; /* BWD: add to dW, do not overwrite */
    /* Used in UPD. True if every part of K is an operand with a role of its own. */
    bool split;
    /* Used in UPD. Ranges with equal weight decay. Offsets start at the first byte of the share. */
    struct optimizer_range *ranges;
    uint32_t n_ranges;
    /* The size of the operand of a move or a DROP. For RED, NORM and UPD, the size of dW or of its share. */
    uint64_t bytes;
    uint32_t operand, n_operands;
    uint32_t wait, n_waits;
    /* The events of this instruction. Its runs use them in rotation: run r uses event + r % n_events. Empty
     * if no other stream waits for it. */
    uint32_t event, n_events;
};

/* A bound program. The executor holds one for each program of the plan. */
struct bound_program {
    struct bound_instr *instrs;
    struct bound_operand *operands;
    struct bound_wait *waits;
    uint32_t *streams; /* the streams that have instructions, ascending */
    uint32_t n_instrs, n_operands, n_waits, n_streams;
    uint32_t n_events; /* events that the executor creates */
    /* True if a run needs step_args, because the program has tasks or ring operands. */
    bool needs_args;
};

/* Binds one program of the plan. The arrays of *ret come from `arena`. Returns -EINVAL if the plan belongs to
 * another model or optimizer. */
int bind_program(const struct exec_config *config, enum program_kind kind, struct arena *arena,
                 struct bound_program *ret, struct err *err);

#endif
