/* What the two files of the bound on time share: time_bound_work.c lists the work of a step, and time_bound.c
 * computes the bound. Nothing else includes this header. */
#ifndef SCHEDULER_PREDICT_TIME_BOUND_PRIVATE_H
#define SCHEDULER_PREDICT_TIME_BOUND_PRIVATE_H

#include "scheduler/predict/time_bound.h"

static inline double work_least(double a, double b)
{
    return a < b ? a : b;
}

static inline double work_most(double a, double b)
{
    return a > b ? a : b;
}

/* A task that may run on a device or on the host, and its duration in nanoseconds on either. */
struct either_ns {
    double device, host;
};

/* The work of one layer in a training step, of all its micro-batches together. Layers in a row with the same
 * work are one struct with `count` > 1. Layers about which nothing is proved but their tasks have 0 in all
 * fields in bytes. */
struct layer_work {
    double count;
    bool trained;                /* W is updated once per step */
    double w, dw, k;             /* bytes */
    double waiting;              /* bytes of dW that wait for a decision at the end of the backward pass */
    double upd_traffic;          /* bytes that an update on the host reads and writes */
    struct either_ns upd, other; /* UPD; RED and NORM */
    double pass_ns;              /* all tasks that use W */
    double fwd_ns;               /* all forward tasks: the cost of computing S and Y again */
    double s, y; /* bytes of S and of the output Y that a backward task still reads after the turn */
    /* Shortest time that a byte of S, or of Y, has to wait between the forward task and the backward task
     * that use it. */
    double s_wait_ns, y_wait_ns;
};

/* The work of one training step, and the resources that it has. Rates are per nanosecond. A rate of 0 means
 * that the resource is not limited, or that nothing is proved about it. */
struct step_work {
    struct layer_work *layers;
    uint32_t n_layers;
    double per_ns[TIME_BOUND_SHARED];
    double device_cores, host_cores, copy_cores; /* cores in use: per task; per task; ns per byte */
    struct either_ns decide;
    double data_in, data_out; /* bytes of inputs and targets, and of results */
    double in_use_byte_ns;    /* memory of running tasks, without W: bytes times their duration */
    /* Number of turns: backward tasks of the loss. 0 if nothing is proved about state and stash. */
    double turns;
    double turn_room, end_room; /* memory of all devices besides the task at a turn, and at the end */
    double chain_ns;            /* the longest chain of tasks in a step */
};

/* Lists the work of a step. The caller frees the list with work_finish. */
void work_list(const struct graph *g, const struct machine *m, const struct profile *prof,
               struct step_work *ret);

/* Frees the array in `w`. */
void work_finish(struct step_work *w);

#endif
