/* Finds the least host traffic of a tiny chain by trying every possibility: every order of tasks, every
 * choice of which blocks leave and arrive at which time, and every place of each update. The search shares no
 * code with the planner or the bound. It is the truth that the bound is measured against (docs/bound.md).
 *
 * The model is the one of scheduler/graph.h. Layers 0 .. n_layers-1 have weights and are followed by a loss
 * without weights. A block is a whole tensor: W, dW and K of each layer, and X and dX of each micro-batch of
 * a layer from layer 1 on, including the loss. A block is on the host, on devices, or both. All operands of a
 * task are on its device, and the blocks on a device never exceed its capacity. Host link traffic is the sum
 * of all fetches and spills, and copies between devices are free. A step begins with the blocks that the
 * previous step left on the devices.
 */
#ifndef TESTS_BRUTE_H
#define TESTS_BRUTE_H

#include <stdbool.h>
#include <stdint.h>

#define BRUTE_MAX_LAYERS 4
#define BRUTE_MAX_MICROS 3
#define BRUTE_ANY        UINT32_MAX

struct brute_case {
    uint32_t n_layers, n_micros;
    uint32_t n_devices;                                /* 1 or 2 */
    uint32_t capacity;                                 /* of each device */
    uint32_t w[BRUTE_MAX_LAYERS], k[BRUTE_MAX_LAYERS]; /* dW is as large as W */
    /* Size of the input of each layer and of the loss. The input of layer 0 is data: it takes space while it
     * is used, but its traffic does not count. */
    uint32_t x[BRUTE_MAX_LAYERS + 1];
    uint32_t stash; /* try only plans with this stash at the turn (brute_stash); BRUTE_ANY: all plans */
    bool recompute; /* X may be dropped and made again */
    bool decision;  /* updates wait for all gradients */
    bool update_on_host, update_on_device; /* allowed places; both: free for each layer and step */
    bool eager; /* one device may also evict at any time; this is never better and checks the solver */
};

struct brute_result {
    /* No sequence of steps moves less than bytes / steps per step on average, and a cycle of `steps` steps
     * moves exactly `bytes`. steps is 0 when the chain does not fit. */
    uint32_t bytes, steps;
    uint32_t n_states; /* number of states that the search visited */
};

/* Finds the exact least traffic of the case. Returns false when it gave up: the search saw no period of up to
 * 12 steps within 64 steps. */
bool brute_solve(const struct brute_case *c, struct brute_result *ret);

/* Returns whether a plan whose cycle is one step can move less than `limit`. Such a step leaves on the
 * devices exactly the blocks that it found there. It may need more traffic than the least average, which may
 * take steps that differ from each other. */
bool brute_one_step_below(const struct brute_case *c, uint32_t limit);

#endif
