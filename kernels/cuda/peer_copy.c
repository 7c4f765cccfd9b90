/* Copies on the peer lanes. A copy stays inside a device, goes directly to another device if the topology
 * allows it, or goes through pinned host memory.
 *
 * In the last case the sender's peer stream copies a piece into one of two buffers, and the receiver's
 * relay stream copies it on. Events order the two, so that both links are busy at the same time. (The
 * driver alone would also go through the host, but it does not promise to do so asynchronously.) At the
 * end the peer stream waits for the last piece. So for later commands on that stream, a copy is done when
 * all of it has arrived.
 *
 * Only the enqueueing thread runs this code.
 */
#include <inttypes.h>

#include "kernels/cuda/cuda.h"

#define EVENT_FLAGS (cudaEventDisableTiming | cudaEventBlockingSync)

/* Enables direct access from device `d` to every other device where the hardware allows it, and stores the
 * result in `direct`. A lack of direct access is not an error, because copies can go through the host. */
static void enable_access(struct cuda_devset *ds, uint32_t d)
{
    for (uint32_t p = 0; p < ds->base.n_devices; p++) {
        int can = 0;
        if (p == d || cudaDeviceCanAccessPeer(&can, ds->number[d], ds->number[p]) != cudaSuccess || !can)
            continue;
        const cudaError_t e = cudaDeviceEnablePeerAccess(ds->number[p], 0);
        if (e == cudaSuccess || e == cudaErrorPeerAccessAlreadyEnabled)
            ds->devices[d].direct |= UINT64_C(1) << p;
        cuda_errno(e);
    }
}

static bool all_direct(const struct cuda_devset *ds)
{
    const uint32_t n = ds->base.n_devices;
    const uint64_t all = n == DEVICE_MAX ? UINT64_MAX : (UINT64_C(1) << n) - 1;

    for (uint32_t d = 0; d < n; d++)
        if ((ds->devices[d].direct | UINT64_C(1) << d) != all)
            return false;
    return true;
}

/* Creates the stream, the events and the buffers of a device's relay. Before the call, the caller must make
 * the device the current device of CUDA. */
static int open_relay(struct relay *r, struct cuda_fault *f)
{
    CUDA_TRY(f, cudaStreamCreateWithFlags(&r->in, cudaStreamNonBlocking));
    for (int b = 0; b < 2; b++) {
        CUDA_TRY(f, cudaEventCreateWithFlags(&r->filled[b], EVENT_FLAGS));
        CUDA_TRY(f, cudaEventCreateWithFlags(&r->emptied[b], EVENT_FLAGS));
        CUDA_TRY(f, cudaHostAlloc((void **)&r->buffers[b], RELAY_BYTES, cudaHostAllocPortable));
    }
    return 0;
}

int peer_open(struct cuda_devset *ds, struct err *err)
{
    for (uint32_t d = 0; d < ds->base.n_devices; d++) {
        cuda_errno(cudaSetDevice(ds->number[d]));
        enable_access(ds, d);
    }
    if (all_direct(ds))
        return 0;
    for (uint32_t d = 0; d < ds->base.n_devices; d++) {
        cuda_errno(cudaSetDevice(ds->number[d]));
        const int r = open_relay(&ds->devices[d].relay, &ds->fault);
        if (r < 0)
            return err_set(err, r, "device %" PRIu32 ": cannot prepare copies to other devices", d);
    }
    return 0;
}

void peer_close(struct cuda_devset *ds)
{
    for (uint32_t d = 0; d < ds->base.n_devices; d++) {
        struct relay *r = &ds->devices[d].relay;
        cuda_errno(cudaSetDevice(ds->number[d]));
        for (int b = 0; b < 2; b++) {
            if (r->filled[b])
                cuda_errno(cudaEventDestroy(r->filled[b]));
            if (r->emptied[b])
                cuda_errno(cudaEventDestroy(r->emptied[b]));
            if (r->buffers[b])
                cuda_errno(cudaFreeHost(r->buffers[b]));
        }
        if (r->in)
            cuda_errno(cudaStreamDestroy(r->in));
    }
}

/* Enqueues a copy between two devices that cannot access each other. The copy goes through pinned buffers of
 * the host, piece by piece. */
static int relay_copy(struct cuda_devset *ds, uint32_t from, uint32_t to, uint8_t *dst, const uint8_t *src,
                      uint64_t bytes)
{
    const struct relay *sender = &ds->devices[from].relay, *receiver = &ds->devices[to].relay;
    const cudaStream_t out = ds->streams[LANE_COUNT * from + LANE_PEER].stream;
    struct cuda_fault *f = &ds->fault;
    unsigned b = 0;

    for (uint64_t at = 0; at < bytes; at += RELAY_BYTES, b ^= 1) {
        const uint64_t piece = bytes - at < RELAY_BYTES ? bytes - at : RELAY_BYTES;
        /* The two buffers are used in turn. Wait until the receiver has emptied the buffer that this piece
         * needs. The first two pieces need no wait, because every earlier copy ended by waiting until both
         * buffers were empty. */
        if (at >= 2 * RELAY_BYTES)
            CUDA_TRY(f, cudaStreamWaitEvent(out, receiver->emptied[b], 0));
        CUDA_TRY(f, cudaMemcpyAsync(sender->buffers[b], src + at, piece, cudaMemcpyDeviceToHost, out));
        CUDA_TRY(f, cudaEventRecord(sender->filled[b], out));
        CUDA_TRY(f, cudaStreamWaitEvent(receiver->in, sender->filled[b], 0));
        CUDA_TRY(f,
                 cudaMemcpyAsync(dst + at, sender->buffers[b], piece, cudaMemcpyHostToDevice, receiver->in));
        CUDA_TRY(f, cudaEventRecord(receiver->emptied[b], receiver->in));
    }
    CUDA_TRY(f, cudaStreamWaitEvent(out, receiver->emptied[b ^ 1], 0));
    return 0;
}

/* Returns the device whose arena contains p. */
static uint32_t device_at(const struct cuda_devset *ds, const void *p)
{
    uint32_t d = 0;

    while (d + 1 < ds->base.n_devices &&
           (uintptr_t)p - (uintptr_t)ds->base.arena[d] >= ds->base.capacity_bytes[d])
        d++;
    return d;
}

int peer_copy(struct cuda_devset *ds, uint32_t from, void *dst, const void *src, uint64_t bytes)
{
    const cudaStream_t out = ds->streams[LANE_COUNT * from + LANE_PEER].stream;
    const uint32_t to = device_at(ds, dst);

    if (to == from) {
        CUDA_TRY(&ds->fault, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, out));
        return 0;
    }
    if (!(ds->devices[from].direct >> to & 1))
        return relay_copy(ds, from, to, dst, src, bytes);
    CUDA_TRY(&ds->fault, cudaMemcpyPeerAsync(dst, ds->number[to], src, ds->number[from], bytes, out));
    return 0;
}
