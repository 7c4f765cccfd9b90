/* Implements nvml.h. The library is loaded with dlopen. Failures of its calls are ignored, because old
 * drivers lack some functions, and containers refuse others. */
#include "kernels/cuda/nvml.h"

#include <dlfcn.h>
#include <stdlib.h>

typedef int nvml_return; /* 0 means success */
typedef struct nvml_device_st *nvml_device;

/* The loaded library and its functions. If the library lacks a function, the pointer of that function is
 * NULL. */
struct nvml {
    void *library;
    nvml_return (*shutdown)(void);
    nvml_return (*device_by_bus_id)(const char *bus_id, nvml_device *ret);
    nvml_return (*pcie_generation)(nvml_device d, unsigned *ret);
    nvml_return (*pcie_width)(nvml_device d, unsigned *ret);
    nvml_return (*numa_node)(nvml_device d, unsigned *ret);
};

/* Stores the result of dlsym in a function pointer. ISO C does not allow a cast from a data pointer to a
 * function pointer, but POSIX allows the conversion. So the macro writes to the function pointer as if it
 * were a void pointer. */
#define LOAD(n, field, name) (*(void **)&(n)->field = dlsym((n)->library, name))

struct nvml *nvml_open(void)
{
    nvml_return (*init)(void);
    struct nvml *n = calloc(1, sizeof *n);
    if (n == NULL)
        return NULL;
    n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (n->library != NULL) {
        *(void **)&init = dlsym(n->library, "nvmlInit_v2");
        LOAD(n, shutdown, "nvmlShutdown");
        LOAD(n, device_by_bus_id, "nvmlDeviceGetHandleByPciBusId_v2");
        LOAD(n, pcie_generation, "nvmlDeviceGetMaxPcieLinkGeneration");
        LOAD(n, pcie_width, "nvmlDeviceGetMaxPcieLinkWidth");
        LOAD(n, numa_node, "nvmlDeviceGetNumaNodeId");
        if (init != NULL && n->shutdown != NULL && n->device_by_bus_id != NULL && init() == 0)
            return n;
        dlclose(n->library);
    }
    free(n);
    return NULL;
}

void nvml_close(struct nvml *n)
{
    if (n == NULL)
        return;
    n->shutdown();
    dlclose(n->library);
    free(n);
}

/* Reports the fastest speed that the device and its slot support. The current speed would be misleading,
 * because a link runs slower while it is idle. */
static void describe_link(const struct nvml *n, nvml_device device, struct device_info *d)
{
    unsigned generation, width;
    if (n->pcie_generation == NULL || n->pcie_width == NULL)
        return;
    if (n->pcie_generation(device, &generation) == 0 && n->pcie_width(device, &width) == 0) {
        d->pcie_generation = generation;
        d->pcie_width = width;
    }
}

void nvml_describe(const struct nvml *n, struct device_info *d)
{
    nvml_device device;
    unsigned node;
    if (n == NULL || n->device_by_bus_id(d->bus_id, &device) != 0)
        return;
    describe_link(n, device, d);
    if (n->numa_node != NULL && n->numa_node(device, &node) == 0)
        d->numa_node = (int32_t)node;
}
