/* Declarations shared by time_bound_work.c, which lists the work of a training step, and time_bound.c, which
 * computes a lower bound on the time of the step. */
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

/* The duration in nanoseconds of a task that may run on a device or on the host. */
struct either_ns {
    double device, host;
};

/* The work of one layer in a training step, or of each of `count` equal layers. A field in bytes is 0 if
 * nothing is proved about these bytes. */
struct layer_work {
    double count; /* number of layers */
    bool trained; /* W is updated once per step */
    /* Bytes of the weights W, of their gradient dW, and of the optimizer state K. */
    double w, dw, k;
    /* Bytes of dW that still wait for a decision when the backward pass ends. */
    double waiting;
    /* Bytes of host memory that an update on the host reads and writes. */
    double upd_traffic;
    struct either_ns upd, other; /* UPD; RED and NORM */
    double pass_ns;              /* duration of all tasks that use W */
    /* Duration of all forward tasks. This is also the time to compute S and Y again. */
    double fwd_ns;
    /* Bytes of saved values S, and of the output Y, that backward tasks still need after the backward task of
     * the loss. */
    double s, y;
    /* Shortest time from the forward task that writes S (or Y) to the backward task that reads S (or Y). */
    double s_wait_ns, y_wait_ns;
};

/* The work of one training step, and what the machine offers for it. */
struct step_work {
    struct layer_work *layers;
    uint32_t n_layers;
    /* per_ns[r] is how much of resource r the machine offers in a nanosecond. 0 means that the resource is
     * not limited, or that nothing is proved about it. */
    double per_ns[TIME_BOUND_SHARED];
    double device_cores, host_cores; /* cores that a task uses */
    /* Time that a move occupies a core, in nanoseconds for each byte. */
    double copy_cores;
    struct either_ns decide;
    double data_in;  /* bytes of inputs and targets */
    double data_out; /* bytes of results */
    /* Memory of running tasks, without W: the sum over all tasks of bytes times nanoseconds. */
    double in_use_byte_ns;
    /* Number of backward tasks of the loss. Each of them is a moment called a turn. 0 if nothing is proved
     * about weights, optimizer state and activations. */
    double turns;
    /* Free memory of all devices together while a backward task of the loss runs (a turn), and while the last
     * backward task of the first layer runs (the end). */
    double turn_free_bytes, end_free_bytes;
    /* Duration of the longest chain of tasks in a step, in which each task needs the one before. */
    double chain_ns;
};

/* Lists the work of a step. The caller frees the list with work_finish. */
void work_list(const struct graph *g, const struct machine *m, const struct profile *prof,
               struct step_work *ret);

/* Frees the array in `w`. */
void work_finish(struct step_work *w);

#endif
