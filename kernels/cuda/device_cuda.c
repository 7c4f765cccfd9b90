/* The cuda backend: opening and closing devices, their memory, and the entry point of the module.
 *
 * Without a device_index in the config, a devset takes CUDA's devices 0 to n - 1, in the order that
 * CUDA_VISIBLE_DEVICES gives them. On each device, the arena is one cudaMalloc of the capacity, and the
 * plan's addresses lie in it. Everything else that an op, a copy or a wait may need is made here as well:
 * streams, the cuBLAS handle with its workspace, memory for partial sums, and buffers for copies between
 * devices that cannot access each other. The kernels are loaded here too.
 *
 * device.h states the order of calls and the threads.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cublas_v2.h>

#include "base/arena.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/probe.h"

static const struct backend module_backend;

/* ---- is there anything to open? ---- */

/* Checks that CUDA has at least `wanted` devices. If not, returns a negative errno, and `err` says what is
 * missing. */
static int check_device_count(uint32_t wanted, struct err *err)
{
    /* Initialize `n`, because cudaGetDeviceCount does not write to `n` if there is no driver. */
    int n = 0;
    const cudaError_t e = cudaGetDeviceCount(&n);

    cuda_errno(e);
    if (e == cudaErrorInsufficientDriver)
        return err_set(err, -ENODEV, "no NVIDIA driver is running here, or it is older than CUDA %d.%d needs",
                       CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (e == cudaErrorNoDevice || (e == cudaSuccess && n == 0))
        return err_set(err, -ENODEV,
                       "there is an NVIDIA driver but no device that this process may use; "
                       "check CUDA_VISIBLE_DEVICES");
    if (e != cudaSuccess)
        return err_set(err, -ENODEV, "CUDA cannot be initialized: %s", cudaGetErrorString(e));
    if ((uint32_t)n < wanted)
        return err_set(err, -ENODEV,
                       "%" PRIu32 " devices were requested but CUDA has %d; request fewer, or check "
                       "CUDA_VISIBLE_DEVICES",
                       wanted, n);
    return 0;
}

/* ---- arenas ---- */

/* Allocates an arena of `bytes` bytes on device `d`. Returns an error if fewer than `beside_bytes` bytes
 * would then be free for other uses. */
static int open_arena(struct cuda_devset *ds, uint32_t d, uint64_t bytes, uint64_t beside_bytes,
                      struct err *err)
{
    size_t free_bytes = 0, total_bytes = 0;
    void *p = NULL;
    int r = cuda_errno(cudaSetDevice(ds->number[d]));

    if (r == 0)
        r = cuda_errno(cudaMemGetInfo(&free_bytes, &total_bytes));
    if (r < 0)
        return err_set(err, r, "device %" PRIu32 ": the device does not respond", d);
    const uint64_t most = free_bytes > beside_bytes ? free_bytes - beside_bytes : 0;
    if (bytes <= most)
        r = cuda_errno(cudaMalloc(&p, bytes));
    else
        r = -ENOMEM;
    if (r < 0)
        return err_set(err, r,
                       "device %" PRIu32 " cannot provide %" PRIu64
                       " bytes for its arena: %zu of its %zu bytes are free, and %" PRIu64
                       " of these can be used; lower the device's capacity or free memory on it",
                       d, bytes, free_bytes, total_bytes, most / DEVICE_ALIGN * DEVICE_ALIGN);
    ds->base.arena[d] = p;
    ds->base.capacity_bytes[d] = bytes;
    return 0;
}

static void release(struct devset *base)
{
    for (uint32_t d = 0; d < base->n_devices; d++)
        if (base->arena[d]) {
            cuda_errno(cudaSetDevice(cuda(base)->number[d]));
            cuda_errno(cudaFree(base->arena[d]));
            base->arena[d] = NULL;
        }
}

static int acquire(struct devset *base, const uint64_t *capacity_bytes, struct err *err)
{
    for (uint32_t d = 0; d < base->n_devices; d++) {
        const int r = open_arena(cuda(base), d, capacity_bytes[d], CUDA_SPARE_BYTES, err);
        if (r < 0) {
            release(base);
            return r;
        }
    }
    return 0;
}

/* ---- devices ---- */

/* Creates one stream of a devset. Before the call, the caller must make the stream's device the current
 * device of CUDA. */
static int open_stream(struct cuda_devset *ds, uint32_t stream)
{
    struct cuda_stream *s = &ds->streams[stream];

    CUDA_TRY(&ds->fault, cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking));
    CUDA_TRY(&ds->fault,
             cudaEventCreateWithFlags(&s->drained, cudaEventDisableTiming | cudaEventBlockingSync));
    return 0;
}

/* Creates the cuBLAS handle of a device. cublasSetStream resets the workspace, so it must be called before
 * cublasSetWorkspace. Each product names its own kind of arithmetic (cuda_ops.c). The math mode forbids
 * cuBLAS to add up parts of a sum as 16-bit numbers, which would round more than once. */
static int open_blas(struct cuda_device *dev)
{
    struct cuda_fault *f = dev->compute.fault;

    CUDA_TRY(f, cudaMalloc(&dev->workspace, CUDA_WORKSPACE_BYTES));
    CUBLAS_TRY(f, cublasCreate(&dev->compute.blas));
    CUBLAS_TRY(f, cublasSetStream(dev->compute.blas, dev->compute.stream));
    CUBLAS_TRY(f, cublasSetWorkspace(dev->compute.blas, dev->workspace, CUDA_WORKSPACE_BYTES));
    CUBLAS_TRY(f, cublasSetMathMode(dev->compute.blas,
                                    (cublasMath_t)((int)CUBLAS_DEFAULT_MATH |
                                                   (int)CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)));
    CUBLAS_TRY(f, cublasSetAtomicsMode(dev->compute.blas, CUBLAS_ATOMICS_NOT_ALLOWED));
    return 0;
}

/* Launches every kernel once on empty input, so that CUDA loads all kernels now and not during a training
 * step. */
static int warm_up(const struct cuda_compute *at)
{
    static int (*const files[])(const struct cuda_compute *at) = {
        cuda_warm_attention, cuda_warm_elementwise, cuda_warm_loss,  cuda_warm_product,
        cuda_warm_rownorm,   cuda_warm_tokens,      cuda_warm_update};
    int r = 0;

    for (size_t i = 0; r == 0 && i < sizeof files / sizeof files[0]; i++)
        r = files[i](at);
    return r;
}

static int open_device_parts(struct cuda_devset *ds, uint32_t d)
{
    struct cuda_device *dev = &ds->devices[d];
    int r;

    for (uint32_t lane = 0; lane < LANE_COUNT; lane++) {
        r = open_stream(ds, LANE_COUNT * d + lane);
        if (r < 0)
            return r;
    }
    dev->compute.fault = &ds->fault;
    dev->compute.tf32 = ds->tf32;
    dev->compute.stream = ds->streams[LANE_COUNT * d + LANE_COMPUTE].stream;
    CUDA_TRY(&ds->fault, cudaMalloc((void **)&dev->compute.partials, CUDA_PARTIALS_BYTES));
    CUDA_TRY(&ds->fault, cudaMalloc((void **)&dev->compute.sums, CUDA_SUMS_BYTES));
    r = open_blas(dev);
    return r < 0 ? r : warm_up(&dev->compute);
}

static int open_device(struct cuda_devset *ds, uint32_t d, uint64_t capacity_bytes, struct err *err)
{
    int r = open_arena(ds, d, capacity_bytes,
                       CUDA_WORKSPACE_BYTES + CUDA_PARTIALS_BYTES + CUDA_SUMS_BYTES + CUDA_SPARE_BYTES, err);

    if (r < 0)
        return r;
    r = open_device_parts(ds, d);
    if (r < 0)
        return err_set(err, r, "device %" PRIu32 " cannot be used; the log says which call failed", d);
    return 0;
}

static void close_device(struct cuda_devset *ds, uint32_t d)
{
    struct cuda_device *dev = &ds->devices[d];

    cuda_errno(cudaSetDevice(ds->number[d]));
    if (dev->compute.blas)
        cublasDestroy(dev->compute.blas);
    cuda_errno(cudaFree(dev->workspace));
    cuda_errno(cudaFree(dev->compute.partials));
    cuda_errno(cudaFree(dev->compute.sums));
}

/* ---- names ---- */

/* Writes the version of cuBLAS, the use of TF32 and the kinds of devices to ds->numerics, because the bits
 * of a matrix product depend on them. Several devices of one kind are named once. */
static int name_devices(struct cuda_devset *ds)
{
    char *at = ds->numerics, *end = ds->numerics + sizeof ds->numerics;
    int version = 0;

    CUBLAS_TRY(&ds->fault, cublasGetVersion(ds->devices[0].compute.blas, &version));
    at += snprintf(at, (size_t)(end - at), "cuda cuBLAS %d.%d.%d%s", version / 10000, version / 100 % 100,
                   version % 100, ds->tf32 ? " TF32" : "");
    for (uint32_t d = 0; d < ds->base.n_devices; d++) {
        struct cudaDeviceProp p;
        char kind[sizeof p.name + 32];
        CUDA_TRY(&ds->fault, cudaGetDeviceProperties(&p, ds->number[d]));
        snprintf(kind, sizeof kind, " sm_%d%d %s", p.major, p.minor, p.name);
        if (!strstr(ds->numerics, kind) && strlen(kind) < (size_t)(end - at))
            at += snprintf(at, (size_t)(end - at), "%s", kind);
    }
    return 0;
}

static const char *numerics(const struct devset *base)
{
    return ((const struct cuda_devset *)base)->numerics;
}

/* ---- which device is broken ---- */

/* Asks each device for the state of its compute stream. A broken device answers every call with its error. If
 * the compute stream of a device was never created, its handle is NULL, which CUDA takes as the default
 * stream. */
static void blame(struct devset *base, struct device_blame *ret)
{
    struct cuda_devset *ds = cuda(base);

    for (uint32_t d = 0; d < base->n_devices; d++) {
        cudaError_t e = cudaSetDevice(ds->number[d]);
        if (e == cudaSuccess)
            e = cudaStreamQuery(ds->streams[LANE_COUNT * d + LANE_COMPUTE].stream);
        if (e == cudaErrorNotReady || e == cudaErrorMemoryAllocation || cuda_errno(e) == 0)
            continue;
        if (!ret->devices)
            snprintf(ret->why, sizeof ret->why, "%s", cudaGetErrorString(e));
        ret->devices |= UINT64_C(1) << d;
    }
    cuda_errno(cudaGetLastError());
}

/* ---- open and close ---- */

/* Creates the host's stream, which is a CUDA stream of device 0, and the pool of threads that run the host's
 * ops. */
static int open_host(struct cuda_devset *ds, uint32_t threads, struct err *err)
{
    int r = CUDA_CHECK(&ds->fault, cudaSetDevice(ds->number[0]));

    if (r == 0)
        r = open_stream(ds, ds->n_streams - 1);
    if (r < 0)
        return err_set(err, r, "cannot create the host's stream");
    return host_queue_init(&ds->host, threads, &ds->fault, err);
}

static int open_parts(struct cuda_devset *ds, const struct devset_config *config, struct err *err)
{
    int r;

    for (uint32_t d = 0; d < config->n_devices; d++) {
        r = open_device(ds, d, config->capacity_bytes[d], err);
        if (r < 0)
            return r;
    }
    r = peer_open(ds, err);
    if (r == 0)
        r = open_host(ds, config->threads, err);
    if (r < 0)
        return r;
    r = name_devices(ds);
    if (r == 0)
        r = cuda_drain(&ds->base); /* waits for the kernels of warm_up */
    return r < 0 ? err_set(err, r, "the devices cannot be used; the log says which call failed") : 0;
}

/* Frees the devset with all its parts. A devset that cuda_open has built only in part can be freed too. */
static void destroy(struct cuda_devset *ds)
{
    for (uint32_t i = 0; i < ds->n_streams; i++) {
        if (ds->streams[i].drained)
            cuda_errno(cudaEventDestroy(ds->streams[i].drained));
        if (ds->streams[i].stream)
            cuda_errno(cudaStreamDestroy(ds->streams[i].stream));
    }
    peer_close(ds);
    host_queue_finish(&ds->host);
    for (uint32_t d = 0; d < ds->base.n_devices; d++)
        close_device(ds, d);
    release(&ds->base);
    host_memory_finish(ds);
    free(ds);
}

static uint32_t device_number(const struct devset_config *config, uint32_t d)
{
    return config->device_index != NULL ? config->device_index[d] : d;
}

static int cuda_open(const struct devset_config *config, struct devset **ret, struct err *err)
{
    struct cuda_devset *ds;
    uint32_t wanted = 0;
    int r;

    if (config->threads < 1)
        return err_set(err, -EINVAL, "the cuda backend needs at least 1 thread, for the host's stream");
    for (uint32_t d = 0; d < config->n_devices; d++)
        if (device_number(config, d) >= wanted)
            wanted = device_number(config, d) + 1;
    r = check_device_count(wanted, err);
    if (r < 0)
        return r;
    ds = xcalloc(1, sizeof *ds);
    ds->base.backend = &module_backend;
    ds->base.n_devices = config->n_devices;
    for (uint32_t d = 0; d < config->n_devices; d++)
        ds->number[d] = (int)device_number(config, d);
    ds->tf32 = config->tf32;
    ds->n_streams = LANE_COUNT * config->n_devices + 1;
    host_memory_init(ds, config->host_chunk_bytes);
    r = open_parts(ds, config, err);
    if (r < 0) {
        if (config->blame)
            blame(&ds->base, config->blame);
        destroy(ds);
        return r;
    }
    *ret = &ds->base;
    return 0;
}

static void cuda_close(struct devset *base)
{
    cuda_drain(base);
    destroy(cuda(base));
}

static const struct backend module_backend = {
    .name = "cuda",
    .has_tf32 = true,
    .probe = cuda_probe,
    .open = cuda_open,
    .close = cuda_close,
    .numerics = numerics,
    .launch = cuda_launch,
    .copy = cuda_copy,
    .discard = cuda_discard,
    .mark = cuda_mark,
    .drain = cuda_drain,
    .counters = cuda_counters,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_sync = cuda_event_sync,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .release = release,
    .acquire = acquire,
    .blame = blame,
};

backend_module_fn tutti_backend;

__attribute__((visibility("default"))) const struct backend *tutti_backend(uint32_t abi,
                                                                           const struct backend_host *host)
{
    if (abi != BACKEND_ABI)
        return NULL;
    cuda_host = host;
    return &module_backend;
}
