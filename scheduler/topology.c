/* Implements topology.h, except for the JSON, which is in topology_json.c.
 *
 * topology_machine takes every rate from the best source there is. A rate in the topology comes first.
 * Without one, the rate of the host link follows from its PCIe generation and width: large transfers reach
 * about four fifths of what the lanes carry. All other rates fall back to the backend's defaults (machine.c).
 */
#include "scheduler/topology.h"

#include <string.h>
#include <unistd.h>

const char *const backend_names[BACKEND_COUNT + 1] = {[BACKEND_CPU] = "cpu", [BACKEND_CUDA] = "cuda"};

/* ---- hash ---- */

static uint64_t fnv(uint64_t h, const void *p, size_t n)
{
    const uint8_t *at = p;
    for (size_t i = 0; i < n; i++)
        h = (h ^ at[i]) * 0x100000001b3ull;
    return h;
}

static uint64_t hash_text(uint64_t h, const char *s)
{
    return fnv(h, s, strlen(s) + 1);
}

uint64_t topology_hash(const struct topology *t)
{
    uint64_t h = hash_text(0xcbf29ce484222325ull, backend_names[t->backend]);
    for (uint32_t i = 0; i < t->n_devices; i++) {
        const struct device_info *d = &t->devices[i];
        h = hash_text(h, d->name);
        h = hash_text(h, d->bus_id);
        h = hash_text(h, d->uuid);
        h = fnv(h, &d->total_bytes, sizeof d->total_bytes);
    }
    if (t->n_devices == 0) /* virtual devices are made of host memory */
        h = fnv(h, &t->host_memory_bytes, sizeof t->host_memory_bytes);
    return h;
}

/* ---- memory ---- */

uint64_t topology_reserve_bytes(enum backend_id backend)
{
    return backend == BACKEND_CUDA ? TOPOLOGY_CUDA_RESERVE_BYTES : 0;
}

uint64_t topology_usable_bytes(const struct topology *t, uint32_t device)
{
    uint64_t free_bytes = t->devices[device].free_bytes, reserve = topology_reserve_bytes(t->backend);
    return free_bytes > reserve ? (free_bytes - reserve) & ~(uint64_t)(PLAN_ALIGN - 1) : 0;
}

/* ---- rates ---- */

/* Rate of one PCIe lane in bytes per second, indexed by PCIe generation. */
static const uint64_t lane_bytes_per_s[] = {0,          250000000,  500000000, 984600000,
                                            1969200000, 3938400000, 7876900000};

/* Returns the rate of the slowest PCIe link of all devices, in bytes per second. Returns 0 if the link of any
 * of the devices is not known. */
static uint64_t pcie_bytes_per_s(const struct topology *t)
{
    const uint32_t known = sizeof lane_bytes_per_s / sizeof lane_bytes_per_s[0];
    uint64_t least = 0;
    for (uint32_t i = 0; i < t->n_devices; i++) {
        const struct device_info *d = &t->devices[i];
        if (d->pcie_generation == 0 || d->pcie_generation >= known || d->pcie_width == 0)
            return 0;
        uint64_t rate = lane_bytes_per_s[d->pcie_generation] * d->pcie_width / 5 * 4;
        if (least == 0 || rate < least)
            least = rate;
    }
    return least;
}

static bool any_direct(const struct topology *t)
{
    for (uint32_t i = 0; i < t->n_devices; i++)
        for (uint32_t k = 0; k < t->n_devices; k++)
            if (i != k && t->peers[i][k] != 0)
                return true;
    return false;
}

static void set_if_known(uint64_t *to, uint64_t known)
{
    if (known > 0)
        *to = known;
}

/* Sets how many cores tasks use. A task on a virtual cpu device uses cores of the host. A task on a GPU uses
 * none of them. */
static void set_cores(const struct topology *t, struct machine *m)
{
    bool host_is_device = t->backend == BACKEND_CPU;
    uint32_t all = t->cores;
    if (all == 0)
        return;
    m->cores = all;
    m->device_cores = t->device_cores > 0 ? t->device_cores : host_is_device ? all : 0;
    m->host_cores = t->host_cores > 0 ? t->host_cores : all;
    m->core_copy_bytes_per_s = host_is_device ? m->link_bytes_per_s : 0;
    set_if_known(&m->core_copy_bytes_per_s, t->core_copy_bytes_per_s);
}

void topology_machine(const struct topology *t, struct machine *ret)
{
    if (t->backend == BACKEND_CUDA)
        machine_init_cuda(ret);
    else
        machine_init_cpu(ret, 1, 0, 0);
    ret->n_devices = 0;
    set_if_known(&ret->link_bytes_per_s, pcie_bytes_per_s(t));
    set_if_known(&ret->link_bytes_per_s, t->link_in_bytes_per_s);
    set_if_known(&ret->link_out_bytes_per_s, t->link_out_bytes_per_s);
    set_if_known(&ret->all_links_bytes_per_s, t->all_links_in_bytes_per_s);
    set_if_known(&ret->all_links_out_bytes_per_s, t->all_links_out_bytes_per_s);
    if (t->has_peers && t->n_devices > 1 && !any_direct(t))
        ret->peer_bytes_per_s = ret->link_bytes_per_s / 2; /* transfers pass over two host links */
    set_if_known(&ret->peer_bytes_per_s, t->peer_bytes_per_s);
    ret->peers_by_link = t->peers_by_link;
    set_if_known(&ret->host_bytes_per_s, t->host_bytes_per_s);
    ret->host_shared_bytes_per_s = t->host_bytes_per_s; /* a default rate must not limit anything */
    set_if_known(&ret->device_bytes_per_s, t->device_bytes_per_s);
    set_if_known(&ret->device_flops_per_s, t->device_flops_per_s);
    set_if_known(&ret->launch_ns, t->launch_ns);
    set_cores(t, ret);
}

uint64_t topology_default_host_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size / 2 : 1ull << 30;
}
