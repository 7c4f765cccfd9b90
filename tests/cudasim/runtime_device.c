/* Devices: how many, what they are, who reaches whom, errors by name, and reset. The properties are those
 * of a small invented GPU of compute capability 8.0. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#include "sim.h"

#define MULTIPROCESSORS 8

cudaError_t cudaGetDeviceCount(int *count)
{
    sim_enter();
    *count = sim.n_devices;
    return sim_leave(sim.n_devices == 0 ? cudaErrorNoDevice : cudaSuccess);
}

static bool exists(int device)
{
    return device >= 0 && device < sim.n_devices;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *ret, int device)
{
    sim_enter();
    if (!exists(device))
        return sim_leave(cudaErrorInvalidDevice);
    memset(ret, 0, sizeof *ret);
    snprintf(ret->name, sizeof ret->name, "cudasim");
    ret->uuid.bytes[0] = 'S';
    ret->uuid.bytes[15] = (char)device;
    ret->totalGlobalMem = sim.devices[device].capacity_bytes;
    ret->sharedMemPerBlock = 48 << 10;
    ret->sharedMemPerBlockOptin = SIMT_SHARED_BYTES;
    ret->sharedMemPerMultiprocessor = SIMT_SHARED_BYTES + 1024;
    ret->regsPerBlock = 65536;
    ret->regsPerMultiprocessor = 65536;
    ret->warpSize = 32;
    ret->maxThreadsPerBlock = SIMT_THREADS;
    ret->maxThreadsPerMultiProcessor = 2048;
    ret->maxBlocksPerMultiProcessor = 32;
    ret->maxThreadsDim[0] = ret->maxThreadsDim[1] = SIMT_THREADS;
    ret->maxThreadsDim[2] = 64;
    ret->maxGridSize[0] = 0x7fffffff;
    ret->maxGridSize[1] = ret->maxGridSize[2] = 65535;
    ret->totalConstMem = 64 << 10;
    ret->major = 8;
    ret->multiProcessorCount = MULTIPROCESSORS;
    ret->asyncEngineCount = 2;
    ret->unifiedAddressing = 1;
    ret->concurrentKernels = 1;
    ret->canMapHostMemory = 1;
    ret->l2CacheSize = 4 << 20;
    ret->memoryBusWidth = 5120;
    ret->pciBusID = device + 1;
    return sim_leave(cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int *ret, enum cudaDeviceAttr attribute, int device)
{
    struct cudaDeviceProp p;
    cudaError_t e = cudaGetDeviceProperties(&p, device);
    const struct {
        enum cudaDeviceAttr attribute;
        int value;
    } table[] = {
        {cudaDevAttrAsyncEngineCount, p.asyncEngineCount},
        {cudaDevAttrCanMapHostMemory, 1},
        {cudaDevAttrClockRate, 1410000},
        {cudaDevAttrComputeCapabilityMajor, p.major},
        {cudaDevAttrComputeCapabilityMinor, p.minor},
        {cudaDevAttrConcurrentKernels, 1},
        {cudaDevAttrGlobalMemoryBusWidth, p.memoryBusWidth},
        {cudaDevAttrHostRegisterSupported, 1},
        {cudaDevAttrL2CacheSize, p.l2CacheSize},
        {cudaDevAttrMaxSharedMemoryPerBlock, (int)p.sharedMemPerBlock},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, (int)p.sharedMemPerBlockOptin},
        {cudaDevAttrMaxThreadsPerBlock, p.maxThreadsPerBlock},
        {cudaDevAttrMaxThreadsPerMultiProcessor, p.maxThreadsPerMultiProcessor},
        {cudaDevAttrMemoryClockRate, 1215000},
        {cudaDevAttrMultiProcessorCount, p.multiProcessorCount},
        {cudaDevAttrPciBusId, p.pciBusID},
        {cudaDevAttrUnifiedAddressing, 1},
        {cudaDevAttrWarpSize, 32},
    };

    if (e != cudaSuccess)
        return e;
    *ret = 0;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].attribute == attribute)
            *ret = table[i].value;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device)
{
    sim_enter();
    if (!exists(device))
        return sim_leave(cudaErrorInvalidDevice);
    snprintf(text, (size_t)size, "0000:%02x:00.0", device + 1);
    return sim_leave(cudaSuccess);
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned flags)
{
    (void)flags;
    return cudaSuccess;
}

cudaError_t cudaDeviceReset(void)
{
    int device = sim_device();
    struct device *d;

    sim_enter();
    if (!exists(device))
        return sim_leave(cudaErrorNoDevice);
    d = &sim.devices[device];
    sim_await_device(device);
    memory_free_device(device);
    for (int i = sim.n_devices; i < SIM_HOST; i++)
        if (sim.streams[i].used && sim.streams[i].device == device)
            sim.streams[i].used = false;
    memset(d->peer, 0, sizeof d->peer);
    if (!d->gone)
        d->error = cudaSuccess;
    return sim_leave(d->error);
}

/* ---- peers -------------------------------------------------------------- */

cudaError_t cudaDeviceCanAccessPeer(int *ret, int device, int peer)
{
    sim_enter();
    if (!exists(device) || !exists(peer))
        return sim_leave(cudaErrorInvalidDevice);
    *ret = sim.peer_possible && device != peer;
    return sim_leave(cudaSuccess);
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    bool *enabled;
    cudaError_t e;

    (void)flags;
    sim_enter();
    e = sim_device_error(sim_device());
    if (e != cudaSuccess)
        return sim_leave(e);
    if (!exists(peer) || peer == sim_device())
        return sim_leave(cudaErrorInvalidDevice);
    if (!sim.peer_possible)
        return sim_leave(cudaErrorPeerAccessUnsupported);
    enabled = &sim.devices[sim_device()].peer[peer];
    if (*enabled)
        return sim_leave(cudaErrorPeerAccessAlreadyEnabled);
    *enabled = true;
    return sim_leave(cudaSuccess);
}

cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    bool *enabled;

    sim_enter();
    if (!exists(peer) || !exists(sim_device()))
        return sim_leave(cudaErrorInvalidDevice);
    enabled = &sim.devices[sim_device()].peer[peer];
    if (!*enabled)
        return sim_leave(cudaErrorPeerAccessNotEnabled);
    *enabled = false;
    return sim_leave(cudaSuccess);
}

/* ---- errors ------------------------------------------------------------- */

static const struct {
    cudaError_t error;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable",
     "CUDA-capable device(s) is/are busy or unavailable"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported",
     "peer access is not supported between these two devices"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
     "too many resources requested for launch"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled",
     "peer access is already enabled"},
    {cudaErrorPeerAccessNotEnabled, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const char *cudaGetErrorName(cudaError_t error)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].error == error)
            return errors[i].name;
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].error == error)
            return errors[i].text;
    return "unrecognized error code";
}
