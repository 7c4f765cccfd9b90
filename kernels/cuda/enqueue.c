/* Launches, copies, discards, marks and events. Each call of device.h becomes one or a few asynchronous
 * CUDA calls.
 *
 * Once a queue of a devset has failed, every call returns that error (check.h). Only cuda_event_create
 * allocates memory. A CUDA event belongs to one device and can only be recorded on the streams of that
 * device. So struct cuda_event has one CUDA event per device, and remembers which of them was recorded
 * last.
 *
 * Bytes that go over a link are counted when the copy is enqueued. If the copy fails later, the whole
 * devset fails.
 *
 * Threads: the enqueueing thread, except for mark_now (a thread of the driver) and cuda_counters (any
 * thread).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/watch.h"

/* An event of the cuda backend. A CUDA event belongs to one device, so this struct has one CUDA event for
 * each device. */
struct cuda_event {
    uint32_t stream; /* of the latest record, or UINT32_MAX */
    uint32_t device; /* device of that stream */
    cudaEvent_t on[];
};

static struct cuda_event *cuda_event(struct event *e)
{
    return (struct cuda_event *)e;
}

/* The types that the ops implement, on devices and on the host. */
#define OP_TYPES (1u << DTYPE_F32 | 1u << DTYPE_BF16 | 1u << DTYPE_F16)

/* Returns true if the types of a call occur together. All its 16-bit types must be the same. If the
 * activations are F32, all types are F32, except that the gradient of F32 logits may have 16 bits. */
static bool types_agree(const struct op_call *call)
{
    const struct op_dtypes *fields = &op_dtypes[call->op];
    enum dtype first = DTYPE_F32; /* op.h calls this field `dtype` */

    for (uint32_t i = 0; i < fields->n; i++) {
        enum dtype found;
        memcpy(&found, (const char *)call + fields->at[i], sizeof found);
        if (i == 0)
            first = found;
        else if (found != first && found != DTYPE_F32 && !(first == DTYPE_F32 && call->op == OP_softmax_xent))
            return false;
    }
    return true;
}

int cuda_launch(struct devset *base, uint32_t stream, const struct op_call *call)
{
    struct cuda_devset *ds = cuda(base);
    const uint32_t device = stream / LANE_COUNT;

    if (!op_has_only(call, OP_TYPES) || !types_agree(call))
        return -EINVAL;
    if (ds->fault.code < 0)
        return ds->fault.code;
    if (device == base->n_devices)
        return host_queue_launch(&ds->host, ds->streams[stream].stream, call, &ds->fault);
    /* CUDA launches kernels only on the current device, so make the stream's device the current one. */
    CUDA_TRY(&ds->fault, cudaSetDevice(ds->number[device]));
    return cuda_ops[call->op](&ds->devices[device].compute, call);
}

/* Enqueues a copy between the host and a device. If the copy crosses the end of a registration of host
 * memory, it is split there, because CUDA would refuse it. */
static int host_copy(struct cuda_devset *ds, cudaStream_t stream, uint8_t *dst, const uint8_t *src,
                     uint64_t bytes, bool in)
{
    uint64_t at = 0, piece = host_piece(ds, in ? src : dst, bytes);

    if (piece == 0)
        return -EFAULT;
    while (at < bytes) {
        CUDA_TRY(&ds->fault, cudaMemcpyAsync(dst + at, src + at, piece,
                                             in ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, stream));
        at += piece;
        piece = host_piece(ds, (in ? src : dst) + at, bytes - at);
    }
    return 0;
}

int cuda_copy(struct devset *base, uint32_t stream, void *dst, const void *src, uint64_t bytes)
{
    struct cuda_devset *ds = cuda(base);
    struct cuda_stream *s = &ds->streams[stream];
    const enum lane lane = backend_lane(base, stream);
    int r;

    if (ds->fault.code < 0)
        return ds->fault.code;
    if (bytes == 0)
        return 0;
    if (lane == LANE_PEER)
        r = peer_copy(ds, stream / LANE_COUNT, dst, src, bytes);
    else
        r = host_copy(ds, s->stream, dst, src, bytes, lane == LANE_IN);
    if (r == 0 && !backend_copy_stays(base, stream, dst))
        atomic_fetch_add_explicit(&s->copied_bytes, bytes, memory_order_relaxed);
    return r;
}

/* Does nothing on a real device. In tests with the simulator (tests/cudasim), this function fills the memory
 * with NaN, and the race detector treats it as a write. */
int cuda_discard(struct devset *base, uint32_t stream, void *at, uint64_t bytes)
{
    struct cuda_devset *ds = cuda(base);

    if (ds->fault.code < 0)
        return ds->fault.code;
    if (bytes > 0 && watch_is_on())
        CUDA_TRY(&ds->fault, cudaMemsetAsync(at, 0xff, bytes, ds->streams[stream].stream));
    return 0;
}

/* Writes the current time to *at. The CUDA driver calls this function on one of its own threads. */
static void mark_now(void *at)
{
    watch_write(at, sizeof(uint64_t));
    *(uint64_t *)at = cuda_host->now_ns();
}

/* Enqueues a host function that reads the clock. CUDA's timing events cannot be used, because all devices and
 * the host must use the same clock. The stream stands still while the host function runs. Therefore only a
 * few training steps are traced. */
int cuda_mark(struct devset *base, uint32_t stream, uint64_t *at)
{
    struct cuda_devset *ds = cuda(base);

    if (ds->fault.code < 0)
        return ds->fault.code;
    CUDA_TRY(&ds->fault, cudaLaunchHostFunc(ds->streams[stream].stream, mark_now, at));
    return 0;
}

/* ---- events ---- */

int cuda_event_create(struct devset *base, struct event **ret)
{
    struct cuda_event *e = xcalloc(1, sizeof *e + base->n_devices * sizeof e->on[0]);

    e->stream = UINT32_MAX;
    for (uint32_t d = 0; d < base->n_devices; d++) {
        int r = cuda_errno(cudaSetDevice(cuda(base)->number[d]));
        if (r == 0)
            r = cuda_errno(
                cudaEventCreateWithFlags(&e->on[d], cudaEventDisableTiming | cudaEventBlockingSync));
        if (r < 0) {
            cuda_event_destroy(base, (struct event *)e);
            return r;
        }
    }
    *ret = (struct event *)e;
    return 0;
}

void cuda_event_destroy(struct devset *base, struct event *event)
{
    struct cuda_event *e = cuda_event(event);

    for (uint32_t d = 0; d < base->n_devices; d++)
        if (e->on[d])
            cuda_errno(cudaEventDestroy(e->on[d]));
    free(e);
}

int cuda_event_record(struct devset *base, uint32_t stream, struct event *event)
{
    struct cuda_event *e = cuda_event(event);
    struct cuda_devset *ds = cuda(base);
    const uint32_t device = cuda_device_of(ds, stream);

    if (ds->fault.code < 0)
        return ds->fault.code;
    CUDA_TRY(&ds->fault, cudaEventRecord(e->on[device], ds->streams[stream].stream));
    e->stream = stream;
    e->device = device;
    return 0;
}

int cuda_event_wait(struct devset *base, uint32_t stream, struct event *event)
{
    const struct cuda_event *e = cuda_event(event);
    struct cuda_devset *ds = cuda(base);

    if (ds->fault.code < 0)
        return ds->fault.code;
    /* No wait is needed for an event that was never recorded. No wait is needed for an event of the same
     * stream either, because the commands of a stream run in order. */
    if (e->stream == UINT32_MAX || e->stream == stream)
        return 0;
    CUDA_TRY(&ds->fault, cudaStreamWaitEvent(ds->streams[stream].stream, e->on[e->device], 0));
    return 0;
}

int cuda_event_sync(struct devset *base, struct event *event)
{
    const struct cuda_event *e = cuda_event(event);
    struct cuda_devset *ds = cuda(base);

    if (ds->fault.code < 0)
        return ds->fault.code;
    if (e->stream != UINT32_MAX)
        CUDA_TRY(&ds->fault, cudaEventSynchronize(e->on[e->device]));
    return 0;
}

/* ---- results ---- */

/* Waits for all streams, even if one of them has failed. The thread sleeps while it waits for an event.
 * cudaStreamSynchronize would keep a core busy instead. */
int cuda_drain(struct devset *base)
{
    struct cuda_devset *ds = cuda(base);

    for (uint32_t i = 0; i < ds->n_streams; i++)
        CUDA_CHECK(&ds->fault, cudaEventRecord(ds->streams[i].drained, ds->streams[i].stream));
    for (uint32_t i = 0; i < ds->n_streams; i++)
        CUDA_CHECK(&ds->fault, cudaEventSynchronize(ds->streams[i].drained));
    return ds->fault.code;
}

void cuda_counters(const struct devset *base, uint32_t device, struct device_counters *ret)
{
    const struct cuda_stream *lanes = &((const struct cuda_devset *)base)->streams[LANE_COUNT * device];

    *ret = (struct device_counters){
        .in_bytes = atomic_load_explicit(&lanes[LANE_IN].copied_bytes, memory_order_relaxed),
        .out_bytes = atomic_load_explicit(&lanes[LANE_OUT].copied_bytes, memory_order_relaxed),
        .peer_bytes = atomic_load_explicit(&lanes[LANE_PEER].copied_bytes, memory_order_relaxed),
    };
}
