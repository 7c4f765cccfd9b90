/* The least host traffic of a tiny chain, found by trying everything: every order of tasks, every choice of
 * what leaves and what comes when, every place of each update. It shares no code with the planner or with the
 * bound; it is what the bound is measured with (docs/bound.md).
 *
 * The model is that of scheduler/graph.h. Layers 0 .. n_layers-1 have weights; behind them is a loss
 * without. A block is a whole tensor: W, dW and K of a layer, X and dX of a layer (from 1 on; the loss's
 * too) and micro-batch. Blocks are on the host, on devices, or both; all operands of a task are on its
 * device, and what is on a device never exceeds its capacity. Host link traffic is the sum of all fetches
 * and spills; copies between devices are free. A step begins with what the step before left on the devices.
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
