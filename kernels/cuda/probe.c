/* Lists the CUDA devices of this machine: their memory and which devices can access each other directly.
 * NVML and /sys, if available, add the link and the NUMA node.
 *
 * The order of the devices is the runtime's, so CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER work in the
 * same way here and when a devset is opened.
 *
 * Free memory is measured with a context on the device, because a context itself takes some hundred MiB.
 * The memory that is then left is what a devset will find. The context is destroyed afterwards, so that
 * the process holds no memory on devices that it does not use. It is created only on request, because a
 * second context may not fit on a device that a job fills completely. A device that refuses a context,
 * such as an exclusive one that another process holds, has nothing free.
 *
 * A device that cannot be queried is left out. If no device is left, the error says why. Errors of the
 * runtime are cleared, so that later calls do not report them.
 */
#include <ctype.h>
#include <cuda_runtime_api.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/nvml.h"
#include "kernels/cuda/probe.h"

/* Returns true if a CUDA call succeeded. The CUDA runtime stores the error of a failed call. This function
 * clears the stored error, so that no later call reports it. */
static bool ok(cudaError_t e)
{
    if (e != cudaSuccess)
        (void)cudaGetLastError();
    return e == cudaSuccess;
}

/* ---- one device ---- */

static void copy_uuid(const cudaUUID_t *u, char *ret, size_t size)
{
    const unsigned char *b = (const unsigned char *)u->bytes;
    snprintf(ret, size, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
             b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

/* Writes the device's PCI bus id to `ret` in lower case, as in the paths of /sys. Writes "" if it is not
 * known. */
static void find_bus_id(int device, char *ret, size_t size)
{
    if (!ok(cudaDeviceGetPCIBusId(ret, (int)size, device)))
        ret[0] = '\0';
    for (char *p = ret; *p != '\0'; p++)
        *p = (char)tolower((unsigned char)*p);
}

static int32_t numa_node_of(const char *bus_id)
{
    char path[96];
    int node = -1;
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", bus_id);
    FILE *f = bus_id[0] != '\0' ? fopen(path, "re") : NULL;
    if (f == NULL)
        return -1;
    if (fscanf(f, "%d", &node) != 1)
        node = -1;
    fclose(f);
    return node;
}

/* Returns the number of free bytes of a device. The number is measured with a CUDA context on the device,
 * which is destroyed afterwards. Returns 0 if the device refuses a context. */
static uint64_t ask_free(int device)
{
    size_t free_bytes = 0, total_bytes;
    if (!ok(cudaSetDevice(device)) || !ok(cudaMemGetInfo(&free_bytes, &total_bytes)))
        free_bytes = 0;
    (void)ok(cudaDeviceReset());
    return free_bytes;
}

/* Fills in all fields of *ret for one device. Measures the free memory of the device only if `ask` is
 * true. */
static int describe(int device, const struct nvml *nvml, bool ask, struct device_info *ret, struct err *err)
{
    struct cudaDeviceProp p;
    cudaError_t e = cudaGetDeviceProperties(&p, device);
    if (!ok(e))
        return err_set(err, -ENODEV, "device %d: CUDA cannot read its properties: %s", device,
                       cudaGetErrorString(e));
    *ret = (struct device_info){.index = (uint32_t)device, .total_bytes = p.totalGlobalMem};
    snprintf(ret->name, sizeof ret->name, "%.*s", (int)sizeof ret->name - 1, p.name);
    copy_uuid(&p.uuid, ret->uuid, sizeof ret->uuid);
    find_bus_id(device, ret->bus_id, sizeof ret->bus_id);
    ret->numa_node = numa_node_of(ret->bus_id);
    nvml_describe(nvml, ret);
    if (ask)
        ret->free_bytes = ask_free(device);
    if (ret->free_bytes > ret->total_bytes)
        ret->free_bytes = ret->total_bytes;
    return 0;
}

static void find_peers(struct device_info *all, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < n; k++) {
            int can = 0;
            all[i].peer[k] =
                i != k && ok(cudaDeviceCanAccessPeer(&can, (int)all[i].index, (int)all[k].index)) && can != 0;
        }
    }
}

static int find_device_count(int *ret, struct err *err)
{
    cudaError_t e = cudaGetDeviceCount(ret);
    (void)ok(e);
    if (e == cudaErrorInsufficientDriver)
        return err_set(err, -ENODEV, "no NVIDIA driver is running here, or it is older than CUDA %d.%d needs",
                       CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (e == cudaErrorNoDevice || (e == cudaSuccess && *ret == 0))
        return err_set(err, -ENODEV,
                       "there is an NVIDIA driver but no device that this process may use; "
                       "check CUDA_VISIBLE_DEVICES");
    return e == cudaSuccess ? 0
                            : err_set(err, -ENODEV, "CUDA cannot be initialized: %s", cudaGetErrorString(e));
}

int cuda_probe(uint64_t asked, struct device_info *ret, uint32_t max, uint32_t *ret_n, struct err *err)
{
    int count = 0, r = find_device_count(&count, err);
    uint32_t n = 0;
    *ret_n = 0;
    if (r < 0)
        return r;
    struct nvml *nvml = nvml_open();
    for (int i = 0; i < count && n < max; i++) {
        r = describe(i, nvml, i < 64 && asked >> i & 1, &ret[n], err);
        n += r == 0;
    }
    nvml_close(nvml);
    if (n == 0)
        return r;
    find_peers(ret, n);
    *ret_n = n;
    return 0;
}
