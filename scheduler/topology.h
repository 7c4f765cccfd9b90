/* What a machine has: devices, links between them, rates; found by looking or read from a file. A struct machine is
 * what one plan may use of it.
 *
 * Plain data, and pure: text in, struct out, and back. The text is JSON of schema machine/v1 (docs/machine.md), so that
 * a plan can be made for a machine that is elsewhere. Whatever was not said is 0 (or "", or -1) and takes a round
 * figure of the backend when a plan is made.
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
#define TOPOLOGY_PEER_DIRECT 1 /* in `peers`: copies go directly, at a rate that is not known */

struct topology {
    enum backend_id backend;
    uint32_t n_devices;                     /* 0: virtual ones, as many as one likes */
    struct device_info devices[DEVICE_MAX]; /* but for their `peer` */
    uint64_t link_in_bytes_per_s;           /* host to device, the slowest of the devices; 0: not known */
    uint64_t link_out_bytes_per_s;          /* device to host */
    uint64_t all_links_in_bytes_per_s;      /* host to all devices together; 0: each link at its full speed */
    uint64_t all_links_out_bytes_per_s;     /* back; 0: as in */
    uint64_t peer_bytes_per_s;              /* between two devices, the slowest pair */
    bool peers_by_link;                     /* over the host links, not links of their own */
    bool has_peers;
    uint64_t peers[DEVICE_MAX]
                  [DEVICE_MAX]; /* [from][to]: bytes/s, or TOPOLOGY_PEER_DIRECT; 0: not directly */
    uint64_t host_memory_bytes; /* that jobs may use; 0: not known */
    uint64_t host_bytes_per_s, device_bytes_per_s, device_flops_per_s, launch_ns;
    uint32_t cores;                    /* that devices, host and copies share; 0: not said, no limit */
    uint32_t device_cores, host_cores; /* of one task; 0: not said */
    uint64_t core_copy_bytes_per_s;
};

/* `name` stands for the text in messages; // comments are accepted. */
int topology_parse(const char *text, size_t bytes, const char *name, struct topology *ret, struct err *err);
/* One JSON object on one line, without a newline. What is not known is left out. */
void topology_to_json(const struct topology *t, struct strbuf *b);

/* Names the devices (backend, names, ids, sizes), not what is free or how fast they are: for finding what was once
 * measured of them. */
uint64_t topology_hash(const struct topology *t);

/* Of what is free on a device the backend keeps some for itself. cuda: cuBLAS's workspace, partial sums, and kernels that
 * its libraries load when they are first needed. */
#define TOPOLOGY_CUDA_RESERVE_BYTES (256ull << 20)
uint64_t topology_reserve_bytes(enum backend_id backend);
uint64_t topology_usable_bytes(const struct topology *t, uint32_t device); /* free less the reserve */

/* A machine with the rates of the topology, or the backend's round figures; its devices are to be filled in. */
void topology_machine(const struct topology *t, struct machine *ret);

#endif
