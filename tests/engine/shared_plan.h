/* Makes plans with replicas by a fixed rule, without the planner, for tests of the executor. Several devices
 * share the traffic with the host, the reduction and the updates. Instructions follow the method's order,
 * with every wait that data and addresses require. The plans are correct, but not meant to be fast.
 *
 * W, dW and K of a layer are cut into shares, and each share is owned by one device. A device computes one or
 * several replicas. Each cycle does the following:
 *   W      reaches every device. Every device fetches all of W from the host, or each owner fetches its
 *          shares and sends them to the other devices. If W is pinned, the owner holds its shares at an
 *          address of their own, copies them from there, and sends them to the other devices
 *   dW     is summed by each replica. The owner of a share receives that share from all replicas and adds
 *          them up, or the host does
 *   norm   is computed when there is a decision: one device gathers the shares, or the host computes the norm
 *   W, K   are updated by the owners, share by share, with each part of K at an address of its own, or by the
 *          host
 * Main thread only.
 */
#ifndef TESTS_ENGINE_SHARED_PLAN_H
#define TESTS_ENGINE_SHARED_PLAN_H

#include "scheduler/graph.h"
#include "tests/unit/handmade_plan.h"

struct shared_form {
    const char *name;
    uint32_t n_devices, n_replicas;
    uint32_t cuts;       /* shares of a layer; layers that are too small for as many have fewer */
    bool share_fetches;  /* of W; else every device fetches all of it */
    bool pinned;         /* shares of W and K stay with their owners; needs updates on devices */
    bool host_reduction; /* needs updates on the host */
    bool host_update;
};

/* For the graphs of one model. The plan is the handmade's: hm_free. Asserts (cmocka). */
void shared_plan(const struct graph *train, const struct graph *eval, const struct shared_form *form,
                 struct handmade *ret);

#endif
