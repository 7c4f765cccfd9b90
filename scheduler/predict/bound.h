/* Lower bounds on the bytes that cross the host link in a training step.
 *
 * No plan moves fewer bytes than the bound, whatever its order, packs and retention. Reports show the bound
 * beside the bytes of every plan, so that one sees how far the plan is from the optimum. docs/bound.md has
 * the statement and its proof; bound.c has a summary of the argument.
 *
 * The bound covers state and stash. State is W, dW and K. Stash is what the forward pass leaves for the
 * backward pass; its amount depends on how much a plan recomputes, so it is taken from the plan in question.
 */
#ifndef SCHEDULER_PREDICT_BOUND_H
#define SCHEDULER_PREDICT_BOUND_H

#include "scheduler/plan.h"

/* Bytes of state, summed over layers that have the same ratio of W, dW, K and `waiting`. Such layers behave
 * alike in the bound, so one sum stands for all of them. */
struct bound_state {
    uint64_t w, dw, k; /* bytes */
    uint64_t waiting;  /* bytes of dW whose update waits for the decision, at the end */
    bool passed;       /* the layers come after the turn layer */
};

/* The sizes of a plan that its bound depends on. The turn and the end are two moments of a
 * step; bound.c explains them. */
struct bound_sizes {
    struct bound_state *states;
    uint32_t n_states;
    uint64_t stash;           /* bytes of stash that are written before the turn and read after it */
    uint64_t turn_free_bytes; /* memory of all devices less the working set of the task at the turn */
    uint64_t end_free_bytes;  /* memory of all devices less the working set of the task at the end */
};

/* Bytes of state that cross the host link in a step. */
struct bound_way {
    uint64_t in, out, total;
};

/* Lower bounds on the bytes of a training step. bound_compute derives them from the sizes. */
struct bound {
    struct bound_way host;   /* bytes of state, if every update runs on the host */
    struct bound_way device; /* bytes of state, if every update runs on a device */
    uint64_t bytes;          /* bytes of state and stash, with each update where it costs least */
};

/* Computes the lower bounds for given sizes. */
void bound_compute(const struct bound_sizes *s, struct bound *ret);

/* Collects the sizes of a plan from its tensors, leases and cycle. The turn is the first backward task of
 * turn_layer. Returns false if there is no bound: the layer has no backward task, or the cycle has more than
 * one step. The caller frees *ret with bound_sizes_finish. */
bool bound_sizes_of(const struct plan *p, uint32_t turn_layer, struct bound_sizes *ret);

/* Frees the array in `s`. */
void bound_sizes_finish(struct bound_sizes *s);

/* Returns the layer whose dW exceeds the W of all later layers by most. Besides the loss, it is a
 * good choice for the turn. */
uint32_t bound_turn_layer(const struct plan *p);

/* Returns the lower bound for one training step of the plan, to be compared with the state and stash
 * bytes of its cycle. It is the larger of the bounds for two turns: the loss and bound_turn_layer.
 * Returns 0 if there is no bound. */
uint64_t bound_bytes(const struct plan *p);

#endif
