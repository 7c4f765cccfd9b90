/* The small structs that carry values of one training step: what the interpreter passes to every launch
 * (step_args), what the loss returns (step_result), what was decided about the step (step_decision), and the state
 * that survives the step and changes with that decision (group_state). All are plain data, so that a plan can copy
 * them between host and device as they are. */
#ifndef KERNELS_STEP_H
#define KERNELS_STEP_H

#include <stdint.h>

/* What is known about a step when it is enqueued. The program of a plan is the same for every step; the interpreter
 * passes one of these to every launch. Nothing here may depend on the result of an earlier step, because several steps
 * are under way at a time: such values belong in struct group_state. */
struct step_args {
    uint64_t step;       /* 0-based number of the training step */
    uint64_t seed;       /* of dropout */
    float lr;            /* learning rate; the schedule goes by the step number, skipped steps included */
    float grad_scale;    /* multiplies the loss gradient of a row: 1 / valid targets of the batch */
    uint32_t valid_rows; /* rows of the global batch that count; the rest is padding (evaluation) */
    uint32_t training;   /* 0: dropout is the identity */
};

/* What the loss layer returns per micro-batch (RESULT tensor). Sums over the valid rows, in row order. */
struct step_result {
    double loss;    /* sum of the rows' losses */
    double correct; /* rows whose largest output is the target (classification); 0 for regression */
};

/* What was decided about a step, for the trainer (DECISION tensor). DECIDE writes one for each step of a job that clips
 * gradients or skips steps; the trainer reads it when the step is complete. Updates do not read it: what they need is
 * in struct group_state. */
struct step_decision {
    double sumsq; /* squared global norm: layers added in ascending id */
    uint32_t
        bad_layer; /* apply is 0: the last layer whose gradient is not finite; STEP_NO_LAYER: only the sum is not */
    uint32_t apply; /* 0: a gradient is not finite, the step is skipped */
};
#define STEP_NO_LAYER UINT32_MAX

/* The state that one decision changes (GROUP tensor): one for each decision group, that is, for the layers whose updates
 * one DECIDE covers. Backpropagation has a single group.
 *
 * It is persistent, like weights and optimizer state, and its home is the host. DECIDE of step s turns the value of step
 * s - 1 into that of step s, and every UPD of step s reads that value, from the host or from a copy that the plan
 * fetched. A skipped step sets apply to 0 and leaves t and the bias corrections as they are. For example, with step 3
 * skipped (steps from 1), t after steps 1 to 5 is 1, 2, 2, 3, 4.
 *
 * optimizer_group_parts (kernels/layer.h) lists the fields by name and says which of them a checkpoint keeps. */
struct group_state {
    uint64_t t;          /* updates made so far: the steps that were not skipped */
    float bias_correct1; /* AdamW: 1 / (1 - beta1^t) */
    float bias_correct2; /* AdamW: 1 / (1 - beta2^t) */
    float scale;    /* of this step: gradients are multiplied by it before the update; 1 when not clipped */
    uint32_t apply; /* of this step: 0 when it is skipped, so that updates leave W and K as they are */
};

#endif
