/* Inside the interpreter: plan instructions with everything resolved that does not change from run to run.
 *
 * bind_program runs once per program when an executor is created. Afterwards exec.c needs neither the plan's
 * operands nor the tensor table: an instruction says which layer, which addresses, which events. What still
 * depends on the step is the slot of a ring tensor's host copy (a place with `ring` set) and struct
 * step_args.
 */
#ifndef SWAP_EXEC_BIND_H
#define SWAP_EXEC_BIND_H

#include "base/arena.h"
#include "base/err.h"
#include "kernels/layer.h"
#include "scheduler/plan.h"
#include "swap/exec.h"

/* What an operand is to its instruction. */
enum role {
    ROLE_W,
    ROLE_DW,       /* of the replica; of replica 0, where the sum of all is */
    ROLE_DW_OTHER, /* of another replica: what a RED adds to it */
    ROLE_DW_TIED,  /* of the weights' second use, in another layer: what NORM and UPD add to it */
    ROLE_K,        /* the whole; or, where the parts stand apart, the first of them */
    ROLE_K_LAST = ROLE_K + OPTIMIZER_PARTS - 1,
    ROLE_X,
    ROLE_Y,
    ROLE_DX,
    ROLE_DY,
    ROLE_S,
    ROLE_SCRATCH,
    ROLE_SAVE_WORK, /* scratch of a forward that saves S */
    ROLE_TARGET,
    ROLE_RESULT,
    ROLE_SUMSQ,    /* DECIDE has one per layer with weights, in ascending order */
    ROLE_DECISION, /* what DECIDE tells the trainer */
    ROLE_GROUP,    /* what DECIDE makes of the last step's, and UPD reads */
    ROLE_SRC,      /* of moves */
    ROLE_DST,      /* of moves; and what a DROP ends */
    ROLE_COUNT
};

struct bound_operand {
    enum role role;
    bool ring;        /* a host copy with several slots: the address is store_ptr(tensor, step) + begin */
    tensor_id tensor; /* of tasks and rings */
    uint64_t begin;   /* ring only */
    char *at;         /* the address, when it is not a ring's */
};

struct bound_wait {
    uint32_t instr; /* in the same program; it has events */
    uint32_t distance;
};

struct bound_instr {
    enum instr_kind kind;
    uint32_t stream;
    uint32_t step;                  /* which of the run's step_args */
    const struct layer *layer;      /* NULL for DECIDE, moves and DROP */
    uint32_t first_row;             /* FWD, REC, BWD */
    bool accumulate;                /* BWD */
    bool split;                     /* UPD: K is in parts, one role each */
    struct optimizer_range *ranges; /* UPD: of its bytes, counted from the first; where decay changes */
    uint32_t n_ranges;
    uint64_t bytes; /* moves and DROP: of the operand; RED, NORM, UPD: of dW, all of it or the share */
    uint32_t operand, n_operands;
    uint32_t wait, n_waits;
    uint32_t event, n_events; /* range in the program's events: run r records event + r % n_events. None when
                               * no instruction of another stream waits for this one */
};

struct bound_program {
    struct bound_instr *instrs;
    struct bound_operand *operands;
    struct bound_wait *waits;
    uint32_t *streams; /* that have instructions */
    uint32_t n_instrs, n_operands, n_waits, n_streams;
    uint32_t n_events; /* to be created */
    bool needs_args;   /* it has tasks or ring operands: a run makes no sense without step_args */
};

/* Arrays go to `arena`. -EINVAL, with the place in the plan, for an instruction that cannot be executed.
 * Plans are verified before they come here; this catches a plan that belongs to another model or optimizer.
 */
int bind_program(const struct exec_config *config, enum program_kind kind, struct arena *arena,
                 struct bound_program *ret, struct err *err);

#endif
