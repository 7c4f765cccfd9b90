/* Why an iteration takes as long as it does: what is on the critical path of a simulated plan, and what more memory or
 * another device would bring. Pure. */
#ifndef SCHEDULER_WHY_H
#define SCHEDULER_WHY_H

#include "scheduler/policy.h"
#include "scheduler/simulate.h"

/* The lane of a device, or the host's stream: where an instruction spends its time. */
enum path_part { PATH_COMPUTE, PATH_IN, PATH_OUT, PATH_PEER, PATH_HOST, PATH_PART_COUNT };

enum binding {
    BINDING_COMPUTE, /* one device computes nearly all the time */
    BINDING_BUBBLE,  /* somebody computes all the time, but each device waits for the others */
    BINDING_LINK,    /* the copies to and from the host */
    BINDING_PEER,    /* the copies between devices */
    BINDING_HOST,    /* the updates on the host */
    BINDING_COUNT
};
extern const char *const binding_names[BINDING_COUNT]; /* "compute", "bubble", "link", "peer", "host" */

struct why {
    uint64_t path_ns[PATH_PART_COUNT]; /* of the last run of the cycle: their sum is about its time */
    uint64_t room_ns;                  /* of these, instructions that could begin only when memory was free */
    double busiest;                    /* compute share of the device that computes most */
    enum binding binds;
};

/* `cycle` is of at least two runs. */
void why_of(const struct plan *p, const struct sim_result *cycle, struct why *ret);

/* The same request on a better machine. `fits` is false where there is no plan, which more memory cannot be the cause of. */
struct what_if {
    bool fits;
    uint64_t cycle_ns, bytes; /* host to device, device to host and between devices */
};
/* With `more_bytes` on every device, or with `more_devices` like the last one. */
void what_if(const struct plan_request *request, uint64_t more_bytes, uint32_t more_devices,
             struct what_if *ret);

#endif
