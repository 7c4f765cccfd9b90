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

/* What an operand is for its instruction, such as the input X or the source of a move. */
enum role {
    ROLE_W,
    /* The gradient dW. A BWD writes the gradient of its own replica. All other tasks use the total, which is
     * the dW of replica 0. */
    ROLE_DW,
    /* Only for RED: the gradient of another replica, which the task adds to ROLE_DW. */
    ROLE_DW_OTHER,
    /* Only for NORM and UPD: the gradient of another layer that uses the same weights. The task adds it to
     * ROLE_DW. */
    ROLE_DW_TIED,
    /* The whole optimizer state K or, if each part of K is an operand of its own, the first part. */
    ROLE_K,
    ROLE_K_LAST = ROLE_K + OPTIMIZER_PARTS - 1,
    ROLE_X,
    ROLE_Y,
    ROLE_DX,
    ROLE_DY,
    ROLE_S,
    ROLE_SCRATCH,
    /* Only for FWD and REC: the working memory of a task that saves values for the backward pass (S). */
    ROLE_SAVE_WORK,
    ROLE_TARGET,
    ROLE_RESULT,
    /* The squared norm of a layer's gradient. DECIDE has one such operand for each layer with weights, in
     * ascending order of layers. */
    ROLE_SUMSQ,
    ROLE_DECISION, /* written by DECIDE, read by the trainer */
    /* The group state, such as the scale of the gradients. DECIDE updates it, and every UPD reads it. */
    ROLE_GROUP,
    ROLE_SRC, /* source of a move */
    /* The destination of a move or, for a DROP, the copy that is dropped. */
    ROLE_DST,
    ROLE_COUNT
};

/* An operand with its address. If `ring` is set, the address depends on the training step and is computed in
 * every step. */
struct bound_operand {
    enum role role;
    /* True if the operand is a host copy with several slots. Its address in a training step is
     * store_ptr(tensor, step) + begin. */
    bool ring;
    /* The tensor. It is set only for operands of tasks and for operands with `ring`. */
    tensor_id tensor;
    uint64_t begin; /* ring only: first byte of the tensor */
    char *at;       /* address; NULL for a ring */
};

/* A wait that must be enqueued, because the order of instructions in a stream does not already ensure it. */
struct bound_wait {
    /* Index of the instruction to wait for, in the same program. */
    uint32_t instr;
    uint32_t distance; /* runs back: 0 is the same run */
};

/* One instruction, ready to be enqueued. */
struct bound_instr {
    enum instr_kind kind;
    uint32_t stream;
    uint32_t step;             /* index into the run's step_args */
    const struct layer *layer; /* NULL for DECIDE, moves and DROP */
    /* Only for FWD, REC and BWD: the first row of the micro-batch, counted from the start of the batch. */
    uint32_t first_row;
    bool accumulate; /* BWD: add to dW, do not overwrite */
    /* Only for UPD: true if every part of K is an operand of its own, with its own role. */
    bool split;
    /* Only for UPD: the byte ranges to update, one for each stretch with the same weight decay. Offsets count
     * from the first byte of the share. */
    struct optimizer_range *ranges;
    uint32_t n_ranges;
    /* Number of bytes that a move transfers or a DROP drops. For RED, NORM and UPD, the number of bytes of
     * dW, or of the share of dW. */
    uint64_t bytes;
    uint32_t operand, n_operands;
    uint32_t wait, n_waits;
    /* The events that this instruction records, in rotation: run r records event number event + r % n_events.
     * n_events is 0 if no other stream waits for the instruction. */
    uint32_t event, n_events;
};

/* A bound program. The executor has one for each of the plan's five programs. */
struct bound_program {
    struct bound_instr *instrs;
    struct bound_operand *operands;
    struct bound_wait *waits;
    uint32_t *streams; /* the streams that have instructions, ascending */
    uint32_t n_instrs, n_operands, n_waits, n_streams;
    uint32_t n_events; /* events that the executor creates */
    /* True if a run of the program needs step_args, because the program has tasks or operands with `ring`. */
    bool needs_args;
};

/* Binds one program of the plan: resolves everything that is the same in every run. The arrays of *ret are
 * allocated from `arena`. Returns -EINVAL if the plan was made for another model or optimizer. */
int bind_program(const struct exec_config *config, enum program_kind kind, struct arena *arena,
                 struct bound_program *ret, struct err *err);

#endif
