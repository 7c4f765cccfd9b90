/* The machine that a plan is for: devices with their budgets, links with their bandwidths, and rates for the
 * analytic profile. Plain data; nothing here asks the system. */
#ifndef SCHEDULER_MACHINE_H
#define SCHEDULER_MACHINE_H

#include "scheduler/plan.h"

struct machine {
    uint32_t n_devices;
    uint64_t capacity_bytes[DEVICE_MAX]; /* what the job may use of each device */
    uint64_t host_bytes;                 /* host memory the job may use */
    uint64_t host_taken_bytes;           /* of these, taken by others than the plan: the data set */
    uint64_t link_bytes_per_s;           /* host link of a device, each direction */
    uint64_t link_out_bytes_per_s;       /* device to host, where it differs; 0: as link_bytes_per_s */
    uint64_t all_links_bytes_per_s;      /* host to all devices together; 0: every link at its full speed */
    uint64_t all_links_out_bytes_per_s;  /* back, where it differs; 0: as all_links_bytes_per_s */
    uint64_t peer_bytes_per_s;           /* between two devices, and what a device sends or receives in all */
    bool peers_by_link;                  /* copies between devices go over their host links and share these */
    uint64_t device_flops_per_s;
    uint64_t device_bytes_per_s;      /* memory bandwidth of a device */
    uint64_t host_bytes_per_s;        /* memory bandwidth of the host, for updates there */
    uint64_t host_shared_bytes_per_s; /* of it, what updates and copies get together; 0: no common limit */
    uint64_t launch_ns;               /* fixed cost of one instruction */
    /* Where devices are slices of the host's own processor. */
    uint32_t cores;        /* that tasks of devices and host and copies share; 0: no common limit */
    uint32_t device_cores; /* of these, what a task of a device keeps busy when it is alone; 0: none */
    uint32_t host_cores;   /* likewise a task of the host */
    uint64_t core_copy_bytes_per_s; /* what one core copies; 0: copies need none */
};

/* A GPU of a server as a round figure, for what nobody measured; the devices are to be filled in. */
void machine_init_cuda(struct machine *m);
/* The embedded default: cpu devices. Rates are round figures of one server core pair, not measurements. */
void machine_init_cpu(struct machine *m, uint32_t n_devices, uint64_t capacity_bytes, uint64_t host_bytes);

#endif
