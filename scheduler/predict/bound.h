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

/* Bytes of state, added up over all layers with the same proportions of W, dW, K and `waiting`. The bound
 * depends only on these proportions, so one sum for all these layers is enough. */
struct bound_state {
    uint64_t w, dw, k; /* bytes */
    /* Bytes of dW that still wait for the decision when the backward pass ends. */
    uint64_t waiting;
    bool passed; /* the layers come after the turn layer */
};

/* The sizes of a plan that determine its lower bound. They refer to two moments of a training step, the turn
 * and the end, which bound.c explains. */
struct bound_sizes {
    struct bound_state *states;
    uint32_t n_states;
    /* Bytes of activations that are written before the moment called the turn and read after it. */
    uint64_t stash;
    /* Memory of all devices together, minus the operands of the task that runs at the turn. */
    uint64_t turn_free_bytes;
    /* Memory of all devices together, minus the operands of the task that runs at the end. */
    uint64_t end_free_bytes;
};

/* Number of bytes of state that cross the host link in one training step, by direction. */
struct bound_way {
    uint64_t in, out, total;
};

/* Lower bounds on the number of bytes that a training step moves, as bound_compute finds them. */
struct bound {
    /* Bytes of state, if the weights of every layer are updated on the host. */
    struct bound_way host;
    /* Bytes of state, if the weights of every layer are updated on a device. */
    struct bound_way device;
    /* Bytes of state and activations, if each layer is updated where this moves the fewest bytes. */
    uint64_t bytes;
};

/* Computes the lower bounds for given sizes. */
void bound_compute(const struct bound_sizes *s, struct bound *ret);

/* Collects the sizes of a plan. The moment called the turn is the first backward task of `turn_layer`.
 * Returns false if there is no such task, or if the cycle has several training steps. The caller frees *ret
 * with bound_sizes_finish. */
bool bound_sizes_of(const struct plan *p, uint32_t turn_layer, struct bound_sizes *ret);

/* Frees the array in `s`. */
void bound_sizes_finish(struct bound_sizes *s);

/* Returns a layer whose first backward task is a good choice for the turn: the layer for which the dW of the
 * layer minus the W of all later layers is largest. The loss layer is the other good choice. */
uint32_t bound_turn_layer(const struct plan *p);

/* Returns a lower bound on the bytes of state and stash that one training step moves. Computes the bound for
 * two choices of the turn and returns the larger. Returns 0 if no bound can be computed. */
uint64_t bound_bytes(const struct plan *p);

#endif
