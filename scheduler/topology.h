/* The topology: the devices, links and memory that a computer has, as a probe found them or
 * as a file describes them.
 *
 * A topology is what exists; a machine (machine.h) is the part of it that one plan may use. The worker probes
 * the computer or reads a file, and topology_machine then fills in the rates of a machine. A file of schema
 * machine/v1 (docs/machine.md) makes it possible to plan for a computer that is somewhere else.
 *
 * A topology is plain data. Unknown values are 0, "" or -1; when a plan is made, the backend's
 * default rates replace them.
 */
#ifndef SCHEDULER_TOPOLOGY_H
#define SCHEDULER_TOPOLOGY_H

#include "base/err.h"
#include "base/strbuf.h"
#include "scheduler/machine.h"

enum backend_id { BACKEND_CPU, BACKEND_CUDA, BACKEND_COUNT };
extern const char *const backend_names[BACKEND_COUNT + 1]; /* NULL-terminated */

#define TOPOLOGY_SCHEMA    "machine/v1"
#define TOPOLOGY_MAX_CORES 4096
/* Value in `peers` for a direct connection whose rate is not known. */
#define TOPOLOGY_PEER_DIRECT 1

struct topology {
    enum backend_id backend;
    /* Number of devices. If 0, devices are virtual, and jobs may have any number of them. */
    uint32_t n_devices;
    /* The devices. Their field `peer` is not used, because `peers` below replaces it. */
    struct device_info devices[DEVICE_MAX];
    /* Rate from the host to the slowest device. 0 if it is not known. */
    uint64_t link_in_bytes_per_s;
    /* Rate from the slowest device to the host. 0 if it is not known. */
    uint64_t link_out_bytes_per_s;
    /* Total rate from the host to all devices. 0 means no limit. */
    uint64_t all_links_in_bytes_per_s;
    /* Total rate from all devices to the host. 0 means the same as from the host. */
    uint64_t all_links_out_bytes_per_s;
    /* Rate between the slowest pair of devices. 0 if it is not known. */
    uint64_t peer_bytes_per_s;
    bool peers_by_link; /* transfers between devices use the host links */
    bool has_peers;     /* whether `peers` is known */
    /* The rate from one device to another, indexed by [from][to]. TOPOLOGY_PEER_DIRECT if the rate is not
     * known. 0 if there is no direct connection. */
    uint64_t peers[DEVICE_MAX][DEVICE_MAX];
    /* Number of bytes of host memory that jobs may use. 0 if it is not known. */
    uint64_t host_memory_bytes;
    /* Memory bandwidth of the host. 0 if it is not known. */
    uint64_t host_bytes_per_s;
    /* Memory bandwidth of a device. 0 if it is not known. */
    uint64_t device_bytes_per_s;
    uint64_t device_flops_per_s; /* 0: not known */
    /* Fixed cost of one instruction. 0 if it is not known. */
    uint64_t launch_ns;
    /* Number of cores that devices, host and transfers share. 0 means not known, and then there is no
     * limit. */
    uint32_t cores;
    /* Number of cores that one device task uses. 0 if it is not known. */
    uint32_t device_cores;
    /* Number of cores that one host task uses. 0 if it is not known. */
    uint32_t host_cores;
    /* Rate at which one core copies bytes. 0 if it is not known. */
    uint64_t core_copy_bytes_per_s;
};

/* Reads a topology from JSON of schema machine/v1, which may have // comments. `name` stands for the text in
 * messages. Returns -EINVAL if the topology is not valid. */
int topology_parse(const char *text, size_t bytes, const char *name, struct topology *ret, struct err *err);

/* Appends a topology to `b` as one line of JSON, without a newline. Leaves out unknown values. */
void topology_to_json(const struct topology *t, struct strbuf *b);

/* Returns a hash that identifies the devices of a topology. It does not depend on free memory and rates, so
 * it can be used to find earlier measurements. */
uint64_t topology_hash(const struct topology *t);

/* Number of bytes that the cuda backend needs on each device besides the plan. cuBLAS, partial sums and the
 * kernels of libraries use them. */
#define TOPOLOGY_CUDA_RESERVE_BYTES (256ull << 20)

/* Returns the number of bytes that the backend reserves for itself on each device. */
uint64_t topology_reserve_bytes(enum backend_id backend);

/* Returns how many bytes of a device plans may use. This is the free memory minus the backend's reserve,
 * rounded down to PLAN_ALIGN. */
uint64_t topology_usable_bytes(const struct topology *t, uint32_t device);

/* Returns half of this computer's memory, in bytes. This is the default limit for the host memory of jobs. */
uint64_t topology_default_host_bytes(void);

/* Sets the rates of *ret to those of the topology. Unknown rates get the backend's defaults. The caller must
 * then set `n_devices`, the capacities and `host_bytes`. */
void topology_machine(const struct topology *t, struct machine *ret);

#endif
