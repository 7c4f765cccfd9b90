/* Lower bounds on what crosses the host link per iteration: no plan moves less, whatever its order, packs and
 * retention. They stand beside the bytes of every plan, so that the distance to perfect is always on screen.
 * Pure arithmetic.
 *
 * State is W, dW and K. Stash is what the forward pass leaves for the backward pass; how much of it there is
 * depends on how much is recomputed, so it is taken from the plan at hand. bound.c has the argument.
 */
#ifndef SCHEDULER_BOUND_H
#define SCHEDULER_BOUND_H

#include "scheduler/plan.h"

struct bound_sizes {
    uint64_t w, dw, k; /* of all layers */
    uint64_t stash;    /* alive while the first loss of the step is differentiated */
    uint64_t room;     /* for what is kept: memory of all devices less the smallest working set */
};

struct bound_way {
    uint64_t in, out, total;
};

struct bound {
    struct bound_way host, device; /* state alone, with every update there */
    uint64_t bytes;                /* state and stash, in and out, each update where it costs least */
};

void bound_compute(const struct bound_sizes *s, struct bound *ret);

/* The sizes of a plan, from its tensors, leases and cycle. */
void bound_sizes_of(const struct plan *p, struct bound_sizes *ret);

/* Of one training step of the plan. Compare it with the state and stash bytes of the cycle. */
uint64_t bound_bytes(const struct plan *p);

#endif
