/* The simulator: predicts how long a plan takes, from a profile and a machine.
 *
 * The bytes it reports are exact, because they are in the plan. The times are as accurate as the
 * profile and the machine. The simulation is deterministic, in whole nanoseconds. docs/simulator.md
 * describes the model; in short:
 *
 * An instruction starts when its stream is free and its waits are done. A task takes the time in the profile,
 * and a share of a task takes the proportional part. A drop takes no time.
 *
 * A move takes machine.launch_ns, and then its bytes flow. A FETCH or SPILL uses the device's link, the total
 * bandwidth of all links, and host memory. A SEND uses the peer port of the sender and of the receiver. Moves
 * that run at the same time share these resources fairly. A COPY uses no link: after launch_ns it takes twice
 * its bytes at the device's memory bandwidth, since it reads and writes.
 *
 * Host tasks share the host's memory bandwidth with moves, if the machine gives one. If the devices are
 * virtual, tasks and moves share the cores of the processor (machine.cores). A limit of 0 in the machine
 * means unlimited, so a move without competition takes ceil(bytes * 1e9 / bandwidth) + launch_ns.
 */
#ifndef SCHEDULER_PREDICT_SIMULATE_H
#define SCHEDULER_PREDICT_SIMULATE_H

#include "scheduler/machine.h"
#include "scheduler/plan.h"
#include "scheduler/profile.h"

/* Number of runs of the cycle that a prediction simulates. The first run is not typical, because it starts
 * with empty streams. */
#define SIM_RUNS 3

/* Resources that all devices share. */
enum sim_shared { SHARED_LINKS_IN, SHARED_LINKS_OUT, SHARED_HOST_MEMORY, SHARED_CORES, SHARED_COUNT };

/* The predicted times and bytes of a program. Each busy time is the sum over all simulated runs. The caller
 * frees the result with sim_destroy. */
struct sim_result {
    /* Time from the start of the first simulated run to the end of the last. */
    uint64_t total_ns;
    /* Time of one run of the program in the steady state, when runs follow each other without a pause. */
    uint64_t cycle_ns;
    uint64_t compute_ns[DEVICE_MAX];          /* busy time of the compute stream */
    uint64_t stall_ns[DEVICE_MAX];            /* total_ns - compute_ns */
    uint64_t lane_ns[DEVICE_MAX][LANE_COUNT]; /* busy time of each stream */
    uint64_t host_ns;                         /* busy time of the host's stream */
    /* bound_ns[r] is the time during which shared resource r limited the speed of some move or task. */
    uint64_t bound_ns[SHARED_COUNT];
    struct plan_bytes bytes; /* bytes that one run moves */
    /* Start and end time of each instruction. Instruction i of run r is at index r * n_instrs + i. */
    struct plan_span *spans;
    uint32_t runs, n_instrs;
    struct arena *arena; /* owns the spans, and this struct */
};

/* Simulates `runs` consecutive runs of program `k`. Only the cycle may have several. `cycle_ns` of the result
 * is the average over all runs but the first. */
struct sim_result *plan_simulate(const struct plan *p, enum program_kind k, uint32_t runs,
                                 const struct profile *prof, const struct machine *m);

/* Returns how many seconds of core time a move uses for each byte, or 0 if moves use no core. */
double sim_copy_cores(const struct machine *m);

/* Frees a prediction and everything in it. Does nothing if `r` is NULL. */
void sim_destroy(struct sim_result *r);

#endif
