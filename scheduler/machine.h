/* The machine that a plan is made for: the memory and the bandwidths that one job may use.
 *
 * topology_machine (topology.h) or one of the functions below sets the rates, and the caller sets the
 * devices. The planner, the analytic profile and the simulator read the machine. It is plain data and
 * never queries the system.
 */
#ifndef SCHEDULER_MACHINE_H
#define SCHEDULER_MACHINE_H

#include "scheduler/plan.h"

struct machine {
    uint32_t n_devices;
    /* Number of bytes of each device that the job may use. */
    uint64_t capacity_bytes[DEVICE_MAX];
    /* Number of bytes of host memory that the job may use. */
    uint64_t host_bytes;
    uint64_t host_taken_bytes; /* part of host_bytes not available to plans */
    /* Rate of one link, from the host to a device. */
    uint64_t link_bytes_per_s;
    /* Rate of one link, from a device to the host. 0 means the same as `link_bytes_per_s`. */
    uint64_t link_out_bytes_per_s;
    /* Total rate from the host to all devices. 0 means no limit. */
    uint64_t all_links_bytes_per_s;
    /* Total rate from all devices to the host. 0 means the same as from the host. */
    uint64_t all_links_out_bytes_per_s;
    /* Rate between two devices. One device cannot send or receive faster than this in total. */
    uint64_t peer_bytes_per_s;
    /* Whether transfers between devices use the host links and share their bandwidth. */
    bool peers_by_link;
    uint64_t device_flops_per_s;
    uint64_t device_bytes_per_s; /* memory bandwidth of a device */
    /* Memory bandwidth of the host, for host tasks. */
    uint64_t host_bytes_per_s;
    /* Host memory bandwidth that updates and transfers share. 0 means that they share no limit. */
    uint64_t host_shared_bytes_per_s;
    uint64_t launch_ns; /* fixed cost of one instruction */

    /* Cores, for virtual devices only: */
    /* Number of cores that tasks and transfers share. 0 means that they share no limit. */
    uint32_t cores;
    /* Number of cores that one device task uses when it runs alone. 0 if it uses none. */
    uint32_t device_cores;
    /* Number of cores that one host task uses when it runs alone. 0 if it uses none. */
    uint32_t host_cores;
    /* Rate at which one core copies bytes. 0 if transfers need no core. */
    uint64_t core_copy_bytes_per_s;
};

/* Sets the rates of a typical GPU server, for rates that were not measured. The caller must then set
 * `n_devices`, the capacities and `host_bytes`. */
void machine_init_cuda(struct machine *m);

/* Sets `m` to `n_devices` virtual cpu devices of `capacity_bytes` each. The rates are fixed and not measured,
 * so that plans are the same on every computer. */
void machine_init_cpu(struct machine *m, uint32_t n_devices, uint64_t capacity_bytes, uint64_t host_bytes);

#endif
