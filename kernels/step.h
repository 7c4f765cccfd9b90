/* Small structs with the values of one training step: arguments, result, decision, and the state that
 * outlives the step. They are plain data, so a plan can copy them between host and device. */
#ifndef KERNELS_STEP_H
#define KERNELS_STEP_H

#include <stdint.h>

/* The values of a step that are known when it is enqueued. Every launch gets them. They must not depend on
 * results of earlier steps, because several steps run at a time. Such values belong in struct group_state. */
struct step_args {
    uint64_t step; /* number of the step, starting at 0 */
    uint64_t seed; /* seed of dropout */
    /* Learning rate of this step. Skipped steps count as steps in the learning-rate schedule. */
    float lr;
    /* The factor for each row's loss gradient: 1 / number of valid targets in the batch. */
    float grad_scale;
    /* Number of rows in the global batch that count. In evaluation, the remaining rows may be padding. */
    uint32_t valid_rows;
    uint32_t training; /* 0 turns dropout off */
};

/* The result of the loss layer for one micro-batch: sums over the valid rows, in row order. */
struct step_result {
    double loss; /* sum of the losses of the rows */
    /* Classification: number of rows whose largest output is at the target class. Regression: 0. */
    double correct;
};

/* The decision about a step. DECIDE writes it if the job clips gradients or skips steps. The trainer reads
 * it when the step is complete. Updates read struct group_state instead. */
struct step_decision {
    /* Squared global norm of the gradient. The layers' sums are added in ascending order of their ids. */
    double sumsq;
    /* If `apply` is 0: the last layer whose gradient is not finite. STEP_NO_LAYER if only the total is not
     * finite. */
    uint32_t bad_layer;
    uint32_t apply; /* 0 if the step is skipped */
};
#define STEP_NO_LAYER UINT32_MAX

/* The state that a decision changes (GROUP tensor). There is one for each decision group. A group contains
 * the layers whose updates one DECIDE task covers. Backpropagation has a single group.
 *
 * The state is persistent, like weights and optimizer state, and its home is the host. DECIDE of step s
 * turns the value of step s - 1 into the value of step s. Every UPD of step s reads the new value, from
 * the host or from a copy that the plan fetched. A skipped step sets apply to 0 and does not change t and
 * the bias corrections. For example, if step 3 is skipped (steps counted from 1), t after steps 1 to 5 is
 * 1, 2, 2, 3, 4.
 *
 * optimizer_group_parts (kernels/layer.h) lists the fields by name and says which of them a checkpoint
 * stores. */
struct group_state {
    uint64_t t;          /* number of updates made so far */
    float bias_correct1; /* AdamW: 1 / (1 - beta1^t) */
    float bias_correct2; /* AdamW: 1 / (1 - beta2^t) */
    /* This step's gradients are multiplied by this factor before the update. 1 if they are not clipped. */
    float scale;
    /* 0 if this step is skipped. Updates then leave weights and optimizer state unchanged. */
    uint32_t apply;
};

#endif
