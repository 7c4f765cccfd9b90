/* Finds the least host traffic of tiny chains by trying every possibility: every order of tasks, every
 * choice of which blocks leave and arrive at which time, and every place of each update. The search shares no
 * code with the planner or the bound. It is the truth that the bound is measured against (docs/bound.md).
 *
 * The model is the one of scheduler/graph.h. Layers 0 .. n_layers-1 have weights and are followed by a loss
 * without weights. A block is a whole tensor: W, dW and K of each layer, and X and dX of each micro-batch of
 * a layer from layer 1 on, including the loss. A block is on the host, on devices, or both. All operands of a
 * task are on its device, and the blocks on a device never exceed its capacity. Host link traffic is the sum
 * of all fetches and spills, and copies between devices are free. A cycle begins with the blocks that the
 * previous cycle left on the devices.
 *
 * A cycle is one training step, or `steps` of them. The tasks of a layer in one step follow the layer's
 * update in the step before, and nothing else orders the steps. With `ends`, the chain is divided into parts
 * as by local updates: no gradient comes from the layer after the end of a part. The loss of such a part
 * needs no memory of its own.
 */
#ifndef TESTS_BRUTE_H
#define TESTS_BRUTE_H

#include <stdbool.h>
#include <stdint.h>

#define BRUTE_MAX_LAYERS 4
#define BRUTE_MAX_MICROS 4 /* of all steps of a cycle together */
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
    uint32_t steps; /* in a cycle; 0 means 1 */
    uint32_t ends;  /* bit l: no gradient comes to layer l from the layer after it */
    bool update_on_host, update_on_device; /* allowed places; both: free for each layer and step */
    bool eager; /* one device may also evict at any time; this is never better and checks the solver */
};

struct brute_result {
    /* No sequence of cycles moves less than bytes / cycles per cycle on average, and `cycles` cycles in turn
     * move exactly `bytes`. cycles is 0 when the chain does not fit. */
    uint32_t bytes, cycles;
    uint32_t n_states; /* number of states that the search visited */
};

/* Finds the exact least traffic of the case. Returns false when it gave up: the search saw no period of up to
 * 12 cycles within 64 cycles. */
bool brute_solve(const struct brute_case *c, struct brute_result *ret);

/* Returns whether a plan can move less than `limit` in a cycle. All cycles of a plan are alike, so a cycle
 * leaves on the devices exactly the blocks that it found there. It may need more traffic than the least
 * average, which may take cycles that differ from each other. */
bool brute_one_cycle_below(const struct brute_case *c, uint32_t limit);

#endif
