/* Declarations shared by harmony_tasks.c, which makes the tasks of a schedule, and harmony_rules.c, which
 * turns the tasks into operations on the timeline. */
#ifndef SCHEDULER_PREDICT_HARMONY_PRIVATE_H
#define SCHEDULER_PREDICT_HARMONY_PRIVATE_H

#include <stdbool.h>

#include "scheduler/predict/harmony_rules.h"

struct arena;

#define NO_OP UINT32_MAX /* no operation, or no task */

enum task_kind {
    TASK_FWD,  /* a forward pack */
    TASK_LOSS, /* the last backward pack, which does its own forward pass */
    TASK_BWD,  /* any other backward pack */
};

/* A part of a forward task. A forward pack is cut before each layer where a backward pack starts, because the
 * input of that layer is stashed there. */
struct rules_part {
    uint32_t first, last; /* layers */
    uint32_t taker;       /* backward task that needs the part's input again, or NO_OP */
};

/* One pack's forward or backward pass, for all micro-batches. rules_make_tasks fills the first fields, and
 * harmony_rules.c the operations. */
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
    struct rules_task *source; /* forward task that stashed the input, or NULL */
    uint32_t source_part;      /* in a TASK_BWD: part of that forward task */

    /* Numbers of operations, or NO_OP. Arrays have one element per micro-batch. fwd and stash of a forward
     * task have one element per micro-batch and part. */
    uint32_t w;      /* fetch of the weights */
    uint32_t *x;     /* fetch of the input, or of the stash */
    uint32_t *dy;    /* in a TASK_BWD: fetch of the output gradient */
    uint32_t *fwd;   /* forward pass, or repeated forward pass */
    uint32_t *bwd;   /* backward pass */
    uint32_t *stash; /* spill of the stash */
    /* Transfer of the stash to the taker's process, indexed by the taker's micro-batch and part. */
    uint32_t *handed;
    uint32_t *y;        /* spill or send of the output, or of the input gradient in a backward task */
    uint32_t *y_handed; /* transfer of the output to the next task's process */
    uint32_t reduce;    /* sum of the gradients over all devices */
    uint32_t dw;        /* spill of the gradients */
    uint32_t end;       /* end of the task, on compute */
    uint32_t update;    /* update on the cpu stream */
};

/* The tasks of one iteration, as they are simulated. */
struct rules_tasks {
    const struct rules_schedule *schedule;
    const struct table *table;
    bool pipeline;         /* pipeline form with more than one device */
    bool last_by_host;     /* the last forward output goes through the host, as micro-batch sizes differ */
    uint32_t n_devices;    /* number of simulated devices; without a pipeline, one stands for all */
    uint32_t n_busy;       /* devices that have work and share the links */
    struct rules_task *at; /* the tasks: first forward, then backward */
    uint32_t n;
    uint32_t n_fwd; /* number of forward tasks */
};

/* Makes the tasks of a schedule that rules_check has accepted. All memory is in `a`. */
void rules_make_tasks(const struct rules_schedule *s, const struct table *t, struct arena *a,
                      struct rules_tasks *ret);

/* Returns the forward micro-batch that contains the last sample of a backward micro-batch. */
uint32_t rules_forward_micro(const struct rules_tasks *g, uint32_t backward_micro);

#endif
