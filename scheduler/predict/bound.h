/* Lower bounds on what crosses the host link per iteration: no plan moves less, whatever its order, packs
 * and retention. They stand beside the bytes of every plan, so that the distance to perfect is always on
 * screen. Pure arithmetic. docs/bound.md has the statement and its proof in plain words, bound.c the
 * argument in short.
 *
 * State is W, dW and K. Stash is what the forward pass leaves for the backward pass; how much of it there is
 * depends on how much is recomputed, so it is taken from the plan at hand.
 */
#ifndef SCHEDULER_PREDICT_BOUND_H
#define SCHEDULER_PREDICT_BOUND_H

#include "scheduler/plan.h"

/* State of layers in which W, dW, K and what waits stand in the same proportion, summed. */
struct bound_state {
    uint64_t w, dw, k;
    uint64_t waiting; /* of dw: done at the end, but its update must wait for the decision */
    bool passed;      /* the layers lie behind that of the turn: their backward may be over by then */
};

struct bound_sizes {
    struct bound_state *states;
    uint32_t n_states;
    uint64_t stash;               /* alive at the turn */
    uint64_t turn_room, end_room; /* memory of all devices less what the task of the moment needs besides */
};

struct bound_way {
    uint64_t in, out, total;
};

struct bound {
    struct bound_way host, device; /* state alone, with every update there */
    uint64_t bytes;                /* state and stash, in and out, each update where it costs least */
};

void bound_compute(const struct bound_sizes *s, struct bound *ret);

/* The sizes of a plan, from its tensors, leases and cycle, where the turn is the first backward task of this
 * layer. False when there is no bound: the layer has no backward task, or a cycle has more than one step. */
bool bound_sizes_of(const struct plan *p, uint32_t turn_layer, struct bound_sizes *ret);
void bound_sizes_finish(struct bound_sizes *s);

/* A good turn besides the loss: the layer that has the most dW less the W of the layers behind it. */
uint32_t bound_turn_layer(const struct plan *p);

/* Of one training step of the plan: the better one of the two turns. Compare it with the state and stash
 * bytes of the cycle. */
uint64_t bound_bytes(const struct plan *p);

#endif
