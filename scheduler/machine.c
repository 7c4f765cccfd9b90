/* Default rates for two kinds of machine: virtual cpu devices, and GPUs behind a PCIe link. They apply where
 * no rate was measured or read from a file (topology.h).
 *
 * The rates are round figures and deliberately not measured. A plan then depends only on the job
 * and the memory that it may use, so that another computer makes the same plan. The figures have
 * about the right proportion to each other, and this proportion decides whether the planner pins,
 * moves or recomputes a tensor.
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
