/* Why an iteration takes as long as it does: what is on the critical path of a simulated plan, what waiting for memory
 * costs, and what more memory or another device would bring. Pure. */
#ifndef SCHEDULER_PREDICT_WHY_H
#define SCHEDULER_PREDICT_WHY_H

#include "scheduler/policy/policy.h"
#include "scheduler/predict/simulate.h"

/* The lane of a device, or the host's stream: where an instruction spends its time. */
enum path_part { PATH_COMPUTE, PATH_IN, PATH_OUT, PATH_PEER, PATH_HOST, PATH_PART_COUNT };
extern const char *const path_part_names[PATH_PART_COUNT]; /* "compute", "in", "out", "peer", "host" */

enum binding {
    BINDING_COMPUTE, /* the path is compute, most of it of one device */
    BINDING_BUBBLE,  /* the path is compute, but the devices take turns: each waits for the others */
    BINDING_LINK,    /* the copies to and from the host */
    BINDING_PEER,    /* the copies between devices */
    BINDING_HOST,    /* the updates on the host */
    BINDING_MEMORY,  /* the others would do better with more room */
    BINDING_COUNT
};
extern const char
    *const binding_names[BINDING_COUNT]; /* "compute", "bubble", "link", "peer", "host", "memory" */

struct why {
    uint64_t cycle_ns;                 /* of the iteration */
    uint64_t path_ns[PATH_PART_COUNT]; /* of the last run of the cycle: their sum is about its time */
    uint64_t
        room_ns; /* less, if instructions waited for data and their stream, and never for memory to be free */
    double busiest; /* compute share of the device that computes most */
    enum binding binds;
};

/* `cycle` is of at least two runs. */
void why_of(const struct plan *p, const struct sim_result *cycle, struct why *ret);

/* The same work otherwise: on a better machine, or without a part of it. */
struct what_if {
    bool fits;
    uint64_t cycle_ns, host_bytes; /* of an iteration: its time; in and out */
};

/* With `more_bytes` on every device, and with `more_devices` like the last one. -ERANGE when these are too many. */
int what_if_machine(const struct machine *m, uint64_t more_bytes, uint32_t more_devices, struct machine *ret);
/* What the request is told, by simulation; `fits` is false where it has no plan. */
void what_if_plan(const struct plan_request *request, struct what_if *ret);
/* A plan at hand fits wherever there is more memory, so nothing worse counts: a search is no proof. */
void what_if_keep(struct what_if *w, const struct what_if *at_hand, enum plan_objective objective);

/* What is told of a plan beside its figures. */
struct why_report {
    struct why why;
    uint64_t host_bytes;           /* of an iteration, in and out */
    bool asked;                    /* what follows is known */
    struct what_if memory, device; /* with WHY_MORE_BYTES on each device; with one more device */
    bool decision;                 /* updates wait for one (clipping, non-finite steps); then: */
    struct what_if plain;          /* the same work without it */
};
#define WHY_MORE_BYTES 1000000000

/* Memory binds, too, where more of it brings much. */
void why_report_settle(struct why_report *r);

#endif
