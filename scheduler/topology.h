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
    /* Indexed by [from][to]: the rate in bytes per second, or TOPOLOGY_PEER_DIRECT. 0 if there is no
     * direct connection. */
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
    /* Number of cores that devices, host and transfers share. 0 if it is not known, which means no limit. */
    uint32_t cores;
    /* Number of cores that one device task uses. 0 if it is not known. */
    uint32_t device_cores;
    /* Number of cores that one host task uses. 0 if it is not known. */
    uint32_t host_cores;
    /* Rate at which one core copies bytes. 0 if it is not known. */
    uint64_t core_copy_bytes_per_s;
};

/* Reads a topology from JSON of schema machine/v1. Accepts // comments. `name` is the name of the text
 * in messages, such as a file name. Returns -EINVAL if the text is not a valid topology. */
int topology_parse(const char *text, size_t bytes, const char *name, struct topology *ret, struct err *err);

/* Appends a topology to `b` as one line of JSON, without a newline. Leaves out values that are not known. */
void topology_to_json(const struct topology *t, struct strbuf *b);

/* Returns a hash that identifies the devices of a topology by backend, names, ids and sizes. The hash
 * does not depend on free memory and rates, so it can be used to find earlier measurements of the same
 * devices. */
uint64_t topology_hash(const struct topology *t);

/* Number of bytes that the cuda backend needs on each device in addition to the plan. They are for the
 * workspace of cuBLAS, partial sums, and kernels that libraries load at their first use. */
#define TOPOLOGY_CUDA_RESERVE_BYTES (256ull << 20)

/* Returns the number of bytes that the backend reserves for itself on each device. */
uint64_t topology_reserve_bytes(enum backend_id backend);

/* Returns the number of bytes of a device that plans may use. This is the free memory minus the
 * backend's reserve, rounded down to PLAN_ALIGN. */
uint64_t topology_usable_bytes(const struct topology *t, uint32_t device);

/* Returns half of this computer's memory, in bytes. Jobs may use this much host memory if nothing else
 * is configured. */
uint64_t topology_default_host_bytes(void);

/* Sets the rates of *ret to those of the topology, or to the backend's defaults if the topology has
 * none. *ret has no devices yet: the caller sets n_devices, the capacities and host_bytes. */
void topology_machine(const struct topology *t, struct machine *ret);

#endif
