/* Implements copies and fills of the simulator. The call checks its arguments. The bytes move later, when the
 * scheduler picks the operation.
 *
 * Host memory that is not pinned behaves as in CUDA: the call reads a source at once, and a copy into such
 * memory returns only when it is done. As in CUDA, each end of a copy must lie entirely inside one
 * registration or be entirely unregistered. A copy that is pinned only in part, or that crosses two
 * registrations, is refused.
 *
 * The direction of a copy selects its engine and its counter: in, out, peer (counted at the sender) or local.
 */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define ANY_DEVICE (-2)

/* One end of a copy: its device, -1 for host memory; *ret_pinned. Reports and returns false when it is
 * wrong. */
static bool look_up(const void *p, uint64_t bytes, int *ret_device, bool *ret_pinned)
{
    uint64_t address = (uint64_t)(uintptr_t)p;
    const struct allocation *a = memory_find(address);

    if (!a && memory_is_device_address(address)) {
        report_problem(PROBLEM_FREED,
                       "memcpy or memset of %llu bytes at %p, where there is no memory (any more)",
                       (unsigned long long)bytes, p);
        return false;
    }
    if (a && bytes > a->address + a->bytes - address) {
        report_problem(PROBLEM_OUT_OF_BOUNDS, "memcpy or memset of %llu bytes at %p, byte %llu of %llu",
                       (unsigned long long)bytes, p, (unsigned long long)(address - a->address),
                       (unsigned long long)a->bytes);
        return false;
    }
    if (!a && memory_overlaps(address, bytes)) {
        report_problem(PROBLEM_OUT_OF_BOUNDS,
                       "memcpy or memset of %llu bytes at %p, of which only some are pinned",
                       (unsigned long long)bytes, p);
        return false;
    }
    *ret_device = a ? a->device : -1;
    *ret_pinned = a != NULL;
    return true;
}

static bool kind_fits(enum cudaMemcpyKind kind, int dst, int src)
{
    switch (kind) {
    case cudaMemcpyHostToHost:
        return dst < 0 && src < 0;
    case cudaMemcpyHostToDevice:
        return dst >= 0 && src < 0;
    case cudaMemcpyDeviceToHost:
        return dst < 0 && src >= 0;
    case cudaMemcpyDeviceToDevice:
        return dst >= 0 && src >= 0;
    case cudaMemcpyDefault:
        return true;
    }
    return false;
}

static void classify(struct op *op)
{
    if (op->src_device < 0 && op->dst_device < 0) {
        op->name = "within the host";
    } else if (op->src_device < 0) {
        op->name = "in";
        op->engine = ENGINE_IN;
    } else if (op->dst_device < 0) {
        op->name = "out";
        op->engine = ENGINE_OUT;
    } else if (op->src_device != op->dst_device) {
        op->name = "to a peer";
        op->engine = ENGINE_PEER;
    } else {
        op->name = "within a device";
        op->engine = ENGINE_COMPUTE;
    }
}

/* want_dst, want_src: what the caller says about the devices, or ANY_DEVICE. */
static cudaError_t copy(void *dst, int want_dst, const void *src, int want_src, uint64_t bytes,
                        enum cudaMemcpyKind kind, cudaStream_t handle, bool wait)
{
    struct CUstream_st *s = stream_of(handle);
    bool dst_pinned = false, src_pinned = false;
    int dst_device = -1, src_device = -1;
    cudaError_t e, later;
    struct op *op;

    if (!s)
        return cudaErrorInvalidResourceHandle;
    e = fault_call(FAULT_MEMCPY, s->device, &later);
    if (e != cudaSuccess || bytes == 0)
        return e;
    if (!look_up(dst, bytes, &dst_device, &dst_pinned) || !look_up(src, bytes, &src_device, &src_pinned))
        return cudaErrorInvalidValue;
    if (!kind_fits(kind, dst_device, src_device) || (want_dst != ANY_DEVICE && want_dst != dst_device) ||
        (want_src != ANY_DEVICE && want_src != src_device)) {
        report_problem(PROBLEM_BAD_CALL, "memcpy of kind %d: %p is memory of %d, %p of %d (-1: host)",
                       (int)kind, dst, dst_device, src, src_device);
        return cudaErrorInvalidValue;
    }
    op = stream_new_op(s, OP_COPY, "");
    op->fails = later;
    op->dst = (uint64_t)(uintptr_t)dst;
    op->src = (uint64_t)(uintptr_t)src;
    op->dst_device = dst_device;
    op->src_device = src_device;
    op->bytes = bytes;
    classify(op);
    if (src_device < 0 && !src_pinned && !wait) {
        op->staged = malloc(bytes);
        if (!op->staged)
            abort();
        memcpy(op->staged, src, bytes);
    }
    stream_push(op);
    return wait || (dst_device < 0 && !dst_pinned) ? sim_await(s) : cudaSuccess;
}

/* Where the bytes are. Not found: memory of the host that is not pinned. */
static uint8_t *resolve(uint64_t address, uint64_t bytes, enum access access)
{
    struct allocation *a = memory_find(address);

    if (!a)
        return (uint8_t *)(uintptr_t)address;
    race_access(a, address, bytes, access, 0);
    return a->data + (address - a->address);
}

static void count(const struct op *op)
{
    if (op->kind == OP_SET) {
        sim.devices[op->stream->device].set_bytes += op->bytes;
    } else if (op->engine == ENGINE_IN) {
        sim.devices[op->dst_device].in_bytes += op->bytes;
        sim.devices[op->dst_device].in_copies++;
    } else if (op->engine == ENGINE_OUT) {
        sim.devices[op->src_device].out_bytes += op->bytes;
        sim.devices[op->src_device].out_copies++;
    } else if (op->engine == ENGINE_PEER) {
        sim.devices[op->src_device].peer_bytes[op->dst_device] += op->bytes;
        sim.devices[op->src_device].peer_copies++;
    } else if (op->engine == ENGINE_COMPUTE) {
        sim.devices[op->src_device].local_bytes += op->bytes;
    }
}

void copy_run(struct op *op)
{
    uint8_t *dst, *src;

    if (op->kind == OP_SET) {
        memset(resolve(op->dst, op->bytes, ACCESS_WRITE), op->value, op->bytes);
    } else {
        src = op->staged ? op->staged : resolve(op->src, op->bytes, ACCESS_READ);
        dst = resolve(op->dst, op->bytes, ACCESS_WRITE);
        memmove(dst, src, op->bytes);
    }
    count(op);
}

/* ---- the calls ---------------------------------------------------------- */

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    sim_enter();
    return sim_leave(copy(dst, ANY_DEVICE, src, ANY_DEVICE, bytes, kind, stream, false));
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    sim_enter();
    return sim_leave(copy(dst, ANY_DEVICE, src, ANY_DEVICE, bytes, kind, NULL, true));
}

cudaError_t cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src, int src_device, size_t bytes,
                                cudaStream_t stream)
{
    sim_enter();
    return sim_leave(copy(dst, dst_device, src, src_device, bytes, cudaMemcpyDefault, stream, false));
}

cudaError_t cudaMemcpyPeer(void *dst, int dst_device, const void *src, int src_device, size_t bytes)
{
    sim_enter();
    return sim_leave(copy(dst, dst_device, src, src_device, bytes, cudaMemcpyDefault, NULL, true));
}

static cudaError_t fill(void *dst, int value, uint64_t bytes, cudaStream_t handle)
{
    struct CUstream_st *s = stream_of(handle);
    cudaError_t e, later;
    int device = -1;
    bool pinned = false;
    struct op *op;

    if (!s)
        return cudaErrorInvalidResourceHandle;
    e = fault_call(FAULT_MEMSET, s->device, &later);
    if (e != cudaSuccess || bytes == 0)
        return e;
    if (!look_up(dst, bytes, &device, &pinned) || !pinned)
        return cudaErrorInvalidValue;
    op = stream_new_op(s, OP_SET, "");
    op->fails = later;
    op->dst = (uint64_t)(uintptr_t)dst;
    op->value = value;
    op->bytes = bytes;
    op->engine = ENGINE_COMPUTE;
    stream_push(op);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream)
{
    sim_enter();
    return sim_leave(fill(dst, value, bytes, stream));
}

cudaError_t cudaMemset(void *dst, int value, size_t bytes)
{
    sim_enter();
    return sim_leave(fill(dst, value, bytes, NULL));
}
