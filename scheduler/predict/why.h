/* Explains why a training step takes as long as it does.
 *
 * why_of finds the critical path of a simulated plan, computes how much time waiting for free
 * memory costs, and names the limit that binds. The what-if functions predict what more memory or
 * another device would save.
 */
#ifndef SCHEDULER_PREDICT_WHY_H
#define SCHEDULER_PREDICT_WHY_H

#include "scheduler/policy/policy.h"
#include "scheduler/predict/simulate.h"

/* Where an instruction runs: on one of the four lanes of a device, or on the host's stream. */
enum path_part { PATH_COMPUTE, PATH_IN, PATH_OUT, PATH_PEER, PATH_HOST, PATH_PART_COUNT };
extern const char *const path_part_names[PATH_PART_COUNT]; /* "compute", "in", "out", "peer", "host" */

/* What limits the speed of a step. */
enum binding {
    BINDING_COMPUTE, /* the critical path is mostly compute, and one device does nearly all of it */
    BINDING_BUBBLE,  /* the critical path is mostly compute, but devices take turns and wait for each other */
    BINDING_LINK,    /* transfers to and from the host */
    BINDING_PEER,    /* transfers between devices */
    BINDING_HOST,    /* updates on the host */
    BINDING_MEMORY,  /* the step would be clearly faster with more device memory */
    BINDING_COUNT
};

/* "compute", "bubble", "link", "peer", "host", "memory" */
extern const char *const binding_names[BINDING_COUNT];

struct why {
    uint64_t cycle_ns;                 /* time of one run of the cycle */
    uint64_t path_ns[PATH_PART_COUNT]; /* time of each part on the critical path of the last run */
    uint64_t memory_wait_ns;           /* time lost by waiting for addresses to become free */
    double busiest;                    /* share of cycle_ns in which the busiest device computes */
    enum binding binds;
};

/* Finds out what limits the speed of a simulated cycle, which must have at least two runs. */
void why_of(const struct plan *p, const struct sim_result *cycle, struct why *ret);

/* The prediction for the same work under another condition, such as more memory. If there is no plan,
 * the times and bytes are 0. */
struct what_if {
    bool fits;           /* whether there is a plan */
    uint64_t cycle_ns;   /* time of one run of the cycle */
    uint64_t host_bytes; /* bytes to and from the host in one run */
};

/* Makes a machine like `m`, with more_bytes on every device and with more_devices that are like the last
 * device. Returns -ERANGE if that is more than DEVICE_MAX devices. */
int what_if_machine(const struct machine *m, uint64_t more_bytes, uint32_t more_devices, struct machine *ret);

/* Plans the request and simulates the plan. Sets `fits` to false if there is no plan. */
void what_if_plan(const struct plan_request *request, struct what_if *ret);

/* Replaces `w` by `at_hand` if `w` is worse. With more memory the plan at hand still fits, so a worse answer
 * only means that the search missed this plan. */
void what_if_keep(struct what_if *w, const struct what_if *at_hand, enum plan_objective objective);

/* The analysis of a plan's speed that reports print: what limits it, and the answers
 * to the what-if questions. */
struct why_report {
    struct why why;
    uint64_t host_bytes;   /* bytes to and from the host in one run */
    bool asked;            /* whether the what-if questions below were asked */
    struct what_if memory; /* with WHY_MORE_BYTES more on each device */
    struct what_if device; /* with one more device */
    bool decision;         /* updates wait for a decision (clipping, or skipping non-finite steps) */
    struct what_if plain;  /* prediction without the decision */
};
#define WHY_MORE_BYTES 1000000000

/* Declares memory the limit if the what-if answer shows that more memory saves much time. */
void why_report_settle(struct why_report *r);

#endif
