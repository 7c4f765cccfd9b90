/* The machine for which a plan is made: the memory and the bandwidths that one job may use.
 *
 * topology_machine (topology.h) or one of the functions below sets the rates. The caller sets the devices.
 * The planner, the analytic profile and the simulator read the machine. It is plain data, and nothing here
 * asks the operating system.
 */
#ifndef SCHEDULER_MACHINE_H
#define SCHEDULER_MACHINE_H

#include "scheduler/plan.h"

struct machine {
    uint32_t n_devices;
    /* Number of bytes of each device's memory that the job may use. */
    uint64_t capacity_bytes[DEVICE_MAX];
    /* Number of bytes of host memory that the job may use. */
    uint64_t host_bytes;
    uint64_t host_taken_bytes; /* part of host_bytes not available to plans */
    /* Rate at which one device receives bytes from the host over its link. */
    uint64_t link_bytes_per_s;
    /* Rate at which one device sends bytes to the host over its link. 0 means the same as
     * `link_bytes_per_s`. */
    uint64_t link_out_bytes_per_s;
    /* Total rate from the host to all devices. 0 means that only the link of each device limits the rate. */
    uint64_t all_links_bytes_per_s;
    /* Total rate from all devices to the host. 0 means the same as `all_links_bytes_per_s`. */
    uint64_t all_links_out_bytes_per_s;
    /* Rate of a transfer from one device to another. A device sends at most at this rate in total, and
     * receives at most at this rate in total. */
    uint64_t peer_bytes_per_s;
    /* Whether transfers between devices use the links of these devices to the host. Such transfers then share
     * the links with transfers to and from the host. */
    bool peers_by_link;
    uint64_t device_flops_per_s;
    uint64_t device_bytes_per_s; /* memory bandwidth of a device */
    /* Rate at which tasks on the host read and write host memory. */
    uint64_t host_bytes_per_s;
    /* Bandwidth of host memory that updates on the host share with transfers. 0 means that updates and
     * transfers do not slow each other down. */
    uint64_t host_shared_bytes_per_s;
    uint64_t launch_ns; /* fixed cost of one instruction */

    /* Cores, for virtual devices only: */
    /* Number of cores that tasks and transfers have to share. 0 means that cores limit nothing. */
    uint32_t cores;
    /* Number of cores that one task on a device uses when nothing else runs. 0 if tasks on a device use no
     * cores. */
    uint32_t device_cores;
    /* Number of cores that one task on the host uses when nothing else runs. 0 if tasks on the host use no
     * cores. */
    uint32_t host_cores;
    /* Whether the number of cores is assumed to be the number of devices. A machine with one more device then
     * also has one more core. */
    bool cores_by_devices;
    /* Rate at which one core copies bytes. 0 means that transfers use no core. */
    uint64_t core_copy_bytes_per_s;
};

/* Sets all rates to those of a typical GPU server. This is for machines where nothing was measured. The
 * caller must set `n_devices`, the capacities and `host_bytes`. */
void machine_init_cuda(struct machine *m);

/* Sets `m` to a machine with `n_devices` virtual devices. The rates are fixed numbers, so that every computer
 * makes the same plan. */
void machine_init_cpu(struct machine *m, uint32_t n_devices, uint64_t capacity_bytes, uint64_t host_bytes);

#endif
