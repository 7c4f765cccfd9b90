/* Explains why a training step takes as long as it does.
 *
 * why_of finds the critical path of a simulated plan, computes the time lost by waiting for free memory,
 * and names the limit that binds. The what-if functions predict how much more memory or another device
 * would save.
 */
#ifndef SCHEDULER_PREDICT_WHY_H
#define SCHEDULER_PREDICT_WHY_H

#include "scheduler/policy/policy.h"
#include "scheduler/predict/simulate.h"

/* The place where an instruction runs: a lane of a device, or the host's stream. */
enum path_part { PATH_COMPUTE, PATH_IN, PATH_OUT, PATH_PEER, PATH_HOST, PATH_PART_COUNT };
extern const char *const path_part_names[PATH_PART_COUNT]; /* "compute", "in", "out", "peer", "host" */

/* What limits the speed of a step. */
enum binding {
    /* The critical path is mostly compute, and one device does nearly all of it. */
    BINDING_COMPUTE,
    /* The critical path is mostly compute, but the devices take turns and wait for each other. */
    BINDING_BUBBLE,
    BINDING_LINK, /* transfers to and from the host */
    BINDING_PEER, /* transfers between devices */
    BINDING_HOST, /* updates on the host */
    /* The step would be clearly faster with more device memory. */
    BINDING_MEMORY,
    BINDING_COUNT
};

/* "compute", "bubble", "link", "peer", "host", "memory" */
extern const char *const binding_names[BINDING_COUNT];

struct why {
    uint64_t cycle_ns; /* time of one run of the cycle */
    /* Time that each part takes on the critical path of the last run. */
    uint64_t path_ns[PATH_PART_COUNT];
    /* Time lost by waiting for addresses to become free. */
    uint64_t memory_wait_ns;
    /* Share of `cycle_ns` during which the busiest device computes. */
    double busiest;
    enum binding binds;
};

/* Determines what limits the speed of a simulated cycle. The simulation must have at least two runs. */
void why_of(const struct plan *p, const struct sim_result *cycle, struct why *ret);

/* The prediction for the same work under another condition, such as more memory. All numbers are 0 if there
 * is no plan. */
struct what_if {
    bool fits;         /* whether there is a plan */
    uint64_t cycle_ns; /* time of one run of the cycle */
    /* Number of bytes moved to and from the host in one run. */
    uint64_t host_bytes;
};

/* Makes a machine like `m` with more memory and more devices. Every device gets `more_bytes` more, and new
 * devices are like the last one of `m`. Returns -ERANGE if there would be more than DEVICE_MAX devices. */
int what_if_machine(const struct machine *m, uint64_t more_bytes, uint32_t more_devices, struct machine *ret);

/* Makes a plan for the request and simulates it. Sets `fits` to false if there is no plan. */
void what_if_plan(const struct plan_request *request, struct what_if *ret);

/* Replaces *w with *at_hand if *w is worse. A worse answer only means that the search missed the plan at
 * hand. */
void what_if_keep(struct what_if *w, const struct what_if *at_hand, enum plan_objective objective);

/* The analysis of a plan's speed: what limits it, and the answers to the what-if questions. */
struct why_report {
    struct why why;
    /* Number of bytes moved to and from the host in one run. */
    uint64_t host_bytes;
    bool asked;            /* whether the what-if questions below were asked */
    struct what_if memory; /* with WHY_MORE_BYTES more on each device */
    struct what_if device; /* with one more device */
    /* Whether updates wait for a decision, for clipping or for skipping non-finite steps. */
    bool decision;
    struct what_if plain; /* prediction without the decision */
};
#define WHY_MORE_BYTES 1000000000

/* Sets the limit to memory if the what-if answer shows a large gain from more memory. */
void why_report_settle(struct why_report *r);

#endif
