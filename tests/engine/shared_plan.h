/* Plans with replicas, made by rule and not by the planner: what several devices share of the traffic with the host, of the
 * reduction and of the updates, in the order of the method, with every wait that data and addresses call for. For tests of
 * the executor; nothing about them is good but that they are right.
 *
 * W, dW and K of a layer are cut into shares, and each share has an owner among the devices. Replica r computes on a device of
 * its own, or with others on one. Each cycle:
 *   W      comes to every device: whole from the host; or each owner fetches its shares and sends them to the others; or, pinned,
 *          the owner has its shares in a place of their own, copies them from there and sends them on
 *   dW     is summed by each replica; the owners of shares get those of all replicas, and add them up. Or the host does
 *   norm   where there is a decision: a device gathers the shares; or the host does
 *   W, K   are updated by owners, share by share, the parts of K each at an address of its own; or by the host
 * Main thread only. */
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
