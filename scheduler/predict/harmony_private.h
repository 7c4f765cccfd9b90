/* Declarations shared by harmony_tasks.c, which makes the tasks of a schedule, and harmony_rules.c, which
 * turns the tasks into operations on the timeline. */
#ifndef SCHEDULER_PREDICT_HARMONY_PRIVATE_H
#define SCHEDULER_PREDICT_HARMONY_PRIVATE_H

#include <stdbool.h>

#include "scheduler/predict/harmony_rules.h"

struct arena;

#define NO_OP UINT32_MAX /* no operation, or no task */

enum task_kind {
    TASK_FWD, /* a forward pack */
    /* The last backward pack, which contains the loss and also runs its own forward pass. */
    TASK_LOSS,
    TASK_BWD, /* any other backward pack */
};

/* One part of a forward task. The task is cut at the layers where a backward pack starts, because their
 * inputs must be saved. */
struct rules_part {
    uint32_t first, last; /* layers */
    /* Number of the backward task that needs the input of this part again, or NO_OP if none does. */
    uint32_t taker;
};

/* The forward or backward pass of one pack of layers, for all micro-batches. rules_make_tasks sets the fields
 * from `kind` to `source_part`. harmony_rules.c sets the other fields. */
struct rules_task {
    enum task_kind kind;
    uint32_t first, last; /* layers */
    uint32_t device;
    uint32_t micro;           /* samples of a micro-batch */
    uint32_t n_micro;         /* number of micro-batches */
    struct rules_task *left;  /* previous task on this device, or NULL */
    struct rules_task *left2; /* the task before `left`, or NULL */
    struct rules_part *parts; /* TASK_FWD only */
    uint32_t n_parts;
    /* The forward task that saved the input of this backward task. NULL if there is none. */
    struct rules_task *source;
    /* Only for TASK_BWD: index of the part in source->parts whose input was saved for this task. */
    uint32_t source_part;

    /* The fields from here on are indices of operations, or NO_OP. Most arrays have one element for each
     * micro-batch, and `fwd` and `stash` may have several. */
    uint32_t w; /* fetch of the weights */
    /* Fetch of the task's input. A backward task fetches the input that a forward task saved. */
    uint32_t *x;
    uint32_t *dy;    /* TASK_BWD only: fetch of the output gradient. */
    uint32_t *fwd;   /* forward pass, or repeated forward pass */
    uint32_t *bwd;   /* backward pass */
    uint32_t *stash; /* spill of the stash */
    /* Transfers of saved inputs to the backward tasks that need them. One element for each part of each
     * backward micro-batch. */
    uint32_t *handed;
    /* The spill or the send that moves the task's result off the device. The result of a backward task is the
     * gradient of the task's input. */
    uint32_t *y;
    /* Transfer of the task's result to the process that runs the next task. */
    uint32_t *y_handed;
    uint32_t reduce; /* sum of the gradients over all devices */
    uint32_t dw;     /* spill of the gradients */
    uint32_t end;    /* end of the task, on compute */
    uint32_t update; /* update on the cpu stream */
};

/* All tasks of one training iteration, and the facts about the schedule that the simulation needs. */
struct rules_tasks {
    const struct rules_schedule *schedule;
    const struct table *table;
    bool pipeline; /* pipeline form with more than one device */
    /* Whether the output of the last forward pack goes through the host. This is necessary if forward and
     * backward micro-batches have different sizes. */
    bool last_by_host;
    /* Number of simulated devices. In the data-parallel form, all devices do the same, so only one device is
     * simulated. */
    uint32_t n_devices;
    /* Number of devices that have any task. Only these devices share the bandwidth of the links. */
    uint32_t n_busy;
    struct rules_task *at; /* the tasks: first forward, then backward */
    uint32_t n;
    uint32_t n_fwd; /* number of forward tasks */
};

/* Makes the tasks of schedule `s`, which must have passed rules_check. The tasks are allocated from arena
 * `a`. */
void rules_make_tasks(const struct rules_schedule *s, const struct table *t, struct arena *a,
                      struct rules_tasks *ret);

/* Returns the forward micro-batch that contains the last sample of backward micro-batch `backward_micro`. */
uint32_t rules_forward_micro(const struct rules_tasks *g, uint32_t backward_micro);

#endif
