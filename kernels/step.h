/* What changes from step to step. The program of a plan does not change; the interpreter passes one of these
 * to every launch. Plain data: it may be copied to a device as it is. */
#ifndef KERNELS_STEP_H
#define KERNELS_STEP_H

#include <stdint.h>

struct step_args {
    uint64_t step;       /* 0-based number of the training step */
    uint64_t seed;       /* of dropout */
    float lr;            /* learning rate of this step */
    float bias_correct1; /* AdamW: 1 / (1 - beta1^t), t = step + 1; computed on the host in double */
    float bias_correct2; /* AdamW: 1 / (1 - beta2^t) */
    float grad_scale;    /* multiplies the loss gradient of a row: 1 / valid targets of the batch */
    uint32_t valid_rows; /* rows of the global batch that count; the rest is padding (evaluation) */
    uint32_t training;   /* 0: dropout is the identity */
};

/* What the loss layer returns per micro-batch (RESULT tensor). Sums over the valid rows, in row order. */
struct step_result {
    double loss;    /* sum of the rows' losses */
    double correct; /* rows whose largest output is the target (classification); 0 for regression */
};

/* The one decision that every predicated update waits for (DECISION tensor). Made on the host. */
struct step_decision {
    double sumsq; /* squared global norm: layers added in ascending id */
    union {
        float scale;        /* what gradients are multiplied with before the update (clipping); 1 when not clipped */
        uint32_t bad_layer; /* apply is 0: the last layer whose gradient is not finite; STEP_NO_LAYER: only the sum is not */
    };
    uint32_t apply; /* 0: a gradient is not finite, updates leave W and K as they are */
};
#define STEP_NO_LAYER UINT32_MAX

#endif
