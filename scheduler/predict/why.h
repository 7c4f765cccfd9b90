/* Explains why a training step takes as long as it does.
 *
 * why_of finds the critical path of a simulated plan and names what limits the speed. It also computes the
 * time lost by waiting for free memory. scheduler/policy/what_if.h predicts how much time a job would save
 * with more memory or with another device.
 */
#ifndef SCHEDULER_PREDICT_WHY_H
#define SCHEDULER_PREDICT_WHY_H

#include "scheduler/predict/simulate.h"

/* Where an instruction of the critical path runs: on one of the four streams of a device, or on the stream of
 * the host. */
enum path_part { PATH_COMPUTE, PATH_IN, PATH_OUT, PATH_PEER, PATH_HOST, PATH_PART_COUNT };
extern const char *const path_part_names[PATH_PART_COUNT]; /* "compute", "in", "out", "peer", "host" */

/* What limits the speed of a step. */
enum binding {
    /* The critical path is mostly compute, and nearly all of it runs on a single device. */
    BINDING_COMPUTE,
    /* The critical path is mostly compute, but the devices take turns: one computes while the others wait. */
    BINDING_BUBBLE,
    BINDING_LINK, /* transfers to and from the host */
    BINDING_PEER, /* transfers between devices */
    BINDING_HOST, /* updates on the host */
    /* A training step would be clearly faster if the devices had more memory. */
    BINDING_MEMORY,
    BINDING_COUNT
};

/* "compute", "bubble", "link", "peer", "host", "memory" */
extern const char *const binding_names[BINDING_COUNT];

struct why {
    uint64_t cycle_ns; /* time of one run of the cycle */
    /* How much of the critical path's time is spent on each lane or on the host. The path is that of the last
     * simulated run. */
    uint64_t path_ns[PATH_PART_COUNT];
    /* Time that is lost while instructions wait for free memory. */
    uint64_t memory_wait_ns;
    /* Fraction of `cycle_ns` during which the busiest device computes, from 0 to 1. */
    double busiest;
    enum binding binds;
};

/* Finds out what limits the speed of a simulated cycle. The simulation must have at least two runs. */
void why_of(const struct plan *p, const struct sim_result *cycle, struct why *ret);

/* The prediction for the same job under other conditions, for example with more memory. All numbers are 0 if
 * there is no plan for these conditions. */
struct what_if {
    bool fits;         /* whether there is a plan */
    uint64_t cycle_ns; /* time of one run of the cycle */
    /* Number of bytes that one run of the cycle moves from and to the host. */
    uint64_t host_bytes;
    /* Whether the search for the plan was shortened, so that there may be a better plan. */
    bool estimated;
};

/* Why a plan is not faster: what limits its speed, and what would happen under other conditions. */
struct why_report {
    struct why why;
    /* Number of bytes that one run of the cycle moves from and to the host. */
    uint64_t host_bytes;
    bool asked;            /* whether the what-if questions below were asked */
    struct what_if memory; /* with WHY_MORE_BYTES more on each device */
    struct what_if device; /* with one more device */
    /* Whether all updates wait for a decision that needs every gradient. Clipping and the skipping of
     * non-finite steps need such a decision. */
    bool decision;
    struct what_if plain; /* prediction without the decision */
};
#define WHY_MORE_BYTES 1000000000

/* Names memory as the limit if the report predicts that more memory would save much time. */
void why_report_settle(struct why_report *r);

#endif
