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

/* Bytes of state, summed over layers with the same proportions. The proportions are those of W, dW, K and
 * `waiting`. One sum is enough, because the bound treats these layers alike. */
struct bound_state {
    uint64_t w, dw, k; /* bytes */
    /* Bytes of dW whose update waits, at the end, for the decision. */
    uint64_t waiting;
    bool passed; /* the layers come after the turn layer */
};

/* The sizes of a plan that determine its bound. bound.c explains two moments of a step, the turn and the
 * end. */
struct bound_sizes {
    struct bound_state *states;
    uint32_t n_states;
    /* Bytes of stash that are written before the turn and read after it. */
    uint64_t stash;
    /* Memory of all devices, minus the working set of the task at the turn. */
    uint64_t turn_free_bytes;
    /* Memory of all devices, minus the working set of the task at the end. */
    uint64_t end_free_bytes;
};

/* Number of bytes of state that cross the host link in one step. */
struct bound_way {
    uint64_t in, out, total;
};

/* Lower bounds on the number of bytes that a training step moves. bound_compute computes them. */
struct bound {
    /* Bytes of state if every update runs on the host. */
    struct bound_way host;
    /* Bytes of state if every update runs on a device. */
    struct bound_way device;
    /* Bytes of state and stash if each update runs where it moves the fewest bytes. */
    uint64_t bytes;
};

/* Computes the lower bounds for given sizes. */
void bound_compute(const struct bound_sizes *s, struct bound *ret);

/* Collects the sizes of a plan. The turn is the first backward task of `turn_layer`. Returns false if there
 * is no such task, or if the cycle has several steps. The caller frees *ret with bound_sizes_finish. */
bool bound_sizes_of(const struct plan *p, uint32_t turn_layer, struct bound_sizes *ret);

/* Frees the array in `s`. */
void bound_sizes_finish(struct bound_sizes *s);

/* Returns a layer that is a good choice for the turn. For this layer, dW minus the W of all later layers is
 * largest. The loss is the other good choice. */
uint32_t bound_turn_layer(const struct plan *p);

/* Returns a lower bound on the state and stash bytes that one training step moves. It tries two turns, and
 * returns the larger bound. Returns 0 if there is no bound. */
uint64_t bound_bytes(const struct plan *p);

#endif
