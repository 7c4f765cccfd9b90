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
/* Value in topology.peers for two devices that are directly connected at a rate that is not known. */
#define TOPOLOGY_PEER_DIRECT 1

struct topology {
    enum backend_id backend;
    /* Number of devices. 0 means that the devices are virtual: a job may then have as many as it wants. */
    uint32_t n_devices;
    /* The devices. The field `peer` of each device is not used here, because the array `peers` below has the
     * connections between devices. */
    struct device_info devices[DEVICE_MAX];
    /* Rate from the host to the device with the slowest link. 0 if the rate is not known. */
    uint64_t link_in_bytes_per_s;
    /* Rate to the host from the device with the slowest link. 0 if the rate is not known. */
    uint64_t link_out_bytes_per_s;
    /* Total rate from the host to all devices. 0 means that only the link of each device limits the rate. */
    uint64_t all_links_in_bytes_per_s;
    /* Total rate from all devices to the host. 0 means the same as from the host to the devices. */
    uint64_t all_links_out_bytes_per_s;
    /* Rate between the two devices with the slowest connection. 0 if the rate is not known. */
    uint64_t peer_bytes_per_s;
    bool peers_by_link; /* transfers between devices use the host links */
    bool has_peers;     /* whether `peers` is known */
    /* Rate from device `from` to device `to`, at [from][to]. 0 means that they are not directly connected.
     * TOPOLOGY_PEER_DIRECT means that they are, but that the rate is not known. */
    uint64_t peers[DEVICE_MAX][DEVICE_MAX];
    /* Number of bytes of host memory that jobs may use. 0 if the number is not known. */
    uint64_t host_memory_bytes;
    /* Rate at which the host reads and writes its memory. 0 if the rate is not known. */
    uint64_t host_bytes_per_s;
    /* Rate at which a device reads and writes its own memory. 0 if the rate is not known. */
    uint64_t device_bytes_per_s;
    uint64_t device_flops_per_s; /* 0: not known */
    /* Fixed time that every instruction takes, in nanoseconds. 0 if it is not known. */
    uint64_t launch_ns;
    /* Number of cores that virtual devices, the host and transfers share. 0 means that the number is not
     * known, and then cores limit nothing. */
    uint32_t cores;
    /* Number of cores that one task on a device uses. 0 if the number is not known. */
    uint32_t device_cores;
    /* Number of cores that one task on the host uses. 0 if the number is not known. */
    uint32_t host_cores;
    /* Rate at which one core copies bytes. 0 if the rate is not known. */
    uint64_t core_copy_bytes_per_s;
};

/* Reads a topology from JSON text of schema machine/v1, which may contain // comments. `name` is the name of
 * the text in error messages. */
int topology_parse(const char *text, size_t bytes, const char *name, struct topology *ret, struct err *err);

/* Appends a topology to `b` as JSON on a single line, without a newline at the end. Leaves out values that
 * are not known. */
void topology_to_json(const struct topology *t, struct strbuf *b);

/* Returns a hash that identifies the devices of a topology, to find earlier measurements. Free memory and
 * rates do not count. */
uint64_t topology_hash(const struct topology *t);

/* Number of bytes on each device that plans must leave free with the cuda backend. cuBLAS, partial sums and
 * library kernels need this memory. */
#define TOPOLOGY_CUDA_RESERVE_BYTES (256ull << 20)

/* Returns the number of bytes on each device that plans must leave free for the backend itself. */
uint64_t topology_reserve_bytes(enum backend_id backend);

/* Returns how many bytes of a device's memory plans may use: the free memory minus what the backend itself
 * needs, rounded down to a multiple of PLAN_ALIGN. */
uint64_t topology_usable_bytes(const struct topology *t, uint32_t device);

/* Returns half of this computer's memory, in bytes. This is how much host memory jobs may use by default. */
uint64_t topology_default_host_bytes(void);

/* Sets the rates of machine *ret; an unknown rate gets the default of the backend. The caller must set
 * `n_devices`, the capacities and `host_bytes`. */
void topology_machine(const struct topology *t, struct machine *ret);

#endif
