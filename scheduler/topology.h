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

#define TOPOLOGY_SCHEMA      "machine/v1"
#define TOPOLOGY_MAX_CORES   4096
#define TOPOLOGY_PEER_DIRECT 1 /* value in `peers`: a direct connection whose rate is not known */

struct topology {
    enum backend_id backend;
    uint32_t n_devices;                     /* 0: devices are virtual, and jobs may have any number */
    struct device_info devices[DEVICE_MAX]; /* the field `peer` is not used; `peers` below replaces it */
    uint64_t link_in_bytes_per_s;           /* rate from host to the slowest device; 0: not known */
    uint64_t link_out_bytes_per_s;          /* rate from the slowest device to the host; 0: not known */
    uint64_t all_links_in_bytes_per_s;      /* total rate from host to all devices; 0: no limit */
    uint64_t all_links_out_bytes_per_s;     /* total rate to the host; 0: same as from the host */
    uint64_t peer_bytes_per_s;              /* rate between the slowest pair of devices; 0: not known */
    bool peers_by_link;                     /* transfers between devices use the host links */
    bool has_peers;                         /* whether `peers` is known */
    /* [from][to]: bytes per second, or TOPOLOGY_PEER_DIRECT; 0: no direct connection. */
    uint64_t peers[DEVICE_MAX][DEVICE_MAX];
    uint64_t host_memory_bytes;     /* host memory that jobs may use; 0: not known */
    uint64_t host_bytes_per_s;      /* memory bandwidth of the host; 0: not known */
    uint64_t device_bytes_per_s;    /* memory bandwidth of a device; 0: not known */
    uint64_t device_flops_per_s;    /* 0: not known */
    uint64_t launch_ns;             /* fixed cost of one instruction; 0: not known */
    uint32_t cores;                 /* cores that devices, host and transfers share; 0: not known, no limit */
    uint32_t device_cores;          /* cores that one device task uses; 0: not known */
    uint32_t host_cores;            /* cores that one host task uses; 0: not known */
    uint64_t core_copy_bytes_per_s; /* bytes per second that one core copies; 0: not known */
};

/* Reads a topology from JSON of schema machine/v1. Accepts // comments. `name` stands for the text in
 * messages, for example a file name. Returns -EINVAL for text that is not a valid topology. */
int topology_parse(const char *text, size_t bytes, const char *name, struct topology *ret, struct err *err);

/* Appends a topology to `b` as one line of JSON, without a newline and without the
 * values that are not known. */
void topology_to_json(const struct topology *t, struct strbuf *b);

/* Returns a hash that identifies the devices of a topology: backend, names, ids and sizes. Free memory and
 * rates do not change the hash, so it can be used to find earlier measurements of the same devices. */
uint64_t topology_hash(const struct topology *t);

/* Memory that the cuda backend needs on each device besides the plan: the workspace of cuBLAS, partial sums,
 * and kernels that libraries load at their first use. */
#define TOPOLOGY_CUDA_RESERVE_BYTES (256ull << 20)

/* Returns the bytes that the backend reserves for itself on each device. */
uint64_t topology_reserve_bytes(enum backend_id backend);

/* Returns the bytes of a device that plans may use: its free memory less the backend's reserve,
 * rounded down to PLAN_ALIGN. */
uint64_t topology_usable_bytes(const struct topology *t, uint32_t device);

/* Returns half of this computer's memory: the host bytes that jobs may use when nobody says otherwise. */
uint64_t topology_default_host_bytes(void);

/* Sets the rates of *ret to those of the topology, or to the backend's defaults where the topology has none.
 * *ret has no devices yet: the caller sets n_devices, the capacities and host_bytes. */
void topology_machine(const struct topology *t, struct machine *ret);

#endif
