/* The simulator: runs a plan against a profile and a machine, and predicts. Bytes are exact (they are the
 * plan's); times are as good as the profile. Deterministic, whole nanoseconds.
 *
 * An instruction starts when its stream is free and its waits are done. A task lasts as the profile says; a
 * move ceil(bytes * 1e9 / bandwidth) + machine.launch_ns; a drop nothing. Each device has its own host link,
 * full speed in each direction, and sends at full peer speed. (Fair sharing of links: not yet.)
 */
#ifndef SCHEDULER_SIMULATE_H
#define SCHEDULER_SIMULATE_H

#include "scheduler/machine.h"
#include "scheduler/plan.h"
#include "scheduler/profile.h"

struct sim_result {
    uint64_t total_ns; /* entry is not included: from the start of run 0 to the end of the last */
    uint64_t cycle_ns; /* steady state: (end of last run - end of first) / (runs - 1); total for one run */
    uint64_t compute_ns[DEVICE_MAX]; /* busy time of the compute stream, all runs */
    uint64_t stall_ns[DEVICE_MAX];   /* total_ns - compute_ns */
    struct plan_bytes bytes;         /* of one run */
    struct plan_span *spans;         /* runs * n_instrs */
    uint32_t runs, n_instrs;
    struct arena *arena;
};

/* Runs program `k` `runs` times back to back (more than one only for the cycle). */
struct sim_result *plan_simulate(const struct plan *p, enum program_kind k, uint32_t runs,
                                 const struct profile *prof, const struct machine *m);
void sim_destroy(struct sim_result *r);

#endif
