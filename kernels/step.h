/* Small structs that carry the values of one training step: the arguments of every launch (step_args), the
 * result of the loss (step_result), the decision about the step (step_decision), and the state that
 * outlives the step and changes with that decision (group_state). All are plain data, so that a plan can
 * copy them between host and device byte by byte.
 */
#ifndef KERNELS_STEP_H
#define KERNELS_STEP_H

#include <stdint.h>

/* What is known about a step when it is enqueued. The program of a plan is the same for every step; the
 * executor passes the step_args of the current step to every launch. No field may depend on the result of
 * an earlier step, because several steps are in flight at a time. A value that does depend on earlier
 * results belongs in struct group_state. */
struct step_args {
    uint64_t step; /* number of the training step, from 0 */
    uint64_t seed; /* seed of dropout */
    /* Learning rate of this step. The schedule counts skipped steps too. */
    float lr;
    /* Factor of the loss gradient of each row: 1 / number of valid targets in the batch. */
    float grad_scale;
    /* Number of rows of the global batch that count. The rest is padding, which occurs in evaluation. */
    uint32_t valid_rows;
    uint32_t training; /* 0: dropout does nothing */
};

/* The result of the loss layer for one micro-batch (RESULT tensor): sums over the valid rows, in row
 * order. */
struct step_result {
    double loss; /* sum of the losses of the rows */
    /* Classification: number of rows whose largest output is the target. Regression: 0. */
    double correct;
};

/* The decision about a step, for the trainer (DECISION tensor). DECIDE writes one for each step of a job
 * that clips gradients or skips steps. The trainer reads it when the step is complete. Updates do not read
 * it; the values that they need are in struct group_state. */
struct step_decision {
    /* Squared global norm of the gradient. The sums of the layers are added in ascending id. */
    double sumsq;
    /* If apply is 0: the last layer whose gradient is not finite, or STEP_NO_LAYER if every layer's sum is
     * finite and only the total is not. */
    uint32_t bad_layer;
    uint32_t apply; /* 0: the step is skipped */
};
#define STEP_NO_LAYER UINT32_MAX

/* The state that one decision changes (GROUP tensor). Each decision group has one: the layers whose
 * updates one DECIDE task covers. Backpropagation has a single group.
 *
 * The state is persistent, like weights and optimizer state, and its home is the host. DECIDE of step s
 * turns the value of step s - 1 into the value of step s. Every UPD of step s reads the new value, from
 * the host or from a copy that the plan fetched. A skipped step sets apply to 0 and leaves t and the bias
 * corrections alone. For example, if step 3 is skipped (steps counted from 1), t after steps 1 to 5 is 1,
 * 2, 2, 3, 4.
 *
 * optimizer_group_parts (kernels/layer.h) lists the fields by name and says which of them a checkpoint
 * stores. */
struct group_state {
    uint64_t t;          /* number of updates made so far */
    float bias_correct1; /* AdamW: 1 / (1 - beta1^t) */
    float bias_correct2; /* AdamW: 1 / (1 - beta2^t) */
    /* Factor of this step's gradients before the update. 1 if they are not clipped. */
    float scale;
    /* 0 if this step is skipped. Updates then leave W and K alone. */
    uint32_t apply;
};

#endif
