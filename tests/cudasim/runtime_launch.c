/* Kernels: what nvcc's stubs register, the bodies from CUDASIM_KERNELS, and launches.
 *
 * nvcc puts into the program, for every kernel, a stub with the kernel's host address and calls that
 * register it under its device name. The bodies are looked up by that name, in the libraries of
 * CUDASIM_KERNELS (a list, separated by colons), made from the same .cu files (bodies.py). Registration
 * happens before main; nothing may fail then. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define MODULES      16
#define CONFIGS      16
#define PARAM_ALIGN  16
#define SHARED_PLAIN (48u << 10) /* more needs cudaFuncSetAttribute */

static const struct simt_module *modules[MODULES];
static uint32_t n_modules;
static struct kernel
    *kernels; /* guarded by lock_kernels, not sim.lock: registration comes before everything */
static pthread_mutex_t lock_kernels = PTHREAD_MUTEX_INITIALIZER;

/* ---- bodies ------------------------------------------------------------- */

static void load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct simt_module *m = library ? dlsym(library, "cudasim_module") : NULL;

    if (!m || m->abi != SIMT_ABI || n_modules == MODULES) {
        fprintf(stderr, "cudasim: CUDASIM_KERNELS: %s: %s\n", path,
                !library               ? dlerror()
                : !m                   ? "no kernel library"
                : n_modules == MODULES ? "too many"
                                       : "made for another version");
        exit(2);
    }
    modules[n_modules++] = m;
}

void kernels_load(const char *paths)
{
    char *copy = strdup(paths), *at = copy, *path;

    while ((path = strsep(&at, ":")))
        if (*path)
            load(path);
    free(copy);
}

static void find_body(struct kernel *k)
{
    for (uint32_t i = 0; i < n_modules; i++)
        for (uint32_t j = 0; j < modules[i]->n_kernels; j++)
            if (strcmp(modules[i]->kernels[j].name, k->name) == 0) {
                k->module = modules[i];
                k->body = &modules[i]->kernels[j];
                return;
            }
    report_problem(PROBLEM_NO_KERNEL, "no library of CUDASIM_KERNELS has a body for kernel %s", k->name);
}

static struct kernel *kernel_of(const void *host)
{
    struct kernel *k;

    pthread_mutex_lock(&lock_kernels);
    for (k = kernels; k && k->host != host && (const void *)k != host;)
        k = k->next;
    pthread_mutex_unlock(&lock_kernels);
    if (k && !k->body)
        find_body(k);
    return k && k->body ? k : NULL;
}

const char *kernel_loc(const struct kernel *k, uint32_t loc, char *text, size_t size)
{
    *text = '\0';
    if (k->module && loc > 0 && loc < k->module->n_locs)
        snprintf(text, size, "%s:%u", k->module->locs[loc].file, k->module->locs[loc].line);
    return text;
}

/* ---- what nvcc's stubs call. Declared in no public header. -------------- */

void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
char __cudaInitModule(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int thread_limit,
                            uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid, int *warp_size);
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int ext, size_t size,
                       int constant, int global);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, struct CUstream_st *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared_bytes,
                               cudaStream_t stream);

void **__cudaRegisterFatBinary(void *binary)
{
    static void *handle[1];

    (void)binary;
    return handle;
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

void __cudaUnregisterFatBinary(void **handle)
{
    (void)handle;
}

char __cudaInitModule(void **handle)
{
    (void)handle;
    return 1;
}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int thread_limit,
                            uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid, int *warp_size)
{
    struct kernel *k = calloc(1, sizeof *k);

    (void)handle, (void)device, (void)thread_limit, (void)tid, (void)bid, (void)block, (void)grid,
        (void)warp_size;
    if (!k)
        abort();
    k->host = host;
    k->name = strdup(name);
    pthread_mutex_lock(&lock_kernels);
    k->next = kernels;
    kernels = k;
    pthread_mutex_unlock(&lock_kernels);
}

/* The body has the variable, with its initial value; copies to and from symbols do not exist here. */
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int ext, size_t size,
                       int constant, int global)
{
    (void)handle, (void)host, (void)device, (void)name, (void)ext, (void)size, (void)constant, (void)global;
}

/* kernel<<<...>>>(...) is a push, then the stub, which pops; arguments of the call may contain another. */
static _Thread_local struct {
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
} configs[CONFIGS];
static _Thread_local unsigned n_configs;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, struct CUstream_st *stream)
{
    if (n_configs == CONFIGS)
        return 1;
    configs[n_configs].grid = grid;
    configs[n_configs].block = block;
    configs[n_configs].shared_bytes = shared_bytes;
    configs[n_configs].stream = stream;
    n_configs++;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream)
{
    if (n_configs == 0)
        return cudaErrorInvalidConfiguration;
    n_configs--;
    *grid = configs[n_configs].grid;
    *block = configs[n_configs].block;
    *shared_bytes = configs[n_configs].shared_bytes;
    *(cudaStream_t *)stream = configs[n_configs].stream;
    return cudaSuccess;
}

/* ---- launches ----------------------------------------------------------- */

static bool shape_is_valid(const struct kernel *k, dim3 grid, dim3 block, size_t shared_bytes)
{
    uint64_t threads = (uint64_t)block.x * block.y * block.z;

    if (threads == 0 || threads > SIMT_THREADS || block.z > 64 || grid.x == 0 || grid.x > 0x7fffffff ||
        grid.y == 0 || grid.y > 65535 || grid.z == 0 || grid.z > 65535)
        return false;
    if (shared_bytes + k->body->shared_bytes > SIMT_SHARED_BYTES)
        return false;
    return shared_bytes + k->body->shared_bytes <= SHARED_PLAIN || shared_bytes <= k->max_dynamic_shared;
}

/* Parameters are copied at the call. */
static struct launch *launch_new(const struct kernel *k, dim3 grid, dim3 block, void **args,
                                 size_t shared_bytes)
{
    struct launch *l = calloc(1, sizeof *l);
    size_t bytes = 0;
    uint8_t *at;

    for (uint32_t i = 0; i < k->body->n_params; i++)
        bytes += (k->body->param_bytes[i] + PARAM_ALIGN - 1) / PARAM_ALIGN * PARAM_ALIGN;
    at = aligned_alloc(PARAM_ALIGN, bytes + PARAM_ALIGN);
    if (!l || !at)
        abort();
    *l = (struct launch){.kernel = k, .grid = grid, .block = block, .shared_bytes = shared_bytes};
    l->args = calloc(k->body->n_params + 1, sizeof *l->args);
    if (!l->args)
        abort();
    l->args[0] = at; /* also what launch_free frees */
    for (uint32_t i = 0; i < k->body->n_params; i++) {
        l->args[i] = at;
        memcpy(at, args[i], k->body->param_bytes[i]);
        at += (k->body->param_bytes[i] + PARAM_ALIGN - 1) / PARAM_ALIGN * PARAM_ALIGN;
    }
    return l;
}

void launch_free(struct launch *l)
{
    if (!l)
        return;
    free(l->args[0]);
    free(l->args);
    free(l);
}

static cudaError_t launch(struct kernel *k, dim3 grid, dim3 block, void **args, size_t shared_bytes,
                          cudaStream_t handle)
{
    struct CUstream_st *s = stream_of(handle);
    cudaError_t e, later;
    struct op *op;

    if (!k)
        return cudaErrorInvalidDeviceFunction;
    if (!s)
        return cudaErrorInvalidResourceHandle;
    e = fault_call(FAULT_LAUNCH, s->device, &later);
    if (e != cudaSuccess)
        return e;
    if (!shape_is_valid(k, grid, block, shared_bytes))
        return cudaErrorInvalidConfiguration;
    if (s->device != sim_device()) {
        report_problem(PROBLEM_BAD_CALL, "kernel %s goes to a stream of device %d while device %d is current",
                       k->name, s->device, sim_device());
        return cudaErrorInvalidResourceHandle;
    }
    op = stream_new_op(s, OP_KERNEL, k->name);
    op->fails = later;
    op->engine = ENGINE_COMPUTE;
    op->launch = launch_new(k, grid, block, args, shared_bytes);
    stream_push(op);
    return cudaSuccess;
}

void launch_run(struct op *op)
{
    cudaError_t e = simt_run(op->launch, sim_random(), sim.order, &op->instructions, &op->bytes);

    sim.devices[op->stream->device].kernels++;
    if (e != cudaSuccess)
        sim_poison(op->stream->device, e);
}

cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **args, size_t shared_bytes,
                             cudaStream_t stream)
{
    sim_enter();
    return sim_leave(launch(kernel_of(host), grid, block, args, shared_bytes, stream));
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *host, void **args)
{
    return cudaLaunchKernel(host, config->gridDim, config->blockDim, args, config->dynamicSmemBytes,
                            config->stream);
}

/* New in CUDA 13: stubs ask for a handle and launch by that. */
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host)
{
    sim_enter();
    *kernel = (cudaKernel_t)kernel_of(host);
    return sim_leave(*kernel ? cudaSuccess : cudaErrorInvalidDeviceFunction);
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared_bytes,
                               cudaStream_t stream)
{
    return cudaLaunchKernel(kernel, grid, block, args, shared_bytes, stream);
}

cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute attribute, int value)
{
    struct kernel *k;

    sim_enter();
    k = kernel_of(host);
    if (!k)
        return sim_leave(cudaErrorInvalidDeviceFunction);
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value < 0 || (uint64_t)value + k->body->shared_bytes > SIMT_SHARED_BYTES)
            return sim_leave(cudaErrorInvalidValue);
        k->max_dynamic_shared = (uint64_t)value;
    }
    return sim_leave(cudaSuccess);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *ret, const void *host)
{
    struct kernel *k;

    sim_enter();
    k = kernel_of(host);
    if (!k)
        return sim_leave(cudaErrorInvalidDeviceFunction);
    memset(ret, 0, sizeof *ret);
    ret->sharedSizeBytes = k->body->shared_bytes;
    ret->maxThreadsPerBlock = SIMT_THREADS;
    ret->numRegs = 32;
    ret->ptxVersion = ret->binaryVersion = 80;
    ret->maxDynamicSharedSizeBytes = (int)(k->max_dynamic_shared ? k->max_dynamic_shared : SHARED_PLAIN);
    return sim_leave(cudaSuccess);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *ret, const void *host, int threads,
                                                          size_t shared_bytes)
{
    (void)host;
    if (threads <= 0 || threads > SIMT_THREADS)
        return cudaErrorInvalidValue;
    *ret = 2048 / threads;
    if (shared_bytes > 0 && *ret > (int)(SIMT_SHARED_BYTES / shared_bytes))
        *ret = (int)(SIMT_SHARED_BYTES / shared_bytes);
    if (*ret > 32)
        *ret = 32;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *ret, const void *host, int threads,
                                                                   size_t shared_bytes, unsigned flags)
{
    (void)flags;
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(ret, host, threads, shared_bytes);
}
