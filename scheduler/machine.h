/* The machine that a plan is made for: the memory and the bandwidths that one job may use.
 *
 * topology_machine (topology.h) or one of the functions below fills the rates, and the caller fills the
 * devices. The planner, the analytic profile and the simulator read them. A machine is plain data:
 * nothing here asks the system.
 */
#ifndef SCHEDULER_MACHINE_H
#define SCHEDULER_MACHINE_H

#include "scheduler/plan.h"

struct machine {
    uint32_t n_devices;
    uint64_t capacity_bytes[DEVICE_MAX]; /* bytes of each device that the job may use */
    uint64_t host_bytes;                 /* bytes of host memory that the job may use */
    uint64_t host_taken_bytes;           /* part of host_bytes not available to plans */
    uint64_t link_bytes_per_s;           /* rate from host to device, over one link */
    uint64_t link_out_bytes_per_s;       /* rate from device to host; 0: same as link_bytes_per_s */
    uint64_t all_links_bytes_per_s;      /* total rate from host to all devices; 0: no limit */
    uint64_t all_links_out_bytes_per_s;  /* total rate to the host; 0: same as from the host */
    uint64_t peer_bytes_per_s; /* rate between two devices, and the total that one device sends or receives */
    bool peers_by_link;        /* transfers between devices use the host links and share their bandwidth */
    uint64_t device_flops_per_s;
    uint64_t device_bytes_per_s; /* memory bandwidth of a device */
    uint64_t host_bytes_per_s;   /* memory bandwidth of the host, for host tasks */
    /* Host memory bandwidth that updates and transfers share when they run at the same
     * time; 0: no common limit. */
    uint64_t host_shared_bytes_per_s;
    uint64_t launch_ns; /* fixed cost of one instruction */

    /* Cores, for virtual devices, which compute on the host's own processor. */
    uint32_t cores;                 /* cores that tasks and transfers share; 0: no common limit */
    uint32_t device_cores;          /* cores that one device task uses when it runs alone; 0: none */
    uint32_t host_cores;            /* cores that one host task uses when it runs alone; 0: none */
    uint64_t core_copy_bytes_per_s; /* bytes per second that one core copies; 0: transfers need no core */
};

/* Sets the rates of a typical GPU server, for rates that were not measured. The machine has no devices yet:
 * the caller sets n_devices, the capacities and host_bytes. */
void machine_init_cuda(struct machine *m);

/* Sets `m` to n_devices virtual cpu devices of capacity_bytes each. The rates are round figures for two cores
 * of a server, not measurements, so that plans do not differ between computers. */
void machine_init_cpu(struct machine *m, uint32_t n_devices, uint64_t capacity_bytes, uint64_t host_bytes);

#endif
