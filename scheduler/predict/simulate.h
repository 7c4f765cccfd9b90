/* The simulator: runs a plan against a profile and a machine, and predicts. Bytes are exact (they are the
 * plan's); times are as good as the profile. Deterministic, whole nanoseconds. docs/simulator.md has the model.
 *
 * An instruction starts when its stream is free and its waits are done. A task lasts as the profile says, a share of
 * one the same part of that, a drop nothing. A copy inside a device takes machine.launch_ns and twice its bytes at the
 * device's memory bandwidth. Any other move takes machine.launch_ns, and then its bytes flow: through the device's own link, what all links carry
 * together and the host's memory, or from the sender's peer port to the receiver's. What is under way at the same time
 * shares these fairly. Tasks of the host share its memory with the copies, where the machine says what that carries.
 * Where devices are slices of one processor (machine.cores), tasks and copies share its cores.
 * What the machine leaves at 0 is unlimited: a move alone, or on a machine without common limits, lasts
 * ceil(bytes * 1e9 / bandwidth) + machine.launch_ns.
 */
#ifndef SCHEDULER_PREDICT_SIMULATE_H
#define SCHEDULER_PREDICT_SIMULATE_H

#include "scheduler/machine.h"
#include "scheduler/plan.h"
#include "scheduler/profile.h"

/* Runs of the cycle to simulate when the time of one step is wanted. The first run starts with empty streams and so is not
 * typical. The two runs after it are: sim_result.cycle_ns is the mean of these two. Planner, reports and pictures all use
 * this number, so that they predict the same time for the same plan. */
#define SIM_RUNS 3

/* What devices share. */
enum sim_shared { SHARED_LINKS_IN, SHARED_LINKS_OUT, SHARED_HOST_MEMORY, SHARED_CORES, SHARED_COUNT };

struct sim_result {
    uint64_t total_ns; /* entry is not included: from the start of run 0 to the end of the last */
    uint64_t cycle_ns; /* steady state: (end of last run - end of first) / (runs - 1); total for one run */
    uint64_t compute_ns[DEVICE_MAX];          /* busy time of the compute stream, all runs */
    uint64_t stall_ns[DEVICE_MAX];            /* total_ns - compute_ns */
    uint64_t lane_ns[DEVICE_MAX][LANE_COUNT]; /* busy time of every stream, all runs */
    uint64_t host_ns;                         /* of the host's */
    uint64_t bound_ns[SHARED_COUNT]; /* how long somebody was held up by this one; 0 where it has no limit */
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
