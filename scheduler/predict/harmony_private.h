/* Declarations that two files share. harmony_tasks.c makes the tasks of a schedule, and harmony_rules.c
 * converts the tasks into operations on the timeline. */
#ifndef SCHEDULER_PREDICT_HARMONY_PRIVATE_H
#define SCHEDULER_PREDICT_HARMONY_PRIVATE_H

#include <stdbool.h>

#include "scheduler/predict/harmony_rules.h"

struct arena;

#define NO_OP UINT32_MAX /* no operation, or no task */

enum task_kind {
    TASK_FWD, /* a forward pack */
    /* The last backward pack, which also does its own forward pass. */
    TASK_LOSS,
    TASK_BWD, /* any other backward pack */
};

/* A part of a forward task. A forward pack is cut wherever a backward pack starts, because the input there is
 * stashed. */
struct rules_part {
    uint32_t first, last; /* layers */
    /* The backward task that needs the part's input again, or NO_OP. */
    uint32_t taker;
};

/* The forward or backward pass of one pack, for all micro-batches. rules_make_tasks sets the first fields,
 * and harmony_rules.c sets the operations. */
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
    /* The forward task that stashed the input, or NULL. */
    struct rules_task *source;
    /* TASK_BWD only: the part of `source` that stashed the input. */
    uint32_t source_part;

    /* Numbers of operations, or NO_OP. Arrays have one element per micro-batch. In a forward task, `fwd` and
     * `stash` have one per micro-batch and part. */
    uint32_t w; /* fetch of the weights */
    /* Fetch of the input, or of the stash. */
    uint32_t *x;
    uint32_t *dy;    /* TASK_BWD only: fetch of the output gradient. */
    uint32_t *fwd;   /* forward pass, or repeated forward pass */
    uint32_t *bwd;   /* backward pass */
    uint32_t *stash; /* spill of the stash */
    /* Transfer of the stash to the taker, the task that needs it. Indexed by micro-batch of the taker and by
     * part. */
    uint32_t *handed;
    /* Spill or send of the output. In a backward task, spill or send of the input gradient. */
    uint32_t *y;
    /* Transfer of the output to the process of the next task. */
    uint32_t *y_handed;
    uint32_t reduce; /* sum of the gradients over all devices */
    uint32_t dw;     /* spill of the gradients */
    uint32_t end;    /* end of the task, on compute */
    uint32_t update; /* update on the cpu stream */
};

/* The tasks of one iteration, in the form in which they are simulated. */
struct rules_tasks {
    const struct rules_schedule *schedule;
    const struct table *table;
    bool pipeline; /* pipeline form with more than one device */
    /* Whether the last forward output goes through the host because the micro-batch sizes differ. */
    bool last_by_host;
    /* Number of simulated devices. Without a pipeline, one simulated device stands for all devices. */
    uint32_t n_devices;
    /* Number of devices that have work and share the links. */
    uint32_t n_busy;
    struct rules_task *at; /* the tasks: first forward, then backward */
    uint32_t n;
    uint32_t n_fwd; /* number of forward tasks */
};

/* Makes the tasks of a schedule that rules_check has accepted. All memory is allocated from `a`. */
void rules_make_tasks(const struct rules_schedule *s, const struct table *t, struct arena *a,
                      struct rules_tasks *ret);

/* Returns the forward micro-batch that contains the last sample of a backward micro-batch. */
uint32_t rules_forward_micro(const struct rules_tasks *g, uint32_t backward_micro);

#endif
