/* Streams: their table, the default streams, host functions, and synchronization.
 *
 * The default stream of a device (handle NULL) is the legacy one: it waits for the device's blocking
 * streams and they wait for it. This is done with marks, as events do it. */
#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "sim.h"

void stream_create_default(int device)
{
    struct CUstream_st *s = &sim.streams[device];

    s->id = device;
    s->device = device;
    s->used = true;
    s->blocking = true;
}

/* Makes all later operations of `after` wait for the operations that `before` has now. */
static void order_after(struct CUstream_st *after, struct CUstream_st *before)
{
    struct mark *m;

    if (after->clock.at[before->id] >= before->seq)
        return;
    m = mark_push(before);
    mark_wait_push(after, m);
    mark_unref(m);
}

struct CUstream_st *stream_of(cudaStream_t handle)
{
    uintptr_t at = (uintptr_t)handle, begin = (uintptr_t)sim.streams;
    struct CUstream_st *s;

    if (handle == NULL || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
        if (sim_device() >= sim.n_devices)
            return NULL;
        s = &sim.streams[sim_device()];
    } else {
        if (at < begin || at >= begin + sizeof sim.streams || (at - begin) % sizeof *s != 0 ||
            !handle->used) {
            report_problem(PROBLEM_BAD_CALL, "%p is no stream (any more)", (void *)handle);
            return NULL;
        }
        s = handle;
    }
    if (!s->blocking)
        return s;
    if (s->id == s->device) {
        for (int i = sim.n_devices; i < SIM_HOST; i++)
            if (sim.streams[i].used && sim.streams[i].blocking && sim.streams[i].device == s->device)
                order_after(s, &sim.streams[i]);
    } else {
        order_after(s, &sim.streams[s->device]);
    }
    return s;
}

static cudaError_t create(cudaStream_t *ret, unsigned flags)
{
    cudaError_t e = fault_call(FAULT_STREAM, sim_device(), NULL);

    *ret = NULL;
    if (e != cudaSuccess)
        return e;
    for (int i = sim.n_devices; i < SIM_HOST; i++) {
        struct CUstream_st *s = &sim.streams[i];
        if (s->used)
            continue;
        s->id = i;
        s->device = sim_device();
        s->used = true;
        s->blocking = !(flags & cudaStreamNonBlocking);
        s->priority = (int32_t)(sim_random() % 1000);
        s->free_ns = sim.host_ns;
        *ret = s;
        return cudaSuccess;
    }
    return cudaErrorMemoryAllocation;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    (void)priority; /* a hint; every order is allowed anyway */
    sim_enter();
    return sim_leave(create(stream, flags));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    struct CUstream_st *s;

    sim_enter();
    s = stream ? stream_of(stream) : NULL;
    if (!s)
        return sim_leave(cudaErrorInvalidResourceHandle);
    sim_drain(s); /* what was enqueued still runs, and the host does not learn when */
    s->used = false;
    return sim_leave(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    struct CUstream_st *s;
    cudaError_t e;

    sim_enter();
    s = stream_of(stream);
    if (!s)
        return sim_leave(cudaErrorInvalidResourceHandle);
    e = fault_call(FAULT_SYNC, s->device, NULL);
    return sim_leave(e == cudaSuccess ? sim_await(s) : e);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    struct CUstream_st *s;
    cudaError_t e;

    sim_enter();
    s = stream_of(stream);
    if (!s)
        return sim_leave(cudaErrorInvalidResourceHandle);
    sim_peek();
    e = sim_device_error(s->device);
    if (e != cudaSuccess)
        return sim_leave(e);
    if (s->done != s->seq) {
        sim_leave(cudaSuccess); /* an answer, not an error to remember */
        return cudaErrorNotReady;
    }
    sim_learn(&s->clock, s->free_ns);
    return sim_leave(cudaSuccess);
}

cudaError_t cudaDeviceSynchronize(void)
{
    cudaError_t e;

    sim_enter();
    e = fault_call(FAULT_SYNC, sim_device(), NULL);
    return sim_leave(e == cudaSuccess ? sim_await_device(sim_device()) : e);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    struct CUstream_st *s;
    cudaError_t e, later;
    struct op *op;

    sim_enter();
    s = stream_of(stream);
    if (!s)
        return sim_leave(cudaErrorInvalidResourceHandle);
    e = fault_call(FAULT_HOSTFUNC, s->device, &later);
    if (e != cudaSuccess)
        return sim_leave(e);
    op = stream_new_op(s, OP_HOST, "");
    op->fails = later;
    op->run = function;
    op->data = data;
    stream_push(op);
    return sim_leave(cudaSuccess);
}

cudaError_t cudasim_enqueue(cudaStream_t stream, const char *name, void (*run)(void *data), const void *data,
                            size_t bytes, double flops)
{
    struct CUstream_st *s;
    cudaError_t e, later;
    struct op *op;

    sim_enter();
    s = stream_of(stream);
    if (!s)
        return sim_leave(cudaErrorInvalidResourceHandle);
    e = fault_call(FAULT_GEMM, s->device, &later);
    if (e != cudaSuccess)
        return sim_leave(e);
    op = stream_new_op(s, OP_GEMM, name);
    op->fails = later;
    op->engine = ENGINE_COMPUTE;
    op->flops = flops;
    op->run = run;
    op->data = malloc(bytes);
    if (!op->data)
        abort();
    __builtin_memcpy(op->data, data, bytes);
    stream_push(op);
    return sim_leave(cudaSuccess);
}
