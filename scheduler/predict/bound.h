/* Lower bounds on the bytes that cross the host link in one run of the cycle.
 *
 * No plan moves fewer bytes than the bound, whatever its order, packs and retention. Reports show the bound
 * beside the bytes of every plan, so that one sees how far the plan is from the optimum. docs/bound.md has
 * the statement and its proof; bound.c has a summary of the argument.
 *
 * There are two bounds. struct bound_sizes is for a chain whose cycle is one training step. struct
 * bound_cycle is for every other plan: blocks with losses of their own, and cycles of several steps.
 *
 * The bound covers state and stash. State is W, dW and K. Stash is what the forward pass leaves for the
 * backward pass; its amount depends on how much a plan recomputes, so it is taken from the plan in question.
 */
#ifndef SCHEDULER_PREDICT_BOUND_H
#define SCHEDULER_PREDICT_BOUND_H

#include "scheduler/plan.h"

/* Total sizes of those layers that have the same proportions of weights W, gradient dW, optimizer state K and
 * `waiting`. */
struct bound_state {
    uint64_t w, dw, k; /* bytes */
    /* Bytes of dW that still wait for the decision when the backward pass ends. */
    uint64_t waiting;
    bool passed; /* the layers come after the turn layer */
};

/* The sizes of a plan that determine its lower bound: sizes at two moments of a training step, the turn and
 * the end. */
struct bound_sizes {
    struct bound_state *states;
    uint32_t n_states;
    /* Bytes of activations that are written before the turn and read after it. The turn is the first backward
     * task of a chosen layer. */
    uint64_t stash;
    /* Bytes of device memory that are free at the turn: the memory of all devices together, minus the
     * operands of the task that runs at the turn. */
    uint64_t turn_free_bytes;
    /* Bytes of device memory that are free at the end, during the last backward task of the first layer with
     * weights. */
    uint64_t end_free_bytes;
};

/* How many bytes of weights, gradients and optimizer state a training step moves: from the host to the
 * devices, from the devices to the host, and both together. */
struct bound_way {
    uint64_t in, out, total;
};

/* Lower bounds on the number of bytes that a training step moves between host and devices. */
struct bound {
    /* Lower bound for weights, gradients and optimizer state, if the host updates all weights. */
    struct bound_way host;
    /* Lower bound for weights, gradients and optimizer state, if the devices update all weights. */
    struct bound_way device;
    /* Lower bound for weights, gradients, optimizer state and activations. Each layer is updated on the host
     * or on the devices, wherever the update moves fewer bytes. */
    uint64_t bytes;
};

/* Computes the lower bounds for given sizes. */
void bound_compute(const struct bound_sizes *s, struct bound *ret);

/* Collects the sizes that determine the bound of a plan whose cycle has one step. Returns false if there is
 * no bound. The caller frees *ret with bound_sizes_finish. */
bool bound_sizes_of(const struct plan *p, uint32_t turn_layer, struct bound_sizes *ret);

/* Frees the array in `s`. */
void bound_sizes_finish(struct bound_sizes *s);

/* Returns a layer that is likely to give a large bound as the `turn_layer` of bound_sizes_of. */
uint32_t bound_turn_layer(const struct plan *p);

/* The sizes of a plan that determine the bound on one run of a cycle of `steps` training steps. Example:
 * there are 4 blocks with 300 kB of W and K each, and the device has 500 kB. At the chosen moment, a task
 * needs 20 kB beside W and K. Then free_bytes is 480 kB. */
struct bound_cycle {
    uint32_t steps;
    struct bound_state *states; /* uses the members w, dw and k */
    uint32_t n_states;
    /* Bytes of device memory that are free for W and K at the chosen moment: the memory of all devices
     * together, minus the other operands of the task that runs then, and minus the activations that are
     * written before this moment and read after it. Negative if the activations alone do not fit. */
    int64_t free_bytes;
};

/* Returns a lower bound on the bytes that one run of the cycle moves between host and devices. */
uint64_t bound_cycle_compute(const struct bound_cycle *s);

/* Collects the sizes that determine the bound on one run of the cycle of any plan. Returns false if there is
 * no bound. The caller frees *ret with bound_cycle_finish. */
bool bound_cycle_of(const struct plan *p, struct bound_cycle *ret);

/* Frees the array in `s`. */
void bound_cycle_finish(struct bound_cycle *s);

/* Returns a lower bound on the bytes that one run of the cycle moves between host and devices, or 0 if there
 * is no bound. */
uint64_t bound_bytes(const struct plan *p);

#endif
