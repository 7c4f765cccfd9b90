/* Machines in round figures: the embedded default, cpu devices, which are a slice of the host itself; and a GPU behind a
 * PCIe link, for what was neither measured nor read from a file (topology.h).
 *
 * The rates are round figures, the same on every computer, and deliberately not measured: a plan then depends
 * on the job and the budgets alone, so that it can be compared, stored and made again elsewhere. They are in
 * about the right proportion to each other, which is what decides between keeping, moving and recomputing.
 */
#include "scheduler/machine.h"

#include <assert.h>

#define GIGA 1000000000ull

void machine_init_cpu(struct machine *m, uint32_t n_devices, uint64_t capacity_bytes, uint64_t host_bytes)
{
    assert(n_devices >= 1 && n_devices <= DEVICE_MAX);

    *m = (struct machine){
        .n_devices = n_devices,
        .host_bytes = host_bytes,
        .link_bytes_per_s = 8 * GIGA,
        .peer_bytes_per_s = 8 * GIGA,
        .device_flops_per_s = 100 * GIGA,
        .device_bytes_per_s = 10 * GIGA,
        .host_bytes_per_s = 10 * GIGA,
        .launch_ns = 5000,
    };
    for (uint32_t d = 0; d < n_devices; d++)
        m->capacity_bytes[d] = capacity_bytes;
}

void machine_init_cuda(struct machine *m)
{
    *m = (struct machine){
        .link_bytes_per_s = 12 * GIGA,
        .peer_bytes_per_s = 10 * GIGA,
        .device_flops_per_s = 10000 * GIGA,
        .device_bytes_per_s = 500 * GIGA,
        .host_bytes_per_s = 20 * GIGA,
        .launch_ns = 10000,
    };
}
