/* Small structs with the values of one training step: its arguments, its result, its decision, and the group
 * state, which is kept from step to step. The structs contain no pointers, so a plan can copy them between
 * host and device. */
#ifndef KERNELS_STEP_H
#define KERNELS_STEP_H

#include <stdbool.h>
#include <stdint.h>

/* The values of a training step that are known when the step is enqueued. Every launch gets these values.
 * They must not depend on the results of earlier steps, which may still be running. Values that do depend on
 * earlier steps belong in struct group_state. */
struct step_args {
    uint64_t step; /* number of the step, starting at 0 */
    uint64_t seed; /* seed of dropout */
    /* The learning rate of this step, from the job's schedule. A step whose update is skipped counts as a
     * step of the schedule too. */
    float lr;
    /* The gradient of each row's loss is multiplied by this factor, which is 1 / (number of valid targets in
     * the global batch). */
    float grad_scale;
    /* The number of real samples in the global batch. In an evaluation, the rows after the real samples may
     * be padding. */
    uint32_t valid_rows;
    uint32_t training; /* 0 turns dropout off */
};

/* The result of the loss layer for one micro-batch. Each field is a sum over the valid rows, in the order of
 * the rows. */
struct step_result {
    double loss; /* sum of the losses of the rows */
    /* For a classification, the number of rows whose largest output is the output of the right class. For a
     * regression, 0. */
    double correct;
};

/* Tells whether the update of a step is applied. If the job clips gradients or skips steps, the task DECIDE
 * writes this struct, and the trainer reads it after the step. Updates read the copy of `apply` in struct
 * group_state instead. */
struct step_decision {
    /* The squared norm of the whole gradient. The squared norms of the layers are added in ascending order
     * of layer ids, so the bits are always the same. */
    double sumsq;
    /* Set if `apply` is 0: the id of the last layer whose gradient is not finite. If all gradients are finite
     * and only the sum of their squares overflows, the field is STEP_NO_LAYER. */
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
 * stores.
 *
 * If losses are scaled (fp16), the loss of step s is multiplied by the loss scale after the decision of step
 * s - 1. If an element of the gradient overflows, the decision skips the step and halves the loss scale.
 * Without loss scaling, the tensor ends before the field `loss_scale`. */
struct group_state {
    uint64_t t;          /* number of updates made so far */
    float bias_correct1; /* AdamW: 1 / (1 - beta1^t) */
    float bias_correct2; /* AdamW: 1 / (1 - beta2^t) */
    /* The factor by which this step's gradients are multiplied before the update. The factor is 1 if the
     * gradients are neither clipped nor scaled. If they are scaled, it undoes the loss scale. */
    float scale;
    /* This flag is 0 if this step is skipped, and 1 otherwise. If it is 0, the updates leave weights and
     * optimizer state unchanged. */
    uint32_t apply;
    float loss_scale;    /* the factor for the losses of the next step */
    uint32_t good_steps; /* steps without an overflow since the loss scale has last changed */
};

/* The settings of the loss scale, from the job. */
struct loss_scaling {
    float start; /* the loss scale of the first step, such as 65536 */
    /* The loss scale is doubled after this number of steps without an overflow. If the number is 0, losses
     * are not scaled. */
    uint32_t growth_steps;
};

#ifndef STEP_INLINE
#define STEP_INLINE static inline /* kernels/cuda/ has another definition for devices */
#endif

/* The largest loss scale. Doubling stops there, so that the scale stays finite even if all gradients are 0.
 * */
#define LOSS_SCALE_MOST 0x1p32f

/* Changes a loss scale after one step. The op `decide` of every backend does it with this function, and the
 * trainer follows it from the decisions. `growth_steps` is as in struct loss_scaling. `finite` says whether
 * the gradient of the step was finite. *good_steps is the number of such steps in a row since the last
 * change. */
STEP_INLINE void loss_scale_change(uint32_t growth_steps, bool finite, float *scale, uint32_t *good_steps)
{
    *good_steps = finite ? *good_steps + 1 : 0;
    if (!finite) {
        *scale *= 0.5f;
    } else if (*good_steps >= growth_steps) {
        *scale = *scale < LOSS_SCALE_MOST / 2 ? *scale * 2.0f : LOSS_SCALE_MOST;
        *good_steps = 0;
    }
}

#endif
