/* What harmony_tasks.c (which tasks there are, and where) and harmony_rules.c (what they do, and after what) share. */
#ifndef SCHEDULER_PREDICT_HARMONY_PRIVATE_H
#define SCHEDULER_PREDICT_HARMONY_PRIVATE_H

#include <stdbool.h>

#include "scheduler/predict/harmony_rules.h"

struct arena;

#define NO_OP UINT32_MAX

enum task_kind {
    TASK_FWD,
    TASK_LOSS, /* the last backward pack, with its own forward */
    TASK_BWD,
};

/* A forward is done in parts, each of which begins where the input is stashed for a backward pack (the first begins
 * the pack in any case). */
struct part {
    uint32_t first, last; /* layers */
    uint32_t taker;       /* the backward task that needs the input again; NO_OP: none */
};

struct task {
    enum task_kind kind;
    uint32_t first, last; /* layers */
    uint32_t device;
    uint32_t micro, n_micro;   /* samples of a micro-batch; how many */
    struct task *left, *left2; /* the one before on the same device, and before that; or NULL */
    struct part *parts;        /* of TASK_FWD */
    uint32_t n_parts;
    struct task *source; /* of TASK_BWD: the forward that stashed its input */
    uint32_t source_part;
    /* Operations; NO_OP: there is none. Arrays are by micro-batch, and of these by part. */
    uint32_t w;             /* weights in */
    uint32_t *x;            /* input in; of TASK_BWD: the stash */
    uint32_t *dy;           /* of TASK_BWD: gradient of the output in */
    uint32_t *fwd, *bwd;    /* compute; fwd of a backward task: the forward again */
    uint32_t *stash;        /* out */
    uint32_t *handed;       /* stash in the hands of the process that takes it; by the taker's micro-batch */
    uint32_t *y, *y_handed; /* output or, of a backward task, gradient of the input, out */
    uint32_t reduce, dw, end, update;
};

/* One iteration, as it is simulated: of the data-parallel form (and of a pipeline of one device) one device. */
struct tasks {
    const struct rules_schedule *schedule;
    const struct table *table;
    bool pipeline;
    bool
        last_by_host; /* pipeline with different micro-batches: the last forward's output goes through the host */
    uint32_t n_devices; /* simulated */
    uint32_t n_busy;    /* devices that have work: among these links are shared */
    struct task *at;    /* in the order of the chain */
    uint32_t n;
    uint32_t n_fwd;
};

/* The schedule must have been checked. */
void rules_make_tasks(const struct rules_schedule *s, const struct table *t, struct arena *a,
                      struct tasks *ret);

/* The forward micro-batch with which the last sample of a backward micro-batch comes. */
uint32_t rules_forward_micro(const struct tasks *g, uint32_t backward_micro);

#endif
